"""Blocks on several volumes: written at once, acked by a majority, checked before they are named, swept everywhere.

FAULTS scenario 9 for the files of a task: a volume that fails, whatever call it fails at, is left out of the block, and
what it had of it is taken back; a majority that fails refuses the append and leaves nothing behind.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.cases import Cases
from harness.copies import ONE_BY_ONE, Scattered, write_columns
from harness.faults import Call, FaultyFiles, fail_at

from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.errors import (
    DiskFullError,
    NotFoundError,
    ReadOnlyError,
    RequirementError,
    StorageError,
    VolumeFailedError,
)
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment, in_threads
from storage_core.store.reading.reading import ReadDamage
from storage_core.store.store import Store
from storage_core.store.writing import appends, transactions
from storage_core.store.writing.duplicates import MsgIdWindow
from storage_core.store.writing.limits import Limits
from storage_core.store.writing.mirrored_file import primary_error
from storage_core.store.writing.per_subject import SubjectIndex
from storage_core.store.writing.staging import StagedBlock, Stager

ROWS_PER_BLOCK = 10
ROWS = 25  # three blocks


def stage(scattered: Scattered, env: Environment, keep_on_error: bool = False) -> list[StagedBlock]:
    """Write three blocks as a task would."""
    transaction = transactions.begin(scattered.state, scattered.volumes, ["S"], env)
    target = replace(transaction.targets["S"], block_max_msgs=ROWS_PER_BLOCK)
    stager = Stager(transaction, target, 0, env=env)
    try:
        stager.write(write_columns(0, ROWS))
        return stager.finish()
    except BaseException:
        if not keep_on_error:
            stager.discard()
        raise


def check_copies(scattered: Scattered, staged: Sequence[StagedBlock]) -> None:
    """Check that each block is whole on each of its holders, and that there is nothing else."""
    for number, volume in enumerate(scattered.volumes):
        held = [one for one in staged if volume.volume_id in dict(one.holders)]
        assert {path.stem for path in scattered.files(number)} >= {one.summary.block_id.hex() for one in held}
        for one in held:
            summary = one.summary
            expected = BlockExpectation(
                scattered.state.store_id, one.incarnation, summary.block_id, summary.digest, summary.file_size
            )
            with OS_FILES.open(scattered.directory(number) / f"{summary.block_id.hex()}.blk") as file:
                assert not list(BlockReader.open(file, expected).verify())


def on_volume(judge: Callable[[Call], int], *numbers: int) -> Callable[[Call], int]:
    """Return a judge over the calls of some volumes alone."""
    return lambda call: judge(call) if any(f"volume-{number}" in str(call.path) for number in numbers) else 0


@pytest.mark.parametrize("volume_count", [1, 3, 5])
@pytest.mark.parametrize("parallel", [ONE_BY_ONE.parallel, in_threads])
def test_every_volume_of_the_placement_gets_the_same_bytes(tmp_path: Path, volume_count: int, parallel: Any) -> None:
    scattered = Scattered.make(tmp_path, volume_count)
    staged = stage(scattered, replace(REAL, parallel=parallel))
    assert [one.summary.row_count for one in staged] == [10, 10, 5]
    for one in staged:
        assert [volume_id for volume_id, _ in one.holders] == list(scattered.stream.placement)
        assert not one.failures
    contents = [[(path.name, path.read_bytes()) for path in scattered.files(number)] for number in range(volume_count)]
    assert len(contents[0]) == 3 and all(one == contents[0] for one in contents)
    check_copies(scattered, staged)


def test_nothing_is_written_outside_the_placement(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 5, placed=[4, 1, 2])
    stage(scattered, ONE_BY_ONE)
    assert [len(scattered.files(number)) for number in range(5)] == [0, 3, 3, 0, 3]


@pytest.mark.parametrize(("volume_count", "failing"), [(3, [1]), (5, [0, 4])])
@pytest.mark.parametrize("forever", [False, True])
def test_a_minority_that_fails_at_any_call_is_left_out_and_named(
    tmp_path: Path, volume_count: int, failing: list[int], forever: bool
) -> None:
    counting = FaultyFiles(OS_FILES)
    stage(Scattered.make(tmp_path / "healthy", volume_count), replace(ONE_BY_ONE, files=counting))
    cases = Cases(f"a minority of {volume_count} volumes fails while blocks are written, for ever {forever}")
    for number, called in enumerate(counting.calls):
        error = (errno.EIO, errno.ENOSPC, errno.EROFS)[(number + volume_count + forever) % 3]  # they take turns
        with cases.case(f"{called}: {errno.errorcode[error]}", errno.errorcode[error]):
            scattered = Scattered.make(tmp_path / f"{number}-{error}", volume_count)
            files = FaultyFiles(OS_FILES, on_volume(fail_at(number, error, forever), *failing))
            staged = stage(scattered, replace(ONE_BY_ONE, files=files))
            check_copies(scattered, staged)
            ids = {scattered.volumes[one].volume_id for one in failing}
            for one in staged:
                assert len(one.holders) >= volume_count // 2 + 1
                assert {volume_id for volume_id, _ in one.holders} | ids == set(scattered.stream.placement)
                assert {failure.volume_id for failure in one.failures}.isdisjoint(dict(one.holders))
                assert {failure.errno for failure in one.failures} <= {error}
            for failure in (failure for one in staged for failure in one.failures):
                assert "volume-" in failure.reason
    cases.finish()
    assert cases.count >= 30


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENOENT])
def test_a_majority_that_fails_at_any_call_refuses_the_task_and_leaves_nothing(tmp_path: Path, error: int) -> None:
    raised: dict[int, type[StorageError]] = {
        errno.EIO: VolumeFailedError,
        errno.ENOSPC: DiskFullError,
        errno.EROFS: ReadOnlyError,
        errno.ENOENT: NotFoundError,
    }
    counting = FaultyFiles(OS_FILES)
    stage(Scattered.make(tmp_path / "healthy", 3), replace(ONE_BY_ONE, files=counting))
    cases = Cases(f"a majority of volumes fails with {errno.errorcode[error]} while blocks are written")
    for number in range(len(counting.calls) - 2):  # at the last directory's fsync there is no majority left to fail
        with cases.case(str(counting.calls[number])):
            scattered = Scattered.make(tmp_path / str(number), 3)

            def judge(call: Call, at: int = number) -> int:
                return error if call.number >= at and call.operation not in ("unlink",) else 0

            files = FaultyFiles(OS_FILES, on_volume(judge, 0, 2))
            with pytest.raises(raised[error], match="stream 'S'") as caught:
                stage(scattered, replace(ONE_BY_ONE, files=files))
            assert "2 of 3 volumes must take a block" in str(caught.value)
            assert [scattered.files(one) for one in range(3)] == [[], [], []]
    cases.finish()
    assert cases.count >= 15


def test_space_that_is_missing_is_told_before_disks_that_are_broken() -> None:
    def failures(*codes: int) -> list[OSError]:
        return [OSError(code, os.strerror(code)) for code in codes]

    assert primary_error(failures(errno.EIO, errno.EACCES, errno.EDQUOT)).errno == errno.EDQUOT
    assert primary_error(failures(errno.ENOENT, errno.EIO, errno.EROFS)).errno == errno.EROFS
    assert primary_error(failures(errno.ENOENT, errno.EIO)).errno == errno.EIO


def test_all_volumes_fsync_a_block_and_its_name_before_it_is_acked(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES, counted=("create", "write", "sync", "sync_directory"))
    scattered = Scattered.make(tmp_path, 3)
    staged = stage(scattered, replace(ONE_BY_ONE, files=files))
    for number in range(3):
        calls = [call for call in files.calls if f"volume-{number}/" in str(call.path)]
        for one in staged:
            ops = [call.operation for call in calls if call.path.stem == one.summary.block_id.hex()]
            assert ops[0] == "create" and ops[-1] == "sync" and set(ops[1:-1]) == {"write"}
        created, named = (
            [at for at, call in enumerate(calls) if call.operation == operation]
            for operation in ("create", "sync_directory")
        )
        assert all(before < after for before, after in zip(created, named, strict=True))


def test_a_frame_costs_one_round_on_all_volumes_together(tmp_path: Path) -> None:
    rounds: list[int] = []

    def counting(calls: Any) -> Any:
        rounds.append(len(calls))
        return ONE_BY_ONE.parallel(calls)

    scattered = Scattered.make(tmp_path, 3)
    transaction = transactions.begin(scattered.state, scattered.volumes, ["S"], REAL)
    stager = Stager(transaction, transaction.targets["S"], 0, env=replace(REAL, parallel=counting))
    for first in range(0, 24_000, 6_000):
        stager.write(write_columns(first, 6_000, data_size=700))  # some 4 MiB: one frame
    (block,) = stager.finish()
    with OS_FILES.open(scattered.files(0)[0]) as file:
        frame_count = BlockReader.open(file).footer.frames.count
    assert frame_count >= 4 and block.summary.row_count == 24_000
    assert rounds[-1] == 6 and set(rounds[:-1]) == {3}  # contents and names are fsynced side by side
    assert len(rounds) <= frame_count + 2  # frames, the first of which creates; the end; the fsyncs


def test_writing_to_three_volumes_needs_no_more_memory_than_to_one(tmp_path: Path) -> None:
    pool = pa.default_memory_pool()
    batch = write_columns(0, 6_000, data_size=700)

    def peak(count: int) -> int:
        """Return the most that a task had allocated at a write, over what there was before."""
        scattered = Scattered.make(tmp_path / str(count), count)
        transaction = transactions.begin(scattered.state, scattered.volumes, ["S"], REAL)
        before, most = pool.bytes_allocated(), 0

        def watching(calls: Any) -> Any:
            nonlocal most
            outcomes = in_threads(calls)
            most = max(most, pool.bytes_allocated() - before)
            return outcomes

        stager = Stager(transaction, transaction.targets["S"], 0, env=replace(REAL, parallel=watching))
        for _ in range(8):
            stager.write(batch)
        stager.finish()
        return most

    assert peak(3) <= peak(1) + (1 << 20)


# --- the commit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create([tmp_path / f"volume-{number}" for number in range(3)])
    made.add_stream({"name": "S", "subjects": ["s.>"], "num_replicas": 3, "block_max_msgs": ROWS_PER_BLOCK})
    return made


def staged_in(store: Store) -> tuple[Any, list[StagedBlock]]:
    transaction = store.begin(["S"])
    stager = Stager(transaction, transaction.targets["S"], 0)
    stager.write(write_columns(0, ROWS))
    return transaction, stager.finish()


def copy_of(store: Store, block: StagedBlock, number: int) -> Path:
    directory = Path(store.volumes()[number].path) / "streams" / block.incarnation.hex()
    return directory / f"{block.summary.block_id.hex()}.blk"


def block_files(store: Store) -> list[list[str]]:
    return [sorted(path.name for path in one.path.glob("streams/*/*.blk")) for one in store.volumes()]


def commit_alone(store: Store, transaction: Any, staged: list[StagedBlock]) -> None:
    """Commit without the maintenance behind it, which would repair at once what the commit found missing."""
    with store.metadata.session(60.0) as session:
        caches = MsgIdWindow(), Limits(REAL), SubjectIndex(REAL)
        appends.commit(session, transaction, staged, None, (), "", *caches, REAL)


HARM: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
    "another block": lambda path: shutil.copy(max(one for one in path.parent.iterdir() if one != path), path),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_copy_that_was_lost_since_it_was_staged_is_not_counted(store: Store, harm: str) -> None:
    transaction, staged = staged_in(store)
    HARM[harm](copy_of(store, staged[1], 2))
    commit_alone(store, transaction, staged)
    placement = store.stream("S").state().placement
    missing = 1 << placement.index(store.volumes()[2].volume_id)
    assert store.stream("S").state().blocks.rows["holders"].tolist() == [0b111, 0b111 & ~missing, 0b111]
    assert store.stream("S").read(columns=["sequence"]).read_all().num_rows == ROWS


@pytest.mark.parametrize("harm", HARM)
def test_a_block_without_a_majority_of_good_copies_is_not_committed(store: Store, harm: str) -> None:
    transaction, staged = staged_in(store)
    for number in (0, 2):
        HARM[harm](copy_of(store, staged[1], number))
    with pytest.raises(RequirementError, match="is on 1 of 3 volumes, 2 are needed; nothing was committed"):
        store.commit(transaction, staged)
    assert store.stream("S").last_sequence == 0
    assert store.abort(transaction)


def test_what_another_instance_of_a_volume_took_is_not_counted(store: Store) -> None:
    transaction, staged = staged_in(store)
    other = tuple(
        replace(one, holders=tuple((volume_id, b"ANOTHER-INSTANCE") for volume_id, _ in one.holders)) for one in staged
    )
    with pytest.raises(RequirementError, match="is on 0 of 3 volumes"):
        store.commit(transaction, other)
    two = [replace(one, holders=(*one.holders[:2], (one.holders[2][0], b"ANOTHER-INSTANCE"))) for one in staged]
    commit_alone(store, transaction, two)
    assert set(store.stream("S").state().blocks.rows["holders"].tolist()) == {0b011}


def test_a_volume_that_missed_blocks_without_being_broken_is_written_down(store: Store) -> None:
    transaction = store.begin(["S"])
    target = transaction.targets["S"]
    shutil.rmtree(target.volumes[1].blocks(OS_FILES).directory(target.incarnation))  # not seen by this executor, say
    stager = Stager(transaction, transaction.targets["S"], 0)
    stager.write(write_columns(0, ROWS))
    staged = stager.finish()
    missed = target.volumes[1].volume_id
    assert all([failure.volume_id for failure in one.failures] == [missed] for one in staged)
    store.commit(transaction, staged)
    (event,) = [one for one in store.view().state.events if one.kind == "behind"]
    assert event.volume == missed.hex() and "No such file" in event.reason
    assert not any(one.retired for one in store.view().state.voters)


def test_a_volume_that_stays_full_is_written_down_once_until_it_has_caught_up(store: Store) -> None:
    def refuse(call: Call) -> int:
        return errno.ENOSPC if call.operation == "create" and "streams" in call.path.parts else 0

    full = replace(REAL, files=FaultyFiles(OS_FILES, on_volume(refuse, 1)))
    for env, behind_count in ((full, 1), (REAL, 1), (full, 2)):
        with Store.open(store.paths, env=env) as filling:
            for _ in range(3):
                filling.stream("S").append(write_columns(0, 1))
            assert len(filling.events(kind="behind")) == behind_count
    assert store.stream("S").last_sequence == 9


def test_a_disk_that_a_task_found_broken_is_retired_by_the_commit(store: Store) -> None:
    transaction, broken = store.begin(["S"]), store.volumes()[1]
    judge = on_volume(lambda call: errno.EIO if call.operation == "sync" else 0, 1)
    stager = Stager(transaction, transaction.targets["S"], 0, env=replace(REAL, files=FaultyFiles(OS_FILES, judge)))
    stager.write(write_columns(0, ROWS))
    store.commit(transaction, stager.finish())
    (voter,) = [one for one in store.view().state.voters if one.retired]
    assert voter.volume_id == broken.volume_id
    assert [one.volume for one in store.view().state.events if one.kind == "retired"] == [broken.name]
    store.stream("S").append(write_columns(ROWS, 5))
    assert store.stream("S").read(columns=["sequence"]).read_all().num_rows == ROWS + 5


def test_an_abort_sweeps_its_blocks_from_every_volume(store: Store) -> None:
    transaction, staged = staged_in(store)
    kept, others = staged_in(store)
    store.commit(kept, others)
    assert [len(one) for one in block_files(store)] == [6, 6, 6]
    assert store.abort(transaction)
    assert [len(one) for one in block_files(store)] == [3, 3, 3]
    assert not store.abort(kept)
    assert [len(one) for one in block_files(store)] == [3, 3, 3]
    assert staged


def test_orphans_are_swept_from_every_volume(store: Store) -> None:
    transaction, _ = staged_in(store)
    late = Stager(transaction, transaction.targets["S"], 1)
    late.write(write_columns(0, 5))
    store.abort(transaction)
    late.finish()
    assert [len(one) for one in block_files(store)] == [1, 1, 1]
    store.maintain()
    assert block_files(store) == [[], [], []]


def test_a_missing_volume_refuses_no_append_and_two_do(store: Store) -> None:
    paths = [one.path for one in store.volumes()]
    shutil.rmtree(paths[0])
    opened = Store.open(paths[1])
    opened.stream("S").append(write_columns(0, ROWS))
    told: list[ReadDamage] = []
    assert opened.stream("S").read(columns=["sequence"], report=told.append).read_all().num_rows == ROWS
    assert not told, "a volume that is known to be missing is no news"
    shutil.rmtree(paths[2])
    with pytest.raises(StorageError):
        Store.open(paths[1]).stream("S").append(write_columns(ROWS, 1))
