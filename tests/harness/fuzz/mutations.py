"""What is done to the bytes of a file: as a disk does it, as somebody does it who knows the format, and to the values
inside of it.

mutate_bytes    damage: flipped bits, cuts, holes, pieces of the same or of another file, numbers at the edge
mutate_tree     one value of a decoded msgpack or JSON document becomes another one, of the wrong type or size mostly
"""

import random
from typing import Any

import msgpack

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40)
EDGES += ((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 10, (1 << 64) - 1)
SIZE_MAX = 4 << 20  # bytes of a mutated file: what is larger has tests of its own
TEXTS = (
    "",
    "../../x",
    "\x00",
    "\x1b[2J",
    "a" * 70_000,
    "a.b.>",
    "*",
    "/etc/passwd",
    "é",
    "\ud800",
)


def mutate_bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to three changes; `other` is another file that pieces may come from."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _mutate_once(content, other, rng)
    return bytes(content[:SIZE_MAX])


def _mutate_once(content: bytearray, other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((1, 8, 64, 4096, 1 << 20)))
    kind = rng.randrange(12)
    if kind <= 2 and content:
        content[min(at, len(content) - 1)] ^= 1 << rng.randrange(8)
    elif kind <= 4:  # a number, as wide as formats have them, often where such fields begin
        size = rng.choice((1, 2, 4, 4, 8, 8))
        at = at // size * size if rng.random() < 0.5 else at
        number = rng.choice(EDGES) if rng.random() < 0.8 else rng.randrange(1 << 64)
        content[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif kind == 5:  # a variable-length number
        number, encoded = rng.choice(EDGES), bytearray()
        while number >= 0x80:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        content[at : at + 1] = [*encoded, number]
    elif kind == 6:
        del content[at:]
    elif kind == 7:
        content[at:end] = bytes(end - at)
    elif kind == 8:
        del content[at:end]
    elif kind == 9:
        content[at:at] = rng.choice((bytes(end - at), rng.randbytes(min(end - at, 4096)), content[at:end]))
    elif kind == 10:  # from elsewhere in the file, over it or between
        start = rng.randrange(len(content) + 1)
        content[at : end if rng.random() < 0.5 else at] = content[start : start + end - at]
    elif other:
        start = rng.randrange(len(other))
        content[at:end] = other[start : start + max(1, end - at)]


def mutate_tree(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """Return the document with one value in it, or itself, replaced."""
    inner = isinstance(value, (list, dict)) and len(value) > 0
    if inner and rng.random() < 0.93 and depth < 60:
        if isinstance(value, list):
            at = rng.randrange(len(value))
            if rng.random() < 0.1:
                return rng.choice((value[:at], value * 2, value[::-1], value[:at] + value[at + 1 :]))
            return [mutate_tree(each, rng, depth + 1) if n == at else each for n, each in enumerate(value)]
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {one: each for one, each in value.items() if one != key}
        if rng.random() < 0.05:
            other = _strange(key, rng)
            return {(other if one == key and _hashable(other) else one): each for one, each in value.items()}
        return {one: mutate_tree(each, rng, depth + 1) if one == key else each for one, each in value.items()}
    if isinstance(value, bytes) and len(value) > 16 and rng.random() < 0.8:
        nested = unpacked(value)
        if isinstance(nested, (list, dict)):
            return packed(mutate_tree(nested, rng, depth + 1), value)
        return mutate_bytes(value, b"", rng)
    return _strange(value, rng)


def unpacked(data: bytes) -> Any:
    """Return what the msgpack holds, None if it is none."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError):
        return None


def packed(value: Any, otherwise: bytes = b"") -> bytes:
    """Return the value as msgpack; `otherwise` if it cannot be."""
    try:
        return bytes(msgpack.packb(value, use_bin_type=True))
    except (ValueError, TypeError, OverflowError, RecursionError, UnicodeEncodeError):
        return otherwise


def _hashable(value: Any) -> bool:
    return not isinstance(value, (list, dict))


def _strange(value: Any, rng: random.Random) -> Any:
    """Return another value, more often than not of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and rng.random() < 0.7:
        return rng.choice((rng.choice(EDGES), -rng.choice(EDGES[:-3]), value + 1, value - 1, -1))
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice(TEXTS)
    if isinstance(value, bytes) and rng.random() < 0.7:
        return rng.choice((b"", value[:-1], value + b"\x00", rng.randbytes(len(value)), bytes(len(value))))
    deep: Any = []
    for _ in range(rng.choice((0, 30, 400))):
        deep = [deep]
    return rng.choice((None, True, 0, -1, 1.5, float("inf"), "x", b"x" * 16, [], {}, deep, [0] * 100_000, {1: 2}))
