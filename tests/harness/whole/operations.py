"""What the processes of a simulated store do: each operation with what it comes to in the model."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from harness.life import stage, to_table
from harness.model import SEEN_COLUMNS, TIME, TTL, Content, ModelConsumer, ModelStream, Row, rows_of, seen_in_store
from harness.processes import SECOND_NS
from harness.whole.expectation import Model, Operation, Refusal, Violation

from storage_core.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidMessageError,
    NotFoundError,
    RequirementError,
    StaleIncarnationError,
    StorageError,
    TransactionAbortedError,
)
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.staging import StagedBlock, Transaction

if TYPE_CHECKING:
    from harness.whole.world import World

NAMES = ("a", "b", "c")
CONSUMERS = ("x", "y")
PENDING_MAX = 3
CLOCK_JUMPS_S = (1, 1501, 7001, -503, -3001)
MAX_SIZE = 4096  # bytes of a message, where rows are varied
HEADERS = ((), (("k", b""), ("k", None)), (("k", b"1"), ("l", b"22")))
INVALID = (Row("elsewhere", b""), Row("{}..x", b""), Row("{}.*", b""), Row("{}.x", bytes(MAX_SIZE + 1)))
FILTERS = (">", "{}.x", "{}.*", "{}.y.>", "{}.nowhere")
GONE = Refusal((NotFoundError, StaleIncarnationError))


@dataclass
class Pending:
    """A transaction whose blocks are staged."""

    transaction: Transaction
    staged: list[StagedBlock]
    rows: dict[str, list[Row]]
    lives: dict[str, int]
    written_ns: int
    hurt_on: set[int] = field(default_factory=set)  # volumes whose copies may have gone: nobody repairs staged blocks


class Operations:
    """Makes operations at random."""

    def __init__(self, world: "World") -> None:
        self._world, self._random = world, world.random
        self.pending: list[Pending] = []
        self._number = self.question_count = 0
        self._latest_ns = 0  # that the clock has ever said

    def begin(self) -> None:
        for name in NAMES[: self._random.choice((1, 2))]:
            self._world.carry_out(self._world.processes[0], self._adding(name))
            consumer = self._add_consumer() if self._random.random() < 0.5 else None
            if consumer is not None:
                self._world.carry_out(self._world.processes[0], consumer)

    def make(self, name: str) -> Operation | None:
        """Return an operation of this kind; None if there is nothing for it to do, or the world does it at once."""
        return getattr(self, f"_{name}")()

    def make_interlude(self, running: Operation | None) -> Operation | None:
        """Return something that another process can do meanwhile: it changes no stream that is being changed."""
        kind = self._random.choice(("read", "read", "append", "append", "maintain", "publish", "scrub", "snapshot"))
        taken = running.stream if running is not None else ""
        if kind in ("append", "publish"):
            free = [name for name in self._streams() if name != taken]
            return getattr(self, f"_{kind}")(free[0]) if free and taken != "*" else None
        return self.make(kind)

    # --- appends

    def _rows(self, name: str, count: int | None = None, with_ttl: bool = True) -> list[Row]:
        rows = []
        for _ in range(count if count is not None else self._random.choice((1, 1, 2, 3, 5, 7))):
            self._number += 1
            subject = f"{name}.{self._random.choice('xyz')}"
            data = None if self._random.random() < 0.05 else b"%d" % self._number * self._random.choice((1, 1, 300))
            headers = (("key", b"value"), ("none", None)) if self._random.random() < 0.2 else None
            if with_ttl and self._world.plan.ttls_s and self._random.random() < 0.3:
                headers = ((TTL, b"%ds" % self._random.choice(self._world.plan.ttls_s)),)
            rows.append(Row(subject, data, headers))
        return rows

    def _varied(self, name: str, rows: list[Row]) -> list[Row]:
        """Give rows what they may have besides: msg_ids that repeat, times, headers, and subjects of several levels."""
        if not self._world.plan.is_varied:
            return rows
        draw, spent, varied = self._random.choice, self._spent_msg_ids(name), []
        msg_ids = draw(((None,), (None, "m1", "m2", "m3")))
        for row in rows:
            msg_id, time_ns = draw(msg_ids), draw((None, self._random.randint(0, 50)))
            headers = draw((row.headers, *HEADERS))
            if time_ns is not None:
                headers = (*(headers or ()), (TIME, b"%d" % time_ns))
            subject = draw((row.subject, f"{name}.y.z"))
            varied.append(Row(subject, row.data, headers, None if msg_id in spent else msg_id, time_ns))
        return varied

    def _append(self, name: str | None = None) -> Operation | None:
        name = name or self._any_stream()
        if name is None:
            return None
        rows = self._varied(name, self._rows(name))
        cut = self._random.randint(1, len(rows)) if self._world.plan.is_varied else len(rows)
        tables = [to_table(rows[at : at + cut]) for at in range(0, len(rows), cut)]
        now = self._world.machine.clock.now
        return Operation(
            f"append {len(rows)} to {name}",
            lambda store: store.stream(name).append(tables),
            _on(name, lambda stream: stream.append(rows, now)),
            name,
        )

    def _append_as_writer(self) -> Operation | None:
        """The same batch may come again: after an error that left it open, and after it was acked."""
        if (name := self._any_stream()) is None:
            return None
        writer, batch = self._random.choice("uv"), str(self._random.randrange(6))
        rows = [Row(f"{name}.w", f"{writer}{batch}-{number}".encode()) for number in range(int(batch) + 1)]
        if self._world.plan.is_varied:
            self._random.shuffle(rows)  # a batch is the same in any order
        now = self._world.machine.clock.now

        def effect(stream: ModelStream) -> range:
            if (writer, batch) not in stream.batches:
                stream.batches[writer, batch] = stream.append(rows, now)
            else:
                stream.enforce_times_and_limits(now, stream.skipped)
            return stream.batches[writer, batch]

        return Operation(
            f"append batch {batch} of writer {writer} to {name}",
            lambda store: store.stream(name).append(to_table(rows), WriterBatch(writer, batch)),
            _on(name, effect),
            name,
        )

    def _publish(self, name: str | None = None) -> Operation | None:
        name = name or self._any_stream()
        if name is None:
            return None
        (row,) = self._rows(name, 1)
        now = self._world.machine.clock.now
        msg_id = self._known_msg_id(name) if self._random.random() < 0.5 else None
        msg_id = msg_id or f"id-{self._number}"
        row = Row(row.subject, row.data, row.headers, msg_id)

        def effect(stream: ModelStream) -> tuple[int, bool]:
            duplicate, before = stream.is_duplicate(msg_id, now), stream.msg_ids.get(msg_id, (0, 0))[0]
            (sequence,) = stream.append([row], now)
            return (before if duplicate else sequence), duplicate

        def act(store: Store) -> tuple[int, bool]:
            got = store.stream(name).publish(row.subject, row.data, row.headers, msg_id)
            return got.sequence, got.duplicate

        return Operation(f"publish {msg_id} to {name}", act, _on(name, effect), name)

    def _known_msg_id(self, name: str) -> str | None:
        """Return one of a message that is there in any case: whether those of removed ones count is not promised."""
        streams = [model.streams.get(name) for model in self._world.expectation.models]
        there = set.intersection(*(self._counted(stream) if stream else set() for stream in streams))
        return self._random.choice(sorted(there)) if there else None

    def _spent_msg_ids(self, name: str) -> set[str]:
        """Return those of which it depends on the blocks whether they count."""
        streams = [model.streams[name] for model in self._world.expectation.models if name in model.streams]
        return {one for stream in streams for one in stream.msg_ids if one not in self._counted(stream)}

    def _counted(self, stream: ModelStream) -> set[str]:
        # If the clock was set back, what had been forgotten may have been merged, and count by another's time.
        now = self._world.machine.clock.now
        since = self._latest_ns - stream.duplicate_window_ns if now < self._latest_ns else 0
        known = stream.msg_ids.items()
        return {
            one
            for one, (at, time_ns) in known
            if at in stream.messages and time_ns >= since and not stream.is_over(at, now)
        }

    def _stage(self) -> Operation | None:
        """Write blocks; what becomes of them is decided later, by whichever process."""
        names = self._streams()
        undecided = len(self._world.expectation.models) > 1  # also whether this is the stream that is meant
        if not names or undecided or len(self.pending) >= PENDING_MAX:
            return None
        chosen = self._random.sample(names, self._random.randint(1, min(2, len(names))))
        rows = {name: self._varied(name, self._rows(name, with_ttl=False)) for name in chosen}  # whose time begins now
        lives = {name: self._newest().lives[name] for name in chosen}

        def act(store: Store) -> None:
            transaction = store.begin(list(rows))
            written_ns = self._world.machine.clock.now
            self.pending.append(Pending(transaction, stage(store, transaction, rows), rows, lives, written_ns))

        absent = lambda model: None if all(name in model.streams for name in rows) else GONE  # noqa: E731
        return Operation(f"stage for {', '.join(rows)}", act, absent)

    def _commit(self) -> Operation | None:
        self.note_hurt(self._world.volumes.bad)
        tolerated = self._world.plan.tolerated
        self.pending = [one for one in self.pending if len(one.hurt_on) <= tolerated]  # others have no quorum left
        if not self.pending:
            return None
        one = self._random.choice(self.pending)
        if self._random.random() < 0.7:
            self.pending.remove(one)
        if any(row.msg_id in self._spent_msg_ids(name) for name, rows in one.rows.items() for row in rows):
            return None
        for position in one.hurt_on - set(self._world.volumes.bad):
            self._world.volumes.blame(position, "has no copy of what is committed now")
        overwrite = self._random.choice(sorted(one.rows)) if self._random.random() < 0.15 else None
        now = self._world.machine.clock.now

        def effect(model: Model) -> object:
            if any(model.lives.get(name) != life or name not in model.streams for name, life in one.lives.items()):
                return Refusal((StorageError,))
            outcome = model.transactions.get(one.transaction.id)
            if outcome:
                return Refusal((TransactionAbortedError,) if outcome == "aborted" else (AlreadyExistsError,))
            model.transactions[one.transaction.id] = "committed"
            got = {}
            for name, rows in one.rows.items():
                write = model.streams[name].overwrite if name == overwrite else model.streams[name].append
                got[name] = write(rows, now, one.written_ns)
            return got

        def act(store: Store) -> dict[str, range]:
            result = store.commit(one.transaction, one.staged, overwrite=[overwrite] if overwrite else [])
            return {name: range(part.first, part.end) for name, part in result.appended.items()}

        return Operation(f"commit to {', '.join(one.rows)}", act, effect, "*")

    def _abort(self) -> Operation | None:
        if not self.pending:
            return None
        one = self._random.choice(self.pending)
        self.pending.remove(one)

        def effect(model: Model) -> bool:
            outcome = model.transactions.setdefault(one.transaction.id, "aborted")
            return outcome != "committed"

        return Operation(f"abort of {', '.join(one.rows)}", lambda store: store.abort(one.transaction), effect)

    # --- removals, streams

    def _remove(self) -> Operation | None:
        if (name := self._any_stream()) is None:
            return None
        end = self._newest().streams[name].next_sequence
        chosen = sorted({self._random.randint(1, end) for _ in range(self._random.randint(1, 5))})
        return Operation(
            f"remove {chosen} of {name}",
            lambda store: store.stream(name).remove(chosen),
            _on(name, lambda stream: stream.remove(chosen)),
            name,
        )

    def _purge(self) -> Operation | None:
        if (name := self._any_stream()) is None:
            return None
        end = self._newest().streams[name].next_sequence
        how = self._random.choice(
            (
                {"end": self._random.randint(1, end)},
                {"keep": self._random.randint(0, 6)},
                {"subject": f"{name}.x"},
                {"subject": f"{name}.*", "keep": 2},
            )
        )
        return Operation(
            f"purge {name} {how}",
            lambda store: store.stream(name).purge(**how),
            _on(name, lambda stream: stream.purge(**how)),
            name,
        )

    def _add_stream(self) -> Operation | None:
        missing = [name for name in NAMES if name not in self._newest().streams]
        return self._adding(self._random.choice(missing)) if missing else None

    def _adding(self, name: str) -> Operation:
        config = {
            "name": name,
            "subjects": [f"{name}.>"],
            "block_max_msgs": self._random.choice(self._world.plan.block_sizes),
            "duplicate_window": "1h",
            "num_replicas": self._world.plan.volume_count,
        }
        if self._world.plan.is_varied:
            config |= {"compression": self._random.choice(("none", "lz4", "zstd")), "max_msg_size": MAX_SIZE}
        max_msgs = self._random.choice(self._world.plan.limits) if self._world.plan.limits else -1
        config["max_msgs"] = max_msgs
        plan, per_subject, retention = self._world.plan, -1, "limits"
        if plan.retentions:
            per_subject = self._random.choice(plan.subject_limits)
            retention = self._random.choice(plan.retentions)
            config |= {"max_msgs_per_subject": per_subject, "retention": retention, "allow_msg_ttl": bool(plan.ttls_s)}
        age_s = self._random.choice(plan.ages_s) if plan.ages_s else 0
        marker_s = self._random.choice(plan.marker_ttls_s) if plan.marker_ttls_s else 0
        if plan.ages_s:
            config["max_age"] = f"{age_s}s"
        if marker_s:
            config["subject_delete_marker_ttl"] = f"{marker_s}s"

        def effect(model: Model) -> object:
            if name in model.streams:
                return Refusal((AlreadyExistsError,))
            model.streams[name] = ModelStream(
                max_msgs=max_msgs, max_msgs_per_subject=per_subject, retention=retention, max_age_ns=age_s * SECOND_NS,
                marker_ttl_s=marker_s,
            )  # fmt: skip
            model.lives[name] = model.lives.get(name, 0) + 1
            return None

        return Operation(f"add stream {name}", lambda store: store.add_stream(config), effect, "*", compared=False)

    def _delete_stream(self) -> Operation | None:
        return self._deleting(name) if (name := self._any_stream()) is not None else None

    def _deleting(self, name: str) -> Operation:

        def effect(model: Model) -> object:
            return None if model.streams.pop(name, None) is not None else GONE

        return Operation(f"delete stream {name}", lambda store: store.delete_stream(name), effect, "*")

    # --- what is refused, and changes nothing

    def _be_refused(self) -> Operation | None:
        makers = (self._append_an_invalid_row, self._change_a_batch, self._add_again, self._delete_none)
        return self._random.choice(makers)()

    def _append_an_invalid_row(self) -> Operation | None:
        """Write good rows, and then such among which is a bad one."""
        if (name := self._any_stream()) is None:
            return None
        good, rows, bad = self._rows(name), self._rows(name), self._random.choice(INVALID)
        rows.insert(self._random.randint(0, len(rows)), replace(bad, subject=bad.subject.format(name)))
        act = lambda store: store.stream(name).append([to_table(good), to_table(rows)])  # noqa: E731
        return Operation(f"append {bad.subject}", act, _on(name, lambda stream: Refusal((InvalidMessageError,))))

    def _change_a_batch(self) -> Operation | None:
        """Write other rows as a batch that is stored."""
        models, name = self._world.expectation.models, self._any_stream()
        batches = [set(one.streams[name].batches) if name in one.streams else set() for one in models] if name else []
        if name is None or not (stored := sorted(set.intersection(*batches))):
            return None
        writer, batch = self._random.choice(stored)
        act = lambda store: store.stream(name).append(to_table([Row(f"{name}.w", b"?")]), WriterBatch(writer, batch))  # noqa: E731
        return Operation(f"change batch {batch} of {writer}", act, _on(name, lambda stream: Refusal((FencedError,))))

    def _add_again(self) -> Operation | None:
        return self._adding(name) if (name := self._any_stream()) is not None else None

    def _delete_none(self) -> Operation | None:
        missing = [name for name in NAMES if name not in self._newest().streams]
        return self._deleting(self._random.choice(missing)) if missing else None

    # --- consumers

    def _add_consumer(self) -> Operation | None:
        if (name := self._any_stream()) is None:
            return None
        consumer = self._random.choice(CONSUMERS)

        def effect(stream: ModelStream) -> object:
            if consumer in stream.consumers:
                return Refusal((AlreadyExistsError,))
            if stream.retention == "workqueue" and stream.consumers:
                return Refusal((RequirementError,))
            first = min(stream.messages, default=stream.next_sequence)
            stream.consumers[consumer] = ModelConsumer(first)
            return None

        config = {"name": consumer, "ack_wait": "100000h"}
        act = lambda store: store.stream(name).add_consumer(config)  # noqa: E731
        return Operation(f"add consumer {consumer} of {name}", act, _on(name, effect), name, compared=False)

    def _any_consumer(self) -> tuple[str, str] | None:
        models = self._world.expectation.models
        known = [(name, one) for name, stream in self._newest().streams.items() for one in stream.consumers]
        sure = [(a, b) for a, b in known if all(a in one.streams and b in one.streams[a].consumers for one in models)]
        return self._random.choice(sorted(sure)) if sure else None

    def _fetch(self) -> Operation | None:
        if (chosen := self._any_consumer()) is None:
            return None
        name, consumer = chosen
        count = self._random.choice((1, 2, 5, 50))

        def act(store: Store) -> list[tuple[int, Row]]:
            table = store.stream(name).consumer(consumer).fetch(count, 0.0)
            return rows_of(table.append_column("timestamp_ns", pa.nulls(table.num_rows)), with_times=False)

        return Operation(
            f"fetch {count} of {name} for {consumer}", act, _on_consumer(name, consumer, "fetch", count), name
        )

    def _ack(self) -> Operation | None:
        return self._answer("ack")

    def _nak(self) -> Operation | None:
        return self._answer("nak")

    def _answer(self, verb: str) -> Operation | None:
        """Acknowledge some of what was handed out, or ask for it again."""
        if (chosen := self._any_consumer()) is None:
            return None
        name, consumer = chosen
        waiting = sorted(self._newest().streams[name].consumers[consumer].waiting)
        if not waiting:
            return None
        sequences = self._random.sample(waiting, self._random.randint(1, len(waiting)))
        act = lambda store: getattr(store.stream(name).consumer(consumer), verb)(sequences)  # noqa: E731
        effect = _on_consumer(name, consumer, verb, sequences)
        return Operation(f"{verb} {sequences} of {name} for {consumer}", act, effect, name, compared=False)

    def _edit_stream(self) -> Operation | None:
        if (name := self._any_stream()) is None:
            return None
        change = {"name": name, "block_max_msgs": self._random.choice((1, 2, 50))}
        if self._world.plan.limits:
            change["max_msgs"] = self._random.choice(self._world.plan.limits)

        now = self._world.machine.clock.now

        def effect(stream: ModelStream) -> None:
            stream.max_msgs = change.get("max_msgs", -1)
            stream.enforce("retention", now)
            stream.enforce_times_and_limits(now, stream.skipped)

        act = lambda store: store.edit_stream(change)  # noqa: E731
        stream = name if self._world.plan.limits else ""
        return Operation(f"edit stream {name}", act, _on(name, effect), stream, compared=False)

    # --- looking

    def _ask(self) -> Operation:
        return self._read(self._compare_answers)

    def _read(self, also: Callable[[Stream, Content], None] = lambda stream, shown: None) -> Operation:
        def act(store: Store) -> None:
            shown = seen_in_store(store)
            if not self._world.volumes.is_any_good_in_sight:
                return  # what a volume that is behind holds is all that can be known
            if self._world.is_undecided and (self._world.running is not reading or self._world.volumes.blacked_out):
                return  # power was lost, and whoever is in the middle of something has the locks that would decide,
                # or too few volumes are in sight for that: what commit records say is shown, with a warning
            self._world.expectation.look(shown, self._world.running, is_final=False)
            for name, content in shown.items():
                also(store.stream(name), content)
                if content.messages and self._random.random() < 0.3:
                    at = self._random.randint(1, content.last_sequence)
                    table = store.stream(name).read(at, at + 3, SEEN_COLUMNS).read_all()
                    expected = [pair for pair in content.messages if at <= pair[0] < at + 3]
                    assert rows_of(table, with_times=False) == expected, (name, at)

        reading = Operation("read everything", partial(_while_streams_come_and_go, act), compared=False)
        return reading

    def _compare_answers(self, stream: Stream, shown: Content) -> None:
        """Ask in every other way for what a stream has just shown."""
        self.question_count += 1
        model, end = ModelStream(dict(shown.messages), shown.last_sequence + 1), shown.last_sequence + 1
        subject = self._random.choice(FILTERS).format(stream.name)
        bounds = sorted(self._random.randint(1, end + 2) for _ in range(2))
        expected = model.matching(*bounds, subject)
        table = stream.read(*bounds, ["data", "sequence"], subject).read_all()
        assert table.to_pydict() == {"data": [row.data for _, row in expected], "sequence": [at for at, _ in expected]}
        chosen = model.matching(None, None, subject)
        assert _if_there(lambda: stream.last(subject).sequence) == (chosen[-1][0] if chosen else None), subject
        counts = Counter(row.subject for _, row in chosen)
        assert stream.subjects(subject) == dict(sorted(counts.items())), subject
        at = self._random.randint(1, end)
        got, row = _if_there(lambda: stream.get(at)), model.messages.get(at)
        assert (got and (got.subject, got.data)) == (row and (row.subject, row.data)), at
        time_ns = self._random.randint(0, 51)
        given = [(at, dict(row.headers or ()).get(TIME)) for at, row in shown.messages]
        later = (at for at, time in given if time is None or int(time) >= time_ns)
        assert stream.first_at_time(time_ns) == next(later, None), time_ns
        first = min(model.messages, default=end)
        missing = [one for one in range(first, end) if one not in model.messages]
        assert [one for start, stop in stream.gaps() for one in range(start, stop)] == missing
        state = stream.info()["state"]
        assert (state["messages"], state["last_seq"]) == (len(model.messages), shown.last_sequence)
        assert (state["first_seq"], state["num_deleted"]) == (first if shown.last_sequence else 0, len(missing))

    def _reopen(self) -> Operation | None:
        world = self._world
        world.kill(self._random.choice(world.processes))
        return self._read()

    # --- maintenance

    def _maintain(self) -> Operation:
        now = self._world.machine.clock.now

        def effect(model: Model) -> None:
            for stream in model.streams.values():
                stream.enforce("retention", now)
                stream.enforce_times_and_limits(now, stream.skipped)

        return Operation("maintain", lambda store: store.maintain(), effect, compared=False, enforces=True)

    def _compact(self) -> Operation:
        def act(store: Store) -> None:
            done = store.compact()
            self._world.merged_count += done["runs"]
            if done["unreadable"] and not self._world.volumes.bad and not self._world.volumes.blacked_out:
                raise Violation(f"blocks cannot be read whole from any copy: {done['unreadable']}")

        return Operation("compact", act, compared=False)

    def _snapshot(self) -> Operation:
        def act(store: Store) -> None:
            with store.session() as session:
                session.snapshot()

        return Operation("snapshot", act)

    def _verify(self) -> Operation:
        return Operation("verify", lambda store: self._world.invariants.verified(store, store.verify()), compared=False)

    def _scrub(self) -> Operation:
        return self._verify()

    def _repair(self) -> Operation | None:
        world = self._world
        if world.volumes.blacked_out:
            return None
        world.repair_volumes()
        return Operation("repair", world.invariants.repair, compared=False)

    # --- the world's own

    def _jump_clock(self) -> None:
        seconds = self._random.choice(CLOCK_JUMPS_S)
        self._world.note(f"    the clock jumps by {seconds} s")
        self._latest_ns = max(self._latest_ns, self._world.machine.clock.now)
        self._world.machine.clock.now += seconds * SECOND_NS

    def _lose_power(self) -> None:
        self._world.note("    power is lost")
        self._world.lose_power()

    def _kill(self) -> None:
        self._world.kill(self._random.choice(self._world.processes))

    def _hurt(self) -> None:
        world = self._world
        if world.volumes.hurt(self._hurt_kind()) and world.volumes.rolled_back is not None:
            world.invariants.is_known_to_be_old(world.volumes.rolled_back)

    def _hurt_kind(self) -> str:
        names = sorted(name for name, weight in self._world.plan.hurts.items() if weight)
        return self._random.choices(names, [self._world.plan.hurts[name] for name in names])[0]

    def _save_images(self) -> None:
        self._world.volumes.save_images()

    def _black_out(self) -> None:
        if not self._world.volumes.blacked_out:
            self._world.note("    too many volumes cannot be reached")
            self._world.volumes.black_out()

    def _come_back(self) -> None:
        self._world.volumes.come_back()

    def _swap_places(self) -> None:
        if self._world.volumes.swap_places():
            self._world.note("    two volumes change their places")
            self._world.restart_all()

    # --- what there is

    def note_hurt(self, positions: Iterable[int]) -> None:
        """Remember which volumes may have lost copies of what is staged."""
        for one in self.pending:
            one.hurt_on.update(positions)

    def _newest(self) -> Model:
        return self._world.expectation.models[-1]

    def _streams(self) -> list[str]:
        return sorted(self._newest().streams)

    def _any_stream(self) -> str | None:
        names = self._streams()
        return self._random.choice(names) if names else None


def _on(name: str, effect: Callable[[ModelStream], object]) -> Callable[[Model], object]:
    """Return the effect on one stream of a model, a refusal if there is no such stream."""
    return lambda model: effect(model.streams[name]) if name in model.streams else GONE


def _on_consumer(name: str, consumer: str, verb: str, argument: Any) -> Callable[[Model], object]:
    """Return the effect of a call of a consumer, which there is, if the stream is."""

    def effect(stream: ModelStream) -> object:
        if consumer not in stream.consumers:
            return GONE
        reader = stream.consumers[consumer]
        if verb == "fetch":
            return stream.fetch(consumer, argument)
        if verb == "ack":
            acknowledged = reader.waiting.intersection(argument)
            reader.waiting.difference_update(argument)
            reader.due.difference_update(argument)
            reader.done.update(acknowledged)
            stream.release(acknowledged)
        else:
            reader.due.update(reader.waiting.intersection(argument))
        return None

    return _on(name, effect)


def _if_there(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except NotFoundError:
        return None


def _while_streams_come_and_go(look: Callable[[Store], None], store: Store) -> None:
    """Look again if a stream was deleted in between: another process is in the middle of it."""
    for attempt in (1, 2):
        try:
            look(store)
            return
        except (StaleIncarnationError, NotFoundError):
            if attempt == 2:
                raise
