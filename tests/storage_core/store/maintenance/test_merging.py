"""Merging of small blocks: the same messages under the same sequences, in fewer files; whatever happens on the way."""

import contextlib
import dataclasses
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from harness.block_places import block_directory, block_path
from harness.faults import end_at, fail_at, let_everything_happen, share_of
from harness.life import to_table
from harness.model import Row, seen_in_store, seen_in_stream
from harness.processes import SECOND_NS, Machine, SimulatedClock
from harness.replicas import replica_states
from harness.simulated_disk import ProcessEnded

from storage_core.block.format import BlockHeader, BlockIdentity
from storage_core.errors import ReadOnlyError, StalePlanError, StorageError, StoreBusyError
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StreamState
from storage_core.store import contents
from storage_core.store.environment import REAL
from storage_core.store.maintenance import merging
from storage_core.store.maintenance.merging import COMPACTING, FAN_IN, IN_A_SESSION, MAINTAINING
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
from storage_core.store.volume import locks

NAME = "orders"


def rows(first: int, count: int, msg_ids: bool = False) -> list[Row]:
    return [
        Row(
            f"orders.{'xyz'[number % 3]}",
            None if number % 7 == 0 else b"%d" % number * (number % 5),
            (("key", b"value"), ("none", None)) if number % 4 == 0 else None,
            msg_id=f"id-{number}" if msg_ids else None,
            timestamp_ns=1_000 * number,
        )
        for number in range(first, first + count)
    ]


def filled(machine: Machine, appends: int, each: int = 2, msg_ids: bool = False, **settings: object) -> Store:
    """Return a store with so many small blocks in one stream, none of them merged."""
    store = machine.create(**settings)
    stream = store.add_stream({"name": NAME, "subjects": ["orders.>"], "duplicate_window": "1h"})
    for number in range(appends):
        stream.append(to_table(rows(number * each, each, msg_ids)))
    return store


def state_of(store: Store) -> StreamState:
    return store.stream(NAME).state()


def files_of(machine: Machine, store: Store) -> list[set[str]]:
    """Return the names of the block files on each volume."""
    directory = state_of(store).incarnation
    return [set(machine.files().list_directory(block_directory(one, directory))) for one in machine.paths]


@pytest.mark.buckets
def test_a_compacted_stream_shows_the_same_in_one_block() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 9)
    before, state = seen_in_store(store, with_times=True), state_of(store)
    done = store.compact()
    assert (done["runs"], done["blocks"], done["unreadable"]) == (1, 9, [])
    after = state_of(store)
    assert seen_in_store(store, with_times=True) == before
    assert len(after.blocks) == 1
    (row,) = after.blocks.rows
    assert (int(row["first"]), int(row["span"]), int(row["row_count"])) == (1, 18, 18)
    assert int(row["data_size"]) == state.data_size
    assert (int(row["time_min_ns"]), int(row["time_max_ns"])) == (0, 17_000)
    assert int(row["holders"]) == 0b111
    assert after.subject_sets[int(row["subject_set"]) - 1] == ("orders.x", "orders.y", "orders.z")
    assert store.verify()["ok"]
    assert store.stream(NAME).subjects() == {"orders.x": 6, "orders.y": 6, "orders.z": 6}
    assert store.compact()["runs"] == 0


def test_holders_merge_on_their_way_and_each_message_is_rewritten_once_a_level() -> None:
    machine = Machine(1)
    store = filled(machine, 0)
    stream, known, written = store.stream(NAME), set[bytes](), 0
    for number in range(300):
        stream.append(to_table(rows(number * 2, 2)))
        new = [row for row in state_of(store).blocks.rows if bytes(row["block_id"]) not in known]
        known.update(bytes(row["block_id"]) for row in new)
        written += sum(int(row["row_count"]) for row in new)
    assert [number for number, _ in seen_in_stream(stream).messages] == list(range(1, 601))
    assert len(state_of(store).blocks) < 3 * FAN_IN
    assert written <= 3 * 600, "once by the append, and once for each of two levels"


def test_maintain_merges_what_is_due() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, FAN_IN - 1)
    before = seen_in_store(store)
    store.maintain()
    assert len(state_of(store).blocks) == FAN_IN - 1, "too few to be worth it"
    rows_of_two = state_of(store).blocks.rows
    assert list(merging.due(state_of(store), COMPACTING, 0)) == [(0, len(rows_of_two))]
    store.stream(NAME).append(to_table(rows(100, 2)))
    store.maintain()
    assert len(state_of(store).blocks) == 1
    assert len(seen_in_store(store)[NAME].messages) == len(before[NAME].messages) + 2


