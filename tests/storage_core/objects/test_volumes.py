"""Volumes in object stores that are lost, emptied, put back, added, replaced and removed."""

import shutil
from pathlib import Path

import pytest
from harness.objects.server import make_buckets

from storage_core.errors import AlreadyExistsError, NotAStoreError
from storage_core.store.store import Store


def made(volumes: list[str], options: dict[str, str], replicas: int | None = None) -> Store:
    store = Store.create(volumes, storage_options=options)
    config = {"name": "ORDERS", "subjects": ["orders.>"]}
    store.add_stream(config if replicas is None else config | {"num_replicas": replicas})
    return store


def append(store: Store, number: int) -> None:
    store.stream("ORDERS").append([{"subject": "orders.new", "data": b"%d" % number}])


def data(store: Store) -> list[int]:
    return [int(value) for value in store.stream("ORDERS").read(columns=["data"]).read_all()["data"].to_pylist()]


def root(s3_root: Path, volume: str) -> Path:
    return s3_root / volume.split("/")[2]


def test_replaced_volume_gets_all_that_the_lost_one_had(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, tmp_path: Path
) -> None:
    store = made(buckets, s3_options)
    append(store, 0)
    shutil.rmtree(root(s3_root, buckets[0]))
    store = Store.open(buckets[1:], storage_options=s3_options)
    lost = next(volume.name for volume in store.volumes() if str(volume.path) == buckets[0])
    (fresh,) = make_buckets(s3_root, 1)
    (root(s3_root, fresh) / "taken").mkdir()
    (root(s3_root, fresh) / "taken" / "report.csv").write_text("a;b")
    (root(s3_root, fresh).with_name("alias-of-one")).symlink_to(root(s3_root, buckets[1]))
    refused = {
        buckets[1]: ValueError,
        f"{buckets[1]}/inside": ValueError,
        str(tmp_path / "disk"): ValueError,
        "s3://alias-of-one/shop": AlreadyExistsError,
        "s3://no-such-bucket/shop": NotAStoreError,
        f"{fresh.removesuffix('shop')}taken": AlreadyExistsError,
    }
    for path, kind in refused.items():
        with pytest.raises(kind):
            store.replace_volume(lost, path)
    store.replace_volume(lost, fresh)
    append(store, 1)
    shutil.rmtree(root(s3_root, buckets[1]))
    store = Store.open([fresh, buckets[2]], storage_options=s3_options)
    assert data(store) == [0, 1]
    append(store, 2)
    assert data(store) == [0, 1, 2]


def test_one_bucket_becomes_three_and_one_of_the_others(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    store = made(buckets[:1], s3_options)
    append(store, 0)
    store.add_volumes(buckets[1:])
    store.edit_stream({"name": "ORDERS", "num_replicas": 3})
    append(Store.open(buckets[2], storage_options=s3_options), 1)
    store.edit_stream({"name": "ORDERS", "num_replicas": 1})
    going = [volume.name for volume in store.volumes() if str(volume.path) != buckets[2]]
    store.remove_volumes(going)
    append(store, 2)
    for bucket in buckets[:2]:
        shutil.rmtree(root(s3_root, bucket))
    assert data(Store.open(buckets[2], storage_options=s3_options)) == [0, 1, 2]


def test_bucket_that_was_put_back_to_an_older_state_is_found_and_repaired(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, tmp_path: Path
) -> None:
    store = made(buckets, s3_options)
    append(store, 0)
    shutil.copytree(root(s3_root, buckets[1]), tmp_path / "older")
    append(store, 1)
    shutil.rmtree(root(s3_root, buckets[1]))
    shutil.copytree(tmp_path / "older", root(s3_root, buckets[1]))
    store = Store.open(buckets, storage_options=s3_options)
    assert data(store) == [0, 1]
    told = {str(volume["path"]): volume["state"] for volume in store.cluster_info()["volumes"]}
    assert told == dict.fromkeys(buckets, "current") | {buckets[1]: told[buckets[1]]}
    assert told[buckets[1]] in ("rolled_back", "damaged"), "by its metadata, or by the block that it lacks"
    report = store.repair()
    assert report["ok"], report
    shutil.rmtree(root(s3_root, buckets[0]))
    store = Store.open(buckets, storage_options=s3_options)
    assert data(store) == [0, 1]
    append(store, 2)
    assert data(store) == [0, 1, 2]
