"""Stores on object stores, by the public surface, on a server."""

import gc
import itertools
import shutil
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from harness.objects.server import Faults

from storage_core.errors import AlreadyExistsError, NotAStoreError, RequirementError, StorageError
from storage_core.metadata.commands import QueryStart
from storage_core.objects.files import ObjectFiles
from storage_core.objects.remote import RemoteObjectStore
from storage_core.paths import place
from storage_core.store.consumers.query import QueryReader
from storage_core.store.store import Store
from storage_core.store.volume import object_probe
from storage_core.store.volume.identity import FILE_NAME

MESSAGES = pa.table({"subject": ["orders.new"] * 1000, "data": [f"order {n}" for n in range(1000)]})


def made(volumes: list[str], options: dict[str, str]) -> Store:
    store = Store.create(volumes, storage_options=options)
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    return store


@pytest.mark.parametrize("volume_count", [1, 3])
def test_what_was_appended_is_read_by_another_process(
    buckets: list[str], s3_options: dict[str, str], volume_count: int
) -> None:
    store = made(buckets[:volume_count], s3_options)
    assert store.stream("ORDERS").append(MESSAGES) == range(1, 1001)
    other = Store.open(buckets[0], storage_options=s3_options)
    table = other.stream("ORDERS").read(columns=["sequence", "data"]).read_all()
    assert table["data"].to_pylist() == [f"order {n}".encode() for n in range(1000)]
    assert other.stream("ORDERS").append(MESSAGES) == range(1001, 2001)
    assert store.stream("ORDERS").read().read_all().num_rows == 2000


