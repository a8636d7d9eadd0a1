"""Cursor over bytes from a JetStream state file: fixed-width and variable-length integers, never past the end."""

import numpy as np

from storage_core.errors import CorruptionError

UVARINT_SIZE_MAX = 10  # bytes; more than that cannot be a 64-bit integer


class Cursor:
    """Reads forward through `data`; `name` is what errors call the file. Every method raises CorruptionError."""

    __slots__ = ("data", "name", "at")

    def __init__(self, data: bytes, name: str, at: int = 0) -> None:
        self.data, self.name, self.at = data, name, at

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > len(self.data) - self.at:
            raise CorruptionError(
                f"{self.name}: {size} bytes wanted at offset_bytes {self.at}, {len(self.data) - self.at} are left"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def uvarint(self) -> int:
        """Return an unsigned integer of seven bits a byte, lowest first."""
        value, at, data = 0, self.at, self.data
        for shift in range(0, 7 * UVARINT_SIZE_MAX, 7):
            if at >= len(data):
                raise CorruptionError(f"{self.name}: ends inside an integer at offset_bytes {self.at}")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                self.at = at
                return value
        raise CorruptionError(f"{self.name}: integer at offset_bytes {self.at} does not fit into 64 bits")

    def uvarints(self, count: int) -> np.ndarray:
        """Return that many unsigned integers as uint64; none of them may have more than 63 bits."""
        data = np.frombuffer(self.data, np.uint8, offset=self.at)
        ends = np.flatnonzero(data < 0x80)[:count] + 1
        if len(ends) < count:
            raise CorruptionError(f"{self.name}: ends inside {count} integers from offset_bytes {self.at} on")
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))[:count]
        sizes = ends - starts
        if count and int(sizes.max()) >= UVARINT_SIZE_MAX:
            raise CorruptionError(f"{self.name}: one of {count} integers from offset_bytes {self.at} on is too large")
        size = int(ends[-1]) if count else 0
        shifts = (np.arange(size) - np.repeat(starts, sizes)) * 7
        parts = (data[:size] & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
        self.at += size
        return np.add.reduceat(parts, starts) if count else parts

    def varint(self) -> int:
        """Return a signed integer (zigzag)."""
        value = self.uvarint()
        return value >> 1 ^ -(value & 1)


def encode_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
