"""What a volume still has of streams that were deleted while it was away."""

import os
import shutil
from pathlib import Path

import pytest

from storage_core.store.recovery import adopt
from storage_core.store.store import Store


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths, deleted_block_retention="0s") as store:
        for name in ("GOES", "STAYS"):
            store.add_stream({"name": name}).publish(name, b"x")
    return paths


def directories(volume: Path) -> set[str]:
    return {path.name for path in (volume / "streams").iterdir()}


def test_a_stream_deleted_and_made_again_meanwhile_is_not_mixed_with_the_old_one(
    paths: list[Path], tmp_path: Path
) -> None:
    shutil.move(paths[2], tmp_path / "away")
    with Store.open(paths[:2]) as store:
        old = store.stream_state("GOES").incarnation.hex()
        store.delete_stream("GOES")
        store.add_stream({"name": "GOES"}).publish("GOES", b"of its second life")
        store.maintain()
        assert old not in directories(paths[0])
    shutil.move(tmp_path / "away", paths[2])
    assert old in directories(paths[2])
    with Store.open(paths) as store:
        store.maintain()
        assert [store.stream("GOES").get(1).data, store.stream("GOES").last_sequence] == [b"of its second life", 1]
        assert store.verify()["ok"]
        assert {one["state"] for one in store.stream("GOES").info()["cluster"]["replicas"]} == {"current"}
    assert directories(paths[2]) == directories(paths[0]) and old not in directories(paths[2])


def test_what_cannot_be_told_to_be_of_a_deleted_stream_stays(paths: list[Path]) -> None:
    """Blocks that an adoption did not adopt, and whatever somebody else has put there."""
    strange, notes = (paths[0] / "streams" / os.urandom(16).hex() for _ in range(2))
    for directory in (strange, notes):
        directory.mkdir()
    block = next(paths[0].glob("streams/*/*.blk"))
    shutil.copy(block, strange / block.name)
    (notes / "notes.txt").write_bytes(b"mine")
    for path in paths:
        shutil.rmtree(path / "meta")
    adopt.execute(adopt.plan(paths))
    with Store.open(paths) as store:
        store.maintain()
    assert (strange / block.name).exists() and (notes / "notes.txt").exists()
