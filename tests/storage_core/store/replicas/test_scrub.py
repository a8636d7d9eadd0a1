"""Scrub: all copies are read in portions, whoever asks for them, and what is bad is told and left to be mended."""

from dataclasses import replace
from pathlib import Path

import pytest
from harness.block_places import block_files, flip

from storage_core.metadata.commands import NoOp
from storage_core.store.environment import REAL
from storage_core.store.store import Store

MESSAGES = 10


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        for name in ("S", "T"):
            stream = store.add_stream({"name": name, "subjects": [f"{name}.>"]})
            for number in range(MESSAGES):
                stream.publish(f"{name}.a", b"message %d " % number * 20)
    return paths


def portions(paths: list[Path], limit_bytes: int) -> list[int]:
    """Return how many copies each portion checked until the end was reached, each by a process of its own."""
    checked = []
    while True:
        with Store.open(paths) as store:
            report = store.scrub(limit_bytes=limit_bytes)
        checked.append(report["checked_blocks"])
        if report["done"]:
            return checked


def test_portions_of_several_processes_make_up_the_whole(paths: list[Path]) -> None:
    size = block_files(paths[0])[0].stat().st_size
    checked = portions(paths, 3 * 4 * size)
    assert sum(checked) == 2 * MESSAGES * 3 and len(checked) >= 4
    with Store.open(paths) as store:
        assert store.scrub()["checked_blocks"] == 2 * MESSAGES * 3, "the next one begins anew"
        replicas = store.stream("S").info()["cluster"]["replicas"]
        assert all(one["last_scrub"] for one in replicas)
        assert [one["kind"] for one in store.events()] == ["scrub", "scrub"]


def test_a_scrub_that_forgot_how_far_it_was_begins_anew(paths: list[Path]) -> None:
    size = block_files(paths[0])[0].stat().st_size
    with Store.open(paths) as store:
        assert not store.scrub(limit_bytes=3 * 4 * size)["done"]
    (paths[1] / "index.db").unlink()
    assert sum(portions(paths, 3 * 4 * size)) == 2 * MESSAGES * 3


def test_damage_is_told_and_reported_but_not_mended(paths: list[Path]) -> None:
    hurt = block_files(paths[0])[1]
    before = hurt.read_bytes()
    flip(hurt, len(before) // 2)
    with Store.open(paths) as store:
        report = store.scrub()
        assert not report["ok"] and report["done"]
        [damage] = report["damage"]
        assert (damage["file"], damage["volume"], damage["repaired"]) == (str(hurt), store.volumes()[0].name, False)
        assert [one["kind"] for one in store.events()] == ["damaged", "scrub"]
        name = store.stream_state(damage["stream"]).name
        assert [one["state"] for one in store.stream(name).info()["cluster"]["replicas"]].count("damaged") == 1
    assert hurt.read_bytes() != before
    assert list(paths[1].glob("reports/*.report")) + list(paths[2].glob("reports/*.report"))
    with Store.open(paths) as store:  # whose maintenance goes by the report
        assert store.verify()["ok"]
    assert hurt.read_bytes() == before


def test_drift_is_found_where_an_opening_did_not_look(paths: list[Path]) -> None:
    """Blocks in the middle, with the store open all the time."""
    with Store.open(paths) as store:
        row = store.stream_state("S").blocks.rows[5]
        next(paths[2].glob(f"streams/*/{bytes(row['block_id']).hex()}.blk")).unlink()
        report = store.scrub(streams=["S"])
        assert not report["ok"] and report["checked_blocks"] == MESSAGES * 3
        [event] = store.events(kind="drift")
        assert event["volume"] == store.volumes()[2].name and "of 10 blocks compared 1 missing" in event["reason"]
        store.scrub()
        assert len(store.events(kind="drift")) == 1


def test_a_damaged_metadata_file_is_found(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        with store.session() as session:
            session.propose(NoOp())
            assert session.snapshot()
        flip(next((paths[1] / "meta").glob("*.snap")), 5000)
        report = store.scrub()
        assert not report["ok"] and any(one["file"].endswith(".snap") for one in report["damage"])
        assert store.repair()["ok"]
        assert store.scrub()["ok"]


def test_the_rate_is_kept(paths: list[Path]) -> None:
    slept: list[float] = []
    now = [0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += int(seconds * 1e9)

    size = sum(path.stat().st_size for volume in paths for path in block_files(volume))
    env = replace(REAL, now_ns=lambda: now[0] + 1_700_000_000_000_000_000, sleep=sleep)
    with Store.open(paths, env=env) as store:
        store.scrub(rate_bytes_per_s=size // 10)
    assert 9.5 < sum(slept) < 10.5


def test_a_store_opened_for_reading_is_scrubbed_and_nothing_written(paths: list[Path]) -> None:
    with Store.open(paths, read_only=True) as store:
        assert store.scrub()["ok"]
    assert not list(paths[0].parent.glob("*/index.db"))


@pytest.mark.parametrize("option", ["limit_bytes", "rate_bytes_per_s"])
def test_a_limit_of_nothing_is_refused(paths: list[Path], option: str) -> None:
    with Store.open(paths) as store, pytest.raises(ValueError, match=option):
        store.scrub(**{option: 0})  # type: ignore[arg-type]
