"""Volumes that are not what they are taken for, and places that can hold none: refused clearly, or done without.

Nothing is written to a volume that is refused, and no store is ever put together from parts of two.
"""

import errno
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest
from harness.faults import Call, FaultyFiles

from storage_core import Store
from storage_core.errors import (
    AlreadyExistsError,
    DiskFullError,
    NoQuorumError,
    NotAStoreError,
    ProcessError,
    ReadOnlyError,
    StorageError,
    StoreBusyError,
)
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "here").mkdir()
    return [tmp_path / "here" / name for name in ("a", "b", "c")]


@pytest.fixture
def store(paths: list[Path]) -> Store:
    """A store on three volumes with a stream S of one message, `first`."""
    made = Store.create(paths)
    made.add_stream({"name": "S"}).publish("S", b"first")
    return made


def messages(store: Store) -> list[bytes]:
    found: list[bytes] = store.stream("S").read(columns=["data"]).read_all()["data"].to_pylist()
    return found


def listing(*roots: Path) -> dict[Path, str]:
    """Return all files and what they hold, as digests: bytes of whole blocks take pytest minutes to compare."""
    files = (path for root in roots for path in root.rglob("*") if path.is_file())
    return {path: sha256(path.read_bytes()).hexdigest() for path in files}


FULL = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("create", "write", "make_directory"))
CLOSED = dict.fromkeys((errno.EROFS, errno.EACCES), ("create", "make_directory", "lock", "unlink"))
UNWRITABLE = {**FULL, **CLOSED}  # by error, the calls that end in it


def failing(error: int, below: Sequence[Path], operations: tuple[str, ...] = ()) -> Environment:
    """Return an environment in which calls on files below these directories fail."""

    def judge(call: Call) -> int:
        hit = any(call.path == root or root in call.path.parents for root in below)
        return error if hit and (not operations or call.operation in operations) else 0

    every = ("create", "open", "read", "write", "truncate", "sync", "unlink", "make_directory", "list", "lock", "size")
    return replace(REAL, files=FaultyFiles(OS_FILES, judge=judge, counted=every))


# --- making a store


@pytest.mark.parametrize("count", [2, 4])
def test_an_even_number_of_volumes_is_refused(tmp_path: Path, count: int) -> None:
    given = [tmp_path / str(number) for number in range(count)]
    with pytest.raises(ValueError, match=f"volumes: {count} were given.*1, 3 or 5"):
        Store.create(given)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_not_made_on_one_volume_twice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "folder").symlink_to(tmp_path)
    for twice in ("a", "./a/", "link", "folder/a"):
        with pytest.raises(ValueError, match="given twice"):
            Store.create([tmp_path / "a", tmp_path / "b", f"{tmp_path}/{twice}"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


def test_a_volume_within_another_is_refused(tmp_path: Path) -> None:
    for given in permutations([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "c"]):
        with pytest.raises(ValueError, match="/a/c.* lies within .*/a"):
            Store.create(given)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_ends_the_making_and_the_others_are_left_as_they_were(
    tmp_path: Path, paths: list[Path]
) -> None:
    paths[1].mkdir()
    paths[2].mkdir()
    (paths[2] / "letter.txt").write_text("dear reader")
    with pytest.raises(AlreadyExistsError, match="c is not empty: letter.txt"):
        Store.create(paths)
    assert list(listing(tmp_path)) == [paths[2] / "letter.txt"]
    (paths[2] / "letter.txt").unlink()
    Store.create(paths).close()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EROFS, ReadOnlyError),
     (errno.EACCES, ReadOnlyError)],
)  # fmt: skip
def test_a_store_is_not_made_where_one_volume_cannot_be_written(
    paths: list[Path], error: int, raised: type[StorageError]
) -> None:
    with pytest.raises(raised, match=re.escape(str(paths[1]))):
        Store.create(paths, env=failing(error, [paths[1]], UNWRITABLE[error]))
    Store.create(paths).close()  # nothing was left that is in the way


# --- streams


@pytest.mark.parametrize("count", [5, 2, 0, 7])
def test_a_stream_has_no_more_replicas_than_volumes_and_an_odd_number(store: Store, count: int) -> None:
    with pytest.raises(ValueError, match=f"num_replicas: {count} "):
        store.add_stream({"name": "MANY", "num_replicas": count})
    assert store.streams() == ["S"]


# --- opening


