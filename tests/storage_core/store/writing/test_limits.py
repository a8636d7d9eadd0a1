"""Limits of a stream: what goes when it is full, what is refused, and that nothing goes that should have stayed."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.processes import SECOND_NS, Machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.errors import InvalidMessageError, LimitExceededError
from storage_core.store.consumers.lag import consumer_report
from storage_core.store.reading import reading
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing import limits

HOUR_NS = 3_600 * SECOND_NS


def made(machine: Machine, **config: Any) -> Stream:
    store = machine.create()
    return store.add_stream({"name": "S", "subjects": ["s"], **config})


def rows(*data: str) -> list[dict[str, Any]]:
    return [{"subject": "s", "data": one.encode()} for one in data]


def data_of(stream: Stream) -> list[str]:
    return [one.decode() for one in stream.read(columns=["data"]).read_all().column("data").to_pylist()]


def sequences_of(stream: Stream) -> list[int]:
    return stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()


# --- the oldest go


@pytest.mark.buckets
def test_a_full_stream_keeps_the_newest_messages() -> None:
    stream = made(Machine(1), max_msgs=3)
    assert stream.append(rows("a", "b", "c", "d", "e")) == range(1, 6)
    assert (data_of(stream), stream.first_sequence, stream.last_sequence) == (["c", "d", "e"], 3, 5)
    assert stream.publish("s", "f").sequence == 6
    assert (data_of(stream), stream.state().message_count, stream.state().data_size) == (["d", "e", "f"], 3, 6)


def test_bytes_count_subject_and_data_of_what_is_shown() -> None:
    stream = made(Machine(2), max_bytes=10)
    stream.append(rows("1", "22", "333"))  # 2, 3 and 4 bytes with the subject
    assert data_of(stream) == ["1", "22", "333"]
    stream.remove(2)
    stream.publish("s", "666666")
    assert (data_of(stream), stream.state().data_size) == (["666666"], 7)
    stream.publish("s", "22")
    assert (data_of(stream), stream.state().data_size) == (["666666", "22"], 10)


def test_headers_count_as_bytes() -> None:
    stream = made(Machine(19), max_bytes=20)
    stream.append([{"subject": "s", "data": b"%d" % at, "headers": [("key", b"val")] * at} for at in range(4)])
    assert (data_of(stream), stream.state().data_size) == (["3"], 20)  # 2, 8, 14 and 20 bytes
    stream.remove(4)
    stream.append([{"subject": "s", "data": b"%d" % at, "headers": [("key", b"val")] * at} for at in (2, 0, 1)])
    assert (data_of(stream), stream.state().data_size) == (["0", "1"], 10)


def test_what_is_too_old_goes_with_the_next_append_and_by_maintenance() -> None:
    machine = Machine(3)
    stream = made(machine, max_age="1h")
    stream.append(rows("a", "b"))
    machine.clock.now += HOUR_NS // 2
    stream.append(rows("c"))
    machine.clock.now += HOUR_NS // 2 + SECOND_NS
    assert data_of(stream) == ["a", "b", "c"]  # readers go by what is committed, not by clocks
    stream.append(rows("d"))
    assert data_of(stream) == ["c", "d"]
    machine.clock.now += HOUR_NS
    machine.open().maintain()
    assert (data_of(stream), stream.first_sequence, stream.last_sequence) == ([], 5, 4)


def test_a_clock_that_was_set_back_removes_nothing() -> None:
    machine = Machine(4)
    stream = made(machine, max_age="1h")
    stream.append(rows("a"))
    machine.clock.now -= 5 * HOUR_NS
    stream.append(rows("b"))
    machine.open().maintain()
    assert data_of(stream) == ["a", "b"]


def test_a_message_from_the_future_keeps_those_behind_it() -> None:
    machine = Machine(5)
    stream = made(machine, max_age="1h")
    now = machine.clock.now
    times = [now, now + 3 * HOUR_NS, now]
    stream.append([{"subject": "s", "data": b"%d" % at, "timestamp_ns": time} for at, time in enumerate(times)])
    machine.clock.now += 2 * HOUR_NS
    machine.open().maintain()
    assert data_of(stream) == ["1", "2"]
    machine.clock.now += 3 * HOUR_NS
    machine.open().maintain()
    assert data_of(stream) == []


def test_the_edge_of_an_old_block_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = made(Machine(6), max_msgs=50, max_bytes=10_000)
    stream.append(rows(*map(str, range(50))))
    read = []
    monkeypatch.setattr(limits, "ask_block", lambda *a: read.append(a) or reading.ask_block(*a))
    for number in range(50, 70):
        stream.publish("s", str(number))
    assert (len(read), data_of(stream)) == (1, [str(number) for number in range(20, 70)])


@pytest.mark.parametrize("room", [limits.KEPT_SIZE_MAX, 5_000])
@pytest.mark.parametrize("key", ["max_bytes", "max_msgs"])
def test_blocks_that_this_process_wrote_are_not_read_at_the_edge(
    key: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as there is room for their sizes; a process that did not write them comes to the same by reading."""
    read = []
    monkeypatch.setattr(limits, "ask_block", lambda *a: read.append(a) or reading.ask_block(*a))
    monkeypatch.setattr(limits, "KEPT_SIZE_MAX", room)
    lengths = np.random.default_rng(8).integers(0, 300, 24_000)
    value = {"max_bytes": 550_000, "max_msgs": 3_501}[key]
    machine = Machine(20)
    writer = made(machine, **{key: value})
    for number, start in enumerate(range(0, len(lengths), 2_000)):
        stream = machine.open().stream("S") if number > 8 else writer
        appended = pa.table({"data": [bytes(length) for length in lengths[start : start + 2_000].tolist()]})
        stream.append(appended)
        shown = np.array(sequences_of(stream))
        sizes = lengths[: start + 2_000] + len("s")
        newest = np.cumsum(sizes[::-1])
        count = int(np.searchsorted(newest, value, side="right")) if key == "max_bytes" else min(value, len(sizes))
        assert shown.tolist() == list(range(len(sizes) - count + 1, len(sizes) + 1))
        assert stream.state().data_size == int(newest[count - 1])
        if number == 8:
            assert bool(read) == (room == 5_000)
    assert read


