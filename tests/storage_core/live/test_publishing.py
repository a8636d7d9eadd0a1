"""What each mode of the sink promises: writers that are killed and run again, at once and after the window."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.live_server import BINARIES, LiveServer, cluster, connect, create_stream, fill, frame, leader_of

from storage_core.errors import FencedError, InvalidMessageError, RequirementError, ServerError
from storage_core.live.publishing import Mode, Published, Publisher, Target, WriterPart, choose
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, stream_info
from storage_core.schema import HEADERS_TYPE

COUNT = 12_000
PART = WriterPart("writer", 3, 1)


def fail(error: Exception) -> None:
    raise error


def rows(first: int, end: int, stream: str = "A", headers: Any = None) -> pa.RecordBatch:
    numbers = range(first, end)
    columns = {
        "subject": pa.array([f"{stream}.{number % 5}" for number in numbers]),
        "headers": pa.array([headers] * len(numbers), HEADERS_TYPE),
        "data": pa.array([b"row %d" % number for number in numbers], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def no_ids(count: int) -> pa.Array:
    return pa.nulls(count, pa.string())


def publish(
    servers: Servers,
    target: Target,
    part: WriterPart = PART,
    count: int = COUNT,
    batch_size: int = 1_700,
    first: int = 0,
) -> Published:
    with Publisher(servers, target, part) as publisher:
        for start in range(first, first + count, batch_size):
            end = min(start + batch_size, first + count)
            publisher.write(rows(start, end, target.stream), no_ids(end - start))
        return publisher.finish()


def stored(server: LiveServer, stream: str) -> list[bytes]:
    """Return the data of a stream's messages without markers."""
    with server.connect() as connection:
        info = stream_info(connection, stream)
    batches = read_range(server.servers(), Range(stream, info.created, 1, info.next_sequence), fail)
    found = [row for messages in batches for row in messages.batch(stream, ("subject", "data")).to_pylist()]
    return [row["data"] for row in found if ".marker." not in row["subject"]]


def target_for(server: LiveServer, stream: str, mode: Mode, **config: Any) -> Target:
    with server.connect() as connection:
        create_stream(connection, stream, allow_atomic=True, **config)
        return choose(stream_info(connection, stream), connection.version, mode, None, may_mark=True)


def publish_until_killed(servers: Servers, target: Target, seen: Any) -> None:
    with Publisher(servers, target, PART) as publisher:
        for start in range(0, COUNT, 1_000):
            publisher.write(rows(start, start + 1_000, target.stream), no_ids(1_000))
            if publisher.published.stored >= COUNT // 3:
                seen.set()


def kill_a_writer(servers: Servers, target: Target) -> None:
    context = multiprocessing.get_context("spawn")
    seen = context.Event()
    process = context.Process(target=publish_until_killed, args=(servers, target, seen))
    process.start()
    assert seen.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("mode", [Mode.MSGID, Mode.ATOMIC, Mode.MARKER], ids=lambda mode: mode.value)
def test_writer_that_is_killed_and_run_again_stores_each_row_once(server: LiveServer, mode: Mode) -> None:
    stream = f"K{mode.value}"
    target = target_for(server, stream, mode)
    kill_a_writer(server.servers(), target)
    assert COUNT // 3 <= len(stored(server, stream)) <= COUNT
    published = publish(server.servers(), target)
    assert published.stored + published.duplicates == COUNT
    assert published.duplicates >= COUNT // 3
    assert stored(server, stream) == [b"row %d" % number for number in range(COUNT)]
    assert publish(server.servers(), target, batch_size=999) == Published(0, COUNT)  # however Spark cuts its batches


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(Mode.NONE, 2 * COUNT), (Mode.MSGID, 2 * COUNT), (Mode.ATOMIC, 2 * COUNT), (Mode.MARKER, COUNT)],
    ids=lambda value: getattr(value, "value", ""),
)
def test_after_the_duplicate_window_a_marker_alone_keeps_rows_single(
    server: LiveServer, mode: Mode, expected: int
) -> None:
    stream = f"W{mode.value}"
    target = target_for(server, stream, mode, duplicate_window=100_000_000)
    publish(server.servers(), target)
    with (
        server.connect() as connection
    ):  # the window goes by the times of messages: another one after a while is enough
        last = stream_info(connection, stream).state["last_ts"]
        while publish_one(connection, stream) < COUNT or not is_later(connection, stream, last):
            time.sleep(0.05)
        connection.request("STREAM.PURGE", stream, body={"filter": f"{stream}.tick"})
    publish(server.servers(), target)
    assert len(stored(server, stream)) == expected
    assert len(set(stored(server, stream))) == COUNT


