"""What a block file holds, as far as it can be made out: for a person who wants to see, also when it is damaged.

A reader refuses a block at the first doubt, and is right. A survey goes on: header, footer and frames are looked at on
their own, and each is reported or said to be damaged. With a footer the frames are where it says; without one they are
looked for by their magic and header checksum, so what was written before a crash is seen too. No message is decoded.

Source: docs/formats/block.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_stream.look.messages import show_time
from storage_core.block.footer import Footer, decode_footer
from storage_core.block.format import (
    ALIGNMENT,
    FRAME_FIELDS,
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    HEADER_SIZE,
    KIND_MESSAGE_IDS,
    KIND_MESSAGES,
    PAYLOAD_SIZE_MAX,
    TRAILER_SIZE,
    BlockHeader,
    FrameHeader,
    aligned,
    decode_header,
    decode_trailer,
    digest_of,
)
from storage_core.checksum import crc32c
from storage_core.errors import StorageError
from storage_core.files import File

CHUNK_SIZE = 1 << 20  # bytes that are read at once to check or search
KINDS = {KIND_MESSAGES: "messages", KIND_MESSAGE_IDS: "message ids"}


@dataclass(frozen=True)
class FrameFinding:
    """One frame, and what is wrong with it; `defect` is empty if nothing is."""

    offset_bytes: int
    header: FrameHeader
    defect: str

    def to_json(self) -> dict[str, Any]:
        timed = self.header.kind == KIND_MESSAGES
        return {
            "frame": self.header.position,
            "offset_bytes": self.offset_bytes,
            "kind": KINDS[self.header.kind],
            "rows": self.header.row_count,
            "payload_size": self.header.payload_size,
            "time_min": show_time(self.header.time_min_ns) if timed else None,
            "time_max": show_time(self.header.time_max_ns) if timed else None,
            "state": self.defect or "ok",
        }


@dataclass
class BlockSurvey:
    """What was made out of a file. A part that is damaged is None, and `damage` has a sentence on it."""

    file: str
    file_size: int
    header: BlockHeader | None = None
    footer: Footer | None = None
    digest: bytes = b""
    frames: list[FrameFinding] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def ids(self) -> dict[str, str]:
        """Return what the header says the block is, in hex."""
        assert self.header is not None
        names = ("store_id", "incarnation", "block_id", "transaction_id")
        return {name: getattr(self.header.identity, name).hex() for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what could not be made out is null."""
        shown: dict[str, Any] = {"file": self.file, "file_size": self.file_size, "header": None, "totals": None}
        if self.header is not None:
            shown["header"] = {"version": 1, **self.ids(), "codec": self.header.codec}
        footer = self.footer
        if footer is not None:
            shown["totals"] = {
                "messages": footer.row_count,
                "span": footer.span,
                "data_size": footer.data_size,
                "time_min": show_time(footer.time_min_ns),
                "time_max": show_time(footer.time_max_ns),
                "msg_ids": footer.msg_id_count,
                "digest": self.digest.hex(),
            }
        shown["frames"] = [frame.to_json() for frame in self.frames]
        shown["runs"] = shown["subjects"] = None
        if footer is not None:
            runs = zip(footer.runs.starts.tolist(), footer.runs.ends.tolist(), strict=True)
            shown["runs"], shown["subjects"] = [list(run) for run in runs], footer.subjects.count_by_subject()
        shown["damage"] = self.damage
        return shown


def survey(file: File) -> BlockSurvey:
    """Return what the file holds; only errors of the operating system come out."""
    block = BlockSurvey(str(file.path), file.size())
    try:
        block.header = decode_header(file.read_at(0, HEADER_SIZE), block.file)
    except StorageError as error:
        block.damage.append(str(error))
    try:
        block.footer, block.digest = _read_footer(file, block)
    except StorageError as error:
        block.damage.append(str(error))
    block_id = None if block.header is None else block.header.identity.block_id
    placed = _listed_frames(file, block.footer, block_id) if block.footer else _search_frames(file, block.file_size)
    for offset_bytes, header, defect in placed:
        defect = defect or _payload_defect(file, offset_bytes, header, block.file_size)
        block.frames.append(FrameFinding(offset_bytes, header, defect))
        if defect:
            block.damage.append(f"{block.file}: offset_bytes {offset_bytes}: frame {header.position}: {defect}")
    return block


