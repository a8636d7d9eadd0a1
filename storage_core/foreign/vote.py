"""The vote of several copies of one stream on what each sequence holds. Arrays in, arrays out; no files.

Each copy that can be read says of a sequence that it has a message with some content, that it had one which was
removed since, or nothing: it lost it, its bytes are damaged, or it never came so far. Who says nothing has no vote.

1. Is there a message? Not if more copies say removed than have one. A lost removal shows a message again, a removal
   too many hides one for ever: so a tie keeps it. A copy that may have lost removals does not count as one that has it,
   nor does one that no longer belongs to the stream: a removal that another copy proves stands against them. Where
   copies that lost their bytes could have made the removers more, nobody can tell: that is a conflict, and reported.
2. Which? The content that more than half of those copies have that have any: a majority.
3. Without a majority: the content that most copies have; of several the one that was stored last, for a server that
   was elected later writes over what an earlier one had not replicated; at the same time to the nanosecond the one
   with the greatest digest. Nobody can tell whether that is right, so it is a conflict, and reported as one.

The result does not depend on the order in which the copies are given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.comparison import Conflict, Rule, State
from storage_core.foreign.budget import PLACE_COUNT_MAX
from storage_core.foreign.digests import Digests
from storage_core.foreign.losses import Claims, Losses, losses
from storage_core.sequences import SequenceSet, distinct

NOBODY = -1
SEQUENCE_END = 1 << 62  # parts without a known end reach it, no sequence does
_UNSETTLED = (1, 2, 5)  # positions in _RULES
_RULES = (Rule.MAJORITY, Rule.MOST, Rule.LATEST, Rule.REMOVED, Rule.KEPT, Rule.UNSURE)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one copy says of a range of sequences."""

    label: str
    shown: Digests
    removed: SequenceSet  # had a message that is gone on purpose; what is also in `shown` is not meant
    claims: Claims  # by its damage; what is in `shown` is not meant
    sure_from: int = 0  # what it shows from this sequence on was not removed; of others it may have lost the removal
    readable: bool = True  # else all of it counts as damaged, and nothing is known to be lost by that


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome, for every sequence that any copy has. Columns of matrices are copies, rows are sequences."""

    sequences: np.ndarray  # int64, ascending
    served_by: np.ndarray  # int8 position of the first copy that has what is served, NOBODY if nothing is
    rules: np.ndarray  # int8 position in _RULES, of the sequences in dispute; others have a majority
    states: np.ndarray  # uint8 of State, or 0
    versions: np.ndarray  # int8: position of the first copy with the same content, NOBODY: none, -2: removed
    losses: Losses  # no copy has them, and none says that they were removed

    @property
    def unsettled(self) -> np.ndarray:
        """Return a mask of the sequences of which no majority tells the content, or whether there is any."""
        return np.isin(self.rules, _UNSETTLED)


def vote(ballots: Sequence[Ballot]) -> Vote:
    """Return what comes of it for all sequences that the copies speak of."""
    sequences = _all_sequences(ballots)
    has, digests, times_ns = _tables(ballots, sequences)
    removed = np.stack([copy.removed.mask(sequences) for copy in ballots], axis=1) & ~has
    holders, removers = has.sum(axis=1), removed.sum(axis=1)
    counts = _counts(has, digests)
    best = _best(counts, times_ns, digests, has)
    row = np.arange(len(sequences))
    best_counts, best_digests = counts[row, best], digests[row, best]
    sure = sequences[:, None] >= np.array([ballot.sure_from for ballot in ballots])
    silent = ~removed & np.stack([_may_have_removed(copy, sequences) for copy in ballots], axis=1)
    rules = _rules(counts, best_counts, holders, (has & sure).sum(axis=1), removers, silent.sum(axis=1))
    same = has & (digests == best_digests[:, None])
    present = same & ~np.isin(rules, (*_UNSETTLED, 3))[:, None]
    states = np.where(present, State.THERE, np.where(has, State.DIFFERENT, 0)).astype(np.uint8)
    expected = (rules != 3)[:, None] & ~has
    for at, ballot in enumerate(ballots):
        absent = np.where(ballot.claims.damaged.mask(sequences), State.DAMAGED, State.MISSING)
        states[:, at] = np.where(expected[:, at], absent, states[:, at])
    return Vote(
        sequences=sequences,
        served_by=np.where(rules == 3, NOBODY, best).astype(np.int8),
        rules=rules,
        states=states,
        versions=_versions(has, digests, removed),
        losses=_losses(ballots, sequences),
    )


def conflicts(
    outcome: Vote, labels: Sequence[str], count_max: int = PLACE_COUNT_MAX
) -> tuple[list[Conflict], np.ndarray]:
    """Return the sequences of which copies have different content, or some a removal, in runs of the same pattern.

    As many runs as `count_max`, and of what comes after them the bounds `[first, end)` alone: a row each.
    """
    versions = outcome.versions
    held = versions >= 0
    highest = versions.max(axis=1, initial=NOBODY)
    several = (held & (versions != highest[:, None])).any(axis=1)
    rows = np.flatnonzero(several | ((versions == -2).any(axis=1) & held.any(axis=1)))
    if not len(rows):
        return [], np.empty((0, 2), np.int64)
    sequences, patterns = outcome.sequences[rows], versions[rows]
    deciders, rules = outcome.served_by[rows], outcome.rules[rows]
    same = (np.diff(sequences) == 1) & (patterns[1:] == patterns[:-1]).all(axis=1)
    same &= (deciders[1:] == deciders[:-1]) & (rules[1:] == rules[:-1])
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
    ends = np.concatenate((starts[1:], [len(rows)]))
    bounds = np.stack((sequences[starts[count_max:]], sequences[ends[count_max:] - 1] + 1), axis=1)
    return [
        _conflict(int(sequences[at]), int(sequences[stop - 1]) + 1, patterns[at], int(deciders[at]), rules[at], labels)
        for at, stop in zip(starts[:count_max].tolist(), ends[:count_max].tolist(), strict=True)
    ], bounds


def _conflict(first: int, end: int, pattern: np.ndarray, served_by: int, rule: int, labels: Sequence[str]) -> Conflict:
    groups = sorted({int(group) for group in pattern if group >= 0})
    versions = tuple(tuple(labels[at] for at, own in enumerate(pattern) if own == group) for group in groups)
    removed = tuple(labels[at] for at, own in enumerate(pattern) if own == -2)
    served = None if served_by == NOBODY else groups.index(int(pattern[served_by]))
    return Conflict(first, end, versions, removed, served, _RULES[rule])


def _all_sequences(ballots: Sequence[Ballot]) -> np.ndarray:
    columns = [ballot.shown.sequences for ballot in ballots]
    longest = max(columns, key=len)
    if all(len(column) == len(longest) and np.array_equal(column, longest) for column in columns):
        return longest
    return distinct(np.concatenate(columns))


def _tables(ballots: Sequence[Ballot], sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return who has which sequence, with digest and time; where a copy has none they are 0."""
    shape = (len(sequences), len(ballots))
    has, digests, times_ns = np.zeros(shape, bool), np.zeros(shape, np.uint64), np.zeros(shape, np.int64)
    for at, ballot in enumerate(ballots):
        rows = np.searchsorted(sequences, ballot.shown.sequences)
        has[rows, at], digests[rows, at], times_ns[rows, at] = True, ballot.shown.digests, ballot.shown.times_ns
    return has, digests, times_ns


