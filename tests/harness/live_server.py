"""Running nats-servers, alone or three in a cluster, and calls that fill their streams."""

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from storage_core.errors import ServerError
from storage_core.live.connection import Connection
from storage_core.live.login import Address, Login
from storage_core.live.server import Servers, stream_info

INSTALLED = Path(sys.executable).parent / "nats-server"
FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "nats-servers"  # scripts/nats_servers.py
BINARIES = [*sorted(FOLDER.glob("*/bin/nats-server")), INSTALLED]
START_S = 20.0
SENT_AT_ONCE = 5_000  # messages
PORTS = range(20_000, 32_000)
_given: set[int] = set()  # ports of servers that may not listen yet


def free_port() -> int:
    """Return a port at which nothing listens, never twice, and none of those that the system gives to clients."""
    while True:
        port = random.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class LiveServer:
    """A server on a port of its own, with its store in `folder/store`; it can be stopped and started again."""

    def __init__(self, folder: Path, binary: Path = INSTALLED, config: str = "", jetstream: str = "", name: str = ""):
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.binary, self.folder = free_port(), binary, folder
        self.store = folder / "store"
        store = f"jetstream {{ store_dir: {json.dumps(str(self.store))}, {jetstream} }}" if jetstream != "off" else ""
        named = f"server_name: {name}\n" if name else ""
        (folder / "server.conf").write_text(f'listen: "127.0.0.1:{self.port}"\n{named}{store}\n{config}\n')
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def servers(self, silence_s: float = 10.0, retry_s: float = 10.0, **login: Any) -> Servers:
        return Servers((self.address,), Login(**login), silence_s, retry_s)

    def start(self) -> "LiveServer":
        with (self.folder / "server.log").open("ab") as log:
            command = [str(self.binary), "-c", str(self.folder / "server.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                assert time.monotonic() < end_s, "the server does not answer"
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        if self.process is not None:
            self.process.wait(30)
        self.process = None

    def connect(self, **login: Any) -> Connection:
        """Return a connection once JetStream answers."""
        return connect([self.address], **login)


def connect(addresses: Sequence[Address], **login: Any) -> Connection:
    end_s = time.monotonic() + START_S
    while True:
        connection = Connection(addresses, Login(**login))
        try:
            connection.request("STREAM.NAMES")
            return connection
        except ServerError:
            connection.close()
            assert time.monotonic() < end_s, "JetStream does not answer"
            time.sleep(0.05)


@contextmanager
def live_server(folder: Path, binary: Path = INSTALLED, config: str = "", **more: Any) -> Iterator[LiveServer]:
    server = LiveServer(folder, binary, config, **more)
    try:
        yield server.start()
    finally:
        server.stop(signal.SIGKILL)


@contextmanager
def cluster(folder: Path, binary: Path = INSTALLED) -> Iterator[list[LiveServer]]:
    """Yield three servers that are a cluster."""
    routes = [free_port() for _ in range(3)]
    listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    with ExitStack() as stack:
        servers = []
        for number, port in enumerate(routes):
            config = f'cluster {{ name: C, listen: "127.0.0.1:{port}", routes: [{listed}] }}'
            server = LiveServer(folder / f"n{number}", binary, config, name=f"n{number}")
            stack.callback(server.stop, signal.SIGKILL)
            servers.append(server.start())
        connect([server.address for server in servers]).close()
        yield servers


def create_stream(connection: Connection, name: str, **config: Any) -> dict[str, Any]:
    wanted = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1, **config}
    end_s = time.monotonic() + START_S
    while True:  # a cluster needs a moment until it places streams
        try:
            return connection.request("STREAM.CREATE", name, body=wanted)
        except ServerError as error:
            if error.error_code not in (503, 10005, 10008, 10009) or time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def leader_of(servers: Sequence[LiveServer], stream: str) -> LiveServer:
    """Return the server of a cluster that leads the stream; after a leader has gone, the next one is waited for."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        info = Servers(tuple(server.address for server in servers)).retrying(lambda found: stream_info(found, stream))
        if "leader" in info.answer["cluster"]:
            return servers[int(info.answer["cluster"]["leader"][1:])]
        time.sleep(0.1)
    raise AssertionError(f"no server leads {stream!r} after {START_S:g} s")


def frame(subject: str, payload: bytes, headers: Sequence[tuple[str, bytes]] | None = None, reply: str = "") -> bytes:
    """Return what a client sends to publish a message."""
    between = f" {reply} " if reply else " "
    if headers is None:
        return f"PUB {subject}{between}{len(payload)}\r\n".encode() + payload + b"\r\n"
    raw = b"NATS/1.0\r\n" + b"".join(key.encode() + b": " + value + b"\r\n" for key, value in headers) + b"\r\n"
    return f"HPUB {subject}{between}{len(raw)} {len(raw) + len(payload)}\r\n".encode() + raw + payload + b"\r\n"


def fill(connection: Connection, stream: str, frames: Iterable[bytes]) -> int:
    """Publish frames made by `frame` without a reply, and return the stream's last sequence.

    Servers drop what comes faster than they store it, so that each piece is waited for.
    """
    listed = list(frames)
    last = int(connection.request("STREAM.INFO", stream)["state"]["last_seq"])
    for start in range(0, len(listed), SENT_AT_ONCE):
        piece = listed[start : start + SENT_AT_ONCE]
        connection.send(b"".join(piece))
        end_s, wanted = time.monotonic() + START_S, last + len(piece)
        while last < wanted:
            last = int(connection.request("STREAM.INFO", stream)["state"]["last_seq"])
            assert time.monotonic() < end_s, f"sequence {wanted} was not stored, the last one is {last}"
    return last


def numbered(stream: str, count: int, first: int = 0) -> Iterator[bytes]:
    for number in range(first, first + count):
        yield frame(f"{stream}.{number % 7}", b"message %d" % number)
