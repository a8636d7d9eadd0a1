"""What is said of the copies of a stream: each state, what it is told by, and that equal copies have equal digests."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from harness.block_places import flip
from harness.faults import READING, Call, FaultyFiles
from harness.replicas import replica_states

from storage_core import Store
from storage_core.errors import NotFoundError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.metadata.commands import ChangeVolumes, VolumeChange, Voter
from storage_core.store.environment import REAL
from storage_core.store.replicas.replicas import STATES, Replica, worst
from storage_core.store.stream import Stream
from storage_core.store.volume import reports
from storage_core.store.volume.reports import Report, Reports

BLOCK_COUNT = 4


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("a", "b", "c")]


@pytest.fixture
def store(paths: list[Path]) -> Store:
    """A store on three volumes with a stream ORDERS of four blocks of ten messages."""
    made = Store.create(paths)
    orders = made.add_stream({"name": "ORDERS", "block_max_msgs": 10})
    put(orders, 10 * BLOCK_COUNT)
    return made


def put(stream: Stream, count: int) -> None:
    stream.append(pa.table({"subject": [stream.name] * count, "data": [b"x" * 50] * count}))


def copies(store: Store, name: str = "ORDERS") -> list[Replica]:
    return replica_states(store, store.stream_state(name))


def states(store: Store, name: str = "ORDERS") -> list[str]:
    return [one.state for one in copies(store, name)]


def blocks(store: Store, volume: Path, name: str = "ORDERS") -> list[Path]:
    return sorted((volume / "streams" / store.stream(name).incarnation.hex()).iterdir())


def check_alone(store: Store, number: int, state: str) -> Replica:
    """Check that one copy is in this state and differs from the others, which are current and equal."""
    found = copies(store)
    others = [one for at, one in enumerate(found) if at != number]
    assert found[number].state == state, found[number]
    assert found[number].reason
    assert not found[number].current
    assert all(one.current and not one.lag and not one.damaged_blocks and not one.reason for one in others)
    assert len({one.digest for one in others}) == 1
    assert found[number].digest != others[0].digest
    return found[number]


def test_copies_that_are_equal_are_current_and_have_equal_digests(store: Store, paths: list[Path]) -> None:
    found = copies(store)
    assert [one.path for one in found] == paths
    assert all(one.current and one.state == "current" and one.reason == "" for one in found)
    assert {(one.applied, one.lag) for one in found} == {(store.view().index, 0)}
    assert {(one.block_count, one.damaged_blocks, one.missing_blocks) for one in found} == {(BLOCK_COUNT, 0, 0)}
    assert len({one.digest for one in found}) == 1
    assert len({one.size for one in found}) == 1


def test_a_digest_changes_with_the_stream_and_is_the_same_for_streams_without_blocks(store: Store) -> None:
    before = copies(store)[0].digest
    put(store.stream("ORDERS"), 1)
    assert copies(store)[0].digest != before
    for name in ("EMPTY", "NOTHING"):
        store.add_stream({"name": name})
    empty = [*copies(store, "EMPTY"), *copies(store, "NOTHING")]
    assert len({one.digest for one in empty}) == 1
    assert all(one.current for one in empty)


def test_a_stream_has_copies_on_its_placement_alone(store: Store) -> None:
    put(store.add_stream({"name": "SMALL", "num_replicas": 1}), 5)
    (only,) = copies(store, "SMALL")
    assert (only.state, only.volume_id) == ("current", store.stream_state("SMALL").placement[0])


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_block_of_another_size_is_damage(store: Store, paths: list[Path], size: int) -> None:
    path = blocks(store, paths[1])[0]
    os.truncate(path, size if size >= 0 else path.stat().st_size + 1)
    found = check_alone(store, 1, "damaged")
    assert (found.damaged_blocks, found.missing_blocks, found.block_count) == (1, 0, BLOCK_COUNT - 1)


def test_a_block_that_was_there_and_is_gone_is_damage(store: Store, paths: list[Path]) -> None:
    blocks(store, paths[2])[1].unlink()
    found = check_alone(store, 2, "damaged")
    assert (found.damaged_blocks, found.missing_blocks) == (1, 1)


@pytest.mark.parametrize("with_directory", [True, False])
def test_a_volume_that_has_lost_all_its_blocks_is_missing(
    store: Store, paths: list[Path], with_directory: bool
) -> None:
    directory = blocks(store, paths[0])[0].parent
    shutil.rmtree(directory)
    if with_directory:
        directory.mkdir()
    found = check_alone(store, 0, "missing")
    assert found.missing_blocks == BLOCK_COUNT
    states = [store.cluster_info()["volumes"][0]["state"], store.report()[0]["cluster"]["replicas"][0]["state"]]
    assert [(type(state), state) for state in states] == [(str, "missing")] * 2  # as JSON has them


def test_what_is_no_block_in_a_directory_of_blocks_is_no_block(store: Store, paths: list[Path]) -> None:
    path = blocks(store, paths[0])[0]
    path.rename(path.with_suffix(".repair"))
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / f"{'0' * 32}.blk").mkdir()
    assert check_alone(store, 0, "damaged").damaged_blocks == 1


def test_a_flipped_bit_is_damage_from_the_moment_it_was_read(store: Store, paths: list[Path]) -> None:
    flip(blocks(store, paths[1])[2])
    assert not store.verify()["ok"]
    assert check_alone(store, 1, "damaged").damaged_blocks == 1


def test_another_block_of_the_same_name_and_size_is_damage_once_it_was_read(store: Store, paths: list[Path]) -> None:
    first, second = blocks(store, paths[1])[:2]
    assert first.stat().st_size == second.stat().st_size
    shutil.copyfile(second, first)
    assert not store.verify()["ok"]
    assert check_alone(store, 1, "damaged").damaged_blocks == 1


def test_what_a_reader_reported_is_damage_until_the_copy_was_read_as_a_whole(store: Store, paths: list[Path]) -> None:
    stream, volumes = store.stream_state("ORDERS"), store.volumes()
    block_id = bytes(stream.blocks.rows["block_id"][1])
    found = Report(stream.incarnation, block_id, volumes[2].volume_id, 11, 21, 128, "bad checksum", REAL.now_ns())
    reports.leave([Reports(OS_FILES, paths[0])], found)
    assert check_alone(store, 2, "damaged").damaged_blocks == 1
    store.verify()
    assert states(store) == ["current"] * 3


def test_a_copy_that_a_reader_missed_while_its_volume_was_away_is_whole_when_it_is_back(
    store: Store, paths: list[Path]
) -> None:
    stream, volumes = store.stream_state("ORDERS"), store.volumes()
    block_id = bytes(stream.blocks.rows["block_id"][1])
    missed = Report(
        stream.incarnation, block_id, volumes[2].volume_id, 11, 21, 0, reports.FILE_IS_MISSING, REAL.now_ns()
    )
    reports.leave([Reports(OS_FILES, paths[0])], missed)
    assert states(store) == ["current"] * 3


def test_the_scrub_that_lies_longest_back_counts_and_none_until_all_was_read(store: Store) -> None:
    assert {one.last_scrub_ns for one in copies(store)} == {0}
    store.verify()
    before = [one.last_scrub_ns for one in copies(store)]
    assert all(before)
    put(store.stream("ORDERS"), 1)
    assert {one.last_scrub_ns for one in copies(store)} == {0}
    store.verify()
    assert all(new > old for new, old in zip([one.last_scrub_ns for one in copies(store)], before, strict=True))


def _gone(store: Store, path: Path) -> None:
    shutil.rmtree(path)


def _blank(store: Store, path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _a_file(store: Store, path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a directory")


def _of_another_store(store: Store, path: Path) -> None:
    shutil.rmtree(path)
    Store.create(path).close()


def _bad_identity(store: Store, path: Path) -> None:
    flip(path / "jstream.volume", 20)


def _no_metadata(store: Store, path: Path) -> None:
    shutil.rmtree(path / "meta")


def _rolled_back(store: Store, path: Path) -> None:
    shutil.copytree(path, path.with_name("older"))
    for _ in range(3):
        put(store.stream("ORDERS"), 1)
    shutil.rmtree(path)
    path.with_name("older").rename(path)


def _behind(store: Store, path: Path) -> None:
    path.rename(path.with_name("away"))
    put(store.stream("ORDERS"), 1)
    path.with_name("away").rename(path)


def _failed(store: Store, path: Path) -> None:
    with store.session() as session:
        session.failed(session.volumes[0].volume_id, OSError(errno.EIO, os.strerror(errno.EIO), str(path)))


@pytest.mark.parametrize(
    ("happens", "state"),
    [
        (_gone, "missing"),
        (_blank, "missing"),
        (_a_file, "missing"),
        (_of_another_store, "foreign"),
        (_bad_identity, "damaged"),
        (_no_metadata, "damaged"),
        (_rolled_back, "rolled_back"),
        (_behind, "behind"),
        (_failed, "retired"),
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_a_volume_says_what_happened_to_it(
    store: Store, paths: list[Path], happens: Callable[[Store, Path], None], state: str, anew: bool
) -> None:
    happens(store, paths[0])
    seen = Store.open(paths[1], read_only=True) if anew else store
    found = copies(seen)
    assert [one.state for one in found] == [state, "current", "current"]
    assert found[0].reason
    assert found[1].digest == found[2].digest
    assert found[1].applied == found[2].applied == seen.view().index
    if state in ("missing", "foreign"):
        assert (found[0].block_count, found[0].damaged_blocks) == (0, 0)
        assert found[0].lag == seen.view().index


@pytest.mark.parametrize("looks", [1, 1_000_000])
@pytest.mark.parametrize("number", [1, 2])
def test_volumes_that_are_written_while_they_are_looked_at_are_current(
    store: Store, paths: list[Path], looks: int, number: int
) -> None:
    """Another process appends whenever the log of a volume is opened, and those before it have been read."""
    seen, left = FaultyFiles(OS_FILES), [looks]
    writer = Store.open(paths, lock_timeout_s=0.0)

    def append_between(call: Call) -> int:
        if call.operation == "list" and call.path == paths[number] / "meta" and left[0]:
            left[0] -= 1
            with suppress(StoreBusyError):  # at last they are looked at under the locks
                put(writer.stream("ORDERS"), 1)
                put(writer.stream("ORDERS"), 1)
        return 0

    reader = Store.open(paths, env=replace(REAL, files=seen))
    seen.counted, seen.judge = READING, append_between
    standings = reader.metadata.statuses(0.0)
    assert left[0] < looks
    assert {one.state for one in standings.values()} == {"current"}


def test_a_volume_that_was_away_is_behind_by_what_it_missed(store: Store, paths: list[Path]) -> None:
    paths[2].rename(paths[2].with_name("away"))
    before = store.view().index
    put(store.stream("ORDERS"), 20)
    paths[2].with_name("away").rename(paths[2])
    found = copies(store)[2]
    assert (found.state, found.applied, found.lag) == ("behind", before, store.view().index - before)
    assert (found.damaged_blocks, found.missing_blocks, found.block_count) == (0, 2, BLOCK_COUNT)


@pytest.mark.parametrize("read_only", [False, True])
def test_without_a_majority_no_copy_is_called_current(store: Store, paths: list[Path], read_only: bool) -> None:
    paths[0].rename(paths[0].with_name("away"))
    put(store.stream("ORDERS"), 1)
    paths[0].with_name("away").rename(paths[0])
    for path in paths[1:]:
        shutil.rmtree(path)
    seen = Store.open(paths[0], read_only=read_only)
    assert states(seen) == ["behind", "missing", "missing"]
    assert "1 of 3 volumes can vote, 2 are needed" in copies(seen)[0].reason
    info = seen.cluster_info()
    assert info["leader"] is None
    assert info["volumes"][0]["state"] == "behind"
    assert seen.stream("ORDERS").info()["cluster"]["leader"] is None


def test_a_healthy_look_lists_each_directory_once_and_opens_no_block(store: Store, paths: list[Path]) -> None:
    files = FaultyFiles(OS_FILES)
    seen = Store.open(paths, env=replace(REAL, files=files))
    files.counted, files.calls = READING, []
    replica_states(seen, seen.stream_state("ORDERS"))
    directory = store.stream("ORDERS").incarnation.hex()
    assert sum(one.operation == "list" and one.path.name == directory for one in files.calls) == len(paths)
    assert not [one for one in files.calls if one.operation in ("open", "read") and one.path.suffix == ".blk"]


def test_a_report_of_all_streams_opens_no_block_and_has_the_bounds_of_blocks_for_times(
    store: Store, paths: list[Path]
) -> None:
    files = FaultyFiles(OS_FILES)
    seen = Store.open(paths, env=replace(REAL, files=files))
    files.counted, files.calls = READING, []
    (found,) = seen.report()
    assert not [one for one in files.calls if one.operation in ("open", "read") and one.path.suffix == ".blk"]
    exact = store.stream("ORDERS").info()
    assert {key: value for key, value in found.items() if key != "state"} == {
        key: value for key, value in exact.items() if key != "state"
    }
    assert found["state"] == exact["state"]  # times of messages that are stored as they come rise
    assert seen.report(["ORDERS"], exact_times=True) == [exact]
    with pytest.raises(NotFoundError, match="ORDRES"):
        seen.report(["ORDRES"])


def test_a_change_of_volumes_in_progress_is_shown_with_its_learners(store: Store, paths: list[Path]) -> None:
    learner = Voter(b"L" * 16, b"I" * 16, "d", learner=True)
    with store.session() as session:
        change = VolumeChange("add", (learner.volume_id,), (), 1_000_000_000)
        session.propose(ChangeVolumes((*session.state.voters, learner), change))
    info = Store.open(paths[0], read_only=True).cluster_info()
    assert (info["voters"], info["quorum"]) == (3, 2)
    assert info["change"] == {
        "kind": "add", "added": [learner.volume_id.hex()], "removed": [], "started": "1970-01-01T00:00:01.000000000Z"
    }  # fmt: skip
    new = info["volumes"][3]
    assert (new["learner"], new["voter"], new["state"], new["path"]) == (
        True,
        False,
        "missing",
        str(paths[0].parent / "d"),
    )


def test_the_cluster_shows_of_each_volume_the_worst_of_its_copies(store: Store, paths: list[Path]) -> None:
    put(store.add_stream({"name": "OTHER"}), 3)
    blocks(store, paths[1])[0].unlink()
    info = store.cluster_info()
    assert [one["state"] for one in info["volumes"]] == ["current", "damaged", "current"]
    assert [one["blocks"] for one in info["volumes"]] == [BLOCK_COUNT + 1, BLOCK_COUNT, BLOCK_COUNT + 1]
    assert info["volumes"][1]["reason"].startswith("stream ORDERS: ")
    assert (info["voters"], info["quorum"], info["index"], info["change"]) == (3, 2, store.view().index, None)
    assert info["leader"] == info["volumes"][0]["name"]


def test_every_state_has_its_rank() -> None:
    assert [worst([one, "current"]) for one in STATES] == list(STATES)
    assert worst([]) == "current"
    assert worst(["behind", "foreign", "damaged"]) == "foreign"


def test_a_report_of_all_streams_is_made_from_one_look(store: Store) -> None:
    for number in range(20):
        store.add_stream({"name": f"S{number:02}"})
    found = store.report()
    assert [one["config"]["name"] for one in found] == ["ORDERS", *(f"S{number:02}" for number in range(20))]
    assert {one["state"] for info in found for one in info["cluster"]["replicas"]} == {"current"}
    info = store.stream("ORDERS").info()
    assert {key: info[key] for key in ("config", "cluster")} == {key: found[0][key] for key in ("config", "cluster")}


def test_notebooks_show_the_states_of_replicas(store: Store, paths: list[Path]) -> None:
    shutil.rmtree(paths[1])
    for shown in (store._repr_html_(), store.stream("ORDERS")._repr_html_()):
        assert f"{paths[0]}: current" in shown
        assert f"{paths[1]}: missing" in shown
