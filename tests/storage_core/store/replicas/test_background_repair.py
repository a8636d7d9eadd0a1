"""Maintenance of copies: what readers reported and what volumes missed is mended on the way, without anybody asking."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness.block_places import block_files, flip
from harness.replicas import replica_states

from storage_core.errors import UnavailableError
from storage_core.files import OS_FILES, Files
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.replicas import background_repair
from storage_core.store.store import Store

MESSAGES = 12


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def now_ns(self) -> int:
        return self.now


class CountingFiles:
    """Files that count listings of directories."""

    def __init__(self, inner: Files) -> None:
        self._inner, self.listed = inner, list[Path]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def list_directory(self, path: Path) -> list[str]:
        self.listed.append(path)
        return self._inner.list_directory(path)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        # A block a message: none is merged with its neighbours.
        stream = store.add_stream({"name": "S", "subjects": ["s.>"], "block_max_msgs": 1})
        for number in range(MESSAGES):
            stream.publish("s.a", b"message %d " % number * 20)
    return paths


def states(paths: list[Path]) -> list[str]:
    with Store.open(paths, read_only=True) as store:
        return [one.state for one in replica_states(store, store.stream_state("S"))]


def held(store: Store) -> list[int]:
    masks: list[int] = store.stream_state("S").blocks.rows["holders"].tolist()
    return masks


def test_damage_that_a_read_met_is_repaired_by_the_next_commit(paths: list[Path]) -> None:
    clock = Clock()
    with Store.open(paths, env=replace(REAL, now_ns=clock.now_ns)) as store:
        stream = store.stream("S")
        for one in list(store.plan(ReadRequest(("S",))).slices)[::3]:
            path = Path(one.paths[0])  # the copy that a read begins with
            flip(path, path.stat().st_size // 2)
        stream.read().read_all()
        stream.read().read_all()
        reported = list(paths[0].parent.glob("*/reports/*.report"))
        assert len(reported) == 4
        clock.now += 2 * background_repair.LOOK_EVERY_NS
        stream.publish("s.a", b"next")
        assert list(paths[0].parent.glob("*/reports/*.report")) == []
        kinds = [one["kind"] for one in store.events()]
        assert kinds.count("repaired") == 4


def test_damage_that_a_scrub_found_is_not_shown_any_more_once_a_commit_has_mended_it(paths: list[Path]) -> None:
    clock = Clock()
    for path in block_files(paths[0])[:2]:
        flip(path, path.stat().st_size // 2)
    with Store.open(paths, env=replace(REAL, now_ns=clock.now_ns)) as store:
        assert len(store.scrub()["damage"]) == 2
        assert states(paths) == ["damaged", "current", "current"]
        clock.now += 2 * background_repair.LOOK_EVERY_NS
        store.stream("S").publish("s.a", b"next")
        assert [one["kind"] for one in store.events()].count("repaired") == 2
    assert states(paths) == ["current", "current", "current"]


def test_a_report_that_is_wrong_is_removed_and_no_more(paths: list[Path]) -> None:
    from storage_core.store.volume.reports import Report

    with Store.open(paths) as store:
        state = store.stream_state("S")
        # Not a copy that a slow disk kept out of its commit: that one is made anew.
        row = next(row for row in state.blocks.rows if row["holders"] == 0b111)
        (path,) = paths[0].glob(f"streams/*/{bytes(row['block_id']).hex()}.blk")
        before = path.stat().st_mtime_ns
        for block_id in (bytes(row["block_id"]), b"UNKNOWN-BLOCK-ID"):
            told = Report(
                state.incarnation, block_id, store.volumes()[0].volume_id, 1, 2, 0, "an executor was wrong", 1
            )
            assert store.volumes()[1].reports.put(told)
    with Store.open(paths) as store:
        store.stream("S").publish("s.a", b"x")
        assert list(paths[1].glob("reports/*")) == []
        (event,) = store.events()  # a disk that errs at times is told of, and a copy that is gone
        assert (event["kind"], event["stream"], event["count"]) == ("damaged", "S", 2)
    assert path.stat().st_mtime_ns == before


def test_what_a_volume_missed_is_fetched_by_later_commits(paths: list[Path], tmp_path: Path) -> None:
    """Away for more blocks than one session mends, with a stream that was made meanwhile."""
    shutil.move(paths[2], tmp_path / "away")
    with Store.open(paths[:2]) as store:
        for number in range(background_repair.COPIES_PER_SESSION_MAX + 3):
            store.stream("S").publish("s.a", b"missed %d" % number)
        store.add_stream({"name": "T", "subjects": ["t.>"]}).publish("t.a", b"made meanwhile")
        assert sum(mask == 0b011 for mask in held(store)) == background_repair.COPIES_PER_SESSION_MAX + 3
    shutil.move(tmp_path / "away", paths[2])
    assert states(paths) == ["current", "current", "behind"]
    with Store.open(paths) as store:
        store.stream("S").publish("s.a", b"one more")
        store.stream("S").publish("s.a", b"and more")
        assert set(held(store)) == {0b111}
        assert store.verify()["ok"]
        fetched = [one for one in store.events() if one["kind"] == "repaired" and one["before"] == "behind"]
        assert fetched and fetched[0]["stream"] == "S"
    assert states(paths) == ["current"] * 3


def test_maintain_fetches_everything_at_once(paths: list[Path], tmp_path: Path) -> None:
    shutil.move(paths[2], tmp_path / "away")
    with Store.open(paths[:2]) as store:
        for number in range(3 * background_repair.COPIES_PER_SESSION_MAX):
            store.stream("S").publish("s.a", b"missed %d" % number)
    shutil.move(tmp_path / "away", paths[2])
    with Store.open(paths) as store:
        store.maintain()
    assert states(paths) == ["current"] * 3


@pytest.mark.parametrize("gone", ["directory", "content"])
def test_maintain_makes_no_volume_of_what_may_be_a_disk_that_is_not_mounted(paths: list[Path], gone: str) -> None:
    shutil.rmtree(paths[1])
    if gone == "content":
        paths[1].mkdir()
    with Store.open([paths[0], paths[2]]) as store:
        store.maintain()
        assert not (paths[1] / "jstream.volume").exists()
        assert store.repair()["ok"]
    assert states(paths) == ["current"] * 3


def test_older_messages_that_a_replica_lost_are_noticed_at_open_and_mended_by_maintenance(paths: list[Path]) -> None:
    """The drift of the NATS report: the metadata of the replica is as it was, its last sequence too."""
    with Store.open(paths, read_only=True) as store:
        stream = store.stream_state("S")
        names = [f"{bytes(row['block_id']).hex()}.blk" for row in stream.blocks.rows[: MESSAGES // 2]]
    for name in names:
        next(paths[1].glob(f"streams/*/{name}")).unlink()
    assert states(paths) == ["current", "damaged", "current"]
    with Store.open(paths) as store:
        [event] = [one for one in store.events() if one["kind"] == "drift"]
        assert (event["stream"], event["volume"]) == ("S", store.volumes()[1].name)
        assert "of 12 blocks compared 6 missing" in event["reason"] and event["after"] == "damaged"
        assert store.stream("S").read().read_all().num_rows == MESSAGES
    with Store.open(paths) as store:
        assert [one["kind"] for one in store.events()].count("drift") == 1, "told once"
        store.maintain()
    assert states(paths) == ["current"] * 3


def test_a_commit_without_anything_to_mend_lists_no_directories_of_blocks_or_reports(paths: list[Path]) -> None:
    files, clock = CountingFiles(OS_FILES), Clock()
    env: Environment = replace(REAL, files=files, now_ns=clock.now_ns)  # type: ignore[arg-type]
    with Store.open(paths, env=env) as store:
        store.stream("S").publish("s.a", b"first")
        files.listed.clear()
        store.stream("S").publish("s.a", b"second")
        assert [path for path in files.listed if path.name != "meta"] == []


def test_a_copy_that_cannot_be_mended_rests_before_it_is_tried_again(paths: list[Path]) -> None:
    """The same block is bad everywhere, and one volume that may have it is away."""
    shutil.rmtree(paths[2])
    target = block_files(paths[0])[3]
    for volume in paths[:2]:
        flip(volume / target.relative_to(paths[0]), target.stat().st_size // 2)
    clock = Clock()
    with Store.open(paths[:2], env=replace(REAL, now_ns=clock.now_ns)) as store:
        with pytest.raises(UnavailableError):  # no loss yet, whatever the reader wants of losses
            store.stream("S").read(on_data_loss="continue").read_all()
        for _ in range(3):
            clock.now += 2 * background_repair.LOOK_EVERY_NS
            store.stream("S").publish("s.a", b"x")
        assert store.stream("S").info()["state"]["lost_ranges"] == []
        assert list(paths[0].parent.glob("*/reports/*")), "they stay until it is settled"
        report = store.repair()
        assert report["lost"] == [] and [str(paths[2]) in place for place in report["unread"][0]["may_be_on"]] == [True]
        accepted = store.repair(accept_loss=True)
        assert accepted["lost"] == [{"stream": "S", **_range_of(store, target)}], "now it is gone for good"
    assert states(paths) == ["current"] * 3


def _range_of(store: Store, path: Path) -> dict[str, int]:
    [gone] = store.stream("S").info()["state"]["lost_ranges"]
    return {"first": gone[0], "end": gone[1]}
