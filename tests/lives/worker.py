"""The processes of a life: `python worker.py SOCKET` forks one for each connection, with everything imported before.

A process is sent calls, (name, arguments, limit), and answers ("done", result) or ("failed", class and bases, text,
errno). It uses what users have: `Store`, what it hands out, and the command line. A limit is an error of the process
for the time of one call: so many file descriptors left, or so many bytes of memory.
"""

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL, byref, c_int, c_uint32
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import pyarrow as pa  # noqa: E402
from lives.messages import Batch  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from pyspark_jstream import Store  # noqa: E402
from spark_stream.cli.app import app  # noqa: E402
from storage_core.store import operations  # noqa: E402, F401
from storage_core.store.ingest import backup, restore  # noqa: E402, F401
from storage_core.store.maintenance import maintenance  # noqa: E402, F401
from storage_core.store.stream import Stream  # noqa: E402, F401
from storage_core.store.writing.appends import WriterBatch  # noqa: E402

LOCK_TIMEOUT_S = 30.0
COLUMNS = ["sequence", "subject", "data"]
Row = tuple[int, str, bytes]


class Worker:
    """The calls. Each opens nothing but what is asked for: a process keeps its store, and what that remembers."""

    def __init__(self) -> None:
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None, "not open"
        return self._store

    def create(self, paths: list[str], **settings: Any) -> None:
        self._store = Store.create(paths, **settings)

    def open(self, paths: list[str], read_only: bool = False) -> list[str]:
        self._store = Store.open(paths, read_only=read_only, lock_timeout_s=LOCK_TIMEOUT_S)
        return self._store.paths

    def paths(self) -> list[str]:
        return self.store.paths

    def names(self) -> list[str]:
        """Return the names of the volumes, in the order of `paths`."""
        volumes = {one["path"]: one["name"] for one in self.store.cluster_info()["volumes"]}
        return [volumes[path] for path in self.store.paths]

    # --- streams

    def add_stream(self, **config: Any) -> str:
        return self.store.add_stream(config).incarnation.hex()

    def edit_stream(self, **config: Any) -> None:
        self.store.edit_stream(config)

    def delete_stream(self, stream: str) -> None:
        self.store.delete_stream(stream)

    def incarnations(self) -> dict[str, str]:
        return {name: self.store.stream(name).incarnation.hex() for name in self.store.streams()}

    def info(self, stream: str) -> dict[str, Any]:
        return dict(self.store.stream(stream).info())

    def append(self, stream: str, batch: Batch, writer: tuple[str, str] | None = None) -> tuple[int, int]:
        named = WriterBatch(*writer) if writer else None
        sequences = self.store.stream(stream).append(_table(batch), named)
        return sequences.start, sequences.stop

    def publish(self, stream: str, batch: Batch) -> tuple[int, bool]:
        """Publish one message, its token being its msg_id."""
        done = self.store.stream(stream).publish(batch.subject, batch.data(0), msg_id=batch.token)
        return done.sequence, done.duplicate

    def read(self, stream: str, first: int | None = None, end: int | None = None) -> list[Row]:
        return _rows(self.store.stream(stream).read(first, end, COLUMNS).read_all())

    def get(self, stream: str, sequence: int) -> Row:
        message = self.store.stream(stream).get(sequence)
        return message.sequence, message.subject, message.data or b""

    def remove(self, stream: str, sequences: list[int]) -> int:
        return self.store.stream(stream).remove(sequences)

    def purge(self, stream: str, **what: Any) -> int:
        return self.store.stream(stream).purge(**what)

    # --- consumers

    def add_consumer(self, stream: str, **config: Any) -> None:
        self.store.stream(stream).add_consumer(config)

    def fetch(
        self, stream: str, consumer: str, count: int, timeout_s: float = 0.0
    ) -> list[tuple[int, str, bytes, int]]:
        table = self.store.stream(stream).consumer(consumer).fetch(count, timeout_s)
        return list(zip(*(table.column(name).to_pylist() for name in [*COLUMNS, "delivery_count"]), strict=True))

    def ack(self, stream: str, consumer: str, sequences: list[int]) -> int:
        return self.store.stream(stream).consumer(consumer).ack(sequences)

    def nak(self, stream: str, consumer: str, sequences: list[int]) -> int:
        return self.store.stream(stream).consumer(consumer).nak(sequences)

    def reset(self, stream: str, consumer: str) -> int:
        return self.store.stream(stream).consumer(consumer).reset()

    def consumer_info(self, stream: str, consumer: str) -> dict[str, Any]:
        return dict(self.store.stream(stream).consumer(consumer).info())

    # --- operators

    def maintain(self) -> None:
        self.store.maintain()

    def repair(self, discard_lost: bool = False) -> dict[str, Any]:
        return self.store.repair(discard_lost=discard_lost)

    def verify(self) -> dict[str, Any]:
        return self.store.verify()

    def scrub(self) -> dict[str, Any]:
        return self.store.scrub(limit_bytes=20_000)

    def compact(self) -> dict[str, Any]:
        return self.store.compact()

    def events(self) -> list[dict[str, Any]]:
        return self.store.events()

    def report(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self.store.report()]

    def add_volumes(self, paths: list[str]) -> None:
        self.store.add_volumes(paths)

    def remove_volumes(self, names: list[str]) -> None:
        self.store.remove_volumes(names)

    def replace_volume(self, name: str, path: str) -> None:
        self.store.replace_volume(name, path)

    def backup_and_restore(self, directory: str, paths: list[str]) -> dict[str, list[Row]]:
        """Return what a store that was made of a backup holds."""
        self.store.backup(directory)
        copy = Store.restore(directory, paths)
        return {name: _rows(copy.stream(name).read(columns=COLUMNS).read_all()) for name in copy.streams()}

    def command(self, arguments: list[str]) -> tuple[int, str, str]:
        """Run `jstream ARGUMENTS`; return its exit code, what it printed, and what it complained of."""
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr


