"""Files of STAN made by hand, record by record, and the stores that a real server wrote."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from storage_core.files import File, OsFiles

DATA = Path(__file__).parents[3] / "data" / "stan"
TIME = 1_795_225_426_594_126_338
VERSION = pack("<I", 1)


class Writer:
    """Encodes records one by one, as the server does; the second, obvious version of the codec."""

    version = VERSION

    def __init__(self, checksum: Callable[[bytes], int] = zlib.crc32) -> None:
        self.checksum = checksum

    def uvarint(self, value: int) -> bytes:
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    def proto(self, **fields: int | bytes | str) -> bytes:
        """proto(f1=5, f2="foo"): number of the field from the name; what is empty is left out."""
        out = b""
        for name, value in fields.items():
            number = int(name[1:])
            if isinstance(value, str):
                value = value.encode()
            if isinstance(value, bytes):
                out += self.uvarint(number << 3 | 2) + self.uvarint(len(value)) + value if value else b""
            elif value:
                out += self.uvarint(number << 3) + self.uvarint(value)
        return out

    def record(self, payload: bytes, code: int = 0) -> bytes:
        return pack("<II", len(payload) | code << 24, self.checksum(payload)) + payload

    def message(self, sequence: int, subject: str = "foo", data: bytes | None = None, time_ns: int = 0) -> bytes:
        data = b"data %d" % sequence if data is None else data
        return self.record(self.proto(f1=sequence, f2=subject, f4=data, f5=time_ns or TIME + sequence))

    def slice(self, first: int, end: int, subject: str = "foo") -> bytes:
        return VERSION + b"".join(self.message(sequence, subject) for sequence in range(first, end))

    def index(self, first: int, end: int, subject: str = "foo") -> bytes:
        """Return the index of what `slice` returns."""
        out, place = VERSION, len(VERSION)
        for sequence in range(first, end):
            size = len(self.message(sequence, subject))
            entry = pack("<QQqI", sequence, place, TIME + sequence, size - 8)
            out, place = out + entry + pack("<I", self.checksum(entry)), place + size
        return out


class ReadOnlyFiles(OsFiles):
    """A file system on which everything but reading is a bug."""

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> File:
        assert not writable, path
        return super().open(path)

    def _refuse(self, *arguments: object) -> Any:
        raise AssertionError(f"a foreign store is never changed: {arguments}")

    create = unlink = make_directory = remove_directory = sync_directory = lock = _refuse


class Case:
    """One store of a real server, and what clients got from it."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, path / "store"
        self.info = json.loads((path / "info.json").read_text())

    def rows(self, name: str = "expected") -> dict[str, list[dict[str, Any]]]:
        """Return the messages that a client got, channel by channel."""
        lines = gzip.decompress((self.path / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
        found: dict[str, list[dict[str, Any]]] = {}
        for line in map(json.loads, lines):
            row = {
                "sequence": line["seq"],
                "subject": line["channel"],
                "timestamp_ns": line["time_ns"],
                "headers": None,
                "data": base64.b64decode(line["data"]),
            }
            found.setdefault(line["channel"], []).append(row)
        return found


@pytest.fixture(scope="session")
def writer() -> Writer:
    return Writer()


@pytest.fixture(scope="session")
def writers() -> type[Writer]:
    return Writer


@pytest.fixture
def read_only_files() -> ReadOnlyFiles:
    return ReadOnlyFiles()


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    return lambda name: Case(DATA / name)


@pytest.fixture
def make_channel(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that lays out a channel below tmp_path and returns the store's path."""

    def make(name: str = "foo", root: str = "store", **contents: bytes | Sequence[bytes]) -> Path:
        """`msgs_1_dat=content` becomes the file msgs.1.dat."""
        channel = tmp_path / root / name
        channel.mkdir(parents=True, exist_ok=True)
        for key, content in contents.items():
            data = content if isinstance(content, bytes) else b"".join(content)
            (channel / key.replace("_", ".")).write_bytes(data)
        return tmp_path / root

    return make


@pytest.fixture(scope="session")
def read() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that reads a channel through the public surface."""
    import pickle

    from storage_core.foreign import open_foreign, read_foreign_slice
    from storage_core.schema import read_schema

    columns = ("sequence", "subject", "timestamp_ns", "headers", "data")

    def run(
        store: Path, stream: str = "foo", on_damage: Any = None, files: Any = None, **asked: Any
    ) -> list[dict[str, Any]]:
        options = {name: asked.pop(name) for name in ("truncate_bad_eof", "no_crc") if name in asked}
        files = files or ReadOnlyFiles()
        rows: list[dict[str, Any]] = []
        opened = open_foreign(store, "stan", files=files, **options)
        for part in pickle.loads(pickle.dumps(opened.plan(stream, columns, **asked))):
            for batch in read_foreign_slice(part, columns, on_damage, files):
                batch.validate(full=True)
                assert batch.schema == read_schema(columns)
                rows += batch.to_pylist()
        return rows

    return run
