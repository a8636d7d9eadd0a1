"""Copies of blocks: looked at, and made anew from what is whole in other copies.

A block is fixed by the digest of its footer, which the manifest has: footer, then header and frame checksums. So a new
copy is put together from any files that are supposed to be the block, each part taken from the first that has it whole:

    trailer, footer   from the copy whose footer has the digest; a damaged trailer follows from the footer
    header            from the copy whose header has the checksum that the footer states
    frame             from the copy whose payload has the checksum that the footer states; the rest of it is known

The new file is written whole under `<block id>.repair`, fsynced, read again, and only then takes the block's name. All
of it happens under the volume's lock, so a `.repair` file that is met there is one that a killed process left.
"""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from storage_core.block.damage import Defect
from storage_core.block.footer import Footer, decode_footer
from storage_core.block.format import (
    ALIGNMENT,
    CODECS,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_MESSAGES,
    TRAILER_SIZE,
    BlockHeader,
    BlockIdentity,
    Trailer,
    decode_header,
    decode_trailer,
    digest_of,
)
from storage_core.block.pieces import ReadMemory
from storage_core.block.reader import BlockReader
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError, StorageError, UnsupportedVersionError
from storage_core.files import File
from storage_core.metadata.state import StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.sequences import SequenceSet
from storage_core.store.reading.reading import place_and_reason
from storage_core.store.replicas.live_blocks import LiveBlock
from storage_core.store.volume.block_store import BlockStore, Replacement

logger = logging.getLogger(__name__)
FOOTER_SEARCH_SIZE = 256 << 10  # bytes at the end in which a footer is looked for by its digest alone
# What a row of the manifest and the footer of its block both say, under the same names.
_SUMMARISED = ("row_count", "file_size", "data_size", "time_min_ns", "time_max_ns", "msg_id_count")
STRUCTURE = -1  # instead of the position of a frame: header, footer or trailer, or the file as a whole


@dataclass(frozen=True, slots=True)
class CopyDefect:
    """Something wrong with one copy of a block."""

    frame: int  # position, or STRUCTURE
    offset_bytes: int
    first: int  # sequences [first, end) cannot be read because of it; 0, 0 if no message is touched
    end: int
    reason: str
    is_missing: bool = False  # there is no such file
    error: OSError | None = None  # what the disk said

    def is_explained(self, stream: StreamState) -> bool:
        """Return whether it costs only messages that are known to be gone: it asks for no repair any more."""
        if self.frame == STRUCTURE or self.end <= self.first:
            return False
        if self.first >= stream.low_watermark and not stream.lost.count_in(self.first, self.end):
            return False
        first = min(max(self.first, stream.low_watermark), self.end)
        return stream.removed.count_in(first, self.end) == self.end - first


# --- looking


def look(
    block: LiveBlock,
    blocks: BlockStore,
    stream: StreamState,
    afresh: bool = False,
    row: np.void | None = None,
    memory: ReadMemory | None = None,
) -> list[CopyDefect]:
    """Read one copy from end to end; return what is wrong with it, but for what is explained.

    `afresh`: from the disk, past the page cache. `row`: what a manifest says of the block that is not this store's own;
    then it has to say what the footer says, and all messages are validated. `memory`: to read into, for many blocks.
    Raises ProcessError alone: a limit of this process says nothing about the copy.
    """
    try:
        reader = blocks.on_volume(partial(_open_reader, block, blocks, afresh))()
    except OSError as error:  # no answer in time
        reader = _unopened(block, error)
    if isinstance(reader, CopyDefect):
        return [reader]
    try:
        if row is not None:
            check_row(row, reader, stream)
        defects = [
            CopyDefect(damage.frame, damage.offset_bytes, damage.first, damage.end, damage.reason)
            for damage in reader.verify(block.first, content=row is not None, memory=memory)
        ]
        return [wrong for wrong in defects if not wrong.is_explained(stream)]
    except (StorageError, OSError) as error:
        return [_unread(block, error)]
    finally:
        reader.close()


def _open_reader(block: LiveBlock, blocks: BlockStore, afresh: bool) -> BlockReader | CopyDefect:
    try:
        file = blocks.open(block.written_as, block.block_id, afresh)
    except (FileNotFoundError, NotADirectoryError):
        return CopyDefect(STRUCTURE, 0, block.first, block.end, "the file is missing", is_missing=True)
    except OSError as error:
        return _unopened(block, error)
    try:
        return BlockReader.open(file, block.expected)
    except (StorageError, OSError) as error:
        file.close()
        return _unread(block, error)
    except BaseException:
        file.close()
        raise


def _unopened(block: LiveBlock, error: OSError) -> CopyDefect:
    raise_if_of_process(error)
    return CopyDefect(STRUCTURE, 0, block.first, block.end, f"the file cannot be opened: {error}", error=error)