def test_millions_over_a_limit_go_in_one_entry() -> None:
    machine = Machine(7)
    stream = made(machine, block_max_msgs=10_000)
    stream.append(rows(*map(str, range(30_000))))
    store = machine.open()
    before = store.view().index
    store.edit_stream({"name": "S", "max_msgs": 5})
    assert (sequences_of(stream), store.view().index) == ([29_996, 29_997, 29_998, 29_999, 30_000], before + 2)


def test_what_a_lower_limit_would_remove_is_known_before() -> None:
    machine = Machine(8)
    stream = made(machine)
    stream.append(rows("a", "bb", "ccc"))
    store = machine.open()
    assert stream.excess({"max_msgs": 3}) is None
    assert stream.excess({"max_msgs": 1}) == limits.Excess(3, 2, 5)
    assert stream.excess({"max_msgs": 1, "discard": "new"}) is None
    assert data_of(stream) == ["a", "bb", "ccc"]
    store.edit_stream({"name": "S", "max_msgs": 1})
    assert data_of(stream) == ["ccc"]


def test_deny_purge_is_no_hindrance_and_a_sealed_stream_keeps_everything() -> None:
    machine = Machine(9)
    stream = made(machine, max_age="1h", deny_purge=True, deny_delete=True)
    stream.append(rows("a"))
    machine.clock.now += 2 * HOUR_NS
    stream.append(rows("b"))
    assert data_of(stream) == ["b"]
    store = machine.open()
    store.edit_stream({"name": "S", "sealed": True})
    machine.clock.now += 2 * HOUR_NS
    store.maintain()
    assert data_of(stream) == ["b"]


def test_consumers_miss_what_a_limit_takes_and_have_not_acknowledged_it() -> None:
    machine = Machine(10)
    stream = made(machine, max_msgs=2)
    stream.append(rows("a", "b"))
    consumer = stream.add_consumer({"name": "c"})
    consumer.fetch(1)
    stream.append(rows("c", "d"))
    info = stream.consumer("c").info()
    assert (info["num_skipped"], info["num_ack_pending"]) == (2, 0)
    said = "2 messages were removed by a limit before they were acknowledged; 2 in all"
    assert said in [event["reason"] for event in info["events"]]
    store = machine.open()
    assert [one["num_skipped"] for one in consumer_report(store)] == [2]
    assert ("consumer_skipped", "S", "c", said) in [
        (event["kind"], event["stream"], event["consumer"], event["reason"]) for event in store.events()
    ]


@pytest.mark.buckets
def test_an_append_stays_stored_where_the_edge_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(11)
    stream = made(machine, max_msgs=2)
    stream.append(rows("a", "b"))
    with monkeypatch.context() as patched:
        patched.setattr(limits, "ask_block", fail)
        assert stream.publish("s", "c").sequence == 3
    assert data_of(stream) == ["a", "b", "c"]
    stream.publish("s", "d")
    assert data_of(stream) == ["c", "d"]


