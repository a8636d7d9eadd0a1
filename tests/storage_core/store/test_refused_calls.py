"""A call that raises has no effect: state, log and caches are as they were, and the same call succeeds later.

Each public call that writes is tried in a process of its own, with a disk that is full from its N-th change on, for
every N, and, where there is a reason to refuse it, with that reason. When the cause has gone, the same process makes
the same call again: it gives what it gives in a store in which nothing was refused. So no cache has outlived the
attempt.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from harness.cases import Cases
from harness.faults import Call, FaultyFiles
from harness.life import stage
from harness.model import Row
from harness.processes import Machine

from storage_core.errors import (
    AlreadyExistsError,
    DataLossError,
    LimitExceededError,
    NotFoundError,
    OutcomeUnknownError,
    RequirementError,
    StorageError,
)
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import encode_state
from storage_core.store.consumers.query import QueryReader, QueryStart
from storage_core.store.ensemble.session import Session
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch

HOUR_S = 3600
AGED, KEPT = ({"name": name, "subjects": [f"{name.lower()}.*"]} for name in ("AGED", "KEPT"))
ROLLUP = [("Nats-Rollup", b"sub")]


def row(subject: str) -> dict[str, Any]:
    return {"subject": subject, "data": b"y"}


def made(volume_count: int = 1) -> Machine:
    """Return a machine with a store in which each kind of stream has messages, some of them over their time."""
    machine = Machine(26, volume_count)
    store = machine.create()
    aged = store.add_stream({**AGED, "max_age": "1h", "subject_delete_marker_ttl": "9h"})
    aged.append([{"subject": f"aged.{number}", "data": b"x"} for number in range(3)])
    machine.clock.sleep(HOUR_S + 1)
    kept = store.add_stream({**KEPT, "max_msgs_per_subject": 2, "allow_rollup_hdrs": True})
    for name in "abab":
        kept.publish(f"kept.{name}", b"x")
    few = store.add_stream({"name": "FEW", "subjects": ["few.*"], "max_msgs": 3})
    few.append([{"subject": "few.a", "data": b"%d" % number} for number in range(3)])
    full = store.add_stream({"name": "FULL", "subjects": ["full.*"], "max_msgs": 3, "discard": "new"})
    full.append([{"subject": "full.a", "data": b"%d" % number} for number in range(3)])
    queue = store.add_stream({"name": "QUEUE", "subjects": ["queue.*"], "retention": "workqueue"})
    queue.append([{"subject": "queue.a", "data": b"%d" % number} for number in range(5)])
    reader = queue.add_consumer({"name": "reader", "ack_wait": "100h"})
    reader.fetch(3)
    store.add_stream({"name": "IDS", "subjects": ["ids"], "allow_rollup_hdrs": True}).publish("ids", b"x", msg_id="one")
    store.add_stream({"name": "BOUND", "deny_delete": True, "deny_purge": True}).publish("BOUND", b"x")
    return machine


def seen(store: Store) -> dict[str, Any]:
    """Return what users see of a store: all but ids, times and events."""
    shown: dict[str, Any] = {"settings": store.view().state.settings.to_json()}
    for name in store.streams():
        stream = store.stream(name)
        messages = stream.read(columns=["sequence", "subject", "data", "headers"]).read_all().to_pylist()
        state = stream.state()
        consumers = {
            consumer: (at.config, at.next_sequence, list(at.done.ranges()), at.pending.rows["deliveries"].tolist())
            for consumer, at in ((known, stream.consumer(known).state()) for known in stream.consumers())
        }
        counts = state.message_count, state.data_size, state.next_sequence, len(state.placement)
        shown[name] = (state.config.to_json(), messages, counts, consumers)
    return shown


def logs(machine: Machine) -> dict[str, bytes]:
    """Return the bytes of all files of the metadata logs."""
    return {
        str(path): bytes(machine.disk.inode(path).content) for path, _ in machine.disk.files() if "meta" in path.parts
    }


# --- every call that writes, on a disk that is full at any moment


def commit_several(store: Store) -> object:
    transaction = store.begin(["KEPT", "FEW"])
    staged = stage(store, transaction, {"KEPT": [Row("kept.a", b"y")], "FEW": [Row("few.a", b"y")]})
    return store.commit(transaction, staged, WriterBatch("w", "1"), overwrite=["FEW"]).appended


def query_of_several(store: Store) -> object:
    reader = QueryReader(store, "etl")
    try:
        at = reader.begin({"KEPT": QueryStart(1, ""), "FEW": QueryStart(2, "startingOffsets")})
        at = reader.reconcile(at, FAIL, "")
        reader.acknowledge({name: position.position for name, position in at.items()})
        return {name: position.position.next_sequence for name, position in at.items()}
    finally:
        reader.close()


def consumer(store: Store) -> Any:
    return store.stream("QUEUE").consumer("reader")


WRITES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.stream("KEPT").append([row("kept.a")] * 3),
    "append of a batch": lambda store: store.stream("FEW").append([row("few.b")], WriterBatch("w", "1")),
    "append over a limit": lambda store: store.stream("FEW").append([row("few.b")] * 2),
    "append with markers": lambda store: store.stream("AGED").publish("aged.9", b"y"),
    "publish": lambda store: store.stream("IDS").publish("ids", b"y", msg_id="two"),
    "publish a duplicate": lambda store: store.stream("IDS").publish("ids", b"y", msg_id="one"),
    "publish a rollup": lambda store: store.stream("KEPT").publish("kept.a", b"y", headers=ROLLUP),
    "commit over several streams": commit_several,
    "abort": lambda store: store.abort(store.begin(["KEPT"])),
    "add_stream": lambda store: store.add_stream({"name": "NEW"}).config.to_json(),
    "edit_stream": lambda store: store.edit_stream({"name": "FEW", "max_msgs": 1}).config.to_json(),
    "delete_stream": lambda store: store.delete_stream("FEW"),
    "edit": lambda store: store.edit(max_streams=9),
    "remove": lambda store: store.stream("FEW").remove([2]),
    "purge": lambda store: store.stream("FEW").purge(keep=1),
    "add_consumer": lambda store: store.stream("FEW").add_consumer({"name": "c"}).config,
    "fetch": lambda store: consumer(store).fetch(2).select(["sequence", "delivery_count"]).to_pylist(),
    "ack": lambda store: consumer(store).ack([1, 2]),
    "nak": lambda store: consumer(store).nak([1], 9.0),
    "term": lambda store: consumer(store).term([3]),
    "reset": lambda store: consumer(store).reset(),
    "pause": lambda store: consumer(store).pause(9.0),
    "delete a consumer": lambda store: consumer(store).delete(),
    "a query over several streams": query_of_several,
}


def as_values(result: object) -> object:
    return {"config": result.config.to_json()} if hasattr(result, "incarnation") else result


@pytest.mark.parametrize("name", WRITES)
def test_a_call_that_fails_at_any_change_of_the_disk_has_no_effect_and_succeeds_later(name: str) -> None:
    write, number, machine, cases = WRITES[name], 0, made(), Cases(f"a full disk, {name}")
    fresh = machine.copy()
    expected = as_values(write(fresh.open())), seen(fresh.open())
    has_failed = True
    while has_failed:
        with cases.case(f"call {number}"):
            has_failed = is_as_before(write, machine.copy(), number, expected)
        number += 1
    cases.finish()
    assert cases.count > 2


def is_as_before(write: Callable[[Store], object], trial: Machine, number: int, expected: object) -> bool:
    """Try a call on a disk that is full from its change of this number on, then once more; return whether it failed."""
    failed, is_full = list[Call](), False

    def judge(call: Call) -> int:
        if is_full and call.operation in ("create", "write", "make_directory") and call.number >= number:
            failed.append(call)
            return errno.ENOSPC
        return 0

    files = FaultyFiles(trial.disk.process(), judge, is_armed=False)
    store = trial.open(files)
    before = encode_state(store.view().state), store.view().index
    files.is_armed = is_full = True
    try:
        result = as_values(write(store))
    except OutcomeUnknownError:
        raise
    except StorageError:
        assert failed
        files.is_armed = is_full = False
        assert (encode_state(trial.open(read_only=True).view().state), store.view().index) == before, failed[0]
        result = as_values(write(store))
    assert (result, seen(trial.open())) == expected, failed[:1]
    return bool(failed)


# --- every call that may be refused


@dataclass(frozen=True)
class Refusal:
    """A call that is refused; `mended` is what it is once the reason has gone, and gives what it gives elsewhere."""

    error: type[Exception]
    call: Callable[[Store], object]
    mended: Callable[[Store], object]


def half_of_a_job(store: Store) -> object:
    def job(session: Session) -> None:
        session.propose(RecordEvents((Event("asked", reason="half of a job"),)))
        raise RequirementError("the other half is refused")

    return store.together(job)


def overwritten(store: Store) -> object:
    """Commit to several streams, one of which is full: none gets anything."""
    transaction = store.begin(["KEPT", "FULL"])
    staged = stage(store, transaction, {"KEPT": [Row("kept.a", b"y")], "FULL": [Row("full.a", b"y")]})
    return store.commit(transaction, staged)


def begun(store: Store, *names: str) -> object:
    reader = QueryReader(store, "READER")
    try:
        return {
            name: at.position.next_sequence
            for name, at in reader.begin({name: QueryStart(1, "") for name in names}).items()
        }
    finally:
        reader.close()


REFUSALS: dict[str, Refusal] = {
    "half of a job": Refusal(RequirementError, half_of_a_job, lambda store: None),
    "append to a full stream": Refusal(
        LimitExceededError,
        lambda store: store.stream("FULL").append([row("full.a")]),
        lambda store: (store.stream("FULL").remove([1]), store.stream("FULL").append([row("full.a")])),
    ),
    "append to several, one of which is full": Refusal(
        LimitExceededError, overwritten, lambda store: store.stream("KEPT").publish("kept.a", b"y")
    ),
    "edit that takes back a flag, and replicas": Refusal(
        RequirementError,
        lambda store: store.edit_stream({"name": "BOUND", "num_replicas": 1, "deny_purge": False}),
        lambda store: store.edit_stream({"name": "BOUND", "num_replicas": 1}),
    ),
    "edit to another retention, and replicas": Refusal(
        RequirementError,
        lambda store: store.edit_stream({"name": "BOUND", "num_replicas": 1, "retention": "workqueue"}),
        lambda store: store.edit_stream({"name": "BOUND", "max_msgs": 9}),
    ),
    "edit to more replicas than there are volumes": Refusal(
        ValueError,
        lambda store: store.edit_stream({"name": "BOUND", "num_replicas": 5, "max_msgs": 9}),
        lambda store: store.edit_stream({"name": "BOUND", "num_replicas": 3, "max_msgs": 9}),
    ),
    "a stream that there is": Refusal(
        AlreadyExistsError,
        lambda store: store.add_stream({"name": "few"}),
        lambda store: store.add_stream({"name": "X"}),
    ),
    "more streams than the store takes": Refusal(
        ValueError, lambda store: store.edit(max_streams=-2), lambda store: store.edit(max_streams=50)
    ),
    "a stream that there is not": Refusal(
        NotFoundError, lambda store: store.delete_stream("FEWER"), lambda store: store.delete_stream("FEW")
    ),
    "a consumer that there is": Refusal(
        AlreadyExistsError,
        lambda store: store.stream("QUEUE").add_consumer({"name": "reader"}),
        lambda store: store.stream("FEW").add_consumer({"name": "reader"}).config,
    ),
    "a second consumer of a work queue": Refusal(
        RequirementError,
        lambda store: store.stream("QUEUE").add_consumer({"name": "other"}),
        lambda store: consumer(store).fetch(1).num_rows,
    ),
    "a query of several streams, one of which has its name in another case": Refusal(
        ValueError, lambda store: begun(store, "FEW", "KEPT", "QUEUE"), lambda store: begun(store, "FEW", "KEPT")
    ),
    "remove where nothing is deleted": Refusal(
        RequirementError,
        lambda store: store.stream("BOUND").remove([1]),
        lambda store: store.stream("FEW").remove([1]),
    ),
    "purge where nothing is purged": Refusal(
        RequirementError, lambda store: store.stream("BOUND").purge(), lambda store: store.stream("FEW").purge()
    ),
    "a change of volumes to a number that there cannot be": Refusal(
        ValueError,
        lambda store: store.remove_volumes([store.volumes()[0].volume_id.hex()]),
        lambda store: store.stream("FEW").publish("few.a", b"y"),
    ),
    "a sequence that the stream has given": Refusal(
        RequirementError,
        lambda store: store.stream("FEW").restore([kept_at(1)], WriterBatch("w", "1")),
        lambda store: store.stream("FEW").restore([kept_at(9)], WriterBatch("w", "1")),
    ),
}


def kept_at(sequence: int) -> Any:
    return pa.record_batch({"subject": ["few.a"], "data": [b"y"], "sequence": pa.array([sequence], pa.int64())})


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_call_leaves_state_log_and_caches_as_they_were(name: str) -> None:
    refusal, machine = REFUSALS[name], made(3)
    fresh = machine.copy()
    expected = as_values(refusal.mended(fresh.open())), seen(fresh.open())
    store = machine.open()  # which has not led: a vote would be a change as well
    with store.session():
        pass  # maintenance that was due
    before = encode_state(store.view().state), logs(machine)
    for _ in range(2):
        with pytest.raises(refusal.error):
            refusal.call(store)
        assert (encode_state(store.view().state), logs(machine)) == before
    assert (as_values(refusal.mended(store)), seen(machine.open())) == expected


@pytest.mark.parametrize("volume_count", [1, 3])
def test_a_rollup_that_cannot_read_what_it_replaces_stores_nothing(volume_count: int) -> None:
    machine = made(volume_count)
    stream = machine.open().stream("KEPT")
    block_id = bytes(stream.state().blocks.rows["block_id"][0])
    paths = [volume.blocks.path(stream.incarnation, block_id) for volume in machine.open().volumes()]
    whole = [bytes(machine.disk.inode(path).content) for path in paths]
    for path in paths:
        machine.disk.flip_bit(path, 8 * 300)
    before = stream.state().next_sequence
    for _ in range(2):
        with pytest.raises(DataLossError):
            stream.publish("kept.a", b"y", headers=ROLLUP)
        assert stream.state().next_sequence == before
    for path, content in zip(paths, whole, strict=True):
        machine.disk.overwrite(path, content)
    assert machine.open().stream("KEPT").publish("kept.a", b"y", headers=ROLLUP).sequence == before
    assert stream.read(subject="kept.a", columns=["data"]).read_all()["data"].to_pylist() == [b"y"]
