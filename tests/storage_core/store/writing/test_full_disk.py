"""A disk that is full, and one that is read-only: real ones, mounted for the test, and simulated ones at any size.

FAULTS scenario 9: a full disk refuses the append and retires nobody; what was acked is there, and when there is room
again the same process goes on. What makes room is never refused: it may use the reserves of the volumes. A read-only
medium is read.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from harness.cases import Cases
from harness.faults import CHANGING, END, LOCKING, Call, FaultyFiles
from harness.life import STEPS, contents, create, to_table
from harness.model import Row, seen_in_store, seen_in_stream
from harness.processes import Machine
from harness.simulated_disk import ProcessEnded

from storage_core.errors import DiskFullError, ReadOnlyError, RequirementError, StorageError
from storage_core.files import OS_FILES, PAGE_SIZE
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.volume import reserve
from storage_core.store.writing.staging import Stager

ROW = Row("orders", bytes(range(256)) * 40)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes; skipped where tests may not mount one."""
    place = tmp_path / "mounted"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def append_until_full(stream: Stream) -> int:
    """Return the last sequence that was acked. No two rows are alike: merged blocks are as large as what they merge."""
    acked, random = 0, Random(1)
    try:
        while True:
            acked = stream.append([to_table([Row("orders", random.randbytes(10_240))])])[0]
    except DiskFullError:
        return acked


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_room(mounted: Path) -> None:
    store = Store.create(mounted / "volume", snapshot_every=5, deleted_block_retention="0s")
    stream = store.add_stream({"name": "orders"})
    ballast = mounted / "ballast"
    ballast.write_bytes(bytes(300_000))
    acked = append_until_full(stream)
    assert acked > 10
    for _ in range(20):  # trying again makes nothing worse
        with pytest.raises(DiskFullError):
            stream.append([to_table([Row("orders", Random(2).randbytes(200_000))])])
    for opened in (store, Store.open(mounted / "volume"), Store.open(mounted / "volume", read_only=True)):
        assert len(seen_in_stream(opened.stream("orders")).messages) == acked
        assert opened.verify()["ok"]
    ballast.unlink()
    assert stream.append([to_table([ROW])])[0] == acked + 1
    stream.purge(keep=1)
    store.maintain()
    assert len(list((mounted / "volume").glob("streams/*/*.blk"))) == 1, "nothing is left of what did not fit"
    for _ in range(30):
        stream.append([to_table([ROW])])
    assert Store.open(mounted / "volume").verify()["ok"]


def test_a_disk_filled_to_the_last_byte_still_gives_what_it_holds(mounted: Path) -> None:
    store = Store.create(mounted / "volume", snapshot_every=3)
    stream = store.add_stream({"name": "orders"})
    for _ in range(7):
        stream.append([to_table([ROW])])
    fill(mounted / "ballast")
    for opened in (store, Store.open(mounted / "volume")):
        assert len(seen_in_stream(opened.stream("orders")).messages) == 7
        for act in (
            lambda opened=opened: opened.stream("orders").append([to_table([ROW])]),
            lambda opened=opened: opened.add_stream({"name": "more"}),
        ):
            with pytest.raises(DiskFullError):
                act()
        opened.maintain()
        assert opened.verify()["ok"]
    assert (mounted / "volume" / "reserve").stat().st_size == reserve.SIZE, "what was refused took none of it"
    os.unlink(mounted / "ballast")
    assert stream.append([to_table([ROW])])[0] == 8


def sequences(stream: Stream) -> list[int]:
    return [sequence for sequence, _ in seen_in_stream(stream).messages]


def jstream(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "spark_stream.cli", *arguments], check=True, timeout=120, capture_output=True)


def test_a_disk_that_appends_filled_to_the_last_byte_is_emptied_by_other_processes(mounted: Path) -> None:
    volume = mounted / "volume"
    store = Store.create(volume, deleted_block_retention="0s")
    stream = store.add_stream({"name": "orders"})
    acked = append_until_full(stream)
    fill(mounted / "ballast")
    jstream("stream", "rmm", "--store", str(volume), "--force", "orders", "1")
    jstream("stream", "purge", "--store", str(volume), "--force", "--subject", "orders", "--keep", "1", "orders")
    jstream("maintain", "--store", str(volume))
    assert sequences(stream) == [acked]
    assert (volume / "reserve").stat().st_size == reserve.SIZE
    assert append_until_full(stream) > acked
    assert Store.open(volume).verify()["ok"]


