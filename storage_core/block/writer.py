"""BlockWriter: batches in, one sealed block file out, front to back, each byte written once.

State: open (takes batches), sealed (finish has returned), failed (a write or the fsync failed, or bytes of unknown
extent are in the file). From failed nothing leads back: whoever asked for the block removes the file and, if it
likes, writes another one under another id.
"""

import numpy as np
import pyarrow as pa

from storage_core.block.assembler import FrameAssembler
from storage_core.block.footer import Footer
from storage_core.block.format import (
    BLOCK_SIZE_MAX,
    CODECS,
    FOOTER_SIZE_MAX,
    FRAME_COUNT_MAX,
    FRAME_HEADER_SIZE,
    FRAME_ROW_COUNT_MAX,
    HEADER_SIZE,
    KIND_MESSAGE_IDS,
    KIND_MESSAGES,
    MESSAGE_SIZE_MAX,
    PAYLOAD_SIZE_MAX,
    ROW_COUNT_MAX,
    ROW_SIZE_MAX,
    TRAILER_SIZE,
    BlockHeader,
    BlockIdentity,
    BlockSummary,
    FrameHeader,
    Trailer,
    aligned,
    digest_of,
)
from storage_core.block.frame_table import FrameTable
from storage_core.block.payload import encode_payload
from storage_core.block.runs import RunBuilder
from storage_core.block.sizing import compact, message_size, message_sizes, stored_ends
from storage_core.block.subject_summary import SubjectCounter
from storage_core.checksum import crc32c
from storage_core.errors import InvalidMessageError
from storage_core.files import File
from storage_core.schema import FRAME_SCHEMA

_FRAMES_END_MAX = BLOCK_SIZE_MAX - FOOTER_SIZE_MAX - TRAILER_SIZE


