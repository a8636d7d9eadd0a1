"""BlockReader: one sealed block file in, batches out; what is damaged is found and never served.

Opening reads header, footer and trailer and checks them against each other and against what the manifest expects.
Reading takes one frame at a time: one read into a fresh buffer, the frame header compared, the CRC over the payload,
then columns that point into that buffer. docs/formats/block.md, section 9, says what each defect leads to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from storage_core.block.damage import Defect, FrameDamage
from storage_core.block.footer import Footer
from storage_core.block.footer_check import FooterCheck
from storage_core.block.format import (
    FRAME_HEADER_SIZE,
    KIND_MESSAGE_IDS,
    KIND_MESSAGES,
    ROW_COUNT_MAX,
    BlockExpectation,
    BlockIdentity,
    BlockSummary,
)
from storage_core.block.opening import Opened, open_block, reread
from storage_core.block.payload import LEAD_SIZE, check_payload, decode_payload, decode_sizes
from storage_core.block.pieces import ReadMemory, pieces
from storage_core.block.projection import Projection
from storage_core.block.request import FrameRequest, FrameSelection, select_frames
from storage_core.block.runs import SequenceRuns
from storage_core.checksum import crc32c
from storage_core.deadlines import on_file
from storage_core.errors import CorruptFrameError
from storage_core.files import File, ReadingAhead

_EVERY_FIELD = [0, 1, 2, 3]


@dataclass(frozen=True, slots=True)
class MessageIds:
    """Hashes of message ids in one frame."""

    sequences: np.ndarray  # relative, int64, ascending
    hashes: np.ndarray  # (len(sequences), 2), uint64


class BlockReader:
    """An open block. Holds its footer; every read holds one frame. The caller owns the file and closes it.

    Safe for use from several threads if the file is.
    """

    def __init__(self, file: File, opened: Opened) -> None:
        self._file, self._opened = file, opened
        self._name = str(file.path)
        self.footer: Footer = opened.footer

    @classmethod
    def open(cls, file: File, expected: BlockExpectation | None = None) -> "BlockReader":
        """Check header, footer and trailer, and that it is the expected block; nothing of the frames is read.

        Raises TruncatedRecordError, UnsupportedVersionError or CorruptionError, each with a Defect, and OSError from
        the file.
        """
        return cls(file, open_block(file, expected))

    @property
    def identity(self) -> BlockIdentity:
        return self._opened.header.identity

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self._name

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def codec(self) -> str:
        return self._opened.header.codec

    @property
    def file_size(self) -> int:
        return self._opened.file_size

    def summary(self) -> BlockSummary:
        """Return the same as the writer's `finish` returned."""
        return self.footer.summary(self.identity.block_id, self._opened.digest, self._opened.file_size)

    def read(self, request: FrameRequest) -> Iterator[pa.RecordBatch]:
        """Yield what was asked for in order, one batch a frame, none empty, with exactly read_schema(columns).

        Raises ValueError for an impossible request, at once; while iterating CorruptFrameError (unless the request
        takes damage reports) and OSError from the file.
        """
        request.check()
        return self._read(request, select_frames(self.footer, request))

    def message_ids(self) -> Iterator[MessageIds]:
        """Yield the hashes of message ids, frame by frame; raises CorruptFrameError and OSError while iterating."""
        for position in np.flatnonzero(self.footer.frames.kinds == KIND_MESSAGE_IDS).tolist():
            yield self._message_ids(position)

    def message_sizes(self, row_count_min: int = ROW_COUNT_MAX) -> tuple[SequenceRuns, np.ndarray] | None:
        """Return the relative sequences, and the message bytes of each row; None where the rows have to be read for it.

        That is so if a message has headers, or nobody vouched for the block. `row_count_min`: frames behind so many
        rows are not read, and have no sizes. Raises CorruptFrameError and OSError.
        """
        if not self._opened.vouched:
            return None
        sizes: list[np.ndarray] = []
        for position in self.footer.frames.messages.tolist():
            if sum(map(len, sizes)) >= row_count_min:
                break
            payload = memoryview(self._load(position, verify=True)).cast("B")[LEAD_SIZE:]
            row_count = int(self.footer.frames.row_counts[position])
            try:
                check_payload(payload, row_count, self.codec)
                of_frame = decode_sizes(payload, row_count)
            except (ValueError, OSError, pa.ArrowException) as error:
                raise self._corrupt(position, "Arrow record batch", "a valid one", str(error)) from error
            if of_frame is None:
                return None
            sizes.append(of_frame)
        return self.footer.runs, np.concatenate(sizes)

    def verify(
        self, first_sequence: int = 0, content: bool = False, memory: ReadMemory | None = None
    ) -> Iterator[FrameDamage]:
        """Read the whole file again and yield all damage: every bit of it is looked at.

        `first_sequence` is that of relative 0, for the sequences in the reports. A block that was opened without
        expectation is decoded and validated as well. `content`: so is every block, and compared with what the footer
        says of its messages; for a manifest that came from outside with its blocks. `memory`: that of another block,
        which is not read any more. Raises OSError from the file.
        """
        for around in on_file(self._file, lambda: list(reread(self._file, self._opened))):
            yield FrameDamage(self._name, around.offset_bytes, -1, 0, 0, 0, around.reason)
        projection = Projection(self.footer, FrameRequest(first_sequence=first_sequence), self._everything())
        frames = self.footer.frames
        check, whole = (FooterCheck(self.footer) if content else None), True
        memory = memory or ReadMemory()
        for first, end in pieces(frames.offsets):
            try:
                looked_at = on_file(self._file, partial(self._verify_frames, first, end, memory))
            except OSError:
                memory.drop()
                raise
            for position, (lost, defect) in enumerate(looked_at, first):
                if defect is None and not (self._opened.vouched and check is None):
                    lost, defect = self._verify_content(position, check)
                if defect is not None:
                    yield self._damage(projection, position, defect, lost)
                    whole = False
        wrong = check.finish() if check is not None and whole else ""
        if wrong:
            yield FrameDamage(self._name, frames.end_offset, -1, 0, 0, 0, f"footer: {wrong}")

    # --- reading

    def _read(self, request: FrameRequest, selection: FrameSelection) -> Iterator[pa.RecordBatch]:
        projection = Projection(self.footer, request, selection)
        if isinstance(self._file, ReadingAhead):
            self._file.expect([self._extent(at) for at in selection.positions if not projection.is_removed(at)])
        for position, whole in zip(selection.positions, selection.whole_subjects, strict=True):
            if projection.is_removed(position):
                continue
            try:
                frame = self._decode(position, projection.fields(position, whole), request.verify)
            except CorruptFrameError as error:
                if request.on_damage is None:
                    raise
                request.on_damage(self._damage(projection, position, error.args[0], lost=True))
                continue
            batch = projection.apply(frame, position, whole)
            del frame  # while the consumer works, and while the next frame is read, one frame is enough
            if batch.num_rows:
                yield batch
            del batch

    def _decode(
        self, position: int, fields: list[int], verify: bool, check: FooterCheck | None = None
    ) -> pa.RecordBatch:
        """Return columns of a frame of messages; `check`, if any, takes all of them. Raises CorruptFrameError."""
        row_count = int(self.footer.frames.row_counts[position])
        buffer = self._load(position, verify)
        try:
            check_payload(memoryview(buffer).cast("B")[LEAD_SIZE:], row_count, self.codec)
            batch = decode_payload(buffer, fields)
            if not (verify and self._opened.vouched) or check is not None:
                batch.validate(full=True)
            if check is not None:
                check.add(position, batch)
        except MemoryError:  # Arrow's own is an ArrowException as well
            raise
        except (ValueError, OSError, pa.ArrowException) as error:  # nothing here reads the file
            raise self._corrupt(position, "Arrow record batch", "a valid one", str(error)) from error
        return batch

    def _message_ids(self, position: int) -> MessageIds:
        """Return the hashes in a frame of message ids. Raises CorruptFrameError."""
        frames = self.footer.frames
        payload = memoryview(self._load(position, verify=True)).cast("B")[LEAD_SIZE:]
        count, limit = int(frames.row_counts[position]), int(frames.row_counts[position - 1])
        hashes = np.frombuffer(payload, "<u8", 2 * count).reshape(count, 2)
        rows = np.frombuffer(payload, "<u4", count, 16 * count).astype(np.int64)
        if int(rows[-1]) >= limit or (np.diff(rows) <= 0).any():
            raise self._corrupt(position, "rows of message ids", f"ascending, below {limit}", str(rows[-1]))
        first_row = int(frames.first_rows[position])
        return MessageIds(self.footer.runs.sequences(first_row, first_row + limit)[rows], hashes)

    def _extent(self, position: int) -> tuple[int, int]:
        """Return where a frame begins and where its payload ends."""
        start = int(self.footer.frames.offsets[position])
        return start, start + FRAME_HEADER_SIZE + int(self.footer.frames.payload_sizes[position])

    def _load(self, position: int, verify: bool) -> pa.Buffer:
        """Return the payload of a frame behind LEAD_SIZE bytes of room. Raises CorruptFrameError."""
        frames = self.footer.frames
        buffer = pa.allocate_buffer(LEAD_SIZE + int(frames.payload_sizes[position]))
        view = memoryview(buffer).cast("B")[LEAD_SIZE - FRAME_HEADER_SIZE :]
        size = self._file.read_into(int(frames.offsets[position]), view)
        defect = self._frame_defect(position, view[:size], len(view), verify)
        if defect is not None:
            raise CorruptFrameError(defect)
        return buffer

    def _frame_defect(self, position: int, frame: memoryview, size: int, verify: bool) -> Defect | None:
        """Return what is wrong with a frame: header and payload, of which there should be `size` bytes."""
        offset = int(self.footer.frames.offsets[position])
        if len(frame) < size:
            return Defect(self._name, offset, f"frame {position}", f"{size} bytes", f"{len(frame)} bytes")
        header = self.footer.frames.header(position, self.identity.block_id)
        encoded, stored = header.encode(), bytes(frame[:FRAME_HEADER_SIZE])
        if stored != encoded:
            return Defect(self._name, offset, f"header of frame {position}", encoded.hex(), stored.hex())
        if verify and (crc := crc32c(frame[FRAME_HEADER_SIZE:])) != header.payload_crc32c:
            stated = f"{header.payload_crc32c:#010x}"
            return Defect(self._name, offset, f"payload checksum of frame {position}", stated, f"{crc:#010x}")
        return None

    def _corrupt(self, position: int, what: str, expected: str, actual: str) -> CorruptFrameError:
        offset = int(self.footer.frames.offsets[position])
        return CorruptFrameError(Defect(self._name, offset, f"{what} of frame {position}", expected, actual))

    # --- verifying

    def _everything(self) -> FrameSelection:
        positions = self.footer.frames.messages.tolist()
        return FrameSelection(positions, [True] * len(positions), 0, self.footer.row_count)

    def _verify_frames(self, first: int, end: int, memory: ReadMemory) -> list[tuple[bool, Defect | None]]:
        """Read neighbouring frames; return of each whether messages are lost, and what is wrong with it."""
        bounds = self.footer.frames.offsets[first : end + 1].tolist()
        room = memory.room(bounds[-1] - bounds[0])
        room = room[: self._file.read_into(bounds[0], room)]
        ends = zip(bounds[:-1], bounds[1:], strict=True)
        parts = [room[lo - bounds[0] : hi - bounds[0]] for lo, hi in ends]
        return [self._verify_frame(position, part) for position, part in enumerate(parts, first)]

    def _verify_frame(self, position: int, frame: memoryview) -> tuple[bool, Defect | None]:
        """Return whether messages are lost, and what is wrong with a frame or its padding; `found` is all of it."""
        frames = self.footer.frames
        offset, extent = int(frames.offsets[position]), int(frames.offsets[position + 1] - frames.offsets[position])
        size = FRAME_HEADER_SIZE + int(frames.payload_sizes[position])
        defect = self._frame_defect(position, frame[:size], size, verify=True)
        if defect is not None:
            return int(frames.kinds[position]) == KIND_MESSAGES, defect
        padding = bytes(frame[size:])
        if padding != bytes(extent - size):
            what = f"padding of frame {position}"
            return False, Defect(self._name, offset + size, what, f"{extent - size} zero bytes", padding.hex())
        return False, None

    def _verify_content(self, position: int, check: FooterCheck | None) -> tuple[bool, Defect | None]:
        """Return the same of what is in a frame that is as it was written."""
        is_messages = int(self.footer.frames.kinds[position]) == KIND_MESSAGES
        try:
            if is_messages:
                self._decode(position, _EVERY_FIELD, verify=True, check=check)
            else:
                self._message_ids(position)
        except CorruptFrameError as error:
            return is_messages, error.args[0]
        return False, None

    def _damage(self, projection: Projection, position: int, defect: Defect, lost: bool) -> FrameDamage:
        first, end = projection.sequences(position) if lost else (0, 0)
        row_count = int(self.footer.frames.row_counts[position]) if lost else 0
        return FrameDamage(self._name, defect.offset_bytes, position, first, end, row_count, defect.reason)
