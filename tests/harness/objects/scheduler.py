"""Processes of which one runs at a time: which one goes on, and who sleeps, says a seed.

Each is a greenlet: code that knows nothing of it runs as it is. Where it calls what is simulated, that calls
`Scheduler.pause`, and any other one may go on first. Switching costs no more than a call does.
"""

from collections.abc import Callable
from random import Random

from greenlet import getcurrent, greenlet
from harness.simulated_disk import ProcessEnded


class Task:
    """One simulated process at a time; killed, it goes on as another one."""

    def __init__(self, scheduler: "Scheduler", name: str, body: Callable[["Task"], None]) -> None:
        self.name, self.wakes_at, self.is_over, self.is_killed = name, 0, False, False
        self._body = body
        self.greenlet = greenlet(self._run, scheduler.greenlet)

    def _run(self) -> None:
        try:
            self._body(self)
        except ProcessEnded:
            return
        finally:
            self.is_over = True


class Scheduler:
    def __init__(self, random: Random, step_count_max: int) -> None:
        self.random, self.step, self.step_count_max = random, 0, step_count_max
        self.greenlet = getcurrent()
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.is_over = False  # every task ends at its next call
        self.before_step: Callable[[], None] = lambda: None

    def spawn(self, name: str, body: Callable[[Task], None]) -> None:
        self.tasks.append(Task(self, name, body))

    def pause(self, step_count: int = 0) -> None:
        """Let others go on, for so many steps at least. Raises ProcessEnded in a process that was killed."""
        task = self.current
        if task is None:  # before and after the run
            return
        task.wakes_at = self.step + step_count
        self.greenlet.switch()
        if task.is_killed or self.is_over:
            raise ProcessEnded

    def run(self) -> None:
        """Let all tasks come to their ends. Raises the first error of one, or TimeoutError."""
        try:
            while waiting := [task for task in self.tasks if not task.is_over]:
                self.step += 1
                if self.step > self.step_count_max:
                    raise TimeoutError(f"{self.step} steps")
                self.before_step()
                awake = [task for task in waiting if task.wakes_at <= self.step]
                if not awake:
                    self.step = min(task.wakes_at for task in waiting) - 1
                    continue
                self._switch(self.random.choice(awake))
        finally:
            self.is_over = True
            for task in self.tasks:
                while not task.is_over:
                    self._switch(task)
            self.current = None

    def _switch(self, task: Task) -> None:
        self.current = task
        task.greenlet.switch()
        self.current = None
