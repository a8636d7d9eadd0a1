"""A store, and `jstream` run on it: inside this process, or as a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner

from spark_stream.cli.app import app
from storage_core import Store

ROOT = Path(__file__).resolve().parents[3]
VOLATILE = [
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-f]{8}\b"), "<crc>"),
    (re.compile(r'"reason": ".*"'), '"reason": "<reason>"'),
    (re.compile(r'"(file_size|payload_size)": \d+'), r'"\1": "<size>"'),
    (re.compile(r'"host": "[^"]*"'), '"host": "<host>"'),
    (re.compile(r'"(term|index|generation|applied)": \d+'), r'"\1": "<number>"'),
    (re.compile(r'"metadata": \d+'), '"metadata": "<size>"'),
    (re.compile(r'"seconds": [\d.e-]+'), '"seconds": "<number>"'),
    (re.compile(r"\b\d+(?:\.\d)? s\b +"), "<span> "),
    (re.compile(r'"lag": [1-9]\d*'), '"lag": "<number>"'),
    (re.compile(r"\b2\d{3}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


class Jstream:
    """Runs commands against one store."""

    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.places: dict[Path, str] = {volume: "<volume>"}  # what they are called in normalised text

    def __call__(self, *words: object, stdin: str | bytes = b"", with_store: bool = True) -> Outcome:
        """Run a command in this process to its end, whatever that is."""
        environment = {"JSTREAM_STORE": str(self.volume) if with_store else None}
        result = CliRunner().invoke(app, [str(word) for word in words], input=stdin, env=environment)
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def done(self, *words: object, stdin: str | bytes = b"") -> str:
        """Run a command that must succeed; return its standard output."""
        outcome = self(*words, stdin=stdin)
        assert outcome.code == 0, outcome
        return outcome.out

    def start(
        self,
        *words: object,
        stdin: int = subprocess.PIPE,
        stdout: "int | IO[bytes]" = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        **variables: str,
    ) -> "subprocess.Popen[bytes]":
        """Start a command as a process of its own; `variables` are added to its environment."""
        command = [sys.executable, "-m", "spark_stream.cli", *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(self.volume), **variables}
        return subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)

    def process(self, *words: object, stdin: bytes = b"", **more: Any) -> Outcome:
        """Run a command as a process of its own, without a terminal, to its end."""
        with self.start(*words, **more) as process:
            out, err = process.communicate(stdin, timeout=60)
        return Outcome(process.returncode, (out or b"").decode(), (err or b"").decode())

    def normalised(self, text: str) -> str:
        """Return the text with ids, times and the store's place replaced, which differ from run to run."""
        for path, name in self.places.items():
            text = text.replace(str(path), name)
        for pattern, name in VOLATILE:
            text = pattern.sub(name, text)
        return text


@pytest.fixture(autouse=True)
def no_contexts_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that whoever runs the tests has named are none of theirs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The volume of a new store."""
    path = tmp_path / "volume"
    Store.create(path).close()
    return path


@pytest.fixture
def store(volume: Path) -> Iterator[Store]:
    """The same store, through Python."""
    with Store.open(volume) as opened:
        yield opened


@pytest.fixture
def jstream(volume: Path) -> Jstream:
    return Jstream(volume)


@pytest.fixture
def orders(store: Store) -> Store:
    """The store with a stream ORDERS of six messages on orders.new and orders.paid; 2 and 3 were removed."""
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(1, 7):
        stream.publish(
            "orders.paid" if number == 5 else "orders.new", b"body %d" % number, [("number", b"%d" % number)]
        )
    stream.remove([2, 3])
    return store


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    """The volumes of a store on three of them."""
    paths = [tmp_path / name for name in ("disk-1", "disk-2", "disk-3")]
    Store.create(paths).close()
    return paths


@pytest.fixture
def trio(volumes: list[Path]) -> Jstream:
    """Commands on the store on three volumes."""
    made = Jstream(volumes[0])
    made.places = {path: f"<{path.name}>" for path in volumes}
    return made


@pytest.fixture
def replicated(volumes: list[Path]) -> Store:
    """The store on three volumes with a stream ORDERS of four messages, each a block."""
    store = Store.open(volumes)
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(1, 5):
        stream.publish("orders.new", b"body %d" % number)
    return store


@pytest.fixture
def blocks_on(replicated: Store) -> Callable[[Path], list[Path]]:
    """Gives the files of ORDERS on a volume of the store on three, in order of sequence."""

    def listed(volume: Path) -> list[Path]:
        stream = replicated.stream_state("ORDERS")
        names = [bytes(one).hex() for one in stream.blocks.rows["block_id"]]
        return [volume / "streams" / stream.incarnation.hex() / f"{name}.blk" for name in names]

    return listed
