"""Stores of format version 1 that are kept: they open unchanged, now and in every later version.

tests/data/stores/generate.py wrote them and says what is in them.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import FencedError, RequirementError, StoreBusyError, TransactionAbortedError
from storage_core.files import OS_FILES
from storage_core.metadata.commands import Append
from storage_core.metadata.state import ABORTED
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.volume.placement_journal import PlacementJournal
from storage_core.store.writing.appends import WriterBatch

STORES = Path(__file__).resolve().parents[2] / "data" / "stores"
NAMES = ["v1-fresh", "v1-lived", "v1-interrupted"]
NOON_NS = 1_795_262_400_000_000_000 + 3 * 3_600_000_000_000  # soon after the stores were left
HERE = Environment(now_ns=lambda: NOON_NS, lock_domain=lambda: "another machine", sleep=lambda _: None)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_stores", STORES / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORES / f"{name}.json").read_text())
    return found


def files_of(volume: Path) -> dict[str, bytes]:
    return {str(path.relative_to(volume)): path.read_bytes() for path in volume.rglob("*") if path.is_file()}


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the golden store that the test asks for."""
    shutil.copytree(STORES / request.param, tmp_path / "volume")
    return tmp_path / "volume"


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_unchanged(name: str) -> None:
    before = files_of(STORES / name)
    with Store.open(STORES / name, read_only=True, env=HERE) as store:
        assert generator.contents(store) == expected(name)
        report = store.verify()
    assert files_of(STORES / name) == before, "nothing was written"
    assert report["ok"] == (name != "v1-interrupted"), report["damage"]
    assert report["checked_blocks"] > 0


@pytest.mark.parametrize("copy", NAMES, indirect=True)
def test_a_copy_is_written_only_after_it_was_taken_over(copy: Path) -> None:
    before = files_of(copy)
    with pytest.raises(StoreBusyError, match="take-over"):
        Store.open(copy, env=HERE).add_stream({"name": "NEW"})
    assert {name: content for name, content in files_of(copy).items() if name != "lock"} == before


@pytest.mark.parametrize("copy", ["v1-fresh", "v1-lived"], indirect=True)
def test_a_copy_goes_on(copy: Path, request: pytest.FixtureRequest) -> None:
    held = expected(request.node.callspec.params["copy"])
    store = Store.open(copy, env=HERE, take_over=True)
    found = generator.contents(store)
    assert found.pop("host") != held.pop("host")
    assert found == held
    orders = store.stream("ORDERS")
    last = orders.last_sequence
    assert orders.append(generator.messages(["orders.eu"] * 3)) == range(last + 1, last + 4)
    store.add_stream({"name": "NEW"}).publish("NEW", b"new")
    with store.metadata.session(1.0) as session:
        assert session.snapshot()
    again = Store.open(copy, env=HERE)
    assert again.stream("ORDERS").last_sequence == last + 3
    assert again.stream("NEW").get(1).data == b"new"
    assert again.verify()["ok"]


@pytest.mark.parametrize("copy", ["v1-interrupted"], indirect=True)
def test_what_a_killed_holder_left_is_settled(copy: Path) -> None:
    store = Store.open(copy, env=HERE, take_over=True)
    assert store.streams() == ["ADDED", "ORDERS"]
    assert generator.contents(store)["streams"]["ORDERS"] == expected("v1-interrupted")["streams"]["ORDERS"]
    assert store.verify()["ok"]
    assert len(store.volumes()[0].log.segments()) == 2


@pytest.mark.parametrize("copy", ["v1-lived"], indirect=True)
def test_what_writers_stored_is_remembered(copy: Path) -> None:
    """A writer's batch is told what it got long ago; fenced runs and other queries are refused, as they were then."""
    store = Store.open(copy, env=HERE, take_over=True)
    audit, one = store.stream("AUDIT"), pa.table({"data": [b"again"]})
    nightly, first_of_etl = generator.messages(["AUDIT"] * 6), generator.messages(["AUDIT"] * 2, 102)
    assert audit.append(nightly, WriterBatch("nightly", "2026-11-20")) == range(1, 7)
    assert audit.append(first_of_etl, WriterBatch("etl", "1", "query 1", "run 1")) == range(9, 11)
    for writer in (WriterBatch("nightly", "2026-11-20"), WriterBatch("etl", "1", "query 1", "run 1")):
        with pytest.raises(FencedError, match="with other content"):
            audit.append(one, writer)
    with pytest.raises(FencedError):
        audit.append(one, WriterBatch("etl", "3", "query 1", "run 1"))
    with pytest.raises(RequirementError, match="belongs to query 1"):
        audit.append(one, WriterBatch("etl", "3", "query 2", "run 1"))
    with pytest.raises(RequirementError, match="sealed"):
        audit.append(one)
    aborted, *_ = [bytes(row["id"]) for row in store.view().state.transactions.rows if row["outcome"] == ABORTED]
    with store.metadata.session(1.0) as session, pytest.raises(TransactionAbortedError):
        session.check(Append(aborted, ()))


@pytest.mark.parametrize("copy", ["v1-lived"], indirect=True)
def test_recent_msg_ids_are_duplicates_still(copy: Path) -> None:
    clock = Environment(now_ns=lambda: _last_commit_ns(copy) + 1, lock_domain=lambda: "here", sleep=lambda _: None)
    store = Store.open(copy, env=clock, take_over=True)
    orders = store.stream("ORDERS")
    wanted = [row["seq"] for row in expected("v1-lived")["streams"]["ORDERS"]["messages"] if row["data"] == "after 2"]
    got = orders.publish("orders.eu", b"other data", msg_id="late 2")
    assert (got.duplicate, [got.sequence]) == (True, wanted)
    assert not orders.publish("orders.eu", b"new", msg_id="late 9").duplicate


def _last_commit_ns(volume: Path) -> int:
    state = Store.open(volume, read_only=True, env=HERE).view().state
    return int(max(one.blocks.rows["committed_ns"].max() for one in state.streams.values()))


@pytest.mark.parametrize("name", ["v1-fresh", "v1-lived"])
def test_the_journal_knows_every_block(name: str) -> None:
    state = Store.open(STORES / name, read_only=True, env=HERE).view().state
    journaled = {
        (one.incarnation, bytes(row["block_id"])): (int(row["first"]), int(row["span"]), bytes(row["digest"]))
        for one in PlacementJournal(OS_FILES, STORES / name).read()
        for row in one.rows
    }
    for stream in state.streams.values():
        for row in stream.blocks.rows:
            placed = journaled[stream.incarnation, bytes(row["block_id"])]
            assert placed == (int(row["first"]), int(row["span"]), bytes(row["digest"]))


def test_the_generator_writes_the_same_every_time(tmp_path: Path) -> None:
    for name in NAMES:
        made = []
        for run in ("one", "two"):
            (tmp_path / run / name).mkdir(parents=True)
            generator.make(name, tmp_path / run / name)
            made.append(files_of(tmp_path / run / name))
        assert made[0] == made[1]
