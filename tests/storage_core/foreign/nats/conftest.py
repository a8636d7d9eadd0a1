"""Blocks and streams made by hand, and the stores that real servers wrote."""

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from storage_core.files import File, OsFiles
from storage_core.foreign.nats.highwayhash import Key, highwayhash64
from storage_core.foreign.nats.index import highwayhash_of
from storage_core.foreign.nats.record import ERASED_BIT, HEADERS_BIT, TOMBSTONE_BIT, block_key

DATA = Path(__file__).parents[3] / "data"
TIME = 1_795_224_345_535_450_870


def hash_one(data: bytes, key: Key) -> int:
    whole = np.frombuffer(data, np.uint8)
    return int(highwayhash64(whole, np.zeros(1, np.int64), np.array([len(data)]), key)[0])


class Records:
    """Encodes records one by one, as the server does; the second, obvious version of the codec."""

    def __init__(self, stream: str, block_index: int) -> None:
        self.key = block_key(stream, block_index)

    def message(self, sequence: int, subject: str, data: bytes = b"", headers: bytes | None = None) -> bytes:
        return self.record(sequence, TIME + sequence, subject.encode(), data, headers)

    def tombstone(self, sequence: int) -> bytes:
        return self.record(sequence | TOMBSTONE_BIT, TIME, b"", b"")

    def erased(self, sequence: int, size: int = 0) -> bytes:
        return self.record(sequence | ERASED_BIT, 0, b"", bytes(size))

    def record(self, number: int, time: int, subject: bytes, data: bytes, headers: bytes | None = None) -> bytes:
        head = pack("<Qq", number, time)
        body = subject + (b"" if headers is None else pack("<I", len(headers)) + headers) + data
        checksum = hash_one(head + subject + (headers or b"") + data, self.key)
        size = 4 + len(head) + 2 + len(body) + 8
        flag = 0 if headers is None else HEADERS_BIT
        return pack("<I", size | flag) + head + pack("<H", len(subject)) + body + pack("<Q", checksum)


class ReadOnlyFiles(OsFiles):
    """A file system on which everything but reading is a bug."""

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> File:
        assert not writable, path
        return super().open(path)

    def _refuse(self, *arguments: object) -> Any:
        raise AssertionError(f"a foreign store is never changed: {arguments}")

    create = unlink = make_directory = remove_directory = sync_directory = lock = _refuse


class Case:
    """One store of a real server, and what a client got from it."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, path / "store"
        info = json.loads((path / "info.json").read_text())
        self.stream, self.state = info["stream"], info["state"]

    def expected(self) -> list[dict[str, Any]]:
        lines = gzip.decompress((self.path / "expected.jsonl.gz").read_bytes()).decode().splitlines()
        return [self._row(json.loads(line)) for line in lines]

    @staticmethod
    def _row(line: dict[str, Any]) -> dict[str, Any]:
        pairs = [{"key": key, "value": value.encode()} for key, value in line["headers"]]
        return {
            "sequence": line["seq"],
            "subject": line["subject"],
            "timestamp_ns": line["time_ns"],
            "headers": pairs if line["hdrs"] else None,
            "data": base64.b64decode(line["data"]),
        }


@pytest.fixture(scope="session")
def records() -> type[Records]:
    return Records


@pytest.fixture
def read_only_files() -> ReadOnlyFiles:
    return ReadOnlyFiles()


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    return lambda name: Case(DATA / "nats" / name)


@pytest.fixture
def make_stream(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that lays out a stream below tmp_path and returns the store's path."""

    def make(
        name: str, blocks: dict[int, Sequence[bytes] | bytes], account: str = "$G", root: str = "store", **config: Any
    ) -> Path:
        store = tmp_path / root
        stream = store / "jetstream" / account / "streams" / name
        (stream / "msgs").mkdir(parents=True)
        meta = json.dumps({"name": name, "subjects": [">"], **config}).encode()
        (stream / "meta.inf").write_bytes(meta)
        (stream / "meta.sum").write_text(highwayhash_of(meta, name).to_bytes(8, "little").hex())
        for index, content in blocks.items():
            data = content if isinstance(content, bytes) else b"".join(content)
            (stream / "msgs" / f"{index}.blk").write_bytes(data)
        return store

    return make
