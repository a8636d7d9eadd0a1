"""What decision.py decides is what the model decides, in thousands of situations that the model gets into.

Walks at random, by the protocol and by the protocol without one of its rules, come to states in which a process has
its locks and reads. Such a state is written out as the metadata files of real volumes; the log reader reads them, and
decision.py and the model's `decide` judge the same contents by two versions of the same rules.
"""

import itertools
import random
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from ensemble import Ensemble
from ensemble_rules import Decision, LogContents, Rules, decide, weakened
from ensemble_state import Budget, N, State
from ensemble_volume import BAD, Record, Volume, read
from entries import INDEX, LOG, PARENT, STATED, TERM, entry_after, is_prefix
from harness.simulated_disk import SimulatedDisk
from search import Violation

from storage_core.errors import CorruptionError, NoQuorumError
from storage_core.metadata.commands import Envelope, Init, NoOp, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings
from storage_core.raft import log_format
from storage_core.raft.entry import CHAIN_START, CommitRecord, Entry, Vote, make_entry
from storage_core.raft.log_format import PAGE_SIZE, SegmentHeader
from storage_core.store.ensemble import decision as real
from storage_core.store.ensemble.decision import LockContention, VolumeLogRead
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log import VolumeLog
from storage_core.store.volume.log_contents import LogContents as RealEvidence
from storage_core.store.volume.state import VolumeState

IDS = [bytes([65 + number]) * 16 for number in range(N)]
INSTANCE = b"I" * 16
GARBAGE = b"\x5a" * PAGE_SIZE
BUDGETS = (
    Budget(("a,b", "c,d"), 9, kills=2, power_losses=2, failed_fsyncs=1, volume_faults=3, one_by_one=True),
    Budget(("a,b,c", "d"), 9, kills=1, interrupts=2, power_losses=1, volume_faults=3, absences=3),
)


# --- situations


def situations(rules: Rules, budget: Budget, seed: int, step_count: int) -> Iterator[tuple[State, int]]:
    """Go at random; yield each state in which a process has its locks and is about to read, and the process."""
    choose, taken = random.Random(seed), 0
    model = Ensemble(rules, budget)
    while taken < step_count:
        state = model.check(model.initial())
        often = choose.choice((0.05, 0.1, 0.3))
        try:
            while taken < step_count and (possible := list(model.steps(state))):
                wild = [one for one in possible if one[0][0] != "P" or one[0].isupper()]
                calm = [one for one in possible if one not in wild]
                state = choose.choice(wild if wild and (not calm or choose.random() < often) else calm)[1]
                taken += 1
                yield from ((state, at) for at, process in enumerate(state.processes) if process.at == "reading")
                state = model.check(state)
        except Violation:
            continue


# --- as files


@cache
def real_entry(entry: int) -> Entry:
    before = real_entry(PARENT[entry]).chain if PARENT[entry] else CHAIN_START
    voters = tuple(Voter(one, INSTANCE, ".") for one in IDS)
    command = NoOp() if PARENT[entry] else Init(b"S" * 16, StoreSettings(), voters, "here", "host")
    stated = {IDS[at]: index for at, index in enumerate(STATED[entry]) if index}
    payload = encode_envelope(Envelope(entry, command, stated))
    return make_entry(before, INDEX[entry], TERM[entry], b"history%d" % (TERM[entry] % 10), payload)


@cache
def real_contents(number: int, records: tuple[Record, ...], commit: int, named: tuple[int, ...]) -> RealEvidence:
    """Return what the log reader makes of these records."""
    identity = VolumeIdentity(b"S" * 16, IDS[number], INSTANCE, 1)
    data = bytearray(SegmentHeader(b"S" * 16, IDS[number], INSTANCE, 1, 0, 0, CHAIN_START).encode())
    data += bytes(2 * PAGE_SIZE)
    if commit:
        page = log_format.encode_commit_record(commit_record(commit, named)) if commit > 0 else GARBAGE
        at = log_format.slot_offset(INDEX[commit] if commit > 0 else 1)
        data[at : at + PAGE_SIZE] = page
    for record in records:
        if record.kind == "B":
            data += GARBAGE
        elif record.kind == "V":
            data += log_format.encode_batch([Vote(record.what, b"candidate %06d" % record.who)], len(data))
        else:
            data += log_format.encode_batch([real_entry(record.what)], len(data))
    disk = SimulatedDisk()
    files, volume = disk.process(), Path("/disk/volume")
    for directory in (volume, volume / "meta"):
        files.make_directory(directory)
    file = files.create(volume / "meta" / f"{1:016x}.log")
    file.write_at(0, bytes(data))
    file.close()
    return VolumeLog(files, volume, identity).read()