class BlockWriter:
    """Streams one block to a new, empty file. Holds about two frames; not safe for use from several threads.

    Copies on several volumes are one `File` that writes to all of them. After an exception from the file the
    writer is failed and refuses everything.
    """

    def __init__(
        self,
        file: File,
        identity: BlockIdentity,
        codec: str = "none",
        frame_row_count: int = FRAME_ROW_COUNT_MAX,  # rows that close a frame before its size does
    ) -> None:
        if codec not in CODECS:
            raise ValueError(f"codec {codec!r}: blocks are written with {', '.join(CODECS)}")
        assert 1 <= frame_row_count <= FRAME_ROW_COUNT_MAX, frame_row_count
        self._file, self._identity, self._codec = file, identity, codec
        self._assembler = FrameAssembler(frame_row_count)
        self._frames: list[FrameHeader] = []
        self._runs = RunBuilder()
        self._subjects = SubjectCounter()
        self._message_ids = _MessageIds()
        self._row_count = 0  # taken
        self._framed_rows = 0  # of these, written in frames
        self._data_size = 0
        self._offset = 0  # end of what was written
        self._state = "open"
        self._header = BlockHeader(identity, codec).encode()
        self._append(self._header)

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def size(self) -> int:
        """Return the bytes of the file so far; rows that wait for their frame count with their uncompressed size."""
        return self._offset + self._assembler.size

    @property
    def held_size(self) -> int:
        """Return the uncompressed size of the rows that wait for their frame."""
        return self._assembler.size

    def write(
        self,
        batch: pa.RecordBatch,
        msg_id_hashes: np.ndarray | None = None,
        sequences: np.ndarray | None = None,
    ) -> None:
        """Append the rows of a batch with the columns of schema.FRAME_SCHEMA.

        `msg_id_hashes`: shape (rows, 2), uint64, from hashing.msg_id_hashes; the pair (0, 0) is no message id.
        `sequences`: relative to the block's first one, int64, ascending, above those before; None: they follow on.

        Raises ValueError for arguments that break these rules and for more than ROW_COUNT_MAX rows,
        InvalidMessageError for a message beyond MESSAGE_SIZE_MAX or ROW_SIZE_MAX; then nothing of the batch was
        taken. Raises OSError from the file, and ValueError if the block grows beyond BLOCK_SIZE_MAX or
        FRAME_COUNT_MAX (a caller rolls to the next block well before); then the writer is failed.
        """
        self._check_open()
        if not batch.num_rows:
            return
        self._check(batch, msg_id_hashes, sequences)
        size = batch.nbytes
        if size > MESSAGE_SIZE_MAX:
            _check_message_sizes(batch)
        if sequences is None:
            self._runs.add_contiguous(batch.num_rows)
        else:
            self._runs.add(np.asarray(sequences, np.int64))
        self._state = "failed"
        if msg_id_hashes is not None:
            self._message_ids.add(self._row_count, msg_id_hashes)
        self._row_count += batch.num_rows
        for frame in self._assembler.add(batch, size):
            self._write_frame(frame)
        self._state = "open"

    def finish(self) -> BlockSummary:
        """Write the last frame, footer and trailer, fsync the file, and return what the manifest keeps of the block.

        The directory is made durable by the caller. Raises ValueError if there are no rows, OSError from the file.
        """
        self._check_open()
        if not self._row_count:
            raise ValueError("block: without rows there is no block")
        self._state = "failed"
        for frame in self._assembler.finish():
            self._write_frame(frame)
        footer = self._footer()
        encoded = footer.encode()
        self._append(encoded + Trailer(self._offset, len(encoded), crc32c(encoded)).encode())
        self._file.sync()
        self._state = "sealed"
        return footer.summary(self._identity.block_id, digest_of(encoded), self._offset)

    # --- checks

    def _check_open(self) -> None:
        if self._state != "open":
            raise ValueError(f"block {self._identity.block_id.hex()}: the writer is {self._state}")

    def _check(self, batch: pa.RecordBatch, msg_id_hashes: np.ndarray | None, sequences: np.ndarray | None) -> None:
        if not batch.schema.equals(FRAME_SCHEMA):
            raise ValueError(f"batch: columns {batch.schema.names}, blocks take {FRAME_SCHEMA.names} of fixed types")
        for name in ("subject", "timestamp_ns"):
            if batch.column(name).null_count:
                raise ValueError(f"batch: {batch.column(name).null_count} nulls in {name}")
        if self._row_count + batch.num_rows > ROW_COUNT_MAX:
            raise ValueError(f"block: {self._row_count} + {batch.num_rows} rows, it takes {ROW_COUNT_MAX}")
        if msg_id_hashes is not None and msg_id_hashes.shape != (batch.num_rows, 2):
            raise ValueError(f"msg_id_hashes: shape {msg_id_hashes.shape} for {batch.num_rows} rows")
        if sequences is not None and sequences.shape != (batch.num_rows,):
            raise ValueError(f"sequences: shape {sequences.shape} for {batch.num_rows} rows")

    # --- frames and footer

    def _write_frame(self, batch: pa.RecordBatch) -> None:
        batch = compact(batch)
        times = np.frombuffer(batch.column(1).buffers()[1], np.int64, batch.num_rows, batch.column(1).offset * 8)
        self._append_frame(
            KIND_MESSAGES,
            encode_payload(batch, self._codec),
            batch.num_rows,
            (int(times.min()), int(times.max())),
        )
        self._subjects.add_frame(batch.column(0))
        self._data_size += message_size(batch)
        rows, hashes = self._message_ids.take(self._framed_rows + batch.num_rows)
        if len(rows):
            payload = hashes.astype("<u8").tobytes() + (rows - self._framed_rows).astype("<u4").tobytes()
            self._append_frame(KIND_MESSAGE_IDS, pa.py_buffer(payload), len(rows), (0, 0))
        self._framed_rows += batch.num_rows

    def _append_frame(self, kind: int, payload: pa.Buffer, row_count: int, times: tuple[int, int]) -> None:
        assert payload.size <= PAYLOAD_SIZE_MAX, payload.size
        extent = aligned(FRAME_HEADER_SIZE + payload.size)
        if self._offset + extent > _FRAMES_END_MAX or len(self._frames) == FRAME_COUNT_MAX:
            raise ValueError(
                f"block: {self._offset} + {extent} bytes in {len(self._frames)} + 1 frames,"
                f" it takes {_FRAMES_END_MAX} in {FRAME_COUNT_MAX}"
            )
        header = FrameHeader(
            crc32c(payload),
            payload.size,
            row_count,
            self._framed_rows,
            kind,
            len(self._frames),
            *times,
            self._identity.block_id,
        )
        self._frames.append(header)
        self._append(header.encode())
        self._append(memoryview(payload))
        padding = extent - FRAME_HEADER_SIZE - payload.size
        if padding:
            self._append(bytes(padding))

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write_at(self._offset, data)
        self._offset += len(data)

    def _footer(self) -> Footer:
        columns = zip(
            *(
                (
                    frame.kind,
                    frame.payload_size,
                    frame.payload_crc32c,
                    frame.row_count,
                    frame.time_min_ns,
                    frame.time_max_ns,
                )
                for frame in self._frames
            ),
            strict=True,
        )
        table = FrameTable.from_stored([np.array(column, np.int64) for column in columns])
        assert table.end_offset == self._offset, (table.end_offset, self._offset)
        header_crc = int.from_bytes(self._header[HEADER_SIZE - 4 :], "little")
        return Footer(header_crc, self._data_size, table, self._runs.finish(), self._subjects.finish())


class _MessageIds:
    """Hashes of message ids of rows that are not in frames yet."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []  # of the block, ascending over all arrays
        self._hashes: list[np.ndarray] = []

    def add(self, first_row: int, hashes: np.ndarray) -> None:
        rows = np.flatnonzero(hashes.any(axis=1))
        if len(rows):
            self._rows.append(rows + first_row)
            self._hashes.append(hashes[rows])
        if len(self._rows) > 1024:
            self._rows, self._hashes = [np.concatenate(self._rows)], [np.concatenate(self._hashes)]

    def take(self, end_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, and forget, rows below `end_row` and their hashes."""
        if not self._rows:
            return np.empty(0, np.int64), np.empty((0, 2), np.uint64)
        rows, hashes = np.concatenate(self._rows), np.concatenate(self._hashes)
        count = int(np.searchsorted(rows, end_row))
        left = slice(count, None)
        self._rows, self._hashes = ([rows[left].copy()], [hashes[left].copy()]) if count < len(rows) else ([], [])
        return rows[:count], hashes[:count]


def _check_message_sizes(batch: pa.RecordBatch) -> None:
    for limit, sizes, measure in (
        (MESSAGE_SIZE_MAX, message_sizes(batch), "subject, headers and data"),
        (ROW_SIZE_MAX, np.diff(stored_ends(batch), prepend=0), "a message with the overhead of its headers"),
    ):
        if int(sizes.max()) > limit:
            row = int(sizes.argmax())
            raise InvalidMessageError(f"row {row} of the batch: {int(sizes[row])} bytes of {measure}, at most {limit}")
