"""Damage is told even if it is gone by now: whoever finds it writes an event of the volume."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness.block_places import flip

from storage_core.files import OS_FILES
from storage_core.store.environment import REAL
from storage_core.store.store import Store

MESSAGES = 6


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths, snapshot_every=1000) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        for number in range(MESSAGES):
            stream.publish("s.a", b"message %d " % number * 50)
    return paths


def damage_a_block(volume: Path) -> Path:
    block = sorted(volume.rglob("*.blk"))[0]
    flip(block, block.read_bytes().index(b"message "))
    return block


def damaged(store: Store, volume: Path) -> list[str]:
    """Return what events say of damage on a volume."""
    name = next(one.name for one in store.volumes() if one.path == volume)
    return [one["reason"] for one in store.events() if one["volume"] == name and one["kind"] == "damaged"]


def look_by_verify(store: Store) -> None:
    assert not store.verify()["ok"]


def look_by_scrub(store: Store) -> None:
    assert not store.scrub()["ok"]


@pytest.mark.parametrize("look", [look_by_verify, look_by_scrub])
def test_what_was_found_is_told_though_a_merge_takes_the_copy_away(
    paths: list[Path], look: Callable[[Store], None]
) -> None:
    with Store.open(paths) as store:
        block = damage_a_block(paths[1])
        look(store)
        assert len(damaged(store, paths[1])) == 1
        assert block.stem in damaged(store, paths[1])[0]
        store.compact()
        store.maintain()
        assert block.stem in damaged(store, paths[1])[0]
        assert damaged(store, paths[0]) == damaged(store, paths[2]) == []


def test_the_same_is_told_once(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        damage_a_block(paths[1])
        for _ in range(3):
            look_by_verify(store)
        assert len(damaged(store, paths[1])) == 1


@pytest.mark.parametrize("meets", ["merge", "read"])
def test_what_a_merge_or_a_read_met_is_told_when_the_block_is_gone(paths: list[Path], meets: str) -> None:
    now_ns = REAL.now_ns()  # stands still, or sessions would look for reports before the merge, and repair the copy
    with Store.open(paths, env=replace(REAL, now_ns=lambda: now_ns)) as store:
        stream = store.stream("S")
        # Which copy is read first differs from block to block, by the last byte of its id.
        while len({int(block.stem, 16) % 256 % 3 for block in paths[1].rglob("*.blk")}) < 3:
            stream.publish("s.a", b"message " * 50)
        blocks = sorted(paths[1].rglob("*.blk"))
        for block in blocks:
            flip(block, block.read_bytes().index(b"message "))
        count = stream.info()["state"]["messages"]
        if meets == "read":
            assert stream.read().read_all().num_rows == count
        store.compact()
        assert stream.read().read_all().num_rows == count
        store.maintain()
        (reason,) = damaged(store, paths[1])
        assert any(block.stem in reason for block in blocks)
        assert damaged(store, paths[0]) == damaged(store, paths[2]) == []
        assert store.verify()["ok"]


def test_what_verify_finds_while_the_store_is_busy_is_told_later(paths: list[Path]) -> None:
    block = damage_a_block(paths[1])
    locks = [OS_FILES.lock(path / "lock") for path in paths]
    with Store.open(paths, lock_timeout_s=0.05) as store:
        assert all(lock.try_acquire() for lock in locks)
        look_by_verify(store)
        for lock in locks:
            lock.close()
        assert damaged(store, paths[1]) == []
        store.compact()
        store.maintain()
        assert [block.stem in reason for reason in damaged(store, paths[1])] == [True]


def test_damage_that_cannot_be_repaired_is_told_of_its_volume(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    with Store.create(path) as store:
        store.add_stream({"name": "S"}).publish("S", b"message " * 50)
        block = damage_a_block(path)
        report = store.repair()
        assert report["lost"]
        assert [str(block) in reason for reason in damaged(store, path)] == [True]


@pytest.mark.parametrize("call", ["verify", "scrub", "repair"])
def test_damaged_metadata_is_told_and_does_not_make_the_volume_a_bad_one(paths: list[Path], call: str) -> None:
    with Store.open(paths) as store:
        with store.session() as session:
            session.snapshot()
        store.stream("S").publish("s.a", b"more")
        with store.session() as session:
            session.snapshot()
        older = sorted((paths[1] / "meta").glob("*.snap"))[0]
        flip(older, 5000)
        getattr(store, call)()
        assert [str(older) in reason for reason in damaged(store, paths[1])] == [True]
        assert not [one for one in store.events() if one["kind"] == "returned"]
        store.stream("S").publish("s.a", b"more")
        assert not [one for one in store.events() if one["kind"] == "returned"]