def fail(*_: object, **__: object) -> None:
    raise OSError("no")


# --- new ones are refused


@pytest.mark.parametrize(
    ("config", "limit", "value", "present", "given"),
    [({"max_msgs": 3}, "max_msgs", 3, 2, 2), ({"max_bytes": 5}, "max_bytes", 5, 4, 4)],
)
def test_a_full_stream_that_keeps_the_old_refuses_whole_appends(
    config: dict[str, int], limit: str, value: int, present: int, given: int
) -> None:
    stream = made(Machine(12), discard="new", **config)
    stream.append(rows("a", "b"))
    with pytest.raises(LimitExceededError) as raised:
        stream.append(rows("c", "d"))
    wanted = {"stream": "S", "limit": limit, "value": value, "present": present, "given": given}
    assert (raised.value.code, raised.value.fields) == ("JSTREAM_LIMIT_EXCEEDED", wanted)
    assert data_of(stream) == ["a", "b"]
    stream.remove(1)
    stream.append(rows("c"))
    assert data_of(stream) == ["b", "c"]


def test_a_duplicate_needs_no_room() -> None:
    stream = made(Machine(13), discard="new", max_msgs=1)
    assert stream.publish("s", "a", msg_id="1") == (1, False)
    assert stream.publish("s", "a", msg_id="1") == (1, True)
    with pytest.raises(LimitExceededError):
        stream.publish("s", "b", msg_id="2")


def test_what_is_too_old_makes_room_where_new_messages_would_be_refused() -> None:
    machine = Machine(14)
    stream = made(machine, discard="new", max_msgs=1, max_age="1h")
    stream.publish("s", "a")
    machine.clock.now += 2 * HOUR_NS
    stream.publish("s", "b")
    assert data_of(stream) == ["b"]


def test_a_message_larger_than_the_stream_is_refused() -> None:
    stream = made(Machine(15), max_bytes=10)
    with pytest.raises(InvalidMessageError, match="message of 11 bytes"):
        stream.publish("s", "0123456789")
    stream.publish("s", "012345678")
    assert data_of(stream) == ["012345678"]


def test_consumers_are_limited() -> None:
    machine = Machine(16)
    stream = made(machine, max_consumers=1)
    stream.add_consumer({"name": "a"})
    with pytest.raises(LimitExceededError) as raised:
        stream.add_consumer({"name": "b"})
    assert (raised.value.limit, raised.value.value, raised.value.present) == ("max_consumers", 1, 1)
    machine.open().edit_stream({"name": "S", "max_consumers": 2})
    stream.add_consumer({"name": "b"})
    assert stream.consumers() == ["a", "b"]


# --- by hand


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.sets(st.integers(1, 12)),
    st.integers(0, 10),
    st.one_of(st.none(), st.integers(0, 4)),
)
@settings(max_examples=30, deadline=None)
def test_a_purge_by_time_takes_older_messages_wherever_they_are(
    times: list[int], removed: set[int], before: int, keep: int | None
) -> None:
    stream = made(Machine(18), block_max_msgs=3)
    stream.append([{"subject": "s", "data": b"", "timestamp_ns": time * SECOND_NS} for time in times])
    stream.remove(sorted(removed))
    shown = sequences_of(stream)
    older = [one for one in shown if times[one - 1] < before]
    gone = older[: max(0, len(older) - (keep or 0))]
    assert stream.purge(before_ns=before * SECOND_NS, keep=keep) == len(gone)
    assert sequences_of(stream) == [one for one in shown if one not in gone]
    assert stream.state().data_size == len(shown) - len(gone)


# --- against a slow, obvious version


@dataclass
class Model:
    """What a stream with limits shows: (sequence, time, bytes), as a list that is walked."""

    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    discard: str = "old"
    messages: list[tuple[int, int, int]] = field(default_factory=list)

    def expire(self, now_ns: int) -> None:
        while self.max_age and self.messages and self.messages[0][1] <= now_ns - self.max_age:
            self.messages.pop(0)

    def trim(self, now_ns: int) -> None:
        self.expire(now_ns)
        while self.discard == "old" and self.is_over():
            self.messages.pop(0)

    def is_over(self) -> bool:
        size = sum(size for _, _, size in self.messages)
        return 0 <= self.max_msgs < len(self.messages) or 0 <= self.max_bytes < size

    def append(self, added: list[tuple[int, int, int]], now_ns: int) -> bool:
        self.expire(now_ns)
        grown = replace(self, messages=[*self.messages, *added])
        if self.discard == "new" and grown.is_over():
            return False
        self.messages = grown.messages
        self.trim(now_ns)
        return True


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_msgs": st.sampled_from([-1, 1, 3, 8]),
        "max_bytes": st.sampled_from([-1, 8, 30]),
        "max_age": st.sampled_from([0, 60 * SECOND_NS, 600 * SECOND_NS]),
        "discard": st.sampled_from(["old", "new"]),
    },
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, 6), min_size=1, max_size=6)),
        st.tuples(st.just("append at"), st.lists(st.integers(-400, 100), min_size=1, max_size=4)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("purge"), st.integers(0, 4)),
        st.tuples(st.just("wait"), st.sampled_from([1, 70, 700, -90])),
        st.tuples(st.just("edit"), LIMITS),
        st.tuples(st.just("maintain"), st.none()),
    ),
    max_size=14,
)


