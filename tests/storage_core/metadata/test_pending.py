"""Pending messages against a dict of sequences; what a change does not touch is shared."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError
from storage_core.metadata import pending as module
from storage_core.metadata.pending import PendingMessages, decode_pending, pending_rows, pending_set
from storage_core.sequences import SequenceSet

SEQUENCES = st.sets(st.integers(1, 120), max_size=40)


@dataclass(frozen=True)
class Change:
    sequences: frozenset[int]
    put: bool
    deadline_ns: int
    deliveries: int


CHANGES = st.lists(
    st.builds(Change, SEQUENCES.map(frozenset), st.booleans(), st.integers(0, 3), st.integers(1, 2)), max_size=12
)


def content(rows: np.ndarray) -> dict[int, tuple[int, int]]:
    return {
        sequence: (int(row["deadline_ns"]), int(row["deliveries"]))
        for row in rows
        for sequence in range(int(row["first"]), int(row["end"]))
    }


@pytest.mark.parametrize("chunk_rows", [1, 3, 512])
@given(changes=CHANGES, asked=SEQUENCES, now_ns=st.integers(0, 3))
def test_pending_messages_say_what_a_dict_says(
    chunk_rows: int, changes: list[Change], asked: set[int], now_ns: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ROWS_MAX", chunk_rows)
        plain: dict[int, tuple[int, int]] = {}
        waiting = PendingMessages()
        for change in changes:
            chosen = SequenceSet.from_sequences(change.sequences)
            rows = pending_rows(chosen if change.put else SequenceSet.empty(), change.deadline_ns, change.deliveries)
            waiting = waiting.put(chosen, rows)
            for sequence in change.sequences:
                plain.pop(sequence, None)
                if change.put:
                    plain[sequence] = (change.deadline_ns, change.deliveries)
            assert content(waiting.rows) == plain
            assert (waiting.message_count, bool(waiting)) == (len(plain), bool(plain))
            # The rows are those of everything put at once: in order, and as few as can be.
            assert waiting.rows.tolist() == PendingMessages.of(waiting.rows).rows.tolist()
        assert content(waiting.within(SequenceSet.from_sequences(asked))) == {
            sequence: plain[sequence] for sequence in asked & plain.keys()
        }
        assert content(waiting.due(now_ns)) == {one: said for one, said in plain.items() if said[0] <= now_ns}
        assert content(waiting.moved(5).rows) == {one: (due - 5, count) for one, (due, count) in plain.items()}
        assert decode_pending(waiting.encode()).rows.tolist() == waiting.rows.tolist()


def scattered(row_count: int) -> PendingMessages:
    """Return messages of which every other one waits."""
    return PendingMessages.of(pending_rows(SequenceSet.from_sequences(np.arange(row_count) * 2 + 1), 77, 1))


def test_an_acknowledgement_among_many_touches_what_it_is_about() -> None:
    before = scattered(200_000)
    acked = SequenceSet.from_sequences([11, 100_001, 100_003])
    after = before.put(acked, pending_rows(SequenceSet.empty(), 0, 0))
    chunks = {id(one) for one in before._chunks}
    assert sum(id(one) not in chunks for one in after._chunks) <= 2 * 3  # two places, with the neighbours of each
    assert after.message_count == 200_000 - 3
    assert not after.within(acked).size
    assert pending_set(before.within(acked)) == acked


def test_chunks_do_not_get_smaller_and_smaller() -> None:
    waiting, nothing = scattered(20_000), pending_rows(SequenceSet.empty(), 0, 0)
    for start in range(0, 40_000, 200):  # all but one of each hundred
        waiting = waiting.put(SequenceSet.from_sequences(np.arange(start + 1, start + 199, 2)), nothing)
    assert (len(waiting), waiting.message_count) == (200, 200)
    assert len(waiting._chunks) <= 2


def test_many_rows_are_encoded_in_few_bytes() -> None:
    assert len(scattered(500_000).encode()) < 200_000


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\0\0\0",
        b"\xff\xff\xff\xff" + zlib.compress(b""),
        b"\x01\0\0\0" + zlib.compress(bytes(27)),
        b"\x01\0\0\0" + zlib.compress(bytes(29)),
        b"\x01\0\0\0" + zlib.compress(bytes(28)),
        b"\x01\0\0\0" + zlib.compress(b"\xff" * 28),
        b"\x01\0\0\0not deflated",
    ],
)
def test_bytes_that_are_no_pending_messages_are_refused(encoded: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_pending(encoded)


def test_every_length_and_every_flipped_bit_is_refused_or_in_order() -> None:
    encoded = PendingMessages.of(pending_rows(SequenceSet.from_ranges([(1, 3), (9, 12), (40, 41)]), 77, 2)).encode()
    for size in range(len(encoded)):
        with pytest.raises(CorruptionError):
            decode_pending(encoded[:size])
    decoded: list[Any] = []
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded.append(decode_pending(bytes(flipped)).rows)
        except CorruptionError:
            continue
    for rows in decoded:
        assert (rows["first"] < rows["end"]).all()
        assert (rows["first"][1:] >= rows["end"][:-1]).all()