@pytest.mark.parametrize(
    "more",
    [
        {"aws_allow_http": "true"},
        {"AWS_ALLOW_HTTP": True},
        {"allow_http": "true", "timeout": "5s"},
        {"aws_timeout": "5s"},
    ],
)
def test_settings_are_taken_by_the_names_that_others_have_for_them(
    buckets: list[str], s3_options: dict[str, str], more: dict[str, object]
) -> None:
    made(buckets[:1], s3_options)
    assert Store.open(buckets[0], storage_options={**s3_options, **more}).streams() == ["ORDERS"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("aws_region=x", "a mapping of options is needed, not str"),
        ({"aws_session_token": None}, "'aws_session_token' is NoneType"),
        ({"aws_endpoint_url": "127.0.0.1:9000"}, "aws_endpoint_url is no address; valid are those like https://host"),
        ({"endpoint": "http://"}, "endpoint is no address"),
        ({"aws_endpoint_url": "http://[::1"}, "aws_endpoint_url is no address"),
        ({"aws_session_token": "a secret\n"}, "aws_session_token holds a line break"),
        ({"aws_regoin": "x"}, "unknown storage option 'aws_regoin'; did you mean 'aws_region'"),
    ],
)
def test_settings_that_are_none_are_named(buckets: list[str], given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Store.open(buckets[0], storage_options=given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_open_or_create_waits_for_the_one_that_makes_the_store(
    buckets: list[str], options: dict[str, str], faults: Faults, monkeypatch: pytest.MonkeyPatch, volume_count: int
) -> None:
    monkeypatch.setattr(object_probe, "PATIENCE_S", 0.0)
    nearly_made, waits, listings = threading.Event(), threading.Event(), itertools.count(1)

    def hold_back_identities(verb: str, address: str) -> str:
        if verb == "PUT" and address.endswith(FILE_NAME):
            nearly_made.set()
            assert waits.wait(60.0)
        if nearly_made.is_set() and "list-type" in address and next(listings) > 12:  # it looked again and again
            waits.set()
        return ""

    faults.judge = hold_back_identities
    with ThreadPoolExecutor(1) as thread:
        maker = thread.submit(Store.create, buckets[:volume_count], storage_options=options)
        assert nearly_made.wait(60.0)
        try:
            other = Store.open_or_create(buckets[:volume_count], 60.0, storage_options=options)
        finally:
            waits.set()
        assert other.id == maker.result().id


def test_two_writers_take_turns(buckets: list[str], s3_options: dict[str, str]) -> None:
    first = made(buckets, s3_options)
    second = Store.open(buckets, storage_options=s3_options)
    taken: list[int] = []
    for _ in range(5):
        for store in (first, second):
            taken += store.stream("ORDERS").append([{"subject": "orders.new", "data": b"one"}])
    assert taken == list(range(1, 11))


def test_what_verify_found_is_known_to_whoever_looks_next(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    store = made(buckets[:1], s3_options)
    store.stream("ORDERS").append(MESSAGES)
    assert store.verify()["ok"] and store.verify()["ok"]
    (whole,) = Store.open(buckets[0], storage_options=s3_options).stream("ORDERS").info()["cluster"]["replicas"]
    assert (whole["state"], whole["damaged_blocks"]) == ("current", 0) and whole["last_scrub"]
    (block,) = (s3_root / buckets[0].split("/")[2]).rglob("*.blk")
    block.write_bytes(b"\0" * 200 + block.read_bytes()[200:])
    assert not store.verify()["ok"] and not store.scrub()["ok"]
    other = Store.open(buckets[0], storage_options=s3_options)
    (damaged,) = other.stream("ORDERS").info()["cluster"]["replicas"]
    assert (damaged["state"], damaged["damaged_blocks"]) == ("damaged", 1)


def test_one_bucket_of_three_is_lost(buckets: list[str], s3_options: dict[str, str], s3_root: Path) -> None:
    store = made(buckets, s3_options)
    store.stream("ORDERS").append(MESSAGES)
    shutil.rmtree(s3_root / buckets[0].split("/")[2])
    other = Store.open(buckets, storage_options=s3_options)
    assert other.stream("ORDERS").read().read_all().num_rows == 1000
    assert other.stream("ORDERS").append(MESSAGES) == range(1001, 2001)


def test_lost_bucket_that_is_given_back_empty_is_filled_again(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    store = made(buckets, s3_options)
    store.stream("ORDERS").append(MESSAGES)
    lost, other = (s3_root / bucket.split("/")[2] for bucket in buckets[:2])
    with closing(QueryReader(store, "billing")) as query:
        query.begin({"ORDERS": QueryStart(1)})
        shutil.rmtree(lost)
        store = Store.open(buckets, storage_options=s3_options)
        store.stream("ORDERS").append(MESSAGES)
        lost.mkdir()
        shutil.copytree(other / "shop" / "owners", lost / "shop" / "owners")  # the query renews its lease there
        assert store.repair()["ok"]
    shutil.rmtree(other)
    store = Store.open(buckets, storage_options=s3_options)
    assert store.stream("ORDERS").read().read_all().num_rows == 2000
    assert store.stream("ORDERS").append(MESSAGES) == range(2001, 3001)


def test_snapshots_and_old_records_do_not_pile_up(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    store = Store.create(buckets[0], storage_options=s3_options, snapshot_every=4)
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for _ in range(20):
        store.stream("ORDERS").append([{"subject": "orders.new", "data": b"one"}])
    meta = s3_root / buckets[0].split("/")[2] / "shop" / "meta"
    assert len(list(meta.glob("*.snap"))) <= 3
    assert len(list(meta.glob("*.rec"))) <= 12
    assert Store.open(buckets[0], storage_options=s3_options).stream("ORDERS").read().read_all().num_rows == 20


def test_wrong_addresses_are_named(buckets: list[str], s3_options: dict[str, str], s3_root: Path) -> None:
    with pytest.raises(NotAStoreError):
        Store.open(buckets[0], storage_options=s3_options)
    store = made(buckets[:1], s3_options)
    with pytest.raises(AlreadyExistsError):
        Store.create(buckets[0], storage_options=s3_options)
    with pytest.raises(ValueError, match="aws_regoin"):
        Store.open(buckets[0], storage_options={**s3_options, "aws_regoin": "x"})
    with pytest.raises(ValueError, match="one kind"):
        Store.create([*buckets[:2], "/tmp/somewhere"], storage_options=s3_options)
    with pytest.raises(StorageError) as caught:
        Store.open("s3://no-such-bucket/shop", storage_options=s3_options)
    assert "a secret" not in str(caught.value) + repr(store) + repr(caught.value)


def test_settings_in_the_environment_that_are_none_are_named(
    buckets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(ValueError, match="AWS_ENDPOINT_URL is no address"):
        Store.open(buckets[0], storage_options={"aws_region": "not-yet-used"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key\n")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID holds a line break"):
        Store.open(buckets[0], storage_options={"aws_region": "not-yet-used"})


def test_missing_extra_is_named(buckets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "storage_core.objects.remote")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RequirementError, match=r"pip install 'pyspark-jstream\[objectstore\]'"):
        Store.open(buckets[0], storage_options={"aws_region": "nowhere-yet"})


def test_settings_come_from_the_environment(
    buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in s3_options.items():
        monkeypatch.setenv(key.upper(), value)
    made(buckets[:1], {}).stream("ORDERS").append(MESSAGES)
    assert Store.open(buckets[0]).stream("ORDERS").read().read_all().num_rows == 1000


def test_settings_are_for_object_stores_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="storage_options are for object stores"):
        Store.create(tmp_path / "shop", storage_options={"aws_region": "x"})


def test_clients_go_with_the_files_that_made_them(buckets: list[str], s3_options: dict[str, str]) -> None:
    clients: list[weakref.ref[RemoteObjectStore]] = []

    def connect(uri: str) -> RemoteObjectStore:
        client = RemoteObjectStore(uri, s3_options)
        clients.append(weakref.ref(client))
        return client

    files = ObjectFiles(connect)
    assert files.list_directory(place(buckets[0])) == []
    assert [client() is None for client in clients] == [False]
    del files
    gc.collect()
    assert [client() is None for client in clients] == [True]