def commit_record(entry: int, named: tuple[int, ...]) -> CommitRecord:
    return CommitRecord(
        INDEX[entry], TERM[entry], INDEX[entry], real_entry(entry).chain, tuple(IDS[one] for one in named)
    )


def is_read(volume: Volume) -> bool:
    """Return whether a volume says anything: one that was made blank is no volume of the store until it is taken in."""
    return volume.is_there and volume.standing != "blank" and bool(volume.records)


def found(state: State, process: int) -> list[VolumeLogRead]:
    result = []
    for at, volume in enumerate(state.volumes):
        one = VolumeLogRead(IDS[at], f"volume {at}", INSTANCE)
        if is_read(volume):
            contents = real_contents(at, volume.records, volume.commit, volume.named)
            locked = volume.holder == process
            one = VolumeLogRead(IDS[at], f"volume {at}", INSTANCE, contents, locked=locked, busy=not locked)
        result.append(one)
    return result


def voters(state: State) -> list[Voter]:
    return [
        Voter(IDS[at], INSTANCE, ".", retired="an fsync failed" if volume.standing == "retired" else "")
        for at, volume in enumerate(state.volumes)
    ]


def modelled(state: State, process: int) -> Decision:
    contents = {
        at: LogContents(read(one.records), max(one.commit, 0), one.standing, one.holder == process, one.named)
        for at, one in enumerate(state.volumes)
        if is_read(one)
    }
    return decide(Rules(), contents, N)


# --- the same


def check_same(state: State, process: int) -> str:
    """Compare the two; return the verdict."""
    expected = modelled(state, process)
    at_hand, known = found(state, process), voters(state)
    examined = real.examine(at_hand, known)
    tasks = {at: task for at, task in enumerate(expected.tasks) if task is not None}
    statuses = [examined.statuses[one] for one in IDS]
    votes = {at for at, task in tasks.items() if task.votes}
    assert bool(examined.split) == expected.split
    assert expected.split or {at for at, one in enumerate(statuses) if one.votes} == votes
    verdict = "goes on"
    if expected.split:
        verdict = "is torn between two copies"
        busy = any(one.contents is not None and one.busy for one in at_hand)
        with pytest.raises(LockContention if busy else NoQuorumError):
            real.decide(at_hand, known)
    elif len(votes) < 2:
        busy = any(one.contents is not None and one.busy for one in at_hand)
        verdict = "backs off" if busy else "refuses"
        with pytest.raises(LockContention if busy else NoQuorumError):
            real.decide(at_hand, known)
    elif not expected.tips:
        verdict = "finds committed entries missing"
        with pytest.raises(CorruptionError):
            real.decide(at_hand, known)
    else:
        (tip,) = expected.tips
        decided = real.decide(at_hand, known)
        assert decided.chosen_log.tip == (INDEX[tip], TERM[tip], real_entry(tip).chain)
        assert [entry.chain for entry in decided.chosen_log.entries] == [real_entry(one).chain for one in LOG[tip]]
        assert decided.term_seen == expected.term
        for at, task in tasks.items():
            volume, status = state.volumes[at], statuses[at]
            if volume.standing == "retired":
                assert not status.written
                continue
            assert (status.written, status.clear_commit_record) == (
                task.takes_part,
                task.takes_part and task.drops_record,
            )
            if status.state == VolumeState.FOREIGN:
                assert not task.takes_part
                continue
            trusted = LOG[max(volume.commit, 0)][: task.trusted_index]
            if status.written and not status.up_to_date:
                assert status.keep_up_to == sum(is_prefix(one, tip) for one in trusted)
            if status.up_to_date:
                assert volume.commit == tip and not read(volume.records).bad
    return verdict


