"""The rules of the ensemble, and what a holder decides by them from everything that it can read.

`decide` is the second version of the decision.py in storage_core/store/ensemble: slow, obvious, about numbers instead
of files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ensemble_volume import Found
from entries import INDEX, LOG, STATED, TERM, is_prefix, rank


@dataclass(frozen=True)
class Rules:
    """The protocol as it is; each rule can be weakened."""

    peek: bool = True  # a volume that another process has locked is read all the same
    read_all: bool = True  # the decision rests on every volume that can be reached, not on the first majority
    rewrite: bool = True  # entries above the commit record that this process did not fsync are rewritten
    own_record: bool = True  # ... above the volume's own commit record, that is, not above the highest one
    keep_old: bool = True  # the old segment stays until the new one is durable
    record_after_fsync: bool = True  # the commit record is written after the fsync of a quorum, not before
    record_where_fsynced: bool = True  # ... and only on volumes whose own log is fsynced up to its entry
    two_slots: bool = True  # the commit record never overwrites the one before
    statements: bool = True  # a log that ends below a statement about it does not vote
    doubt: bool = True  # with more than f volumes that cannot be asked, a bad tail is damage
    set_aside: bool = True  # with at most f of them it is a torn tail
    marks: bool = True  # what a mark vouches for is damage where it is bad, and a refusal where it is missing
    repair_votes: bool = True  # a bad record of which there is a copy is repaired, and then its owner votes
    drop_record: bool = True  # repair at or below a volume's commit record first takes that record away
    blank_waits: bool = True  # a blank volume neither votes nor counts until it has caught up
    vote_first: bool = True  # the vote is durable on a quorum before an entry of its term is written
    all_contents: bool = True  # the log to lead with is the best one that can be read, a voter's or not
    forget: bool = True  # memory of own fsyncs is forgotten when anybody else has led since
    give_up: bool = True  # after an append without quorum the process gives its term up
    abort_first: bool = True  # blocks are swept only after a committed abort
    names: bool = True  # a commit record names the volumes that its entry was fsynced on
    majority: bool = True  # what contradicts an entry that a majority holds does not count, whatever its length
    whole_log: bool = True  # (writer, batch) is looked up in the whole adopted log, uncommitted entries included


def weakened(*names: str) -> Rules:
    """Return the protocol without some of its rules."""
    return replace(Rules(), **dict.fromkeys(names, False))


class LogContents(NamedTuple):
    """What is known of a volume that was read."""

    found: Found
    commit: int  # entry that its commit record names; 0: none can be read
    standing: str  # member, blank, retired
    is_locked: bool  # by who asks; else it was read without its lock
    named: tuple[int, ...] = ()  # volumes on which its commit record says that entry to be durable


class Task(NamedTuple):
    """What becomes of one locked volume."""

    takes_part: bool  # it may be written: it is brought up to the log that is led with
    votes: bool
    drops_record: bool  # its commit record is taken away first, durably
    trusted_index: int  # entries up to here are believed to be durable there


class Decision(NamedTuple):
    tips: tuple[
        int, ...
    ]  # logs to lead with: the best one; none: a commit record is above every readable log, or split
    commit: int
    tasks: tuple[Task | None, ...]  # by volume; None: not locked
    term: int  # highest that anybody spoke of
    candidates: frozenset[int]
    split: bool  # commit records contradict each other, and no branch has a majority


NOT_WRITTEN = Task(False, False, False, 0)


def decide(rules: Rules, contents: Mapping[int, LogContents], volume_count: int) -> Decision:
    """Return who votes, which log leads and what each locked volume needs. `contents`: of the volumes that were read.

    Too few votes for a quorum are the caller's to see: whether that is an error depends on what was not locked.
    """
    asked = dict(list(contents.items())[: volume_count if rules.read_all else volume_count // 2 + 1])
    foreign, wanted, split = set[int](), [0], False
    if rules.majority:
        known = asked if rules.names else {volume: one._replace(named=()) for volume, one in asked.items()}
        foreign, wanted, split = _branches(known, volume_count)
    asked = {volume: one for volume, one in asked.items() if volume not in foreign}
    whole = _whole(asked)
    readable = {entry for one in asked.values() for entry in one.found.entries if entry}
    commit = max((one.commit for one in asked.values()), key=INDEX.__getitem__, default=0)
    stated = [_stated(readable, volume) for volume in range(volume_count)]
    tasks = tuple(
        _task(rules, volume, asked, whole, commit, stated[volume], volume_count) if contents[volume].is_locked else None
        for volume in sorted(contents)
    )
    by_volume = dict(zip(sorted(contents), tasks, strict=True))
    every = tuple(by_volume.get(volume) for volume in range(volume_count))
    term = max((one.found.term for one in asked.values()), default=0)
    return Decision(
        tips=() if split else _best(rules, asked, every, whole, commit, wanted),
        commit=commit,
        tasks=every,
        term=term,
        candidates=frozenset().union(*(one.found.candidates for one in asked.values() if one.found.term == term)),
        split=split,
    )


def _whole(asked: Mapping[int, LogContents]) -> set[int]:
    """Return the entries that can be read with all before them."""
    readable = {entry for one in asked.values() for entry in one.found.entries if entry}
    return {entry for entry in readable if readable.issuperset(LOG[entry])}


def _last(one: LogContents, whole: set[int]) -> int:
    return max((entry for entry in one.found.entries if entry in whole), key=INDEX.__getitem__, default=0)


def _are_on_one_chain(one: int, other: int) -> bool:
    return is_prefix(one, other) or is_prefix(other, one)


def _branches(asked: Mapping[int, LogContents], volume_count: int) -> tuple[set[int], list[int], bool]:
    """Return the volumes of another copy of the store, the entries that count for sure, and whether nobody can tell.

    What a majority holds was never contradicted by anything committed: two majorities have a volume in common.
    """
    whole = _whole(asked)
    logs = {volume: _last(one, whole) for volume, one in asked.items()}
    foreign = {one for one in asked if _denies_a_majority(one, asked, logs, volume_count, of_another_branch=True)}
    if len(foreign) > volume_count - (volume_count // 2 + 1):  # more than may fail: of two branches either may be ours
        foreign = {one for one in asked if _denies_a_majority(one, asked, logs, volume_count, of_another_branch=False)}
    asked = {volume: one for volume, one in asked.items() if volume not in foreign}
    logs = {volume: logs[volume] for volume in asked}
    holders = {entry: sum(entry in LOG[log] for log in logs.values()) for log in logs.values() for entry in LOG[log]}
    held = max((one for one, count in holders.items() if count > volume_count // 2), key=INDEX.__getitem__, default=0)
    for volume, one in asked.items():
        lost = one.commit not in whole
        cut = lost and INDEX[one.commit] > INDEX[held]  # then its own log says where it belongs
        if lost and INDEX[one.commit] <= INDEX[logs[volume]] and not is_prefix(one.commit, logs[volume]):
            foreign.add(volume)
        if not _are_on_one_chain(logs[volume] if cut else one.commit, held):
            foreign.add(volume)
    commits = [one.commit for volume, one in asked.items() if volume not in foreign]
    highest = max((one for one in commits if one in whole), key=INDEX.__getitem__, default=0)
    split = INDEX[highest] > INDEX[held] and any(
        INDEX[one] <= INDEX[highest] and not is_prefix(one, highest) for one in commits
    )
    places: dict[tuple[int, int], int] = {}
    for volume, log in logs.items():
        if volume not in foreign and is_prefix(held, log) and is_prefix(highest, log):
            split |= any(places.setdefault((INDEX[one], TERM[one]), one) != one for one in LOG[log])
    return foreign, [held, highest], split


def _denies_a_majority(
    volume: int, asked: Mapping[int, LogContents], logs: Mapping[int, int], volume_count: int, of_another_branch: bool
) -> bool:
    """Return whether a majority has lost entries, if what stands on this volume is true: one fault is likelier."""
    teller, whole = asked[volume], _whole(asked)
    own = {entry for entry in teller.found.entries if entry}
    denied = 0
    for number, one in asked.items():
        if number == volume or one.standing == "blank":
            continue
        index = max(_stated(own, number), INDEX[teller.commit] if number in teller.named else 0)
        is_short = (_bad(one) or len(one.found.entries) + 1) <= index
        commit = teller.commit if teller.commit in whole else 0
        denied += is_short or (
            of_another_branch and _is_elsewhere(LOG[logs[number]], LOG[logs[volume]], LOG[commit], index)
        )
    return denied > volume_count // 2


def _is_elsewhere(own: tuple[int, ...], told: tuple[int, ...], committed: tuple[int, ...], index: int) -> bool:
    """Return whether a volume has another entry in the place of one that is said to be durable on it.

    What a later leader replaced is not lost; what was committed is never replaced.
    """
    if not 0 < index <= len(own):
        return False
    here = own[index - 1]
    if index <= len(committed) and committed[index - 1] != here:
        return True
    return index <= len(told) and told[index - 1] != here and TERM[here] <= TERM[told[index - 1]]


def _stated(readable: set[int], volume: int) -> int:
    """Return the highest index that any entry says is durable on the volume."""
    return max((STATED[entry][volume] for entry in readable if STATED[entry]), default=0)


def _task(
    rules: Rules,
    volume: int,
    asked: Mapping[int, LogContents],
    whole: set[int],
    commit: int,
    stated: int,
    volume_count: int,
) -> Task:
    one = asked.get(volume)
    if one is None:  # only where not all contents is read
        return NOT_WRITTEN
    entries, bad, takes_part = one.found.entries, _bad(one), True
    is_member = one.standing == "member" or (one.standing == "blank" and not rules.blank_waits)
    votes = is_member and (len(entries) >= stated or not rules.statements)
    if bad:
        others = [other.found.entries for number, other in asked.items() if number != volume]
        has_copy = any(len(theirs) >= bad and theirs[bad - 1] in whole for theirs in others)
        is_marked = bad <= max(INDEX[commit], stated, 1)
        if rules.marks and (is_marked or any(entries[bad:])):  # it may have been acknowledged: damage
            votes = votes and has_copy and rules.repair_votes
            takes_part = has_copy
        elif not has_copy and not _is_torn_tail(rules, asked, volume_count):
            votes = takes_part = False
    drops_record = rules.drop_record and 0 < bad <= INDEX[one.commit]
    trusted = INDEX[one.commit if rules.own_record else commit] if is_member and one.commit and not drops_record else 0
    return Task(takes_part, votes and takes_part, drops_record, trusted)


def _bad(one: LogContents) -> int:
    """Return the first index that is missing, torn or damaged; a log that ends below its commit record was cut."""
    entries = one.found.entries
    return one.found.bad or (len(entries) + 1 if len(entries) < max(INDEX[one.commit], 1) else 0)


def _is_torn_tail(rules: Rules, asked: Mapping[int, LogContents], volume_count: int) -> bool:
    """Return whether a bad record above all marks, of which there is no copy, was never acknowledged."""
    silent = volume_count - sum(one.standing != "blank" or not rules.blank_waits for one in asked.values())
    f = volume_count - (volume_count // 2 + 1)
    return not rules.doubt or silent <= (f if rules.set_aside else 0)


def _best(
    rules: Rules,
    asked: Mapping[int, LogContents],
    tasks: tuple[Task | None, ...],
    whole: set[int],
    commit: int,
    wanted: list[int],
) -> tuple[int, ...]:
    """Return the best of the logs that are whole; several only where a weakened rule lets two lead in one term."""
    leading = []
    for volume, one in asked.items():
        task = tasks[volume]
        if rules.all_contents or (task is not None and task.votes):
            leading.append(_last(one, whole))
    leading = [one for one in leading if all(is_prefix(entry, one) for entry in wanted)] or leading
    best = max(map(rank, leading), default=(0, 0))
    return tuple(sorted({one for one in leading if rank(one) == best and (is_prefix(commit, one) or not rules.marks)}))
