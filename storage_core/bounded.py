"""msgpack with bounds, for bytes that a checksum or digest has vouched for.

No container can declare more than the input holds. That does not bound their number: ten megabytes of empty arrays
become seven hundred, so `size_max` is chosen with that in mind, and what strangers write is not unpacked here.
"""

from typing import Any, Protocol, TypeVar

import msgpack
import msgspec

from storage_core.errors import CorruptionError

T_co = TypeVar("T_co", covariant=True)

# What msgspec raises for bytes that are no value of a type: of text that is no UTF-8 it says so in Python's way.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNPACKED_PER_BYTE_MAX = 1  # an element is at least one byte, so a container cannot declare more than the input holds


def pack(value: Any) -> bytes:
    """Return `value` as msgpack: bytes stay bytes, str is UTF-8."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes | memoryview, size_max: int, label: str) -> Any:
    """Return the one value that `data` holds; lists come back as lists.

    Raises CorruptionError naming `label` if there are more than `size_max` bytes, or if they are not exactly one
    msgpack value with containers no longer than the input.
    """
    size = len(data)
    if size > size_max:
        raise CorruptionError(f"{label} has {size} bytes, at most {size_max} are allowed")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size * UNPACKED_PER_BYTE_MAX,
            max_map_len=size * UNPACKED_PER_BYTE_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise CorruptionError(f"{label} is not valid msgpack: {error}") from error


class Decoder(Protocol[T_co]):
    """A `msgspec.msgpack.Decoder`."""

    def decode(self, data: bytes | msgspec.Raw, /) -> T_co: ...


def decode(decoder: Decoder[T_co], data: bytes | msgspec.Raw, label: str) -> T_co:
    """Return what a decoder makes of `data`; raises CorruptionError naming `label`, also for endless nesting."""
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise CorruptionError(f"{label} of {len(bytes(data))} bytes is not one: {error}") from error
