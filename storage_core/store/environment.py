"""What the shell needs from outside: files, clock, randomness, and which machine this is.

The state machine and the codecs get all of it as arguments; tests put simulations in their place.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from storage_core.deadlines import Begun, VolumeCall, outcome
from storage_core.files import OS_FILES, Files
from storage_core.objects.reached import files_of
from storage_core.raft.rules import majority
from storage_core.store import lock_domain as machine

T = TypeVar("T")
# How long the rest of a round is waited for when most of the volumes, in object stores, have done what was asked.
SLOW_S, SLOW_FACTOR = 2.0, 4.0  # seconds, and times as long as these took
THREAD_COUNT_MAX = 64  # calls beyond wait for a free one; no call waits for another one


def one_after_another(calls: Sequence[Callable[[], T]]) -> "list[T | BaseException]":
    """Return what the calls return or raise, in order."""
    return [outcome(call) for call in calls]


def in_threads(calls: Sequence[Callable[[], T]]) -> "list[T | BaseException]":
    """The same, all at once: as long as the slowest takes. None runs on when this is left, interrupted or not.

    Where a majority of volumes in object stores is enough (`VolumeCall.majority_suffices`), the slow ones are left out.
    """
    if len(calls) < 2:
        return one_after_another(calls)
    on_volumes = [call for call in calls if isinstance(call, VolumeCall) and call.has_thread]
    if len(on_volumes) == len(calls):
        return _in_threads_of_volumes(on_volumes)
    running = [_threads().submit(outcome, call) for call in calls]
    interruption: BaseException | None = None
    while not all(future.done() for future in running):
        try:
            wait(running)
        except BaseException as error:  # Ctrl-C: what is under way is waited for, and then it counts
            interruption = error
    if interruption is not None:
        raise interruption
    return [future.result() for future in running]


def _in_threads_of_volumes(calls: "Sequence[VolumeCall[T]]") -> "list[T | BaseException]":
    """The same by the threads that the volumes have: one hand-over for each call instead of two."""
    interruption: BaseException | None = None
    waiting: list[Callable[[], T] | Begun | BaseException] = []
    outcomes: list[T | BaseException] = []
    heard = threading.Semaphore(0)
    try:
        for call in calls:
            waiting.append(outcome(partial(call.begin, heard)))
        if all(call.majority_suffices for call in calls):
            _wait_for_majority([call.volume for call in calls], waiting, heard)
    except BaseException as error:  # Ctrl-C: what has begun is waited for, and then it counts
        interruption = error
    for wait_for_it in waiting:
        try:
            outcomes.append(wait_for_it if isinstance(wait_for_it, BaseException) else outcome(wait_for_it))
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
    return outcomes


def _wait_for_majority(paths: Sequence[Path], waiting: Sequence[object], heard: threading.Semaphore) -> None:
    """Wait until a majority of the volumes has done what it was asked; the others get a while more, and no longer.

    `heard`: released whenever one of the calls has returned.
    """
    begun = {at: call for at, call in enumerate(waiting) if isinstance(call, Begun)}
    needed = majority(len(set(paths)))
    while True:
        late = {path for at, path in enumerate(paths) if at not in begun or not begun[at].is_over}
        failed = {path for at, path in enumerate(paths) if at in begun and begun[at].has_failed}
        if len(set(paths) - late - failed) >= needed:
            break
        left_s = max((call.left_s for call in begun.values()), default=0.0)
        if left_s <= 0 or not heard.acquire(timeout=left_s):
            return
    now_s = time.monotonic()
    for call in begun.values():
        call.give_up_at(now_s + SLOW_S + SLOW_FACTOR * (now_s - call.begun_s))


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of this process; a forked child makes its own."""
    return ThreadPoolExecutor(THREAD_COUNT_MAX, "jstream-volume")


os.register_at_fork(after_in_child=_threads.cache_clear)


@dataclass(frozen=True, slots=True)
class Environment:
    files: Files = OS_FILES
    now_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic  # seconds of this host alone
    random_bytes: Callable[[int], bytes] = os.urandom
    lock_domain: Callable[[], str] = machine.lock_domain
    file_system: Callable[[Path], str] = machine.file_system  # that a path lies on
    locks_elsewhere: Callable[[Path], bool] = machine.locks_in_another_process
    sleep: Callable[[float], None] = time.sleep  # seconds
    parallel: Callable[[Sequence[Callable[[], Any]]], list[Any]] = in_threads  # I/O on several volumes
    leaves_reports: bool = True  # of bad copies that a read meets, for maintenance; not where nothing may be written

    def new_id(self) -> bytes:
        return self.random_bytes(16)


REAL = Environment(files=files_of({}))


def reaching(options: Mapping[str, Any] | None) -> Environment:
    """Return the real one, whose object stores are reached with these options (`Store.open`)."""
    return replace(REAL, files=files_of(options)) if options else REAL
