"""`jstream mirror` and `drift nats://`: begun live and from files, killed, and everything that happens to a source."""

import contextlib
import json
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import LiveServer, create_stream, fill, frame, live_server, numbered

from storage_core import Store
from storage_core.errors import FencedError
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import stream_info
from storage_core.mirror import COLUMNS, Mirror, MirrorRequest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path / "server") as server:
        with server.connect() as connection:
            create_stream(connection, "A")
            fill(connection, "A", numbered("A", 3_000))
            hostile = [frame("A.h", b"MSG a 1 5\r\nhello\r\n", [("K", b"v"), ("K", b"w")]), frame("A.h", b"", [])]
            fill(connection, "A", hostile)
        yield server


def source_rows(server: LiveServer, stream: str = "A") -> list[dict[str, Any]]:
    with server.connect() as connection:
        info = stream_info(connection, stream)
    part = Range(stream, info.created, info.first_sequence, info.next_sequence)
    batches = read_range(server.servers(), part, lambda error: None)
    return [normal(row) for messages in batches for row in messages.batch(stream, COLUMNS).to_pylist()]


def mirrored_rows(volume: Path, stream: str = "A") -> list[dict[str, Any]]:
    with Store.open(volume, read_only=True) as store:
        return [normal(row) for row in store.stream(stream).read(columns=COLUMNS).read_all().to_pylist()]


def normal(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "headers": row["headers"] or []}


def add(server: LiveServer, count: int, first: int = 0) -> None:
    with server.connect() as connection:
        fill(connection, "A", numbered("A", count, first))


def events(jstream: Any, kind: str) -> list[dict[str, Any]]:
    return json.loads(jstream.done("events", "--kind", kind, "--json"))


def test_mirror_has_the_same_messages_holes_and_consumers_and_goes_on(jstream: Any, server: LiveServer) -> None:
    with server.connect() as connection:
        for sequence in (1, 2, 70, 71, 3_002):
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": sequence})
        durable = {"durable_name": "reader", "ack_policy": "explicit"}
        connection.request("CONSUMER.DURABLE.CREATE", "A", "reader", body={"stream_name": "A", "config": durable})
    outcome = jstream("mirror", server.url, "A")
    assert (outcome.code, outcome.out) == (0, "A: 2997 messages, up to sequence 3001, 1 consumer at their places\n")
    add(server, 10)
    report = json.loads(jstream.done("mirror", server.url, "A", "--json"))
    assert (report["first"], report["end"], report["messages"], report["lag"]) == (3_002, 3_013, 10, 0)
    assert mirrored_rows(jstream.volume) == source_rows(server)
    state = json.loads(jstream.done("stream", "info", "A", "--json"))["state"]
    assert (state["first_seq"], state["last_seq"], state["messages"], state["lost_ranges"]) == (3, 3_012, 3_007, [])
    with server.connect() as connection:
        inbox = f"{connection.inbox}.next"
        connection.publish("$JS.API.CONSUMER.MSG.NEXT.A.reader", b"5", inbox)
        received = connection.receive(10)
        assert received is not None
        line = received[0][received[1].starts[0] : received[1].line_ends[0]].tobytes()
        connection.publish(line.split(b" ")[3].decode(), b"+ACK")
        connection.request("STREAM.INFO", "A")
    assert json.loads(jstream.done("mirror", server.url, "A", "--json"))["consumers"] == ["reader"]
    consumer = json.loads(jstream.done("consumer", "info", "A", "reader", "--json"))
    assert consumer["ack_floor"]["stream_seq"] == 3
    refused = jstream("pub", "A.x", "hello", "--stream", "A")
    assert refused.code == 1
    assert "only `jstream mirror` writes it" in refused.err


def test_mirror_begins_with_files_of_a_server_that_runs(jstream: Any, server: LiveServer, tmp_path: Path) -> None:
    shutil.copytree(server.store, tmp_path / "copy")
    add(server, 20)
    command = ("mirror", server.url, "A", "--as", "B", "--from", tmp_path / "copy", "--json")
    report = json.loads(jstream.done(*command))
    assert (report["imported"], report["first"], report["messages"]) == (3_002, 3_003, 20)
    assert mirrored_rows(jstream.volume, "B") == source_rows(server)
    add(server, 5)
    again = json.loads(jstream.done(*command))
    assert (again["imported"], again["messages"]) == (0, 5)
    assert mirrored_rows(jstream.volume, "B") == source_rows(server)


def test_files_that_are_not_of_the_source_are_refused(jstream: Any, server: LiveServer, tmp_path: Path) -> None:
    shutil.copytree(server.store, tmp_path / "copy")
    with server.connect() as connection:
        connection.request("STREAM.DELETE", "A")
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 4_000))
    outcome = jstream("mirror", server.url, "A", "--from", tmp_path / "copy")
    assert outcome.code == 3
    assert "the files are of a stream made at" in outcome.err