def _table(batch: Batch) -> pa.Table:
    data = [batch.data(number) for number in range(batch.count)]
    return pa.table({"subject": [batch.subject] * batch.count, "data": pa.array(data, pa.binary())})


def _rows(table: pa.Table) -> list[Row]:
    return list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


@contextmanager
def limited(limit: tuple[str, int] | None) -> Iterator[None]:
    """Let the process be short of something."""
    if limit is None:
        yield
        return
    kind, amount = limit
    which, used = {
        "descriptors": (resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd"))),
        "memory": (resource.RLIMIT_AS, int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()),
    }[kind]
    before = resource.getrlimit(which)
    resource.setrlimit(which, (used + amount, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def serve(connection: Connection) -> None:
    worker = Worker()
    connection.send(os.getpid())
    while True:
        try:
            name, arguments, limit = connection.recv()
        except EOFError:
            return
        try:
            with limited(limit):
                result = getattr(worker, name)(**arguments)
            answer: tuple[Any, ...] = ("done", result)
        except Exception as error:
            classes = [one.__name__ for one in type(error).__mro__]
            answer = ("failed", classes, str(error), getattr(error, "errno", None))
        connection.send(answer)


def obey_modes() -> None:
    """Give up root's right to read whatever its mode says, so that a closed folder is closed to these processes."""
    if os.geteuid() != 0:
        return
    header = (c_uint32 * 2)(0x20080522, 0)
    data = (c_uint32 * 6)()
    libc = CDLL(None, use_errno=True)
    if libc.capget(byref(header), byref(data)) != 0:
        return
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        data[0] &= ~(1 << capability)
    c_int(libc.capset(byref(header), byref(data)))


def import_everything() -> None:
    """Import what is imported at first use, once for all processes. Nothing here starts a thread."""
    _table(Batch("t", "s", 1)).to_pylist()
    CliRunner().invoke(app, ["stream", "ls", "--json", "--store", "/nowhere"])


def main() -> None:
    import_everything()
    faulthandler.register(signal.SIGUSR1)
    obey_modes()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with Listener(sys.argv[1], "AF_UNIX") as listener:
        print("ready", flush=True)
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                status = 1
                try:
                    serve(connection)
                    status = 0
                finally:
                    os._exit(status)
            connection.close()


if __name__ == "__main__":
    main()
