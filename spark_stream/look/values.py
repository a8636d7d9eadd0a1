"""Values of JSON and MessagePack in messages, which may hold anything."""

import json
from collections.abc import Mapping
from typing import Any

from storage_core.bounded import unpack
from storage_core.errors import CorruptionError

MSGPACK_SIZE_MAX = 128 << 10  # bytes that one value of MessagePack may take


def parsed(data: bytes | None) -> Any:
    """Return the JSON or MessagePack value of a message, None if it is neither."""
    if not data:
        return None
    value = parsed_json(data) or parsed_msgpack(data)
    return None if value is None else value[0]


def parsed_json(data: bytes) -> tuple[Any] | None:
    """Return the value in a tuple, None for bytes that are no JSON."""
    try:
        return (json.loads(data),)
    except (ValueError, RecursionError):
        return None


def parsed_msgpack(data: bytes) -> tuple[Any] | None:
    """Return the value in a tuple, None for bytes that are no MessagePack of at most MSGPACK_SIZE_MAX."""
    try:
        return (unpack(data, MSGPACK_SIZE_MAX, "the message"),)
    except CorruptionError:
        return None


def field_of(value: Any, path: str) -> Any:
    """Return what a dotted path leads to in a JSON value, None if nowhere."""
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name[:9]) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