def test_removed_messages_are_dropped_and_stay_removed() -> None:
    machine = Machine(1)
    store = filled(machine, 6)
    stream = store.stream(NAME)
    stream.remove([1, 4, 5, 12])
    stream.purge(end=3)
    before = seen_in_store(store, with_times=True)
    store.compact()
    (row,) = state_of(store).blocks.rows
    assert int(row["row_count"]) == len(before[NAME].messages) == 7
    assert (int(row["first"]), int(row["span"])) == (3, 10), "the block of 1 and 2 is gone, 12 had its place at the end"
    assert seen_in_store(store, with_times=True) == before
    assert stream.gaps() == [(4, 6), (12, 13)]
    stream.remove([7])
    store.stream(NAME).append(to_table(rows(50, 1)))
    store.compact()
    assert [number for number, _ in seen_in_stream(stream).messages] == [3, 6, 8, 9, 10, 11, 13]


@pytest.mark.buckets
def test_readers_of_older_plans_go_on_with_the_old_blocks() -> None:
    machine = Machine(1)
    store = filled(machine, 5)
    before, reader = seen_in_store(store)[NAME], store.stream(NAME).read(columns=["sequence"])
    store.compact()
    store.maintain()
    assert reader.read_all()["sequence"].to_pylist() == [number for number, _ in before.messages]


@pytest.mark.buckets
def test_old_blocks_are_unlinked_when_they_have_been_kept_for_long_enough() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 5, deleted_block_retention="1h")
    store.compact()
    assert [len(names) for names in files_of(machine, store)] == [6, 6, 6]
    machine.clock.now += 3_601 * SECOND_NS
    store.maintain()
    assert [len(names) for names in files_of(machine, store)] == [1, 1, 1]
    assert len(store.view().state.replaced) == 0


def test_msg_ids_that_count_keep_their_blocks_apart_until_they_do_not() -> None:
    machine = Machine(1)
    store = filled(machine, 4, msg_ids=True)
    assert store.compact()["runs"] == 0
    machine.clock.now += 1_000 * SECOND_NS
    for number in range(4, 8):
        store.stream(NAME).append(to_table(rows(number * 2, 2, msg_ids=True)))
    machine.clock.now += 2_700 * SECOND_NS
    assert store.compact()["blocks"] == 4
    published = store.stream(NAME).publish("orders.x", b"again", msg_id="id-9")
    assert (published.sequence, published.duplicate) == (10, True)
    machine.clock.now += 3_600 * SECOND_NS
    assert store.compact()["blocks"] == 5, "that of the duplicate alone is none of the stream"
    with_ids = state_of(store).blocks.rows["msg_id_count"].tolist()
    assert with_ids == [16], "hashes come along, for a window that is made longer"


def test_msg_ids_that_count_no_more_do_not_count_again_for_a_newer_block_beside_theirs() -> None:
    machine = Machine(1)
    store = filled(machine, 2, msg_ids=True)
    machine.clock.now += 3_700 * SECOND_NS
    store.stream(NAME).append(to_table(rows(4, 2)))
    assert store.compact()["blocks"] == 3
    for opened in (store, machine.open(machine.files())):
        assert not opened.stream(NAME).publish("orders.x", b"again", msg_id=f"id-{opened is store:d}").duplicate


def test_blocks_of_duplicates_alone_are_no_part_of_the_stream() -> None:
    machine = Machine(1)
    store = filled(machine, 1, msg_ids=True)
    for _ in range(2):
        assert len(store.stream(NAME).append(to_table(rows(0, 2, msg_ids=True)))) == 2
    store.stream(NAME).append(to_table([*rows(0, 2, msg_ids=True), *rows(2, 1)]))
    assert state_of(store).blocks.rows["first"].tolist() == [1, 7]
    machine.clock.now += 3_700 * SECOND_NS
    assert store.compact()["unreadable"] == []
    state = store.stream(NAME).info()["state"]
    assert (state["messages"], state["last_seq"]) == (3, 9)
    assert len(state_of(store).blocks.rows) == 1
    assert store.verify()["ok"]


