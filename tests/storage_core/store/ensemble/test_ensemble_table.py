"""The tables of docs/locks-and-stability.md about several volumes: what is decided about each, and about the store.

The tables are read from the document. Every combination of answers is generated, shown to match exactly one row (or to
be on the short list of those that cannot be), built as contents, and given to decision.py; what a session then does
with files is looked at for each verdict.
"""

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, NoQuorumError, StorageError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.metadata.commands import AddStream, Envelope, Init, NoOp, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.raft.entry import CHAIN_START, CommitRecord, Entry, make_entry
from storage_core.store.ensemble.creation import create_volumes
from storage_core.store.ensemble.decision import LockContention, LogDecision, VolumeLogRead, decide, examine
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.volume.log_contents import FirstDamage, LogContents, LogPosition

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "locks-and-stability.md"
Case = dict[str, str]
Columns = Mapping[str, tuple[str, ...]]

ONE: Columns = {
    "volume": ("nothing", "unreadable", "another instance", "retired", "read"),
    "branch": ("ours", "another"),
    "end": ("stated", "below"),
    "bad": ("none", "marked", "followed", "last"),
    "copy": ("yes", "no"),
    "silent": ("few", "many"),
}
LOCKS = ("ours", "theirs")
ALL: Columns = {
    "branches": ("one", "split"),
    "votes": ("quorum", "fewer"),
    "busy": ("yes", "no"),
    "record": ("held", "above"),
    "step": ("all", "some"),
}
LAST, COMMITTED, STATED = 6, 4, 3
HERE = Environment(lock_domain=lambda: "here", sleep=lambda _: None)


# --- the document


def rows_of(columns: Columns, verdict: str) -> list[tuple[dict[str, set[str]], str]]:
    """Return the rows of the table with these columns: the answers that each one takes, and its verdict."""
    lines = DOCUMENT.read_text().splitlines()
    head = f"| row | {' | '.join(columns)} | {verdict} |"
    rows = []
    for number, line in enumerate(itertools.takewhile(lambda one: one.startswith("|"), lines[lines.index(head) + 2 :])):
        row, *cells, does = (cell.strip() for cell in line.strip("|").split("|"))
        assert row == str(number + 1), line
        taken = {
            name: set(columns[name]) if not cell else set(cell.split(", "))
            for name, cell in zip(columns, cells, strict=True)
        }
        for name, answers in taken.items():
            assert answers <= set(columns[name]), f"unknown answer in: {line}"
        rows.append((taken, does))
    return rows


def cases_of(columns: Columns) -> Iterator[Case]:
    for answers in itertools.product(*columns.values()):
        yield dict(zip(columns, answers, strict=True))


def verdict_on(case: Case, rows: list[tuple[dict[str, set[str]], str]]) -> str:
    matching = [does for row, does in rows if all(case[name] in row[name] for name in case)]
    assert len(matching) == 1, f"{case} matches {len(matching)} rows"
    return matching[0]


# --- contents


def ids(count: int) -> list[bytes]:
    return [bytes([65 + number]) * 16 for number in range(count)]


def instance_of(volume_id: bytes) -> bytes:
    return volume_id.lower()


def voters_of(count: int) -> list[Voter]:
    return [Voter(one, instance_of(one), one[:1].decode()) for one in ids(count)]


def make_log(count: int) -> dict[int, Entry]:
    """Return entries 1 to LAST of a store of so many volumes; each says that STATED are durable on the first one."""
    chain, entries = CHAIN_START, {}
    for index in range(1, LAST + 1):
        init = Init(b"S" * 16, StoreSettings(), tuple(voters_of(count)), "here", "host")
        durable = {ids(count)[0]: STATED} if index > STATED else {}
        payload = encode_envelope(Envelope(index, init if index == 1 else NoOp(), durable))
        entries[index] = make_entry(chain, index, 1, b"history1", payload)
        chain = entries[index].chain
    return entries


def contents_of(
    log: Mapping[int, Entry], indexes: Sequence[int], commit: CommitRecord | None, bad: int = 0
) -> LogContents:
    """Return what a volume says that holds the entries at these indexes, and a bad record at `bad`."""
    chained = list(itertools.takewhile(lambda index: index in indexes, range(1, LAST + 1)))
    return LogContents(
        entries=[log[index] for index in chained],
        commit=commit,
        bad=FirstDamage(bad, "somewhere", any(index > bad for index in indexes)) if bad else None,
        position=LogPosition(1, 4096),
        tail_is_clean=not bad,
        entries_by_index={index: log[index] for index in indexes},
    )


