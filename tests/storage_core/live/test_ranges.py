"""Ranges of running servers: equal to what nats-py gets, harmless to the stream, and true through every fault."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pytest
from harness.live_server import (
    BINARIES,
    LiveServer,
    cluster,
    connect,
    create_stream,
    fill,
    frame,
    leader_of,
    live_server,
    numbered,
)

from storage_core.errors import DataLossError, ServerAwayError, StaleIncarnationError
from storage_core.live import ranges
from storage_core.live.columns import Messages
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, consumers, message_time, stream_info

COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")


def fail(error: DataLossError) -> None:
    raise error


def planned(server: LiveServer, stream: str, first: int = 1, end: int | None = None, **more: Any) -> Range:
    with server.connect() as connection:
        info = stream_info(connection, stream, with_deleted=True)
    deleted = tuple((sequence, sequence + 1) for sequence in info.deleted)
    return Range(stream, info.created, first, end or info.next_sequence, deleted=deleted, **more)


def rows_of(batches: Iterator[Messages], stream: str = "A") -> list[dict[str, Any]]:
    return [row for messages in batches for row in messages.batch(stream, COLUMNS).to_pylist()]


def sequences_of(batches: Iterator[Messages]) -> list[int]:
    return np.concatenate([messages.sequences for messages in batches] or [np.empty(0, np.int64)]).tolist()  # type: ignore[no-any-return]


def hostile_frames(stream: str, count: int, seed: str) -> Iterator[bytes]:
    source = random.Random(seed)
    payloads = (
        b"",
        b"\r\n",
        b"MSG a 1 5\r\nhello\r\n" * 4,
        b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"PING\r\n",
        b"7" * 40,
    )
    names = ("Trace", "Nats-Sequence", "Nats-Subject", "Nats-Pending-Messages")
    for number in range(count):
        payload = source.choice((*payloads, source.randbytes(source.randrange(3_000))))
        chosen = [(source.choice(names), b"%d" % source.randrange(99)) for _ in range(source.randrange(1, 4))]
        headers = None if source.random() < 0.5 else chosen
        yield frame(f"{stream}.\u00e4{number % 9}.x", payload, headers)


async def fetched(url: str, stream: str, count: int) -> list[dict[str, Any]]:
    """Return the same rows as nats-py gets them."""
    client = await nats.connect(url)
    try:
        rows = []
        subscription = await client.jetstream().subscribe(">", stream=stream, ordered_consumer=True)
        for _ in range(count):
            message = await subscription.next_msg(timeout=10)
            place = message.reply.split(".")
            rows.append((int(place[5]), message.subject, int(place[7]), message.headers or {}, message.data))
        names = ("sequence", "subject", "timestamp_ns", "headers", "data")
        return [dict(zip(names, row, strict=True)) for row in rows]
    finally:
        await client.close()


def one_each(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the last value of each header: nats-py keeps no other."""
    return {**row, "headers": {pair["key"]: pair["value"].decode() for pair in row["headers"] or ()}}


