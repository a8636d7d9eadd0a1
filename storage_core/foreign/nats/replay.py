"""Records and tombstones of a stream replayed in the order in which the server wrote them, with the stream's limits.

What had gone does not come back: a message that a limit or a rollup removed is gone also where the message that made it
go was removed later, which the records at the end of the day do not show. Where no tombstone meets a message of the
blocks, the end tells as well, and the limits are applied to it as they are (limits.py).

Source: nats-server, server/filestore.go (`storeRawMsg`, `enforceMsgPerSubjectLimit`, `removePerSubject`),
server/stream.go (`processJetStreamMsg`, where it rolls up).
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from storage_core.foreign.nats.limits import Limits
from storage_core.foreign.nats.record import SIZE_MIN
from storage_core.foreign.nats.ttl import NEVER, NO_ROLLUP, ROLLUP_ALL


@dataclass(frozen=True, slots=True)
class Log:
    """Messages as parallel arrays, ascending by sequence, and tombstones in the order in which they were written."""

    sequences: np.ndarray
    sizes: np.ndarray  # whole records, bytes
    times_ns: np.ndarray
    places: np.ndarray  # int64, ascend as the log was written
    subjects: np.ndarray  # codes, equal where the subjects are
    ttls_ns: np.ndarray | None  # as parse_ttls returns them
    rollups: np.ndarray | None  # as parse_rollups returns them
    removals: np.ndarray  # sequences that tombstones name
    removal_places: np.ndarray


@dataclass(frozen=True, slots=True)
class Replayed:
    """What is left of a log."""

    keep: np.ndarray  # mask of the messages that stay
    floor: int  # a limit was reached: no message below this sequence stayed


def replay(log: Log, limits: Limits) -> Replayed:
    """Return which messages stay."""
    rows = np.searchsorted(log.sequences, log.removals)
    met = rows < len(log.sequences)
    met[met] = log.sequences[rows[met]] == log.removals[met]
    rows, places = rows[met], log.removal_places[met]
    ends = np.zeros(len(log.sequences), bool)
    ends[rows] = True
    if not len(rows) or not (limits.max_msgs or limits.max_bytes or limits.max_msgs_per_subject or limits.rolls_up):
        times = int(log.times_ns.max()) if len(log.times_ns) else 0
        stay = ~ends & ~_rolled_up(log)
        kept = limits.keep(
            log.sequences[stay],
            log.sizes[stay],
            log.times_ns[stay],
            log.subjects[stay],
            None if log.ttls_ns is None else log.ttls_ns[stay],
            times,
        )
        floor = _floor(limits, log.sequences[stay][kept], log.sizes[stay][kept])
        stay[stay] = kept
        return Replayed(stay, floor)
    return _in_order(log, limits, rows, places)


def _floor(limits: Limits, sequences: np.ndarray, sizes: np.ndarray) -> int:
    full = 0 < limits.max_msgs <= len(sequences) or 0 < limits.max_bytes < int(sizes.sum()) + SIZE_MIN
    return int(sequences[0]) if full and len(sequences) else 0


def _rolled_up(log: Log) -> np.ndarray:
    """Return which messages a later one replaced."""
    is_gone = np.zeros(len(log.sequences), bool)
    if log.rollups is None or not log.rollups.any():
        return is_gone
    whole = np.flatnonzero(log.rollups == ROLLUP_ALL)
    if len(whole):
        is_gone[: whole[-1]] = True
    of_subject = np.flatnonzero(log.rollups != NO_ROLLUP)
    latest = np.full(int(log.subjects.max()) + 1, -1, np.int64)
    latest[log.subjects[of_subject]] = of_subject  # ascending, so that the last one counts
    return np.asarray(is_gone | (np.arange(len(is_gone)) < latest[log.subjects]))


def _in_order(log: Log, limits: Limits, rows: np.ndarray, places: np.ndarray) -> Replayed:
    live = _Live(log, limits)
    count = len(log.sequences)
    # The server writes messages by sequence. What lies in front of a lower one, or behind a higher one, was put there
    # by damage, and must not make others go.
    message_places = np.minimum.accumulate(log.places[::-1])[::-1]
    all_places = np.concatenate((message_places, places))
    events = np.concatenate((np.arange(count), -1 - rows))[np.argsort(all_places, kind="stable")]
    for event in events.tolist():
        if event >= 0:
            live.store(event)
        else:
            live.remove(-1 - event)
    keep = np.array(live.alive, bool)
    kept = limits.keep(
        log.sequences[keep],
        log.sizes[keep],
        log.times_ns[keep],
        log.subjects[keep],
        None if log.ttls_ns is None else log.ttls_ns[keep],
        int(log.times_ns.max()),
    )
    keep[keep] = kept
    return Replayed(keep, live.floor)


class _Live:
    """The messages that are there at one moment of the replay. Rows stand for messages."""

    def __init__(self, log: Log, limits: Limits) -> None:
        self.alive = [False] * len(log.sequences)
        self.floor = 0
        self._limits = limits
        self._sequences, self._sizes = log.sequences.tolist(), log.sizes.tolist()
        self._times, self._subjects = log.times_ns.tolist(), log.subjects.tolist()
        self._ttls = None if log.ttls_ns is None else log.ttls_ns.tolist()
        self._rollups = None if log.rollups is None else log.rollups.tolist()
        self._by_subject: dict[int, deque[int]] = {}
        self._due: list[tuple[int, int]] = []  # (when, row) of messages with a time to live
        self._first, self._count, self._size = 0, 0, 0
        self._counts: dict[int, int] = {}  # of live messages, by subject

    def store(self, row: int) -> None:
        limits, subject, time = self._limits, self._subjects[row], self._times[row]
        while self._due and self._due[0][0] <= time:
            self.remove(heapq.heappop(self._due)[1])
        if limits.max_age_ns and self._ttls is None:
            while self._first < row and (
                not self.alive[self._first] or time - self._times[self._first] > limits.max_age_ns
            ):
                self.remove(self._first)
                self._first += 1
        if self._sequences[row] < limits.first_sequence:
            return
        rollup = NO_ROLLUP if self._rollups is None else self._rollups[row]
        if rollup == ROLLUP_ALL:
            for earlier in range(self._first, row):
                self.remove(earlier)
            self._first = row
        own = self._by_subject.setdefault(subject, deque())
        if rollup != NO_ROLLUP:
            while own:
                self.remove(own.popleft())
        own.append(row)
        self.alive[row] = True
        self._count += 1
        self._size += self._sizes[row]
        self._counts[subject] = self._counts.get(subject, 0) + 1
        if self._ttls is not None and self._ttls[row] > 0:
            heapq.heappush(self._due, (time + self._ttls[row], row))
        while limits.max_msgs_per_subject and self._counts[subject] > limits.max_msgs_per_subject:
            self.remove(own.popleft())
        evicted = False
        while (limits.max_msgs and self._count > limits.max_msgs) or (
            limits.max_bytes and self._size > limits.max_bytes and self._first < row
        ):
            self.remove(self._first)
            self._first += 1
            evicted = True
        if evicted or (limits.max_msgs and self._count == limits.max_msgs):
            while not self.alive[self._first]:
                self._first += 1
            self.floor = max(self.floor, self._sequences[self._first])

    def remove(self, row: int) -> None:
        if self.alive[row]:
            self.alive[row] = False
            self._count -= 1
            self._size -= self._sizes[row]
            self._counts[self._subjects[row]] -= 1


assert NEVER < 0 == NO_ROLLUP