def _unread(block: LiveBlock, error: StorageError | OSError) -> CopyDefect:
    raise_if_of_process(error)
    offset_bytes, reason = place_and_reason(error)
    disk = error if isinstance(error, OSError) else None
    return CopyDefect(STRUCTURE, offset_bytes, block.first, block.end, reason, error=disk)


def check_row(row: np.void, reader: BlockReader, stream: StreamState | None = None) -> None:
    """Raise CorruptionError unless a row of the manifest says the same as the footer of its block.

    Its span may be longer: a merged block has the span of its run, also where the last messages of that were removed
    before. Of subjects, which `stream` has, it may name more: damaged frames whose messages are removed are left out
    when a block is written anew.
    """
    summary = reader.summary()
    for name in _SUMMARISED:
        if int(row[name]) != getattr(summary, name):
            raise _not_the_row(reader, name, int(row[name]), getattr(summary, name))
    if int(row["span"]) < summary.span or (stream is not None and not _is_removed(row, summary.span, stream)):
        raise _not_the_row(reader, "span", int(row["span"]), summary.span)
    if stream is not None and row["subject_set"]:
        named = set(stream.subject_sets[int(row["subject_set"]) - 1])
        if summary.subjects is None or not named.issuperset(summary.subjects):
            actual = "more than a manifest names" if summary.subjects is None else f"{len(summary.subjects)} subjects"
            raise _not_the_row(reader, "subjects", f"{len(named)} others", actual)


def _is_removed(row: np.void, span: int, stream: StreamState) -> bool:
    """Return whether nothing is shown of what a row has behind the end of its block."""
    first, end = int(row["first"]) + span, int(row["first"] + row["span"])
    first = min(max(first, stream.low_watermark), end)
    return stream.removed.count_in(first, end) == end - first


def _not_the_row(reader: BlockReader, field: str, stated: object, actual: object) -> CorruptionError:
    defect = Defect(reader.name, reader.footer.frames.end_offset, f"{field} in the footer", str(stated), str(actual))
    return CorruptionError(defect)


# --- making anew


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What became of a new copy."""

    written: bool  # it has the block's name now
    lost: SequenceSet  # messages that no source has whole: the copy has something else in their place
    unread: tuple[str, ...]  # sources that the disk did not give back: they may have what is lost


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a block around its frames."""

    header: bytes
    footer: Footer
    footer_bytes: bytes
    trailer: Trailer


def copy_block(
    block: LiveBlock, sources: Sequence[BlockStore], target: BlockStore, own: Sequence[CopyDefect] = ()
) -> CopyResult:
    """Write the block among those of `target`, from what is whole in `sources`, best first.

    `own`: what is wrong with the copy that is there; it is left alone if nothing of it could be repaired. Raises
    OSError if it could not be written; then what was there is still there.
    """
    opened, unread = _open(block, sources)
    try:
        parts = _parts(block, opened, unread)
        if parts is None:
            return CopyResult(False, SequenceSet.from_ranges([(block.first, block.end)]), tuple(unread))
        replacement = target.replacement(block.written_as, block.block_id)
        try:
            lost_frames = _write(block, parts, opened, replacement, unread)
            lost = _sequences(block, parts.footer, lost_frames)
            if own and all(wrong.frame in lost_frames for wrong in own):
                replacement.discard()
                return CopyResult(False, lost, tuple(unread))
            _check(block, replacement, lost_frames)
            replacement.put()
        except BaseException:
            replacement.discard()
            raise
        target.sync(block.written_as)
        return CopyResult(True, lost, tuple(unread))
    finally:
        for file in opened:
            file.close()


def _open(block: LiveBlock, sources: Sequence[BlockStore]) -> tuple[list[File], list[str]]:
    opened: list[File] = []
    unread: list[str] = []
    for blocks in sources:
        try:
            opened.append(blocks.open(block.written_as, block.block_id))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise_if_of_process(error)
            unread.append(f"{block.path_in(blocks)}: {error.strerror or error}")
    return opened, unread


def _read(file: File, offset_bytes: int, size: int, unread: list[str]) -> bytes:
    """Return what a source has there; nothing if the disk does not give it back."""
    try:
        return file.read_at(offset_bytes, size)
    except OSError as error:
        raise_if_of_process(error)
        unread.append(f"{file.path}: offset_bytes {offset_bytes}: {error.strerror or error}")
        return b""


