"""Log segments as bytes: what is written is what is read, and whatever is not whole is said to be bad."""

import pytest

from storage_core.raft import log_format
from storage_core.raft.entry import CHAIN_START, make_entry
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE


@pytest.mark.parametrize("left_over", range(0, 2 * 64 + 1, 8))
def test_a_batch_may_end_anywhere_in_its_page(left_over: int) -> None:
    """Zeros end a batch, also where fewer of them are left in the page than a record's header has."""
    payload = bytes([1]) * (PAGE_SIZE - 64 - left_over)
    first = make_entry(CHAIN_START, 1, 1, b"history.", payload)
    second = make_entry(first.chain, 2, 1, b"history.", b"second")
    one = log_format.encode_batch([first], BATCHES_OFFSET)
    two = log_format.encode_batch([second], BATCHES_OFFSET + len(one))

    read = [record for record, _ in log_format.scan(memoryview(one + two), BATCHES_OFFSET)]

    assert read == [first, second]