def test_blocks_of_removed_messages_that_were_merged_are_not_opened_for_msg_ids() -> None:
    machine = Machine(1)
    store = filled(machine, 20)
    store.compact()
    files = machine.files()
    other = machine.open(files)
    files.counted, files.calls = ("open",), []
    other.stream(NAME).publish("orders.x", b"one", msg_id="new")
    assert files.counts()["open", "block"] == 1, "the one that was staged"


def test_a_block_never_grows_beyond_what_the_stream_allows() -> None:
    machine = Machine(1)
    store = machine.create()
    store.add_stream({"name": NAME, "subjects": ["orders.>"], "block_max_msgs": 5})
    for number in range(10):
        store.stream(NAME).append(to_table(rows(number * 2, 2)))
    store.compact()
    assert state_of(store).blocks.rows["row_count"].tolist() == [4, 4, 4, 4, 4]


def test_blocks_of_different_spans_of_time_stay_apart() -> None:
    machine = Machine(1)
    store = machine.create()
    store.add_stream({"name": NAME, "subjects": ["orders.>"], "block_max_age": "1h"})
    hour_ns = 3_600_000_000_000
    machine.clock.now -= machine.clock.now % hour_ns - 2 * hour_ns  # on the hour
    for minutes in (0, 20, 59, 60, 61, 200):
        before = machine.clock.now
        machine.clock.now += minutes * 60_000_000_000
        store.stream(NAME).append(to_table([Row("orders.x", b"x")]))
        machine.clock.now = before
    for _ in range(2):
        store.compact()
        assert state_of(store).blocks.rows["row_count"].tolist() == [3, 2, 1]
    store.edit_stream({"name": NAME, "block_max_age": 0})
    store.compact()
    assert state_of(store).blocks.rows["row_count"].tolist() == [6]


def test_streams_and_blocks_that_are_large_are_left_alone() -> None:
    machine = Machine(1)
    store = machine.create()
    store.add_stream({"name": NAME, "subjects": ["orders.>"], "block_max_bytes": 1000})
    for size in (600, 10, 10, 600, 10, 600):
        store.stream(NAME).append(to_table([Row("orders.x", bytes(size))]))
    assert list(merging.due(state_of(store), MAINTAINING, 0)) == []
    assert list(merging.due(state_of(store), COMPACTING, 0)) == [(0, 3), (3, 5)]


