"""FAULTS scenario 24: names that are no names, and links, FIFOs and hard links planted in a store.

Each is refused or not followed, nothing outside the volume is read, written or removed, and nothing hangs.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.life import to_table
from harness.model import Row

from storage_core.errors import AlreadyExistsError, InvalidMessageError, NotFoundError, StorageError
from storage_core.store.store import Store

CONTENT = b"precious content that is nobody's business"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "volume", snapshot_every=3, deleted_block_retention="0s")
    stream = made.add_stream({"name": "orders"})
    for number in range(4):
        stream.append([to_table([Row("orders", b"%d" % number)])])
    made.verify()
    return made


# --- names -----------------------------------------------------------------------------------------------------------

NAMES = [
    "", ".", "..", "../x", "/x", "a/b", "a\\b", "a\0b", "a\nb", "a b", "a.b", "a*", ">", "\x7f", "a\u0000",
    "\u043e\u0440\u0434\u0435\u0440\u0441", "o\u0301rders", "\u202eorders", "x" * 129, None, 7, b"orders",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_refused_before_a_file_is_touched(store: Store, name: object) -> None:
    volume = Path(store.paths[0])
    before = sorted(volume.rglob("*"))
    with pytest.raises(ValueError, match="name of a stream"):
        store.add_stream({"name": name})
    with pytest.raises((ValueError, NotFoundError)):
        store.edit_stream({"name": name})
    with pytest.raises((ValueError, NotFoundError)):
        store.stream(name)  # type: ignore[arg-type]
    with pytest.raises((ValueError, NotFoundError)):
        store.delete_stream(name)  # type: ignore[arg-type]
    with pytest.raises((ValueError, NotFoundError)):
        store.begin([name])  # type: ignore[list-item]
    assert sorted(volume.rglob("*")) == before


def test_names_that_differ_in_case_only_are_one_name(store: Store) -> None:
    with pytest.raises(AlreadyExistsError, match="case"):
        store.add_stream({"name": "Orders"})
    with pytest.raises(NotFoundError, match="'orders'"):
        store.stream("ORDERS")
    store.delete_stream("orders")
    assert store.add_stream({"name": "Orders"}).last_sequence == 0


@pytest.mark.parametrize("name", ["CON", "nul", "con", "aux", "-", "_", "--help", "x" * 128])
def test_names_that_are_special_elsewhere_are_names_here(store: Store, name: str) -> None:
    stream = store.add_stream({"name": name})
    assert stream.append([to_table([Row(name, b"one")])]) == range(1, 2)
    assert Store.open(store.paths[0]).stream(name).get(1).data == b"one"


@pytest.mark.parametrize("subject", ["../../x", "a/../../b", "/etc/passwd", "a\0b", "a..b", ".", "", "a.*", "a.>", " "])
def test_subjects_are_never_paths(tmp_path: Path, subject: str) -> None:
    store = Store.create(tmp_path / "volume")
    stream = store.add_stream({"name": "all", "subjects": [">"]})
    before = sorted(tmp_path.rglob("*"))
    try:
        stream.publish(subject, b"x")
    except InvalidMessageError:
        assert sorted(tmp_path.rglob("*")) == before
    else:
        assert stream.get(1).subject == subject
        assert {path.suffix for path in set(tmp_path.rglob("*")) - set(before)} <= {".blk", ".journal", ""}


# --- what is planted -------------------------------------------------------------------------------------------------


def _symlink(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("made-by-following"))


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path, _: Path) -> None:
    path.mkdir()


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "symlink": _symlink, "dangling symlink": _dangling, "FIFO": _fifo, "directory": _directory,
    "hard link": lambda path, victim: os.link(victim, path),
}  # fmt: skip
PLACES = ["jstream.volume", "lock", "index.db", "placements.journal", "meta/*.log", "meta/*.snap", "streams/*/*.blk"]


def use(volume: Path) -> list[str]:
    """Do with a store what can be done, and return the names of the errors; only those of the hierarchy pass."""
    refused = []
    for act in (
        lambda: Store.open(volume, lock_timeout_s=0.5).stream("orders").read(on_data_loss="continue").read_all(),
        lambda: Store.open(volume, lock_timeout_s=0.5).verify(),
        lambda: Store.open(volume, lock_timeout_s=0.5).stream("orders").info(),
        lambda: Store.open(volume, lock_timeout_s=0.5).stream("orders").publish("orders", b"more"),
        lambda: Store.open(volume, lock_timeout_s=0.5).stream("orders").remove(2),
        lambda: Store.open(volume, lock_timeout_s=0.5).add_stream({"name": "another"}),
        lambda: Store.open(volume, lock_timeout_s=0.5).delete_stream("orders"),
        lambda: Store.open(volume, lock_timeout_s=0.5).maintain(),
    ):
        try:
            act()
        except StorageError as error:
            refused.append(type(error).__name__)
    return refused


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_planted_in_the_place_of_a_file_is_not_followed(
    store: Store, tmp_path: Path, place: str, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(CONTENT)
    volume = Path(store.paths[0])
    for path in sorted(volume.glob(place)):
        path.unlink()
        PLANTS[kind](path, victim)
    use(volume)
    assert victim.read_bytes() == CONTENT
    assert not victim.with_name("made-by-following").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_planted_beside_the_files_is_left_alone(store: Store, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(CONTENT)
    volume = Path(store.paths[0])
    (stream_directory,) = (volume / "streams").iterdir()
    below = f"streams/{stream_directory.name}"
    names = ["meta/x.log", "meta/00000000000000ff.tmp", "x", f"{below}/x", "streams/" + "ab" * 16]
    for name in names:
        PLANTS[kind](volume / name, victim)
    assert use(volume) == []
    assert victim.read_bytes() == CONTENT
    assert all(os.path.lexists(volume / name) for name in names)
    opened = Store.open(volume)
    opened.add_stream({"name": "later"}).append([to_table([Row("later", b"x")])])
    opened.maintain()
    assert len(opened.view().state.pending_deletes) <= 1  # the directory, which is not empty; nothing else waits for it


@pytest.mark.parametrize("place", ["streams/*", "meta"])
def test_a_directory_that_is_a_link_is_not_emptied(store: Store, tmp_path: Path, place: str) -> None:
    volume = Path(store.paths[0])
    (directory,) = volume.glob(place)
    elsewhere = tmp_path / "elsewhere"
    directory.rename(elsewhere)
    (elsewhere / ("cd" * 16 + ".blk")).write_bytes(CONTENT)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    directory.symlink_to(elsewhere)
    use(volume)
    if place == "streams/*":  # blocks that are named are unlinked where they were named; what else lies there stays
        assert (elsewhere / ("cd" * 16 + ".blk")).read_bytes() == CONTENT
    else:
        assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_a_store_that_was_copied_with_hard_links_does_not_write_into_the_original(store: Store, tmp_path: Path) -> None:
    original, copy = Path(store.paths[0]), tmp_path / "copy"
    shutil.copytree(original, copy, copy_function=os.link)
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    use(copy)
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before
