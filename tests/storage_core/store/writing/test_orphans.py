"""Blocks that were staged and never named: what maintenance removes, and what it leaves alone."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import Store
from storage_core.errors import TransactionAbortedError
from storage_core.store.environment import REAL
from storage_core.store.writing.orphans import TRANSACTION_OPEN_NS
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction


def staged(store: Store) -> tuple[Transaction, list[StagedBlock]]:
    transaction = store.begin(["S"])
    stager = Stager(transaction, transaction.targets["S"], 0, env=store.environment)
    stager.write(pa.RecordBatch.from_pydict({"data": ["x"]}), "S")
    return transaction, stager.finish()


def files(store: Store) -> int:
    return len(list(Path(store.paths[0]).rglob("*.blk")))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    made.add_stream({"name": "S"}).publish("S", b"kept")
    return made


def test_a_task_that_outlives_the_abort_of_its_job_leaves_nothing_behind(store: Store) -> None:
    transaction, _ = staged(store)
    assert store.abort(transaction)
    late = Stager(transaction, transaction.targets["S"], 1)
    late.write(pa.RecordBatch.from_pydict({"data": ["late"]}), "S")
    late.finish()
    assert files(store) == 2
    store.maintain()
    assert files(store) == 1
    assert store.stream("S").read().read_all().column("data").to_pylist() == [b"kept"]


def test_the_losing_attempt_of_a_committed_append_is_swept(store: Store) -> None:
    transaction, blocks = staged(store)
    loser = Stager(transaction, transaction.targets["S"], 0)
    loser.write(pa.RecordBatch.from_pydict({"data": ["x"]}), "S")
    loser.finish()
    store.commit(transaction, blocks)
    store.maintain()
    assert files(store) == 2
    assert store.stream("S").read().read_all().num_rows == 2
    assert store.verify()["ok"]


def test_an_append_that_is_under_way_is_left_alone(store: Store) -> None:
    transaction, blocks = staged(store)
    store.maintain()
    store.commit(transaction, blocks)
    assert store.stream("S").read().read_all().num_rows == 2


def test_an_append_that_nobody_finished_is_given_up_before_it_is_swept(tmp_path: Path) -> None:
    now = [REAL.now_ns()]
    store = Store.create(tmp_path / "store", env=replace(REAL, now_ns=lambda: now[0]))
    store.add_stream({"name": "S"})
    transaction, blocks = staged(store)
    now[0] += TRANSACTION_OPEN_NS + 1
    store.maintain()
    assert files(store) == 0
    with pytest.raises(TransactionAbortedError):
        store.commit(transaction, blocks)


def test_a_removed_block_stays_for_as_long_as_older_plans_may_read_it(store: Store) -> None:
    store.stream("S").purge()
    store.maintain()
    assert files(store) == 1
