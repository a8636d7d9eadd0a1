"""The commit protocol over registers, as a model: coordinators, one to three volumes, and what may happen to them.

A volume's metadata is a register. It holds one head, which names the whole log. `begin` returns the head, `append`
replaces the head that `begin` returned, or the caller appended, by the next one. Above registers there are Raft's rules
alone: read all, campaign with the best log, append on a majority; whoever finds its own heads goes on in its term.

    Bucket   creating number n + 1 replaces head n, and is refused where that number is. A request may be carried out
             late, also after its sender has given up, or its answer is lost. Old numbers are deleted, so a creation
             counts only if its predecessor is still there afterwards.
    Disk     an append is a record in a file: write, fsync, then move the mark that says how far the file is durable.
             `begin` locks the volume until the session ends, and heals what lies above the mark: it rewrites the
             records that are whole, drops what is not, fsyncs, and moves the mark. Readers take no lock and go by the
             mark.
    Faults   a coordinator is killed, or gives up, at any step; power loss: each thing that is not durable is kept,
             lost or torn; a failed fsync; and at most one volume at a time that is lost, away, put back to an earlier
             head (a bucket: while nobody has a session), or that has a damaged record. After an append that reached all
             volumes another one may be faulty.

FORK     two entries that were acknowledged, or that a reader was shown, are not on one chain
LOST     a coordinator leads with a log that lacks such an entry, and could append to a majority
READER   a reader of all volumes, none of them faulty or in doubt, sees less than was acknowledged before it began
TERM     terms fall along a log
MARK     a power loss takes away a mark that was durable
REFUSED  a volume on which nothing was damaged is taken for damaged

Left out: snapshots, changes of the store's volumes, blocks (they are durable before their entry is proposed).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, takewhile
from typing import Any, NamedTuple

from entries import INDEX, LOG, TERM, entry_after, is_prefix, rank
from search import Outcome, Violation, exhaust


@dataclass(frozen=True)
class Rules:
    """The protocol as it is; each rule can be weakened."""

    read_all: bool = True  # the decision rests on every volume that can be reached, not on the first majority
    best_log: bool = True  # the log to lead with is the best of all that were read, not that of the volume read last
    majority: bool = True  # a term, and a commit, need a majority; without the rule one volume less
    own_vote: bool = True  # entries are appended only in a term for which a majority has voted
    vote_alone: bool = True  # the vote is appended before the first entry of its term, not with it
    forget: bool = True  # a leader goes on in its term only if its own heads are on every volume that it reads
    own_term: bool = True  # readers count only the heads whose term is the entry's own
    compare: bool = True  # bucket: a creation is refused where its number is
    look: bool = True  # bucket: a creation counts only if its predecessor is still there
    own_put: bool = True  # bucket: a refused creation counts only if the head is that of this very request
    heal: bool = True  # disk: what is above the mark is made durable before it counts
    rewrite: bool = True  # disk: ... by writing it again; an fsync alone does not repeat what an earlier one lost
    mark_last: bool = True  # disk: the mark is moved after the fsync, not before
    two_slots: bool = True  # disk: the mark never overwrites the one before
    drop: bool = True  # disk: a bad record above the mark is a torn one, not damage
    damage: bool = True  # disk: a bad record at or below the mark is damage, not a torn one
    doubt: bool = True  # disk: a reader that finds records above a mark settles them under the lock


@dataclass(frozen=True)
class Budget:
    """The kind of the volumes, and how often each thing may happen."""

    kind: str = "disk"
    volumes: int = 3
    processes: int = 2
    sessions: int = 2
    proposals: int = 2
    reads: int = 0
    kills: int = 0
    power_losses: int = 0
    failed_fsyncs: int = 0
    absences: int = 0
    volume_faults: int = 0
    deletions: int = 0
    late: bool = True  # bucket: requests outlive their sender
    faults: tuple[str, ...] = ("lost", "back", "damaged")


# --- state


class Head(NamedTuple):
    number: int
    term: int
    writer: int  # process and session that appended it
    log: int
    commit: int


class Record(NamedTuple):
    head: Head
    at: str  # D: durable, W: in the page cache, G: there, too, but a failed fsync has given it up
    is_bad: bool = False


class Volume(NamedTuple):
    records: tuple[Record, ...]  # disk: the first one is below both marks; bucket: the newest alone
    mark: int  # disk: number of the last record below it, as processes see it
    disk_mark: int  # disk: the same after a power loss
    owner: int  # disk: process that has the lock; -1: none
    standing: str  # "", "away", "lost"
    lowest: int  # bucket: number of the oldest head that is not deleted
    before: Head  # an earlier head that was durable


class Put(NamedTuple):
    """Bucket: a creation on its way."""

    process: int
    session: int
    volume: int
    head: Head


class Op(NamedTuple):
    """What a coordinator does on a volume."""

    stage: str  # queued, healing, written, fsynced, sent; stored, refused, failed
    head: Head | None


class Process(NamedTuple):
    phase: str  # idle, reads, votes, leads, writes
    session: int
    term: int  # idle: in which it has led; 0: none
    leader: int  # the writer of its heads in that term
    log: int
    acked: int
    heads: tuple[Head | None, ...]  # by volume: what was read, or stored
    ops: tuple[Op | None, ...]


class Left(NamedTuple):
    sessions: int
    proposals: int
    reads: int
    kills: int
    power_losses: int
    failed_fsyncs: int
    absences: int
    volume_faults: int
    deletions: int


class State(NamedTuple):
    volumes: tuple[Volume, ...]
    processes: tuple[Process, ...]
    puts: frozenset[Put]
    promised: frozenset[int]  # entries that were acknowledged or shown
    reader: tuple[Head | None, ...] | None
    owed: int  # the longest entry that was acknowledged before the reader began; 0: it may see less
    faulty: int  # the volume that is; -1: none
    left: Left
    serial: int


ACTIVE = ("queued", "healing", "written", "fsynced", "sent")


class Registers:
    """Steps from state to state."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self.rules, self.budget = rules, budget
        self.doing = ""
        self.count = budget.volumes
        self.majority = self.count // 2 + 1
        self.quorum = self.majority if rules.majority else self.majority - 1
        self.idle = Process("idle", 0, 0, 0, 0, 0, (None,) * self.count, (None,) * self.count)

    def initial(self) -> State:
        first = entry_after(0, 1, "init")
        head = Head(1, 1, 0, first, first)
        volume = Volume((Record(head, "D"),), 1, 1, -1, "", 1, head)
        left = Left(*(getattr(self.budget, name) for name in Left._fields))
        processes = (self.idle,) * self.budget.processes
        return State((volume,) * self.count, processes, frozenset(), frozenset({first}), None, 0, -1, left, 0)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, process in enumerate(state.processes):
            yield from self._process(state, number, process)
        for put in sorted(state.puts):
            yield from self._create(state, put)
        yield from self._reader(state)
        if state.left.power_losses:
            yield from self._power_loss(state)
        is_away = [volume.standing == "away" for volume in state.volumes]
        if state.left.volume_faults and state.faulty < 0 and not any(is_away):
            yield from self._fault(state)
        for at, volume in enumerate(state.volumes):
            if volume.standing == "away":
                yield f"volume {at} is back", _with(state, at, standing="")
            elif state.left.absences and state.faulty < 0:
                yield f"volume {at} is away", _with(_spend(state, "absences"), at, standing="away", owner=-1)
        if state.left.deletions:
            for at, volume in enumerate(state.volumes):
                if volume.lowest < _newest(volume).number:
                    deleted = _with(_spend(state, "deletions"), at, lowest=_newest(volume).number)
                    yield f"old heads of {at} are deleted", deleted

    def check(self, state: State) -> State:
        """Raise Violation if a promise is broken."""
        promised = sorted(state.promised, key=INDEX.__getitem__)
        for one, other in zip(promised, promised[1:], strict=False):
            if not is_prefix(one, other):
                raise Violation("FORK")
        for process in state.processes:
            if process.phase in ("leads", "writes") and not is_prefix(promised[-1], process.log):
                pairs = zip(process.heads, state.volumes, strict=True)
                current = sum(head is not None and head == _newest(volume) for head, volume in pairs)
                if current >= self.majority:  # else it is deposed, and will be refused
                    raise Violation("LOST")
        return state

    # --- a coordinator

    def _process(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        me = f"P{number}"
        if process.phase == "idle":
            if state.left.sessions:
                serial = state.serial + 1
                begun = process._replace(phase="reads", session=serial, log=0)
                yield f"{me} begins", _with_process(_spend(state, "sessions"), number, begun)._replace(serial=serial)
            return
        if state.left.kills:
            yield f"{me} killed", _spend(self._ended(state, number, not self.budget.late), "kills")
        is_busy = any(op is not None and op.stage in ACTIVE for op in process.ops)
        if process.phase == "reads":
            yield from self._read(state, number, process)
            if not is_busy:
                yield from self._campaign(state, number, process)
        if process.phase == "leads" and not is_busy:
            self.doing = f"{me} proposes"
            if state.left.proposals:
                yield self._propose(state, number, process)
            rests = self.idle._replace(term=process.term, leader=process.leader)
            yield f"{me} ends its session", _with_process(self._ended(state, number, False), number, rests)
        for at, op in enumerate(process.ops):
            if op is not None and op.stage in ("queued", "written", "fsynced"):
                yield from self._append_on_disk(state, number, process, at, op)

    def _ended(self, state: State, number: int, takes_puts: bool) -> State:
        """The process is gone, or gives its leadership up: its locks are free, its requests may be on their way."""
        volumes = tuple(one._replace(owner=-1) if one.owner == number else one for one in state.volumes)
        puts = frozenset(one for one in state.puts if one.process != number) if takes_puts else state.puts
        return _with_process(state, number, self.idle)._replace(volumes=volumes, puts=puts)

    def _read(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        """`begin` on each volume, in any order for buckets, and by number for disks, which are locked."""
        me = f"P{number}"
        for at, volume in enumerate(state.volumes):
            op = process.ops[at]
            if process.heads[at] is not None or volume.standing or (op is not None and op.stage == "failed"):
                continue
            if self.budget.kind == "bucket":
                yield f"{me} reads {at}", self._has_read(state, number, at, volume)
                continue
            if op is not None:
                yield from self._heal(state, number, at, volume)
                return
            if volume.owner >= 0:
                yield f"{me} finds {at} locked", self._ended(state, number, False)
                return
            if self._is_damaged(volume):
                refused = process._replace(ops=_put(process.ops, at, Op("failed", None)))
                yield f"{me} finds {at} damaged", _with_process(state, number, refused)
                return
            kept = tuple(takewhile(lambda one: not one.is_bad, volume.records))
            above = kept[len(volume.records) - len(_above(volume)) :]
            if above and self.rules.rewrite:
                kept = kept[: len(kept) - len(above)] + tuple(
                    one._replace(at="W") if one.at == "G" else one for one in above
                )
            locked = volume._replace(records=kept or (Record(volume.before, "D"),), owner=number)
            if above and self.rules.heal:
                healing = process._replace(ops=_put(process.ops, at, Op("healing", None)))
                yield f"{me} locks and heals {at}", _with_process(_with_volume(state, at, locked), number, healing)
            else:
                locked = locked._replace(mark=_newest(locked).number)
                yield f"{me} locks and reads {at}", self._has_read(state, number, at, locked)
            return

    def _has_read(self, state: State, number: int, at: int, volume: Volume) -> State:
        process, head = state.processes[number], _newest(volume)
        read = process._replace(heads=_put(process.heads, at, head), log=head.log)
        read = read._replace(ops=_put(process.ops, at, None))
        return _with_process(_with_volume(state, at, volume), number, read)

    def _heal(self, state: State, number: int, at: int, volume: Volume) -> Iterator[tuple[str, State]]:
        for is_synced, after in self._fsync(state, at):
            if is_synced:
                synced = _trimmed(after.volumes[at]._replace(mark=_newest(volume).number))
                yield f"P{number} has healed {at}", self._has_read(after, number, at, synced)
            else:
                failed = state.processes[number]
                failed = failed._replace(ops=_put(failed.ops, at, Op("failed", None)))
                yield f"P{number} fsync FAILS on {at}", _with_process(after, number, failed)

    def _campaign(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        me = f"P{number}"
        have = [one for one in process.heads if one is not None]
        unread = [
            at
            for at, volume in enumerate(state.volumes)
            if process.heads[at] is None and process.ops[at] is None and not volume.standing
        ]
        if len(have) < self.majority or (self.rules.read_all and unread):
            if not unread:
                yield f"{me} cannot read a majority", self._ended(state, number, False)
            return
        best = max((one.log for one in have), key=rank) if self.rules.best_log else process.log
        newest = max(one.term for one in have)
        is_own = all(one.writer == process.leader for one in have) or not self.rules.forget
        if (process.term and is_own) or not self.rules.own_vote:
            term = process.term if process.term else newest
            leader = process.leader or _writer(number, process)
            led = process._replace(phase="leads", term=term, leader=leader, log=best, ops=(None,) * self.count)
            yield f"{me} goes on in term {term}", _with_process(state, number, led)
            return
        term = newest + 1
        log = best if self.rules.vote_alone else entry_after(best, term, f"P{number}.{process.session}")
        voting = process._replace(phase="votes", term=term, leader=_writer(number, process), log=log)
        yield f"{me} votes in term {term}", self._send(state, number, voting)

    def _propose(self, state: State, number: int, process: Process) -> tuple[str, State]:
        new = entry_after(process.log, process.term, f"P{number}.{process.session}.{state.left.proposals}")
        if TERM[new] < TERM[process.log]:
            raise Violation("TERM")
        writing = process._replace(phase="writes", log=new)
        return f"P{number} proposes {INDEX[new]}", self._send(_spend(state, "proposals"), number, writing)

    def _send(self, state: State, number: int, process: Process) -> State:
        """Begin to append to each volume whose head is known."""
        commit = max((one.commit for one in process.heads if one), key=INDEX.__getitem__)
        commit = max(commit, process.acked, key=INDEX.__getitem__)
        ops: list[Op | None] = []
        puts = set(state.puts)
        is_bucket = self.budget.kind == "bucket"
        for at, read in enumerate(process.heads):
            if read is None:
                ops.append(None)
                continue
            head = Head(read.number + 1, process.term, process.leader, process.log, commit)
            ops.append(Op("sent" if is_bucket else "queued", head))
            if is_bucket:
                puts.add(Put(number, process.session, at, head))
        return _with_process(state, number, process._replace(ops=tuple(ops)))._replace(puts=frozenset(puts))

    def _answered(self, state: State, number: int, at: int, stage: str) -> State:
        """An append has ended on a volume: count the volumes, and go on."""
        process = state.processes[number]
        op = process.ops[at]
        assert op is not None
        process = process._replace(
            ops=_put(process.ops, at, op._replace(stage=stage)),
            heads=_put(process.heads, at, op.head if stage == "stored" else None),
        )
        state = _with_process(state, number, process)
        is_stored = [one is not None and one.stage == "stored" for one in process.ops]
        if process.phase in ("votes", "writes"):
            hopeful = sum(one is not None and (one.stage == "stored" or one.stage in ACTIVE) for one in process.ops)
            if sum(is_stored) >= self.quorum:
                if process.phase == "writes" or not self.rules.vote_alone:
                    state = state._replace(promised=state.promised | {process.log})
                    process = process._replace(acked=process.log)
                state = _with_process(state, number, process._replace(phase="leads"))
            elif hopeful < self.quorum or (stage == "refused"):
                return self._ended(state, number, False)
        if all(is_stored) and state.faulty >= 0 and not state.volumes[state.faulty].standing:
            state = state._replace(faulty=-1)
        return state

    # --- the register of a disk

    def _append_on_disk(
        self, state: State, number: int, process: Process, at: int, op: Op
    ) -> Iterator[tuple[str, State]]:
        me, volume = f"P{number}", state.volumes[at]
        assert op.head is not None
        if volume.standing or volume.owner != number:
            yield f"{me} cannot reach {at}", self._answered(state, number, at, "failed")
        elif op.stage == "queued":
            if any(one is not None and one.stage == "queued" for one in process.ops[:at]):
                return  # by symmetry volumes are written in the order of their numbers
            mark = volume.mark if self.rules.mark_last else op.head.number
            records = (*volume.records, Record(op.head, "W"))
            written = process._replace(ops=_put(process.ops, at, op._replace(stage="written")))
            state = _with(state, at, records=records, mark=mark)
            yield f"{me} writes to {at}", _with_process(state, number, written)
        elif op.stage == "written":
            for is_synced, after in self._fsync(state, at):
                if is_synced:
                    synced = process._replace(ops=_put(process.ops, at, op._replace(stage="fsynced")))
                    yield f"{me} fsyncs {at}", _with_process(after, number, synced)
                else:
                    yield f"{me} fsync FAILS on {at}", self._answered(after, number, at, "failed")
        else:
            marked = _trimmed(volume._replace(mark=op.head.number))
            yield f"{me} marks {at}", self._answered(_with_volume(state, at, marked), number, at, "stored")

    def _fsync(self, state: State, at: int) -> Iterator[tuple[bool, State]]:
        """Records become durable, and the mark as it was written before."""
        volume = state.volumes[at]
        done = tuple(one._replace(at="D") if one.at == "W" else one for one in volume.records)
        yield True, _with(state, at, records=done, disk_mark=volume.mark)
        if state.left.failed_fsyncs:
            given_up = tuple(one._replace(at="G") if one.at == "W" else one for one in volume.records)
            yield False, _with(_spend(state, "failed_fsyncs"), at, records=given_up)

    def _is_damaged(self, volume: Volume) -> bool:
        """Return whether a record is bad that does not count as torn."""
        above = _above(volume)
        below = volume.records[: len(volume.records) - len(above)]
        counts = (*(below if self.rules.damage else ()), *(() if self.rules.drop else above))
        return any(one.is_bad for one in counts)

    # --- the register of a bucket

    def _create(self, state: State, put: Put) -> Iterator[tuple[str, State]]:
        volume = state.volumes[put.volume]
        process = state.processes[put.process]
        op = process.ops[put.volume]
        waits = process.session == put.session and op == Op("sent", put.head)
        after = state._replace(puts=state.puts - {put})
        label = f"put of P{put.process} to {put.volume}"
        if volume.standing:
            yield f"{label} fails", self._answered(after, put.process, put.volume, "failed") if waits else after
            return
        newest = _newest(volume)
        if newest.number + 1 == put.head.number or not self.rules.compare:
            head = put.head._replace(number=newest.number + 1)
            after = _with(after, put.volume, records=(Record(head, "D"),), before=newest)
            counts = True
            lost = self._answered(after, put.process, put.volume, "failed") if waits else after
            yield f"{label} is carried out, the answer is lost", lost
        elif put.head.number <= volume.lowest:
            counts = not self.rules.look  # the number was deleted: it is created again, and nobody will read it
        else:
            counts = not self.rules.own_put and newest.term == put.head.term
        if waits:
            stage = "stored" if counts else "refused"
            yield f"{label}: {stage}", self._answered(after, put.process, put.volume, stage)
        elif not counts:
            yield f"{label} comes late, and is refused", after

    # --- a reader

    def _reader(self, state: State) -> Iterator[tuple[str, State]]:
        if state.reader is None:
            if state.left.reads:
                owed = max(state.promised, key=INDEX.__getitem__)
                yield "a reader begins", _spend(state, "reads")._replace(reader=(None,) * self.count, owed=owed)
            return
        for at, volume in enumerate(state.volumes):
            if state.reader[at] is not None or volume.standing or self._is_damaged(volume):
                continue
            is_settled = state.faulty < 0 and not (self.rules.doubt and _above(volume))
            read = state._replace(reader=_put(state.reader, at, _marked(volume)), owed=state.owed if is_settled else 0)
            yield f"the reader reads {at}", read
        have = [one for one in state.reader if one is not None]
        if len(have) < self.majority:
            return
        seen = self._proven(have)
        # A log that goes beyond what is proven tells of a change of leaders: such a reader leads once.
        is_sure = len(have) == self.count and seen == max((one.log for one in have), key=rank)
        self.doing = f"the reader sees {INDEX[seen]}"
        if state.owed and is_sure and not is_prefix(state.owed, seen):
            raise Violation("READER")
        yield self.doing, state._replace(reader=None, owed=0, promised=state.promised | {seen})

    def _proven(self, heads: list[Head]) -> int:
        """Return the last entry that these heads prove committed."""
        if self.count == 1:
            return heads[0].log
        seen = max((one.commit for one in heads), key=INDEX.__getitem__)
        for entry in {entry for head in heads for entry in LOG[head.log]}:
            copies = [one for one in heads if is_prefix(entry, one.log)]
            votes = [one for one in copies if one.term == TERM[entry] or not self.rules.own_term]
            if len(votes) >= self.quorum and INDEX[entry] > INDEX[seen]:
                seen = entry
        return seen

    # --- faults

    def _power_loss(self, state: State) -> Iterator[tuple[str, State]]:
        """All processes are gone; each thing that is not durable has each of its fates."""
        self.doing = "power loss"
        ended = _spend(state, "power_losses")._replace(reader=None, owed=0)
        for number in range(len(state.processes)):
            ended = self._ended(ended, number, False)
        for volumes in product(*(list(self._fates(one)) for one in state.volumes)):
            yield "power loss", ended._replace(volumes=volumes)

    def _fates(self, volume: Volume) -> Iterator[Volume]:
        torn_mark = set() if self.rules.two_slots or volume.mark == volume.disk_mark else {0}
        fates = {"D": ("kept",), "W": ("kept", "torn", "lost"), "G": ("torn", "lost")}
        for chosen in product(*(fates[one.at] for one in volume.records)):
            records = [
                one._replace(at="D", is_bad=one.is_bad or fate != "kept")
                for one, fate in zip(volume.records, chosen, strict=True)
            ]
            while len(records) > 1 and chosen[len(records) - 1] == "lost":
                records.pop()
            for mark in {volume.mark, volume.disk_mark} | torn_mark:
                if mark < volume.disk_mark:
                    raise Violation("MARK")
                after = volume._replace(records=tuple(records), mark=mark, disk_mark=mark, owner=-1)
                if self.rules.mark_last and self._is_damaged(after) and not self._is_damaged(volume):
                    raise Violation("REFUSED")
                yield after

    def _fault(self, state: State) -> Iterator[tuple[str, State]]:
        spent = _spend(state, "volume_faults")
        is_quiet = all(one.phase == "idle" for one in state.processes) and not state.puts
        for at, volume in enumerate(state.volumes):
            faulty = spent._replace(faulty=at)
            if "lost" in self.budget.faults:
                yield f"volume {at} is lost", _with(faulty, at, standing="lost", owner=-1)
            if "back" in self.budget.faults and volume.before != _newest(volume):
                if self.budget.kind == "disk" or is_quiet:
                    number = volume.before.number
                    records = (Record(volume.before, "D"),)
                    back = _with(faulty, at, records=records, mark=number, disk_mark=number, owner=-1, lowest=1)
                    yield f"volume {at} is put back", back
            if "damaged" in self.budget.faults and self.budget.kind == "disk":
                for place, record in enumerate(volume.records):
                    # A single volume takes a damaged record that the durable mark does not cover for a torn one.
                    if record.at == "D" and (self.count > 1 or record.head.number <= volume.disk_mark):
                        records = _put(volume.records, place, record._replace(is_bad=True))
                        yield f"record {place} of {at} is damaged", _with(faulty, at, records=records)


# --- parts of a state


def _newest(volume: Volume) -> Head:
    """The head of a volume, durable or not."""
    return next((one.head for one in reversed(volume.records) if not one.is_bad), volume.before)


def _above(volume: Volume) -> tuple[Record, ...]:
    """The records above the mark."""
    return tuple(one for one in volume.records[1:] if one.head.number > volume.mark)


def _marked(volume: Volume) -> Head:
    """The head that readers see."""
    return volume.records[-1 - len(_above(volume))].head


def _trimmed(volume: Volume) -> Volume:
    """Forget the records that both marks cover, but the last of them, so that equal states are equal."""
    covered = [place for place, one in enumerate(volume.records) if one.head.number <= volume.disk_mark]
    if not covered or not covered[-1] or any(one.is_bad for one in volume.records):
        return volume
    last = covered[-1]
    return volume._replace(records=volume.records[last:], before=volume.records[last - 1].head)


def _writer(number: int, process: Process) -> int:
    return (number + 1) * 100 + process.session


def _put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _with(state: State, at: int, **changes: Any) -> State:
    return _with_volume(state, at, state.volumes[at]._replace(**changes))


def _with_volume(state: State, at: int, volume: Volume) -> State:
    return state._replace(volumes=_put(state.volumes, at, volume))


def _with_process(state: State, number: int, process: Process) -> State:
    return state._replace(processes=_put(state.processes, number, process))


def _spend(state: State, what: str) -> State:
    return state._replace(left=state.left._replace(**{what: getattr(state.left, what) - 1}))


# --- the search


@cache
def search(rules: Rules, budget: Budget, states_max: int = 2_000_000) -> Outcome:
    """Try everything within the budget, breadth first; stop at the first violation."""
    return exhaust(Registers(rules, budget), states_max)


def weakened(**rules: bool) -> Rules:
    """Return the protocol without some of its rules."""
    return replace(Rules(), **rules)
