"""How many calls of the operating system a piece of work makes on files and locks, counted where Python makes them."""

import fcntl
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any
from unittest.mock import patch

from storage_core import files

NAMES = (
    "chmod", "close", "fchmod", "fstat", "fsync", "ftruncate", "listdir", "lseek", "lstat", "mkdir", "open",
    "pread", "preadv", "pwrite", "read", "replace", "rmdir", "scandir", "stat", "unlink", "write",
)  # fmt: skip


@contextmanager
def counting_calls() -> Iterator[Counter[str]]:
    """Yield the calls by name, from all threads."""
    gc.collect()  # files that nobody has any more are closed now, or later
    gc.disable()
    counts, mutex = Counter[str](), threading.Lock()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any, **named: Any) -> Any:
            with mutex:
                counts[name] += 1
            return call(*given, **named)

        return count

    class CountedFile(FileIO):
        """A lock's file, which closes by itself."""

        def close(self) -> None:
            if not self.closed:
                with mutex:
                    counts["close"] += 1
            super().close()

    def sync(descriptor: int, *given: Any) -> None:
        if not given:  # else it is one of those below
            with mutex:
                counts["fdatasync"] += 1
        original_sync(descriptor, *given)

    original_sync = files._sync
    patches = [patch.object(os, name, counted(name, getattr(os, name))) for name in NAMES]
    patches += [
        patch.object(fcntl, "flock", counted("flock", fcntl.flock)),
        patch.object(files, "FileIO", CountedFile),
        patch.object(files, "_sync", sync),
    ]
    for made in patches:
        made.start()
    try:
        yield counts
    finally:
        for made in patches:
            made.stop()
        gc.enable()
