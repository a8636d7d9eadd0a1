"""What a turn says of volumes that fail while it writes: retired, or merely left out, and told once."""

import errno
from pathlib import Path

import pytest
from harness.faults import FaultyFiles

from storage_core.files import OS_FILES
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.store import Store


def make_store(root: Path, files: FaultyFiles) -> Store:
    env = Environment(files=files, parallel=one_after_another)
    store = Store.create([root / name for name in "abc"], env=env)
    store.add_stream({"name": "S"})
    return store


def fail_writes(files: FaultyFiles, volume: Path, error: int) -> None:
    """Let writes to the log of one volume fail from here on, until `files.is_armed` is taken back."""
    files.is_armed = True
    files.judge = lambda call: error if call.operation == "write" and volume / "meta" in call.path.parents else 0


def told(store: Store) -> list[tuple[str, str]]:
    return [(event["kind"], event["after"]) for event in store.events()]


def test_a_volume_that_was_retired_is_told_of_once(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    fail_writes(files, tmp_path / "c", errno.EIO)
    for _ in range(3):
        store.stream("S").publish("S", b"1")
    assert told(store) == [("retired", "retired")]
    other = Store.open(tmp_path / "a")
    other.stream("S").publish("S", b"2")
    assert told(other) == [("retired", "retired")]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_an_error_that_is_no_volumes_fault_retires_nobody(tmp_path: Path, error: int) -> None:
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    fail_writes(files, tmp_path / "c", error)
    store.stream("S").publish("S", b"1")
    assert told(store) == []
    files.is_armed = False
    store.stream("S").publish("S", b"2")
    assert told(store) == []
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3
