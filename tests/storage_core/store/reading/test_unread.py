"""What waits for a reader: counts and ends from the manifest, against a walk over every message."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.reading.unread import UnreadRange

SIZE = 10  # bytes a message


def stream_of(spans: list[int], removed: set[int] | None = None, low_watermark: int = 1) -> StreamState:
    """Return a stream with blocks of so many messages each."""
    rows = np.zeros(len(spans), BLOCK_DTYPE)
    ends = 1 + np.cumsum(spans)
    rows["first"], rows["span"], rows["row_count"] = ends - spans, spans, spans
    rows["data_size"] = np.array(spans) * SIZE
    gone = SequenceSet.from_sequences(sorted(one for one in removed or set() if low_watermark <= one < int(ends[-1])))
    config = StreamConfig(name="ORDERS", subjects=("orders.>",))
    columns = Table.of(rows), ChunkedSet.of(gone)
    state = StreamState(config, bytes(16), 0, (bytes(16),), low_watermark, int(ends[-1]), *columns)
    return replace(state, blocks=state.blocks.keep(ends > low_watermark))


@st.composite
def pendings(draw: st.DrawFn) -> UnreadRange:
    spans = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    last = sum(spans)
    low_watermark = draw(st.integers(1, last))
    removed = draw(st.sets(st.integers(low_watermark, last)))
    first = draw(st.integers(1, last + 1))
    end = draw(st.integers(first, last + 1))
    return UnreadRange(stream_of(spans, removed, low_watermark), first, end)


def walked(one: UnreadRange) -> list[int]:
    shown = one.stream.shown()
    return [sequence for sequence in range(one.first, one.end) if sequence in shown]


def block_of(one: UnreadRange, sequence: int) -> int:
    rows = one.stream.blocks.rows
    return int(np.flatnonzero((rows["first"] <= sequence) & (sequence < rows["first"] + rows["span"]))[0])


@given(pendings())
def test_counts_are_those_of_a_walk(one: UnreadRange) -> None:
    messages = walked(one)
    assert one.message_count == len(messages)
    assert one.byte_count == SIZE * len(messages)
    assert one.block_count == len({block_of(one, sequence) for sequence in messages})


@given(pendings(), st.integers(1, 80))
def test_end_of_messages_lets_so_many_through(one: UnreadRange, count: int) -> None:
    messages = walked(one)
    end = one.end_of_messages(count)
    assert one.first <= end <= one.end
    assert [sequence for sequence in messages if sequence < end] == messages[:count]
    if count >= len(messages):
        assert end == one.end


@given(pendings(), st.integers(1, 900))
def test_end_of_bytes_stays_within_them_but_for_one_message(one: UnreadRange, size: int) -> None:
    messages = walked(one)
    through = [sequence for sequence in messages if sequence < one.end_of_bytes(size)]
    assert through == messages[: max(1, size // SIZE)]


@given(pendings(), st.integers(1, 8))
def test_end_of_blocks_lets_so_many_through(one: UnreadRange, count: int) -> None:
    messages = walked(one)
    blocks = sorted({block_of(one, sequence) for sequence in messages})
    through = [sequence for sequence in messages if sequence < one.end_of_blocks(count)]
    assert through == [sequence for sequence in messages if block_of(one, sequence) in blocks[:count]]


def test_end_goes_past_removed_messages_when_nothing_else_waits() -> None:
    one = UnreadRange(stream_of([10], removed={4, 5, 9, 10}), 1, 11)
    assert (one.end_of_messages(5), one.end_of_messages(6), one.end_of_messages(3)) == (8, 11, 4)


def test_bytes_of_a_block_that_was_read_in_part_are_those_of_the_rest() -> None:
    one = UnreadRange(stream_of([10, 10]), 6, 21)
    assert one.byte_count == 150
    assert one.end_of_bytes(70) == 13
