"""The copies of one foreign stream held against each other, message by message: what `jstream drift nats` shows.

Everything is read and checked, range after range; memory grows with the number of runs, not of messages.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from storage_core.comparison import Conflict, CopyDrift, Drift, RunsBuilder, State
from storage_core.files import OS_FILES, Files
from storage_core.foreign.store import ForeignStore, examine_foreign_slice
from storage_core.foreign.union import Examined, StreamCopy
from storage_core.foreign.vote import NOBODY, conflicts
from storage_core.sequences import SequenceSet

LISTED_COUNT_MAX = 10_000  # conflicts of a stream that are listed, and places of damage that touch no message
Progress = Callable[[int, int], None]  # hears (ranges done, ranges in all)


def compare(store: ForeignStore, stream: str, progress: Progress | None = None, files: Files = OS_FILES) -> Drift:
    """Return all copies of a stream side by side. Reads every byte of them.

    Raises NotFoundError, ValueError if accounts have to be told apart.
    """
    copies, ranges = store.side_by_side(stream)
    described = {copy.path: copy for copy in store.copies(stream)}
    is_readable = any(copy.last is not None for copy in described.values())
    collected = _Collected(copies, store.bounds(stream)[1] if is_readable else 1)
    for done, part in enumerate(ranges):
        collected.add(examine_foreign_slice(part, files), part.first, part.end)
        if progress is not None:
            progress(done + 1, len(ranges))
    drifts = []
    for at, copy in enumerate(copies):
        known = described.get(copy.path)
        problem = copy.problem if known is not None else f"there is no copy of {stream} in {copy.path}"
        drifts.append(
            CopyDrift(
                label=copy.label,
                path=copy.path,
                runs=collected.runs[at].build(),
                first=None if known is None else known.first,
                last=None if known is None else known.last,
                digest="" if problem else collected.digests[at].hexdigest(),
                problem=problem,
            )
        )
    first_one = next(iter(described.values()))
    return Drift(
        stream=stream,
        layout=store.layout,
        account=first_one.account,
        copies=tuple(drifts),
        together=collected.together.build(),
        conflicts=tuple(joined(collected.conflicts)),
        open=collected.open,
        notes=(*_notes(store, stream, copies), *collected.notes()),
    )


class _Collected:
    """What has been seen of all copies, range after range."""

    def __init__(self, copies: Sequence[StreamCopy], end: int) -> None:
        self._labels, self._end = [copy.label for copy in copies], end
        self.runs = [RunsBuilder() for _ in copies]
        self.digests = [hashlib.blake2b(digest_size=16) for _ in copies]
        self.together = RunsBuilder()
        self.open = SequenceSet.empty()
        self.conflicts: list[Conflict] = []
        self.harmless: list[str] = []  # damage that touches no message
        self.unlisted = [0, 0]  # conflicts and harmless damage beyond what is listed

    def add(self, examined: Examined, first: int, end: int) -> None:
        outcome = examined.outcome
        served = np.where(outcome.unsettled, State.DIFFERENT, State.THERE)
        self.together.add(outcome.sequences, np.where(outcome.served_by == NOBODY, 0, served))
        lost = outcome.losses.lost.clip(first, min(end, self._end))
        self.open = self.open.union(outcome.losses.open.clip(first, min(end, self._end)))
        self.together.add_set(lost, State.MISSING)
        for at, ballot in enumerate(examined.ballots):
            self.runs[at].add(outcome.sequences, outcome.states[:, at])
            damaged = lost.intersection(ballot.claims.damaged)
            self.runs[at].add_set(damaged, State.DAMAGED)
            self.runs[at].add_set(lost.difference(damaged), State.MISSING)
            self.digests[at].update(ballot.shown.sequences.tobytes())
            self.digests[at].update(ballot.shown.digests.tobytes())
        listed, more = conflicts(outcome, self._labels, max(0, LISTED_COUNT_MAX - len(self.conflicts)))
        self.conflicts += listed
        self.unlisted[0] += len(more)
        touched = SequenceSet.from_sequences(outcome.sequences).union(outcome.losses.lost).union(outcome.losses.open)
        for each in (each for looks in examined.looks for look in looks for each in look.damage):
            if each.first is None or not touched.clip(each.first, each.end or end):
                if len(self.harmless) < LISTED_COUNT_MAX:
                    self.harmless.append(f"damage that touches no message: {each.file}: {each.reason}")
                else:
                    self.unlisted[1] += each.places

    def notes(self) -> list[str]:
        """Return what is wrong and costs no message, and how much is not listed."""
        kinds = ("differences between copies", "places of damage that touch no message")
        more = [f"{count} more {kind}, not listed" for count, kind in zip(self.unlisted, kinds, strict=True) if count]
        return [*dict.fromkeys(self.harmless), *more]


def joined(collected: Sequence[Conflict]) -> list[Conflict]:
    """Return conflicts in order, those of the same kind that follow each other as one."""
    result: list[Conflict] = []
    for conflict in collected:
        if (
            result
            and replace(result[-1], first=conflict.first, end=conflict.end) == conflict
            and result[-1].end == conflict.first
        ):
            result[-1] = replace(result[-1], end=conflict.end)
        else:
            result.append(conflict)
    return result


def _notes(store: ForeignStore, stream: str, copies: Sequence[StreamCopy]) -> list[str]:
    notes = list(store.notes(stream))
    wanted = store.replica_count(stream)
    if len(copies) < wanted:
        notes.append(f"{len(copies)} of its {wanted} replicas are here")
    return notes