def test_hostile_messages_are_those_that_nats_py_gets(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        create_stream(connection, "HOSTILE")
        last = fill(connection, "HOSTILE", hostile_frames("HOSTILE", 3_000, "jstream"))
    rows = rows_of(read_range(any_server.servers(), planned(any_server, "HOSTILE"), fail), "HOSTILE")
    assert [one_each(row) for row in rows] == asyncio.run(fetched(any_server.url, "HOSTILE", last))


@pytest.mark.parametrize("config", [{}, {"allow_direct": True}], ids=["single", "direct"])
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_messages_for_consumers_are_read_and_left_alone(
    any_server: LiveServer, retention: str, config: dict[str, Any]
) -> None:
    stream = f"{retention}{len(config)}"
    with any_server.connect() as connection:
        create_stream(connection, stream, retention=retention, **config)
        durable = {"durable_name": "d", "ack_policy": "explicit"}
        connection.request("CONSUMER.DURABLE.CREATE", stream, "d", body={"stream_name": stream, "config": durable})
        fill(connection, stream, hostile_frames(stream, 1_300, "left alone"))
        for sequence in range(600, 650):
            connection.request("STREAM.MSG.DELETE", stream, body={"seq": sequence})
        before = stream_info(connection, stream)
        rows = rows_of(read_range(any_server.servers(), planned(any_server, stream, 5, 1_290), fail), stream)
        after = stream_info(connection, stream)
        expected = [sequence for sequence in range(5, 1_290) if not 600 <= sequence < 650]
        assert [row["sequence"] for row in rows] == expected
        assert after.message_count == before.message_count == 1_250
        assert [consumer["name"] for consumer in consumers(connection, stream)] == ["d"]
        assert rows[0]["timestamp_ns"] == message_time(connection, stream, 5)


def test_memory_stream_with_holes_is_read_in_ranges_and_leaves_no_consumer(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        create_stream(connection, "HOLES", storage="memory")
        fill(connection, "HOLES", numbered("HOLES", 400))
        gone = {1, 2, *range(50, 60), 199, 398, 399, 400}
        for sequence in sorted(gone - {1, 2}):
            connection.request("STREAM.MSG.DELETE", "HOLES", body={"seq": sequence})
        connection.request("STREAM.PURGE", "HOLES", body={"seq": 3})
        for first, end in ((3, 401), (50, 60), (55, 199), (198, 200), (399, 401), (60, 61)):
            part = planned(any_server, "HOLES", first, end)
            expected = [sequence for sequence in range(first, end) if sequence not in gone]
            assert sequences_of(read_range(any_server.servers(), part, fail)) == expected, (first, end)
        assert consumers(connection, "HOLES") == []


def test_filter_takes_its_subjects_alone(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        create_stream(connection, "F")
        fill(connection, "F", numbered("F", 70))
    for subjects, keep in ((("F.3",), {3}), (("F.1", "F.5"), {1, 5}), (("F.*.x",), set()), (("F.>",), set(range(7)))):
        part = planned(any_server, "F", 5, 60, subjects=subjects)
        expected = [sequence for sequence in range(5, 60) if (sequence - 1) % 7 in keep]
        assert sequences_of(read_range(any_server.servers(), part, fail)) == expected


def test_payloads_are_not_sent_where_nobody_asks_for_them(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "PLACES")
        fill(connection, "PLACES", hostile_frames("PLACES", 50, "places"))
    full = rows_of(read_range(server.servers(), planned(server, "PLACES"), fail))
    part = planned(server, "PLACES", with_payload=False)
    (messages,) = read_range(server.servers(), part, fail)
    assert messages.batch("PLACES", COLUMNS[:3]).to_pylist() == [{key: row[key] for key in COLUMNS[:3]} for row in full]
    assert set(messages.data.to_pylist()) == {b""}


def test_purge_between_plan_and_read_is_a_loss_and_a_delete_is_none(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "GOES")
        fill(connection, "GOES", numbered("GOES", 100))
        connection.request("STREAM.MSG.DELETE", "GOES", body={"seq": 10})
        part = planned(server, "GOES")
        connection.request("STREAM.MSG.DELETE", "GOES", body={"seq": 60})
        assert len(sequences_of(read_range(server.servers(), part, fail))) == 98
        connection.request("STREAM.PURGE", "GOES", body={"seq": 51})
    with pytest.raises(DataLossError) as raised:
        list(read_range(server.servers(), part, fail))
    assert raised.value.fields == {"stream": "GOES", "first": 1, "end": 51}
    losses: list[DataLossError] = []
    left = sequences_of(read_range(server.servers(), part, losses.append))
    assert left == [sequence for sequence in range(51, 101) if sequence != 60]
    assert [(loss.first, loss.end) for loss in losses] == [(1, 51)]


def test_retention_while_a_range_is_read_is_a_loss(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "LIMITED")
        fill(connection, "LIMITED", (frame("LIMITED.x", bytes(20_000)) for _ in range(3_000)))
        losses: list[DataLossError] = []
        batches = read_range(server.servers(), planned(server, "LIMITED"), losses.append)
        taken = sequences_of(iter([next(batches)]))  # two pulls are under way, which are about half of the range
        config = {"name": "LIMITED", "subjects": ["LIMITED.>"], "max_msgs": 10}
        connection.request("STREAM.UPDATE", "LIMITED", body=config)
    taken += sequences_of(batches)
    missing = set(range(1, 3_001)) - set(taken)
    assert missing
    assert missing == {sequence for loss in losses for sequence in range(loss.first or 0, loss.end or 0)}


def test_stream_made_again_since_the_plan_is_refused(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "AGAIN")
        fill(connection, "AGAIN", numbered("AGAIN", 10))
        part = planned(server, "AGAIN")
        connection.request("STREAM.DELETE", "AGAIN")
        create_stream(connection, "AGAIN")
        fill(connection, "AGAIN", numbered("AGAIN", 10))
    with pytest.raises(StaleIncarnationError) as raised:
        list(read_range(server.servers(), part, fail))
    assert raised.value.stream == "AGAIN"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2], ids=["kill", "term", "lame duck"])
def test_range_goes_on_behind_a_server_that_is_started_again(own_server: LiveServer, number: signal.Signals) -> None:
    with own_server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 150_000))
    batches = read_range(own_server.servers(retry_s=30), planned(own_server, "A"), fail)
    taken = [next(batches)]
    if number == signal.SIGUSR2:
        own_server.send(number)
        threading.Timer(0.5, own_server.stop, [signal.SIGKILL]).start()
        threading.Timer(2.0, own_server.start).start()
    else:
        own_server.stop(number)
        threading.Timer(0.5, own_server.start).start()
    taken += batches
    assert sequences_of(iter(taken)) == list(range(1, 150_001))