def _counts(has: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """Return for each copy how many, itself among them, have its content; 0 if it has none."""
    counts = np.zeros(has.shape, np.int8)
    for at in range(has.shape[1]):
        counts[:, at] = (has & (digests == digests[:, at : at + 1])).sum(axis=1) * has[:, at]
    return counts


def _best(counts: np.ndarray, times_ns: np.ndarray, digests: np.ndarray, has: np.ndarray) -> np.ndarray:
    """Return for each sequence the first of the copies that have what is to be served."""
    best = np.zeros(len(counts), np.int64)
    row = np.arange(len(counts))
    for at in range(1, counts.shape[1]):
        count, time, digest = counts[row, best], times_ns[row, best], digests[row, best]
        more = counts[:, at] > count
        later = (counts[:, at] == count) & (times_ns[:, at] > time)
        greater = (counts[:, at] == count) & (times_ns[:, at] == time) & (digests[:, at] > digest)
        best[has[:, at] & (more | later | greater)] = at
    return best


def _rules(
    counts: np.ndarray, best_counts: np.ndarray, holders: np.ndarray, sure_holders: np.ndarray, removers: np.ndarray,
    silent: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return positions in _RULES."""
    rivals = (counts == best_counts[:, None]).sum(axis=1) > best_counts  # as many have another content
    rules = np.where(2 * best_counts > holders, 0, np.where(rivals, 2, 1))
    rules = np.where((rules == 0) & (removers > 0), np.where(removers + silent > sure_holders, 5, 4), rules)
    return np.asarray(np.where(removers > sure_holders, 3, rules).astype(np.int8))


def _may_have_removed(ballot: Ballot, sequences: np.ndarray) -> np.ndarray:
    """Return of which sequences a copy may have said that they were removed, had it not lost its bytes."""
    lost = ballot.claims.damaged.union(ballot.claims.gone_ranges).union(ballot.claims.open)
    has = np.isin(sequences, ballot.shown.sequences)
    forgot = has & (sequences < ballot.sure_from) & (ballot.sure_from < SEQUENCE_END)
    return np.asarray(forgot | (~has & lost.mask(sequences)))


def _versions(has: np.ndarray, digests: np.ndarray, removed: np.ndarray) -> np.ndarray:
    versions = np.full(has.shape, NOBODY, np.int8)
    for at in reversed(range(has.shape[1])):
        versions[has & has[:, at : at + 1] & (digests == digests[:, at : at + 1])] = at
    versions[removed] = -2
    return versions


def _losses(ballots: Sequence[Ballot], sequences: np.ndarray) -> Losses:
    removed = SequenceSet.empty()
    for ballot in ballots:
        removed = removed.union(ballot.removed)
    claimed = [ballot.claims for ballot in ballots if ballot.readable]
    return losses(claimed, SequenceSet.from_sequences(sequences), removed)
