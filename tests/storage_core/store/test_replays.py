"""What is asked before anything else: was this batch stored, was this transaction given up?"""

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.errors import AlreadyExistsError, FencedError, TransactionAbortedError
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "volume", deleted_block_retention="0s")
    made.add_stream({"name": "orders"})
    return made


def staged(store: Store) -> tuple[Transaction, list[StagedBlock]]:
    transaction = store.begin(["orders"])
    stager = Stager(transaction, transaction.targets["orders"], 0)
    stager.write(pa.record_batch({"data": pa.array([b"one", b"two"])}))
    return transaction, stager.finish()


def test_a_zombie_s_commit_of_an_aborted_transaction_says_that_it_was_aborted(store: Store) -> None:
    """Its blocks are swept by then; found by the state machine."""
    transaction, blocks = staged(store)
    assert store.abort(transaction)
    with pytest.raises(TransactionAbortedError):
        store.commit(transaction, blocks)
    assert store.abort(transaction)


def test_a_batch_is_known_again_when_its_messages_are_purged_and_unlinked(store: Store) -> None:
    transaction, blocks = staged(store)
    batch = WriterBatch("loader", "1")
    first = store.commit(transaction, blocks, batch)
    store.stream("orders").purge()
    store.maintain()
    again = store.commit(transaction, blocks, batch)
    assert again.already and again.appended == first.appended
    assert store.stream("orders").last_sequence == 2


def test_a_transaction_is_committed_once_without_a_writer_too(store: Store) -> None:
    transaction, blocks = staged(store)
    store.commit(transaction, blocks)
    with pytest.raises(AlreadyExistsError):
        store.commit(transaction, blocks)
    assert not store.abort(transaction)
    assert store.stream("orders").read().read_all().num_rows == 2


def test_a_batch_that_was_stored_without_one_of_its_streams_is_refused_and_not_dropped(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for name in ("P", "Q"):
        store.add_stream({"name": name})
    writer = WriterBatch("nightly", "1")
    store.stream("P").append(pa.table({"data": ["x"]}), writer)
    transaction = store.begin(["P", "Q"])
    blocks = []
    for name in ("P", "Q"):
        stager = Stager(transaction, transaction.targets[name], 0)
        stager.write(pa.RecordBatch.from_pydict({"data": ["x"]}))
        blocks.extend(stager.finish())
    with pytest.raises(FencedError, match="batch '1' of writer 'nightly' is in stream 'P' with other content"):
        store.commit(transaction, blocks, writer)
    assert store.stream("P").last_sequence == 1
    assert store.stream("Q").last_sequence == 0
