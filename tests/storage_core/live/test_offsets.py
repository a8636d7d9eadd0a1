"""What has happened to a stream since a reader was there: on servers to which it happens."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import BINARIES, LiveServer, create_stream, fill, live_server, numbered

from storage_core.errors import AlreadyExistsError, UnsupportedVersionError
from storage_core.live import offsets
from storage_core.live.connection import Connection
from storage_core.live.offsets import ANCHORS_KEPT, GONE, MADE_AGAIN, REWRITTEN, WENT_BACK, Finding, Position, compare
from storage_core.live.positions import show_position
from storage_core.live.server import consumers, message_time, stream_info


def position_at(connection: Connection, *ends: int) -> Position:
    """Return the position of a reader whose batches ended there."""
    position = Position(stream_info(connection, "A").created, 1)
    for end in ends:
        position = position.onward(end, message_time(connection, "A", end - 1))
    return position


def finding(connection: Connection, position: Position) -> Finding | None:
    return compare(position, stream_info(connection, "A"), lambda sequence: message_time(connection, "A", sequence))


def outcome(connection: Connection, position: Position) -> tuple[str, int, int, int] | None:
    found = finding(connection, position)
    return None if found is None else (found.kind, found.first, found.end, found.position.sequence)


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.parents[1].name)
def test_older_copy_of_the_files_is_recognised_also_when_it_has_grown_over(tmp_path: Path, binary: Path) -> None:
    with live_server(tmp_path / "server", binary) as server:
        with server.connect() as connection:
            create_stream(connection, "A")
            fill(connection, "A", numbered("A", 250))
        server.stop()
        shutil.copytree(server.store, tmp_path / "older")
        server.start()
        with server.connect() as connection:
            fill(connection, "A", numbered("A", 100, 250))
            position = position_at(connection, 101, 201, 301, 351)
            assert finding(connection, position) is None
        server.stop(signal.SIGKILL)
        server.start()
        with server.connect() as connection:
            assert finding(connection, position) is None  # killed, and all is there
        server.stop()
        shutil.rmtree(server.store)
        shutil.copytree(tmp_path / "older", server.store)
        server.start()
        with server.connect() as connection:
            assert outcome(connection, position) == (WENT_BACK, 201, 351, 201)
            fill(connection, "A", numbered("A", 200, 900))
            assert outcome(connection, position) == (REWRITTEN, 201, 351, 201)
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": 350})
            assert outcome(connection, position) == (REWRITTEN, 201, 351, 201)  # by the anchor before it
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": 300})
            assert finding(connection, position) is None  # the proof is gone, and what is left holds
            alone = Position(position.created, 352, ((351, 1),))
            assert outcome(connection, alone) == (REWRITTEN, 1, 352, 1)


def test_purge_deletes_and_a_stream_made_again_are_told_apart(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        create_stream(connection, "A", first_seq=1)
        fill(connection, "A", numbered("A", 100))
        position = position_at(connection, 21)
        for sequence in (15, 20, 21, 22):
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": sequence})
        assert finding(connection, position) is None
        connection.request("STREAM.PURGE", "A", body={"seq": 31})
        assert outcome(connection, position) == (GONE, 21, 31, 31)
        connection.request("STREAM.PURGE", "A")
        assert outcome(connection, position) == (GONE, 21, 101, 101)
        assert outcome(connection, Position(position.created, 101)) is None
        connection.request("STREAM.DELETE", "A")
        create_stream(connection, "A", first_seq=500)
        assert outcome(connection, position) == (MADE_AGAIN, 1, 21, 500)
        connection.request("STREAM.DELETE", "A")


def test_positions_travel_as_json() -> None:
    position = Position("2026-11-27T01:00:00.123456789Z", 1)
    for end in range(2, 20):
        position = position.onward(end, end * 10**18 // 7)
    assert len(position.anchors) == ANCHORS_KEPT
    position = Position(position.created, position.sequence, position.anchors, begin=7)
    assert offsets.decode(offsets.encode({"A": position, "B": position.carried()})) == {
        "A": position,
        "B": position.carried(),
    }


GOOD = {"version": 1, "created": "x", "sequence": 5, "anchors": [[4, 1]]}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"sequence": 0},
        {"sequence": "5"},
        {"begin": 6},
        {"anchors": None},
        {"anchors": [[1]]},
        {"anchors": [[1, 2]] * 9},
        {"created": 3},
        {"store": "ab"},
    ],
)
def test_offset_that_is_none_of_ours_is_refused_with_its_stream(change: dict[str, Any]) -> None:
    assert offsets.decode({"A": GOOD})
    with pytest.raises(ValueError, match="stream 'A'"):
        offsets.decode({"A": {**GOOD, **change}})
    with pytest.raises(UnsupportedVersionError):
        offsets.decode({"A": {**GOOD, "version": 2}})
    with pytest.raises(ValueError, match="a JSON object"):
        offsets.decode([])


def test_consumer_shows_a_position_and_others_are_left_alone(any_server: LiveServer) -> None:
    with any_server.connect() as connection:
        created = create_stream(connection, "SHOWN")["created"]
        fill(connection, "SHOWN", numbered("SHOWN", 10))
        for sequence in (1, 4, 4, 11):
            show_position(connection, "SHOWN", "etl", created, sequence)
            (shown,) = consumers(connection, "SHOWN")
            assert (shown["name"], shown["num_pending"]) == ("etl", 11 - sequence)
        show_position(connection, "SHOWN", "etl", "another stream's", 1)
        assert consumers(connection, "SHOWN")[0]["num_pending"] == 0
        durable = {"durable_name": "theirs", "ack_policy": "explicit"}
        connection.request(
            "CONSUMER.DURABLE.CREATE", "SHOWN", "theirs", body={"stream_name": "SHOWN", "config": durable}
        )
        with pytest.raises(AlreadyExistsError, match="'theirs'"):
            show_position(connection, "SHOWN", "theirs", created, 3)
        queue = create_stream(connection, "QUEUE", retention="workqueue")["created"]
        with pytest.raises(ValueError, match="retention workqueue"):
            show_position(connection, "QUEUE", "etl", queue, 1)
