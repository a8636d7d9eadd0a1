"""Merging in the state machine: one block in the place of several, refused unless it says the same as they do."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from harness.metadata_history import INIT, ONE, VOLUME, History, blocks, config, refusal, transaction

from storage_core import errors
from storage_core.metadata.commands import AddStream, Append, MergeBlocks, Remove, Unlinked
from storage_core.metadata.machine import Done
from storage_core.metadata.manifest import BLOCK_DTYPE, Table, decode_blocks, encode_blocks
from storage_core.metadata.state import COMMITTED, StreamState
from storage_core.metadata.subject_sets import SUBJECT_SET_COUNT_MAX
from storage_core.sequences import SequenceSet

MERGED = b"M" * 16
WINDOW = config().duplicate_window


def history(*spans: int, **given: Any) -> History:
    """Return a store with the stream ORDERS and blocks of these spans."""
    append = Append(transaction(1), (blocks(*spans, **given),))
    return History(INIT, AddStream(ONE, config(), (VOLUME,)), append)


def merge(one: History, start: int, end: int, dropped: SequenceSet | None = None, **given: Any) -> MergeBlocks:
    """Return the command that merges the blocks at these positions of the manifest."""
    rows = one.stream().blocks.rows[start:end]
    row = np.zeros(1, BLOCK_DTYPE)
    first, last = int(rows["first"][0]), int(rows["first"][-1] + rows["span"][-1])
    row[0] = (
        MERGED, b"d" * 16, first, last - first, int(rows["row_count"].sum()) - len(dropped or ()), 300,
        int(rows["data_size"].sum()), 1, 2, 0, 0, 7, 1,
    )  # fmt: skip
    made = MergeBlocks(transaction(9), ONE, rows["block_id"].tobytes(), encode_blocks(row))
    if dropped is not None:
        made = msgspec.structs.replace(made, dropped=dropped.encode())
    return msgspec.structs.replace(made, **given)


def shown(stream: StreamState) -> tuple[object, ...]:
    return stream.message_count, stream.data_size, stream.next_sequence, stream.first_sequence, stream.histories


def test_a_run_of_blocks_becomes_one_and_nothing_else_changes() -> None:
    one = history(3, 2, 4, 1)
    before, rows = one.stream(), one.stream().blocks.rows
    assert one.apply(merge(one, 1, 3)) == Done()
    after = one.stream()
    assert shown(after) == shown(before)
    assert [bytes(row) for row in after.blocks.rows["block_id"]] == [
        bytes(rows["block_id"][0]), MERGED, bytes(rows["block_id"][3])
    ]  # fmt: skip
    assert after.blocks.rows["first"].tolist() == [1, 4, 10]
    assert after.blocks.rows["span"].tolist() == [3, 6, 1]
    assert after.blocks.rows["committed_ns"][1] == rows["committed_ns"][2]
    assert one.state.outcome(transaction(9)) == COMMITTED


def test_the_old_blocks_wait_to_be_unlinked_apart_from_removed_ones() -> None:
    one = history(3, 2, 4)
    names = [bytes(row["block_id"]) for row in one.stream().blocks.rows]
    one.apply(merge(one, 0, 2))
    assert len(one.state.pending_deletes) == 0
    assert [(bytes(row["incarnation"]), bytes(row["block_id"])) for row in one.state.deletes] == [
        (ONE, names[0]), (ONE, names[1])
    ]  # fmt: skip
    assert set(one.state.replaced.rows["dropped_ns"].tolist()) == {one.time_ns}
    one.apply(Unlinked((ONE + names[0],)))
    assert [bytes(row) for row in one.state.replaced.rows["block_id"]] == [names[1]]


def test_rows_that_are_removed_may_be_dropped() -> None:
    one = history(3, 3)
    gone = SequenceSet.from_sequences([2, 6])
    one.apply(Remove(ONE, gone.encode(), 20))
    before = one.stream()
    assert one.apply(merge(one, 0, 2, gone)) == Done()
    assert shown(one.stream()) == shown(before)
    assert one.stream().removed.whole() == gone
    assert one.stream().blocks.rows["span"].tolist() == [6], "the run ends where it did, though its last row is gone"


def test_rows_below_the_floor_may_be_dropped() -> None:
    one = history(3, 3)
    one.apply(Remove(ONE, SequenceSet.empty().encode(), 20, low_watermark=3))
    assert one.apply(merge(one, 0, 2, SequenceSet.from_sequences([1, 2]))) == Done()
    assert one.stream().first_sequence == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda made, one: {"blocks": made.blocks[16:]}, "not all live any more"),
        (lambda made, one: {"blocks": made.blocks[:16] + bytes(16)}, "not all live any more"),
        (lambda made, one: {"blocks": b""}, "not all live any more"),
        (lambda made, one: {"blocks": made.blocks[:16]}, "not all live any more"),
        (lambda made, one: {"row": changed(made, first=2)}, "not all live any more"),
        (lambda made, one: {"row": changed(made, span=6)}, "end at 6, the merged one at 7"),
        (lambda made, one: {"row": changed(made, row_count=4)}, "hold 5 messages without those removed, not 4"),
        (lambda made, one: {"dropped": SequenceSet.from_sequences([2]).encode()}, "lacks messages that are shown"),
    ],
)
def test_a_merge_that_does_not_fit_the_stream_is_refused(change: Any, why: str) -> None:
    one = history(3, 2, 4)
    made = merge(one, 0, 2)
    error, reason = refusal(one.apply(msgspec.structs.replace(made, **change(made, one))))
    assert error is errors.RequirementError
    assert why in reason


def changed(made: MergeBlocks, **given: int) -> bytes:
    row = decode_blocks(made.row, "row").copy()
    for name, value in given.items():
        row[name] = value
    return encode_blocks(row)


def test_what_is_removed_while_a_merge_is_made_does_not_come_back() -> None:
    one = history(3, 2)
    made = merge(one, 0, 2)
    one.apply(Remove(ONE, SequenceSet.from_sequences([2]).encode(), 10))
    assert one.apply(made) == Done()
    assert one.stream().message_count == 4
    assert 2 in one.stream().removed


def test_a_merge_of_blocks_that_were_removed_or_merged_meanwhile_is_refused() -> None:
    one = history(3, 2, 4)
    made = merge(one, 0, 3)
    one.apply(merge(one, 0, 2, transaction=transaction(8)))
    assert refusal(one.apply(made))[0] is errors.RequirementError
    one.apply(Remove(ONE, SequenceSet.empty().encode(), 50, low_watermark=6))
    assert refusal(one.apply(made))[0] is errors.RequirementError
    again = merge(one, 0, 1)
    assert refusal(one.apply(again))[0] is errors.RequirementError


def test_a_transaction_merges_once() -> None:
    one = history(3, 2, 4)
    one.apply(merge(one, 0, 2))
    error, reason = refusal(one.apply(merge(one, 0, 2)))
    assert error is errors.AlreadyExistsError
    assert "committed before" in reason


def test_blocks_wait_until_their_msg_ids_count_no_more() -> None:
    one = history(3, 2)
    rows = one.stream().blocks.rows.copy()
    rows["msg_id_count"][1] = 1
    one.state = one.state.with_stream(replace(one.stream(), blocks=Table.of(rows)))
    assert "msg_ids count until" in refusal(one.apply(merge(one, 0, 2)))[1]
    one.time_ns += WINDOW
    assert one.apply(merge(one, 0, 2)) == Done()


def test_blocks_of_two_incarnations_are_not_merged() -> None:
    one = history(3, 2)
    one.state = one.state.with_stream(replace(one.stream(), origins=((b"O" * 16, 4),)))
    assert "two incarnations" in refusal(one.apply(merge(one, 0, 2)))[1]


def test_old_blocks_are_unlinked_where_they_were_written() -> None:
    one = history(3, 2, 1)
    one.state = one.state.with_stream(replace(one.stream(), origins=((b"O" * 16, 6),)))
    one.apply(merge(one, 0, 2))
    assert {bytes(row["incarnation"]) for row in one.state.replaced.rows} == {b"O" * 16}


def test_subjects_are_summarised_together() -> None:
    one = history(1, 1, 1, subjects=[("a",), ("b",), ("a",)])
    one.apply(merge(one, 0, 2, subjects=("a", "b")))
    stream = one.stream()
    assert [stream.subject_sets[at - 1] for at in stream.blocks.rows["subject_set"].tolist()] == [("a", "b"), ("a",)]
    one.apply(merge(one, 0, 2, transaction=transaction(10)))
    assert one.stream().blocks.rows["subject_set"].tolist() == [0]


def test_sets_that_no_block_has_any_more_make_room() -> None:
    many = [(f"s{number}",) for number in range(SUBJECT_SET_COUNT_MAX)]
    one = history(*[1] * len(many), subjects=many)
    one.apply(merge(one, 0, 1000, subjects=tuple("xyz")))
    stream = one.stream()
    assert len(stream.subject_sets) == 25
    assert [stream.subject_sets[at - 1] for at in stream.blocks.rows["subject_set"].tolist()] == [
        ("x", "y", "z"), *many[1000:]
    ]  # fmt: skip
