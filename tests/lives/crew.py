"""The processes of a life at work: several at a time, each at one call, while things happen beside them."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lives.ledger import Violation
from lives.processes import HANGS_AFTER_S, Call, Failure, Nursery, Process, ready
from lives.volumes import SOLO

if TYPE_CHECKING:
    from lives.life import Life

Script = list[Callable[[], Call | None]]  # what a process does, one call after another, each made when its time comes


class Crew:
    """Up to three processes, and what they are asked to do."""

    def __init__(self, life: "Life", nursery: Nursery) -> None:
        self._life, self._nursery = life, nursery
        self.processes: list[Process] = []
        self.settled = 0.0  # what was begun before this moment, and ended, is decided

    def start(self) -> Process:
        process = self._nursery.start(f"P{self._life.number()}")
        self.processes.append(process)
        return process

    def some_process(self, others: Sequence[Process] = ()) -> Process:
        """Return an idle process, often one with old memories; a store has up to three."""
        known = [one for one in self.processes if one not in others]
        if not known or (len(self.processes) < 3 and self._life.random.random() < 0.3):
            return self.start()
        return self._life.random.choice(known)

    def gone(self, process: Process) -> None:
        process.end()
        if process in self.processes:
            self.processes.remove(process)

    def _open_call(self, process: Process) -> Call:
        def opened(paths: list[str], _: float) -> None:
            process.is_open = True

        return Call("open", {"paths": self._life.volumes.ways_in()}, opened)

    def alone(self, process: Process, call: Call) -> bool:
        """Carry out one call while nothing else happens; return whether it was done."""
        done = []
        plain = call.done

        def hear(result: Any, ended: float) -> None:
            done.append(True)
            plain(result, ended)

        call.done = hear
        calls = (
            [call]
            if process.is_open or call.name in ("create", "open", "command")
            else [self._open_call(process), call]
        )
        self.together({process: [lambda one=one: one for one in calls]})  # type: ignore[misc]
        return bool(done)

    def asked(self, call: Call, process: Process | None = None) -> Any:
        """Return the result of a call that has to be answered, None if an error is excused."""
        results: list[Any] = []
        call.done = lambda result, _: results.append(result)
        chosen = process or self.some_process()
        self.alone(chosen, call)
        if not results and chosen not in self.processes:  # it was killed a moment ago, after its last answer
            self.alone(self.start(), call)
        return results[0] if results else None

    def together(
        self,
        scripts: dict[Process, Script],
        happenings: Sequence[tuple[float, Callable[[], None]]] = (),
    ) -> None:
        """Let processes do what their scripts say, side by side, and let things happen after so many seconds."""
        start = time.monotonic()
        rest = sorted(happenings, key=lambda pair: pair[0])
        for process in scripts:
            self._next(process, scripts)
        while True:
            busy = [one for one in scripts if one.call is not None]
            if not busy:
                break
            now = time.monotonic()
            while rest and rest[0][0] <= now - start:
                rest.pop(0)[1]()
            until = rest[0][0] + start - now if rest else 1.0
            for process in ready(busy, min(until, 1.0)):
                self._finish(process, process.answer())
                if process.call is None and process in self.processes:
                    self._next(process, scripts)
            for process in busy:
                if process.call is not None and time.monotonic() - process.sent > HANGS_AFTER_S:
                    process.signal(signal.SIGUSR1)  # it says where it is
                    time.sleep(0.5)
                    where = (self._life.folder.parent / "stderr").read_text()[-4000:]
                    raise Violation(
                        f"{process.name}: {process.call.name} has not returned for {HANGS_AFTER_S} s\n{where}"
                    )
        for _, happen in rest:
            happen()

    def _next(self, process: Process, scripts: dict[Process, Script]) -> None:
        script = scripts[process]
        while script:
            call = script[0]()
            if call is not None and not process.is_open and call.name not in ("create", "open", "command"):
                call = self._open_call(process)
            else:
                script.pop(0)
            if call is not None:
                call.began = self._life.now()
                self._life.counts["calls"] += 1
                self._life.note(f"   {process.name} {call.name} {_short(call.arguments)}{call.limit or ''}")
                try:
                    process.send(call)
                except (BrokenPipeError, ConnectionError):  # killed while it was idle
                    process.call = None
                    call.unknown(self._life.now())
                    self.gone(process)
                return

    def _finish(self, process: Process, answer: tuple[Any, ...] | None) -> None:
        call, process.call = process.call, None
        assert call is not None
        ended = self._life.now()
        if answer is None:
            self._life.note(f"   {process.name} was killed in {call.name}")
            self._life.counts["kills in a call"] += 1
            call.unknown(ended)
            self.gone(process)
            return
        if answer[0] == "done":
            self._life.note(f"   {process.name} {call.name}: {_short(answer[1])}")
            call.done(answer[1], ended)
            if call.writes:
                self.settled = max(self.settled, call.began)
            return
        failure = Failure(tuple(answer[1]), answer[2], answer[3])
        self._life.note(f"   {process.name} {call.name}: {str(failure)[:300]}")
        self._life.counts["errors"] += 1
        call.unknown(ended)
        if not self._is_right(call, failure):
            raise Violation(
                f"{process.name}: {call.name} {_short(call.arguments)} ended in {failure}; "
                f"{self._life.volumes.describe()}"
            )
        if call.name == "open" and not process.is_open:
            self.gone(process)

    def _is_right(self, call: Call, failure: Failure) -> bool:
        if call.limit is not None and failure.is_a("StorageError", "OSError", "MemoryError"):
            return True
        if call.refused(failure):
            return True
        excused = self.is_excused(call)
        if failure.is_a("ProcessError") and self.meets_closed:
            excused = True
        if call.arguments.get("stream") == SOLO and self._life.volumes.is_solo_impaired:
            excused = True
        return excused and failure.is_a("StorageError")

    @property
    def meets_closed(self) -> bool:
        """Return whether calls may end in a ProcessError: what this user may not read is nobody's damage, and no
        reason to go on without it.
        """
        return bool(self._life.counts["closed"] and self._life.volumes.touched)

    def is_excused(self, call: Call) -> bool:
        """Return whether more volumes than are tolerated, or all that the call names, were out of order during it."""
        volumes = self._life.volumes
        ways_in = _ways_in(call)
        no_way_in = bool(ways_in) and ways_in <= volumes.impaired  # they went away in the meantime
        return volumes.is_blackout or volumes.excused_until > call.began or no_way_in


def _ways_in(call: Call) -> set[Path]:
    """Return the volumes by which the call finds its store; none if that is open already."""
    arguments = call.arguments.get("arguments", [])
    if call.name == "open":
        return {Path(path) for path in call.arguments["paths"]}
    return (
        {Path(path) for path in arguments[arguments.index("--store") + 1].split(",")}
        if "--store" in arguments
        else set()
    )


def _short(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return f"sequences {[row[0] for row in value]}"
    text = str(value)
    return text if len(text) < 160 else f"{text[:150]}... ({len(text)})"
