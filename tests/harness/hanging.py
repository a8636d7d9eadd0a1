"""Volumes that hang: calls of the file interface that do not return until a test lets them."""

import threading
from dataclasses import replace
from pathlib import Path

from harness.faults import CHANGING, LOCKING, READING, Call, FaultyFiles

from storage_core.deadlines import DeadlineFiles
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment

TIMEOUT_S = 0.3


class Hanging:
    """One volume on which chosen calls hang, for a process whose calls have deadlines."""

    def __init__(self, volume: Path, operations: tuple[str, ...] = (*CHANGING, *READING, *LOCKING)) -> None:
        self.volume, self.operations = volume, operations
        self.kinds: tuple[str, ...] = ()  # of files, if not all hang
        self.stuck: list[Call] = []
        self.is_hanging = False
        self.has_hung = threading.Event()
        self._may_return = threading.Event()
        self.files = FaultyFiles(OS_FILES, self._judge, (*CHANGING, *READING, *LOCKING))

    def environment(self, timeout_s: float = TIMEOUT_S) -> Environment:
        return replace(REAL, files=DeadlineFiles(self.files, timeout_s))

    def hang(self) -> None:
        self._may_return.clear()
        self.is_hanging = True

    def let_return(self) -> None:
        self.is_hanging = False
        self._may_return.set()

    def _judge(self, call: Call) -> int:
        chosen = call.operation in self.operations and (not self.kinds or call.file_kind in self.kinds)
        if self.is_hanging and chosen and call.path.is_relative_to(self.volume):
            self.stuck.append(call)
            self.has_hung.set()
            self._may_return.wait()
        return 0
