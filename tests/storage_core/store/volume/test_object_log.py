"""The log of one volume in an object store: what one process does, what others do to it meanwhile."""

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random

import msgspec
import pytest
from harness.objects.scheduler import Scheduler
from harness.objects.store import Bucket, Odds, Service
from mutants.store import object_mutants

from storage_core.deadlines import DeadlineFiles
from storage_core.errors import CorruptionError, SupersededError
from storage_core.objects.files import ObjectFiles
from storage_core.os_errors import UnreachableError
from storage_core.paths import ObjectPath
from storage_core.raft.entry import START, CommitRecord, Entry, EntryId, Vote, make_entry
from storage_core.raft.snapshot_format import SnapshotBody
from storage_core.store.volume import object_log
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log_contents import LogPosition
from storage_core.store.volume.object_log import ObjectLog

VOLUME = ObjectPath("s3://bucket/shop")
IDENTITY = VolumeIdentity(b"S" * 16, b"V" * 16, b"I" * 16, 1)
FIRST = make_entry(START.chain, 1, 1, b"HISTORY1", b"one")
SECOND = make_entry(FIRST.chain, 2, 1, b"HISTORY1", b"two")
THIRD = make_entry(SECOND.chain, 3, 1, b"HISTORY1", b"three")


@pytest.fixture
def service() -> Service:
    random = Random(1)
    return Service(Scheduler(random, 1), random, Odds())


@pytest.fixture
def log(service: Service) -> ObjectLog:
    made = process(service)
    made.begin([Vote(1, b"C" * 16), FIRST], None)
    return made


def process(service: Service) -> ObjectLog:
    return ObjectLog(ObjectFiles(service.connect), VOLUME, IDENTITY)


def objects(service: Service) -> dict[str, bytes]:
    return service.buckets["s3://bucket"].objects


def commit_of(entry: Entry) -> CommitRecord:
    return CommitRecord(entry.index, entry.term, entry.index, entry.chain)


def body(term: int = 1) -> SnapshotBody:
    return SnapshotBody(msgspec.Raw(b"\xc0"), term, b"C" * 16, {})


def names(service: Service, suffix: str) -> list[int]:
    there = sorted(name.split("/")[-1] for name in objects(service) if name.endswith(suffix))
    return [int(name.split("-")[1][:16], 16) for name in there]


def test_everybody_reads_what_was_appended(service: Service, log: ObjectLog) -> None:
    position = log.append(log.read().position, [SECOND], FIRST.id, commit_of(FIRST))
    contents = process(service).read()
    assert (contents.entries, contents.position) == ([FIRST, SECOND], position)
    assert contents.commit == commit_of(FIRST)
    assert process(service).read_mark().end == (SECOND.id, 1)


def test_snapshot_and_newest_record_are_read_at_once_and_say_everything(service: Service, log: ObjectLog) -> None:
    position, before = log.read().position, FIRST
    for _ in range(20):
        entry = make_entry(before.chain, before.index + 1, 1, b"HISTORY1", b"more")
        position, before = log.append(position, [entry], before.id), entry
    waiting = Waiting(service, 2)
    cold = ObjectLog(DeadlineFiles(ObjectFiles(waiting.connect)), VOLUME, IDENTITY)
    assert (cold.read().tip, cold.read().position) == (before.id, position)
    waiting = Waiting(service, 1)
    behind = ObjectLog(DeadlineFiles(ObjectFiles(waiting.connect)), VOLUME, IDENTITY)
    tail = behind.read_tail(LogPosition(1, 0, position.witness))
    assert tail is not None and tail.position == position
    assert tail.records[-1] == before


class Waiting:
    """No object is served before so many are asked for at a time."""

    def __init__(self, service: Service, count: int) -> None:
        self._service, self._asked = service, threading.Barrier(count)

    def connect(self, uri: str):  # type: ignore[no-untyped-def]
        client = self._service.connect(uri)
        get = client.get

        def wait(name: str, size: int) -> tuple[bytes, int, str]:
            self._asked.wait(10.0)
            return get(name, size)

        client.get = wait  # type: ignore[method-assign]
        return client