@pytest.mark.parametrize("policy", [IN_A_SESSION, MAINTAINING, COMPACTING])
def test_what_is_not_looked_through_for_runs_has_none(
    policy: merging.MergePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = state_of(filled(Machine(1), 1))
    streams = [with_blocks(stream, seed) for seed in range(50)]
    runs = [list(merging.due(stream, policy, 0)) for stream in streams]
    assert any(runs) and not all(runs)
    monkeypatch.setattr(merging, "_sums", lambda values, ends: np.full(len(values), np.inf))  # looks through all
    assert [list(merging.due(stream, policy, 0)) for stream in streams] == runs


def with_blocks(stream: StreamState, seed: int) -> StreamState:
    """Return the stream with a manifest of blocks of many sizes, which nobody wrote."""
    random = np.random.default_rng(seed)
    rows = np.zeros(random.integers(200), BLOCK_DTYPE)
    rows["row_count"] = np.exp(random.uniform(0, random.choice([2, 8, 13]), len(rows)))
    rows["data_size"] = np.exp(random.uniform(3, random.choice([6, 12, 16, 19]), len(rows)))
    rows["file_size"] = rows["data_size"] + 300
    return dataclasses.replace(stream, blocks=Table.of(rows))


def test_an_append_never_waits_for_more_than_a_few_mebibytes_to_be_merged_however_small_the_files() -> None:
    machine = Machine(1)
    store = machine.create()
    stream = store.add_stream({"name": NAME, "subjects": ["orders.>"], "compression": "zstd"})
    for _ in range(FAN_IN):
        stream.append(to_table([Row("orders.x", bytes(1 << 20))]))
    assert int(state_of(store).blocks.rows["file_size"].sum()) < 1 << 20
    assert len(state_of(store).blocks) == FAN_IN, "what they unpack to is left to maintain"
    store.maintain()
    assert len(state_of(store).blocks) == 1


# --- readers whose plan names blocks that are not there any more


def unlink_old_blocks(machine: Machine, store: Store) -> None:
    machine.clock.now += 25 * 3_600 * SECOND_NS
    store.maintain()
    assert len(store.view().state.replaced) == 0


@pytest.mark.buckets
@pytest.mark.parametrize("volume_count", [1, 3])
@pytest.mark.parametrize("subject", [None, "orders.y"])
def test_a_plan_whose_blocks_are_gone_reads_the_same_from_those_they_were_merged_into(
    volume_count: int, subject: str | None
) -> None:
    machine = Machine(1, volume_count)
    store = filled(machine, 8)
    store.stream(NAME).remove([3, 9])
    fresh, told = [store.stream(NAME).read(2, 15, subject=subject) for _ in range(2)], list[object]()
    stale = store.stream(NAME).read(2, 15, subject=subject, report=told.append)
    expected = fresh[0].read_all()
    unfinished = fresh[1].read_next_batch()
    store.compact()
    store.stream(NAME).append(to_table(rows(90, 3)))
    store.compact()
    unlink_old_blocks(machine, store)
    assert stale.read_all() == expected
    assert pa.concat_tables([pa.table(unfinished), fresh[1].read_all()]).combine_chunks() == expected.combine_chunks()
    assert told == []
    assert store.view().state.events == ()


def test_a_plan_is_stale_if_any_of_its_messages_was_removed_since() -> None:
    machine = Machine(1)
    store = filled(machine, 8)
    first, last = store.stream(NAME).read(1, 7), store.stream(NAME).read(9, 17)
    store.compact()
    store.stream(NAME).remove([6])
    unlink_old_blocks(machine, store)
    assert last.read_all()["sequence"].to_pylist() == [*range(9, 17)]
    with pytest.raises(StalePlanError, match="sequences 5 to 6 were removed"):
        first.read_all()


def test_subjects_are_counted_while_blocks_are_merged() -> None:
    machine = Machine(1)
    store = filled(machine, 8)
    plan = contents.slices(store, state_of(store), ReadRequest((NAME,)))
    expected = store.stream(NAME).subjects()
    store.compact()
    unlink_old_blocks(machine, store)
    assert contents._footer_counts(store, plan[0]) is None
    assert store.stream(NAME).subjects() == expected


# --- damage


def damage(machine: Machine, store: Store, position: int, volumes: tuple[int, ...]) -> None:
    """Flip a byte in the middle of a block's copies."""
    row = state_of(store).blocks.rows[position]
    for number in volumes:
        directory = str(block_directory(machine.paths[number], state_of(store).incarnation))
        machine.disk.flip_bit(block_path(directory, bytes(row["block_id"])), 250 * 8)


def test_a_run_is_merged_from_good_copies_alone() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 5)
    before = seen_in_store(store)
    damage(machine, store, 1, (0, 2))
    damage(machine, store, 3, (1, 2))
    store.compact()
    assert len(state_of(store).blocks) == 1
    assert seen_in_store(store) == before
    assert store.verify()["ok"]


def test_a_block_that_is_whole_nowhere_waits_for_its_repair_and_loses_nothing_more() -> None:
    machine = Machine(1)
    store = filled(machine, 7)
    damage(machine, store, 3, (0,))
    done = store.compact()
    assert (done["runs"], done["blocks"]) == (2, 6)
    (reason,) = done["unreadable"]
    assert "sequences 7 to 8" in reason
    assert state_of(store).blocks.rows["first"].tolist() == [1, 7, 9]
    assert store.stream(NAME).read(on_data_loss="continue").read_all().num_rows == 12
    store.repair()
    assert store.compact()["runs"] == 0, "the lost messages may come back to their place between the two"
    store.repair(discard_lost=True)
    assert store.compact()["runs"] == 1
    assert [number for number, _ in seen_in_store(store)[NAME].messages] == [*range(1, 7), *range(9, 15)]
    assert list(state_of(store).lost.ranges()) == [(7, 9)]
    assert store.verify()["ok"]


# --- others meanwhile


