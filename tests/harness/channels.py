"""Channels of a store of NATS Streaming, made as small as they can be."""

import os
import zlib
from pathlib import Path
from struct import pack


def write_channel(place: Path) -> None:
    """Make the directory of a channel, of its name, with one message."""
    name = os.fsencode(place.name)
    payload = b"\x08\x01\x12" + bytes([len(name)]) + name + b"\x28\x07"  # sequence, subject, time
    place.mkdir(parents=True)
    (place / "msgs.1.dat").write_bytes(pack("<III", 1, len(payload), zlib.crc32(payload)) + payload)
