"""The duplicate window: a msg_id counts for as long as it lasts, whatever became of the message and of its block."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import DataLossError
from storage_core.store.environment import REAL, Environment
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing import duplicates
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.duplicates import SortedRuns

MINUTE_NS = 60 * 1_000_000_000


@dataclass
class Clock:
    """Time that stands still but for a microsecond at each look, and for what a test adds."""

    now_ns: int = 1_700_000_000 * 1_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


@dataclass
class Lived:
    store: Store
    clock: Clock
    env: Environment

    @property
    def stream(self) -> Stream:
        return self.store.stream("S")

    def again(self) -> Stream:
        """Return the stream as another process sees it."""
        return Store.open(self.store.paths, env=self.env).stream("S")


def make(root: Path, volume_count: int = 1, deleted_block_retention: str = "1h", **config: object) -> Lived:
    clock = Clock()
    env = replace(REAL, now_ns=clock)
    store = Store.create(
        [root / f"volume-{number}" for number in range(volume_count)],
        env=env,
        deleted_block_retention=deleted_block_retention,
    )
    settings = {"name": "S", "duplicate_window": "10m", "num_replicas": volume_count, **config}
    store.add_stream(settings)
    return Lived(store, clock, env)


def rows(*msg_ids: str) -> pa.RecordBatch:
    return pa.record_batch({"data": [b"x"] * len(msg_ids), "msg_id": list(msg_ids)})


REMOVE: dict[str, Callable[[Stream], object]] = {
    "deleted": lambda stream: stream.remove(2),
    "purged": lambda stream: stream.purge(),
    "purged up to it": lambda stream: stream.purge(end=3),
    "not removed": lambda stream: None,
}


@pytest.mark.parametrize("how", REMOVE)
@pytest.mark.parametrize("block_max_msgs", [1, 3], ids=["a block of its own", "a block with others"])
def test_a_removed_message_counts_as_long_as_the_window_lasts(tmp_path: Path, how: str, block_max_msgs: int) -> None:
    lived = make(tmp_path, block_max_msgs=block_max_msgs)
    lived.stream.append(rows("a", "b", "c"))
    REMOVE[how](lived.stream)
    lived.clock.now_ns += 9 * MINUTE_NS
    for stream in (lived.stream, lived.again()):
        assert stream.publish("S", b"again", msg_id="b").duplicate
        assert not stream.publish("S", b"new", msg_id=f"d-{id(stream)}").duplicate


@pytest.mark.parametrize("how", REMOVE)
@pytest.mark.parametrize("block_max_msgs", [1, 3])
def test_it_does_not_count_when_the_window_is_over(tmp_path: Path, how: str, block_max_msgs: int) -> None:
    lived = make(tmp_path, block_max_msgs=block_max_msgs)
    lived.stream.append(rows("a", "b", "c"))
    lived.clock.now_ns += 9 * MINUTE_NS
    REMOVE[how](lived.stream)
    lived.stream.append(rows("e"))  # what is looked up now is remembered
    lived.clock.now_ns += 2 * MINUTE_NS
    assert not lived.stream.publish("S", b"again", msg_id="b").duplicate


def test_what_was_unlinked_is_forgotten(tmp_path: Path) -> None:
    lived = make(tmp_path, deleted_block_retention="0s")
    lived.stream.append(rows("a", "b"))
    lived.stream.purge()
    lived.store.maintain()
    assert not lived.again().publish("S", b"again", msg_id="b").duplicate


def test_an_overwrite_forgets_what_it_replaces_and_a_purge_after_it_does_not(tmp_path: Path) -> None:
    lived = make(tmp_path)
    lived.stream.append(rows("a"))
    store = lived.store
    transaction = store.begin(["S"])
    store.commit(transaction, [], overwrite=["S"])
    assert not lived.again().publish("S", b"again", msg_id="a").duplicate
    lived.stream.purge()
    assert lived.again().publish("S", b"again", msg_id="a").duplicate


def test_an_overwrite_while_the_clock_is_ahead_leaves_later_msg_ids_remembered(tmp_path: Path) -> None:
    lived, years_ns = make(tmp_path), 10 * 365 * 86_400 * 1_000_000_000
    lived.stream.append(rows("a"))
    lived.clock.now_ns += years_ns
    store = lived.store
    store.commit(store.begin(["S"]), [], overwrite=["S"])
    lived.clock.now_ns -= years_ns
    assert not lived.stream.publish("S", b"again", msg_id="a").duplicate
    for take_away in (lambda: lived.stream.remove(range(1, lived.stream.last_sequence + 1)), lived.stream.purge):
        take_away()
        assert lived.again().publish("S", b"again", msg_id="a").duplicate


def test_another_stream_and_another_incarnation_have_seen_nothing(tmp_path: Path) -> None:
    lived = make(tmp_path)
    lived.store.add_stream({"name": "T", "duplicate_window": "10m", "num_replicas": 1})
    lived.stream.append(rows("a"))
    lived.stream.purge()
    assert not lived.store.stream("T").publish("T", b"x", msg_id="a").duplicate
    lived.store.delete_stream("S")
    lived.store.add_stream({"name": "S", "duplicate_window": "10m", "num_replicas": 1})
    assert not lived.stream.publish("S", b"x", msg_id="a").duplicate


def copies(lived: Lived) -> list[Path]:
    return sorted(path for one in lived.store.volumes() for path in one.path.glob("streams/*/*.blk"))


@pytest.mark.parametrize("is_removed", [False, True])
def test_any_copy_of_a_block_tells_its_msg_ids(tmp_path: Path, is_removed: bool) -> None:
    lived = make(tmp_path, volume_count=3)
    lived.stream.append(rows("a"))
    if is_removed:
        lived.stream.purge()
    first, second, _ = copies(lived)
    first.unlink()
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)
    assert lived.again().publish("S", b"again", msg_id="a").duplicate


def test_no_copy_of_a_live_block_refuses_the_append_and_of_a_removed_one_does_not(tmp_path: Path) -> None:
    lived = make(tmp_path, volume_count=3, block_max_msgs=1)
    lived.stream.append(rows("a"))
    for path in copies(lived):
        path.write_bytes(b"")
    with pytest.raises(DataLossError):
        lived.again().publish("S", b"again", msg_id="a")
    lived.stream.purge()
    assert not lived.again().publish("S", b"again", msg_id="a").duplicate


@pytest.mark.parametrize("msg_id", ["new", "seen"])
def test_publish_tells_a_duplicate_from_a_message_that_was_removed_at_once(
    tmp_path: Path, msg_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes each message as soon as it is committed: before `publish` looks again."""
    store = Store.create(tmp_path / "volume")
    stream = store.add_stream({"name": "S"})
    stream.publish("S", b"1", msg_id="seen")
    commit = store.commit

    def commit_and_purge(*arguments: Any, **others: Any) -> object:
        result = commit(*arguments, **others)
        stream.purge()
        return result

    monkeypatch.setattr(store, "commit", commit_and_purge)
    assert stream.publish("S", b"2", msg_id=msg_id).duplicate == (msg_id == "seen")


