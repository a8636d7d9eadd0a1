"""Objects of a JetStream object store, put together again out of the stream that it is.

A bucket is a stream `OBJ_<bucket>`. The last message of `$O.<bucket>.M.<name>` describes an object as JSON: its name,
the id of its chunks, their count and size, and a SHA-256 of all; the messages of `$O.<bucket>.C.<id>` are the chunks.

Source: ADR-20 of nats-architecture-and-design.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from storage_core.errors import StorageError
from storage_core.store.stream import Stream
from storage_core.subjects import is_literal

PREFIX = "OBJ_"
_ORIGINAL_NAME = "jstream.name"  # in the metadata of a stream that was imported under another name
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE_NAME_MAX = 200
_DIGEST_PREFIX = "SHA-256="


@dataclass(frozen=True, slots=True)
class ExportedObject:
    """What became of an object."""

    name: str
    file: str  # empty: none was written
    size: int
    problem: str = ""  # why it is not what was stored, or not there


def bucket_of(stream: Stream) -> str | None:
    """Return the bucket that the stream is, None if it is none."""
    name = stream.config.metadata.get(_ORIGINAL_NAME, stream.name)
    bucket = name.removeprefix(PREFIX)
    return bucket if name.startswith(PREFIX) and is_literal(bucket) else None


def export_objects(stream: Stream, bucket: str, folder: Path) -> Iterator[ExportedObject]:
    """Write every object of a bucket below the folder, and yield what became of each.

    An object whose chunks are not those that were stored is not written. Names of files are names of objects, in which
    everything but letters, digits and `_.-~` is a percent sign and two hex digits.
    """
    for batch in stream.last_per_subject(f"$O.{bucket}.M.>", columns=["sequence", "data"]):
        for sequence, data in zip(*(batch.column(at).to_pylist() for at in range(2)), strict=True):
            try:
                description = json.loads(data)
                name = str(description["name"])
            except (KeyError, TypeError, ValueError) as error:
                yield ExportedObject("", "", 0, f"message {sequence} describes no object: {error}")
                continue
            if not description.get("deleted"):
                yield _export(stream, bucket, description, name, folder)


def _export(stream: Stream, bucket: str, description: dict[str, Any], name: str, folder: Path) -> ExportedObject:
    if (description.get("options") or {}).get("link"):
        return ExportedObject(name, "", 0, "it is a link, which has no chunks")
    chunks = str(description.get("nuid", ""))
    if not _ID.fullmatch(chunks):
        return ExportedObject(name, "", 0, f"{chunks!r} is no id of chunks")
    target = folder / _file_name(name)
    partial = target.with_name(f"{target.name}.partial")
    digest, size, count = hashlib.sha256(), 0, 0
    try:
        with partial.open("wb") as file:
            for batch in stream.read(subject=f"$O.{bucket}.C.{chunks}", columns=["data"]):
                for chunk in batch.column("data").to_pylist():
                    content = chunk or b""
                    digest.update(content)
                    file.write(content)
                    size, count = size + len(content), count + 1
            file.flush()
            os.fsync(file.fileno())
        problem = _problem(description, digest.digest(), size, count)
    except StorageError as error:
        problem = str(error)
    if problem:
        partial.unlink()
        return ExportedObject(name, "", size, problem)
    partial.replace(target)
    return ExportedObject(name, target.name, size)


def _problem(description: dict[str, Any], digest: bytes, size: int, count: int) -> str:
    """Return in what the chunks are not those that were stored."""
    if (size, count) != (description.get("size", 0), description.get("chunks", 0)):
        return (
            f"{count} chunks of {size} bytes are there, {description.get('chunks')} of {description.get('size')} were "
            "stored"
        )
    stored = str(description.get("digest", ""))
    if stored and stored.removeprefix(_DIGEST_PREFIX).rstrip("=") != base64.urlsafe_b64encode(digest).decode().rstrip(
        "="
    ):
        return f"its digest is not {stored}"
    return ""


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    quoted = f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
    if len(quoted) <= _FILE_NAME_MAX:
        return quoted or "%"
    return f"{quoted[: _FILE_NAME_MAX - 33]}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