class NoRoom:
    """A judge: there is no room on these volumes, but for what was given up of their reserves."""

    def __init__(self, volumes: Sequence[Path]) -> None:
        self._pages_used = dict.fromkeys(volumes, 0)

    def __call__(self, call: Call) -> int:
        volume = next((one for one in self._pages_used if one in call.path.parents), None)
        if volume is None or call.operation not in ("create", "write", "make_directory", "note"):
            return 0
        given_up = 0 if call.path.name == "reserve" else reserve.SIZE - reserve_size(volume)
        if self._pages_used[volume] * PAGE_SIZE >= given_up:
            return errno.ENOSPC
        self._pages_used[volume] += 1
        return 0


def reserve_size(volume: Path) -> int:
    return (volume / "reserve").stat().st_size


def make_full(root: Path, count: int, full: int) -> tuple[Store, FaultyFiles, list[Path]]:
    """Return a store with two streams and a consumer on `count` volumes; `full` of them will take nothing more."""
    paths = [root / f"v{number}" for number in range(count)]
    files = FaultyFiles(OS_FILES, counted=(*CHANGING, *LOCKING))
    store = Store.create(paths, deleted_block_retention="0s", env=Environment(files=files))
    stream = store.add_stream({"name": "orders", "subjects": ["orders.>"]})
    store.add_stream({"name": "other"})
    stream.add_consumer({"name": "reader"})
    for number in range(8):
        stream.publish(f"orders.{number % 2}", b"%d" % number)
        store.stream("other").publish("other", b"")
    files.judge = NoRoom(paths[-full:])
    return store, files, paths


def check_room_again(store: Store, files: FaultyFiles, paths: Sequence[Path]) -> None:
    files.judge = lambda call: 0
    store.add_stream({"name": "more"}).publish("more", b"1")
    assert [reserve_size(path) for path in paths] == [reserve.SIZE] * len(paths)
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * len(paths)
    assert store.verify()["ok"]