def test_a_process_that_begins_while_the_clock_is_ahead_remembers_when_it_is_right_again(tmp_path: Path) -> None:
    lived, years_ns = make(tmp_path), 10 * 365 * 86_400 * 1_000_000_000
    lived.stream.append(rows("a", "b", "c"))
    lived.stream.remove(2)
    other = lived.again()
    lived.clock.now_ns += years_ns
    assert not other.publish("S", b"x", msg_id="d").duplicate
    lived.clock.now_ns -= years_ns
    assert [other.publish("S", b"x", msg_id=one).duplicate for one in "abcd"] == [True] * 4


# --- what is remembered, and what a search costs


@given(st.lists(st.lists(st.integers(0, 40), max_size=9), max_size=40), st.sets(st.integers(0, 39)), st.randoms())
def test_runs_say_where_a_hash_was_met(blocks: list[list[int]], kept: set[int], random: Random) -> None:
    """Hashes of few values, so that halves are often equal and hashes often not."""

    def hashes(numbers: list[int]) -> np.ndarray:
        return np.array([(number % 5, number) for number in numbers], np.uint64).reshape(-1, 2)

    runs = SortedRuns()
    for position, numbers in enumerate(blocks):
        runs.add(hashes(numbers), position)
    for positions in (list(range(len(blocks))), sorted(one for one in kept if one < len(blocks))):
        wanted = [random.randrange(45) for _ in range(20)]
        which, met = runs.find(hashes(wanted))
        expected = [
            (n, place)
            for n, number in enumerate(wanted)
            for place, position in enumerate(positions)
            for other in blocks[position]
            if number == other
        ]
        assert sorted(zip(which.tolist(), met.tolist(), strict=True)) == sorted(expected)
        runs.keep(np.array(sorted(one for one in kept if one < len(blocks)), np.int64))


