"""SIGTERM for commands that run until they are stopped: noted, and it ends a wait at once."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Whether SIGTERM has come. The handler sets a flag and writes to a pipe: neither can wait for a lock."""

    def __init__(self) -> None:
        self.has_come = False
        self._reader, self._writer = os.pipe()

    @classmethod
    @contextmanager
    def awaited(cls) -> Iterator["Termination"]:
        """Note SIGTERM instead of ending by it, until the block ends."""
        termination = cls()
        before = signal.signal(signal.SIGTERM, termination._note)
        try:
            yield termination
        finally:
            signal.signal(signal.SIGTERM, before)
            os.close(termination._reader)
            os.close(termination._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.has_come:
            self.has_come = True
            os.write(self._writer, b"!")

    def wait(self, seconds: float) -> None:
        """Return after this time, or when SIGTERM comes."""
        select.select([self._reader], [], [], seconds)
