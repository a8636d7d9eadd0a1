"""What calls cost, counted instead of timed: the same on every machine and at any load.

Calls of functions count what Python walks through; the most memory that was taken at a time counts what is copied,
listed or decoded in one go, which C does without a call.
"""

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from storage_core.files import OS_FILES
from storage_core.store.environment import Environment, one_after_another

ONE_THREAD = Environment(files=OS_FILES, parallel=one_after_another)  # whatever a store does is done by its caller


@dataclass(frozen=True, slots=True)
class Work:
    """What one of several calls cost."""

    function_calls: float  # on average, of Python and of C, with each resumption of a generator
    memory_size: float  # bytes at most at a time, in most of the calls: seldom pieces of work count above


def work_of(call: Callable[[int], object], numbers: range) -> Work:
    """Call with each number and return what that cost in this thread."""
    function_calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal function_calls
        function_calls += event in ("call", "c_call")

    sizes = []
    tracemalloc.start()
    try:
        for number in numbers:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            sys.setprofile(count)
            try:
                call(number)
            finally:
                sys.setprofile(None)
            sizes.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return Work(function_calls / len(numbers), median(sizes))