def check_all(what: str, met: Iterator[tuple[State, int]], capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Compare the two in each situation once; return how often each verdict was come to."""
    seen: dict[object, str] = {}
    for state, process in met:
        situation = (*(one._replace(images=(), blocks=()) for one in state.volumes), process)
        if situation in seen:
            continue
        try:
            seen[situation] = check_same(state, process)
        except AssertionError as error:
            told = "\n".join(str(one) for one in situation)
            raise AssertionError(f"P{process} reads\n{told}\n{error}") from error
    verdicts = {one: list(seen.values()).count(one) for one in sorted(set(seen.values()))}
    with capsys.disabled():
        print(f"\ndecisions, {what}: {len(seen)} situations ({verdicts})", end="")
    return verdicts


def test_both_versions_decide_the_same_where_the_protocol_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    met = itertools.chain.from_iterable(
        situations(Rules(), budget, seed, 10_000) for budget in BUDGETS for seed in range(2)
    )
    verdicts = check_all("all rules", met, capsys)
    assert verdicts["goes on"] > 500


def test_both_versions_decide_the_same_where_a_rule_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    met = itertools.chain.from_iterable(
        situations(weakened(rule), BUDGETS[0], 100 + seed, 1_500)
        for seed, rule in enumerate(Rules.__dataclass_fields__)
    )
    verdicts = check_all("one rule less", met, capsys)
    assert verdicts["goes on"] > 500


# --- situations that nothing leads to


def invented(seed: int, count: int) -> Iterator[tuple[State, int]]:
    """Yield volumes with one committed log, anything above it, and any damage to any of them.

    Some of them are of a copy of the store that was written on by itself.
    """
    choose = random.Random(seed)
    empty = Ensemble(Rules(), Budget()).initial()
    for _ in range(count):
        log, terms = [LOG[empty.promised][0]], [1]
        for _ in range(choose.randint(0, 4)):
            terms.append(terms[-1] + choose.randint(0, 1))
            stated = tuple(choose.choice((0, INDEX[log[-1]])) for _ in range(N))
            log.append(entry_after(log[-1], terms[-1], f"committed {choose.randint(0, 1)}", stated))
        base = choose.randint(1, len(log))
        copy = log[:base]
        for _ in range(choose.randint(1, 3)):
            stated = tuple(choose.choice((0, INDEX[copy[-1]])) for _ in range(N))
            copy.append(entry_after(copy[-1], TERM[copy[-1]] + choose.randint(0, 1), "copied", stated))
        share = choose.choice((0, 0, 0.4))
        volumes = tuple(invented_volume(choose, copy if choose.random() < share else log) for _ in range(N))
        holders = choose.choice(((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)))
        yield (
            empty._replace(
                volumes=tuple(one._replace(holder=holder) for one, holder in zip(volumes, holders, strict=True))
            ),
            0,
        )


def invented_volume(choose: random.Random, log: list[int]) -> Volume:
    kept = log[: choose.choice((len(log), len(log), len(log) - 1, choose.randint(1, len(log))))] or log[:1]
    records = []
    for entry in kept:
        if not records or TERM[entry] > TERM[records[-1].what] or choose.random() < 0.2:
            records.append(Record("V", TERM[entry], choose.randint(0, 1), "D"))
        records.append(Record("E", entry, 0, "D"))
    commit = choose.choice(kept[-2:])
    if kept == log and choose.random() < 0.3:  # what was not committed
        term = TERM[log[-1]] + choose.randint(1, 2)
        records.append(Record("V", term, choose.randint(0, 1), "D"))
        entry = log[-1]
        for _ in range(choose.randint(0, 2)):
            entry = entry_after(entry, term, f"open in term {term}", ())  # by the one who was elected
            records.append(Record("E", entry, 0, "D"))
    for _ in range(choose.choice((0, 0, 1, 1, 2))):
        records[choose.randint(0, len(records) - 1)] = BAD
    standing = choose.choice(("member",) * 6 + ("retired",))
    commit = choose.choice((commit, commit, commit, 0, -1))
    named = tuple(one for one in range(N) if choose.random() < 0.7) if commit > 0 and choose.random() < 0.7 else ()
    return Volume(choose.random() < 0.9, 0, standing, 0, tuple(records), commit, commit, named, named, (), ())


def test_both_versions_decide_the_same_whatever_stands_on_the_volumes(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = check_all("invented", invented(1, 4_000), capsys)
    assert set(verdicts) == {
        "goes on", "backs off", "refuses", "finds committed entries missing", "is torn between two copies",
    }  # fmt: skip


@pytest.mark.soak
def test_both_versions_decide_the_same_for_long(soak_seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    deadline, seed = time.monotonic() + soak_seconds, 1_000
    while time.monotonic() < deadline:
        seed += 1
        check_all(f"seed {seed}", invented(seed, 4_000), capsys)
        for budget in BUDGETS:
            check_all(f"seed {seed}", situations(Rules(), budget, seed, 5_000), capsys)
