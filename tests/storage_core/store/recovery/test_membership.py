"""Volumes added, removed and replaced: nothing is lost on the way, whatever step is the last before a kill.

FAULTS scenario 16 for the embedded store: one change at a time, acked after a quorum; a removed volume that returns.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness.faults import FaultyFiles, end_at
from harness.replicas import replica_states
from harness.simulated_disk import ProcessEnded
from harness.templates import Template

from storage_core.errors import AlreadyExistsError, NotAStoreError, RequirementError, StorageError
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, one_after_another
from storage_core.store.store import Store

MESSAGES = 8
EXPECTED = [b"message %d " % number * 20 for number in range(MESSAGES)]


def make(root: Path, count: int, replicas: int | None = None) -> list[Path]:
    paths = [root / f"volume-{number}" for number in range(count)]
    with Store.create(paths) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"], "num_replicas": replicas or count})
        for message in EXPECTED:
            stream.publish("s.a", message)
    return paths


def contents(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


def check(paths: list[Path], voters: int, replicas: int) -> None:
    """Check that the store has these volumes and no other, all current and equal, and lost nothing."""
    with Store.open(paths) as store:
        state = store.view().state
        assert state.volume_change is None
        assert [one.learner for one in state.voters] == [False] * voters
        assert {str(one.path) for one in store.volumes()} == {str(one) for one in paths}
        found = replica_states(store, store.stream_state("S"))
        assert [one.state for one in found] == ["current"] * replicas, [one.reason for one in found]
        assert len({one.digest for one in found}) == 1
        assert store.verify()["ok"]
        assert contents(store)[:MESSAGES] == EXPECTED
        store.stream("S").publish("s.a", b"more")
    for path in paths:
        with Store.open(path, read_only=True) as store:
            assert {str(one.path) for one in store.volumes()} == {str(one) for one in paths}


@pytest.mark.parametrize("before", [1, 3])
def test_two_volumes_are_added(tmp_path: Path, before: int) -> None:
    paths = make(tmp_path, before)
    new = [tmp_path / "new-a", tmp_path / "new-b"]
    new[0].mkdir()
    with Store.open(paths) as store:
        store.add_volumes([str(one) for one in new])
        kinds = [one["kind"] for one in store.events()]
        assert kinds == ["volume_added", "volume_added"]
        assert len(store.stream_state("S").placement) == before, "streams keep their replicas"
    check(paths + new, before + 2, before)


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_of_a_stream_are_changed_once_there_are_volumes_for_them(tmp_path: Path, replicas: int) -> None:
    paths = make(tmp_path, 3, 1 if replicas == 3 else 3)
    with Store.open(paths) as store:
        store.edit_stream({"name": "S", "num_replicas": replicas})
        assert store.stream("S").info()["config"]["num_replicas"] == replicas
        with pytest.raises(ValueError, match="the store has 3"):
            store.edit_stream({"name": "S", "num_replicas": 5})
    check(paths, 3, replicas)


@pytest.mark.parametrize("harm", ["behind", "damaged"])
def test_fewer_replicas_are_whole_ones_before_the_others_go(tmp_path: Path, harm: str) -> None:
    """The first volume of the placement stays, and lacks blocks that two others have."""
    paths = make(tmp_path, 3)
    more = [b"%d" % number for number in range(20)]
    if harm == "behind":
        paths[0].rename(tmp_path / "away")
    with Store.open(paths[1:]) as store:
        for message in more:
            store.stream("S").publish("s.a", message)
    if harm == "behind":
        (tmp_path / "away").rename(paths[0])
    else:
        for block in paths[0].glob("streams/*/*.blk"):
            block.write_bytes(block.read_bytes()[:-100])
    with Store.open(paths) as store:
        store.edit_stream({"name": "S", "num_replicas": 1})
        (kept,) = store.stream_state("S").placement
        store.remove_volumes([one.name for one in store.volumes() if one.volume_id != kept])
    for path in paths[1:]:
        shutil.rmtree(path)
    with Store.open(paths[0]) as store:
        assert contents(store) == [*EXPECTED, *more]
        assert store.verify()["ok"]


def test_fewer_replicas_are_on_volumes_that_are_there(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    shutil.rmtree(paths[0])
    with Store.open(paths[1:]) as store:
        store.edit_stream({"name": "S", "num_replicas": 1})
        assert store.stream_state("S").placement == (store.volumes()[1].volume_id,)
        assert contents(store) == EXPECTED


def test_fewer_replicas_are_refused_while_a_block_is_whole_nowhere(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    name = next(paths[0].glob("streams/*/*.blk")).relative_to(paths[0])
    for path in paths:
        (path / name).unlink()
    with Store.open(paths) as store:
        with pytest.raises(RequirementError, match="repair it first"):
            store.edit_stream({"name": "S", "num_replicas": 1})
        assert len(store.stream_state("S").placement) == 3


def test_two_volumes_are_removed_and_what_streams_kept_there_is_moved(tmp_path: Path) -> None:
    paths = make(tmp_path, 5, 3)
    with Store.open(paths) as store:
        volumes = {one.volume_id: one for one in store.volumes()}
        kept = [volumes[one] for one in store.stream_state("S").placement]
        store.remove_volumes([kept[0].name, kept[1].name])
        gone = [one.path for one in kept[:2]]
        assert [one["kind"] for one in store.events()] == ["volume_removed"] * 2
    left = [path for path in paths if path not in gone]
    check(left, 3, 3)
    assert (gone[0] / "jstream.volume").exists(), "its files are left where they are"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("lost", [False, True])
def test_a_volume_is_replaced_also_when_it_is_lost(tmp_path: Path, number: int, lost: bool) -> None:
    paths = make(tmp_path, 3)
    with Store.open(paths) as store:
        name = store.volumes()[number].name
    if lost:
        shutil.rmtree(paths[number])
    left = [path for path in paths if path != paths[number]]
    with Store.open(left) as store:
        store.replace_volume(name, tmp_path / "new")
        assert store.events()[-1]["kind"] == "volume_replaced"
    check([*left, tmp_path / "new"], 3, 3)


def test_who_changed_the_volumes_looks_at_those_that_are_left(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    with Store.open(paths) as store:
        shutil.rmtree(paths[2])
        store.replace_volume(store.volumes()[2].name, str(tmp_path / "new"))
        assert [str(one) for one in store.paths] == [str(one) for one in [*paths[:2], tmp_path / "new"]]
        assert store.verify()["ok"]
        more = [tmp_path / "new-a", tmp_path / "new-b"]
        store.add_volumes([str(one) for one in more])
        store.remove_volumes([one.name for one in store.volumes()[3:]])
        for path in more:
            shutil.rmtree(path)
        assert len(store.paths) == 3
        assert store.verify()["ok"]
    check([*paths[:2], tmp_path / "new"], 3, 3)


def test_the_only_volume_is_replaced(tmp_path: Path) -> None:
    paths = make(tmp_path, 1)
    with Store.open(paths) as store:
        store.replace_volume(store.volumes()[0].name, tmp_path / "new")
    check([tmp_path / "new"], 1, 1)


def test_a_removed_volume_that_comes_back_is_none_of_the_store(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    with Store.open(paths) as store:
        store.replace_volume(store.volumes()[2].name, tmp_path / "new")
    with Store.open(paths[:2]) as store:
        store.stream("S").publish("s.a", b"after it went")
    current = [*paths[:2], tmp_path / "new"]
    with pytest.raises(NotAStoreError, match="was removed from store"):
        Store.open(paths[2])
    for given in ([paths[2], paths[0]], [*paths, tmp_path / "new"]):
        with Store.open(given) as store:
            assert {str(one.path) for one in store.volumes()} == {str(one) for one in current}
            assert contents(store)[-1] == b"after it went"
            assert store.repair()["ok"]
    with Store.open(current) as store, pytest.raises(AlreadyExistsError, match="holds a volume already"):
        store.replace_volume(store.volumes()[0].name, paths[2])


def test_what_is_no_change_of_volumes_is_refused(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    other = tmp_path / "other"
    Store.create(other)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_bytes(b"x")
    a, b, c, d = (tmp_path / name for name in "abcd")
    with Store.open(paths) as store:
        names = [one.name for one in store.volumes()]
        for given, error, why in (
            ([a], ValueError, "add two at a time"),
            ([a, b, c, d], ValueError, "7 are too many"),
            ([a, a], ValueError, "given twice"),
            ([a, paths[1]], ValueError, "is a volume of the store already"),
            ([a, paths[1] / "below"], ValueError, "lie within each other"),
            ([a, other], AlreadyExistsError, "holds a volume already"),
            ([a, full], AlreadyExistsError, "is not empty: file"),
            ([a, tmp_path / "nowhere" / "deep"], ValueError, "is not a directory"),
        ):
            with pytest.raises(error, match=why):
                store.add_volumes(given)
        refused: tuple[tuple[list[str], type[Exception], str], ...] = (
            (names[:1], ValueError, "remove two at a time"),
            (names, ValueError, "without 3 of 3"),
            ([names[0], names[0]], ValueError, "named twice"),
            (["00" * 16, names[0]], ValueError, "is none of the store's"),
            (names[:2], RequirementError, "stream 'S' has num_replicas 3, and 1 volumes would be left"),
        )
        for listed, wrong, why in refused:
            with pytest.raises(wrong, match=why):
                store.remove_volumes(listed)
        with pytest.raises(ValueError, match="is none of the store's"):
            store.replace_volume("volume-1", a)
        with pytest.raises(ValueError, match="is a volume of the store already"):
            store.replace_volume(names[0], paths[1])
        assert store.view().state.volume_change is None
        assert not a.exists()
    check(paths, 3, 3)


def test_a_change_of_volumes_that_is_refused_leaves_no_directories(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    new, kept = [tmp_path / "a", tmp_path / "b"], tmp_path / "kept"
    kept.mkdir()
    with Store.open(paths) as store:
        paths[2].rename(tmp_path / "away")
        for added in (new, [new[0], kept]):
            with pytest.raises(RequirementError, match="repair it first, then change the volumes"):
                store.add_volumes(added)
        assert not any(path.exists() for path in new) and kept.is_dir()
        (tmp_path / "away").rename(paths[2])
        store.add_volumes([new[0], kept])
    check([*paths, new[0], kept], 5, 3)


def test_a_second_change_waits_for_the_first_which_may_be_taken_back(tmp_path: Path) -> None:
    """The new disk fails before it can vote: it is named to be removed, and the store is as it was."""
    paths = make(tmp_path, 3)
    new = tmp_path / "new"
    with Store.open(paths) as store:
        old = store.volumes()[1].name
    files = FaultyFiles(OS_FILES, lambda call: 5 if str(call.path).startswith(f"{new}/") else 0)
    with Store.open(paths, env=replace(REAL, files=files)) as store:
        with pytest.raises(StorageError):
            store.replace_volume(old, new)
        change = store.view().state.volume_change
        assert change is not None and change.kind == "replace"
        with pytest.raises(RequirementError, match="under way"):
            store.add_volumes([tmp_path / "a", tmp_path / "b"])
        assert store.stream("S").publish("s.a", b"meanwhile").sequence == MESSAGES + 1
        report = store.repair()
        assert not report["ok"] and any("cannot continue" in one["reason"] for one in report["damage"])
        store.remove_volumes([change.added[0].hex()])
        assert store.view().state.volume_change is None
    check(paths, 3, 3)


@pytest.mark.parametrize("by", ["the same command", "repair", "maintain"])
def test_a_replacement_that_was_killed_anywhere_goes_on(tmp_path: Path, by: str) -> None:
    counting = FaultyFiles(OS_FILES)
    root = tmp_path / "store"
    root.mkdir()
    paths = make(root, 3)
    made = Template(root)
    _replace(root, paths, counting)
    tried = 0
    for number in range(0, len(counting.calls), {"the same command": 9, "repair": 17, "maintain": 13}[by]):
        made.put_back()
        with pytest.raises(ProcessEnded):
            _replace(root, paths, FaultyFiles(OS_FILES, end_at(number)))
        with Store.open(paths) as store:
            assert contents(store) == EXPECTED
            if by == "repair":
                store.repair()
            elif by == "maintain":
                store.maintain()
            done = any(one["kind"] == "volume_replaced" for one in store.events())
            if not done:  # the entry was never written, or it is the command that has to go on
                try:
                    store.replace_volume(store.volumes()[1].name, root / "new")
                except AlreadyExistsError:
                    shutil.rmtree(root / "new")  # cannot be: nothing is made before the entry but an empty directory
                    raise
        check([paths[0], paths[2], root / "new"], 3, 3)
        tried += 1
    print(
        f"replacements killed at {tried} of {len(counting.calls)} calls that change something, and gone on with by {by}"
    )


def _replace(root: Path, paths: list[Path], files: FaultyFiles) -> None:
    with Store.open(paths, env=replace(REAL, files=files, parallel=one_after_another)) as store:
        store.replace_volume(store.volumes()[1].name, root / "new")


def test_a_new_term_begins_when_the_leader_steps_down(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    with Store.open(paths) as store:
        before = store.cluster_info()["term"]
        store.step_down()
        assert store.cluster_info()["term"] == before + 1
        store.stream("S").publish("s.a", b"x")
        assert store.cluster_info()["term"] == before + 1
