"""The protocol of sessions on three volumes, of which one may fail, as a model: processes, turns, faults.

docs/locks-and-stability.md says the rules in words, decision.py and session.py of storage_core/store/ensemble carry
them out, this model says them a third time, without files and threads, so that every order of steps and faults within a
budget can be tried.

    Volume    records, commit record, blocks, lock: ensemble_volume.py.
    Process   locks, reads everything, decides (ensemble_rules.py). Then rounds: the next begins when every call of the
              one before has returned. First each volume that takes part is written (repaired, caught up, rewritten,
              voted on) and fsynced; then the entry is written and fsynced; with a quorum of voters the append is
              acknowledged, and the commit record moves.
    Faults    kill; interrupt (the session ends, the process lives); power loss of everything; and one faulty volume at
    a
              time: its fsync fails, it cannot be reached, comes back blank or as it was before, its last record is
              damaged, or it is that of a copy of the store that was written on by itself. Another one may be faulty
              after a completed repair: a session that ended in the belief that all three volumes are whole.

HISTORY        an entry that was acknowledged, or that a reader could see, is replaced
LOST           a session is about to lead with a log that lacks such an entry
BLOCK-LOST     a committed append has no durable block on any volume
FALSE-CURRENT  a session ends in the belief that all volumes are whole, and one is not durable
REFUSE-HEALTHY no volume is faulty, all that can be reached are locked, and the session refuses
REFUSE-F1      the same with one faulty volume: an outage where an event is promised
READER-ERR     with one faulty volume, an entry below the highest commit record that can be read is not readable
READER-BLIND   with one faulty volume, no commit record can be read
DUPLICATE      one (writer, batch) is stored twice
STUCK          after all faults heal, turns of one process do not make all volumes whole

Left out: segments and snapshots, changes of the store's volumes, more than one host. By symmetry volumes are written in
the order of their ids within a round, and fsynced in any order.
"""

from collections.abc import Iterator

from ensemble_faults import faults, made_anew, still_holds, tasks_of
from ensemble_rules import NOT_WRITTEN, Decision, LogContents, Rules, decide
from ensemble_state import (
    FAILED,
    NONE,
    OUT,
    QUORUM,
    READY,
    SENT,
    STORED,
    WRITTEN,
    Budget,
    Left,
    N,
    Process,
    State,
    at_rest,
    down,
    effective,
    put,
    spend,
    unlocked,
    with_process,
    with_volume,
)
from ensemble_volume import Block, Record, Volume, durable_log, failed_fsync, fsynced, read, recorded
from entries import INDEX, LOG, STATED, WHAT, entry_after, is_prefix
from search import Violation


