"""Replays that pages ask for: `jstream etl replay` in a process of its own, first with --dry-run, for the plan.

Spark is started for both, which takes a while: so the plan is a change that is asked for, too, and it is kept until
the pipeline's file is another one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from spark_stream.look.terminal import counted
from storage_core.errors import NotFoundError
from storage_core.quantities import rfc3339

KIND_COUNT_MAX = 50  # of a plan
POLL_S = 0.5  # so often a replay looks whether the server stops
ERROR = "error: "  # how a command's last line begins if it fails
ERROR_SIZE_MAX = 2_000  # letters of what a command says


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What `--dry-run` found."""

    digest: str  # of the pipeline's file as it was then
    time_ns: int
    plan: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Which plan it is, for the form below it."""
        return f"{self.time_ns}-{self.digest}"

    @property
    def count(self) -> int:
        """Letters that would be replayed, with those of a replay that was killed."""
        return int(self.plan["parse"] + self.plan["unfinished"])

    def facts(self) -> Iterator[tuple[str, object]]:
        yield "letters that parse now", f"{self.plan['parse']:,}"
        yield "letters that stay", f"{self.plan['stay']:,}"
        if self.plan["unfinished"]:
            yield "letters of a replay that was killed", f"{self.plan['unfinished']:,}: they go first"
        for kind in self.plan["kinds"][:KIND_COUNT_MAX]:
            yield kind["kind"], f"{kind['parse']:,} parse, {kind['stay']:,} stay"
        yield "planned at", rfc3339(self.time_ns)
        yield "letters that come until then", "are replayed, too, if they parse"

    def sentence(self) -> str:
        return f"{counted(self.count, 'letter')} would be replayed, {counted(self.plan['stay'], 'letter')} would stay"


def digest_of(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def replay_command(file: Path, *flags: str) -> tuple[str, ...]:
    return ("etl", "replay", str(file), *flags)


class Replays:
    """What was planned for the pipelines that the command line named, and how it is done."""

    def __init__(
        self,
        files: Sequence[Path],
        paths: Sequence[str],
        storage_options: Mapping[str, str],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._files, self._paths, self._storage_options, self._is_stopping = files, paths, storage_options, is_stopping
        self._plans: dict[int, ReplayPlan] = {}

    def file(self, number: int) -> Path:
        """Return the file of a pipeline. Raises NotFoundError."""
        if number >= len(self._files):
            raise NotFoundError(f"there is no pipeline {number}: --pipeline named {len(self._files)}")
        return self._files[number]

    def planned(self, number: int) -> ReplayPlan | None:
        """Return the newest plan of the pipeline's file as it is now, None if there is none. Raises NotFoundError."""
        plan, digest = self._plans.get(number), digest_of(self.file(number))
        return plan if plan is not None and plan.digest == digest else None

    def plan(self, number: int, time_ns: int) -> ReplayPlan:
        """Return what a replay would do now, and keep it. Raises ValueError with what the command says, if it fails."""
        file = self.file(number)
        digest, shown = digest_of(file), self._run(replay_command(file, "--dry-run", "--json"))
        plan = self._plans[number] = ReplayPlan(digest, time_ns, json.loads(shown))
        return plan

    def replay(self, number: int) -> str:
        """Replay; return what came of it. Raises ValueError with what the command says, if it fails."""
        summary = json.loads(self._run(replay_command(self.file(number))).splitlines()[-1])
        return f"{counted(summary['rows_in'], 'letter')} replayed, {counted(summary['rows_dead'], 'letter')} stayed"

    def _run(self, words: Sequence[str]) -> str:
        """Run a command of `jstream` over the store, until it ends or the server stops; return its stdout."""
        command = [sys.executable, "-m", "spark_stream.cli", *words, "--store", ",".join(self._paths)]
        environment = {**os.environ, **{key.upper(): value for key, value in self._storage_options.items()}}
        process = subprocess.Popen(
            command, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=POLL_S)
                    break
                if self._is_stopping():
                    process.terminate()
        finally:
            process.kill()
        if process.returncode:
            errors = [line.removeprefix(ERROR) for line in err.splitlines() if line.startswith(ERROR)]
            raise ValueError("".join(errors[-1:])[:ERROR_SIZE_MAX] or f"it ended with exit code {process.returncode}")
        return out
