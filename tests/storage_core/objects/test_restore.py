"""Backups that are restored onto object stores, and what a restore or a creation leaves that fails."""

from pathlib import Path

import pytest
from harness.objects.server import Faults

from storage_core.errors import AlreadyExistsError, NotAStoreError, StorageError
from storage_core.store.store import Store


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of three volumes on disks: four messages, of which one was removed, and a consumer that has one."""
    with Store.create([tmp_path / f"disk-{number}" for number in range(3)]) as store:
        stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(4):
            stream.append([{"subject": "orders.new", "data": b"%d" % number}])
        stream.remove([2])
        consumer = stream.add_consumer({"name": "billing"})
        consumer.ack(consumer.fetch(1, timeout_s=0)["sequence"])
        store.backup(tmp_path / "backup")
    return tmp_path / "backup"


def left(s3_root: Path, buckets: list[str]) -> list[str]:
    roots = [s3_root / bucket.split("/")[2] for bucket in buckets]
    return [str(path.relative_to(s3_root)) for root in roots for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("volume_count", [1, 3])
def test_restored_store_has_everything_and_goes_on(
    buckets: list[str], s3_options: dict[str, str], backup: Path, tmp_path: Path, volume_count: int
) -> None:
    Store.restore(backup, buckets[:volume_count], storage_options=s3_options)
    store = Store.open(buckets[:volume_count], storage_options=s3_options)
    assert store.id == Store.open(tmp_path / "disk-0").id
    stream = store.stream("ORDERS")
    assert stream.read(columns=["sequence", "data"]).read_all().to_pydict() == {
        "sequence": [1, 3, 4],
        "data": [b"0", b"2", b"3"],
    }
    assert stream.append([{"subject": "orders.new", "data": b"4"}]) == range(5, 6)
    assert stream.consumer("billing").fetch(9, timeout_s=0)["sequence"].to_pylist() == [3, 4, 5]
    assert store.verify()["ok"] and len(store.volumes()) == volume_count
    with pytest.raises(AlreadyExistsError, match="holds a jstream store already"):
        Store.restore(backup, buckets[:volume_count], storage_options=s3_options)


@pytest.mark.parametrize("refused", [".blk", ".rec", "jstream.volume", "jstream.restoring"])
def test_restore_that_fails_leaves_nothing_and_is_made_again(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path, backup: Path, refused: str
) -> None:
    last = sorted(buckets)[0 if refused == "jstream.volume" else -1].split("/")[2]  # identities go the other way
    faults.judge = lambda verb, address: (
        "403 AccessDenied" if verb == "PUT" and last in address and refused.partition(".")[2] in address else ""
    )
    with pytest.raises(StorageError, match="refuses to put"):
        Store.restore(backup, buckets, storage_options=options)
    assert left(s3_root, buckets) == []
    faults.judge = lambda verb, address: ""
    assert Store.restore(backup, buckets, storage_options=options).stream("ORDERS").last_sequence == 4


def test_creation_that_fails_leaves_nothing(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path
) -> None:
    last = sorted(buckets)[-1].split("/")[2]
    faults.judge = lambda verb, address: (
        "500 InternalError" if verb == "PUT" and last in address and ".rec" in address else ""
    )
    with pytest.raises(StorageError):
        Store.create(buckets, storage_options=options)
    assert left(s3_root, buckets) == []


def test_restore_that_was_killed_is_no_store_and_says_so(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("storage_core.store.ensemble.creation.write_identity", end)
        with pytest.raises(KeyboardInterrupt):
            Store.restore(backup, buckets[0], storage_options=s3_options)
    assert any(name.endswith(".blk") for name in left(s3_root, buckets))
    with pytest.raises(NotAStoreError, match="a restore that was not finished"):
        Store.open(buckets[0], storage_options=s3_options)
    for attempt in (
        lambda: Store.restore(backup, buckets[0], storage_options=s3_options),
        lambda: Store.create(buckets[0], storage_options=s3_options),
    ):
        with pytest.raises(AlreadyExistsError, match="remove everything below it"):
            attempt()