def _read_footer(file: File, block: BlockSurvey) -> tuple[Footer, bytes]:
    start = max(0, block.file_size - TRAILER_SIZE)
    trailer = decode_trailer(file.read_at(start, TRAILER_SIZE), block.file_size, block.file)
    data = file.read_at(trailer.footer_offset, trailer.footer_size)
    if crc32c(data) != trailer.footer_crc32c:
        block.damage.append(f"{block.file}: offset_bytes {trailer.footer_offset}: the footer fails its checksum")
    return decode_footer(data, block.file, trailer.footer_offset), digest_of(data)


def _listed_frames(file: File, footer: Footer, block_id: bytes | None) -> Iterator[tuple[int, FrameHeader, str]]:
    """Yield (offset in bytes, header, defect of the header) of the frames that the footer lists."""
    for position in range(footer.frames.count):
        offset_bytes = int(footer.frames.offsets[position])
        stored = file.read_at(offset_bytes, FRAME_HEADER_SIZE)
        header = footer.frames.header(position, stored[-16:].ljust(16, b"\0") if block_id is None else block_id)
        yield offset_bytes, header, "" if stored == header.encode() else "the frame header is not what the footer says"


def _search_frames(file: File, file_size: int) -> Iterator[tuple[int, FrameHeader, str]]:
    """Yield the frames that can be found without a footer: header magic and checksum say where one begins."""
    offset_bytes = HEADER_SIZE
    while offset_bytes + FRAME_HEADER_SIZE <= file_size:
        header = _decode_frame_header(file.read_at(offset_bytes, FRAME_HEADER_SIZE))
        if header is None:
            offset_bytes = _next_magic(file, offset_bytes + ALIGNMENT, file_size)
            continue
        yield offset_bytes, header, ""
        offset_bytes += aligned(FRAME_HEADER_SIZE + header.payload_size)


def _decode_frame_header(data: bytes) -> FrameHeader | None:
    """Return the frame header in FRAME_HEADER_SIZE bytes, or None if they are none that a writer makes."""
    if data[:4] != FRAME_MAGIC or crc32c(data[8:]) != int.from_bytes(data[4:8], "little"):
        return None
    header = FrameHeader(*FRAME_FIELDS.unpack_from(data, 8))
    possible = header.kind in KINDS and 0 < header.payload_size <= PAYLOAD_SIZE_MAX and header.row_count > 0
    return header if possible else None


def _next_magic(file: File, offset_bytes: int, file_size: int) -> int:
    """Return the next aligned place from `offset_bytes` on where a frame may begin; `file_size` if there is none."""
    magic = np.frombuffer(FRAME_MAGIC, np.uint8)
    while offset_bytes + FRAME_HEADER_SIZE <= file_size:
        chunk = file.read_at(offset_bytes, CHUNK_SIZE)
        heads = np.frombuffer(chunk, np.uint8)[: len(chunk) // ALIGNMENT * ALIGNMENT].reshape(-1, ALIGNMENT)
        hits = np.flatnonzero((heads[:, : len(magic)] == magic).all(axis=1))
        if len(hits):
            return offset_bytes + int(hits[0]) * ALIGNMENT
        if len(chunk) < CHUNK_SIZE:
            break
        offset_bytes += CHUNK_SIZE
    return file_size


def _payload_defect(file: File, offset_bytes: int, header: FrameHeader, file_size: int) -> str:
    """Return what is wrong with the payload and its padding; it is read, but never held as a whole."""
    begin = offset_bytes + FRAME_HEADER_SIZE
    end = begin + header.payload_size
    if end > file_size:
        return f"the file ends inside it, after {file_size - begin} of {header.payload_size} bytes"
    checksum = 0
    for at in range(begin, end, CHUNK_SIZE):
        checksum = crc32c(file.read_at(at, min(CHUNK_SIZE, end - at)), checksum)
    if checksum != header.payload_crc32c:
        return f"the payload fails its checksum: {header.payload_crc32c:#010x} expected, {checksum:#010x} found"
    padding = file.read_at(end, offset_bytes + aligned(FRAME_HEADER_SIZE + header.payload_size) - end)
    return "the padding is not zero" if any(padding) else ""
