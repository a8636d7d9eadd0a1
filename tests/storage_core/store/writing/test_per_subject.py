"""Limits of single subjects: which messages go, also within one append, what is refused, and who has missed it."""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from harness.life import commit, stage
from harness.model import Row
from harness.processes import Machine
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import DataLossError, LimitExceededError
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing import appends, per_subject
from storage_core.store.writing.appends import WriterBatch


def made(machine: Machine, **config: Any) -> Stream:
    return machine.create().add_stream({"name": "S", "subjects": ["*"], "max_msgs_per_subject": 1, **config})


def rows(text: str) -> list[dict[str, Any]]:
    """Return messages of one letter each: the subject; upper case has two bytes of data, lower case one."""
    return [{"subject": letter.lower(), "data": b"xx" if letter.isupper() else b"x"} for letter in text]


def left(stream: Stream) -> list[int]:
    sequences: list[int] = stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
    return sequences


@pytest.mark.buckets
def test_the_newest_of_each_subject_stay_and_one_entry_does_it() -> None:
    machine = Machine(1)
    stream = made(machine)
    stream.append(rows("abA"))
    assert (left(stream), stream.state().data_size) == ([2, 3], 5)
    before = machine.open().view().index
    stream.append(rows("bcBd"))
    assert (left(stream), stream.state().data_size) == ([3, 5, 6, 7], 3 + 2 + 3 + 2)
    assert machine.open().view().index == before + 1


def test_consumers_have_missed_what_went() -> None:
    stream = made(Machine(2))
    consumer = stream.add_consumer({"name": "c"})
    stream.append(rows("aba"))
    info = consumer.info()
    assert (info["num_skipped"], info["events"][-1]["reason"][:29]) == (1, "1 messages were removed by a ")
    assert consumer.fetch(9, 0).column("sequence").to_pylist() == [2, 3]


def test_what_goes_makes_room_in_a_full_stream_that_keeps_the_old() -> None:
    stream = made(Machine(3), discard="new", max_msgs=2, max_bytes=5)
    stream.append(rows("ab"))
    stream.append(rows("aB"))
    assert left(stream) == [3, 4]
    for more, limit in (("c", "max_msgs"), ("A", "max_bytes")):
        with pytest.raises(LimitExceededError) as refused:
            stream.append(rows(more))
        assert refused.value.limit == limit
    assert left(stream) == [3, 4]


def test_a_stream_may_refuse_new_messages_of_a_subject_that_has_its_number() -> None:
    stream = made(Machine(4), discard="new", discard_new_per_subject=True, max_msgs_per_subject=2)
    stream.append(rows("aab"))
    with pytest.raises(LimitExceededError) as refused:
        stream.append(rows("cba"))
    wanted = {
        "stream": "S", "limit": "max_msgs_per_subject", "value": 2, "present": 2, "given": 1, "subject": "a",
    }  # fmt: skip
    assert (refused.value.fields, left(stream)) == (wanted, [1, 2, 3])
    with pytest.raises(LimitExceededError):
        stream.append(rows("ccc"))
    stream.remove(1)
    stream.append(rows("cbac"))
    assert left(stream) == [2, 3, 4, 5, 6, 7]


def test_a_duplicate_takes_no_place() -> None:
    stream = made(Machine(5))
    stream.publish("a", "1", msg_id="1")
    stream.publish("a", "2", msg_id="2")
    assert stream.publish("a", "1", msg_id="1").duplicate
    assert left(stream) == [2]
    first = {"subject": "b", "data": b"", "msg_id": "3"}
    stream.append([first, first])
    assert left(stream) == [2, 4]


def test_a_batch_that_comes_again_removes_nothing() -> None:
    stream = made(Machine(6))
    stream.append(rows("a"), WriterBatch("w", "1"))
    stream.append(rows("a"), WriterBatch("w", "2"))
    stream.append(rows("a"), WriterBatch("w", "1"))
    assert left(stream) == [2]


