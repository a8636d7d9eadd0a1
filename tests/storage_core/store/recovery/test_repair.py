"""Repair of a whole store: whatever one volume lost, it has it again afterwards, from the others, and all are equal.

FAULTS scenarios 3, 4, 5 and 7 for what follows once the damage is found, and 17 for what no volume has any more.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.block_places import block_directory, block_files, flip
from harness.replicas import replica_states

from storage_core.errors import DataLossError, NoQuorumError
from storage_core.store.store import Store

MESSAGES = 20


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Return the three volumes of a store with a stream, some snapshots, and a log behind them."""
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    store = Store.create(paths, snapshot_every=8)
    stream = store.add_stream({"name": "S", "subjects": ["s.>"], "block_max_msgs": 1})  # full ones: nothing merges them
    for number in range(MESSAGES):
        stream.publish("s.a", b"message %d " % number * 40)
    return paths


def states(paths: list[Path]) -> list[str]:
    """Return what a process that has just begun says of the replicas."""
    info = Store.open(paths, read_only=True).stream("S").info()
    return [one["state"] for one in info["cluster"]["replicas"]]


def test_a_page_of_zeros_in_the_log_is_found_and_repaired(tmp_path: Path) -> None:
    """It looks as if it had never been written: no record there is bad, and those behind it are whole."""
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        stream = store.add_stream({"name": "S"})
        for number in range(4):
            stream.add_consumer({"name": f"c{number}"})
    (log,) = (paths[1] / "meta").glob("*.log")
    whole, kept = log.read_bytes(), tmp_path / "kept"
    shutil.copytree(paths[1], kept)
    pages = [at for at in range(3 * 4096, len(whole), 4096) if any(whole[at : at + 4096])]
    damaged_count = 0
    for at in pages:
        shutil.rmtree(paths[1])
        shutil.copytree(kept, paths[1])
        log.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
        state = states(paths)[1]
        assert Store.open(paths).verify()["ok"] == (state == "current"), (at, state)
        damaged_count += state != "current"
        assert Store.open(paths).repair()["ok"], at
        assert states(paths) == ["current"] * 3, at
        assert Store.open(paths).verify()["ok"], at
    assert damaged_count >= 5  # other pages had votes that no longer count


