"""Group commit: commits of several threads that wait for the same locks are written together, by one of them.

Whoever gets the mutex takes along all that wait: one session and one round of fsyncs for all. Each still succeeds or is
refused on its own, and one that is refused leaves nothing in the round.
"""

import copy
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from storage_core.errors import OutcomeUnknownError, SupersededError
from storage_core.forks import Stage, renew_in_children
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View

logger = logging.getLogger(__name__)
T = TypeVar("T")
SUPERSEDED_ATTEMPTS = 10  # of who loses the lead to others, in object stores, while it writes


class _Job(Generic[T]):
    """A commit that a thread waits for."""

    def __init__(self, call: Callable[[Session], T], view: View | None) -> None:
        self.call, self.view = call, view
        self.result: T
        self.error: Exception | None = None  # of this job alone: no other thread raises the same object
        self.is_refused = False  # by the call itself: nothing of it was written anywhere
        self.is_done = False


class CommitGroups:
    """The commits of one store that wait to be written."""

    def __init__(self, session: Callable[[View | None], AbstractContextManager[Session]]) -> None:
        self._session = session
        self.renew()
        renew_in_children(Stage.STORES, self)

    def renew(self) -> None:
        """Wait for nothing: a forked child has none of the threads whose commits these are."""
        self._waiting: list[_Job[object]] = []
        self._queue = threading.Lock()
        self._round_mutex = threading.Lock()

    def run(
        self,
        call: Callable[[Session], T],
        if_refused: Callable[[], None] | None = None,
        view: View | None = None,
    ) -> T:
        """Return what `call` returns or raise what it raises, in a session that calls of other threads may share.

        `view`: a view that the caller has just read, with which the session begins. `if_refused`: called before an
        error of `call` is raised; nothing of it was written then, and nothing will be. Errors after the commit of the
        round are logged, not raised. If the thread that runs the round is interrupted before it writes, the other
        threads run their calls again.
        """
        job: _Job[T] = _Job(call, view)
        with self._queue:
            self._waiting.append(job)  # type: ignore[arg-type]
        try:
            with self._round_mutex:
                if not job.is_done:
                    self._run_round(job)  # type: ignore[arg-type]
        except BaseException:
            with self._queue:  # nobody waits for it any more
                self._waiting = [waiting for waiting in self._waiting if waiting is not job]
            raise
        if job.error is not None:
            if job.is_refused and if_refused is not None:
                if_refused()
            raise job.error
        return job.result

    def _run_round(self, own: _Job[object]) -> None:
        """Commit all that waits. Raises what interrupts this thread, and nothing else."""
        with self._queue:
            jobs, self._waiting = self._waiting, []
        is_written, is_committed = False, False
        try:
            for attempt in range(SUPERSEDED_ATTEMPTS):
                try:
                    with self._session(own.view if attempt == 0 else None) as session:
                        with session.group():
                            for job in jobs:
                                _try(job, session)
                            is_written = True  # or not: from here on the disks know
                        is_committed = True
                    break
                except SupersededError:  # nothing was stored, and the next session begins with what others wrote
                    if is_committed or attempt == SUPERSEDED_ATTEMPTS - 1:
                        raise
                    is_written = False
        except Exception as error:
            if is_committed:
                logger.exception("the store could not be left in order after a commit, which counts")
            else:
                for job in jobs:
                    job.error = job.error or (error if job is own else _another(error))
        except BaseException:
            if not is_written:
                others = [job for job in jobs if job is not own]
                for job in others:
                    job.error = None
                with self._queue:
                    self._waiting[:0] = others
                jobs = [own]
            elif not is_committed:
                for job in jobs:
                    job.error = OutcomeUnknownError(
                        "another thread was interrupted while it wrote this commit together with its own: whether it "
                        "was stored is not known"
                    )
            raise
        finally:
            for job in jobs:
                job.is_done = True


def _try(job: _Job[object], session: Session) -> None:
    job.error, job.is_refused = None, False
    try:
        with session.savepoint(), translated(session.label):
            job.result = job.call(session)
    except Exception as error:
        job.error, job.is_refused = error, True


def _another(error: Exception) -> Exception:
    """Return an equal error for another thread: raising one object in two mixes up their tracebacks."""
    try:
        made = copy.copy(error)
    except TypeError:  # it cannot be made from its arguments
        return error
    made.__cause__ = error
    return made