def publish_one(connection: Any, stream: str) -> int:
    return fill(connection, stream, [frame(f"{stream}.tick", b"")])


def is_later(connection: Any, stream: str, before: str) -> bool:
    from storage_core.quantities import parse_time_ns

    last = stream_info(connection, stream).state["last_ts"]
    return parse_time_ns(last, "last") - parse_time_ns(before, "before") > 1_000_000_000


def test_batches_follow_one_another_and_a_former_writer_is_fenced(server: LiveServer) -> None:
    target = target_for(server, "F", Mode.MARKER)
    publish(server.servers(), target, WriterPart("w", 0, 0), 2_500)
    with Publisher(server.servers(), target, WriterPart("w", 1, 0)) as zombie:
        zombie.write(rows(2_500, 4_000, "F"), no_ids(1_500))  # one chunk of it, and then it stops for a while
        publish(server.servers(), target, WriterPart("w", 1, 0), 2_500, first=2_500)
        with pytest.raises(FencedError) as raised:
            zombie.write(rows(4_000, 5_000, "F"), no_ids(1_000))
    assert raised.value.stream == "F"
    assert publish(server.servers(), target, WriterPart("w", 0, 0), 2_500) == Published(0, 2_500)  # an older batch
    publish(server.servers(), target, WriterPart("w", 1, 1), 10, first=5_000)  # another part
    assert sorted(stored(server, "F")) == sorted(b"row %d" % number for number in range(5_010))


@pytest.mark.parametrize("count", [2_000, 3_500, 999])
def test_batch_that_comes_again_with_other_rows_is_refused(server: LiveServer, count: int) -> None:
    target = target_for(server, f"O{count}", Mode.MARKER)
    publish(server.servers(), target, count=2_500)
    with pytest.raises(RequirementError, match="has other rows"):
        publish(server.servers(), target, count=count, first=1 if count == 2_000 else 0)
    assert len(stored(server, f"O{count}")) == 2_500


@pytest.mark.parametrize("mode", [Mode.MSGID, Mode.ATOMIC, Mode.MARKER], ids=lambda mode: mode.value)
def test_ids_of_rows_win_over_made_ones(server: LiveServer, mode: Mode) -> None:
    stream = f"I{mode.value}"
    target = target_for(server, stream, mode)
    for part, first in ((PART, 0), (WriterPart("another", 9, 9), 1_500)):
        with Publisher(server.servers(), target, part) as publisher:
            ids = pa.array([f"id{number}" for number in range(first, first + 2_000)])
            publisher.write(rows(first, first + 2_000, stream), ids)
            published = publisher.finish()
    assert published.duplicates >= 500 or mode is Mode.MARKER
    assert stored(server, stream) == [b"row %d" % number for number in range(3_500)]


def test_headers_are_kept_but_for_those_that_control_a_write(any_server: LiveServer) -> None:
    target = target_for(any_server, "H", Mode.NONE)
    given = [
        ("Trace", b" x "),
        ("nats-msg-id", b"1"),
        ("Nats-Batch-Id", b"2"),
        ("Trace", b"gr\xc3\xbcn"),
        ("Empty", None),
    ]
    headers = [{"key": key, "value": value} for key, value in given]
    with Publisher(any_server.servers(), target, PART) as publisher:
        publisher.write(rows(0, 2, "H", headers), no_ids(2))
        publisher.write(pa.RecordBatch.from_pydict({**rows(2, 3, "H").to_pydict(), "data": [None]}, _SCHEMA), no_ids(1))
        publisher.finish()
    with any_server.connect() as connection:
        info = stream_info(connection, "H")
    (messages,) = read_range(any_server.servers(), Range("H", info.created, 1, 4), fail)
    first, _, last = messages.batch("H", ("headers", "data")).to_pylist()
    pairs = [("Trace", b"x"), ("Trace", b"gr\xc3\xbcn"), ("Empty", b"")]
    assert [(pair["key"], pair["value"]) for pair in first["headers"]] == pairs
    assert last == {"headers": None, "data": b""}


_SCHEMA = rows(0, 1).schema


@pytest.mark.parametrize(("key", "value"), [("A b", b""), ("A:", b""), ("", b""), ("A", b"x\r\nB: y"), ("\u00e4", b"")])
def test_headers_that_would_be_others_are_refused_with_their_row(server: LiveServer, key: str, value: bytes) -> None:
    publisher = Publisher(server.servers(), Target("A", Mode.NONE), PART)
    publisher.write(rows(0, 3), no_ids(3))
    publisher.write(rows(3, 4, headers=[{"key": key, "value": value}]), no_ids(1))
    with pytest.raises(InvalidMessageError) as raised:
        publisher.finish()
    assert raised.value.row == 3


