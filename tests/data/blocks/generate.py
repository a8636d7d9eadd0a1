"""Writes the golden blocks beside it, and what is in them as JSON: `python tests/data/blocks/generate.py`.

They belong to block format 1 and never change while it is read: a file that exists is not written again. A new
version of the format gets files of its own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.block.format import BlockIdentity
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.writer import BlockWriter
from storage_core.files import OS_FILES
from storage_core.schema import FRAME_SCHEMA

HERE = Path(__file__).parent
IDENTITY = BlockIdentity(*(bytes(range(first, first + 16)) for first in (0x10, 0x20, 0x30, 0x40)))
START_NS = 1_795_262_400_000_000_001  # 2026-11-21T12:00:00.000000001Z

Message = dict[str, Any]  # sequence (relative), subject, timestamp_ns, headers, data, msg_id


def example() -> list[Message]:
    """Return the two messages of docs/formats/block.md, section 11."""
    return [
        message(0, "orders.eu", START_NS, [("trace", b"\x01\x02"), ("flag", None)], b'{"id":1}', "a-1"),
        message(2, "orders.us", START_NS + 1500, None, None, None),
    ]


def assortment() -> list[Message]:
    """Return messages that show what a block can hold: holes, nulls, empty values, repeated keys, times before 1970."""
    messages = []
    for number in range(300):
        sequence = number if number < 100 else number + 7 if number < 200 else 10_000_000_000 + 2 * number
        headers = [None, [], [("k", b"v"), ("k", b""), ("\u00fc", None)]][number % 3]
        data = [None, b"", b"payload %d" % number, bytes(range(number % 256))][number % 4]
        time_ns = START_NS + number * 1_000_003 if number % 50 else -number - 1
        subject = f"golden.{number % 5}.\u20ac" if number % 2 else "golden"
        messages.append(message(sequence, subject, time_ns, headers, data, f"id-{number}" if number % 7 == 0 else None))
    return messages


def many_subjects() -> list[Message]:
    """Return more subjects than a footer lists, `s.0` and on, so that a bloom filter stands for them."""
    return [message(number, f"s.{number}", START_NS, None, b"", None) for number in range(9_000)]


def message(
    sequence: int,
    subject: str,
    timestamp_ns: int,
    headers: list[tuple[str, bytes | None]] | None,
    data: bytes | None,
    msg_id: str | None,
) -> Message:
    return {
        "sequence": sequence,
        "subject": subject,
        "timestamp_ns": timestamp_ns,
        "headers": None if headers is None else [[key, None if v is None else v.hex()] for key, v in headers],
        "data": None if data is None else data.hex(),
        "msg_id": msg_id,
    }


def to_batch(messages: list[Message]) -> pa.RecordBatch:
    """Return the messages in the columns of FRAME_SCHEMA."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "subject": one["subject"],
                "timestamp_ns": one["timestamp_ns"],
                "headers": one["headers"]
                and [{"key": key, "value": None if v is None else bytes.fromhex(v)} for key, v in one["headers"]],
                "data": None if one["data"] is None else bytes.fromhex(one["data"]),
            }
            for one in messages
        ],
        schema=FRAME_SCHEMA,
    )


def write(name: str, codec: str, messages: list[Message]) -> None:
    path = HERE / f"{name}.blk"
    if path.exists():
        return
    hashes = msg_id_hashes(pa.array([one["msg_id"] for one in messages], pa.string()))
    sequences = np.array([one["sequence"] for one in messages])
    with OS_FILES.create(path) as file:
        writer = BlockWriter(file, IDENTITY, codec)
        for start in range(0, len(messages), 1000):
            part = slice(start, start + 1000)
            writer.write(to_batch(messages[part]), hashes[part], sequences[part])
        print(f"{name}: digest {writer.finish().digest.hex()}")
    path.chmod(0o644)


def write_expected(name: str, messages: list[Message]) -> None:
    path = HERE / f"{name}.json"
    if not path.exists():
        path.write_text("[\n" + ",\n".join(json.dumps(one) for one in messages) + "\n]\n")


if __name__ == "__main__":
    write("example", "none", example())
    write_expected("example", example())
    for one in ("none", "lz4", "zstd"):
        write(one, one, assortment())
    write_expected("assortment", assortment())
    write("many-subjects", "zstd", many_subjects())