@pytest.mark.parametrize("refuses", [False, True])
def test_where_a_block_is_lost_subjects_keep_more_or_the_append_is_refused(
    refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(7)
    stream = made(machine, max_msgs_per_subject=2, discard="new", discard_new_per_subject=refuses)
    for text in ("a", "b", "a"):
        stream.append(rows(text))
    block_id = bytes(stream.state().blocks.rows["block_id"][0])
    machine.disk.remove(machine.open().volumes()[0].blocks.path(stream.incarnation, block_id))
    stream = machine.open().stream("S")
    if refuses:
        with pytest.raises(DataLossError):
            stream.append(rows("a"))
        return
    with caplog.at_level(logging.WARNING):
        stream.append(rows("a"))
    assert (stream.state().message_count, "may keep more messages than their limit" in caplog.text) == (4, True)
    stream.append(rows("aab"))
    assert list(stream.state().shown().ranges()) == [(1, 3), (5, 8)]


@pytest.mark.buckets
def test_a_crash_in_an_append_leaves_all_of_it_or_nothing() -> None:
    machine = Machine(8)
    made(machine).append(rows("abc"))
    outcomes = set()
    for trial in machine.ended_at_each_call(lambda store: store.stream("S").append(rows("aab"))):
        outcomes.add(tuple(left(trial.open().stream("S"))))
    assert outcomes == {(1, 2, 3), (3, 5, 6)}


def test_what_a_group_of_commits_took_back_was_never_there() -> None:
    machine = Machine(10)
    stream = made(machine)
    stream.append(rows("c"))
    store: Any = stream._store
    transaction = store.begin(["S"])
    staged = stage(store, transaction, {"S": [Row("a", b"x"), Row("b", b"x")]})
    known = store._window, store._limits, store._subjects

    def commit_and_fail() -> None:
        with store.session() as session, session.group():
            appends.commit(session, transaction, staged, None, (), "", *known, store.environment)
            raise KeyError

    with pytest.raises(KeyError):
        commit_and_fail()
    _store(stream, rows("defg"), overwrite=True)
    stream.append(rows("abg"))
    assert left(stream) == [2, 3, 4, 6, 7, 8]


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2**64 - 1]), st.integers(0, 1)), max_size=12))
def test_subjects_are_told_apart_by_both_halves_of_their_hashes(pairs: list[tuple[int, int]]) -> None:
    hashes = np.array(pairs, np.uint64).reshape(-1, 2)
    rows = per_subject.SubjectRows(hashes, np.arange(len(pairs)), np.zeros(len(pairs), np.int64))
    assert rows.newer_counts().tolist() == [pairs[at + 1 :].count(pair) for at, pair in enumerate(pairs)]


# --- against a slow, obvious version