def test_a_search_looks_into_few_runs_however_many_blocks_the_window_has() -> None:
    runs, count = SortedRuns(), 3000
    for position in range(count):
        runs.add(np.array([(position * 7919 % 65_537, position)], np.uint64), position)
        assert len(runs._runs) <= position.bit_length() + 1
    assert runs.hash_count == count


def test_what_counts_no_more_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "PRUNE_AT_MIN", 64)
    lived = make(tmp_path)
    window = lived.store._window
    for minute in range(60):
        lived.stream.append(rows(*(f"{minute} {n}" for n in range(8))))
        lived.clock.now_ns += MINUTE_NS
    remembered = window._streams[lived.stream.incarnation]
    assert remembered._runs.hash_count <= 2 * 11 * 8 + 64
    assert len(remembered._blocks) == len(remembered._known) <= 2 * 11 + 8
    assert [lived.stream.publish("S", b"x", msg_id=f"{minute} 0").duplicate for minute in (40, 59)] == [False, True]


def test_a_deleted_stream_is_forgotten(tmp_path: Path) -> None:
    lived = make(tmp_path)
    lived.store.add_stream({"name": "T", "duplicate_window": "10m", "num_replicas": 1})
    lived.stream.append(rows("a"))
    gone = lived.stream.incarnation
    assert gone in lived.store._window._streams
    lived.store.delete_stream("S")
    lived.store.stream("T").publish("T", b"x", msg_id="a")
    assert gone not in lived.store._window._streams


def test_duplicates_are_counted_exactly_whoever_sends_them_and_after_a_crash(tmp_path: Path) -> None:
    lived = make(tmp_path)
    rows = [{"subject": "S", "data": b"x", "msg_id": f"id-{number % 4}"} for number in range(6)]
    lived.stream.append(rows, WriterBatch("job", "1"))
    assert lived.stream.info()["state"]["num_duplicates"] == 2
    lived.stream.append(rows, WriterBatch("job", "1"))  # sent again: stored before, and nothing is counted
    assert lived.again().publish("S", b"y", msg_id="id-0").duplicate
    assert lived.again().info()["state"]["num_duplicates"] == 3
    lived.stream.purge()
    assert lived.stream.publish("S", b"y", msg_id="id-1").duplicate
    lived.clock.now_ns += 11 * MINUTE_NS
    assert not lived.stream.publish("S", b"y", msg_id="id-1").duplicate
    backup = tmp_path / "backup"
    lived.store.backup(backup)
    for store in (Store.open(lived.store.paths, env=lived.env), Store.restore(backup, tmp_path / "restored")):
        state = store.stream("S").info()["state"]
        assert (state["num_duplicates"], state["messages"], state["last_seq"]) == (4, 1, 9)
