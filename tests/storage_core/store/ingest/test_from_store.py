"""A stream copied from one store into another, on disks and in buckets, also by processes that are killed."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_stream.cli.app import app
from storage_core import Store
from storage_core.errors import AlreadyExistsError, DataLossError, LimitExceededError
from storage_core.store.ingest.from_store import copy_stream

COLUMNS = ["sequence", "subject", "timestamp_ns", "headers", "data"]
# Copies stream ORDERS of the first store into the second, and is killed when so many blocks are done.
COPY = """
import os, signal, sys
from storage_core import Store
from storage_core.store.ingest.from_store import copy_stream
source, target, count = sys.argv[1].split(","), sys.argv[2].split(","), int(sys.argv[3])

def progress(done, total):
    if done == count:
        os.kill(os.getpid(), signal.SIGKILL)

copy_stream(Store.open(source), Store.open(target), "ORDERS", progress=progress)
"""


@pytest.fixture(autouse=True)
def environment(s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in s3_options.items():
        monkeypatch.setenv(key.upper(), value)


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("a", "b", "c")]


def fill(volumes: list[str]) -> Store:
    """Return a store with a stream of ten blocks, of which messages were removed, and a consumer within it."""
    store = Store.create(volumes)
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"], "max_msg_size": 1000})
    for number in range(10):
        rows = [
            {"subject": f"orders.{at}", "data": b"%d" % at, "msg_id": f"id {at}", "headers": [("k", b"v")]}
            for at in range(number * 20, number * 20 + 20)
        ]
        stream.append(rows)
    stream.remove([50, 51, 99])
    stream.purge(keep=170)
    stream.add_consumer({"name": "billing"})
    consumer = stream.consumer("billing")
    consumer.ack(consumer.fetch(30, 0)["sequence"].to_pylist())
    return store


def content(store: Store, name: str = "ORDERS") -> Any:
    return store.stream(name).read(columns=COLUMNS).read_all()


@pytest.mark.parametrize("to_buckets", [True, False])
def test_copy_is_the_stream_in_a_store_of_another_kind(disks: list[str], buckets: list[str], to_buckets: bool) -> None:
    volumes = (disks, buckets) if to_buckets else (buckets, disks)
    source, target = fill(volumes[0]), Store.create(volumes[1])
    copied = copy_stream(source, target, "ORDERS")
    assert (copied["copied"], copied["already"], copied["last_seq"]) == (9, False, 200), "one block is purged"
    assert content(target) == content(source)
    before, after = source.stream("ORDERS"), target.stream("ORDERS")
    assert after.consumer("billing").info()["ack_floor"] == before.consumer("billing").info()["ack_floor"]
    for key in ("messages", "first_seq", "last_seq", "num_deleted"):
        assert after.info()["state"][key] == before.info()["state"][key], key
    assert after.config.max_msg_size == 1000
    assert after.publish("orders.199", b"again", msg_id="id 199").duplicate
    assert target.verify()["ok"]
    again = copy_stream(source, target, "ORDERS")
    assert (again["copied"], again["already"]) == (0, True)
    source.stream("ORDERS").append([{"subject": "orders.x", "data": b"x"}] * 2)
    with pytest.raises(AlreadyExistsError, match="delete the copy"):
        copy_stream(source, target, "ORDERS")


@pytest.mark.parametrize("to_buckets", [True, False])
def test_copy_whose_process_is_killed_is_resumed(disks: list[str], buckets: list[str], to_buckets: bool) -> None:
    volumes = (disks, buckets) if to_buckets else (buckets, disks)
    source, target = fill(volumes[0]), Store.create(volumes[1])
    command = [sys.executable, "-c", COPY, ",".join(volumes[0]), ",".join(volumes[1])]
    for count in (3, 6):
        killed = subprocess.run([*command, str(count)], capture_output=True, text=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert target.streams() == [], "nothing is seen before all of it is there"
    source.stream("ORDERS").append([{"subject": "orders.late", "data": b"late"}])
    if not to_buckets:  # one copy of a block that is written already is not enough
        (first, *_) = sorted(Path(disks[0]).rglob("*.blk"))
        for volume in disks[:2]:
            _damage(next(Path(volume).rglob(first.name)))
    resumed = copy_stream(source, target, "ORDERS")
    assert (resumed["copied"], resumed["blocks"], resumed["last_seq"]) == (4 if to_buckets else 5, 10, 201)
    assert content(target) == content(source)
    assert target.verify()["ok"]
    left = [name for volume in target.volumes() for name in volume.blocks.records(target.stream("ORDERS").incarnation)]
    assert left == []


def test_copy_into_what_is_there_and_of_what_is_not_is_refused(disks: list[str], buckets: list[str]) -> None:
    source, target = fill(disks), Store.create(buckets)
    target.add_stream({"name": "ORDERS", "subjects": ["others.>"]})
    target.stream("ORDERS").publish("others.1", b"mine")
    words = ["stream", "copy", "ORDERS", buckets[1], "--store", disks[0]]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1 and "JSTREAM_ALREADY_EXISTS" in refused.output and "--as" in refused.output
    assert content(target)["data"].to_pylist() == [b"mine"]
    done = CliRunner().invoke(app, [*words, "--as", "COPY"])
    assert done.exit_code == 0 and "up to sequence 200" in done.output
    assert content(target, "COPY") == content(source)
    missing = CliRunner().invoke(app, ["stream", "copy", "ORDRES", buckets[1], "--store", disks[0]])
    assert missing.exit_code == 1 and "did you mean 'ORDERS'" in missing.output
    with pytest.raises(ValueError, match="as: 'a b'"):
        copy_stream(source, target, "ORDERS", "a b")


def test_block_of_which_no_copy_is_whole_is_named_and_others_do(tmp_path: Path, disks: list[str]) -> None:
    source, target = fill(disks), Store.create(tmp_path / "other")
    first, last = (
        f"{row.tobytes().hex()}.blk" for row in source.stream("ORDERS").state().blocks.rows["block_id"][[0, -1]]
    )
    for volume in disks[:2]:
        _damage(next(Path(volume).rglob(first)))
    assert copy_stream(source, target, "ORDERS")["already"] is False, "each has another copy"
    target.delete_stream("ORDERS")
    for volume in disks:
        _damage(next(Path(volume).rglob(last)))
    with pytest.raises(DataLossError, match=r"no copy of sequences \d+ to \d+ is whole.*jstream repair"):
        copy_stream(source, target, "ORDERS")
    assert target.streams() == []


def test_copy_that_the_target_has_no_room_for_is_refused_before_anything_is_written(
    tmp_path: Path, disks: list[str]
) -> None:
    source, target = fill(disks), Store.create(tmp_path / "other", max_msgs=100)
    with pytest.raises(LimitExceededError):
        copy_stream(source, target, "ORDERS")
    assert not len(target.view().state.pending_deletes), "no directory was prepared"


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