@pytest.mark.parametrize("is_opened_anew", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_what_makes_room_is_done_on_full_volumes(tmp_path: Path, count: int, is_opened_anew: bool) -> None:
    store, files, paths = make_full(tmp_path, count, count)
    for _ in range(3):
        for act in (
            lambda: store.stream("orders").publish("orders.1", b""),
            lambda: store.stream("orders").consumer("reader").fetch(1, timeout_s=0),
            lambda: store.add_stream({"name": "more"}),
        ):
            with pytest.raises(DiskFullError):
                act()
    assert [reserve_size(path) for path in paths] == [reserve.SIZE] * count, "what is refused takes none of it"

    def opened() -> Store:
        return Store.open(paths, env=store.environment) if is_opened_anew else store

    assert opened().stream("orders").remove(2) == 1
    assert opened().stream("orders").purge("orders.1", keep=1) == 2
    opened().stream("orders").consumer("reader").delete()
    opened().delete_stream("other")
    opened().maintain()
    assert reserve_size(paths[-1]) < reserve.SIZE
    for seen in (store, Store.open(paths)):
        assert seen.streams() == ["orders"] and seen.stream("orders").consumers() == []
        assert sequences(seen.stream("orders")) == [1, 3, 5, 7, 8]
    left = list(paths[-1].glob("streams/*/*.blk"))
    assert len(left) == 5, "blocks without messages are unlinked"
    check_room_again(store, files, paths)


def test_appends_that_others_can_take_leave_the_reserve_of_a_full_volume_alone(tmp_path: Path) -> None:
    store, files, paths = make_full(tmp_path, 3, 1)
    for number in range(20):
        Store.open(paths, env=store.environment).stream("orders").publish("orders.0", b"%d" % number)
    assert [reserve_size(path) for path in paths] == [reserve.SIZE] * 3
    assert store.stream("orders").purge() == 28
    check_room_again(store, files, paths)


@pytest.mark.parametrize("count", [1, 3])
def test_writers_that_try_again_and_again_take_nothing_of_the_reserve(tmp_path: Path, count: int) -> None:
    """Their blocks find room, and the log does not: nothing is left of them."""
    store, files, paths = make_full(tmp_path, count, count)
    before = sorted(tmp_path.rglob("*.blk"))
    files.judge = lambda call: errno.ENOSPC if call.operation == "write" and call.path.suffix == ".log" else 0
    for _ in range(20):
        with pytest.raises(DiskFullError):
            store.stream("orders").append([to_table([Row("orders.0", b"")])])
    assert sorted(tmp_path.rglob("*.blk")) == before
    assert [reserve_size(path) for path in paths] == [reserve.SIZE] * count
    files.judge = NoRoom(paths)
    assert store.stream("orders").purge() == 8
    check_room_again(store, files, paths)


@pytest.mark.parametrize("is_opened_anew", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_what_was_staged_and_given_up_is_swept_from_full_volumes(
    tmp_path: Path, count: int, is_opened_anew: bool
) -> None:
    store, files, paths = make_full(tmp_path, count, count)
    before = sorted(tmp_path.rglob("*.blk"))
    files.judge = lambda call: 0
    transaction = store.begin(["orders"])
    stager = Stager(transaction, transaction.targets["orders"], 0, env=store.environment)
    stager.write(to_table([Row("orders.0", b"staged")]), "orders.0")
    blocks = stager.finish()
    files.judge = NoRoom(paths)
    opened = Store.open(paths, env=store.environment) if is_opened_anew else store
    assert opened.abort(transaction)
    assert sorted(tmp_path.rglob("*.blk")) == before
    assert [reserve_size(path) for path in paths] == [reserve.SIZE] * count
    check_room_again(store, files, paths)
    with pytest.raises(RequirementError):
        store.commit(transaction, blocks)
    assert len(seen_in_stream(store.stream("orders")).messages) == 8


def test_blocks_that_an_entry_elsewhere_may_name_wait_for_room(tmp_path: Path) -> None:
    store, files, paths = make_full(tmp_path, 3, 3)
    files.judge = lambda call: 0
    transaction = store.begin(["orders"])
    stager = Stager(transaction, transaction.targets["orders"], 0, env=store.environment)
    stager.write(to_table([Row("orders.0", b"staged")]), "orders.0")
    stager.finish()
    staged = sorted(tmp_path.rglob("*.blk"))
    (paths[0] / "meta").rename(paths[0] / "elsewhere")  # its log cannot be read
    files.judge = NoRoom(paths)
    with pytest.raises(DiskFullError):
        Store.open(paths, env=store.environment).abort(transaction)
    assert sorted(tmp_path.rglob("*.blk")) == staged


def test_work_is_acknowledged_on_a_full_disk_and_leaves_room_for_removals(mounted: Path) -> None:
    volume = mounted / "volume"
    store = Store.create(volume, deleted_block_retention="0s", snapshot_every=100_000)
    stream = store.add_stream({"name": "orders"})
    acked = append_until_full(stream)
    (mounted / "ballast").touch()
    stream.purge(keep=acked // 2)
    store.maintain()
    stream.append([to_table([Row("orders", b"")] * 400)])
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": -1})
    waiting = consumer.fetch(1000, timeout_s=0).column("sequence").to_pylist()
    fill(mounted / "ballast")
    done = 0
    with suppress(DiskFullError):
        while done < len(waiting):
            done += consumer.ack(waiting[done])
    assert 50 < done < len(waiting), "a part of the reserve, and no more"
    seen = Store.open(volume).stream("orders").consumer("reader").info()
    assert seen["num_ack_pending"] == len(waiting) - done
    assert (volume / "reserve").stat().st_size == reserve.SIZE // 2
    with pytest.raises(DiskFullError):
        consumer.ack(waiting[-1])
    assert stream.purge() == len(waiting)
    assert store.verify()["ok"]


@pytest.mark.parametrize("is_maintained", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_removal_settles_from_the_reserve_what_a_killed_holder_left(
    tmp_path: Path, count: int, is_maintained: bool
) -> None:
    store, files, paths = make_full(tmp_path, count, count)
    synced: list[Call] = []

    def judge(call: Call) -> int:
        if call.operation == "write" and call.path.suffix == ".log" and len(synced) == count:
            return END  # of the commit record
        if call.operation == "sync" and call.path.suffix == ".log":
            synced.append(call)
        return 0

    files.judge = judge
    with suppress(ProcessEnded):
        store.stream("orders").publish("orders.0", b"8")
    files = FaultyFiles(OS_FILES, NoRoom(paths), counted=(*CHANGING, *LOCKING))
    env = Environment(files=files)
    with pytest.raises(DiskFullError):
        Store.open(paths, env=env).stream("orders").publish("orders.0", b"9")
    opened = Store.open(paths, env=env)
    if is_maintained:
        opened.maintain()
    assert opened.stream("orders").purge(keep=1) == 8
    assert sequences(opened.stream("orders")) == [9]
    check_room_again(opened, files, paths)


@pytest.mark.parametrize("count", [1, 3])
def test_a_reserve_that_is_used_up_is_told(tmp_path: Path, count: int) -> None:
    store, files, paths = make_full(tmp_path, count, count)
    for path in paths:
        os.truncate(path / "reserve", 0)
    files.judge = lambda call: errno.ENOSPC if call.operation in ("create", "write") else 0
    with pytest.raises(DiskFullError, match="reserve"):
        store.stream("orders").purge()
    assert len(seen_in_stream(store.stream("orders")).messages) == 8
    check_room_again(store, files, paths)


def test_a_read_only_medium_is_read_and_not_written(mounted: Path) -> None:
    store = Store.create(mounted / "volume")
    stream = store.add_stream({"name": "orders"})
    stream.append([to_table([ROW])])
    store.close()  # it keeps files open
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    for read_only in (False, True):
        opened = Store.open(mounted / "volume", read_only=read_only)
        assert len(seen_in_stream(opened.stream("orders")).messages) == 1
        assert opened.verify()["ok"] and opened.info()["messages"] == 1
        for act in (
            lambda opened=opened: opened.stream("orders").append([to_table([ROW])]),
            lambda opened=opened: opened.stream("orders").remove(1),
            lambda opened=opened: opened.add_stream({"name": "more"}),
            lambda opened=opened: opened.maintain(),
        ):
            with pytest.raises(ReadOnlyError):
                act()
    with pytest.raises(ReadOnlyError):
        Store.create(mounted / "other")
    subprocess.run(["mount", "-o", "remount,rw", mounted], check=True)
    assert Store.open(mounted / "volume").stream("orders").append([to_table([ROW])])[0] == 2


def test_read_only_stores_write_nothing(tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "volume").add_stream({"name": "orders"})
    stream.append([to_table([ROW])])
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    opened = Store.open(tmp_path / "volume", read_only=True)
    assert opened.stream("orders").read().read_all().num_rows == 1
    opened.stream("orders").info()
    opened.verify()
    with pytest.raises(ReadOnlyError):
        opened.stream("orders").append([to_table([ROW])])
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


MORE_ROOM = 8_000  # bytes


def test_a_life_on_a_disk_of_every_size_loses_nothing() -> None:
    """The disk is full at some point of the scripted life; with more room the life goes on where it stopped.

    A small disk is full again each time that it has grown by MORE_ROOM, up to the end of the life; so eight of them, a
    kilobyte apart by that measure, are full everywhere. The larger ones are full for the first time in mid-life.
    """
    shown = contents()
    cases = Cases("a life on a full disk")
    for capacity in (*range(8_000, 32_000, 3_000), *range(32_000, 160_000, 16_000)):
        with cases.case(f"{capacity} bytes"):
            check_full(capacity, shown)
    cases.finish()


def check_full(capacity: int, shown: list[dict[str, object]]) -> None:
    machine = Machine(capacity)
    machine.disk.capacity_bytes = capacity
    try:
        store = create(machine.environment())
    except StorageError:
        machine.disk.capacity_bytes = None
        store = create(machine.environment())
    for number, step in enumerate(STEPS):
        for _ in range(10):
            try:
                step.act(store)
                break
            except DiskFullError:
                assert seen_in_store(store) == shown[number], f"{step.name}: something was stored"
                assert seen_in_store(machine.open()) == shown[number]
                machine.disk.capacity_bytes = (machine.disk.capacity_bytes or 0) + MORE_ROOM
        assert seen_in_store(store) == shown[number + 1], step.name
    machine.disk.lose_power()
    machine.disk.capacity_bytes = None  # what was in doubt is settled when it can be written anew
    assert seen_in_store(machine.open()) == shown[-1]
