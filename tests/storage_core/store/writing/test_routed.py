"""RoutedStager: rows of many streams, few open files, bounded memory; each stream's rows stay in their order."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.errors import DiskFullError, FencedError, InvalidMessageError, RequirementError
from storage_core.files import OsFile, OsFiles
from storage_core.store.environment import REAL
from storage_core.store.store import Store
from storage_core.store.writing import routed
from storage_core.store.writing.appends import CommitResult, WriterBatch
from storage_core.store.writing.routed import RoutedStager

FRAME = 4 << 20  # bytes of rows that are written to the file
VOLUMES = 3


class CountingFiles(OsFiles):
    """Knows how many blocks' files are open, and were at most; refuses to make more than `room`."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.open_count = self.most = self.made = 0
        self.room = room

    def create(self, path: Path) -> OsFile:
        if self.made >= self.room:
            raise OSError(28, os.strerror(28), str(path))
        made = CountedFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        made.counter = self
        self.made += 1
        self.open_count += 1
        self.most = max(self.most, self.open_count)
        return made


class CountedFile(OsFile):
    __slots__ = ("counter",)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.counter.open_count -= 1
        super().close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create([tmp_path / f"v{number}" for number in range(VOLUMES)])


def add_streams(store: Store, count: int) -> list[str]:
    names = [f"S{number}" for number in range(count)]
    for name in names:
        store.add_stream({"name": name, "subjects": [name], "num_replicas": VOLUMES})
    return names


def rows(first: int, count: int, size: int) -> pa.RecordBatch:
    data = pa.array([b"%08d" % number + os.urandom(size) for number in range(first, first + count)])
    return pa.record_batch({"data": data})


def numbers(store: Store, name: str) -> list[int]:
    return [int(data[:8]) for data in store.stream(name).read(columns=["data"]).read_all()["data"].to_pylist()]


def write_all(
    store: Store, files: CountingFiles, pieces: list[tuple[str, int, int]]
) -> tuple[dict[str, list[int]], int]:
    """Write (stream, rows, bytes of each) and commit; return the numbers each stream got, and the number of blocks."""
    transaction = store.begin(None)
    stager = RoutedStager(transaction, 0, env=replace(REAL, files=files))
    written: dict[str, list[int]] = {}
    for name, count, size in pieces:
        mine = written.setdefault(name, [])
        stager.write(transaction.targets[name], rows(len(mine), count, size))
        mine.extend(range(len(mine), len(mine) + count))
    blocks = stager.finish()
    assert files.open_count == 0
    store.commit(transaction, blocks)
    return written, len(blocks)


def test_rows_that_fit_into_memory_are_one_block_a_stream_and_open_one_at_a_time(store: Store) -> None:
    names, files = add_streams(store, 40), CountingFiles()
    pieces = [(name, 3, 100) for _ in range(5) for name in names]
    written, block_count = write_all(store, files, pieces)
    assert block_count == len(names)
    assert files.most == VOLUMES
    assert {name: numbers(store, name) for name in names} == written