def record_of(log: Mapping[int, Entry], index: int, chain: bytes = b"") -> CommitRecord:
    entry = log[min(index, LAST)]
    return CommitRecord(index, entry.term, index, chain or (entry.chain if index <= LAST else b"another history."))


def up_to(index: int) -> range:
    return range(1, index + 1)


# --- one volume among several


def why_impossible(case: Case) -> str:
    if case["end"] == "below" and case["bad"] in ("followed", "last"):
        return "what is said of the volume is a mark, and nothing above its end can be bad before that"
    return ""


def found_of(case: Case, lock: str) -> list[VolumeLogRead]:
    """Return five volumes, of which the first one is in the state of the case."""
    log = make_log(5)
    subject, helper, *others = ids(5)
    bad = {
        ("stated", "none"): 0, ("below", "none"): 0, ("stated", "marked"): COMMITTED, ("below", "marked"): 2,
        ("stated", "followed"): COMMITTED + 1, ("stated", "last"): LAST,
    }[case["end"], case["bad"]]  # fmt: skip
    held = list(up_to(LAST if case["end"] == "stated" else STATED - 1))
    if bad:
        held = [index for index in held if index < bad or (case["bad"] == "followed" and index > bad)]
    # The others have all entries, or all but the bad one and, unless something must speak of the subject, those after.
    theirs = list(up_to(LAST))
    if bad and case["copy"] == "no":
        theirs = [index for index in theirs if index < bad or (case["end"] == "below" and index > bad)]
    own = record_of(log, 1, b"" if case["branch"] == "ours" else b"another history.")
    one = VolumeLogRead(subject, "A", instance_of(subject), contents_of(log, held, own, bad), locked=lock == "ours")
    if case["volume"] == "nothing":
        one = VolumeLogRead(subject, "A", reason="nothing is there")
    elif case["volume"] == "unreadable":
        one = replace(one, contents=None, state="damaged", reason="it cannot be read")
    elif case["volume"] == "another instance":
        one = replace(one, instance_id=b"another instance")
    theirs_bad = bad if len(theirs) > bad - 1 > 0 and case["copy"] == "no" and case["end"] == "below" else 0
    readable = contents_of(log, theirs, record_of(log, COMMITTED), theirs_bad)
    found = [one, VolumeLogRead(helper, "B", instance_of(helper), readable)]
    for other in others:
        silent = case["silent"] == "many"
        found.append(VolumeLogRead(other, other[:1].decode(), instance_of(other), None if silent else readable))
    return found


def test_every_state_of_one_volume_among_several_is_decided_as_its_row_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, used, count, impossible = rows_of(ONE, "the volume"), set(), 0, 0
    for case, lock in itertools.product(cases_of(ONE), LOCKS):
        verdict = verdict_on(case, rows)
        if why_impossible(case):
            impossible += 1
            continue
        count += 1
        used.add(verdict)
        voters = voters_of(5)
        if case["volume"] == "retired":
            voters[0] = Voter(voters[0].volume_id, voters[0].instance_id, "A", retired="an fsync failed")
        status = examine(found_of(case, lock), voters).statuses[voters[0].volume_id]
        state, *does = verdict.replace("rolled back", "rolled_back").split("; ")
        assert set(does) <= {"votes", "is written"}, verdict
        assert status.state in state.split(" or "), (case, lock, verdict, status)
        assert status.votes == ("votes" in does and lock == "ours"), (case, lock, verdict, status)
        assert status.written == ("is written" in does and lock == "ours"), (case, lock, verdict, status)
        assert status.reason or status.state == "current", case
    assert used == {verdict for _, verdict in rows}, "every verdict is used"
    with capsys.disabled():
        print(f"\ntable of one volume among several: {count} states, {impossible} cannot be", end="")


def test_retired_volumes_are_contents_all_the_same() -> None:
    """An entry of which the only whole copy is on a retired volume is in the log that leads."""
    log = make_log(3)
    first, second, third = ids(3)
    short = contents_of(log, up_to(LAST - 1), record_of(log, COMMITTED))
    whole = contents_of(log, up_to(LAST), record_of(log, COMMITTED))
    voters = voters_of(3)
    voters[2] = Voter(third, instance_of(third), "C", retired="an fsync failed")
    found = [
        VolumeLogRead(one, "", instance_of(one), what) for one, what in zip(ids(3), (short, short, whole), strict=True)
    ]
    decision = decide(found, voters)
    assert decision.chosen_log.tip[0] == LAST
    assert decision.voting == [first, second]


