"""Frames that are read together are found damaged each by itself."""

from typing import Any

import numpy as np
import pytest

from storage_core.block.pieces import PIECE_SIZE, ReadMemory, pieces

SIZES = [0, 1, 63, 64, 5000, PIECE_SIZE // 3, PIECE_SIZE // 2, PIECE_SIZE - 1, PIECE_SIZE, PIECE_SIZE + 1]


@pytest.mark.parametrize("seed", range(12))
def test_pieces_are_all_parts_once_and_small_unless_one_is_large(seed: int) -> None:
    bounds = 100 + np.cumsum([0, *np.random.default_rng(seed).choice(SIZES, 1 + seed)])
    made = pieces(bounds)
    assert [part for first, end in made for part in range(first, end)] == list(range(len(bounds) - 1))
    assert all(bounds[end] - bounds[first] <= PIECE_SIZE or end - first == 1 for first, end in made)
    assert all(bounds[end] - bounds[first] > PIECE_SIZE for (first, _), (_, end) in zip(made, made[1:], strict=False))
    assert pieces(bounds[:1]) == []


def test_many_frames_cost_one_read_and_memory_goes_from_block_to_block(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(40), frame_row_count=2)
    reader, memory = sealed.reader(True), ReadMemory()
    file = memory_file(bytearray(sealed.data))
    reader = type(reader).open(file, sealed.expected)
    file.reads.clear()
    assert not list(reader.verify(memory=memory))
    frames = reader.footer.frames
    assert [read for read in file.reads if read[0] == frames.offsets[0]] == [
        (int(frames.offsets[0]), int(frames.end_offset - frames.offsets[0]))
    ]
    for position in (3, 7):
        file.data[int(frames.offsets[position]) + 70] ^= 1
    assert [damage.frame for damage in reader.verify(memory=memory)] == [3, 7]
