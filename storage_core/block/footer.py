"""Footer of a block: everything that a reader plans by, and what the manifest's digest is taken over.

One flat msgpack map (docs/formats/block.md, section 5). It is taken apart here with every container bounded: values
are integers and binaries, and nothing nests, so a forged footer of n bytes costs a small multiple of n.
"""

from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.block.bloom import is_filter_size
from storage_core.block.damage import Defect
from storage_core.block.format import (
    FOOTER_SIZE_MAX,
    SUMMARY_SUBJECT_COUNT_MAX,
    SUMMARY_TEXT_SIZE_MAX,
    BlockSummary,
)
from storage_core.block.frame_table import FrameTable, decode_frame_table
from storage_core.block.runs import SequenceRuns, decode_runs
from storage_core.block.subject_summary import (
    FRAME_SUBJECT_COUNT_MAX,
    SUBJECT_COUNT_MAX,
    SUBJECT_TEXT_SIZE_MAX,
    SubjectSummary,
)
from storage_core.bounded import pack
from storage_core.errors import CorruptionError

_NUMBERS = ("header_crc32c", "data_size")
_BINARIES = ("frames", "runs", "subjects", "subject_ends", "subject_counts", "frame_subjects", "bloom")
_KEYS = _NUMBERS + _BINARIES


@dataclass(frozen=True, slots=True)
class Footer:
    header_crc32c: int
    data_size: int  # message bytes: subjects, header keys and values, data
    frames: FrameTable
    runs: SequenceRuns  # relative sequences of the rows
    subjects: SubjectSummary

    @property
    def row_count(self) -> int:
        return self.frames.row_count

    @property
    def span(self) -> int:
        """Return the end of the relative sequences used: `[0, span)`."""
        return self.runs.span

    @property
    def time_min_ns(self) -> int:
        return int(self.frames.time_min_ns[self.frames.messages].min())

    @property
    def time_max_ns(self) -> int:
        return int(self.frames.time_max_ns[self.frames.messages].max())

    @property
    def msg_id_count(self) -> int:
        return self.frames.msg_id_count

    def summary(self, block_id: bytes, digest: bytes, file_size: int) -> BlockSummary:
        """Return what the manifest keeps of the block."""
        subjects = None
        if self.subjects.is_exact and len(self.subjects.names) <= SUMMARY_SUBJECT_COUNT_MAX:
            names = tuple(self.subjects.names.to_pylist())
            subjects = names if sum(len(name.encode()) for name in names) <= SUMMARY_TEXT_SIZE_MAX else None
        return BlockSummary(
            block_id=block_id,
            digest=digest,
            file_size=file_size,
            row_count=self.row_count,
            span=self.span,
            data_size=self.data_size,
            time_min_ns=self.time_min_ns,
            time_max_ns=self.time_max_ns,
            subjects=subjects,
            msg_id_count=self.msg_id_count,
        )

    def encode(self) -> bytes:
        names = self.subjects.names.to_pylist()
        encoded = [name.encode() for name in names]
        ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)
        values = (
            self.header_crc32c,
            self.data_size,
            self.frames.encode(),
            self.runs.encode(),
            b"".join(encoded),
            ends.astype("<u4").tobytes(),
            self.subjects.counts.astype("<u4").tobytes(),
            self.subjects.frame_bits.astype("<u8").tobytes(),
            self.subjects.bloom,
        )
        footer = pack(dict(zip(_KEYS, values, strict=True)))
        assert len(footer) <= FOOTER_SIZE_MAX, len(footer)
        return footer