def test_server_that_stops_in_mid_message_is_an_error_in_time_and_no_wrong_message(own_server: LiveServer) -> None:
    with own_server.connect() as connection:
        create_stream(connection, "A", max_msg_size=-1)
        fill(connection, "A", (frame("A.x", bytes(900_000)) for _ in range(60)))
    batches = read_range(own_server.servers(silence_s=1.0, retry_s=1.0), planned(own_server, "A"), fail)
    taken = [next(batches)]
    own_server.send(signal.SIGSTOP)
    with pytest.raises(ServerAwayError):
        taken += batches
    own_server.send(signal.SIGCONT)
    assert all(set(messages.data.to_pylist()) == {bytes(900_000)} for messages in taken)


READER = """
import json, sys
from storage_core.live.login import Login, parse_address
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, stream_info

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024

servers = Servers((parse_address(sys.argv[1], "url"),), Login())
info = servers.retrying(lambda connection: stream_info(connection, "BIG"))
begin, rows = peak(), []
for messages in read_range(servers, Range("BIG", info.created, 1, info.next_sequence), print):
    data = messages.batch("BIG", ("data",)).column("data")
    rows += [(len(value.as_buffer()), value.as_buffer()[0:1].to_pybytes().decode()) for value in data]
    del messages, data
print(json.dumps({"rows": rows, "grown": peak() - begin}))
"""


def test_messages_of_64_mib_are_read_in_memory_of_a_few_of_them(tmp_path: Path) -> None:
    size = 64 * 1024 * 1024 - 1024
    with live_server(tmp_path / "server", config="max_payload: 67108864\nmax_pending: 268435456") as server:
        with server.connect() as connection:
            create_stream(connection, "BIG", storage="memory")
            for letter in b"abcde":
                fill(connection, "BIG", [frame("BIG.x", bytes([letter]) * size, [("K", b"v")])])
            fill(connection, "BIG", [frame("BIG.x", b"end")])
        command = [sys.executable, "-c", READER, server.url]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    read = json.loads(done.stdout)
    assert read["rows"] == [*([size, letter] for letter in "abcde"), [3, "e"]]
    assert read["grown"] < 5 * size, read["grown"]


