"""Counting cases: a test that tries many says how many, and which of them went wrong."""

import logging
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from random import Random

import pytest

FAILURES_SHOWN_MAX = 3
REPORTS: list[str] = []  # one line a test, shown at the end of the run


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings of provoked failures to oneself: there are thousands."""
    logger = logging.getLogger("storage_core")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class Cases:
    """The cases of one test. Each is tried; `finish` fails the test if any of them did."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._failures: list[tuple[str, str]] = []
        self.tried: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return sum(self.tried.values())

    @contextmanager
    def case(self, name: str, group: str = "cases") -> Iterator[None]:
        """Try one case; `name` says how to repeat it, `group` what it is counted among."""
        self.tried[group] += 1
        try:
            with quiet():
                yield
        except Exception:
            self._failures.append((name, traceback.format_exc()))

    def finish(self) -> None:
        parts = ", ".join(f"{count} {group}" for group, count in sorted(self.tried.items()))
        REPORTS.append(f"{self._subject}: {self.count} cases" + (f" ({parts})" if len(self.tried) > 1 else ""))
        print(REPORTS[-1])
        if self._failures:
            shown = "\n\n".join(f"{name}\n{trace}" for name, trace in self._failures[:FAILURES_SHOWN_MAX])
            names = "\n".join(f"{name}: {trace.strip().splitlines()[-1]}" for name, trace in self._failures)
            text = f"{len(self._failures)} of {self.count} cases failed\n\n{shown}\n\nall of them:\n{names}"
            pytest.fail(text, pytrace=False)


def covering(cases: Iterable[Mapping[str, str]], strength: int) -> Iterator[Mapping[str, str]]:
    """Yield some of the cases: any `strength` answers that occur together in a case do so in one of these."""
    listed, covered = list(cases), set[tuple[tuple[str, str], ...]]()
    Random(1).shuffle(listed)
    for case in listed:
        together = set(combinations(sorted(case.items()), strength))
        if not together <= covered:
            covered |= together
            yield case