def test_open_blocks_are_bounded_and_order_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "OPEN_BLOCK_COUNT_MAX", 3)
    names, files = add_streams(store, 6), CountingFiles()
    draw = random.Random(7)
    pieces = [(draw.choice(names), 2, FRAME // 3) for _ in range(40)]  # a frame is complete with every second piece
    written, block_count = write_all(store, files, pieces)
    assert files.most <= (3 + 1) * VOLUMES
    assert block_count > len(names), "some were ended early"
    for name, expected in written.items():
        assert numbers(store, name) == expected


@pytest.mark.parametrize(("open_files_max", "most", "warnings"), [(12, 12, 0), (4, 6, 1)])
def test_open_files_stay_within_the_setting_or_it_is_said(
    store: Store, caplog: pytest.LogCaptureFixture, open_files_max: int, most: int, warnings: int
) -> None:
    names, files = add_streams(store, 6), CountingFiles()
    store.edit(open_files_max=open_files_max)
    draw = random.Random(7)
    pieces = [(draw.choice(names), 2, FRAME // 3) for _ in range(40)]
    written, _ = write_all(store, files, pieces)
    assert VOLUMES < files.most <= most
    assert sum("open_files_max is" in message for message in caplog.messages) == warnings
    assert {name: numbers(store, name) for name in written} == written


def test_many_streams_need_few_descriptors(tmp_path: Path) -> None:
    """What is open does not follow the number of streams: 300 of three replicas with 32 descriptors in all."""
    program = """
import resource, sys
import pyarrow as pa
from storage_core import Store
from storage_core.store.writing.routed import RoutedStager
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
store = Store.create([f"{sys.argv[1]}/{number}" for number in range(3)])
names = [f"S{number}" for number in range(300)]
for name in names:
    store.add_stream({"name": name})
transaction = store.begin()
stager = RoutedStager(transaction, 0)
for name in names:
    stager.write(transaction.targets[name], pa.record_batch({"data": [b"x"]}))
store.commit(transaction, stager.finish())
for name in names[::10]:
    store.stream(name).publish(name, b"y")
    assert store.stream(name).read().read_all().num_rows == 2
store.maintain()
assert store.verify()["ok"]
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)


def test_held_bytes_are_bounded_and_the_largest_blocks_end_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, size = 1 << 20, 10_000
    monkeypatch.setattr(routed, "HELD_SIZE_MAX", bound)
    names, files = add_streams(store, 8), CountingFiles()
    draw = random.Random(3)
    pieces = [(draw.choice(names[:4] * 10 + names[4:]), 5, size) for _ in range(200)]
    before = pa.total_allocated_bytes()
    transaction = store.begin(None)
    stager = RoutedStager(transaction, 0, env=replace(REAL, files=files))
    written: dict[str, list[int]] = {}
    for name, count, _ in pieces:
        mine = written.setdefault(name, [])
        stager.write(transaction.targets[name], rows(len(mine), count, size))
        mine.extend(range(len(mine), len(mine) + count))
        assert pa.total_allocated_bytes() - before < bound + (1 << 20)
    blocks = stager.finish()
    store.commit(transaction, blocks)
    assert files.most == VOLUMES
    assert {name: numbers(store, name) for name in written} == written
    sizes = [block.summary.data_size for block in blocks]
    assert len(sizes) < 2 * sum(sizes) / (bound / 4), "blocks are ended by size, not whichever is at hand"


@pytest.mark.parametrize("harm", ["a row that is refused", "a disk that is full"])
def test_nothing_is_left_of_a_task_that_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, harm: str
) -> None:
    monkeypatch.setattr(routed, "HELD_SIZE_MAX", 100_000)
    names = add_streams(store, 4)
    is_full = harm == "a disk that is full"
    files = CountingFiles(room=20 if is_full else 1 << 30)
    transaction = store.begin(None)
    stager = RoutedStager(transaction, 0, env=replace(REAL, files=files))

    def write() -> None:
        for piece in range(60):
            stager.write(transaction.targets[names[piece % 4]], rows(piece, 5, 2_000))
        stager.write(transaction.targets["S0"], rows(0, 1, 10), default_subject="not.taken")

    with pytest.raises(DiskFullError if is_full else InvalidMessageError):
        write()
    assert list(tmp_path.rglob("*.blk"))
    stager.discard()
    assert files.open_count == 0
    assert not list(tmp_path.rglob("*.blk"))


# --- exactly once, whatever streams the rows of a batch name


def write_batch(store: Store, writer: WriterBatch, **data: list[bytes]) -> CommitResult:
    """Write these messages, by stream, as one batch of a writer."""
    transaction = store.begin(None)
    stager = RoutedStager(transaction, 0, hashed=True)
    for name, values in data.items():
        stager.write(transaction.targets[name], pa.record_batch({"data": pa.array(values)}))
    return store.commit(transaction, stager.finish(), writer)


def of_run(run: str, batch: int, **keys: bool) -> WriterBatch:
    return WriterBatch("query", str(batch), "query", run, **keys)


@pytest.mark.parametrize("is_snapshot", [False, True])
@pytest.mark.parametrize("first", [{}, {"S0": [b"a"]}], ids=["no rows", "rows of one stream"])
def test_a_batch_is_fenced_whatever_streams_it_had_rows_for(
    store: Store, first: dict[str, list[bytes]], is_snapshot: bool
) -> None:
    add_streams(store, 2)
    write_batch(store, of_run("run-1", 0), **first)
    if is_snapshot:
        store.maintain()
        store = Store.open(store.paths)
    with pytest.raises(FencedError):
        write_batch(store, of_run("run-2", 0), S1=[b"b"])
    again = write_batch(store, of_run("run-2", 0), **first)
    assert again.already and set(again.appended) == set(first)
    with pytest.raises(FencedError):  # the one before is superseded
        write_batch(store, of_run("run-1", 1), S1=[b"c"])
    assert not write_batch(store, of_run("run-2", 1), S0=[b"d"], S1=[b"e"]).already
    assert [store.stream(name).read().read_all().num_rows for name in ("S0", "S1")] == [1 + len(first), 1]


def test_what_came_first_under_a_number_counts_if_its_owner_says_so(store: Store) -> None:
    add_streams(store, 2)
    write_batch(store, of_run("run-1", 0))
    assert write_batch(store, of_run("run-2", 0, any_content=True), S1=[b"b"]).already
    assert store.stream("S1").read().read_all().num_rows == 0


def test_a_batch_is_not_dropped_for_a_stream_that_was_made_again(store: Store) -> None:
    add_streams(store, 1)
    write_batch(store, of_run("run-1", 0), S0=[b"a"])
    store.delete_stream("S0")
    add_streams(store, 1)
    with pytest.raises(RequirementError):
        write_batch(store, of_run("run-1", 0), S0=[b"a"])


def test_another_query_under_the_name_of_a_writer_is_refused_without_rows_too(store: Store) -> None:
    add_streams(store, 1)
    write_batch(store, of_run("run-1", 0))
    with pytest.raises(RequirementError):
        write_batch(store, WriterBatch("query", "0", "another", "run-1"), S0=[b"a"])
