"""Buckets of keys and values: by the names and rules of NATS, and those that a nats-server wrote."""

import asyncio
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_core import Store
from storage_core.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidMessageError,
    KeyNotFoundError,
    NotFoundError,
    StaleIncarnationError,
)
from storage_core.foreign import open_foreign
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.key_value import DELETE, PURGE, PUT, KeyValue


@pytest.fixture
def config(tmp_path: Path) -> KeyValue:
    return Store.create(tmp_path / "store").add_key_value("config", history=3, allow_msg_ttl=True)


def values(entries: Any) -> list[tuple[str, str, bytes | None]]:
    return [(entry.key, entry.operation, entry.value) for entry in entries]


def test_a_key_has_its_newest_value_and_revisions_count_up(config: KeyValue) -> None:
    assert [config.put("a.x", "1"), config.put("b", b"2"), config.put("a.x", "3")] == [1, 2, 3]
    newest = config.get("a.x")
    assert (newest.value, newest.revision, newest.operation, newest.bucket) == (b"3", 3, PUT, "config")
    assert config.get("a.x", revision=1).value == b"1"
    assert (config.keys(), config.keys("a.*")) == (["a.x", "b"], ["a.x"])
    for number in range(4):
        config.put("a.x", str(number))
    assert [entry.value for entry in config.history("a.x")] == [b"1", b"2", b"3"]
    assert config.status() == {"bucket": "config", "values": 4, "bytes": 58, "history": 3, "ttl_ns": 0}


def test_what_is_not_there_is_named(config: KeyValue) -> None:
    config.put("a", "1")
    for key, revision in (("b", None), ("a", 2), ("b", 1)):
        with pytest.raises(KeyNotFoundError) as missing:
            config.get(key, revision)
        assert missing.value.fields == {"bucket": "config", "key": key} | ({"revision": revision} if revision else {})
    with pytest.raises(KeyNotFoundError):
        config.history("b")
    with pytest.raises(NotFoundError, match="KV_confic"):
        config._store.key_value("confic")  # type: ignore[attr-defined]


def test_create_and_update_are_for_one_of_several_writers(config: KeyValue) -> None:
    assert config.create("a", "1") == 1
    with pytest.raises(AlreadyExistsError, match="revision 1"):
        config.create("a", "2")
    assert config.update("a", "2", revision=1) == 2
    with pytest.raises(ConditionFailedError) as refused:
        config.update("a", "3", revision=1)
    assert (refused.value.expected, refused.value.actual) == (1, 2)
    with pytest.raises(ConditionFailedError):
        config.delete("a", revision=1)
    config.delete("a", revision=2)
    assert config.create("a", "4") == 4, "a deleted key may be created again"


def test_deleted_and_purged_keys_have_no_value(config: KeyValue) -> None:
    for key in "abc":
        config.put(key, "1")
    config.delete("a")
    config.purge("b")
    assert config.keys() == ["c"]
    for key in "ab":
        with pytest.raises(KeyNotFoundError):
            config.get(key)
    assert values(config.history("a")) == [("a", PUT, b"1"), ("a", DELETE, b"")]
    assert values(config.history("b")) == [("b", PURGE, b"")], "a purge removes what was before"


def test_a_key_ends_with_its_ttl(config: KeyValue) -> None:
    for ttl, header in (("90s", b"90"), (timedelta(minutes=2), b"120")):
        message = config.stream.get(config.put("a", "1", ttl=ttl))
        assert message.headers == [("Nats-TTL", header)]
    for wrong in ("1500ms", "0", 5, "soon"):
        with pytest.raises(ValueError, match="ttl"):
            config.put("a", "1", ttl=wrong)  # type: ignore[arg-type]
    plain = config._store.add_key_value("plain")  # type: ignore[attr-defined]
    with pytest.raises(InvalidMessageError, match="allow_msg_ttl"):
        plain.put("a", "1", ttl="5s")


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "*", "ä", None, "a>"])
def test_what_is_no_key_is_refused(config: KeyValue, key: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        config.put(key, "1")
    assert config.stream.last_sequence == 0


@pytest.mark.parametrize(("bucket", "history"), [("a.b", 1), ("", 1), ("a" * 126, 1), ("a", 0), ("a", 65), ("a", True)])
def test_what_is_no_bucket_is_refused(tmp_path: Path, bucket: str, history: int) -> None:
    store = Store.create(tmp_path / "store")
    with pytest.raises(ValueError, match=r"bucket|history"):
        store.add_key_value(bucket, history)
    assert store.streams() == []


def test_watch_gives_what_is_there_then_none_then_each_change(config: KeyValue) -> None:
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        config.put(key, value)
    config.delete("b")
    seen = config.watch()
    assert values([next(seen), next(seen)]) == [("a", PUT, b"3"), ("b", DELETE, b"")]
    assert next(seen) is None
    writer = threading.Thread(target=lambda: [config.put("c", str(number)) for number in range(3)])
    writer.start()
    assert values([next(seen) for _ in range(3)]) == [("c", PUT, b"0"), ("c", PUT, b"1"), ("c", PUT, b"2")]
    writer.join()
    assert values(entry for entry in config.watch("a", include_history=True, timeout_s=0.1) if entry) == [
        ("a", PUT, b"1"), ("a", PUT, b"3"),
    ]  # fmt: skip
    assert list(config.watch(updates_only=True, timeout_s=0.1)) == [None]
    config._store.delete_stream("KV_config")  # type: ignore[attr-defined]
    with pytest.raises(StaleIncarnationError):
        next(seen)


def test_an_imported_bucket_is_a_bucket_again(tmp_path: Path) -> None:
    nats_server = pytest.importorskip("harness.nats_server")
    server = nats_server.Server(nats_server.INSTALLED, tmp_path / "server")

    async def write() -> list[tuple[str, str, bytes | None]]:
        client = await server.connect()
        bucket = await client.jetstream().create_key_value(bucket="config", history=4)
        for number in range(6):
            await bucket.put("a.x", str(number).encode())
        await bucket.put("b", b"2")
        await bucket.put("c", b"3")
        await bucket.delete("b")
        await bucket.purge("c")
        kept = [entry for key in ("a.x", "b", "c") for entry in await bucket.history(key)]
        await client.close()
        return [(entry.key, entry.operation or PUT, entry.value or b"") for entry in kept]

    try:
        written = asyncio.run(write())
    finally:
        server.end(signal.SIGTERM)
    store = Store.create(tmp_path / "store")
    import_streams(store, open_foreign(server.store, "nats"), ImportRequest())
    bucket = store.key_value("config")
    assert values(entry for key in ("a.x", "b", "c") for entry in bucket.history(key)) == written
    assert (bucket.keys(), bucket.get("a.x").value) == (["a.x"], b"5")
    assert bucket.update("a.x", "6", revision=bucket.get("a.x").revision) == 11
    assert bucket.create("c", "4") == 12
    assert bucket.status()["history"] == 4