# --- all volumes together


def together(case: Case) -> list[VolumeLogRead]:
    """Return three volumes in the state of the case: A may vote, so may B where there is a quorum."""
    log = make_log(3)
    good = contents_of(log, up_to(LAST), record_of(log, LAST))
    behind = contents_of(log, up_to(LAST), record_of(log, LAST - 1))
    above = contents_of(log, up_to(LAST), record_of(log, LAST + 1))
    first = good if case["step"] == "all" else behind
    a, b, c = (VolumeLogRead(one, one[:1].decode(), instance_of(one), good) for one in ids(3))
    a = replace(a, contents=first)
    if case["votes"] == "fewer":
        b = VolumeLogRead(b.volume_id, "B", reason="nothing is there")
    if case["busy"] == "yes":
        c = replace(c, locked=False, busy=True)
    elif case["votes"] == "fewer":
        c = VolumeLogRead(c.volume_id, "C", reason="nothing is there")
    if case["record"] == "above":
        if c.contents is not None:
            c = replace(c, contents=above)
        else:
            a = replace(a, contents=above)
    return [a, b, c] if case["branches"] == "one" else split(a, b, c)


def split(a: VolumeLogRead, b: VolumeLogRead, c: VolumeLogRead) -> list[VolumeLogRead]:
    """Return the volumes with commit records of two copies on A and C, which parted where B ends or nothing is."""
    log, chain = make_log(3), make_log(3)[2].chain
    other = {index: log[index] for index in up_to(2)}
    for index in range(3, LAST + 1):
        other[index] = make_entry(chain, index, 1, b"history2", log[index].payload)
        chain = other[index].chain
    c = VolumeLogRead(c.volume_id, "C", instance_of(c.volume_id), c.contents, locked=c.locked, busy=c.busy)
    return [
        replace(a, contents=contents_of(other, up_to(LAST), record_of(other, LAST))),
        b if b.contents is None else replace(b, contents=contents_of(log, up_to(2), record_of(log, 2))),
        replace(c, contents=contents_of(log, up_to(LAST), record_of(log, LAST))),
    ]


def test_every_state_of_all_volumes_together_is_decided_as_its_row_says() -> None:
    rows, used = rows_of(ALL, "the lock owner"), set()
    for case in cases_of(ALL):
        verdict = verdict_on(case, rows)
        used.add(verdict)
        outcome: type[Exception] | LogDecision
        try:
            outcome = decide(together(case), voters_of(3))
        except (StorageError, LockContention) as error:
            outcome = type(error)
        expected = {
            "backs off": LockContention,
            "refuses: `NoQuorumError`": NoQuorumError,
            "refuses: `Corru": CorruptionError,
        }
        error = next((kind for words, kind in expected.items() if verdict.startswith(words)), None)
        if error is not None:
            assert outcome is error, (case, verdict, outcome)
        else:
            assert isinstance(outcome, LogDecision), (case, verdict, outcome)
            assert outcome.is_recovered == verdict.startswith("continues"), (case, verdict)
    assert used == {verdict for _, verdict in rows}, "every row is used"


# --- what a session does then


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    """Three volumes with a few streams, all current."""
    paths = [tmp_path / name for name in "abc"]
    create_volumes(paths, StoreSettings(), HERE)
    with MetadataClient.at(HERE, paths).session(1.0) as session:
        for name in ("ONE", "TWO"):
            session.propose(AddStream(name.encode() * 5 + b"-", StreamConfig(name=name, subjects=(name,)), ()))
    return paths


def metadata_files(paths: Sequence[Path]) -> dict[str, bytes]:
    return {
        str(file.relative_to(file.parents[2])): file.read_bytes()
        for path in paths
        if path.exists()
        for file in sorted((path / "meta").iterdir())
    }


def streams_of(paths: Sequence[Path]) -> set[str]:
    return {one.name for one in MetadataClient.at(HERE, paths).view(1.0).state.streams.values()}


def test_a_holder_that_goes_on_writes_nothing(volumes: list[Path]) -> None:
    before = metadata_files(volumes)
    with MetadataClient.at(HERE, volumes).session(1.0):
        pass
    assert metadata_files(volumes) == before