class Ensemble:
    """Steps from state to state."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self.rules, self.budget = rules, budget
        self.doing = ""
        self.checked = 0

    def initial(self) -> State:
        first = entry_after(0, 1, "init", (0,) * N)
        records = (Record("V", 1, 9, "D"), Record("E", first, 0, "D"))
        blocks = (Block("init", "D"),) if self.budget.blocks else ()
        volume = Volume(True, 0, "member", -1, records, first, first, (), (), blocks, ())
        one = self.budget
        left = Left(
            one.turns, one.kills, one.interrupts, one.power_losses, one.failed_fsyncs, one.volume_faults, one.absences
        )
        processes = tuple(at_rest(tuple(jobs.split(",")), 0) for jobs in one.jobs)
        return State((volume,) * N, processes, -1, first, left)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, process in enumerate(state.processes):
            if process.at == "idle":
                yield from self._begin(state, number, process)
            elif process.at == "locking":
                yield from self._lock_next(state, number, process)
            elif process.at == "reading":
                yield from self._read(state, number, process)
            else:
                yield from self._work(state, number, process)
            if state.left.kills and (process.at != "idle" or process.term):
                dead = at_rest(process.jobs, process.attempt)
                killed = unlocked(with_process(spend(state, "kills"), number, dead), number)
                yield f"P{number} KILLED", killed
            if state.left.interrupts and process.at == "writing":
                yield f"P{number} INTERRUPTED", self._give_up(spend(state, "interrupts"), number, process)
        yield from faults(self.rules, state)

    # --- what must hold in every state

    def check(self, state: State) -> State:
        promised = state.promised
        for volume in state.volumes:
            if not volume.is_fork and not is_prefix(max(volume.commit, 0), promised):
                if not is_prefix(promised, volume.commit):
                    raise Violation("HISTORY")
                promised = volume.commit
        there = [one for one in state.volumes if one.is_there and not one.is_fork]
        top = max((one.commit for one in there if one.commit > 0), key=INDEX.__getitem__, default=0)
        if len(down(state)) <= N - QUORUM:
            if not top:
                raise Violation("READER-BLIND")
            readable = {record.what for one in there for record in one.records if record.kind == "E"}
            if not readable.issuperset(LOG[top]):
                raise Violation("READER-ERR")
        if self.budget.blocks:
            durable = {block.name for one in state.volumes for block in one.blocks if block.at == "D"}
            if not durable.issuperset(effective(promised)[0]):
                raise Violation("BLOCK-LOST")
        state = state._replace(promised=promised)
        self.checked += 1
        if self.budget.heal_every and self.checked % self.budget.heal_every == 0:
            self._heal(state)
        return state

    def _heal(self, state: State) -> None:
        """All faults heal, every process is gone: turns of a single new one make everything whole."""
        volumes = tuple(
            made_anew(one) if one.is_fork else one._replace(is_there=True, holder=-1) for one in state.volumes
        )
        left = Left(3, 0, 0, 0, 0, 0, 0)
        state = State(volumes, (at_rest(("x", "y", "z"), 1_000),), state.faulty, state.promised, left)
        alone = Ensemble(self.rules, Budget(("",)))
        while following := list(alone.steps(state)):
            # Writes of all volumes come first, then fsyncs: what is left out of a round is left out for good.
            state = alone.check(min(following, key=lambda one: "fsync" in one[0])[1])
        if state.processes[0].jobs or state.faulty >= 0:
            raise Violation("STUCK")

    # --- locks

    def _begin(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        if not process.jobs or not state.left.turns:
            return
        job = process.jobs[0]
        if self.budget.blocks and not job.startswith("-") and not process.took:
            yield from tasks_of(state, number, process, job)
        elif self.budget.one_by_one:
            yield from self._lock_next(state, number, process._replace(at="locking", asked=0))
        else:
            free = [at for at, one in enumerate(state.volumes) if one.is_there and one.holder < 0]
            if len(free) >= QUORUM:
                volumes = tuple(
                    one._replace(holder=number) if at in free else one for at, one in enumerate(state.volumes)
                )
                locked = with_process(state, number, process._replace(at="reading"))._replace(volumes=volumes)
                yield f"P{number} locks {free}", locked

    def _lock_next(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        at = process.asked
        if at < N:
            asked = process._replace(at="locking", asked=at + 1)
            volume = state.volumes[at]
            if volume.is_there and volume.holder < 0:
                yield (
                    f"P{number} locks {at}",
                    with_volume(with_process(state, number, asked), at, volume._replace(holder=number)),
                )
            else:
                yield f"P{number} cannot lock {at}", with_process(state, number, asked)
        elif sum(one.holder == number for one in state.volumes) >= QUORUM:
            yield f"P{number} has a majority", with_process(state, number, process._replace(at="reading", asked=0))
        else:
            yield f"P{number} backs off", self._ended(state, number, process)

    # --- reading and deciding

    def _read(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        self.doing = f"P{number} reads"
        contents = {}
        for locked in (True, False):
            for at, one in enumerate(state.volumes):
                if one.is_there and (one.holder == number) == locked and (locked or self.rules.peek):
                    contents[at] = LogContents(read(one.records), max(one.commit, 0), one.standing, locked, one.named)
        decision = decide(self.rules, contents, N)
        state = spend(state, "turns")
        voters = [at for at, task in enumerate(decision.tasks) if task is not None and task.votes]
        if len(voters) < QUORUM or not decision.tips:
            yield self._refusal(state, number, process)
            return
        for tip in decision.tips:
            leads = self._leading(number, process, decision, tip, contents)
            how = f"elected in term {leads.term}" if leads.election else f"in term {leads.term}"
            self.doing = f"P{number} leads {how} with entry {INDEX[tip]}, voters {voters}"
            if not is_prefix(state.promised, tip):
                raise Violation("LOST")
            yield self.doing, with_process(state, number, leads)

    def _refusal(self, state: State, number: int, process: Process) -> tuple[str, State]:
        """Too few voters: a back-off where somebody else has a lock, an error where not."""
        others = any(one.is_there and one.holder != number for one in state.volumes)
        if not others and self.rules.read_all and len(down(state)) <= N - QUORUM:
            raise Violation("REFUSE-F1" if down(state) else "REFUSE-HEALTHY")
        return f"P{number} refuses", self._ended(state, number, process)

    def _leading(
        self, number: int, process: Process, decision: Decision, tip: int, contents: dict[int, LogContents]
    ) -> Process:
        """Return the process with what it is going to do in this session."""
        is_mine = process.term and decision.term == process.term and decision.candidates <= {number}
        synced = tuple(
            entry if (is_mine or not self.rules.forget) and not (at in contents and contents[at].found.bad) else 0
            for at, entry in enumerate(process.synced)
        )
        tasks = tuple(task or NOT_WRITTEN for task in decision.tasks)
        return process._replace(
            at="writing",
            term=process.term if is_mine else decision.term + 1,
            election=not is_mine,
            synced=synced,
            attempt=process.attempt + 1,
            stages=tuple(NONE if task.takes_part else OUT for task in tasks),
            tasks=tasks,
            tip=tip,
            new=0,
            recorded=frozenset(),
        )

    # --- writing

    def _work(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        """A call on one volume returns; or all of a round have, and the next one begins."""
        for at, stage in enumerate(process.stages):
            yield from self._work_on(state, number, process, at, stage)
        if process.at == "recording" or (process.new and not self.rules.record_after_fsync):
            yield from self._record(state, number, process)
        if process.at == "writing" and self._round_is_over(process):
            voters = [stage for stage, task in zip(process.stages, process.tasks, strict=True) if task.votes]
            if sum(stage >= (STORED if process.new else WRITTEN) for stage in voters) < QUORUM:
                yield f"P{number} gives up", self._give_up(state, number, process)
            elif process.new:
                yield self._acknowledge(state, number, process)
            else:
                yield from self._propose(state, number, process)

    def _work_on(self, state: State, number: int, process: Process, at: int, stage: int) -> Iterator[tuple[str, State]]:
        """What may happen next to one volume. Those before it in the order of ids are written first."""
        unwritten = {NONE, WRITTEN, READY} if process.new else {NONE}
        to_write, to_fsync = stage in unwritten, stage in (WRITTEN, SENT)
        if (to_write or to_fsync) and not state.volumes[at].is_there:
            yield f"P{number} I/O error on {at}", self._failed(state, number, process, at)
            return
        if to_fsync:
            yield from self._fsync(state, number, process, at)
        if to_write and unwritten.isdisjoint(process.stages[:at]):
            yield self._write(state, number, process, at)

    def _round_is_over(self, process: Process) -> bool:
        """Return whether every call of the round has returned."""
        under_way = {NONE, WRITTEN, READY, SENT} if process.new else {NONE, WRITTEN}
        if process.election and not process.new and not self.rules.vote_first:
            under_way = {NONE}
        return under_way.isdisjoint(process.stages)

    def _write(self, state: State, number: int, process: Process, at: int) -> tuple[str, State]:
        if not process.new:
            written = with_process(state, number, process._replace(stages=put(process.stages, at, WRITTEN)))
            return f"P{number} prepares {at}", with_volume(written, at, self._prepared(state, number, process, at))
        volume = state.volumes[at]
        records = (*volume.records, Record("E", process.new, 0, "W"))
        sent = with_process(state, number, process._replace(stages=put(process.stages, at, SENT)))
        return f"P{number} writes the entry on {at}", with_volume(sent, at, volume._replace(records=records))

    def _prepared(self, state: State, number: int, process: Process, at: int) -> Volume:
        """Return the volume repaired, caught up, with everything in doubt written anew, and voted on."""
        volume, task, log = state.volumes[at], process.tasks[at], LOG[process.tip]
        records = []
        there = read(volume.records).entries
        for record in volume.records:
            in_doubt = (
                record.kind == "E"
                and record.what in log
                and INDEX[record.what] > task.trusted_index
                and not is_prefix(record.what, process.synced[at])
                and self.rules.rewrite
            )
            if in_doubt and (record.at == "G" or not self.rules.keep_old):
                record = record._replace(at="W")
            records.append(record)
        if len(there) > len(log) and there[: len(log)] == log:  # what follows is on no better log, and goes
            records = [one for one in records if one.kind != "E" or INDEX[one.what] <= len(log)]
        records += [Record("E", entry, 0, "W") for entry in log if entry not in there]
        if process.election:
            records.append(Record("V", process.term, number, "W"))
        blocks = volume.blocks
        if self.budget.blocks:
            missing = set(effective(process.tip)[0]) - {one.name for one in blocks}
            found = {block.name for one in state.volumes if one.is_there for block in one.blocks}
            blocks = tuple(sorted((*blocks, *(Block(name, "W") for name in missing & found))))
        volume = volume._replace(records=tuple(records), blocks=blocks)
        return recorded(volume, -1) if task.drops_record else volume

    def _fsync(self, state: State, number: int, process: Process, at: int) -> Iterator[tuple[str, State]]:
        volume, is_entry = state.volumes[at], process.stages[at] == SENT
        stage, entry = (STORED, process.new) if is_entry else (READY, process.tip)
        done = process._replace(stages=put(process.stages, at, stage), synced=put(process.synced, at, entry))
        images = self.budget.images if self.budget.volume_faults else 0
        yield f"P{number} fsyncs {at}", with_volume(with_process(state, number, done), at, fsynced(volume, images))
        if state.left.failed_fsyncs and state.faulty in (-1, at):
            spent = spend(state, "failed_fsyncs")._replace(faulty=at)
            failed = self._failed(spent, number, process, at)
            yield f"P{number} fsync of {at} FAILS", with_volume(failed, at, failed_fsync(volume))

    def _failed(self, state: State, number: int, process: Process, at: int) -> State:
        """The volume is left out for the rest of the session."""
        left_out = process._replace(stages=put(process.stages, at, FAILED), synced=put(process.synced, at, 0))
        return with_process(state, number, left_out)

    def _propose(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        job, tip = process.jobs[0], process.tip
        recorded = max((one.commit for one in state.volumes if one.holder == number), default=0)
        what = "noop" if job in effective(tip if self.rules.whole_log else max(recorded, 0))[0] else job
        if self.budget.blocks and what == job and not job.startswith("-"):
            good = [
                at
                for at, instance in process.took
                if not self.rules.blank_waits or still_holds(state.volumes[at], instance, job)
            ]
            if len(good) < QUORUM:
                yield f"P{number} misses blocks, gives up", self._give_up(state, number, process._replace(took=()))
                return
        before = STATED[tip] or (0,) * N
        stated = tuple(max(before[at], INDEX[tip] if stage == READY else 0) for at, stage in enumerate(process.stages))
        new = entry_after(tip, process.term, f"{what}#{number}.{process.attempt}", stated)
        yield f"P{number} proposes {what}", with_process(state, number, process._replace(new=new))

    def _acknowledge(self, state: State, number: int, process: Process) -> tuple[str, State]:
        self.doing = f"P{number} acknowledges {WHAT[process.new].split('#')[0]}"
        if not is_prefix(state.promised, process.new):
            raise Violation("HISTORY")
        stored = effective(process.new)[0]
        if len(set(stored)) < len(stored):
            raise Violation("DUPLICATE")
        acked = process._replace(at="recording", jobs=process.jobs[1:], took=())
        return self.doing, with_process(state, number, acked)._replace(promised=process.new)

    def _record(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        """The commit record moves on; written, not fsynced."""
        where = [
            at
            for at, stage in enumerate(process.stages)
            if at not in process.recorded and state.volumes[at].is_there
            and (stage == STORED or (stage != OUT and not self.rules.record_where_fsynced)
                 or (stage == SENT and not self.rules.record_after_fsync))
        ]  # fmt: skip
        for at in where[:1]:
            done = process._replace(recorded=process.recorded | {at})
            named = tuple(one for one, stage in enumerate(process.stages) if stage == STORED)
            volume = state.volumes[at]._replace(commit=process.new, named=named)
            yield f"P{number} records on {at}", with_volume(with_process(state, number, done), at, volume)
        if process.at == "recording" and not where:
            self.doing = f"P{number} lets go"
            yield self.doing, self._finished(state, number, process)

    # --- the end of a session

    def _finished(self, state: State, number: int, process: Process) -> State:
        """Volumes that failed are retired, those that took everything are members; all whole: a repair is complete."""
        stored, aborted = effective(process.new)
        volumes = []
        for stage, volume in zip(process.stages, state.volumes, strict=True):
            if stage == FAILED and volume.is_there and volume.holder == number and volume.standing == "member":
                volume = volume._replace(standing="retired")
            elif stage == STORED and volume.is_there:
                volume = volume._replace(standing="member")
            if stage == STORED:
                kept = tuple(one for one in volume.blocks if one.name not in aborted)
                volume = volume._replace(blocks=kept)
            volumes.append(volume)
        state = state._replace(volumes=tuple(volumes))
        needed = set(stored) if self.budget.blocks else set()
        if all(
            stage == STORED and one.is_there and needed.issubset({block.name for block in one.blocks})
            for stage, one in zip(process.stages, volumes, strict=True)
        ):
            if any(one.is_fork or durable_log(one).entries != LOG[process.new] for one in volumes):
                raise Violation("FALSE-CURRENT")
            state = state._replace(faulty=-1)
        return self._ended(state, number, process)

    def _give_up(self, state: State, number: int, process: Process) -> State:
        """What was written may be there or not; the process lives on."""
        if self.rules.give_up:
            process = process._replace(term=0)
        if not self.rules.abort_first and process.jobs[0].startswith("-"):
            name = process.jobs[0][1:]
            volumes = tuple(
                one._replace(blocks=tuple(block for block in one.blocks if block.name != name)) for one in state.volumes
            )
            state = state._replace(volumes=volumes)
        return self._ended(state, number, process)

    def _ended(self, state: State, number: int, process: Process) -> State:
        kept = at_rest(process.jobs, process.attempt)
        kept = kept._replace(term=process.term, synced=process.synced, took=process.took)
        return unlocked(with_process(state, number, kept), number)
