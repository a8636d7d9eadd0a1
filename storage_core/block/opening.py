"""Opening a block: header, footer and trailer, checked against each other and against the manifest."""

from collections.abc import Iterator
from dataclasses import dataclass

from storage_core.block.damage import Defect
from storage_core.block.footer import Footer, decode_footer
from storage_core.block.format import (
    HEADER_SIZE,
    TRAILER_SIZE,
    BlockExpectation,
    BlockHeader,
    Trailer,
    decode_header,
    decode_trailer,
    digest_of,
)
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError, TruncatedRecordError
from storage_core.files import File

_TAIL_SIZE = 16 << 10  # bytes read at the end at first: footer and trailer of most blocks
_SIZE_MIN = HEADER_SIZE + TRAILER_SIZE


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known of a block once it is open."""

    header: BlockHeader
    footer: Footer
    trailer: Trailer
    digest: bytes
    file_size: int
    vouched: bool  # the digest is the manifest's: these are the bytes of our own writer


def open_block(file: File, expected: BlockExpectation | None) -> Opened:
    """Return the open block; frames are not looked at.

    Raises TruncatedRecordError if the file is too short or does not end in a trailer, UnsupportedVersionError,
    CorruptionError for all that is damaged or not what was expected, OSError from the file.
    """
    name, size = str(file.path), file.size()
    if expected is not None and size != expected.file_size:
        error = TruncatedRecordError if size < expected.file_size else CorruptionError
        raise error(Defect(name, size, "file size", f"{expected.file_size} bytes", f"{size} bytes"))
    if size < _SIZE_MIN:
        raise TruncatedRecordError(Defect(name, size, "file size", f"{_SIZE_MIN} bytes or more", f"{size} bytes"))
    start = file.read_at(0, size if size <= _TAIL_SIZE else HEADER_SIZE)
    header = decode_header(start[:HEADER_SIZE], name)
    if expected is not None:
        for field in ("store_id", "incarnation", "block_id"):
            _check_id(name, field, getattr(expected, field), getattr(header.identity, field))
    tail = start if size <= _TAIL_SIZE else file.read_at(size - _TAIL_SIZE, _TAIL_SIZE)
    trailer, footer_bytes = _read_end(file, tail, size, name, whole=expected is not None)
    digest = digest_of(footer_bytes)
    if expected is not None and digest != expected.digest:
        defect = Defect(name, trailer.footer_offset, "footer digest", expected.digest.hex(), digest.hex())
        raise CorruptionError(defect)
    footer = decode_footer(footer_bytes, name, trailer.footer_offset)
    header_crc = int.from_bytes(header.encode()[-4:], "little")
    if footer.header_crc32c != header_crc:
        stated = f"{footer.header_crc32c:#010x}"
        raise CorruptionError(Defect(name, HEADER_SIZE - 4, "header checksum", stated, f"{header_crc:#010x}"))
    return Opened(header, footer, trailer, digest, size, vouched=expected is not None)


def reread(file: File, opened: Opened) -> Iterator[Defect]:
    """Read size, header, footer and trailer of an open block again; yield what is not as it was when it was opened."""
    name, size = str(file.path), file.size()
    if size != opened.file_size:
        yield Defect(name, min(size, opened.file_size), "file size", f"{opened.file_size} bytes", f"{size} bytes")
    header, expected = file.read_at(0, HEADER_SIZE), opened.header.encode()
    if header != expected:
        yield Defect(name, 0, "header", expected.hex(), header.hex())
    trailer = opened.trailer
    digest = digest_of(file.read_at(trailer.footer_offset, trailer.footer_size))
    if digest != opened.digest:
        yield Defect(name, trailer.footer_offset, "footer digest", opened.digest.hex(), digest.hex())
    start = opened.file_size - TRAILER_SIZE
    end, expected = file.read_at(start, TRAILER_SIZE), trailer.encode()
    if end != expected:
        yield Defect(name, start, "trailer", expected.hex(), end.hex())


def _read_end(file: File, tail: bytes, size: int, name: str, whole: bool) -> tuple[Trailer, bytes]:
    """Return trailer and footer, which passes its CRC. `tail`: the end of the file; `whole`: it has its full size."""
    try:
        trailer = decode_trailer(tail[-TRAILER_SIZE:], size, name)
    except TruncatedRecordError as error:
        if whole:
            raise CorruptionError(*error.args) from error
        raise
    start = len(tail) - TRAILER_SIZE - trailer.footer_size
    footer = tail[start:-TRAILER_SIZE] if start >= 0 else file.read_at(trailer.footer_offset, trailer.footer_size)
    actual = crc32c(footer)
    if actual != trailer.footer_crc32c:
        stated = f"{trailer.footer_crc32c:#010x}"
        raise CorruptionError(Defect(name, trailer.footer_offset, "footer checksum", stated, f"{actual:#010x}"))
    return trailer, footer


def _check_id(name: str, field: str, expected: bytes, actual: bytes) -> None:
    if actual != expected:
        offset = {"store_id": 16, "incarnation": 32, "block_id": 48}[field]
        raise CorruptionError(Defect(name, offset, field.replace("_", " "), expected.hex(), actual.hex()))
