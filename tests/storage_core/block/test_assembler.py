"""Batches of any size in, frames within their bounds out."""

import gc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.assembler import SMALL_ROW_COUNT, FrameAssembler
from storage_core.block.format import FRAME_ROW_COUNT_MAX, FRAME_SIZE_TARGET
from storage_core.block.sizing import stored_ends


def assemble(batches: list[pa.RecordBatch], assembler: FrameAssembler) -> list[pa.RecordBatch]:
    frames = [frame for batch in batches for frame in assembler.add(batch, batch.nbytes)]
    return frames + assembler.finish()


def times(frames: list[pa.RecordBatch]) -> list[int]:
    return [time for frame in frames for time in frame.column("timestamp_ns").to_pylist()]


@given(st.lists(st.sampled_from([1, 2, 3, 255, 256, 257, 700]), min_size=1, max_size=12), st.integers(1, 600))
def test_rows_come_out_in_order_and_frames_are_full(blocks: Any, counts: list[int], frame_row_count: int) -> None:
    starts = [sum(counts[:position]) for position in range(len(counts))]
    batches = [blocks.plain(count, start, size=2) for count, start in zip(counts, starts, strict=True)]
    frames = assemble(batches, FrameAssembler(frame_row_count))
    assert times(frames) == list(range(sum(counts)))
    sizes = [frame.num_rows for frame in frames]
    assert all(size == frame_row_count for size in sizes[:-1])
    assert 1 <= sizes[-1] <= frame_row_count


@pytest.mark.parametrize("batch_rows", [1, 300, 10_000, 100_000])
def test_frames_keep_to_both_bounds(blocks: Any, batch_rows: int) -> None:
    for size, rows in ((0, 3 * FRAME_ROW_COUNT_MAX), (3_000, 5_000)) if batch_rows > 1 else ((3_000, 3_000),):
        batches = [blocks.plain(min(batch_rows, rows - at), at, size) for at in range(0, rows, batch_rows)]
        frames = assemble(batches, FrameAssembler())
        assert times(frames) == list(range(rows))
        for frame in frames:
            assert frame.num_rows <= FRAME_ROW_COUNT_MAX
            assert int(stored_ends(frame)[-1]) <= FRAME_SIZE_TARGET
        for frame in frames[:-1]:
            assert frame.num_rows == FRAME_ROW_COUNT_MAX or int(stored_ends(frame)[-1]) > FRAME_SIZE_TARGET - 4_000


def test_message_beyond_the_target_is_alone_in_its_frame(blocks: Any) -> None:
    large = blocks.batch(5, data=lambda number: b"x" * (FRAME_SIZE_TARGET + 1) if number == 2 else b"x")
    assert [frame.num_rows for frame in assemble([large], FrameAssembler())] == [2, 1, 2]
    one_by_one = [large.slice(row, 1) for row in range(5)]
    assert [frame.num_rows for frame in assemble(one_by_one, FrameAssembler())] == [2, 1, 2]


def test_single_rows_are_not_held_one_by_one(blocks: Any) -> None:
    assembler, row = FrameAssembler(), blocks.plain(1)
    for _ in range(10 * SMALL_ROW_COUNT + 5):
        assert not assembler.add(row, row.nbytes)
    assert len(assembler._small) == 5
    assert len(assembler._parts) == 10


def test_rest_of_a_large_batch_does_not_keep_it_in_memory(blocks: Any) -> None:
    gc.collect()
    before, assembler = pa.total_allocated_bytes(), FrameAssembler()
    batch = blocks.plain(200_001, size=100).take(pa.array(range(200_001)))
    assert pa.total_allocated_bytes() - before > 20_000_000
    assert len(assembler.add(batch, batch.nbytes)) == 6
    del batch
    assert pa.total_allocated_bytes() - before < 2 * FRAME_SIZE_TARGET
    assert assembler.size < FRAME_SIZE_TARGET
