"""Drift: what each copy of one stream holds, sequence by sequence, held against the others. Values only.

Own stores (`store/replicas/side_by_side.py`) and foreign ones (`foreign/side_by_side.py`) fill them in; tables, JSON
and pictures are made of them. A sequence is in exactly one state in each copy, or in none of them where the stream has
no message:

    there      the message, with the content that a read serves
    missing    not there; another copy has it, or had to
    damaged    bytes that should hold it are there, and fail their checksum
    different  a message that a read does not serve: other content than most copies have, content of which nobody can
               tell whether it is the right one, or a message that more copies say was removed
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from storage_core import notebook
from storage_core.sequences import SequenceSet


class State(IntEnum):
    """What a copy has of a sequence; the higher, the worse."""

    THERE = 1
    MISSING = 2
    DAMAGED = 3
    DIFFERENT = 4

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Runs:
    """Sequences with a state: `[firsts[i], ends[i])` is in `states[i]`. Sorted, disjoint, neighbours joined."""

    firsts: np.ndarray  # int64
    ends: np.ndarray  # int64
    states: np.ndarray  # uint8, of State

    def __iter__(self) -> Iterator[tuple[int, int, State]]:
        columns = (self.firsts.tolist(), self.ends.tolist(), self.states.tolist())
        return ((first, end, State(state)) for first, end, state in zip(*columns, strict=True))

    def __len__(self) -> int:
        return len(self.firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Runs):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def count(self, state: State) -> int:
        """Return how many sequences are in a state."""
        chosen = self.states == state
        return int((self.ends[chosen] - self.firsts[chosen]).sum())

    def sequences(self, state: State) -> SequenceSet:
        chosen = self.states == state
        return SequenceSet(self.firsts[chosen], self.ends[chosen])

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first sequence and one above the last; (1, 1) if there is none."""
        return (int(self.firsts[0]), int(self.ends[-1])) if len(self) else (1, 1)


class RunsBuilder:
    """Collects sequences with their states, in any order, each sequence once."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, sequences: np.ndarray, states: np.ndarray) -> None:
        """Add ascending sequences, int64, with a state each; 0 leaves one out."""
        kept = states != 0
        sequences, states = sequences[kept], states[kept].astype(np.uint8)
        if not len(sequences):
            return
        breaks = np.flatnonzero((np.diff(sequences) != 1) | (states[1:] != states[:-1])) + 1
        heads, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks - 1, [len(sequences) - 1]))
        self._parts.append((sequences[heads], sequences[lasts] + 1, states[heads]))

    def add_set(self, sequences: SequenceSet, state: State) -> None:
        self._parts.append((sequences.starts, sequences.ends, np.full(sequences.run_count, state, np.uint8)))

    def build(self) -> Runs:
        if not self._parts:
            return Runs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
        firsts, ends, states = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.argsort(firsts, kind="stable")
        firsts, ends, states = firsts[order], ends[order], states[order]
        assert (firsts[1:] >= ends[:-1]).all(), "a sequence was given twice"
        heads = np.concatenate(([True], (firsts[1:] != ends[:-1]) | (states[1:] != states[:-1])))[: len(firsts)]
        lasts = np.concatenate((heads[1:], [True]))[: len(firsts)]
        return Runs(firsts[heads], ends[lasts], states[heads])


class Rule:
    """By which rule it was decided what is served where copies have different content."""

    MAJORITY = "majority"  # more than half of the copies that have a message have this one
    MOST = "most copies"  # no majority: more copies have this one than any other
    LATEST = "latest"  # no majority: of those that most copies have, the one that was stored last
    REMOVED = "removed"  # more copies say that it was removed than have it: nothing is served
    KEPT = "kept"  # some copies say that it was removed; at least as many have it
    UNSURE = "unsure"  # as `kept`, but with what damaged copies may have said more would say that it was removed

    BY_MAJORITY = (MAJORITY, REMOVED, KEPT)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Sequences `[first, end)` of which copies that are whole have different content, all in the same way."""

    first: int
    end: int
    versions: tuple[tuple[str, ...], ...]  # copies that have the same content, by label
    removed: tuple[str, ...]  # copies that say that it was removed
    served: int | None  # position in `versions`; None: nothing is served
    rule: str  # of Rule

    @property
    def is_decided(self) -> bool:
        """Return whether a majority says what is right."""
        return self.rule in Rule.BY_MAJORITY

    def describe(self) -> str:
        """Return it as a sentence, for people."""
        sequences = (
            f"sequence {self.first}" if self.end == self.first + 1 else f"sequences {self.first} to {self.end - 1}"
        )
        sides = [_listed(version) for version in self.versions]
        sentence = (
            f"{sequences}: one content in {', another in '.join(sides)}"
            if len(sides) > 1
            else f"{sequences}: in {sides[0]}"
        )
        if self.removed:
            sentence += f", removed in {_listed(self.removed)}"
        served = "nothing" if self.served is None else f"that of {sides[self.served]}"
        return f"{sentence}; {served} is served ({self.rule})"

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "end": self.end,
            "versions": [list(version) for version in self.versions],
            "removed": list(self.removed),
            "served": None if self.served is None else list(self.versions[self.served]),
            "rule": self.rule,
            "decided": self.is_decided,
        }


