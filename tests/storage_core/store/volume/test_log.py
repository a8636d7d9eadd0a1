"""The metadata log on disk: what a segment needs to count, and what is said of one that is not whole."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.small_store import make_store, publish

from storage_core.errors import CorruptionError, StorageError
from storage_core.files import OsFiles
from storage_core.raft.log_format import PAGE_SIZE
from storage_core.store.environment import Environment
from storage_core.store.store import Store


class Killed(BaseException):
    """The process dies here: nothing that it would have done afterwards is done."""


class InterruptedFiles(OsFiles):
    """The file system of this machine, on which one call of one method does not happen."""

    def __init__(self) -> None:
        self.method, self.call, self.error = "", 0, BaseException()

    def interrupt(self, method: str, call: int, error: BaseException) -> None:
        """Raise `error` instead of the `call`-th next call of `method`; 0 is the next one."""
        self.method, self.call, self.error = method, call, error

    def __getattribute__(self, name: str) -> Callable[..., object]:
        get = object.__getattribute__
        if name == get(self, "__dict__").get("method"):
            self.call -= 1
            if self.call < 0:
                self.method = ""
                raise self.error
        found: Callable[..., object] = get(self, name)
        return found


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "volume"


def contents(volume: Path, read_only: bool = False) -> list[bytes]:
    store = Store.open(volume, read_only=read_only)
    found: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return found


def segments(volume: Path) -> list[Path]:
    return sorted((volume / "meta").glob("*.log"))


def snapshot(store: Store) -> None:
    """Take a snapshot, as the holder that has just written."""
    with store.metadata.session(1.0) as session:
        assert session.snapshot()


def test_a_segment_whose_name_may_not_last_is_not_appended_to(volume: Path) -> None:
    """The holder is killed after it wrote a segment, before its name is durable, with nothing uncommitted in it."""
    make_store(volume, 1)
    files = InterruptedFiles()
    store = Store.open(volume, env=Environment(files=files))
    publish(store, b"1")
    files.interrupt("sync_directory", 1, Killed())  # the snapshot's comes first
    with pytest.raises(Killed):
        snapshot(store)
    doubtful = segments(volume)[-1]

    publish(Store.open(volume), b"2")

    doubtful.unlink()  # as a power loss may do
    assert contents(volume) == [b"0", b"1", b"2"]


def test_a_segment_that_could_not_be_made_durable_is_removed_and_the_log_goes_on(volume: Path) -> None:
    make_store(volume, 1)
    files = InterruptedFiles()
    store = Store.open(volume, env=Environment(files=files))
    publish(store, b"1")
    files.interrupt("sync_directory", 1, OSError(errno.EIO, "the disk does not answer"))
    with pytest.raises(StorageError):
        snapshot(store)

    assert len(segments(volume)) == 1
    publish(store, b"2")
    assert contents(volume) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("sealed_before", [0, 1])
def test_a_newest_segment_that_was_cut_is_refused_at_every_page(
    volume: Path, sealed_before: int, read_only: bool
) -> None:
    """Cut down to nothing, to its header, to its commit records: never read as a store that holds less."""
    store = make_store(volume, 1)
    if sealed_before:
        snapshot(store)
    publish(store, b"1")
    newest = segments(volume)[-1]
    whole = newest.read_bytes()
    for size in (1, *range(0, len(whole), PAGE_SIZE)):
        newest.write_bytes(whole[:size])
        with pytest.raises(CorruptionError):
            contents(volume, read_only)
        assert segments(volume)[-1].stat().st_size == size, "nothing is changed"


def test_a_missing_newest_segment_is_refused(volume: Path) -> None:
    store = make_store(volume, 1)
    snapshot(store)
    publish(store, b"1")
    segments(volume)[-1].unlink()
    with pytest.raises(CorruptionError, match="goes on in 0000000000000002.log, which is missing"):
        contents(volume)


def test_a_segment_with_a_damaged_header_is_not_appended_to(volume: Path) -> None:
    make_store(volume, 2)
    (segment,) = segments(volume)
    with segment.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")

    publish(Store.open(volume), b"2")

    assert len(segments(volume)) == 2
    assert contents(volume) == [b"0", b"1", b"2"]


def test_a_torn_tail_that_was_set_aside_is_no_damage(volume: Path) -> None:
    make_store(volume, 1)
    with segments(volume)[-1].open("ab") as file:
        file.write(os.urandom(100))

    store = Store.open(volume)
    publish(store, b"1")

    assert len(segments(volume)) == 2
    assert store.verify()["damage"] == []
    assert contents(volume) == [b"0", b"1"]


def test_a_committed_entry_that_is_damaged_below_a_snapshot_is_damage_still(volume: Path) -> None:
    """The snapshot has what it said, so nothing is lost yet: verify says it, reading goes on."""
    store = make_store(volume, 2)
    end_bytes = segments(volume)[-1].stat().st_size
    snapshot(store)
    with segments(volume)[0].open("r+b") as file:
        file.seek(end_bytes - PAGE_SIZE + 80)
        file.write(b"\xff\xff")

    damage = store.verify()["damage"]

    assert [one["reason"] for one in damage] == [f"offset_bytes {end_bytes - PAGE_SIZE}: bad checksum"]
    assert contents(volume) == [b"0", b"1"]


def test_segments_go_though_one_among_them_is_torn(volume: Path) -> None:
    """A segment whose header cannot be read must not keep all earlier ones for ever."""
    store = make_store(volume, 1)
    (segments(volume)[0].parent / f"{2:016x}.log").write_bytes(b"torn")
    for number in range(1, 4):
        publish(store, b"%d" % number)
        snapshot(store)

    assert [int(path.stem, 16) for path in segments(volume)] == [5, 6]
    assert contents(volume) == [b"0", b"1", b"2", b"3"]


def test_files_that_only_look_like_segments_are_left_alone(volume: Path) -> None:
    make_store(volume, 1)
    for name in ("000000000000_001.log", "+000000000000002.log", "000000000000000A.log", "0x00000000000003.log"):
        (volume / "meta" / name).write_bytes(b"not ours")
    assert contents(volume) == [b"0"]