def test_a_holder_without_a_quorum_changes_nothing(volumes: list[Path]) -> None:
    for path in volumes[1:]:
        shutil.rmtree(path)
    before = metadata_files(volumes)
    with pytest.raises(NoQuorumError, match="1 of 3 volumes can vote"), MetadataClient.at(HERE, volumes).session(1.0):
        pass
    assert metadata_files(volumes) == before


@pytest.mark.parametrize("which", range(3))
def test_a_volume_that_is_behind_catches_up_and_the_others_keep_what_they_have(volumes: list[Path], which: int) -> None:
    old = {file.name: file.read_bytes() for file in (volumes[which] / "meta").iterdir()}
    with MetadataClient.at(HERE, volumes).session(1.0) as session:
        session.propose(AddStream(b"THREE-----------", StreamConfig(name="THREE", subjects=("THREE",)), ()))
    shutil.rmtree(volumes[which] / "meta")
    (volumes[which] / "meta").mkdir()
    for name, content in old.items():
        (volumes[which] / "meta" / name).write_bytes(content)
    before = metadata_files(volumes)
    with MetadataClient.at(HERE, volumes).session(1.0) as session:
        assert {session.status(one.volume_id).state for one in session.volumes} == {"current"}
    after = metadata_files(volumes)
    assert all(len(after[name]) >= len(content) for name, content in before.items()), "nothing is cut or removed"
    assert len(after) == len(before) + 1, "one new segment, on the volume that was behind"
    for left_out in range(3):
        rest = [path for place, path in enumerate(volumes) if place != left_out]
        assert streams_of(rest) == {"ONE", "TWO", "THREE"}


def make_stream(metadata: MetadataClient, name: str) -> dict[str, str]:
    """Begin a session that makes a stream; return how each volume stands at its end."""
    with metadata.session(1.0) as session:
        session.propose(AddStream(name.encode().ljust(16), StreamConfig(name=name, subjects=(name,)), ()))
        return {one.path.name: session.status(one.volume_id).state for one in session.volumes}


def test_a_process_goes_on_without_a_volume_that_goes_while_it_knows_the_store(volumes: list[Path]) -> None:
    metadata = MetadataClient.at(HERE, volumes)
    make_stream(metadata, "THREE")
    shutil.rmtree(volumes[1])
    assert make_stream(metadata, "FOUR") == {"a": "current", "b": "missing", "c": "current"}
    assert streams_of(volumes) == {"ONE", "TWO", "THREE", "FOUR"}


def test_a_volume_that_another_process_has_locked_is_left_out_and_catches_up(volumes: list[Path]) -> None:
    metadata = MetadataClient.at(HERE, volumes)
    make_stream(metadata, "THREE")
    busy = OS_FILES.lock(volumes[2] / "lock")
    assert busy.try_acquire()
    before = metadata_files(volumes[2:])
    assert make_stream(metadata, "FOUR") == {"a": "current", "b": "current", "c": "behind"}
    assert metadata_files(volumes[2:]) == before, "what is not locked is not written"
    busy.close()
    assert set(make_stream(metadata, "FIVE").values()) == {"current"}
    assert streams_of(volumes[1:]) == {"ONE", "TWO", "THREE", "FOUR", "FIVE"}


def test_two_of_three_volumes_locked_by_others_are_waited_for(volumes: list[Path]) -> None:
    busy = [OS_FILES.lock(path / "lock") for path in volumes[:2]]
    assert all(one.try_acquire() for one in busy)
    with pytest.raises(StoreBusyError), MetadataClient.at(HERE, volumes).session(0.0):
        pass
    for one in busy:
        one.close()
    make_stream(MetadataClient.at(HERE, volumes), "THREE")


def test_a_process_does_not_go_back_behind_what_it_has_seen(volumes: list[Path]) -> None:
    """Two volumes are put back as they were: for a process that begins anew a valid older store, for this one not."""
    metadata = MetadataClient.at(HERE, volumes)
    old = {path: [(file, file.read_bytes()) for file in (path / "meta").iterdir()] for path in volumes[:2]}
    make_stream(metadata, "THREE")
    for path, files in old.items():
        shutil.rmtree(path / "meta")
        (path / "meta").mkdir()
        for file, content in files:
            file.write_bytes(content)
    shutil.rmtree(volumes[2])
    before = metadata_files(volumes)
    with pytest.raises(CorruptionError), metadata.session(1.0):
        pass
    assert metadata_files(volumes) == before