def test_damaged_metadata_files_that_were_replaced_are_said_to_be_repaired(tmp_path: Path) -> None:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        stream = store.add_stream({"name": "S"})
        (log,) = (paths[0] / "meta").glob("*.log")
        damaged = bytearray(log.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        log.write_bytes(damaged)
    with Store.open(paths) as store:
        store.stream(stream.name).publish("S", b"goes on, from a snapshot of another volume")
        report = store.repair()
        assert [place["repaired"] for place in report["damage"]] == [True]
        events = [event for event in store.events() if event["volume"] == report["damage"][0]["volume"]]
        assert [event["kind"] for event in events[-2:]] == ["damaged", "repaired"]
        assert events[-1]["reason"] == "damaged metadata files were replaced"


def contents(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


EXPECTED = [b"message %d " % number * 40 for number in range(MESSAGES)]


def check_current(paths: list[Path]) -> None:
    """Check that all replicas are current and equal, byte for byte, and that verification finds nothing."""
    with Store.open(paths) as store:
        replicas = replica_states(store, store.stream_state("S"))
        assert [one.state for one in replicas] == ["current"] * len(paths), [one.reason for one in replicas]
        assert len({one.digest for one in replicas}) == 1
        assert store.verify() == {"ok": True, "checked_blocks": len(block_files(paths[0])) * len(paths), "damage": []}
        named = [[(path.name, path.read_bytes()) for path in block_files(volume)] for volume in paths]
        assert all(one == named[0] for one in named)


def lose_directory(volume: Path) -> None:
    shutil.rmtree(volume)


def go_blank(volume: Path) -> None:
    shutil.rmtree(volume)
    volume.mkdir()


def hurt_identity(volume: Path) -> None:
    flip(volume / "jstream.volume", 100)


def lose_identity(volume: Path) -> None:
    (volume / "jstream.volume").unlink()


def lose_metadata(volume: Path) -> None:
    shutil.rmtree(volume / "meta")


def hurt_log(volume: Path) -> None:
    for path in (volume / "meta").iterdir():
        path.write_bytes(os.urandom(9000))


def lose_blocks(volume: Path) -> None:
    shutil.rmtree(volume / "streams")


def lose_first_half(volume: Path) -> None:
    """The drift of the NATS report: older messages gone, the metadata as it was."""
    with Store.open(volume.parent / "volume-2") as store:
        stream = store.stream_state("S")
        for row in stream.blocks.rows[: MESSAGES // 2]:
            (block_directory(volume, stream.incarnation) / f"{bytes(row['block_id']).hex()}.blk").unlink()


def flip_blocks(volume: Path) -> None:
    for number, path in enumerate(block_files(volume)):
        flip(path, number * 37 % path.stat().st_size)


def cut_blocks(volume: Path) -> None:
    for number, path in enumerate(block_files(volume)):
        path.write_bytes(path.read_bytes()[: number * 41 % path.stat().st_size])


HURTS: list[Callable[[Path], None]] = [
    lose_directory, go_blank, hurt_identity, lose_identity, lose_metadata, hurt_log, lose_blocks, lose_first_half,
    flip_blocks, cut_blocks,
]  # fmt: skip


@pytest.mark.parametrize("hurt", HURTS, ids=lambda one: one.__name__)
def test_verification_finds_what_a_volume_lost(paths: list[Path], hurt: Callable[[Path], None]) -> None:
    hurt(paths[1])
    with Store.open([paths[0], paths[2]], read_only=True) as store:
        found = store.verify()
    assert not found["ok"] and found["damage"]


@pytest.mark.parametrize("hurt", HURTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("number", [0, 1])
def test_a_volume_that_was_hurt_is_current_after_a_repair(
    paths: list[Path], hurt: Callable[[Path], None], number: int
) -> None:
    hurt(paths[number])
    with Store.open([path for path in paths if path != paths[number]]) as store:
        assert contents(store) == EXPECTED, "read from the others meanwhile"
        report = store.repair()
        assert report["ok"], report
        assert report["lost"] == []
        assert all(one["repaired"] for one in report["damage"])
        assert report["damage"] or hurt is hurt_log, "which the first session settles, maybe that of the reader"
        kinds = {one["kind"] for one in store.events()}
        assert kinds & {"repaired", "rejoined"} or hurt is hurt_log
    check_current(paths)
    with Store.open(paths) as store:
        assert contents(store) == EXPECTED
        assert store.repair()["damage"] == [], "nothing is left to do"
        assert store.stream("S").publish("s.a", b"more").sequence == MESSAGES + 1


def test_each_volume_in_turn_may_be_lost(paths: list[Path]) -> None:
    """Nothing is left of any of the first disks at the end."""
    for path in paths:
        go_blank(path)
        with Store.open([one for one in paths if one != path]) as store:
            assert store.repair()["ok"]
        check_current(paths)
    with Store.open(paths) as store:
        assert contents(store) == EXPECTED


def test_different_blocks_damaged_on_each_volume_are_repaired_from_each_other(paths: list[Path]) -> None:
    for number, volume in enumerate(paths):
        for path in block_files(volume)[number::3]:
            flip(path, path.stat().st_size // 2)
    with Store.open(paths) as store:
        assert store.repair()["ok"]
    check_current(paths)


def test_a_volume_of_another_store_is_left_alone(paths: list[Path], tmp_path: Path) -> None:
    shutil.rmtree(paths[1])
    other = Store.create(paths[1])
    other.add_stream({"name": "OTHER"}).publish("OTHER", b"theirs")
    with Store.open([paths[0], paths[2]]) as store:
        report = store.repair()
        assert not report["ok"]
        [told] = report["volumes"]
        assert (told["before"], told["after"]) == ("foreign", "foreign")
        assert "belongs to store" in told["reason"] and "cluster volume replace" in told["reason"]
    with Store.open(paths[1]) as store:
        assert store.stream("OTHER").get(1).data == b"theirs"


def test_a_directory_with_something_else_in_it_is_left_alone(paths: list[Path]) -> None:
    shutil.rmtree(paths[1])
    paths[1].mkdir()
    (paths[1] / "holiday.jpg").write_bytes(b"picture")
    with Store.open([paths[0], paths[2]]) as store:
        report = store.repair()
    assert not report["ok"] and "holiday.jpg" in report["volumes"][0]["reason"]
    assert [path.name for path in paths[1].iterdir()] in (
        ["holiday.jpg"],
        ["holiday.jpg", "lock"],
        ["lock", "holiday.jpg"],
    )


def test_a_volume_whose_parent_is_gone_is_not_made(tmp_path: Path) -> None:
    paths = [tmp_path / f"disk-{number}" / "volume" for number in range(3)]
    for path in paths:
        path.parent.mkdir()
    with Store.create(paths) as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]}).publish("s.a", b"x")
    shutil.rmtree(paths[2].parent)
    with Store.open(paths[:2]) as store:
        report = store.repair()
    assert not report["ok"] and not paths[2].parent.exists()


def test_a_volume_that_is_gone_is_called_missing_and_no_directory_is_made_without_a_quorum(paths: list[Path]) -> None:
    lose_directory(paths[1])
    with Store.open([paths[0], paths[2]]) as store:
        [told] = store.repair()["volumes"]
        assert (told["before"], told["after"]) == ("missing", "current")
        assert "store create" not in told["reason"]
    for path in paths[1:]:
        lose_directory(path)
    with Store.open(paths[0]) as store, pytest.raises(NoQuorumError):
        store.repair()
    assert not paths[1].exists() and not paths[2].exists()


def test_frames_that_are_whole_in_different_copies_make_a_whole_block(tmp_path: Path) -> None:
    """Every copy of the block is bad, each somewhere else: header, frames, footer and trailer come from each other."""
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]}).append(_table(20_000))
    before = block_files(paths[0])[0].read_bytes()
    places = [(20, len(before) // 2), (len(before) // 4, len(before) - 10), (len(before) - 200, len(before) // 3)]
    for volume, hurt in zip(paths, places, strict=True):
        for at in hurt:
            flip(block_files(volume)[0], at)
    with Store.open(paths) as store:
        report = store.repair()
        assert report["ok"] and report["lost"] == [], report
    assert [block_files(volume)[0].read_bytes() == before for volume in paths] == [True] * 3


def _table(count: int) -> Any:
    import pyarrow as pa

    data = [os.urandom(2_000) for _ in range(count)]
    return pa.record_batch({"subject": ["s.a"] * count, "data": pa.array(data, pa.binary())})


@pytest.mark.parametrize("volume_count", [1, 3])
def test_a_frame_that_is_damaged_everywhere_is_lost_and_no_more(tmp_path: Path, volume_count: int) -> None:
    paths = [tmp_path / f"volume-{number}" for number in range(volume_count)]
    with Store.create(paths) as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]}).append(_table(9_000))
        before = contents(store)
    size = block_files(paths[0])[0].stat().st_size
    for volume in paths:
        flip(block_files(volume)[0], size // 2)
    with Store.open(paths) as store:
        with pytest.raises(DataLossError):
            contents(store)
        report = store.repair()
        assert not report["ok"]
        [lost] = report["lost"]
        assert (lost["stream"], 1 < lost["first"] < lost["end"] < 9_000) == ("S", True)
        assert contents(store) == before[: lost["first"] - 1] + before[lost["end"] - 1 :]
        state = store.stream("S").info()["state"]
        assert state["lost_ranges"] == [[lost["first"], lost["end"]]] and state["last_seq"] == 9_000
        again = store.repair()
        assert (again.pop("ok"), again.pop("checked_blocks")) == (True, volume_count)
        assert not any(again.values()), again
        assert store.verify()["ok"]
        assert [one["kind"] for one in store.events()].count("lost") == 1
        assert store.stream("S").publish("s.a", b"next").sequence == 9_001


def test_a_block_that_is_gone_everywhere_is_lost(paths: list[Path]) -> None:
    gone = block_files(paths[0])[3].relative_to(paths[0])
    for volume in paths:
        (volume / gone).unlink()
    with Store.open(paths) as store:
        report = store.repair()
        [lost] = report["lost"]
        assert lost["end"] == lost["first"] + 1
        assert store.stream("S").info()["state"]["messages"] == MESSAGES - 1
        assert contents(store) == EXPECTED[: lost["first"] - 1] + EXPECTED[lost["first"] :]
        with pytest.raises(DataLossError, match=f"message {lost['first']} is lost"):
            store.stream("S").get(lost["first"])
    check_current(paths)


def test_nothing_is_declared_lost_while_a_volume_that_may_have_it_is_away(paths: list[Path], tmp_path: Path) -> None:
    gone = block_files(paths[0])[3].relative_to(paths[0])
    for volume in paths[:2]:
        (volume / gone).unlink()
    # Its parent is gone with it, as when a disk is not mounted.
    away = tmp_path / "elsewhere"
    shutil.move(paths[2], away)
    paths[2].write_bytes(b"not a directory")
    with Store.open(paths[:2]) as store:
        report = store.repair()
        assert report["lost"] == [] and not report["ok"]
        assert any(paths[2].name in one["reason"] for one in report["damage"] if one["stream"] == "S"), report
    paths[2].unlink()
    shutil.move(away, paths[2])
    with Store.open(paths) as store:
        assert store.repair()["ok"]
        assert contents(store) == EXPECTED
    check_current(paths)


@pytest.mark.parametrize("at", ["header", "trailer", "padding"])
def test_the_only_copy_mends_what_follows_from_the_rest_of_it(tmp_path: Path, at: str) -> None:
    """A flipped bit beside the messages costs none of them, also without another copy."""
    with Store.create(tmp_path / "volume") as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]}).append(_table(10))
        [path] = block_files(tmp_path / "volume")
        before, whole = path.read_bytes(), contents(store)
        flip(path, {"header": 40, "trailer": len(before) - 15, "padding": 100}[at])
        report = store.repair()
        assert report["ok"] and report["lost"] == [] and len(report["damage"]) == 1
        assert path.read_bytes() == before and contents(store) == whole