def test_message_that_no_server_takes_is_refused_before_it_is_sent(server: LiveServer) -> None:
    large = pa.RecordBatch.from_pydict({"subject": ["A.x"], "headers": [None], "data": [bytes(1 << 20)]}, _SCHEMA)
    with Publisher(server.servers(), Target("A", Mode.NONE), PART) as publisher:
        publisher.write(large, no_ids(1))
        with pytest.raises(InvalidMessageError, match="the server takes 1048576"):
            publisher.finish()


def test_limit_of_a_stream_is_the_servers_error(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "LIM", max_msgs=5, discard="new")
    with pytest.raises(ServerError) as raised:
        publish(server.servers(), Target("LIM", Mode.MSGID), count=20)
    assert (raised.value.stream, raised.value.error_code) == ("LIM", 10077)


def test_modes_are_chosen_by_what_server_and_stream_can(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        version = connection.version
        create_stream(connection, "PLAIN")
        create_stream(connection, "ATOMIC", allow_atomic=True)
        create_stream(connection, "NARROW", subjects=["narrow.*"], allow_atomic=True)
        plain, atomic, narrow = (stream_info(connection, name) for name in ("PLAIN", "ATOMIC", "NARROW"))
    can = version >= (2, 12, 1)
    assert choose(plain, version, None, None, may_mark=True).mode is Mode.MSGID
    expected = Target("ATOMIC", Mode.MARKER, "ATOMIC.jstream.marker") if can else Target("ATOMIC", Mode.MSGID)
    assert choose(atomic, version, None, None, may_mark=True) == expected
    assert choose(atomic, version, None, None, may_mark=False).mode is Mode.MSGID
    assert choose(narrow, version, None, None, may_mark=True).mode is Mode.MSGID
    for info, mode, says in ((plain, Mode.ATOMIC, "allow_atomic"), (narrow, Mode.MARKER, "markerSubject")):
        with pytest.raises(RequirementError, match=says if can else "needs? 2.12.1"):
            choose(info, version, mode, None, may_mark=True)
    with pytest.raises(RequirementError, match="takes no subject elsewhere.WRITER.PARTITION|2.12.1"):
        choose(atomic, version, Mode.MARKER, "elsewhere", may_mark=True)


@pytest.mark.parametrize(
    "config",
    [
        {"mirror": {"name": "PLAIN"}, "subjects": None},
        {"sealed": True},
        {"allow_msg_counter": True},
        {"allow_msg_schedules": True},
    ],
    ids=lambda config: str(next(iter(config))),
)
def test_streams_that_no_row_may_go_to_are_refused(own_server: LiveServer, config: dict[str, Any]) -> None:
    with own_server.connect() as connection:
        create_stream(connection, "PLAIN")
        body = {"name": "S", "subjects": ["S.>"], **config}
        sealed = body.pop("sealed", False)
        connection.request("STREAM.CREATE", "S", body={key: value for key, value in body.items() if value is not None})
        if sealed:
            connection.request("STREAM.UPDATE", "S", body={**body, "sealed": True})
        info = stream_info(connection, "S")
        with pytest.raises(RequirementError, match=next(iter(config))):
            choose(info, connection.version, None, None, may_mark=True)


@pytest.mark.parametrize("mode", [Mode.MSGID, Mode.MARKER], ids=lambda mode: mode.value)
def test_rows_are_stored_once_while_a_cluster_loses_its_leader(tmp_path: Path, mode: Mode) -> None:
    with cluster(tmp_path, BINARIES[-1]) as servers:
        addresses = tuple(server.address for server in servers)
        with connect(addresses) as connection:
            create_stream(connection, "A", num_replicas=3, allow_atomic=True)
            target = choose(stream_info(connection, "A"), connection.version, mode, None, may_mark=True)
        stop = threading.Timer(0.3, leader_of(servers, "A").stop, [signal.SIGKILL])
        stop.start()
        published = publish(Servers(addresses, silence_s=4.0), target, count=40_000)
        stop.join()
        assert published.stored + published.duplicates == 40_000
        left = [server for server in servers if server.process is not None]
        with connect([server.address for server in left]) as connection:
            info = stream_info(connection, "A")
        part = Range("A", info.created, 1, info.next_sequence)
        everything = read_range(Servers(tuple(server.address for server in left)), part, fail)
        data = [row for messages in everything for row in messages.batch("A", ("subject", "data")).to_pylist()]
        found = [row["data"] for row in data if ".marker." not in row["subject"]]
        assert found == [b"row %d" % number for number in range(40_000)]