def staged_merge(store: Store) -> merging.StagedMerge:
    (task,) = store.compaction(COMPACTING).plan([NAME])
    return merging.carry_out(task, store.environment)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda store: store.stream(NAME).purge(end=5),
        lambda store: store.compact(),
        lambda store: store.delete_stream(NAME),
    ],
)
def test_a_merge_whose_run_has_changed_is_given_up_and_leaves_nothing(meanwhile: Callable[[Store], object]) -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 5)
    staged = staged_merge(store)
    directory = state_of(store).incarnation
    meanwhile(machine.open())
    expected = seen_in_store(store)
    assert not store.compaction(COMPACTING).commit(staged)
    assert seen_in_store(store) == expected
    for path in machine.paths:
        name = block_path(str(block_directory(path, directory)), staged.block.summary.block_id)
        with pytest.raises(FileNotFoundError):
            machine.files().file_size(name)


def test_what_is_removed_or_appended_meanwhile_does_not_stop_a_merge() -> None:
    machine = Machine(1)
    store = filled(machine, 5)
    staged = staged_merge(store)
    store.stream(NAME).remove([2])
    store.stream(NAME).append(to_table(rows(10, 1)))
    expected = seen_in_store(store)
    assert store.compaction(COMPACTING).commit(staged)
    assert seen_in_store(store) == expected
    assert len(state_of(store).blocks) == 2


def test_a_merge_that_is_committed_twice_is_done_once() -> None:
    machine = Machine(1)
    store = filled(machine, 5)
    staged = staged_merge(store)
    expected = seen_in_store(store)
    compaction = store.compaction(COMPACTING)
    assert compaction.commit(staged)
    assert compaction.commit(staged)
    store.compact()
    assert seen_in_store(store) == expected


def test_a_merge_that_cannot_be_committed_leaves_nothing() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 5)
    staged = staged_merge(store)
    with machine.open().session(), pytest.raises(StoreBusyError), in_another_process():
        machine.open().compaction(COMPACTING).commit(staged)
    assert [len(names) for names in files_of(machine, store)] == [5, 5, 5]
    with pytest.raises(ReadOnlyError, match="reading only"):
        machine.open(read_only=True).compact()


@contextlib.contextmanager
def in_another_process() -> Iterator[None]:
    """Give the body mutexes of its own, as another process has them: it meets the locks of the disk."""
    with patch.object(locks, "_mutexes", {}):
        yield


@pytest.mark.buckets
def test_a_merge_that_was_killed_leaves_an_orphan_that_is_swept() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 5)
    expected = seen_in_store(store)
    staged_merge(store)
    assert [len(names) for names in files_of(machine, store)] == [6, 6, 6]
    machine.clock.now += 25 * 3_600 * SECOND_NS
    machine.open().maintain()
    assert [len(names) for names in files_of(machine, store)] == [5, 5, 5]
    assert seen_in_store(machine.open()) == expected


# --- faults


def compact_and_maintain(store: Store) -> None:
    store.compact()
    store.maintain()


def calls_of(machine: Machine, act: Callable[[Store], object]) -> int:
    machine = machine.copy()
    files = machine.files()
    act(machine.open(files))
    return len(files.calls)


def meet(machine: Machine, call: int, fault: str, act: Callable[[Store], object]) -> None:
    """Let a new process meet a fault at one of its calls."""
    files = machine.files()
    numbers = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
    files.judge = fail_at(call, numbers[fault]) if fault in numbers else end_at(call)
    with contextlib.suppress(StorageError, ProcessEnded):
        act(machine.open(files))
    files.judge = let_everything_happen
    if fault == "power":
        machine.disk.lose_power()


FAULTS = ("kill", "power", "EIO", "ENOSPC")
ENDS_OF_APPENDS = ("power", "EIO")


