"""The tables of docs/locks-and-stability.md, section 3: every state of one volume, and what a holder does about it.

The tables are read from the document. Every combination of answers is generated, and shown to match exactly one row (or
to be on the short list of those that cannot be). As many as it takes for each row to meet any two answers, and for any
three to meet, are built as files, and given to a session; `make soak` builds all of them.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec
import pytest
from harness.cases import covering

from storage_core.errors import CorruptionError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.metadata import machine
from storage_core.metadata.commands import AddStream, Command, Envelope, Init, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.state import StoreState, encode_state
from storage_core.raft import log_format, snapshot_format
from storage_core.raft.entry import CHAIN_START, CommitRecord, Entry, Seal, Vote, make_entry
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, Record, SegmentHeader
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log import VolumeLog

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "locks-and-stability.md"
Case = Mapping[str, str]
Row = tuple[dict[str, set[str]], str]  # the answers that it takes, and what the lock owner does

FRESH: dict[str, tuple[str, ...]] = {
    "snapshot": ("none", "whole", "damaged", "gap", "foreign"),
    "segment": ("proven", "unproven", "headless", "cut", "sealed"),
    "record": ("none", "tip", "below", "above", "stray"),
    "slots": ("whole", "torn"),
    "bad": ("none", "marked", "followed", "last"),
    "tail": ("nothing", "zeros"),
}
KNOWING: dict[str, tuple[str, ...]] = {
    "led": ("yes", "no"),
    "behind": ("nothing", "votes", "committed", "uncommitted"),
    "slots": ("whole", "torn"),
    "tail": ("nothing", "zeros"),
    "segment": ("same", "another"),
}
HOSTS: dict[str, tuple[str, ...]] = {"host": ("ours", "theirs", "taken"), "found": ("refuses", "recovers", "continues")}

IDENTITY = VolumeIdentity(b"S" * 16, b"V" * 16, b"I" * 16, 1)
HERE = Environment(lock_domain=lambda: "here", sleep=lambda _: None)
ELSEWHERE = Environment(lock_domain=lambda: "elsewhere", sleep=lambda _: None)
LAST = 6  # entries: 1 makes the store, each of the others the stream that is named by its index
SNAPSHOT_AT, SECOND_SEGMENT_AT = 2, 3


# --- the document


@cache
def document() -> list[str]:
    return DOCUMENT.read_text().splitlines()


def rows_of(columns: dict[str, tuple[str, ...]]) -> list[Row]:
    """Return the rows of the table with these columns."""
    lines = document()
    head = f"| row | {' | '.join(columns)} | the lock owner |"
    rows = []
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            break
        _, *cells, does = (cell.strip() for cell in line.strip("|").split("|"))
        taken = [
            set(columns[name]) if not cell else set(cell.split(", ")) for name, cell in zip(columns, cells, strict=True)
        ]
        for name, answers in zip(columns, taken, strict=True):
            assert answers <= set(columns[name]), f"unknown answer in: {line}"
        rows.append((dict(zip(columns, taken, strict=True)), does))
    return rows


def cases_of(columns: dict[str, tuple[str, ...]]) -> Iterator[Case]:
    for answers in itertools.product(*columns.values()):
        yield dict(zip(columns, answers, strict=True))


def what_the_holder_does(rows: list[Row], case: Case) -> str:
    """Return what the one row that takes this case says."""
    matching = [does for row, does in rows if all(case[name] in row[name] for name in row)]
    assert len(matching) == 1, f"{case} matches {len(matching)} rows"
    return matching[0]


# --- building a volume that is in the state of a case


def command_of(index: int) -> Command:
    if index == 1:
        return Init(
            IDENTITY.store_id, StoreSettings(), (Voter(IDENTITY.volume_id, IDENTITY.instance_id, "."),), "here", "h"
        )
    config = StreamConfig(name=f"S{index}", subjects=(f"S{index}",))
    return AddStream(index.to_bytes(16, "big"), config, (IDENTITY.volume_id,))


def make_entries() -> list[Entry]:
    chain, entries = CHAIN_START, []
    for index in range(1, LAST + 1):
        term = 1 if index <= SECOND_SEGMENT_AT else 2
        entries.append(
            make_entry(chain, index, term, b"history%d" % term, encode_envelope(Envelope(index, command_of(index))))
        )
        chain = entries[-1].chain
    return entries


ENTRIES = make_entries()
MARK = {"tip": LAST, "below": 4, "above": LAST + 1, "stray": 4}


def state_at(index: int) -> StoreState:
    state = StoreState()
    for entry in ENTRIES[:index]:
        place = machine.Place(entry.index, entry.history)
        state, _ = machine.apply(state, place, Envelope(entry.index, command_of(entry.index)))
    return state


def segment(
    number: int, base: int, slots: dict[int, CommitRecord], batches: list[list[Record]]
) -> tuple[bytearray, dict[int, int]]:
    """Return the bytes of a segment, and where each entry begins."""
    last = ENTRIES[base - 1] if base else None
    place = (last.index, last.term, last.chain) if last else (0, 0, CHAIN_START)
    data = bytearray(
        SegmentHeader(IDENTITY.store_id, IDENTITY.volume_id, IDENTITY.instance_id, number, *place).encode()
    )
    data += bytes(2 * PAGE_SIZE)
    for record in slots.values():
        at = log_format.slot_offset(record.generation)
        data[at : at + PAGE_SIZE] = log_format.encode_commit_record(record)
    places = {}
    for batch in batches:
        if isinstance(batch[-1], Entry):
            places[batch[-1].index] = len(data) + 64 * (len(batch) - 1)  # a vote may stand before it
        data += log_format.encode_batch(batch, len(data))
    return data, places


def commit_record(index: int, is_stray: bool = False) -> CommitRecord:
    entry = ENTRIES[min(index, LAST) - 1]
    chain = b"another history." if is_stray or index > LAST else entry.chain
    return CommitRecord(index, entry.term, index, chain)


def snapshot_file(kind: str) -> bytearray:
    entry = ENTRIES[SNAPSHOT_AT - 1]
    state = msgspec.Raw(encode_state(state_at(SNAPSHOT_AT)))
    payload = snapshot_format.encode_body(
        SnapshotBody(state, 1, b"candidate-one...", {IDENTITY.volume_id: SNAPSHOT_AT})
    )
    chain = b"another history." if kind == "foreign" else entry.chain
    header = SnapshotHeader(
        IDENTITY.store_id, IDENTITY.volume_id, IDENTITY.instance_id, entry.index, entry.term, chain, entry.history,
        len(payload), snapshot_format.payload_digest(payload),
    )  # fmt: skip
    file = bytearray(snapshot_format.encode(header) + payload)
    if kind in ("damaged", "gap"):
        file[-1] ^= 1
    return file


def bad_index(case: Case) -> int:
    """Return the entry that is damaged, 0 for none."""
    mark = MARK.get(case["record"], 0)
    if case["bad"] == "marked":
        return min(mark, 5) or 1
    return {"none": 0, "followed": 5 if mark else 4, "last": LAST}[case["bad"]]


def build(volume: Path, case: Case) -> None:
    """Make `volume` one that is in the state of the case."""
    first: list[list[Record]] = [[Vote(1, b"candidate-one..."), ENTRIES[0]], [ENTRIES[1]], [ENTRIES[2]]]
    base = 0
    if case["snapshot"] == "gap":
        first, base = [[Vote(1, b"candidate-one..."), ENTRIES[2]]], SNAPSHOT_AT
    has_record = case["record"] != "none"
    older = {index: commit_record(index) for index in (2, 3)} if has_record else {}
    if case["segment"] != "unproven":
        first.append([Seal(1, 2)])
    second: list[list[Record]] = [[Vote(2, b"candidate-two..."), ENTRIES[3]], [ENTRIES[4]], [ENTRIES[5]]]
    if case["segment"] == "sealed":
        second.append([Seal(2, 3)])
    mark = MARK.get(case["record"], 0)
    newest = {index: commit_record(index, case["record"] == "stray") for index in (mark, mark - 1) if has_record}
    one, places_one = segment(1, base, older, first)
    two, places_two = segment(2, SECOND_SEGMENT_AT, newest, second)
    if case["slots"] == "torn":
        at = log_format.slot_offset(mark - 1)
        two[at : at + PAGE_SIZE] = b"\x5a" * PAGE_SIZE
    if bad := bad_index(case):
        data, places = (one, places_one) if bad in places_one else (two, places_two)
        data[places[bad] + 70] ^= 1
    if case["segment"] == "headless":
        two[20] ^= 1
    if case["tail"] == "zeros":
        two += bytes(PAGE_SIZE)
    if case["segment"] == "cut":
        del two[BATCHES_OFFSET:]
    (volume / "meta").mkdir(parents=True)
    (volume / "streams").mkdir()
    (volume / "jstream.volume").write_bytes(IDENTITY.encode())
    (volume / "meta" / f"{1:016x}.log").write_bytes(one)
    (volume / "meta" / f"{2:016x}.log").write_bytes(two)
    if case["snapshot"] != "none":
        (volume / "meta" / f"{SNAPSHOT_AT:016x}.snap").write_bytes(snapshot_file(case["snapshot"]))


def why_impossible(case: Case) -> str:
    if case["bad"] in ("followed", "last") and case["record"] in ("tip", "above"):
        return "nothing lies above a record that names the last entry"
    if case["bad"] == "marked" and case["record"] == "none" and case["snapshot"] in ("whole", "gap", "foreign"):
        return "the log is not asked for the first entry, and there is no other mark"
    return ""


# --- what is looked at


def files_of(volume: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (volume / "meta").iterdir()}


def log_in(volume: Path) -> VolumeLog:
    return VolumeLog(OS_FILES, volume, IDENTITY)


def streams(metadata: MetadataClient) -> set[str]:
    return {one.name for one in metadata.view(1.0).state.streams.values()}


def check_refusal(volume: Path, env: Environment = HERE) -> None:
    before = files_of(volume)
    with pytest.raises(CorruptionError):
        MetadataClient.at(env, [volume]).view(1.0)
    with pytest.raises(CorruptionError), MetadataClient.at(env, [volume]).session(1.0):
        pass
    assert files_of(volume) == before, "nothing is changed"


def check_going_on(volume: Path, expected: set[str]) -> None:
    before = files_of(volume)
    metadata = MetadataClient.at(HERE, [volume])
    with metadata.session(1.0) as session:
        assert {one.name for one in session.state.streams.values()} == expected
    assert files_of(volume) == before, "a session without a command writes nothing"


def check_settling(volume: Path, expected: set[str]) -> None:
    before = files_of(volume)
    metadata = MetadataClient.at(HERE, [volume])
    with metadata.session(1.0) as session:
        recovered = session.view
    after = files_of(volume)
    assert after.keys() - before.keys() == {f"{3:016x}.log"}, "a new segment"
    assert all(after[name].startswith(content) for name, content in before.items()), "what was there stays"
    assert {one.name for one in recovered.state.streams.values()} == expected
    contents = log_in(volume).read()
    assert contents.bad is None
    assert contents.commit is not None and contents.commit.index == contents.tip[0] == len(expected) + 2
    terms = [vote.term for vote in contents.votes]
    assert contents.tip[1] == max(terms) and terms.count(max(terms)) == 1, "in a term that nobody had used"
    check_going_on(volume, expected)


# --- the tables


@pytest.mark.parametrize("strength", [3, pytest.param(len(FRESH), marks=pytest.mark.soak)])
def test_every_state_of_a_volume_matches_one_row_and_is_handled_as_it_says(
    tmp_path: Path, strength: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(FRESH)
    states = [{**case, "does": what_the_holder_does(rows, case)} for case in cases_of(FRESH)]
    possible = [case for case in states if not why_impossible(case)]
    counts = Counter[str]()
    for number, case in enumerate(covering(possible, strength)):
        does = case["does"]
        volume = tmp_path / str(number)
        build(volume, case)
        verb = does.split(":")[0]
        counts[verb] += 1
        tip = LAST - (case["bad"] == "last")
        expected = {f"S{index}" for index in range(2, tip + 1)}
        try:
            if verb == "refuses":
                check_refusal(volume)
            elif verb == "recovers":
                check_settling(volume, expected)
            else:
                check_going_on(volume, expected)
        except BaseException as error:
            raise AssertionError(f"{case}: {does}: {error}") from error
    assert {case["does"] for case in possible} == {does for _, does in rows}, "every row is used"
    with capsys.disabled():
        print(f"\ndecision table: {counts.total()} of {len(states)} states ({dict(counts)})", end="")


def test_every_state_of_a_process_that_knows_a_view_matches_one_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, count = rows_of(KNOWING), 0
    for number, case in enumerate(cases_of(KNOWING)):
        does = what_the_holder_does(rows, case)
        if case["behind"] == "nothing" and case["segment"] == "another":
            continue  # a segment begins with a vote
        count += 1
        try:
            check_knowing(tmp_path / str(number), case, does)
        except BaseException as error:
            raise AssertionError(f"{case}: {does}: {error}") from error
    with capsys.disabled():
        print(f"\ndecision table of processes with a view: {count} states", end="")


def check_knowing(volume: Path, case: Case, does: str) -> None:
    build(volume, {**{name: answers[0] for name, answers in FRESH.items()}, "record": "tip"})
    process = MetadataClient.at(HERE, [volume])
    with process.session(1.0) as session:
        if case["led"] == "yes":
            session.propose(command_of(LAST + 1))
    term = log_in(volume).read().term
    others = MetadataClient.at(HERE, [volume])
    if case["segment"] == "another":
        log, contents = log_in(volume), log_in(volume).read()
        log.start_segment(contents.tip, contents.commit, [Vote(contents.term + 1, b"killed candidate")])
    elif case["behind"] == "votes":
        contents = log_in(volume).read()
        log_in(volume).append(contents.position, [Vote(contents.term + 1, b"killed candidate")])
    if case["behind"] == "committed":
        with others.session(1.0) as session:
            session.propose(command_of(LAST + 2))
    elif case["behind"] == "uncommitted":
        contents = log_in(volume).read()
        index, tip_term, chain = contents.tip
        payload = encode_envelope(Envelope(1, command_of(LAST + 2)))
        log_in(volume).append(contents.position, [make_entry(chain, index + 1, tip_term, b"history?", payload)])
    contents = log_in(volume).read()
    newest = log_in(volume).segment_path(contents.position.segment)
    if case["slots"] == "torn":
        assert contents.commit is not None
        with newest.open("r+b") as file:
            file.seek(log_format.slot_offset(contents.commit.generation + 1))
            file.write(b"\x5a" * PAGE_SIZE)
    if case["tail"] == "zeros":
        with newest.open("ab") as file:
            file.write(bytes(PAGE_SIZE))
    expected = {f"S{index}" for index in range(2, LAST + 1)}
    expected |= {f"S{LAST + 1}"} if case["led"] == "yes" else set()
    expected |= {f"S{LAST + 2}"} if "committed" in case["behind"] else set()
    terms, segment_count = contents.term, len(log_in(volume).segments())

    with process.session(1.0) as session:
        assert {one.name for one in session.state.streams.values()} == expected
        session.propose(command_of(LAST + 3))

    after = log_in(volume).read()
    recovered = len(log_in(volume).segments()) > segment_count
    assert recovered == ("recovers" in does)
    assert after.tip[1] == (term if "continues in its term" in does else terms + 1)
    assert after.tip[0] == len(expected) + 2 + recovered
    assert streams(MetadataClient.at(HERE, [volume])) == expected | {f"S{LAST + 3}"}


@pytest.mark.parametrize("case", list(cases_of(HOSTS)), ids=lambda case: "-".join(case.values()))
def test_every_host_is_handled_as_its_row_says(tmp_path: Path, case: Case) -> None:
    volume = tmp_path / "volume"
    fitting = {"refuses": {"record": "above"}, "recovers": {"record": "below"}, "continues": {"record": "tip"}}[
        case["found"]
    ]
    build(volume, {**{name: answers[0] for name, answers in FRESH.items()}, **fitting})
    env = HERE if case["host"] == "ours" else ELSEWHERE
    does = what_the_holder_does(rows_of(HOSTS), case)
    before = files_of(volume)
    metadata = MetadataClient.at(env, [volume])
    held = metadata.session(1.0, take_over=case["host"] == "taken")
    if does == "refuses":
        with pytest.raises(CorruptionError), held:
            pass
        assert files_of(volume) == before
    elif "StoreBusyError" in does:
        with pytest.raises(StoreBusyError, match="take-over"), held:
            pass
        assert files_of(volume) == before
    else:
        with held as session:
            assert len(session.state.streams) == LAST - 1
            assert session.state.lock_domain == env.lock_domain()
        segments = {"recovers": 3, "continues": 2}[case["found"]]
        assert len(log_in(volume).segments()) == segments
        with (
            pytest.raises(StoreBusyError),
            MetadataClient.at(ELSEWHERE if env is HERE else HERE, [volume]).session(1.0),
        ):
            pass


def test_all_rows_about_hosts_and_known_views_are_used() -> None:
    for columns in (KNOWING, HOSTS):
        rows = rows_of(columns)
        assert {what_the_holder_does(rows, case) for case in cases_of(columns)} == {does for _, does in rows}


@pytest.mark.parametrize("torn", range(4, LAST + 1))
def test_a_torn_batch_of_several_entries_is_a_torn_tail(tmp_path: Path, torn: int) -> None:
    """A power loss keeps any pages of a batch that was not fsynced: entries behind the torn one do not count either."""
    volume = tmp_path / "volume"
    batches: list[list[Record]] = [[Vote(1, b"candidate-one..."), *ENTRIES[:3]], ENTRIES[3:]]
    data, _ = segment(1, 0, {2: commit_record(2), 3: commit_record(3)}, batches)
    at = len(log_format.encode_batch(batches[0], BATCHES_OFFSET)) + BATCHES_OFFSET
    at += sum(-(-(64 + len(entry.payload)) // 8) * 8 for entry in ENTRIES[3 : torn - 1])
    data[at + 30] ^= 1
    (volume / "meta").mkdir(parents=True)
    (volume / "streams").mkdir()
    (volume / "jstream.volume").write_bytes(IDENTITY.encode())
    (volume / "meta" / f"{1:016x}.log").write_bytes(data)

    with MetadataClient.at(HERE, [volume]).session(1.0) as session:
        assert {one.name for one in session.state.streams.values()} == {f"S{index}" for index in range(2, torn)}
    check_going_on(volume, {f"S{index}" for index in range(2, torn)})