@pytest.mark.parametrize("remembered_rows_min", [1, limits.REMEMBERED_ROWS_MIN])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=LIMITS, operations=OPERATIONS)
def test_a_stream_shows_what_a_list_with_limits_does(
    config: dict[str, Any],
    operations: list[tuple[str, Any]],
    remembered_rows_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REMEMBERED_ROWS_MIN", remembered_rows_min)
    machine = Machine(17)
    stream = made(machine, **{"block_max_msgs": 4, "duplicate_window": 0, **config})
    store, model = machine.open(), Model(**config)
    for what, value in operations:
        _do(machine, store, stream, model, what, value)
        state = stream.state()
        assert sequences_of(stream) == [one for one, _, _ in model.messages], what
        assert (state.message_count, state.data_size) == (len(model.messages), sum(one for *_, one in model.messages))


def _do(machine: Machine, store: Store, stream: Stream, model: Model, what: str, value: Any) -> None:
    now = machine.clock.now
    if what in ("append", "append at"):
        lengths = value if what == "append" else [1] * len(value)
        times = [now + one * SECOND_NS for one in value] if what == "append at" else [now] * len(value)
        given = [
            {"subject": "s", "data": b"x" * length, "timestamp_ns": time}
            for length, time in zip(lengths, times, strict=True)
        ]
        first = stream.last_sequence + 1
        added = [(first + at, times[at], 1 + lengths[at]) for at in range(len(value))]
        if model.append(added, now):
            assert stream.append(pa.Table.from_pylist(given)) == range(first, first + len(value))
        else:
            with pytest.raises(LimitExceededError):
                stream.append(pa.Table.from_pylist(given))
    elif what == "remove" and model.messages:
        sequence = model.messages[value % len(model.messages)][0]
        stream.remove(sequence)
        model.messages = [one for one in model.messages if one[0] != sequence]
    elif what == "purge":
        stream.purge(keep=value)
        model.messages = model.messages[len(model.messages) - min(value, len(model.messages)) :]
    elif what == "wait":
        machine.clock.now += value * SECOND_NS
    elif what == "edit":
        store.edit_stream({"name": "S", **value})
        for key, limit in value.items():
            setattr(model, key, limit)
        model.trim(now)
    elif what == "maintain":
        store.maintain()
        model.trim(now)


def test_what_is_left_of_a_block_of_several_frames_is_counted_exactly(tmp_path: Path) -> None:
    """Only the frames up to the edge are read; who comes back for more of the same block gets it."""
    rows = 200_000  # more than three frames
    lengths = np.random.default_rng(7).integers(0, 40, rows)
    lengths[150_000:] *= 3  # what the others weigh says little of these
    sizes = lengths + len("s.x")
    store = Store.create(tmp_path / "volume")
    stream = store.add_stream({"name": "S", "subjects": ["s.x"]})
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(bytes(int(ends[-1])))]
    )
    stream.append(pa.table({"subject": ["s.x"] * rows, "data": data}))
    stream.remove([1, 70_000, rows])
    sizes[[0, 69_999, rows - 1]] = 0
    newest = np.cumsum(sizes[::-1])  # bytes of the newest so many rows
    for key, place in (("max_bytes", 30_001), ("max_msgs", 60_000), ("max_msgs", 61_000), ("max_bytes", 150_500)):
        left = rows - place
        value = left if key == "max_msgs" else int(newest[left - 1])
        store.edit_stream({"name": "S", "max_msgs": -1, "max_bytes": -1, key: value})
        shown = stream.read(columns=["sequence"]).read_all().column("sequence").to_numpy()
        state = stream.state()
        assert (state.message_count, state.data_size) == (len(shown), int(sizes[shown - 1].sum()))
        assert state.message_count == value if key == "max_msgs" else value - 123 < state.data_size <= value
