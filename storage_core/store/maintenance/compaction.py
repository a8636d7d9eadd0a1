"""Who merges small blocks, and when: a session one bounded run, `maintain` and `compact` all that is due.

In a session one run is read and written under the lock, small enough that nobody notices. Whoever does all of it reads
and writes without a lock, and takes it for each commit alone; whatever changed meanwhile is looked at again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.errors import NoQuorumError, ProcessError, RequirementError, StaleIncarnationError, StorageError
from storage_core.metadata.state import StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.store.ensemble.due_streams import DueStreams
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import REAL, Environment
from storage_core.store.maintenance import merging
from storage_core.store.maintenance.merging import (
    IN_A_SESSION,
    MergePolicy,
    MergeTask,
    StagedMerge,
    UnreadableBlockError,
)
from storage_core.store.volume import placement

logger = logging.getLogger(__name__)
REST_NS = 600 * 1_000_000_000  # before a block that could not be read is tried again
ROUND_COUNT_MAX = 64  # looks for more; each merges all that it finds, so a few are enough unless others write on


class Merging:
    """The merging that a session does on its way. One for a store; used under its locks."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._due = DueStreams()  # in the others nothing was due
        self._resting: dict[bytes, int] = {}  # blocks that could not be read: since when

    def merge(self, session: Session) -> bool:
        """Merge one run if one is due; return whether one was. Raises what a session raises."""
        for stream in self._due.among(session.state.streams):
            now_ns = session.state.time_at(self._env.now_ns())
            run = next(merging.due(stream, IN_A_SESSION, now_ns, self._barred()), None)
            if run is None:
                self._due.done(stream)
            elif _takes_copies(session, stream):
                self._merge(session, stream, *run)
                return True
        return False

    def _merge(self, session: Session, stream: StreamState, start: int, end: int) -> None:
        task = merging.task_of(session.state, stream, start, end, session.volumes, self._env)
        try:
            staged = merging.carry_out(task, self._env)
            merging.commit(session, staged, self._env)
        except UnreadableBlockError as error:
            self._rest(error.args[1])
            raise
        except StorageError:  # no room, for example: the same would be tried at each session
            self._rest(task.slices[0].block_id)
            raise

    def _rest(self, block_id: bytes) -> None:
        self._resting[block_id] = self._env.now_ns()

    def _barred(self) -> set[bytes]:
        now = self._env.now_ns()
        self._resting = {block_id: since for block_id, since in self._resting.items() if abs(now - since) < REST_NS}
        return set(self._resting)


def _takes_copies(session: Session, stream: StreamState) -> bool:
    """Return whether every volume of the placement takes blocks: else fewer would have the new one than the old."""
    here = {volume.volume_id for volume in session.writable if placement.is_recorded(session.state, volume)}
    return here.issuperset(stream.placement)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a task. A plain value."""

    staged: StagedMerge | None
    reason: str = ""  # why there is nothing
    unreadable: bytes | None = None  # the block because of which


def attempt(task: MergeTask, env: Environment = REAL) -> Attempt:
    """Carry a task out, in whatever process."""
    try:
        return Attempt(merging.carry_out(task, env))
    except UnreadableBlockError as error:
        return Attempt(None, error.args[0], error.args[1])
    except RequirementError as error:
        return Attempt(None, str(error))


class Compaction:
    """Merging of all that is due, by one process or by many. Takes the lock for commits alone."""

    def __init__(self, metadata: MetadataClient, env: Environment, lock_timeout_s: float, policy: MergePolicy) -> None:
        self._metadata, self._env, self._lock_timeout_s = metadata, env, lock_timeout_s
        self._policy = policy
        self.unreadable: dict[bytes, str] = {}  # blocks of which no copy can be read whole: why

    def plan(self, names: Sequence[str] | None) -> list[MergeTask]:
        """Return what there is to be merged now in these streams (None: all). Takes no lock."""
        state = self._metadata.view(self._lock_timeout_s).state
        volumes = self._metadata.volumes()
        tasks, now_ns = [], state.time_at(self._env.now_ns())
        for stream in state.streams.values():
            if names is not None and stream.name not in names:
                continue
            for start, end in merging.due(stream, self._policy, now_ns, self.unreadable):
                try:
                    tasks.append(merging.task_of(state, stream, start, end, volumes, self._env))
                except (NoQuorumError, ProcessError) as error:
                    raise_if_limit(error)
                    logger.warning("stream %r is not merged: %s", stream.name, error)
                    break
        return tasks

    def commit(self, staged: StagedMerge) -> bool:
        """Put a block in the place of its run; return whether the run was still there. Raises what a session raises."""
        is_held = False
        try:
            with self._metadata.session(self._lock_timeout_s) as session:
                is_held = True
                merging.commit(session, staged, self._env)
        except (RequirementError, StaleIncarnationError) as error:
            logger.info("a merge is given up: %s", error)
            return False
        finally:
            if not is_held:  # the store is busy, or has no quorum: nobody will ever name the block
                merging.discard(staged, self._env)
        return True

    def note_unreadable(self, block_id: bytes, reason: str) -> None:
        """Leave a block alone from now on, if it is there still: a repair has to come first."""
        state = self._metadata.view(self._lock_timeout_s).state
        if merging.is_live(state, block_id):
            logger.warning("a block is not merged: %s", reason)
            self.unreadable[block_id] = reason

    def run(
        self,
        names: Sequence[str] | None,
        progress: Callable[[int, int], None] | None = None,
        through: Callable[[Sequence[MergeTask]], Iterable[Attempt]] | None = None,
    ) -> dict[str, Any]:
        """Merge until nothing is due any more; return {runs, blocks, bytes, unreadable}: what was merged, and what not.

        `through` carries tasks out, in whatever order and processes; None: here, one after another. `progress` hears
        (blocks done, blocks in all). Raises what a session raises; what was merged by then stays merged.
        """
        runs = blocks = size = 0
        for _ in range(ROUND_COUNT_MAX):
            tasks, before = self.plan(names), (runs, len(self.unreadable))
            total = blocks + sum(len(task.slices) for task in tasks)
            attempts = through(tasks) if through is not None else (attempt(task, self._env) for task in tasks)
            for outcome in attempts:
                if outcome.unreadable is not None:
                    self.note_unreadable(outcome.unreadable, outcome.reason)
                elif outcome.staged is None:
                    logger.warning("%s", outcome.reason)
                elif self.commit(outcome.staged):
                    runs, blocks, size = (
                        runs + 1,
                        blocks + len(outcome.staged.task.slices),
                        size + outcome.staged.task.size,
                    )
                if progress is not None:
                    progress(blocks, total)
            if before == (runs, len(self.unreadable)):
                break
        return {"runs": runs, "blocks": blocks, "bytes": size, "unreadable": sorted(self.unreadable.values())}
