"""The protocol of sessions on one volume, as a model small enough to be exhausted.

docs/locks-and-stability.md says the rules in words, session.py in storage_core/store/ensemble carries them out, this
file says them a third time, without files and threads, so that every order of steps, kills, failed fsyncs and power
losses within a budget can be tried: breadth first, so the first trace to a violation is a shortest one.

    Volume    segments with entries, votes, seals and commit records, each durable or not: modelled_volume.py.
    Process   one step is one call at the file interface. A session locks, reads, and works through a list of steps.
              Between turns a process may read without the lock. What it remembers: the entry it knows, how far it has
              read, where the log ended when it last led.
    Faults    kill; interrupt (the session ends, the process lives and remembers); fsync that fails; power loss:
    whatever
              is not durable is kept, lost or torn, each on its own; damage to one record (without a power loss: see
              "What one volume cannot tell" in the document).

What is left out: several volumes, snapshots and the removal of old segments (but not the new segment that a snapshot
starts), disk full (an interrupt before the write), the lock file.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from entries import INDEX, PARENT, TERM, entry_after, is_prefix
from modelled_volume import (
    NEVER_WRITTEN,
    Read,
    Rec,
    Segment,
    Slot,
    best_record,
    fates,
    fsynced,
    read,
    term_of,
)
from search import Outcome, Violation, exhaust

# --- rules, and what becomes of the protocol without them


@dataclass(frozen=True)
class Rules:
    """The protocol as it is; each rule can be weakened."""

    rewrite: bool = True  # entries above the commit record go into a fresh segment before they count
    record_after_fsync: bool = True  # the commit record is written after the entry's fsync, not before
    two_slots: bool = True  # the commit record never overwrites the one before
    vote_first: bool = True  # the vote is fsynced before an entry of its term is written
    forget: bool = True  # a process that has read what others wrote gives its term up
    terms_seen: bool = True  # votes that were only read count as terms used
    proven: bool = True  # a segment is appended to only if its predecessor is sealed with it
    name_durable: bool = True  # the directory is fsynced before a new segment counts
    keep_old: bool = True  # the old segment stays until the new one is durable
    no_second_fsync: bool = True  # an fsync that failed is not tried again
    set_aside: bool = True  # a bad record above the marks is a torn tail, not damage
    marks: bool = True  # a bad record at or below the marks is damage, not a torn tail
    doubt: bool = True  # whoever begins to read looks under the lock if entries stand above the commit record


@dataclass(frozen=True)
class Budget:
    """How often each thing may happen."""

    jobs: tuple[str, ...] = ("aa", "a")  # by process: a = append one entry, r = start a segment as a snapshot does
    kills: int = 0
    interrupts: int = 0
    failed_fsyncs: int = 0
    power_losses: int = 0
    reads: int = 0  # without the lock, between sessions
    damages: int = 0


# --- state


class Memory(NamedTuple):
    """What a process keeps between sessions."""

    tip: int
    commit: tuple[int, int]
    end: tuple[int, int]  # (segment, records) that it has read; (0, 0): read everything anew
    term_seen: int
    led_to: tuple[int, int]
    term: int  # that it leads; 0: none


class Process(NamedTuple):
    todo: tuple[str, ...]  # steps left of its turn; empty: none
    memory: Memory | None
    jobs: str  # left to do
    attempts: int
    failed: bool  # writes no more
    now: Memory | None  # within a session: what will be kept
    new: int  # the entry that it is writing


class State(NamedTuple):
    segments: tuple[Segment, ...]
    processes: tuple[Process, ...]
    holder: int  # of the lock; -1: none
    promised: int  # the longest log that was acknowledged, or that a reader could see
    left: tuple[int, int, int, int, int, int]  # kills, interrupts, failed fsyncs, power losses, reads, damages


KILLS, INTERRUPTS, FSYNCS, POWER, READS, DAMAGES = range(6)


# --- the model


class Model:
    """Steps from state to state. A step yields (label, next state); Violation where a property does not hold."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self.rules, self.budget = rules, budget
        self.doing = ""  # the step that is being tried

    def initial(self) -> State:
        first = entry_after(0, 1, "init")
        segment = Segment(
            1,
            True,
            "D",
            (NEVER_WRITTEN, Slot((1, first), (1, first), "D")),
            (Rec("V", 1, 9, "D"), Rec("E", first, 0, "D")),
        )
        processes = tuple(Process((), None, jobs, 0, False, None, 0) for jobs in self.budget.jobs)
        one = self.budget
        left = (one.kills, one.interrupts, one.failed_fsyncs, one.power_losses, one.reads, one.damages)
        return State((segment,), processes, -1, first, left)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, process in enumerate(state.processes):
            if process.todo:
                yield from self._work(state, number, process)
                if state.left[INTERRUPTS]:
                    stopped = process._replace(todo=(), now=None, new=0)
                    yield f"P{number} interrupted", self._end(_spend(state, INTERRUPTS), number, stopped)
            else:
                if state.holder < 0 and process.jobs and not process.failed:
                    yield from self._begin(state, number, process)
                if state.left[READS] and state.holder < 0:
                    yield from self._read_freely(state, number, process)
            if state.left[KILLS] and (process.todo or process.memory is not None):
                dead = Process((), None, process.jobs, process.attempts, False, None, 0)
                yield f"P{number} killed", self._end(_spend(state, KILLS), number, dead)
        if state.left[POWER]:
            yield from self._power_loss(state)
        if state.left[DAMAGES]:
            yield from self._damage(state)

    def check(self, state: State) -> State:
        """Return the state with what was promised brought up to date; Violation if a promise is broken already."""
        seen = best_record(state.segments)[1]
        if not is_prefix(state.promised, seen):
            if not is_prefix(seen, state.promised):
                raise Violation("HISTORY")
            seen = state.promised
        votes: dict[int, int] = {}
        for record in (one for segment in state.segments for one in segment.records if one.kind == "V"):
            if votes.setdefault(record.what, record.who) != record.who:
                raise Violation("TERM")
        if state.holder < 0 and self.budget.damages == 0:
            self._check_beginning_reader(state)
        return state._replace(promised=seen)

    def _check_beginning_reader(self, state: State) -> None:
        """Whoever begins to read while nobody writes sees all that was promised, or looks under the lock."""
        found = read(state.segments)
        in_doubt = self.rules.doubt and (found.tip != found.commit[1] or not found.slots_whole or found.followed)
        if not in_doubt and not is_prefix(state.promised, found.commit[1]):
            raise Violation("READER")

    # --- a session

    def _begin(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        """Lock, read, and make the list of steps."""
        memory, rules = process.memory, self.rules
        self.doing = f"P{number} locks"
        found = read(state.segments)
        end = (state.segments[-1].number, len(state.segments[-1].records))
        tip = self._caught_up(state, memory, found) if memory is not None else 0
        if memory is not None and tip:
            behind = memory.end != end
            keeps = memory.term and (not rules.forget or not (behind or memory.end != memory.led_to))
            terms = [term_of(one) for one in state.segments[-1].records[memory.end[1] :]]
            seen = max(TERM[found.commit[1]], memory.term_seen if rules.terms_seen else 0, *terms)
            now = Memory(tip, found.commit, end, seen, memory.led_to, memory.term if keeps else 0)
            todo: tuple[str, ...] = ()
            how = "goes on"
        else:
            if self._refuses(found):
                if not self.budget.damages:
                    raise Violation("REFUSED")
                yield f"P{number} refuses", _with(state, number, process._replace(jobs=""))
                return
            uncommitted = found.tip != found.commit[1] and rules.rewrite
            is_bad = not found.is_clean or not found.slots_whole or (rules.proven and not found.is_proven)
            now = Memory(found.tip, found.commit, end, found.term, (0, 0), 0)
            how, todo = "reads all", ()
            if uncommitted or is_bad:
                now = now._replace(term=found.term + 1, term_seen=found.term + 1)
                how, todo = "settles", (*self._new_segment(), *self._entry("noop"))
        if not is_prefix(state.promised, now.tip):
            raise Violation("LOST")
        vote = () if now.term else (("vote", "fsync vote") if rules.vote_first else ("vote",))
        job = self._entry("append") if process.jobs[0] == "a" else self._new_segment()
        todo = (*todo, *vote, *job)
        begun = process._replace(todo=(*todo, "release"), now=now, attempts=process.attempts + 1)
        yield f"P{number} locks, {how}", _with(state, number, begun)._replace(holder=number)

    def _caught_up(self, state: State, memory: Memory, found: Read) -> int:
        """Return the log's last entry if what stands behind the memory leads to it and is all there is, else 0."""
        newest = state.segments[-1]
        if memory.end[0] != newest.number or not found.is_clean or not found.slots_whole:
            return 0
        tip = memory.tip
        for record in newest.records[memory.end[1] :]:
            if record.kind in "BS":
                return 0
            if record.kind == "E" and INDEX[record.what] > INDEX[tip]:
                if PARENT[record.what] != tip:
                    return 0
                tip = record.what
        return tip if tip == found.commit[1] else 0

    def _refuses(self, found: Read) -> bool:
        """Return whether something is missing that may have been acknowledged."""
        rules = self.rules
        marks = max(1, INDEX[found.commit[1]]) if rules.marks else 0
        if found.is_sealed or INDEX[found.tip] < marks or (rules.marks and not is_prefix(found.commit[1], found.tip)):
            return True
        is_damage = found.bad <= marks or (found.followed and rules.marks) or not rules.set_aside
        return found.bad > 0 and is_damage

    def _new_segment(self) -> tuple[str, ...]:
        names = ("fsync name",) if self.rules.name_durable else ()
        return ("segment", "fsync segment", *names, "seal")

    def _entry(self, what: str) -> tuple[str, ...]:
        if self.rules.record_after_fsync:
            return (what, "fsync entry", "record")
        return (what, "record", "fsync entry")

    def _work(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        step, now = process.todo[0], process.now
        assert now is not None
        process = process._replace(todo=process.todo[1:])
        self.doing = label = f"P{number} {step}"
        newest = state.segments[-1]
        if step in ("append", "noop"):
            new = entry_after(now.tip, now.term, f"{step} {number} {process.attempts}")
            if TERM[new] < TERM[now.tip]:
                raise Violation("TERM")
            yield label, _with(_add(state, Rec("E", new, 0, "W")), number, process._replace(new=new))
        elif step == "vote":
            term = now.term_seen + 1
            voted = _add(state, Rec("V", term, _candidate(number, process), "W"))
            yield label, _with(voted, number, process._replace(now=now._replace(term=term, term_seen=term)))
        elif step == "segment":
            yield label, _with(self._started(state, number, process, now), number, process)
        elif step == "seal":
            before = state.segments[-2]._replace(records=(*state.segments[-2].records, Rec("S", newest.number, 0, "W")))
            yield label, _with(state._replace(segments=(*state.segments[:-2], before, newest)), number, process)
        elif step == "fsync name":
            yield (
                label,
                _with(state._replace(segments=(*state.segments[:-1], newest._replace(name=True))), number, process),
            )
        elif step.startswith("fsync"):
            yield from self._fsync(state, number, process, step)
        elif step == "record":
            yield label, self._recorded(state, number, process, now)
        else:
            end = (newest.number, len(newest.records))
            kept = now._replace(end=end, led_to=end if now.term else now.led_to)
            done = process._replace(memory=kept, now=None, jobs=process.jobs[1:], new=0)
            yield label, self._end(state, number, done)

    def _started(self, state: State, number: int, process: Process, now: Memory) -> State:
        """A fresh segment: the commit record carried on, the vote, and copies of what stands above the record."""
        commit, entry = now.commit, now.tip
        copies: list[Rec] = []
        while self.rules.rewrite and entry != commit[1]:
            copies.insert(0, Rec("E", entry, 0, "W"))
            entry = PARENT[entry]
        slots = [NEVER_WRITTEN, NEVER_WRITTEN]
        slots[commit[0] % 2 if self.rules.two_slots else 0] = Slot(commit, (0, 0), "W")
        voted = [one for one in state.segments[-1].records if one.kind == "V" and one.what == now.term]
        vote = voted[0]._replace(at="W") if voted else Rec("V", now.term, _candidate(number, process), "W")
        segment = Segment(state.segments[-1].number + 1, False, "W", (slots[0], slots[1]), (vote, *copies))
        if self.rules.keep_old:
            return state._replace(segments=(*state.segments, segment))
        committed = tuple(
            one for one in state.segments[-1].records if one.kind != "E" or is_prefix(one.what, commit[1])
        )
        return state._replace(segments=(*state.segments[:-1], state.segments[-1]._replace(records=committed), segment))

    def _fsync(self, state: State, number: int, process: Process, step: str) -> Iterator[tuple[str, State]]:
        now = process.now
        assert now is not None
        synced = state._replace(segments=(*state.segments[:-1], fsynced(state.segments[-1], True)))
        if step == "fsync entry":
            if not is_prefix(state.promised, process.new):
                raise Violation("HISTORY")
            # Acknowledged a step later; an entry that is damaged in between nobody was told of.
            promised = process.new if not self.budget.damages else state.promised
            synced, process = synced._replace(promised=promised), process._replace(now=now._replace(tip=process.new))
        yield f"P{number} {step}", _with(synced, number, process)
        if not state.left[FSYNCS]:
            return
        failed = _spend(state, FSYNCS)
        failed = failed._replace(segments=(*state.segments[:-1], fsynced(state.segments[-1], False)))
        label = f"P{number} {step} FAILS"
        if not self.rules.no_second_fsync:
            yield label, _with(failed, number, state.processes[number])
        elif step == "fsync segment":  # it is removed again, and the term given up; the process may try once more
            gone = process._replace(todo=(), now=None, memory=None, new=0)
            yield label, self._end(failed._replace(segments=state.segments[:-1]), number, gone)
        else:
            yield label, self._end(failed, number, process._replace(todo=(), now=None, memory=None, failed=True, new=0))

    def _recorded(self, state: State, number: int, process: Process, now: Memory) -> State:
        generation = now.commit[0] + 1
        record, newest = (generation, process.new), state.segments[-1]
        slots = list(newest.slots)
        which = generation % 2 if self.rules.two_slots else 0
        slots[which] = Slot(record, slots[which].disk, "W")
        now = now._replace(commit=record, tip=process.new)
        written = newest._replace(slots=(slots[0], slots[1]))
        return _with(state._replace(segments=(*state.segments[:-1], written)), number, process._replace(now=now))

    def _end(self, state: State, number: int, process: Process) -> State:
        """The session is over, or the process is dead: the lock is free."""
        holder = -1 if state.holder == number else state.holder
        return _with(state, number, process)._replace(holder=holder)

    def _read_freely(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        """Read up to the commit record, as readers do."""
        found = read(state.segments)
        commit, memory = found.commit, process.memory
        if found.tip != commit[1] or not found.slots_whole or (memory is not None and memory.commit == commit):
            return
        end = (state.segments[-1].number, len(state.segments[-1].records))
        if not found.is_clean or (self.rules.proven and not found.is_proven):
            end = (0, 0)
        led = (memory.led_to, memory.term) if memory is not None else ((0, 0), 0)
        now = Memory(found.tip, commit, end, found.term, *led)
        yield f"P{number} reads", _with(_spend(state, READS), number, process._replace(memory=now))

    # --- faults

    def _power_loss(self, state: State) -> Iterator[tuple[str, State]]:
        """Every process dies; each thing that is not durable has each of its fates."""
        dead = tuple(Process((), None, one.jobs, one.attempts, False, None, 0) for one in state.processes)
        durable = max((slot.disk for one in state.segments for slot in one.slots if one.name), default=(0, 0))
        self.doing = "power loss"
        for segments in itertools.product(*(list(fates(one)) for one in state.segments)):
            left = tuple(one for one in segments if one is not None)
            after = _spend(state, POWER)._replace(segments=left, processes=dead, holder=-1)
            if best_record(left)[0] < durable[0]:
                raise Violation("MARK")  # a durable commit record is gone: damage below it would look like a torn tail
            yield "power loss", after

    def _damage(self, state: State) -> Iterator[tuple[str, State]]:
        """One entry that is durable is damaged."""
        for place, segment in enumerate(state.segments):
            for at, record in enumerate(segment.records):
                if record.kind == "E" and record.at == "D":
                    records = (*segment.records[:at], Rec("B", 0, 0, "D"), *segment.records[at + 1 :])
                    segments = list(state.segments)
                    segments[place] = segment._replace(records=records)
                    yield (
                        f"damage to segment {segment.number}",
                        _spend(state, DAMAGES)._replace(segments=tuple(segments)),
                    )


def _candidate(number: int, process: Process) -> int:
    return number * 100 + process.attempts


def _with(state: State, number: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))


def _spend(state: State, what: int) -> State:
    return state._replace(left=tuple(count - (at == what) for at, count in enumerate(state.left)))  # type: ignore[arg-type]


def _add(state: State, record: Rec) -> State:
    newest = state.segments[-1]
    return state._replace(segments=(*state.segments[:-1], newest._replace(records=(*newest.records, record))))


# --- the search


@cache
def search(rules: Rules, budget: Budget, states_max: int = 2_000_000) -> Outcome:
    """Try everything within the budget, breadth first; stop at the first violation."""
    return exhaust(Model(rules, budget), states_max)


def weakened(**rules: bool) -> Rules:
    """Return the protocol without some of its rules."""
    return replace(Rules(), **rules)
