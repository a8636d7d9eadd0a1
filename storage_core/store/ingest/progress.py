"""How much of a long piece of work is done, for whoever shows it."""

import threading
from collections.abc import Callable

Progress = Callable[[int, int], None]  # gets (pieces done, pieces in all)


class ProgressCounter:
    """Counts pieces of work that several threads do."""

    def __init__(self, report: Progress | None, total: int = 0) -> None:
        self._report, self.total, self._done = report, total, 0
        self._mutex = threading.Lock()
        self.is_stopped = False  # nobody waits for the work any more

    def step(self, count: int = 1) -> None:
        with self._mutex:
            self._done += count
            if self._report is not None:
                self._report(self._done, self.total)
