"""Forged footers: each contradiction is refused by name, and a bomb costs no memory."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from storage_core.block.footer import decode_footer
from storage_core.errors import CorruptionError


def i64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def u32(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def column(position: int, row: int, value: int) -> Callable[[Any], None]:
    """Return a change of one number in the frame table."""

    def change(forged: Any) -> None:
        forged.columns[position][row] = value

    return change


def section(**changes: Any) -> Callable[[Any], None]:
    return lambda forged: forged.sections.update(changes)


# The block has 8 rows in frames of 3, 3 and 2 with message ids behind the first two; subjects s.0, s.1, s.2.
FORGERIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "unknown kind": (column(0, 0, 3), "impossible kinds in frame 0"),
    "kind 0": (column(0, 4, 0), "impossible kinds in frame 4"),
    "ids after ids": (column(0, 2, 2), "impossible kinds in frame 2"),
    "no rows": (column(3, 4, 0), "impossible row counts in frame 4"),
    "too many rows in a frame": (column(3, 0, 65_537), "impossible row counts in frame 0"),
    "more ids than messages": (column(3, 1, 4), "impossible message ids in frame 1"),
    "times of ids": (column(5, 1, 9), "impossible message ids in frame 1"),
    "times backwards": (column(4, 0, 2**62), "impossible time ranges in frame 0"),
    "rows not those of the runs": (column(3, 4, 1), "8 sequences for 7 rows"),
    "runs below 0": (section(runs=i64(-1, 7)), "runs are"),
    "no runs": (section(runs=b""), "pairs of int64"),
    "runs of other rows": (section(runs=i64(0, 9)), "9 sequences for 8 rows"),
    "subject counts of other rows": (section(subject_counts=u32(3, 3, 3)), "subjects of 9 rows"),
    "count of 0": (section(subject_counts=u32(8, 0, 0)), "subjects of 8 rows"),
    "counts that overflow": (section(subject_counts=u32(2**32 - 1, 2, 7)), "subjects of 4294967304 rows"),
    "ends beyond the text": (section(subject_ends=u32(3, 6, 10)), "fill their text"),
    "ends backwards": (section(subject_ends=u32(6, 3, 9)), "fill their text"),
    "half an end": (section(subject_ends=bytes(10)), "subject_ends has 10 bytes"),
    "unsorted": (section(subjects=b"s.1s.0s.2"), "not sorted"),
    "twice": (section(subjects=b"s.0s.0s.2"), "not sorted"),
    "no UTF-8": (section(subjects=b"s.0s.1s.\xff"), "UTF8"),
    "bits of too few frames": (section(frame_subjects=bytes(8)), "subject bits of 1 frames"),
    "frame without subjects": (section(frame_subjects=np.array([7, 7, 0], "<u8").tobytes()), "subject bits"),
    "bit of no subject": (section(frame_subjects=np.array([7, 7, 15], "<u8").tobytes()), "subject bits"),
    "bloom beside subjects": (section(bloom=bytes(64)), "beside 3 listed"),
    "nothing of subjects": (
        section(subjects=b"", subject_ends=b"", subject_counts=b"", frame_subjects=b""),
        "0 subjects of 0 bytes",
    ),
    "bloom of an odd size": (
        section(bloom=bytes(65), subjects=b"", subject_ends=b"", subject_counts=b"", frame_subjects=b""),
        "bloom filter of 65 bytes",
    ),
    "negative size": (section(data_size=-1), "data_size -1"),
    "size as text": (section(data_size="12"), "data_size is not int"),
    "size as bool": (section(data_size=True), "data_size is not int"),
    "checksum too large": (section(header_crc32c=2**32), "header_crc32c"),
    "list for a binary": (section(bloom=[]), "bloom is not bytes"),
    "map for a binary": (section(bloom={}), "bloom is not bytes"),
    "key too many": (section(more=1), "map of the footer's keys"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_footer_is_refused_by_name(blocks: Any, forger: Any, memory_file: Any, forgery: str) -> None:
    change, reason = FORGERIES[forgery]
    forged = forger(blocks.with_everything().data)
    end = forged.table.end_offset
    change(forged)
    forged.sections["frames"] = forged.table.encode()
    with pytest.raises(CorruptionError, match=reason) as caught:
        decode_footer(msgpack.packb(forged.sections), "f.blk", end)
    assert caught.value.args[0].file == "f.blk"
    assert caught.value.args[0].offset_bytes == end


def test_untouched_footer_round_trips(blocks: Any, forger: Any) -> None:
    sealed = blocks.with_everything()
    forged = forger(sealed.data)
    assert forged.seal() == sealed.data
    footer = sealed.reader().footer
    assert footer.encode() == msgpack.packb(forged.sections)
    assert (footer.row_count, footer.span, footer.msg_id_count) == (8, 21, 3)


def test_footer_at_another_place_is_refused(blocks: Any, forger: Any) -> None:
    forged = forger(blocks.with_everything().data)
    with pytest.raises(CorruptionError, match="frames end at"):
        decode_footer(msgpack.packb(forged.sections), "f", forged.table.end_offset + 64)


@pytest.mark.parametrize(
    "bomb",
    [b"\x90" * 1_000_000, b"\x99" * 1_000_000, b"\xdd\xff\xff\xff\xff" * 1000, b"\x89" + b"\x80" * 1_000_000]
    + [b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"", b"\xc1", b"\x89\xad"],
    ids=["empty arrays", "nested arrays", "huge arrays", "maps", "huge bin", "huge map", "nothing", "never", "cut"],
)
def test_bomb_costs_no_more_than_its_size(bomb: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        decode_footer(bomb, "f", 128)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(bomb) + 500_000


def test_byte_behind_the_map_is_refused(blocks: Any, forger: Any) -> None:
    forged = forger(blocks.with_everything().data)
    with pytest.raises(CorruptionError, match="1 bytes behind"):
        decode_footer(msgpack.packb(forged.sections) + b"\xc0", "f", forged.table.end_offset)
