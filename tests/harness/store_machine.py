"""A store driven step by step against a model: rules that two processes carry out on one simulated disk.

Whatever a rule does to the store it does to the model, and every answer is compared. Now and then a process is killed
or power is lost, between the steps or in the middle of one; then what is there is looked at, and it is what was there
before the step or what there should be after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.faults import end_at, fail_at, let_everything_happen
from harness.life import stage, to_table
from harness.model import SEEN_COLUMNS, Content, ModelStore, ModelStream, Row, rows_of, seen_in_store
from harness.processes import SECOND_NS, VOLUME, Machine
from harness.simulated_disk import ProcessEnded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_core.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidMessageError,
    NotFoundError,
    StorageError,
    TransactionAbortedError,
)
from storage_core.metadata.invariants import check_state
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import StagedBlock, Transaction

NAMES = ("a", "b")
MAX_SIZE = 64  # bytes of a message
PER_SUBJECT = {"a": -1, "b": 2}  # max_msgs_per_subject
TIMES = st.integers(0, 50)
PROCESSES = st.integers(0, 1)
SEQUENCES = st.integers(1, 40)
FILTERS = st.sampled_from([None, ">", "{}.x", "{}.*", "{}.y.>", "{}.nowhere"])


def rows_for(name: str) -> st.SearchStrategy[list[Row]]:
    pair = st.tuples(st.sampled_from("kl"), st.none() | st.binary(max_size=3))
    row = st.builds(
        Row,
        st.sampled_from([f"{name}.x", f"{name}.y", f"{name}.y.z"]),
        st.none() | st.binary(max_size=8),
        st.none() | st.lists(pair, max_size=2).map(tuple),
        st.none() | st.sampled_from(["m1", "m2", "m3"]),
        st.none() | TIMES,
    )
    return st.lists(row, max_size=7)


ROWS = {name: rows_for(name) for name in NAMES}
NAME_AND_ROWS = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), ROWS[name]))
INVALID = st.sampled_from([Row("elsewhere", b""), Row("a..x", b""), Row("a.*", b""), Row("{}.x", bytes(MAX_SIZE + 1))])


@dataclass
class Pending:
    """A transaction whose blocks are staged, and whose outcome is open or known."""

    transaction: Transaction
    staged: list[StagedBlock]
    rows: dict[str, list[Row]]
    incarnations: dict[str, bytes]
    outcome: str = ""


class StoreMachine(RuleBasedStateMachine):
    """See the module. `model` holds what the store should show, `stores` are those of the two processes."""

    steps_taken = 0  # by all machines of this test run

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelStore()
        self.step = 0
        self.incarnations: dict[str, bytes] = {}
        self.pending: list[Pending] = []
        self.latest_ns = 0  # that the clock has ever said

    @initialize(
        seed=st.integers(0, 2**16), snapshot_every=st.sampled_from([1, 3, 50]), keep=st.sampled_from(["0s", "1h"])
    )
    def create(self, seed: int, snapshot_every: int, keep: str) -> None:
        self.machine = Machine(seed)
        env = self.machine.environment()
        Store.create(VOLUME, env=env, snapshot_every=snapshot_every, deleted_block_retention=keep)
        self.files = [self.machine.files() for _ in range(2)]
        self.stores = [self.machine.open(files) for files in self.files]
        for name in NAMES:
            self.add(0, name, "none")

    # --- streams come and go

    @precondition(lambda self: len(self.model.streams) < len(NAMES))
    @rule(process=PROCESSES, name=st.sampled_from(NAMES), codec=st.sampled_from(["none", "lz4", "zstd"]))
    def add_again(self, process: int, name: str, codec: str) -> None:
        self.add(process, name, codec)

    def add(self, process: int, name: str, codec: str) -> None:
        config = {
            "name": name, "subjects": [f"{name}.>"], "block_max_msgs": 3, "duplicate_window": "1h",
            "max_msg_size": MAX_SIZE, "compression": codec, "max_msgs_per_subject": PER_SUBJECT[name],
        }  # fmt: skip
        if name in self.model.streams:
            self.refused(lambda: self.stores[process].add_stream(config), AlreadyExistsError)
        else:
            self.incarnations[name] = self.stores[process].add_stream(config).incarnation
            self.model.streams[name] = ModelStream(max_msgs_per_subject=PER_SUBJECT[name])

    @precondition(lambda self: self.step % 8 == 0)
    @rule(process=PROCESSES, name=st.sampled_from(NAMES))
    def delete(self, process: int, name: str) -> None:
        if name not in self.model.streams:
            self.refused(lambda: self.stores[process].delete_stream(name), NotFoundError)
        else:
            self.stores[process].delete_stream(name)
            del self.model.streams[name], self.incarnations[name]

    @rule(process=PROCESSES, name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def edit(self, process: int, name: str, count: int) -> None:
        change = {"name": name, "block_max_msgs": count}
        if name not in self.model.streams:
            self.refused(lambda: self.stores[process].edit_stream(change), NotFoundError)
        else:
            assert self.stores[process].edit_stream(change).config.block_max_msgs == count

    # --- appends

    @rule(process=PROCESSES, what=NAME_AND_ROWS, parts=st.integers(1, 3))
    def append(self, process: int, what: tuple[str, list[Row]], parts: int) -> None:
        name, rows = what
        if (stream := self.stream(process, name)) is None:
            return
        rows = self.fresh(name, rows)
        cut = -(-len(rows) // parts)
        tables = [to_table(rows[at : at + cut]) for at in range(0, len(rows), cut)] if rows else []
        self.took(stream, rows, lambda: stream.append(tables))

    @rule(process=PROCESSES, what=NAME_AND_ROWS, writer=st.sampled_from("uv"), batch=st.sampled_from("12"))
    def append_as_writer(self, process: int, what: tuple[str, list[Row]], writer: str, batch: str) -> None:
        name, rows = what
        if (stream := self.stream(process, name)) is None:
            return
        model, rows = self.model.streams[name], self.fresh(name, rows)
        act = lambda: stream.append([to_table(rows)], WriterBatch(writer, batch))  # noqa: E731
        if (before := model.batches.get((writer, batch))) is None:
            model.batches[writer, batch] = self.took(stream, rows, act), rows
        elif sorted(map(repr, rows)) == sorted(map(repr, before[1])):
            assert act() == before[0]
        else:
            self.refused(act, FencedError)
            assert stream.append([to_table(before[1][::-1])], WriterBatch(writer, batch)) == before[0]

    @rule(process=PROCESSES, what=NAME_AND_ROWS, invalid=INVALID, at=st.integers(0, 7))
    def append_with_an_invalid_row(self, process: int, what: tuple[str, list[Row]], invalid: Row, at: int) -> None:
        name, rows = what
        if (stream := self.stream(process, name)) is not None:
            bad = replace(invalid, subject=invalid.subject.format(name))
            tables = [to_table(rows), to_table([*rows[:at], bad, *rows[at:]])]
            self.refused(lambda: stream.append(tables), InvalidMessageError)

    @rule(process=PROCESSES, what=NAME_AND_ROWS)
    def publish(self, process: int, what: tuple[str, list[Row]]) -> None:
        name, rows = what
        if (stream := self.stream(process, name)) is None or not rows:
            return
        model, row = self.model.streams[name], replace(self.fresh(name, rows[:1])[0], timestamp_ns=None)
        is_duplicate = row.msg_id is not None and model.is_duplicate(row.msg_id, self.machine.clock.now)
        before = model.msg_ids.get(row.msg_id or "", (0, 0))[0]
        published = stream.publish(row.subject, row.data, row.headers, row.msg_id)
        got = model.append([row], self.machine.clock.now)
        assert published.duplicate == is_duplicate
        assert published.sequence == (before if is_duplicate else got[0])
        self.learn_times(stream, got)

    @rule(process=PROCESSES, rows_a=ROWS["a"], rows_b=ROWS["b"], both=st.booleans())
    def stage(self, process: int, rows_a: list[Row], rows_b: list[Row], both: bool) -> None:
        names = [name for name in NAMES if name in self.model.streams][: 1 + both]
        if not names:
            return
        given = {"a": rows_a, "b": rows_b}
        rows = {name: self.fresh(name, given[name]) for name in names}
        store = self.stores[process]
        transaction = store.begin(names)
        incarnations = {name: self.incarnations[name] for name in names}
        self.pending.append(Pending(transaction, stage(store, transaction, rows), rows, incarnations))

    @precondition(lambda self: self.pending)
    @rule(process=PROCESSES, which=st.integers(0, 9), overwrite=st.sampled_from(["", "", "a", "b"]))
    def commit(self, process: int, which: int, overwrite: str) -> None:
        one, store = self.pending[which % len(self.pending)], self.stores[process]
        names = [name for name in one.rows if one.rows[name] or name == overwrite]
        act = lambda: store.commit(one.transaction, one.staged, overwrite=[overwrite])  # noqa: E731
        if not names:
            assert act().appended == {}
        elif any(self.incarnations.get(name) != one.incarnations[name] for name in names):
            self.refused(act, StorageError)
        elif one.outcome:
            self.refused(act, TransactionAbortedError if one.outcome == "aborted" else AlreadyExistsError)
        elif all(name == overwrite or self.fresh(name, one.rows[name]) == one.rows[name] for name in names):
            appended = act().appended
            one.outcome = "committed"
            for name in names:
                model = self.model.streams[name]
                write = model.overwrite if name == overwrite else model.append
                got = write(one.rows[name], self.machine.clock.now)
                assert (appended[name].first, appended[name].end) == (got.start, got.stop)
                self.learn_times(store.stream(name), got)

    @precondition(lambda self: self.pending)
    @rule(process=PROCESSES, which=st.integers(0, 9))
    def abort(self, process: int, which: int) -> None:
        one = self.pending[which % len(self.pending)]
        assert self.stores[process].abort(one.transaction) == (one.outcome != "committed")
        one.outcome = one.outcome or "aborted"

    # --- removal

    @rule(process=PROCESSES, name=st.sampled_from(NAMES), sequences=st.lists(SEQUENCES, max_size=6))
    def remove(self, process: int, name: str, sequences: list[int]) -> None:
        if (stream := self.stream(process, name)) is not None:
            assert stream.remove(sequences) == self.model.streams[name].remove(sequences)

    @rule(
        process=PROCESSES, name=st.sampled_from(NAMES), subject=FILTERS,
        keep=st.none() | st.integers(0, 5), end=st.none() | SEQUENCES,
    )  # fmt: skip
    def purge(self, process: int, name: str, subject: str | None, keep: int | None, end: int | None) -> None:
        if (stream := self.stream(process, name)) is not None:
            chosen: dict[str, Any] = {"subject": subject and subject.format(name)}
            chosen |= {"keep": keep} if keep is not None else {"end": end}
            assert stream.purge(**chosen) == self.model.streams[name].purge(**chosen)

    # --- reading

    @rule(
        process=PROCESSES, name=st.sampled_from(NAMES), first=st.none() | SEQUENCES, end=st.none() | SEQUENCES,
        subject=FILTERS,
    )  # fmt: skip
    def read(self, process: int, name: str, first: int | None, end: int | None, subject: str | None) -> None:
        if (stream := self.stream(process, name)) is None:
            return
        wanted = subject and subject.format(name)
        if first is not None and end is not None and end < first:
            self.refused(lambda: stream.read(first, end), ValueError)
            return
        expected = self.model.streams[name].matching(first, end, wanted)
        assert rows_of(stream.read(first, end, SEEN_COLUMNS, wanted).read_all(), with_times=True) == expected
        table = stream.read(first, end, ["data", "sequence"], wanted).read_all()
        assert table.column_names == ["data", "sequence"]
        assert table.column("sequence").to_pylist() == [sequence for sequence, _ in expected]

    @rule(process=PROCESSES, name=st.sampled_from(NAMES), sequence=SEQUENCES, subject=FILTERS, time_ns=TIMES)
    def look_up(self, process: int, name: str, sequence: int, subject: str | None, time_ns: int) -> None:
        if (stream := self.stream(process, name)) is None:
            return
        model, wanted = self.model.streams[name], (subject or ">").format(name)
        if sequence not in model.messages:
            self.refused(lambda: stream.get(sequence), NotFoundError)
        else:
            got, row = stream.get(sequence), model.messages[sequence]
            assert (got.subject, got.data, got.timestamp_ns) == (row.subject, row.data, row.timestamp_ns)
        found = model.matching(None, None, wanted)
        if found:
            assert stream.last(wanted).sequence == found[-1][0]
        else:
            self.refused(lambda: stream.last(wanted), NotFoundError)
        later = [at for at, row in model.matching(None, None, None) if (row.timestamp_ns or 0) >= time_ns]
        assert stream.first_at_time(time_ns) == (later[0] if later else None)
        counts: dict[str, int] = {}
        for _, row in found:
            counts[row.subject] = counts.get(row.subject, 0) + 1
        assert stream.subjects(wanted) == dict(sorted(counts.items()))

    @rule(process=PROCESSES)
    def tell(self, process: int) -> None:
        store = self.stores[process]
        assert store.info()["messages"] == sum(len(stream.messages) for stream in self.model.streams.values())
        for name, model in self.model.streams.items():
            stream = store.stream(name)
            state, last = stream.info()["state"], model.next_sequence - 1
            first = min(model.messages, default=model.next_sequence)
            assert (state["messages"], state["last_seq"]) == (len(model.messages), last)
            assert state["first_seq"] == (first if last else 0)
            missing = sorted(set(range(first, model.next_sequence)) - set(model.messages))
            assert [one for start, end in stream.gaps() for one in range(start, end)] == missing
            assert state["num_deleted"] == len(missing)

    @rule(process=PROCESSES, count=st.integers(2, 6))
    def compact(self, process: int, count: int) -> None:
        for name in self.model.streams:
            self.stores[process].edit_stream({"name": name, "block_max_msgs": count})
        assert self.stores[process].compact()["unreadable"] == []
        self.compare(self.stores[1 - process])

    @rule(process=PROCESSES, call=st.integers(0, 60), fault=st.sampled_from(["kill", "power", "EIO", "ENOSPC"]))
    def fault_in_a_merge(self, process: int, call: int, fault: str) -> None:
        for name in self.model.streams:
            self.stores[process].edit_stream({"name": name, "block_max_msgs": 50})
        self.meet(process, call, fault, lambda: self.stores[process].compact())
        self.stores[process].maintain()
        self.compare(self.stores[process])

    @rule(process=PROCESSES)
    def verify_and_maintain(self, process: int) -> None:
        self.stores[process].maintain()
        verified = self.stores[process].verify()
        assert verified["ok"] or all(one["file"].endswith(".snap") for one in verified["damage"]), verified

    # --- time and faults

    @precondition(lambda self: self.step % 3 == 0)
    @rule(seconds=st.sampled_from([1, 1501, 7001, -503, -3001]))
    def clock_jumps(self, seconds: int) -> None:
        self.latest_ns = max(self.latest_ns, self.machine.clock.now)
        self.machine.clock.now += seconds * SECOND_NS

    @precondition(lambda self: self.step % 3 == 1)
    @rule(process=PROCESSES)
    def process_is_killed(self, process: int) -> None:
        self.files[process].end()
        self.reopen(process)
        self.compare(self.stores[process])

    @precondition(lambda self: self.step % 3 == 2)
    @rule()
    def power_is_lost(self) -> None:
        self.machine.disk.lose_power()
        for process in range(2):
            self.reopen(process)
        self.compare(self.stores[0])

    @rule(
        process=PROCESSES, what=NAME_AND_ROWS, call=st.integers(0, 60),
        fault=st.sampled_from(["kill", "power", "EIO", "ENOSPC"]),
    )  # fmt: skip
    def fault_in_an_append(self, process: int, what: tuple[str, list[Row]], call: int, fault: str) -> None:
        name, rows = what
        if (stream := self.stream(process, name)) is None:
            return
        rows, before = self.fresh(name, rows), self.machine.clock.now
        acked = self.meet(process, call, fault, lambda: stream.append([to_table(rows)]))
        self.recover(process, name, rows, before, acked)

    def meet(self, process: int, call: int, fault: str, act: Callable[[], object]) -> bool:
        """Let a process meet a fault in what it does, and begin anew; return whether it was done."""
        files = self.files[process]
        number = len(files.calls) + call
        errors = {"EIO": 5, "ENOSPC": 28}
        files.judge = fail_at(number, errors[fault]) if fault in errors else end_at(number)
        try:
            act()
            acked = True
        except (ProcessEnded, StorageError):
            acked = False
        files.judge = let_everything_happen
        if fault == "power":
            self.machine.disk.lose_power()
            self.reopen(1 - process)
        elif not files.ended:
            files.end()
        self.reopen(process)
        return acked

    def recover(self, process: int, name: str, rows: list[Row], before: int, acked: bool) -> None:
        """Learn whether an append with a fault in it is there; if it was acked, it is."""
        stream, model = self.stores[process].stream(name), self.model.streams[name]
        self.stores[process].maintain()  # under the lock it is decided
        if acked or stream.state().next_sequence != model.next_sequence:
            got = model.append(rows, before)
            assert stream.state().next_sequence == got.stop, "neither there whole nor not at all"
            self.learn_times(stream, got)
        self.compare(self.stores[process])

    # --- checks

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "stores"):
            return
        self.step += 1
        StoreMachine.steps_taken += 1
        for store in self.stores:
            state = store.view().state
            check_state(state)
            found = {one.name: (one.message_count, one.next_sequence) for one in state.streams.values()}
            expected = {name: (len(one.messages), one.next_sequence) for name, one in self.model.streams.items()}
            assert found == expected

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        self.compare(self.stores[0])
        self.machine.disk.lose_power()
        self.compare(self.machine.open())

    def compare(self, store: Store) -> None:
        expected = {
            name: Content(tuple(sorted(one.messages.items())), one.next_sequence - 1)
            for name, one in sorted(self.model.streams.items())
        }
        assert seen_in_store(store, with_times=True) == expected

    # --- what rules are made of

    def stream(self, process: int, name: str) -> Stream | None:
        """Return the stream as the process knows it; None, having checked that it says so, if there is none."""
        if name in self.model.streams:
            return self.stores[process].stream(name)
        self.refused(lambda: self.stores[process].stream(name), NotFoundError)
        return None

    def reopen(self, process: int) -> None:
        self.files[process] = self.machine.files()
        self.stores[process] = self.machine.open(self.files[process])

    def refused(self, act: Callable[[], object], error: type[Exception]) -> None:
        try:
            act()
        except error:
            return
        raise AssertionError(f"{error.__name__} was not raised")

    def took(self, stream: Stream, rows: list[Row], act: Callable[[], range]) -> range:
        """Carry out an append on the store and on the model; return the range, which both agree on."""
        now = self.machine.clock.now
        got = act()
        assert got == self.model.streams[stream.name].append(rows, now), got
        self.learn_times(stream, got)
        return got

    def learn_times(self, stream: Stream, sequences: range) -> None:
        """Take over the store's time for messages without one of their own, when it is plausible."""
        messages = self.model.streams[stream.name].messages
        if any(messages[one].timestamp_ns is None for one in sequences if one in messages):
            read = stream.read(sequences.start, sequences.stop, SEEN_COLUMNS).read_all()
            for sequence, row in rows_of(read, with_times=True):
                if messages[sequence].timestamp_ns is None:
                    assert row.timestamp_ns is not None and row.timestamp_ns > 1000 * SECOND_NS
                    messages[sequence] = replace(messages[sequence], timestamp_ns=row.timestamp_ns)

    def fresh(self, name: str, rows: list[Row]) -> list[Row]:
        """Return the rows without msg_ids of which it depends on the blocks whether they count.

        Those are of messages that were removed; and, if the clock was set back, those that had been forgotten: merged
        blocks count by the newest of those that they were made of.
        """
        model = self.model.streams[name]
        spent = {msg_id for msg_id, (sequence, _) in model.msg_ids.items() if sequence not in model.messages}
        if self.machine.clock.now < self.latest_ns:
            since = self.latest_ns - model.duplicate_window_ns
            spent |= {msg_id for msg_id, (_, time_ns) in model.msg_ids.items() if time_ns < since}
        return [replace(row, msg_id=None) if row.msg_id in spent else row for row in rows]
