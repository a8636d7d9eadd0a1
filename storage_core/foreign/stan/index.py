"""Index of a slice, msgs.N.idx: what a channel's end should be. Evidence, never authority: it is behind after a crash,
and ahead of a data file that was cut.

After the version, entries of 32 bytes in the order of the data file (integers little-endian):

    offset  size  field     type  meaning
    0       8     sequence  u64
    8       8     place     u64   offset of the record's head in msgs.N.dat
    16      8     time      i64   ns since 1970 UTC
    24      4     size      u32   bytes of the payload
    28      4     crc       u32   CRC-32 of bytes 0 to 27

Source: nats-streaming-server, stores/filestore.go (`addIndex`, `readIndexFromBuffer`).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from storage_core.files import OS_FILES, Files
from storage_core.foreign.stan.record import FILE_HEADER_SIZE, SEQUENCE_MAX, checksum_name
from storage_core.foreign.tree import size_of
from storage_core.os_errors import raise_if_of_process

ENTRY = Struct("<QQqII")
ENTRY_COUNT_MAX = 2048  # entries that are looked at from either end
assert ENTRY.size == 32


@dataclass(frozen=True, slots=True)
class IndexEntry:
    sequence: int
    offset_bytes: int  # of the record's head in the data file
    time_ns: int
    payload_size: int  # bytes


def first_and_last(path: str | Path, files: Files = OS_FILES) -> tuple[IndexEntry, IndexEntry] | None:
    """Return the first and the last whole entry; None if there is no file, or none near either end of it."""
    try:
        file = files.open(Path(os.path.realpath(path)))
    except OSError as error:
        raise_if_of_process(error)
        return None  # the data file tells as well
    try:
        count = max(0, file.size() - FILE_HEADER_SIZE) // ENTRY.size
        window = min(count, ENTRY_COUNT_MAX) * ENTRY.size
        head = file.read_at(FILE_HEADER_SIZE, window)
        tail = file.read_at(FILE_HEADER_SIZE + count * ENTRY.size - window, window)
    except OSError as error:
        raise_if_of_process(error)
        return None
    finally:
        file.close()
    places = range(0, window, ENTRY.size)
    first = next((entry for at in places if (entry := _decode(head, at))), None)
    last = next((entry for at in reversed(places) if (entry := _decode(tail, at))), None)
    return None if first is None or last is None or last.sequence < first.sequence else (first, last)


def rest(path: str | Path, files: Files = OS_FILES) -> bytes:
    """Return the bytes behind the last whole entry near the end of the file: entries that are damaged or cut."""
    try:
        file = files.open(Path(os.path.realpath(path)))
    except OSError as error:
        raise_if_of_process(error)
        return b""
    try:
        size = file.size()
        count = max(0, size - FILE_HEADER_SIZE) // ENTRY.size
        window = min(count, ENTRY_COUNT_MAX) * ENTRY.size
        start = FILE_HEADER_SIZE + count * ENTRY.size - window
        tail = file.read_at(start, max(0, size - start))
    except OSError as error:
        raise_if_of_process(error)
        return b""
    finally:
        file.close()
    places = range(window - ENTRY.size, -1, -ENTRY.size)
    return next((tail[at + ENTRY.size :] for at in places if _decode(tail, at)), tail)


def count_entries(path: str | Path, files: Files = OS_FILES) -> int:
    """Return how many entries fit into the file, 0 if there is none."""
    return max(0, size_of(Path(path), files) - FILE_HEADER_SIZE) // ENTRY.size


def _decode(entries: bytes, at: int) -> IndexEntry | None:
    raw = entries[at : at + ENTRY.size]
    if len(raw) < ENTRY.size or not any(raw):
        return None
    sequence, place, time_ns, size, crc = ENTRY.unpack(raw)
    if not 1 <= sequence <= SEQUENCE_MAX or checksum_name(memoryview(raw)[:-4], crc) is None:
        return None
    return IndexEntry(sequence, place, time_ns, size)