def test_streams_are_repaired_one_by_one_if_named(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        store.add_stream({"name": "T", "subjects": ["t.>"]}).publish("t.a", b"x")
        for volume in paths[:1]:
            for path in block_files(volume):
                flip(path, 200)
        report = store.repair(streams=["T"])
        assert report["ok"] and report["checked_blocks"] == 3
        assert {one["stream"] for one in report["damage"]} == {"T"}
        assert not store.verify()["ok"]
        assert store.repair()["ok"]


def test_progress_is_told(paths: list[Path]) -> None:
    heard: list[tuple[int, int]] = []
    with Store.open(paths) as store:
        store.repair(progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (MESSAGES * 3, MESSAGES * 3)


def test_leftovers_of_a_killed_repair_and_settled_reports_are_swept(paths: list[Path]) -> None:
    one = block_files(paths[0])[2]
    flip(one, one.stat().st_size // 2)
    (one.with_suffix(".repair")).write_bytes(b"half")
    with Store.open(paths) as store:
        while not list(paths[0].parent.glob("*/reports/*")):
            contents(store)  # whichever copy the reads begin with
            break
        assert store.repair()["ok"]
    assert not list(paths[0].parent.glob("*/reports/*"))
    assert not list(paths[0].glob("streams/*/*.repair"))


def test_a_stream_whose_blocks_are_lost_everywhere_with_their_directories_takes_new_messages_after_a_repair(
    paths: list[Path],
) -> None:
    for volume in paths:
        lose_blocks(volume)
    with Store.open(paths) as store:
        assert not store.repair()["ok"]
        assert store.stream("S").info()["state"]["lost_ranges"] == [[1, MESSAGES + 1]]
        assert store.stream("S").publish("s.a", b"new").sequence == MESSAGES + 1
        assert contents(store) == [b"new"]
    assert [len(block_files(volume)) for volume in paths] == [1, 1, 1]