def test_limit_on_consumers_is_got_round_by_direct_gets(server: LiveServer) -> None:
    with server.connect() as connection:
        create_stream(connection, "FULL", max_consumers=1, allow_direct=True)
        fill(connection, "FULL", numbered("FULL", 1_500))
        durable = {"durable_name": "d", "ack_policy": "none"}
        connection.request("CONSUMER.DURABLE.CREATE", "FULL", "d", body={"stream_name": "FULL", "config": durable})
    assert sequences_of(read_range(server.servers(), planned(server, "FULL"), fail)) == list(range(1, 1_501))


def test_replies_that_name_domain_and_account_are_read(tmp_path: Path) -> None:
    with live_server(
        tmp_path / "server", config="feature_flags { js_ack_fc_v2: true }", jetstream="domain: hub"
    ) as server:
        with server.connect() as connection:
            create_stream(connection, "A")
            fill(connection, "A", numbered("A", 100))
            reply = asyncio.run(first_reply(server.url))
            assert len(reply.split(".")) >= 11, reply
        servers = server.servers(domain="hub")
        assert sequences_of(read_range(servers, planned(server, "A"), fail)) == list(range(1, 101))


# The API of one account is another one's, under other subjects; `%s`: how many answers a request may get.
ACCOUNTS = """
accounts {
  JS { jetstream: enabled, users: [{user: js, password: x}], exports: [{service: "$JS.API.>", response_type: %s}] }
  U { users: [{user: u, password: x}], imports: [{service: {account: JS, subject: "$JS.API.>"}, to: "js.API.>"}] }
}
"""


@pytest.mark.parametrize(
    ("binary", "answers"),
    [(BINARIES[0], "stream"), (BINARIES[-1], "stream"), (BINARIES[-1], "singleton")],
    ids=["oldest, stream", "newest, stream", "newest, singleton"],
)
def test_streams_of_another_account_are_read_whatever_it_lets_through(
    tmp_path: Path, binary: Path, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "HEARTBEAT_S", 1)
    with live_server(tmp_path / "server", binary, config=ACCOUNTS % answers) as server:
        own = server.servers(user="js", password="x")
        others = server.servers(silence_s=2.0, user="u", password="x", api_prefix="js.API")
        with server.connect(user="js", password="x") as connection:
            for stream, config in (("A", {}), ("W", {"retention": "workqueue", "allow_direct": True})):
                create_stream(connection, stream, **config)
                fill(connection, stream, hostile_frames(stream, 600, stream))
                info = stream_info(connection, stream)
                part = Range(stream, info.created, 1, info.next_sequence)
                expected = rows_of(read_range(own, part, fail), stream)
                assert len(expected) == 600
                assert rows_of(read_range(others, part, fail), stream) == expected
            assert stream_info(connection, "W").message_count == 600


async def first_reply(url: str) -> str:
    client = await nats.connect(url)
    try:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        config = f'{{"stream_name":"A","config":{{"deliver_subject":"{inbox}","ack_policy":"none"}}}}'
        await client.request("$JS.API.CONSUMER.CREATE.A", config.encode())
        message = await subscription.next_msg(timeout=10)
        return str(message.reply)
    finally:
        await client.close()


@pytest.mark.parametrize(
    "binary",
    [*(pytest.param(binary, marks=pytest.mark.soak) for binary in BINARIES[:-1]), BINARIES[-1]],
    ids=lambda binary: binary.parents[1].name,
)
def test_range_survives_step_downs_and_the_death_of_the_leader(tmp_path: Path, binary: Path) -> None:
    with cluster(tmp_path, binary) as servers:
        addresses = tuple(server.address for server in servers)
        with connect(addresses) as connection:
            create_stream(connection, "R3", num_replicas=3)
            fill(connection, "R3", numbered("R3", 120_000))
            info = stream_info(connection, "R3")
        part = Range("R3", info.created, 1, info.next_sequence)
        batches = read_range(Servers(addresses, silence_s=5.0), part, fail)
        taken = [next(batches)]
        with connect(addresses) as connection:
            connection.request("STREAM.LEADER.STEPDOWN", "R3")
        taken.append(next(batches))
        leader_of(servers, "R3").stop(signal.SIGKILL)
        taken += batches
    assert sequences_of(iter(taken)) == list(range(1, 120_001))