def test_sources_that_are_no_longer_what_was_mirrored_end_with_code_three(
    jstream: Any, server: LiveServer, tmp_path: Path
) -> None:
    server.stop()
    shutil.copytree(server.store, tmp_path / "older")
    server.start()
    add(server, 100)
    jstream.done("mirror", server.url, "A")
    before = mirrored_rows(jstream.volume)
    server.stop()
    shutil.rmtree(server.store)
    shutil.copytree(tmp_path / "older", server.store)
    server.start()
    went_back = jstream("mirror", server.url, "A")
    assert went_back.code == 3
    assert "has lost its end" in went_back.err
    add(server, 300)
    rewritten = jstream("mirror", server.url, "A")
    assert rewritten.code == 3
    assert "other messages have those sequences now" in rewritten.err
    drift = json.loads(jstream("drift", server.url, "A", "--json").out)
    assert (drift["ok"], drift["same"], drift["different"], drift["lag"]) == (False, 3_002, 100, 200)
    assert drift["different_ranges"] == [[3_003, 3_103]]
    with server.connect() as connection:
        connection.request("STREAM.DELETE", "A")
        create_stream(connection, "A")
    made_again = jstream("mirror", server.url, "A")
    assert made_again.code == 3
    assert "made again" in made_again.err
    assert mirrored_rows(jstream.volume) == before
    assert [event["before"] for event in events(jstream, "mirror_diverged")] == ["went back", "rewritten", "made again"]
    jstream.done("mirror", server.url, "A", "--as", "A2")


def test_messages_that_went_before_they_came_over_are_a_loss_or_skipped(jstream: Any, server: LiveServer) -> None:
    jstream.done("mirror", server.url, "A")
    add(server, 100)
    with server.connect() as connection:
        connection.request("STREAM.PURGE", "A", body={"seq": 3_051})
    refused = jstream("mirror", server.url, "A")
    assert refused.code == 1
    assert "sequences 3003 to 3050 were removed" in refused.err
    assert "--on-data-loss continue" in refused.err
    report = json.loads(jstream.done("mirror", server.url, "A", "--on-data-loss", "continue", "--json"))
    assert (report["gaps"], report["messages"]) == ([[3_003, 3_051]], 52)
    assert [(event["before"], event["after"]) for event in events(jstream, "mirror_gap")] == [("3003", "3051")]
    drift = jstream("drift", server.url, "A", "--json")
    assert drift.code == 0
    assert json.loads(drift.out)["deleted"] == 3_002  # the mirror keeps what was purged there
    assert [event["after"] for event in events(jstream, "mirror_compared")] == ["ok"]


def test_messages_that_are_deleted_at_the_source_stay_and_are_told_once(jstream: Any, server: LiveServer) -> None:
    jstream.done("mirror", server.url, "A")
    before = mirrored_rows(jstream.volume)

    def kept() -> int:
        return int(json.loads(jstream.done("mirror", server.url, "A", "--json"))["kept"])

    with server.connect() as connection:
        for sequence in (5, 70, 71):
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": sequence})
        assert (kept(), kept()) == (3, 3)
        connection.request("STREAM.PURGE", "A", body={"seq": 101})
        assert (kept(), kept()) == (100, 100)
        told = [(event["before"], event["after"]) for event in events(jstream, "mirror_kept")]
        assert told == [("0", "3"), ("3", "100")]
        config = {"name": "A", "subjects": ["A.>"], "storage": "file", "num_replicas": 1, "max_msgs": 1_000}
        connection.request("STREAM.UPDATE", "A", body=config)
    assert kept() == 2_002  # the source's limit took them: nothing to tell
    assert len(events(jstream, "mirror_kept")) == 2
    assert mirrored_rows(jstream.volume) == before


def test_drift_finds_a_message_that_the_mirror_lacks(jstream: Any, server: LiveServer) -> None:
    jstream.done("mirror", server.url, "A")
    jstream.done("stream", "rmm", "A", "77", "--force")
    outcome = jstream("drift", "mirror", "A")
    assert outcome.code == 1
    assert "sequence 77 is missing" in outcome.err
    assert jstream("drift", server.url, "NONE").code == 1


def test_mirror_that_is_killed_again_and_again_ends_equal_to_its_source(
    jstream: Any, server: LiveServer, tmp_path: Path
) -> None:
    with server.connect() as connection:
        fill(connection, "A", (frame("A.x", b"%d" % number + bytes(4_000)) for number in range(40_000)))
    for _ in range(3):
        process = jstream.start("mirror", server.url, "A", "--follow")
        wait_for_growth(jstream.volume)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    jstream.done("mirror", server.url, "A")
    assert mirrored_rows(jstream.volume) == source_rows(server)