def test_volumes_of_two_stores_are_refused_naming_both(store: Store, paths: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    Store.create(other).close()
    for named in ([paths[0], other], [paths[0], other, tmp_path / "missing"]):
        with pytest.raises(NotAStoreError, match=f"several stores.*{paths[0]} to store .*{other} to store"):
            Store.open(named)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_disk_of_another_store_among_the_named_ones_is_one_bad_volume(
    store: Store, paths: list[Path], number: int, read_only: bool
) -> None:
    shutil.rmtree(paths[number])
    with Store.create(paths[number]) as other:
        other.add_stream({"name": "THEIRS"}).publish("THEIRS", b"not ours")
    before = listing(paths[number])
    seen = Store.open(paths, read_only=read_only)
    states = {one["path"]: one["state"] for one in seen.cluster_info()["volumes"]}
    assert states == {str(path): "foreign" if path == paths[number] else "current" for path in paths}
    assert messages(seen) == [b"first"]
    if not read_only:
        seen.stream("S").publish("S", b"second")
        report = seen.repair()
        assert not report["ok"]
        assert [one["file"] for one in report["damage"]] == [str(paths[number])]
        assert messages(seen) == [b"first", b"second"]
    assert listing(paths[number]) == before


def test_another_store_at_a_volume_s_place_is_foreign_and_left_alone(store: Store, paths: list[Path]) -> None:
    shutil.rmtree(paths[1])
    with Store.create(paths[1]) as other:
        other.add_stream({"name": "THEIRS"}).publish("THEIRS", b"not ours")
    before = listing(paths[1])
    seen = Store.open(paths[0])
    assert [one["state"] for one in seen.cluster_info()["volumes"]] == ["current", "foreign", "current"]
    seen.stream("S").publish("S", b"second")
    assert messages(seen) == [b"first", b"second"]
    assert listing(paths[1]) == before


def test_one_volume_at_two_paths_is_refused_naming_both(store: Store, paths: list[Path]) -> None:
    copy = paths[0].with_name("copy")
    shutil.copytree(paths[0], copy)
    before = listing(*paths, copy)
    for given in ([paths[0], copy], [copy, paths[1]], [copy], [*paths, copy]):
        with pytest.raises(ValueError, match=r"at two paths: (.*/a and .*/copy|.*/copy and .*/a); one is a copy"):
            Store.open(given)
    assert listing(*paths, copy) == before


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_a_copy_of_one_volume_in_the_place_of_another_is_one_bad_volume(
    store: Store, paths: list[Path], number: int, read_only: bool
) -> None:
    shutil.rmtree(paths[number])
    shutil.copytree(paths[number - 1], paths[number])
    for given in (paths, paths[::-1], [paths[number - 2]]):
        seen = Store.open(given, read_only=read_only)
        states = {one["path"]: one["state"] for one in seen.cluster_info()["volumes"]}
        assert states == {str(path): "foreign" if path == paths[number] else "current" for path in paths}
        assert messages(seen) == [b"first"]
    if not read_only:
        seen.stream("S").publish("S", b"second")
        assert messages(Store.open(paths)) == [b"first", b"second"]


def test_a_copy_of_one_volume_beside_volumes_that_were_moved_is_refused(store: Store, paths: list[Path]) -> None:
    """Nothing tells which of the two is the copy."""
    moved = [path.with_name(f"moved {number}") for number, path in enumerate(paths)]
    for path, place in zip(paths, moved, strict=True):
        path.rename(place)
    shutil.rmtree(moved[2])
    shutil.copytree(moved[0], moved[2])
    with pytest.raises(ValueError, match="at two paths"):
        Store.open(moved)


def test_a_process_that_took_a_copy_for_a_volume_goes_on_after_the_repair(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abcde"]
    store = Store.create(places)
    store.add_stream({"name": "S"}).publish("S", b"first")
    shutil.rmtree(places[1])
    shutil.copytree(places[2], places[1])
    (places[2] / "jstream.volume").unlink()
    seen = Store.open(places[:2])
    assert messages(seen) == [b"first"]
    shutil.rmtree(places[1])
    places[1].mkdir()
    assert Store.open(places[0]).repair()["ok"]
    seen.stream("S").publish("S", b"second")
    assert messages(seen) == [b"first", b"second"]
    assert [one["state"] for one in seen.cluster_info()["volumes"]] == ["current"] * 5


def test_volumes_that_were_swapped_are_found_when_they_are_given(store: Store, paths: list[Path]) -> None:
    paths[0].rename(paths[0].with_name("x"))
    paths[1].rename(paths[0])
    paths[0].with_name("x").rename(paths[1])
    seen = Store.open(paths)
    assert [one["state"] for one in seen.cluster_info()["volumes"]] == ["current"] * 3
    seen.stream("S").publish("S", b"second")
    assert messages(seen) == [b"first", b"second"]


@pytest.mark.parametrize("given", [[0, 1, 2], [2, 1], [1], [0]])
def test_a_path_that_is_missing_is_done_without_while_a_majority_is_left(
    store: Store, paths: list[Path], given: list[int]
) -> None:
    shutil.rmtree(paths[0])
    if given == [0]:
        with pytest.raises(NotAStoreError, match=f"{paths[0]} does not exist"):
            Store.open(paths[0])
        return
    seen = Store.open([paths[number] for number in given])
    seen.stream("S").publish("S", b"second")
    assert messages(seen) == [b"first", b"second"]
    shutil.rmtree(paths[1])
    with pytest.raises(NoQuorumError, match=str(paths[1])):
        Store.open(paths[2]).stream("S").publish("S", b"third")


# --- copies of whole stores


def copied(paths: list[Path], tmp_path: Path) -> list[Path]:
    there = tmp_path / "there"
    shutil.copytree(paths[0].parent, there)
    return [there / path.name for path in paths]


@pytest.mark.parametrize("given", [[0], [1], [2, 0], [0, 1, 2]])
def test_a_store_that_was_copied_elsewhere_is_that_copy(
    store: Store, paths: list[Path], tmp_path: Path, given: list[int]
) -> None:
    there, before = copied(paths, tmp_path), listing(*paths)
    copy = Store.open([there[number] for number in given])
    copy.stream("S").publish("S", b"in the copy")
    assert copy.paths == [str(path) for path in there]
    assert messages(copy) == [b"first", b"in the copy"]
    assert listing(*paths) == before
    assert messages(Store.open(paths[0])) == [b"first"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_volume_copied_elsewhere_is_never_led_back_to_the_original(
    store: Store, paths: list[Path], tmp_path: Path, number: int
) -> None:
    there, before = copied(paths, tmp_path), listing(*paths)
    for path in there:
        if path != there[number]:
            shutil.rmtree(path)
    copy = Store.open(there[number], read_only=True)
    assert all(path.startswith(str(tmp_path / "there")) for path in copy.paths)
    with pytest.raises(NoQuorumError):
        Store.open(there[number]).stream("S").publish("S", b"alone")
    assert listing(*paths) == before


def test_a_store_that_was_moved_is_found_by_any_volume(store: Store, paths: list[Path], tmp_path: Path) -> None:
    paths[0].parent.rename(tmp_path / "elsewhere")
    for path in paths:
        assert messages(Store.open(tmp_path / "elsewhere" / path.name)) == [b"first"]


@pytest.mark.parametrize("strays", [[0], [1], [2], [0, 1], [1, 2]])
def test_copies_that_went_separate_ways_are_never_mixed(
    store: Store, paths: list[Path], tmp_path: Path, strays: list[int]
) -> None:
    there = copied(paths, tmp_path)
    for opened, what in ((store, b"ours"), (Store.open(there), b"theirs")):
        for _ in range(3):
            opened.stream("S").publish("S", what)
    for number in strays:
        shutil.rmtree(paths[number])
        there[number].rename(paths[number])
    wanted = b"theirs" if len(strays) > 1 else b"ours"
    seen = Store.open(paths)
    states = [one["state"] for one in seen.cluster_info()["volumes"]]
    assert messages(seen) == [b"first", *[wanted] * 3]
    seen.stream("S").publish("S", b"more")
    assert messages(seen) == [b"first", *[wanted] * 3, b"more"]
    odd = {0, 1, 2} - set(strays) if len(strays) > 1 else set(strays)
    assert [number for number, state in enumerate(states) if state == "foreign"] == sorted(odd)


def test_parts_of_three_copies_make_no_majority(store: Store, paths: list[Path], tmp_path: Path) -> None:
    there = copied(paths, tmp_path)
    shutil.copytree(tmp_path / "there", tmp_path / "third")
    third = [tmp_path / "third" / path.name for path in paths]
    for opened in (store, Store.open(there), Store.open(third)):
        for _ in range(3):
            opened.stream("S").publish("S", b"of its own")
    for number, source in ((1, there), (2, third)):
        shutil.rmtree(paths[number])
        source[number].rename(paths[number])
    before = listing(*paths)
    with pytest.raises(StorageError, match="Nothing has been changed"):
        Store.open(paths).stream("S").publish("S", b"mixed")
    assert {path: data for path, data in listing(*paths).items() if path.name != "lock"} == {
        path: data for path, data in before.items() if path.name != "lock"
    }


# --- disks and hosts


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("number", [0, 2])
def test_one_volume_that_cannot_be_written_is_done_without_and_keeps_its_place(
    store: Store, paths: list[Path], error: int, number: int
) -> None:
    crippled = Store.open(paths, env=failing(error, [paths[number]], UNWRITABLE[error]))
    crippled.stream("S").publish("S", b"second")
    assert messages(crippled) == messages(Store.open(paths)) == [b"first", b"second"]
    assert not [event for event in store.events() if event["kind"] == "retired"]
    store.stream("S").publish("S", b"third")  # whose volumes can all be written again
    assert {one["retired"] for one in store.cluster_info()["volumes"]} == {False}
    assert {one["lag"] for one in store.cluster_info()["volumes"]} == {0}


@pytest.mark.parametrize(
    ("error", "raised"), [(errno.ENOSPC, DiskFullError), (errno.EROFS, ReadOnlyError), (errno.EACCES, ReadOnlyError)]
)
def test_a_majority_that_cannot_be_written_refuses_and_nothing_is_stored(
    store: Store, paths: list[Path], error: int, raised: type[StorageError]
) -> None:
    crippled = Store.open(paths, env=failing(error, paths[:2], UNWRITABLE[error]))
    with pytest.raises(raised):
        crippled.stream("S").append(pa.table({"subject": ["S"], "data": [b"second"]}))
    assert messages(Store.open(paths)) == [b"first"]
    store.stream("S").publish("S", b"second")
    assert messages(store) == [b"first", b"second"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_volume_without_rights_is_done_without(store: Store, paths: list[Path], number: int) -> None:
    seen = Store.open(paths, env=failing(errno.EACCES, [paths[number]]))
    seen.stream("S").publish("S", b"second")
    assert messages(seen) == [b"first", b"second"]
    states = [one["state"] for one in seen.cluster_info()["volumes"]]
    assert states[number] != "current"
    assert states.count("current") == 2


def test_an_only_volume_without_rights_is_an_error_that_names_it(tmp_path: Path) -> None:
    Store.create(tmp_path / "only").close()
    with pytest.raises(ProcessError, match=f"{tmp_path}/only.*Permission denied"):
        Store.open(tmp_path / "only", env=failing(errno.EACCES, [tmp_path / "only"]))


def test_a_store_that_another_host_writes_is_read_and_written_only_after_a_take_over(
    store: Store, paths: list[Path]
) -> None:
    there = replace(REAL, lock_domain=lambda: "another machine")
    theirs = Store.open(paths, env=there)
    assert messages(theirs) == [b"first"]
    before = listing(*paths)
    with pytest.raises(StoreBusyError, match="written from host .*--take-over"):
        theirs.stream("S").publish("S", b"second")
    assert {path: one for path, one in listing(*paths).items() if path.suffix == ".log"} == {
        path: one for path, one in before.items() if path.suffix == ".log"
    }
    Store.open(paths, env=there, take_over=True).stream("S").publish("S", b"second")
    assert [event["kind"] for event in store.events()] == ["took_over"]
    with pytest.raises(StoreBusyError, match="--take-over"):
        store.stream("S").publish("S", b"third")
    assert messages(store) == [b"first", b"second"]


def test_a_volume_without_its_identity_is_not_taken_for_a_place_of_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    Store.create(path).close()
    (path / "jstream.volume").unlink()
    with pytest.raises(NotAStoreError, match=r"no jstream\.volume in it \(but streams/ of one, in which nothing is: "):
        Store.open(path)
    (path / "streams" / "0123456789abcdef0123456789abcdef").mkdir()
    with pytest.raises(NotAStoreError, match=r"no jstream\.volume in it \(but streams/ of one: .*repair --adopt"):
        Store.open(path)
    with pytest.raises(NotAStoreError, match="jstream store create PATH makes one"):
        Store.open(tmp_path)
