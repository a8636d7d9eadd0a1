"""A disk that is full, and one that is read-only: real ones, mounted for the test, and simulated ones at any size.

FAULTS scenario 9: a full disk refuses the append and retires nobody; what was acked is there, and when there is room
again the same process goes on. A read-only medium is read.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.cases import Cases
from harness.life import STEPS, contents, create, to_table
from harness.model import Row, seen_in_store, seen_in_stream
from harness.processes import Machine

from storage_core.errors import DiskFullError, ReadOnlyError, StorageError
from storage_core.store.store import Store
from storage_core.store.stream import Stream

ROW = Row("orders", bytes(range(256)) * 40)  # does not compress


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; skipped where tests may not mount one."""
    place = tmp_path / "mounted"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def append_until_full(stream: Stream) -> int:
    """Return the last sequence that was acked."""
    acked = 0
    try:
        while True:
            acked = stream.append([to_table([ROW])])[0]
    except DiskFullError:
        return acked


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_room(mounted: Path) -> None:
    store = Store.create(mounted / "volume", snapshot_every=5, graveyard_keep="0s")
    stream = store.add_stream({"name": "orders"})
    ballast = mounted / "ballast"
    ballast.write_bytes(bytes(300_000))
    acked = append_until_full(stream)
    assert acked > 10
    for _ in range(20):  # trying again makes nothing worse
        with pytest.raises(DiskFullError):
            stream.append([to_table([ROW] * 20)])
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
            lambda opened=opened: opened.stream("orders").remove(1),
            lambda opened=opened: opened.stream("orders").purge(),
            lambda opened=opened: opened.add_stream({"name": "more"}),
            lambda opened=opened: opened.delete_stream("orders"),
        ):
            with pytest.raises(DiskFullError):
                act()
        opened.maintain()
        assert opened.verify()["ok"]
    os.unlink(mounted / "ballast")
    assert stream.append([to_table([ROW])])[0] == 8


def test_a_read_only_medium_is_read_and_not_written(mounted: Path) -> None:
    store = Store.create(mounted / "volume")
    stream = store.add_stream({"name": "orders"})
    stream.append([to_table([ROW])])
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
    assert stream.append([to_table([ROW])])[0] == 2


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


def test_a_life_on_a_disk_of_every_size_loses_nothing() -> None:
    """The disk is full at some point of the scripted life; with more room the life goes on where it stopped."""
    shown = contents()
    cases = Cases("a life on a full disk")
    for capacity in range(8_000, 160_000, 3_000):
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
                machine.disk.capacity_bytes = (machine.disk.capacity_bytes or 0) + 8_000
        assert seen_in_store(store) == shown[number + 1], step.name
    machine.disk.lose_power()
    machine.disk.capacity_bytes = None  # what was in doubt is settled when it can be written anew
    assert seen_in_store(machine.open()) == shown[-1]
