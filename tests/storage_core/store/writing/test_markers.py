"""Delete markers: what takes the place of a subject that time took, once, in the entry that removes it."""

from typing import Any

import pytest
from harness.processes import SECOND_NS, Machine

from storage_core.errors import LimitExceededError
from storage_core.metadata.config import StreamConfig
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing import markers

TTL = ("Nats-TTL", b"10s")


def made(machine: Machine, **config: Any) -> Stream:
    store = machine.create()
    return store.add_stream({"name": "S", "subjects": ["s.>"], "subject_delete_marker_ttl": "1h5s", **config})


def row(subject: str, *headers: tuple[str, bytes], **more: Any) -> dict[str, Any]:
    return {"subject": f"s.{subject}", "data": b"x", "headers": list(headers) or None, **more}


def left(stream: Stream) -> list[tuple[int, str]]:
    """Return sequence and subject of each message, a marker's with an `!`."""
    rows = stream.read(columns=["sequence", "subject", "headers"]).read_all().to_pylist()
    reasons = [[pair for pair in one["headers"] or () if pair["key"] == markers.REASON] for one in rows]
    return [(one["sequence"], one["subject"][2:] + "!" * len(why)) for one, why in zip(rows, reasons, strict=True)]


def later(machine: Machine, seconds: float) -> Store:
    machine.clock.now += int(seconds * SECOND_NS)
    store = machine.open()
    store.maintain()
    return store


@pytest.mark.buckets
def test_age_leaves_a_marker_of_each_subject_and_none_of_a_marker() -> None:
    machine = Machine(1, 3)
    stream = made(machine, max_age="2h")
    stream.append([row("a"), row("b"), row("a"), row("c", (markers.REASON, b"Remove"))])
    consumer = stream.add_consumer({"name": "c"})
    later(machine, 3_600)
    stream.append([row("b", ("KV-Operation", b"PURGE"))])
    later(machine, 3_601)
    assert left(stream) == [(5, "b"), (6, "a!")]
    message = stream.get(6)
    assert message.headers == [
        (markers.REASON, b"MaxAge"), ("Nats-TTL", b"1h0m5s"), ("Nats-Rollup", b"sub"),
    ]  # fmt: skip
    assert (message.data, stream.state().data_size) == (b"", 21 + 55)
    assert consumer.info()["num_skipped"] == 4
    later(machine, 3_601)  # a purge of a client's leaves none
    assert left(stream) == [(6, "a!")]
    later(machine, 10)
    assert (left(stream), stream.last_sequence) == ([], 6)


def test_a_crash_at_each_call_leaves_every_marker_once() -> None:
    machine = Machine(2)
    stream = made(machine, max_age="1m")
    stream.append([row("a"), row("b", ("Nats-TTL", b"30s")), row("b"), row("a")])
    machine.clock.now += 61 * SECOND_NS
    outcomes = set()
    for trial in machine.ended_at_each_call(Store.maintain):
        outcomes.add(tuple(left(trial.open().stream("S"))))
        trial.open().maintain()
        assert left(trial.open().stream("S")) == [(5, "b!"), (6, "a!")]
    before, between = ((1, "a"), (2, "b"), (3, "b"), (4, "a")), ((1, "a"), (2, "b"), (5, "b!"), (6, "a!"))
    assert outcomes == {before, between, ((5, "b!"), (6, "a!"))}


def test_more_subjects_than_one_entry_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MARKERS_AT_ONCE_MAX", 100)
    monkeypatch.setattr(markers, "_ROWS_WAITING_MIN", 64)
    machine = Machine(3, 3)
    stream = made(machine, max_age="1m", block_max_msgs=50)
    stream.append([row(str(at % 310)) for at in range(1_000)])
    machine.clock.now += 61 * SECOND_NS
    stream.append([row("7"), row("8")])
    shown = left(stream)
    assert shown[-2:] == [(1_311, "7"), (1_312, "8")]
    last = {str(at % 310): at for at in range(1_000)}  # in the order of what they stand for
    assert [name for _, name in shown[:-2]] == [f"{name}!" for name in sorted(last, key=last.__getitem__)]


def test_they_go_by_the_limits_of_their_stream_and_are_no_reason_to_keep_what_is_over() -> None:
    machine = Machine(4)
    stream = made(
        machine, max_age="1m", max_msgs=2, max_msgs_per_subject=1, discard="new", discard_new_per_subject=True
    )
    stream.append([row("a"), row("b")])
    later(machine, 61)
    assert left(stream) == [(3, "a!"), (4, "b!")]
    with pytest.raises(LimitExceededError):
        stream.append([row("c")])
    later(machine, 61)
    stream.append([row("a", TTL)])  # "x", and a header: less than a marker has
    size = stream.state().data_size
    stream._store.edit_stream({"name": "S", "max_bytes": size})
    store = later(machine, 61)
    assert left(stream) == []
    (event,) = store.events(kind="markers_left_out")
    assert (event["stream"], "max_bytes" in event["reason"]) == ("S", True)


@pytest.mark.buckets
def test_what_nobody_can_read_now_waits_for_its_marker() -> None:
    machine = Machine(5)
    stream = made(machine, max_age="1m")
    stream.append([row("a")])
    machine.clock.now += 61 * SECOND_NS
    image = machine.disk.image()
    for path, _ in machine.disk.files():
        if path.suffix == ".blk":
            machine.disk.overwrite(path, bytes(500))
    machine.open().maintain()
    assert stream.state().message_count == 1
    machine.disk.restore(image)
    assert left(later(machine, 1).stream("S")) == [(2, "a!")]


def test_interest_and_subjects_that_the_stream_takes_no_more() -> None:
    machine = Machine(6)
    stream = made(machine, retention="interest", max_age="1m", max_msg_size=40)
    stream.add_consumer({"name": "c", "filter_subject": "s.a"})
    stream.append([row("a")])
    stream._store.edit_stream({"name": "S", "subjects": ["t.>"]})
    later(machine, 61)
    assert left(stream) == [(2, "a!")]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"subject_delete_marker_ttl": "999ms"}, "subject_delete_marker_ttl"),
        ({"subject_delete_marker_ttl": -1}, "subject_delete_marker_ttl"),
        ({"subject_delete_marker_ttl": "soon"}, "subject_delete_marker_ttl"),
        ({"subject_delete_marker_ttl": "1h", "allow_msg_ttl": False}, "allow_msg_ttl"),
        ({"subject_delete_marker_ttl": "1h", "allow_rollup_hdrs": False}, "allow_rollup_hdrs"),
        ({"subject_delete_marker_ttl": "1h", "deny_purge": True}, "deny_purge"),
    ],
)
def test_what_markers_cannot_be_with_is_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        StreamConfig.from_mapping({"name": "S", **config})


def test_the_key_can_be_taken_back() -> None:
    machine = Machine(7)
    stream = made(machine, max_age="1m")
    assert stream.info()["config"]["subject_delete_marker_ttl"] == 3_605 * SECOND_NS
    stream.append([row("a")])
    stream._store.edit_stream({"name": "S", "subject_delete_marker_ttl": 0})
    later(machine, 61)
    assert (left(stream), stream.info()["config"]["subject_delete_marker_ttl"]) == ([], 0)
