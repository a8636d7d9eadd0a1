"""Group commit: commits of several threads that wait for the same locks are written together, by one of them.

Whoever gets the mutex takes along all that wait: one turn and one round of fsyncs for all. Each still succeeds or is
refused on its own.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from storage_core.store.ensemble.turn import Turn
from storage_core.store.volume import locks

T = TypeVar("T")


class _Job(Generic[T]):
    """A commit that a thread waits for."""

    def __init__(self, call: Callable[[Turn], T]) -> None:
        self.call = call
        self.result: T
        self.error: BaseException | None = None
        self.is_done = False


class CommitGroups:
    """The commits of one store that wait to be written."""

    def __init__(self, turn: Callable[[], AbstractContextManager[Turn]]) -> None:
        self._turn = turn
        self.renew()
        locks.renew_in_children(self)

    def renew(self) -> None:
        """Wait for nothing: a forked child has none of the threads whose commits these are."""
        self._waiting: list[_Job[object]] = []
        self._queue = threading.Lock()
        self._leading = threading.Lock()

    def run(self, call: Callable[[Turn], T]) -> T:
        """Return what `call` returns or raise what it raises, done within a turn that other threads may share."""
        job: _Job[T] = _Job(call)
        with self._queue:
            self._waiting.append(job)  # type: ignore[arg-type]
        with self._leading:
            if not job.is_done:
                self._lead()
        if job.error is not None:
            raise job.error
        return job.result

    def _lead(self) -> None:
        with self._queue:
            jobs, self._waiting = self._waiting, []
        try:
            with self._turn() as turn, turn.group():
                for job in jobs:
                    _try(job, turn)
        except BaseException as error:
            for job in jobs:
                job.error = job.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            for job in jobs:
                job.is_done = True


def _try(job: _Job[object], turn: Turn) -> None:
    try:
        job.result = job.call(turn)
    except Exception as error:
        job.error = error