@pytest.mark.soak
def test_mirror_that_is_killed_or_stopped_ten_times_ends_equal_to_its_source(jstream: Any, server: LiveServer) -> None:
    chosen = random.Random("mirror")

    def write(first: int) -> None:
        with server.connect() as connection:
            for start in range(first, first + 10_000, 1_000):
                frames = (frame("A.x", b"%d" % number + bytes(2_000)) for number in range(start, start + 1_000))
                last = fill(connection, "A", frames)
                connection.request("STREAM.MSG.DELETE", "A", body={"seq": last - chosen.randrange(900)})

    for number in range(10):
        writer = threading.Thread(target=write, args=(20_000 * number,))
        writer.start()
        process = jstream.start("mirror", server.url, "A", "--follow")
        wait_for_growth(jstream.volume)
        if number % 2:  # stopped in the middle, while another one begins; then it wakes up, and is killed
            process.send_signal(signal.SIGSTOP)
            write(20_000 * number + 10_000)
            jstream("mirror", server.url, "A")
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chosen.random() * 3)  # it goes on, or ends because the other one has written
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        writer.join()
    jstream.done("mirror", server.url, "A")
    drift = json.loads(jstream.done("drift", server.url, "A", "--json"))
    # What was deleted at the source after it came over stays here.
    assert (drift["ok"], drift["different"], drift["missing"], drift["lag"]) == (True, 0, 0, 0)
    deleted = {sequence for first, end in drift["deleted_ranges"] for sequence in range(first, end)}
    kept = [row for row in mirrored_rows(jstream.volume) if row["sequence"] not in deleted]
    assert kept == source_rows(server)
    print(f"10 kills and stops, {len(kept)} messages equal, {len(deleted)} deleted at the source")


def last_sequence(volume: Path) -> int:
    with Store.open(volume, read_only=True) as store:
        return store.stream("A").last_sequence if "A" in store.streams() else 0


def wait_for_growth(volume: Path) -> None:
    before, woken = last_sequence(volume), threading.Event()
    while last_sequence(volume) == before and not woken.wait(0.05):
        pass


def test_two_mirrors_of_one_stream_do_not_interleave(jstream: Any, server: LiveServer) -> None:
    outcomes: list[str] = []
    is_over = threading.Event()

    def follow() -> None:
        with Store.open(jstream.volume) as store:
            mirror = Mirror(store, server.servers(), MirrorRequest("A"))
            while not is_over.is_set():
                try:
                    outcomes.append("stored" if mirror.step().messages else "")
                except FencedError:
                    outcomes.append("fenced")

    jstream.done("mirror", server.url, "A")
    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(30):
        add(server, 300, number)
    is_over.set()
    for thread in threads:
        thread.join(60)
    jstream.done("mirror", server.url, "A")
    assert "stored" in outcomes
    assert mirrored_rows(jstream.volume) == source_rows(server)


def test_mirror_that_follows_ends_by_a_signal_when_what_it_has_is_stored(jstream: Any, server: LiveServer) -> None:
    process = jstream.start("mirror", server.url, "A", "--follow", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["messages"] == 3_002
    add(server, 7)
    assert json.loads(process.stdout.readline())["messages"] == 7
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert mirrored_rows(jstream.volume) == source_rows(server)


def test_several_streams_are_mirrored_by_a_file(jstream: Any, server: LiveServer, tmp_path: Path) -> None:
    with server.connect() as connection:
        create_stream(connection, "orders_eu", subjects=["eu.>"])
        fill(connection, "orders_eu", [frame("eu.x", b"1")])
    file = tmp_path / "mirror.toml"
    tables = [{"servers": server.url, "stream": "A"}, {"servers": server.url, "stream": "orders_eu", "as": "EU"}]
    lines = [
        line for table in tables for line in ("[[mirror]]", *(f'{key} = "{value}"' for key, value in table.items()))
    ]
    file.write_text("\n".join(lines))
    assert jstream.done("mirror", file).splitlines() == [
        "A: 3002 messages, up to sequence 3002",
        "EU: 1 message, up to sequence 1",
    ]
    file.write_text('[[mirror]]\nservers = "nats://a"\nsteam = "A"\n')
    assert jstream("mirror", file).code in (1, 2)
    file.write_text("")
    assert jstream("mirror", file).code == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nats://127.0.0.1:1", "A"), 1, "no NATS server answers"),
        (("/a/folder", "A"), 2, "is no address such as nats://host:4222"),
        (("nats://127.0.0.1:1",), 2, "missing STREAM"),
        (("nats://u:p@127.0.0.1", "A"), 2, "a user or a token in it"),
    ],
)
def test_what_cannot_be_mirrored_is_said_in_a_line(jstream: Any, words: tuple[str, ...], code: int, says: str) -> None:
    outcome = jstream("mirror", *words)
    assert outcome.code == code, outcome
    assert says in outcome.err


def test_stream_that_is_no_mirror_is_left_alone(jstream: Any, server: LiveServer) -> None:
    jstream.done("stream", "add", "A", "--subjects", "A.>")
    outcome = jstream("mirror", server.url, "A")
    assert outcome.code == 1
    assert "it is no mirror" in outcome.err
    assert "`jstream mirror`" in jstream("stream", "ls", "--store", server.url).err
