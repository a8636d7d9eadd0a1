"""Processes of a life, as their driver sees them: calls that end in a result, an error, or not at all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

HANGS_AFTER_S = 120.0  # twice what any call may wait for the lock


@dataclass
class Call:
    """One call of a worker. Of the three that hear of its end, one is called."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    done: Callable[[Any, float], None] = lambda result, ended: None
    unknown: Callable[[float], None] = lambda ended: None  # killed, or failed: it may have been done
    refused: Callable[["Failure"], bool] = lambda failure: False  # whether this error is right
    limit: tuple[str, int] | None = None
    writes: bool = False
    began: float = 0


@dataclass(frozen=True)
class Failure:
    """The error that a call ended in."""

    classes: tuple[str, ...]
    text: str
    errno: int | None

    def __str__(self) -> str:
        return f"{self.classes[0]}: {self.text}"

    def is_a(self, *names: str) -> bool:
        return any(name in self.classes for name in names)


class Process:
    """One worker."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name, self.connection = name, connection
        self.pid: int = connection.recv()
        self.is_open = False
        self.call: Call | None = None
        self.sent = 0.0

    def send(self, call: Call) -> None:
        self.call, self.sent = call, time.monotonic()
        self.connection.send((call.name, call.arguments, call.limit))

    def answer(self) -> tuple[Any, ...] | None:
        """Return how the call ended, None if the process is gone."""
        try:
            answer: tuple[Any, ...] = self.connection.recv()
        except (EOFError, ConnectionError):
            return None
        return answer

    def signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def end(self) -> None:
        self.connection.close()  # which is the end of an idle one
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)


class Nursery:
    """Starts processes: one of its own imports everything once and forks."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "nursery")
        worker = Path(__file__).with_name("worker.py")
        with (folder / "stderr").open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(worker), self._address],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("workers cannot be started")

    def start(self, name: str) -> Process:
        return Process(name, Client(self._address, "AF_UNIX"))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def ready(processes: list[Process], timeout_s: float) -> list[Process]:
    """Return those that have answered or ended, waiting at most so long for the first."""
    there = wait([one.connection for one in processes], max(0.0, timeout_s))
    return [one for one in processes if one.connection in there]