def test_second_writer_at_one_place_is_refused(service: Service, log: ObjectLog) -> None:
    position = log.read().position
    log.append(position, [SECOND], FIRST.id)
    with pytest.raises(SupersededError):
        process(service).append(position, [Vote(2, b"D" * 16)], FIRST.id)


def test_own_record_that_is_refused_as_there_already_was_stored(service: Service, log: ObjectLog) -> None:
    twice = Twice(service)
    position = log.read().position
    after = ObjectLog(ObjectFiles(twice.connect), VOLUME, IDENTITY).append(position, [SECOND], FIRST.id)
    assert process(service).read().position == after


class Twice:
    """Creations are carried out once more on the way."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def connect(self, uri: str):  # type: ignore[no-untyped-def]
        client = self._service.connect(uri)
        create = client.create

        def twice(name: str, data: bytes) -> None:
            create(name, data)
            create(name, data)

        client.create = twice  # type: ignore[method-assign]
        return client


def test_replaced_entries_are_gone_and_the_term_is_kept(service: Service, log: ObjectLog) -> None:
    position = log.append(log.read().position, [SECOND], FIRST.id)
    other = make_entry(FIRST.chain, 2, 2, b"HISTORY2", b"another")
    position = log.rewrite(position, FIRST.id, [Vote(3, b"D" * 16), other], commit_of(FIRST))
    contents = process(service).read()
    assert (contents.entries, contents.term, contents.bad) == ([FIRST, other], 3, None)


def test_log_goes_on_after_a_snapshot_and_old_records_go(service: Service, log: ObjectLog) -> None:
    position = log.append(log.read().position, [SECOND], FIRST.id)
    position = log.take_snapshot(position, SECOND.id, b"HISTORY1", body(), commit_of(SECOND))
    log.compact()
    assert names(service, ".snap") == [0, 2]
    position = log.append(position, [THIRD], SECOND.id)
    position = log.take_snapshot(position, THIRD.id, b"HISTORY1", body(), commit_of(THIRD))
    log.compact()
    assert (names(service, ".snap"), names(service, ".rec")) == ([2, 3], [3])
    contents = process(service).read()
    assert (contents.tip, contents.entries, contents.position) == (THIRD.id, [], position)


def test_writer_that_slept_while_its_number_was_removed_is_not_believed(service: Service, log: ObjectLog) -> None:
    slept = log.read().position
    position = log.append(slept, [SECOND], FIRST.id)
    position = log.take_snapshot(position, SECOND.id, b"HISTORY1", body(), None)
    position = log.append(position, [THIRD], SECOND.id)
    position = log.take_snapshot(position, THIRD.id, b"HISTORY1", body(), None)
    log.compact()
    with pytest.raises(UnreachableError):
        process(service).append(slept, [Vote(2, b"D" * 16)], FIRST.id)
    assert process(service).look(slept, commit_of(FIRST)) is None
    assert process(service).read().tip == THIRD.id


def test_predecessor_that_another_sleeper_created_again_deceives_nobody(service: Service, log: ObjectLog) -> None:
    """A look at the record before, instead of the witness, would be deceived."""
    first_sleeper = log.read().position
    second_sleeper = position = log.append(first_sleeper, [SECOND], FIRST.id)
    for entry in (THIRD, make_entry(THIRD.chain, 4, 1, b"HISTORY1", b"four")):
        before = EntryId(entry.index - 1, 1, SECOND.chain if entry is THIRD else THIRD.chain)
        position = log.append(position, [entry], before)
        position = log.take_snapshot(position, entry.id, b"HISTORY1", body(), None)
    log.compact()
    with pytest.raises(UnreachableError):
        process(service).append(first_sleeper, [Vote(2, b"D" * 16)], FIRST.id)
    assert 2 in names(service, ".rec"), "the predecessor is there again"
    with pytest.raises(UnreachableError):
        process(service).append(second_sleeper, [Vote(2, b"E" * 16)], SECOND.id)


def test_snapshot_takes_the_place_of_a_log_that_is_far_behind(service: Service, log: ObjectLog) -> None:
    position = log.rewrite(
        log.read().position, SECOND.id, [Vote(2, b"D" * 16), THIRD], commit_of(SECOND), (b"HISTORY1", body(2))
    )
    contents = process(service).read()
    assert contents.snapshot is not None and contents.snapshot.entry == SECOND.id
    assert (contents.entries, contents.position) == ([THIRD], position)


def test_record_of_a_writer_that_did_not_know_the_snapshot_goes_on_from_it(service: Service, log: ObjectLog) -> None:
    position = log.append(log.read().position, [SECOND], FIRST.id, commit_of(FIRST))
    process(service).take_snapshot(position, SECOND.id, b"HISTORY1", body(), commit_of(SECOND))
    log.rewrite(position, FIRST.id, [Vote(2, b"D" * 16), SECOND, THIRD], commit_of(FIRST))
    contents = process(service).read()
    assert (contents.bad, contents.tip, contents.entries) == (None, THIRD.id, [THIRD])


@pytest.mark.parametrize("is_missing", [True, False])
def test_lost_record_in_the_middle_is_damage_and_no_torn_tail(
    service: Service, log: ObjectLog, is_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_log, "RECENT_SIZE_MAX", 0)  # no later record repeats it
    position = log.append(log.read().position, [SECOND], FIRST.id)
    log.append(position, [THIRD], SECOND.id)
    name = next(name for name in objects(service) if name.endswith("2.rec"))
    if is_missing:
        del objects(service)[name]
    else:
        objects(service)[name] = objects(service)[name][:-1] + b"\0"
    contents = process(service).read()
    assert contents.bad is not None
    assert (contents.tip, contents.bad.index, contents.bad.followed) == (FIRST.id, 2, True)
    assert contents.entries_by_index[3] == THIRD


def test_damaged_snapshot_leaves_the_one_before_and_its_records(service: Service, log: ObjectLog) -> None:
    position = log.append(log.read().position, [SECOND], FIRST.id)
    log.take_snapshot(position, SECOND.id, b"HISTORY1", body(), None)
    name = next(name for name in objects(service) if name.endswith(".snap") and "2-" in name)
    objects(service)[name] = objects(service)[name][:-1] + b"\x01"
    contents = process(service).read()
    assert (contents.entries, len(contents.damage)) == ([FIRST, SECOND], 1)


def test_log_put_back_to_an_older_state_is_read_anew(service: Service, log: ObjectLog) -> None:
    older = dict(objects(service))
    position = log.append(log.read().position, [SECOND], FIRST.id)
    service.buckets["s3://bucket"].objects = older
    assert process(service).look(position, commit_of(SECOND)) is None


def test_emptied_prefix_has_no_log(service: Service, log: ObjectLog) -> None:
    objects(service).clear()
    with pytest.raises(CorruptionError):
        process(service).read()
    with pytest.raises(UnreachableError):
        log.append(LogPosition(1, 0, "0" * 16 + "-" + "0" * 32 + ".snap"), [SECOND], FIRST.id)


def test_snapshot_that_comes_late_is_removed_with_the_others(service: Service, log: ObjectLog) -> None:
    """Removed records are read as the end of the log by whoever goes by a snapshot below them."""
    position = log.read().position
    for entry, before in ((SECOND, FIRST), (THIRD, SECOND)):
        position = log.append(position, [entry], before.id)
        position = log.take_snapshot(position, entry.id, b"HISTORY1", body(), None)
    late = f"shop/meta/{IDENTITY.instance_id.hex()}-{1:016x}-{'ab' * 16}.snap"
    content = next(data for name, data in objects(service).items() if name.endswith(".snap") and "2-" in name)
    is_there = []

    def judge(verb: str, bucket: Bucket, name: str) -> None:
        if verb == "delete" and name.endswith(".snap") and not is_there:
            is_there.append(True)
            bucket.objects[late] = content

    service.judge = judge
    log.compact()
    assert is_there
    assert names(service, ".snap") == [2, 3]
    assert late not in objects(service)


# --- rules that seeds seldom need: each is played, with the rule and without it


def is_believed_when_its_number_goes_meanwhile(service: Service, log: ObjectLog) -> bool:
    """Return whether a writer believes in its record, whose number is used and removed just before it creates it."""
    slept, sleeper = log.read().position, process(service)

    def judge(verb: str, bucket: Bucket, name: str) -> None:
        if verb == "create" and name.endswith(".rec"):
            service.judge = None
            go_on(log, slept)

    service.judge = judge
    return is_stored(sleeper, slept)


def is_believed_after_a_killed_compaction(service: Service, log: ObjectLog) -> bool:
    """Return whether a sleeping writer believes in its record after records were removed, and not all snapshots."""
    slept = log.read().position
    gone: list[str] = []

    def judge(verb: str, bucket: Bucket, name: str) -> None:
        if verb == "delete":
            gone.append(name)
            if len(gone) > 2:
                raise UnreachableError("no more")

    service.judge = judge
    with suppress(UnreachableError):
        go_on(log, slept)
    service.judge = None
    return is_stored(process(service), slept)


def is_read_as_another(service: Service, log: ObjectLog) -> bool:
    """Return whether a reader takes a sleeper's record for the one that it listed, which is removed before it reads it.

    Its witness is read between the two.
    """
    slept = log.read().position
    log.append(slept, [SECOND], FIRST.id)

    def judge(verb: str, bucket: Bucket, name: str) -> None:
        if verb == "get" and name.endswith("2.rec"):
            service.judge = None
            cut_behind(log, slept)

    service.judge = judge
    return THIRD.id != process(service).read().tip


def is_listed_as_another(service: Service, log: ObjectLog) -> bool:
    """Return whether a reader goes on with a sleeper's record, listed after the witness was, which is gone by then."""
    slept = log.read().position
    log.append(slept, [SECOND], FIRST.id)

    def judge(verb: str, bucket: Bucket, name: str) -> None:
        if verb == "listing":
            service.judge = None
            cut_behind(log, slept)

    service.judge = judge
    return process(service).read_tail(slept) is not None


