"""Files of the metadata that stay open from one session to the next: what happens to their paths in between."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from harness.open_files import open_files

from storage_core.store.store import Store

STREAM = {"name": "ORDERS", "subjects": ["orders.>"]}


def put_back(volume: Path) -> None:
    """Replace a volume by a copy of itself, as a restored backup does: all its files are other ones."""
    copy = volume.with_name("copy")
    shutil.copytree(volume, copy)
    shutil.rmtree(volume)
    shutil.copytree(copy, volume)
    shutil.rmtree(copy)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_volumes_that_were_put_back_between_two_appends_have_both(tmp_path: Path, volume_count: int) -> None:
    paths = [tmp_path / f"v{number}" for number in range(volume_count)]
    store = Store.create(paths)
    stream = store.add_stream(STREAM)
    assert stream.publish("orders.new", b"1").sequence == 1
    for path in paths:
        put_back(path)
    assert stream.publish("orders.new", b"2").sequence == 2
    assert Store.open(paths).stream("ORDERS").last_sequence == 2
    journals = [sum(len(placement.rows) for placement in volume.journal.read()) for volume in store.volumes()]
    assert journals == [2] * volume_count
    # One that comes back as it was is behind, and nothing is written past it.
    put_back(paths[0])
    assert stream.publish("orders.new", b"3").sequence == 3
    assert Store.open(paths).stream("ORDERS").last_sequence == 3


def test_segment_with_a_second_name_is_not_written(tmp_path: Path) -> None:
    paths = [tmp_path / f"v{number}" for number in range(3)]
    stream = Store.create(paths).add_stream(STREAM)
    stream.publish("orders.new", b"1")
    (segment,) = (paths[0] / "meta").glob("*.log")
    os.link(segment, tmp_path / "backup.log")
    before = segment.read_bytes()
    stream.publish("orders.new", b"2")
    assert segment.read_bytes() == before
    assert Store.open(paths).stream("ORDERS").last_sequence == 2


def test_processes_that_take_turns_go_on_where_the_other_ended(tmp_path: Path) -> None:
    first = Store.create([tmp_path / "v0"])
    first.add_stream(STREAM)
    second = Store.open(tmp_path / "v0")
    for sequence in range(1, 7):
        store = (first, second)[sequence % 2]
        assert store.stream("ORDERS").publish("orders.new", b"x").sequence == sequence
        if sequence == 3:
            first.maintain()
    assert Store.open(tmp_path / "v0").stream("ORDERS").read(columns=["sequence"]).read_all().num_rows == 6


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs a list of open files")
def test_close_closes_what_stays_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"v{number}" for number in range(3)]
    store = Store.create(paths)
    store.add_stream(STREAM).publish("orders.new", b"1")
    assert open_files(tmp_path) == 2 * 3, "a segment and a journal for each volume"
    store.close()
    assert open_files(tmp_path) == 0
    left = Store.open(paths)
    left.stream("ORDERS").publish("orders.new", b"2")
    del left
    gc.collect()
    assert open_files(tmp_path) == 0, "nobody has the store any more"