def _parts(block: LiveBlock, opened: Sequence[File], unread: list[str]) -> _Parts | None:
    """Return the parts around the frames; None if one of them is whole nowhere."""
    end_parts = _end(block, opened, unread) or _search_end(block, opened, unread)
    if end_parts is None:
        return None
    footer_bytes, trailer = end_parts
    footer = decode_footer(footer_bytes, block.block_id.hex(), trailer.footer_offset)
    for file in opened:
        header = _header(block, _read(file, 0, HEADER_SIZE, unread), footer.header_crc32c, str(file.path))
        if header is not None:
            return _Parts(header, footer, footer_bytes, trailer)
    return None


def _end(block: LiveBlock, opened: Sequence[File], unread: list[str]) -> tuple[bytes, Trailer] | None:
    """Return footer and trailer by any trailer that is whole."""
    size, trailers = block.file_size, []
    for file in opened:
        try:
            tail = _read(file, size - TRAILER_SIZE, TRAILER_SIZE, unread)
            trailers.append(decode_trailer(tail, size, str(file.path)))
        except StorageError:
            continue
    for trailer in dict.fromkeys(trailers):
        for file in opened:
            footer = _read(file, trailer.footer_offset, trailer.footer_size, unread)
            if digest_of(footer) == block.expected.digest:
                return footer, trailer
    return None


def _search_end(block: LiveBlock, opened: Sequence[File], unread: list[str]) -> tuple[bytes, Trailer] | None:
    """Return footer and trailer without one that is whole: the footer is known by its digest, and the rest follows."""
    end = block.file_size - TRAILER_SIZE
    begin = max(HEADER_SIZE, (end - FOOTER_SEARCH_SIZE) // ALIGNMENT * ALIGNMENT)
    for file in opened:
        data = _read(file, begin, end - begin, unread)
        for at in range((len(data) - 1) // ALIGNMENT * ALIGNMENT, -1, -ALIGNMENT):
            if len(data) == end - begin and digest_of(data[at:]) == block.expected.digest:
                footer = data[at:]
                return footer, Trailer(begin + at, len(footer), crc32c(footer))
    return None


def _header(block: LiveBlock, data: bytes, checksum: int, file: str) -> bytes | None:
    """Return the header that the footer vouches for, if what was found leads to it.

    All but the transaction and the codec is known beforehand, so that damage elsewhere in it costs nothing.
    """
    try:
        decode_header(data, file)
    except UnsupportedVersionError:
        raise
    except StorageError:
        pass
    if len(data) < HEADER_SIZE:
        return None
    expected = block.expected
    identity = BlockIdentity(expected.store_id, expected.incarnation, expected.block_id, data[64:80])
    for codec in CODECS:
        header = BlockHeader(identity, codec).encode()
        if int.from_bytes(header[-4:], "little") == checksum:
            return header
    return None


def _write(
    block: LiveBlock, parts: _Parts, opened: Sequence[File], replacement: Replacement, unread: list[str]
) -> set[int]:
    """Write the new file and fsync it; return the positions of the frames that no source has whole."""
    frames, lost = parts.footer.frames, set()
    with closing(replacement.create()) as file:
        file.write_at(0, parts.header)
        for position in range(frames.count):
            offset = int(frames.offsets[position])
            extent, size = int(frames.offsets[position + 1]) - offset, int(frames.payload_sizes[position])
            payload, best = None, b""
            for source in opened:
                data = _read(source, offset + FRAME_HEADER_SIZE, size, unread)
                if len(data) == size and crc32c(data) == int(frames.payload_crcs[position]):
                    payload = data
                    break
                best = best or data
            if payload is None:
                lost.add(position)
                payload = best.ljust(size, b"\0")  # what is left of it may help somebody yet
            file.write_at(offset, frames.header(position, block.block_id).encode() + payload)
            file.write_at(offset + FRAME_HEADER_SIZE + size, bytes(extent - FRAME_HEADER_SIZE - size))
        file.write_at(parts.trailer.footer_offset, parts.footer_bytes + parts.trailer.encode())
        file.sync()
    return lost


def _check(block: LiveBlock, replacement: Replacement, lost: set[int]) -> None:
    """Read the new file as anyone would. Raises CorruptionError: what was written is not what is there."""
    with closing(replacement.open()) as file:
        for damage in BlockReader.open(file, block.expected).verify():
            if damage.frame not in lost:
                raise CorruptionError(
                    f"{replacement.path}: the new copy does not read as it was written: {damage.reason}"
                )


def _sequences(block: LiveBlock, footer: Footer, positions: set[int]) -> SequenceSet:
    """Return the messages in these frames."""
    parts = []
    for position in sorted(positions):
        if int(footer.frames.kinds[position]) == KIND_MESSAGES:
            first = int(footer.frames.first_rows[position])
            parts.append(footer.runs.sequences(first, first + int(footer.frames.row_counts[position])) + block.first)
    return SequenceSet.from_sequences(np.concatenate(parts)) if parts else SequenceSet.empty()