@dataclass
class Model:
    """What a stream with limits of subjects shows: (sequence, subject, bytes), as a list that is walked."""

    max_per_subject: int
    max_msgs: int = -1
    discard: str = "old"
    refuses: bool = False
    messages: list[tuple[int, str, int]] = field(default_factory=list)

    def over(self, messages: list[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        """Return the messages without those that have enough newer ones of their subject."""
        kept: list[tuple[int, str, int]] = []
        for message in reversed(messages):
            if sum(other[1] == message[1] for other in kept) < self.max_per_subject:
                kept.insert(0, message)
        return kept

    def append(self, added: list[tuple[int, str, int]]) -> bool:
        messages = [*self.messages, *added]
        subjects = {subject for _, subject, _ in added}
        concerned = [message for message in messages if message[1] in subjects]
        kept = self.over(concerned)
        if self.refuses and len(kept) < len(concerned):
            return False
        messages = [message for message in messages if message in kept or message[1] not in subjects]
        if self.discard == "new" and 0 <= self.max_msgs < len(messages) > len(self.messages):
            return False
        self.messages = messages
        self.trim()
        return True

    def trim(self) -> None:
        if self.discard == "old" and self.max_msgs >= 0:
            self.messages = self.messages[max(0, len(self.messages) - self.max_msgs) :]


CONFIGS = st.fixed_dictionaries(
    {"max_msgs_per_subject": st.integers(1, 3)},
    optional={"max_msgs": st.sampled_from([3, 6]), "discard": st.sampled_from(["old", "new"])},
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.text("abcABCdef", min_size=1, max_size=7)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("purge"), st.integers(0, 4)),
        st.tuples(st.just("edit"), st.integers(1, 3)),
        st.tuples(st.just("refuse"), st.booleans()),
        st.tuples(st.just("overwrite"), st.text("abC", min_size=1, max_size=4)),
        st.tuples(st.just("open"), st.none()),
        st.tuples(st.just("compact"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(CONFIGS, OPERATIONS, st.sampled_from(["index", "filters", "everything"]))
def test_a_stream_shows_what_a_list_with_limits_of_subjects_does(
    config: dict[str, Any], operations: list[tuple[str, Any]], way: str
) -> None:
    machine = Machine(9)
    model = Model(config["max_msgs_per_subject"], config.get("max_msgs", -1), config.get("discard", "old"))
    with pytest.MonkeyPatch.context() as patched:
        if way != "index":
            patched.setattr(per_subject, "INDEXED_COUNT_MAX", 0)
        patched.setattr(per_subject, "FILTERS_MAX", 0 if way == "everything" else 256)
        patched.setattr(per_subject, "PRUNE_AT_MIN", 4)
        stream = made(machine, block_max_msgs=3, **config)
        for what, value in operations:
            stream = _do(machine, stream, model, what, value)
            state = stream.state()
            assert left(stream) == [sequence for sequence, _, _ in model.messages], what
            counts = len(model.messages), sum(size for _, _, size in model.messages)
            assert (state.message_count, state.data_size) == counts, what


def _do(machine: Machine, stream: Stream, model: Model, what: str, value: Any) -> Stream:
    store: Store = stream._store  # type: ignore[assignment]
    if what in ("append", "overwrite"):
        first = stream.last_sequence + 1
        added = [(first + at, row["subject"], 1 + len(row["data"])) for at, row in enumerate(rows(value))]
        before = model.messages
        if what == "overwrite":
            model.messages = []
        if model.append(added):
            _store(stream, rows(value), what == "overwrite")
        else:
            model.messages = before
            with pytest.raises(LimitExceededError):
                _store(stream, rows(value), what == "overwrite")
    elif what == "remove" and model.messages:
        message = model.messages[value % len(model.messages)]
        stream.remove(message[0])
        model.messages.remove(message)
    elif what == "purge":
        stream.purge(keep=value)
        model.messages = model.messages[len(model.messages) - min(value, len(model.messages)) :]
    elif what == "edit":
        model.max_per_subject = value
        kept = model.over(model.messages)
        over = stream.excess(max_msgs_per_subject=value)
        assert (over.message_count if over else 0) == len(model.messages) - len(kept)
        assert (over.data_size if over else 0) == sum(one[2] for one in model.messages) - sum(one[2] for one in kept)
        model.messages = kept
        store.edit_stream({"name": "S", "max_msgs_per_subject": value})
    elif what == "refuse" and model.discard == "new":
        model.refuses = value
        store.edit_stream({"name": "S", "discard_new_per_subject": value})
    elif what == "open":
        return machine.open().stream("S")
    elif what == "compact":
        store.compact(["S"])
    return stream


def _store(stream: Stream, messages: list[dict[str, Any]], overwrite: bool) -> None:
    if overwrite:
        listed = [Row(message["subject"], message["data"]) for message in messages]
        commit(stream._store, {"S": listed}, ("S",))  # type: ignore[arg-type]
    else:
        stream.append(messages)