@pytest.mark.parametrize("volume_count", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_whatever_call_of_a_merge_goes_wrong(volume_count: int, fault: str) -> None:
    lived = Machine(1, volume_count)
    store = filled(lived, 4, snapshot_every=2, deleted_block_retention="0s")
    store.stream(NAME).remove([2])
    expected = seen_in_store(store, with_times=True)
    calls = range(calls_of(lived, compact_and_maintain))
    for call in share_of(calls, fault, FAULTS):
        machine = lived.copy()
        meet(machine, call, fault, compact_and_maintain)
        again = machine.open()
        assert seen_in_store(again, with_times=True) == expected, (fault, call)
        again.repair()
        compact_and_maintain(again)
        assert seen_in_store(again, with_times=True) == expected, (fault, call)
        assert len(state_of(again).blocks) == 1, (fault, call)
        replicas = replica_states(again, state_of(again))
        assert {one.state for one in replicas} == {"current"}, (fault, call)
        assert len({one.digest for one in replicas}) == 1, (fault, call)


@pytest.mark.parametrize("fault", ENDS_OF_APPENDS)
def test_an_append_whose_maintenance_merges_is_there_whole_or_not_at_all(fault: str) -> None:
    def append(store: Store) -> None:
        store.stream(NAME).append(to_table(rows(30, 2)))

    lived = Machine(1, 3)
    store = filled(lived, FAN_IN - 1)
    before = seen_in_store(store, with_times=True)
    done = lived.copy()
    append(done.open())
    after = seen_in_store(done.open(), with_times=True)
    assert len(state_of(done.open()).blocks) == 1
    for call in share_of(range(calls_of(lived, append)), fault, ENDS_OF_APPENDS):
        machine = lived.copy()
        meet(machine, call, fault, append)
        again = machine.open()
        again.maintain()
        assert seen_in_store(again, with_times=True) in (before, after), (fault, call)


# --- what others make of merged blocks


def test_a_backup_holds_merged_blocks_and_nothing_of_the_old_ones() -> None:
    machine = Machine(1)
    store = filled(machine, 6)
    store.stream(NAME).remove([4])
    expected = seen_in_store(store, with_times=True)
    store.backup("/disk/before")
    store.compact()
    assert seen_in_store(store, with_times=True) == expected
    assert len(store.backup("/disk/after")["streams"]) == 1
    for name, count in (("before", 6), ("after", 1)):
        restored = Store.restore(f"/disk/{name}", f"/disk/restored-{name}", env=machine.environment())
        assert seen_in_store(restored, with_times=True) == expected
        assert len(state_of(restored).blocks) == count
        assert len(restored.view().state.replaced) == 0
        assert restored.verify()["ok"]


def test_blocks_of_an_adopted_stream_are_merged_where_they_lie_and_orphans_there_are_swept(tmp_path: Path) -> None:
    clock = SimulatedClock()
    env, volume = dataclasses.replace(REAL, now_ns=clock), tmp_path / "volume"
    store = Store.create(volume, env=env)
    stream = store.add_stream({"name": NAME, "subjects": ["orders.>"]})
    for number in range(6):
        stream.append(to_table(rows(number * 2, 2)))
    expected, before = seen_in_store(store), state_of(store).incarnation
    store.maintain()
    shutil.rmtree(volume / "meta")
    adopt.execute(adopt.plan([volume], env), env)
    directory = block_directory(volume, before)
    foreign = directory / ("ab" * 16 + ".blk")
    foreign.write_bytes(BlockHeader(BlockIdentity(store.id, before, b"\xab" * 16, bytes(16)), "none").encode())
    adopted = Store.open(volume, env=env)
    adopted.stream(NAME).append(to_table(rows(50, 1)))
    orphan = staged_merge(adopted).block.summary.block_id
    assert block_path(str(directory), orphan).exists()
    adopted.compact()
    assert state_of(adopted).blocks.rows["span"].tolist() == [12, 1], "what was written since is of another incarnation"
    clock.now += 25 * 3_600 * SECOND_NS
    adopted.maintain()
    merged = block_path(str(directory), bytes(state_of(adopted).blocks.rows["block_id"][0]))
    assert set(directory.iterdir()) == {merged, foreign}, "what was not adopted is left alone"
    assert seen_in_store(adopted)[NAME].messages[:12] == expected[NAME].messages


@pytest.mark.buckets
def test_a_merge_needs_a_majority_and_names_who_took_it() -> None:
    machine = Machine(1, volume_count=3)
    store = filled(machine, 4)
    expected = seen_in_store(store)
    files = machine.files()
    files.judge = lambda call: (
        errno.ENOSPC if call.file_kind == "block" and machine.paths[1] in call.path.parents else 0
    )
    opened = machine.open(files)
    opened.compact()
    (row,) = state_of(opened).blocks.rows
    assert bin(int(row["holders"])).count("1") == 2
    files.judge = let_everything_happen
    machine.clock.now += 60 * SECOND_NS
    opened.maintain()
    assert int(state_of(opened).blocks.rows["holders"][0]) == 0b111
    assert [one.state for one in replica_states(opened, state_of(opened))] == ["current"] * 3
    assert seen_in_store(opened) == expected