def cut_behind(log: ObjectLog, slept: LogPosition) -> None:
    """Go on behind record 2, remove what was before record 3, and let a sleeper create record 2 once more."""
    position = LogPosition(2, 0, slept.witness)
    position = log.take_snapshot(position, SECOND.id, b"HISTORY1", body(), None)
    position = log.append(position, [THIRD], SECOND.id)
    log.take_snapshot(position, THIRD.id, b"HISTORY1", body(), None)
    log.compact()
    with suppress(UnreachableError):
        log.append(slept, [Vote(2, b"D" * 16)], FIRST.id)


def is_adopted_late(service: Service, log: ObjectLog) -> bool:
    """Return whether a sleeping writer goes by its own snapshot although the log was cut behind it."""
    slept = log.read().position
    go_on(log, slept)
    try:
        process(service).take_snapshot(slept, FIRST.id, b"HISTORY1", body(), None)
    except UnreachableError:
        return False
    return True


def go_on(log: ObjectLog, position: LogPosition) -> None:
    for entry, before in ((SECOND, FIRST), (THIRD, SECOND)):
        position = log.append(position, [entry], before.id)
        position = log.take_snapshot(position, entry.id, b"HISTORY1", body(), None)
    log.compact()


def is_stored(log: ObjectLog, position: LogPosition) -> bool:
    try:
        log.append(position, [Vote(2, b"D" * 16)], FIRST.id)
    except (UnreachableError, SupersededError):
        return False
    return True


@pytest.mark.parametrize(
    ("played", "mistake"),
    [
        (is_believed_when_its_number_goes_meanwhile, "looks_at_the_witness_before_it_creates"),
        (is_believed_after_a_killed_compaction, "removes_records_before_snapshots"),
        (is_adopted_late, "adopts_a_snapshot_that_came_late"),
        (is_read_as_another, "believes_in_records_whatever_their_tags"),
        (is_listed_as_another, "looks_at_the_witness_before_it_lists"),
    ],
)
def test_rule_that_seeds_seldom_need(
    service: Service, log: ObjectLog, played: Callable[[Service, ObjectLog], bool], mistake: str
) -> None:
    assert not played(service, log)
    random = Random(1)
    another = Service(Scheduler(random, 1), random, Odds())
    other = process(another)
    other.begin([Vote(1, b"C" * 16), FIRST], None)
    with object_mutants.made(mistake):
        assert played(another, other)