def decode_footer(data: bytes, file: str, offset_bytes: int) -> Footer:
    """Return the footer that lies at `offset_bytes` in the file; it fits itself and its place.

    Raises CorruptionError. Checksum and digest are the caller's, who has the trailer and the manifest.
    """
    try:
        values = _unpack(data)
        frames = decode_frame_table(values["frames"])
        runs = decode_runs(values["runs"])
        if runs.row_count != frames.row_count:
            raise ValueError(f"{runs.row_count} sequences for {frames.row_count} rows")
        if frames.end_offset != offset_bytes:
            raise ValueError(f"frames end at {frames.end_offset}")
        subjects = _decode_subjects(values, len(frames.messages), frames.row_count)
    except (ValueError, OverflowError, msgpack.UnpackException, pa.ArrowInvalid) as error:
        defect = Defect(file, offset_bytes, "footer", "one of format 1", str(error) or type(error).__name__)
        raise CorruptionError(defect) from error
    return Footer(values["header_crc32c"], values["data_size"], frames, runs, subjects)


def _unpack(data: bytes) -> dict[str, Any]:
    size = len(data)
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=max(size, 1),
        max_str_len=32,
        max_bin_len=size,
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    unpacker.feed(data)
    if unpacker.read_map_header() != len(_KEYS):
        raise ValueError("not a map of the footer's keys")
    values: dict[str, Any] = {}
    for key in _KEYS:
        unpacked = unpacker.unpack()
        if unpacked != key:
            raise ValueError(f"key {unpacked!r} where {key!r} should be")
        values[key] = unpacker.unpack()
        kind = int if key in _NUMBERS else bytes
        if type(values[key]) is not kind:
            raise ValueError(f"{key} is not {kind.__name__}")
    if unpacker.tell() != size:
        raise ValueError(f"{size - unpacker.tell()} bytes behind the map")
    if not 0 <= values["header_crc32c"] < 1 << 32 or not 0 <= values["data_size"] < 1 << 63:
        raise ValueError(f"header_crc32c {values['header_crc32c']}, data_size {values['data_size']}")
    return values


def _decode_subjects(values: dict[str, Any], frame_count: int, row_count: int) -> SubjectSummary:
    ends = _numbers(values, "subject_ends", "<u4").astype(np.int64)
    counts = _numbers(values, "subject_counts", "<u4")
    bits = _numbers(values, "frame_subjects", "<u8")
    text, bloom = values["subjects"], values["bloom"]
    if bloom:
        if len(ends) or len(counts) or len(bits) or text or not is_filter_size(len(bloom)):
            raise ValueError(f"a bloom filter of {len(bloom)} bytes beside {len(ends)} listed subjects")
        return SubjectSummary(buffers.of_texts(()), counts, bits, bloom)
    if not 1 <= len(ends) == len(counts) <= SUBJECT_COUNT_MAX or len(text) > SUBJECT_TEXT_SIZE_MAX:
        raise ValueError(f"{len(ends)} subjects of {len(text)} bytes with {len(counts)} counts")
    if ends[-1] != len(text) or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("subjects do not fill their text")
    if not counts.all() or int(counts.sum(dtype=np.int64)) != row_count:
        raise ValueError(f"subjects of {int(counts.sum(dtype=np.int64))} rows, the block has {row_count}")
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    names = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))
    names.validate(full=True)
    if len(names) > 1 and not pc.all(pc.less(names[:-1], names[1:])).as_py():
        raise ValueError("subjects are not sorted and distinct")
    _check_frame_bits(bits, len(names), frame_count)
    return SubjectSummary(names, counts, bits, b"")


def _check_frame_bits(bits: np.ndarray, subject_count: int, frame_count: int) -> None:
    if subject_count > FRAME_SUBJECT_COUNT_MAX:
        if len(bits):
            raise ValueError(f"subject bits of frames with {subject_count} subjects")
        return
    every = np.uint64((1 << subject_count) - 1)
    if len(bits) != frame_count or not bits.all() or np.bitwise_or.reduce(bits) != every:
        raise ValueError(f"subject bits of {len(bits)} frames do not fit {subject_count} subjects")


def _numbers(values: dict[str, Any], key: str, kind: str) -> np.ndarray:
    data = values[key]
    if len(data) % np.dtype(kind).itemsize:
        raise ValueError(f"{key} has {len(data)} bytes")
    return np.frombuffer(data, kind)