@dataclass(frozen=True, slots=True)
class CopyDrift:
    """One copy of a stream, held against the others."""

    label: str  # short, and no other copy's
    path: str
    runs: Runs
    first: int | None  # first and last sequence that the copy says it has; None: nobody knows
    last: int | None
    digest: str  # hex, over sequences and content of what it has whole; equal ones mean equal content
    problem: str = ""  # why nothing, or not all, of it can be read; "" if nothing is known to be wrong

    def count(self, state: State) -> int:
        return self.runs.count(state)

    @property
    def whole(self) -> bool:
        """Return whether it has every message as it is served, and nothing else."""
        return not self.problem and bool((self.runs.states == State.THERE).all())

    @property
    def counts(self) -> dict[str, int]:
        return {state.label: self.count(state) for state in State}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.label,
            "path": self.path,
            "whole": self.whole,
            "problem": self.problem or None,
            "first_seq": self.first,
            "last_seq": self.last,
            **self.counts,
            "digest": self.digest,
            "ranges": [[first, end, state.label] for first, end, state in self.runs if state != State.THERE],
        }


@dataclass(frozen=True, slots=True)
class Drift:
    """All copies of one stream side by side."""

    stream: str
    layout: str  # jstream, nats, stan
    copies: tuple[CopyDrift, ...]
    together: Runs  # what a read of all copies has: THERE, DIFFERENT where no majority tells, MISSING where it is lost
    conflicts: tuple[Conflict, ...] = ()
    account: str = ""
    notes: tuple[str, ...] = field(default=())  # what else is wrong, for people
    open: SequenceSet = field(default_factory=SequenceSet.empty)  # removed or lost: no copy tells

    @property
    def agrees(self) -> bool:
        """Return whether every copy is whole, so that all have the same."""
        return all(copy.whole for copy in self.copies) and not (self.conflicts or self.lost or self.open)

    @property
    def message_count(self) -> int:
        """Return how many messages a read of all copies serves."""
        return self.together.count(State.THERE) + self.together.count(State.DIFFERENT)

    @property
    def lost(self) -> SequenceSet:
        """Return the sequences that no copy has whole."""
        return self.together.sequences(State.MISSING)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the sequences `[first, end)` in which any copy has, or misses, anything; (1, 1) if none has."""
        spans = [runs.bounds for runs in (self.together, *(copy.runs for copy in self.copies)) if len(runs)]
        return (min(first for first, _ in spans), max(end for _, end in spans)) if spans else (1, 1)

    def verdict(self) -> str:
        """Return in a few words whether the copies agree."""
        if self.agrees:
            return "the copies agree" if len(self.copies) > 1 else "the only copy is whole"
        if all(copy.problem and not len(copy.runs) for copy in self.copies):
            return "no copy can be read"
        whole = sum(copy.whole for copy in self.copies)
        parts = [f"{whole} of {len(self.copies)} copies {'is' if whole == 1 else 'are'} whole"]
        if unsettled := self.together.count(State.DIFFERENT):
            parts.append(f"no majority for {_messages(unsettled)}")
        parts.append(f"{_messages(len(self.lost))} lost" if self.lost else "nothing lost")
        if self.open:
            parts.append(f"{_messages(len(self.open))} removed or lost")
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        columns = ("copy", "verdict", "last", *(state.label for state in State), "digest")
        rows = [
            (
                copy.label,
                notebook.marked("current", "whole")
                if copy.whole
                else notebook.marked("damaged", copy.problem or "not whole"),
                "unknown" if copy.last is None else f"{copy.last:,}",
                *(f"{copy.count(state):,}" for state in State),
                copy.digest[:12],
            )
            for copy in self.copies
        ]
        return notebook.listing(f"Stream {self.stream}: {self.verdict()}", columns, rows)

    def to_json(self) -> dict[str, Any]:
        first, end = self.bounds
        return {
            "stream": self.stream,
            "layout": self.layout,
            "account": self.account or None,
            "agree": self.agrees,
            "messages": self.message_count,
            "first_seq": first,
            "last_seq": end - 1,
            "lost_ranges": [list(run) for run in self.lost.ranges()],
            "open_ranges": [list(run) for run in self.open.ranges()],
            "copies": [copy.to_json() for copy in self.copies],
            "conflicts": [conflict.to_json() for conflict in self.conflicts],
            "notes": list(self.notes),
        }


def drifts_json(drifts: Sequence[Drift]) -> Mapping[str, Any]:
    """Return the shape of `jstream drift --json`."""
    return {"ok": all(drift.agrees for drift in drifts), "streams": [drift.to_json() for drift in drifts]}


def _listed(labels: Sequence[str]) -> str:
    return " and ".join([", ".join(labels[:-1]), labels[-1]]) if len(labels) > 1 else labels[0]


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"
