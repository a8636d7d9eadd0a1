"""Durable consumers step by step against a dict: two processes on one simulated disk, killed and left without power.

The model says of every message whether it is shown, and of every message of a consumer when it is due again and how
often it was handed out. Every fetch is compared with what the model would hand out, message by message.
"""

from dataclasses import dataclass, field
from typing import Any

from harness.faults import end_at, let_everything_happen
from harness.life import to_table
from harness.model import Row
from harness.processes import SECOND_NS, Machine
from harness.simulated_disk import ProcessEnded
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage_core.store.consumers.consumer import Consumer
from storage_core.store.consumers.query import QueryReader
from storage_core.store.store import Store

SUBJECTS = ("orders.eu", "orders.us")
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"max_ack_pending": 3, "max_deliver": 2},
    "all": {"ack_policy": "all"},
    "none": {"ack_policy": "none"},
    "filtered": {"filter_subjects": ["orders.us"]},
}
ACK_WAIT_S = 30
PROCESSES = st.integers(0, 1)
NAMES = st.sampled_from(sorted(CONFIGS))


@dataclass
class ModelConsumer:
    """What is known of each message that waits: when it is due (seconds), and how often it was handed out."""

    config: dict[str, Any]
    next: int = 1
    waiting: dict[int, tuple[float, int]] = field(default_factory=dict)
    paused_until: float = 0.0

    def copy(self) -> "ModelConsumer":
        return ModelConsumer(self.config, self.next, dict(self.waiting), self.paused_until)

    def fetch(self, messages: dict[int, str], end: int, now: float, count: int) -> dict[int, int]:
        """Return what a fetch hands out, with the number of times."""
        if self.paused_until > now:
            return {}
        if messages and self.next < min(messages):
            self.next = min(messages)
        elif not messages:
            self.next = end
        limit = self.config.get("max_deliver", -1)
        for one, (due, times) in sorted(self.waiting.items()):
            if one not in messages or (due <= now and 0 < limit <= times):
                del self.waiting[one]
        given = {}
        for one, (due, times) in sorted(self.waiting.items()):
            if due <= now and len(given) < count:
                given[one] = times + 1
        keeps = self.config.get("ack_policy") != "none"
        room = self.config.get("max_ack_pending", 1000) - len(self.waiting) if keeps else count
        wanted = self.config.get("filter_subjects", SUBJECTS)
        ahead = [one for one in sorted(messages) if one >= self.next and messages[one] in wanted]
        new = ahead[: max(0, min(room, count - len(given)))]
        if new:
            self.next = new[-1] + 1
        given.update(dict.fromkeys(new, 1))
        if keeps:
            self.waiting.update({one: (now + ACK_WAIT_S, times) for one, times in given.items()})
        return given

    def reconcile(self, kind: str, sequences: set[int], now: float, delay: float) -> int:
        if kind == "ack" and self.config.get("ack_policy") == "all" and sequences:
            sequences = {one for one in self.waiting if one <= max(sequences)}
        meant = sequences & set(self.waiting)
        for one in meant:
            if kind == "nak":
                self.waiting[one] = (now + delay, self.waiting[one][1])
            else:
                del self.waiting[one]
        return len(meant)


class ConsumerMachine(RuleBasedStateMachine):
    """Time passes in whole seconds, by rules; what the simulated clock adds at each look is far below one."""

    @initialize(
        seed=st.integers(0, 2**16), volume_count=st.sampled_from([1, 1, 3]), every=st.sampled_from([1, 3, 50]),
        name=NAMES,
    )  # fmt: skip
    def create(self, seed: int, volume_count: int, every: int, name: str) -> None:
        self.machine = Machine(seed, volume_count)
        self.started_ns = self.machine.clock.now
        stream = self.machine.create(snapshot_every=every).add_stream(
            {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 3}
        )
        self.messages: dict[int, str] = {}
        self.end = 1
        self.name, self.model = name, ModelConsumer(CONFIGS[name])
        stream.add_consumer({"name": name, **CONFIGS[name]})
        self.files = [self.machine.files() for _ in range(2)]
        self.stores: list[Store] = [self.machine.open(files) for files in self.files]
        self.append(0, ["orders.eu", "orders.us", "orders.us", "orders.eu"])

    @property
    def now(self) -> float:
        """Whole seconds: half a second is far more than the looks at the clock add up to."""
        return round((self.machine.clock.now - self.started_ns) / SECOND_NS)

    def consumer(self, process: int) -> Consumer:
        return self.stores[process].stream("orders").consumer(self.name)

    # --- messages come and go

    @rule(process=PROCESSES, subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6))
    def append(self, process: int, subjects: list[str]) -> None:
        self.stores[process].stream("orders").append(to_table([Row(one, b"x") for one in subjects]))
        for subject in subjects:
            self.messages[self.end] = subject
            self.end += 1

    @rule(process=PROCESSES, sequences=st.sets(st.integers(1, 20), min_size=1, max_size=3))
    def remove(self, process: int, sequences: set[int]) -> None:
        self.stores[process].stream("orders").remove(sequences)
        for sequence in sequences:
            self.messages.pop(sequence, None)
            self.model.waiting.pop(sequence, None)  # it is skipped from now on, not acknowledged

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def wait(self, seconds: int) -> None:
        self.machine.clock.now += seconds * SECOND_NS

    # --- what consumers do

    @rule(process=PROCESSES, count=st.integers(1, 8))
    def fetch(self, process: int, count: int) -> None:
        expected = self.model.fetch(self.messages, self.end, self.now, count)
        self.machine.clock.now += SECOND_NS // 1000  # what is due at this very second is due
        table = self.consumer(process).fetch(count, 0)
        given = dict(zip(table.column("sequence").to_pylist(), table.column("delivery_count").to_pylist(), strict=True))
        assert given == expected
        assert list(given) == sorted(given)
        assert table.column("subject").to_pylist() == [self.messages[one] for one in given]

    @rule(
        process=PROCESSES, kind=st.sampled_from(["ack", "nak", "term"]),
        sequences=st.sets(st.integers(1, 15), min_size=1, max_size=6), delay=st.sampled_from([0, 5]),
    )  # fmt: skip
    def reconcile(self, process: int, kind: str, sequences: set[int], delay: int) -> None:
        expected = self.model.reconcile(kind, sequences, self.now, delay)
        consumer = self.consumer(process)
        done = consumer.nak(sequences, delay) if kind == "nak" else getattr(consumer, kind)(sequences)
        assert done == expected

    @rule(process=PROCESSES, back=st.integers(0, 10))
    def a_query_is_done_with_a_batch(self, process: int, back: int) -> None:
        done = max(1, self.end - back)
        query = QueryReader(self.stores[process], self.name, own=False)
        query.acknowledge({"orders": query.at("orders", done).position})
        self.model.waiting = {one: value for one, value in self.model.waiting.items() if one >= done}
        self.model.next = max(self.model.next, done)

    @rule(process=PROCESSES, seconds=st.sampled_from([0, 15]))
    def pause(self, process: int, seconds: int) -> None:
        consumer = self.consumer(process)
        consumer.pause(seconds) if seconds else consumer.resume()
        self.model.paused_until = self.now + seconds if seconds else 0.0

    @rule(process=PROCESSES, back=st.integers(0, 10))
    def reset(self, process: int, back: int) -> None:
        to = max(1, self.end - back)
        self.consumer(process).reset(to)
        self.model = ModelConsumer(CONFIGS[self.name], to, {}, self.model.paused_until)

    # --- processes come and go

    @rule(process=PROCESSES)
    def reopen(self, process: int) -> None:
        self.files[process] = self.machine.files()
        self.stores[process] = self.machine.open(self.files[process])

    @rule()
    def lose_power(self) -> None:
        self.machine.disk.lose_power()
        for process in range(2):
            self.reopen(process)

    @rule(process=PROCESSES, count=st.integers(1, 8), at=st.integers(0, 12), power=st.booleans())
    def killed_while_fetching(self, process: int, count: int, at: int, power: bool) -> None:
        """Afterwards the messages were handed out, or they were not: never some of them."""
        before = self.model.copy()
        self.model.fetch(self.messages, self.end, self.now, count)
        self.machine.clock.now += SECOND_NS // 1000
        consumer = self.consumer(process)
        files = self.files[process]
        files.judge = end_at(len(files.calls) + at)
        try:
            consumer.fetch(count, 0)
        except ProcessEnded:
            pass
        files.judge = let_everything_happen
        if power:
            self.machine.disk.lose_power()
        for one in range(2):
            self.reopen(one)
        state = self.consumer(1 - process).state()
        found = {
            one: int(row["deliveries"])
            for row in state.pending.rows
            for one in range(int(row["first"]), int(row["end"]))
        }
        after = {one: times for one, (_, times) in self.model.waiting.items()}
        if found != after or state.next_sequence < self.model.next:
            waited = {one: times for one, (_, times) in before.waiting.items()}
            assert found.items() <= waited.items() and set(found) >= set(waited) & set(self.messages)
            self.model = before

    @invariant()
    def info_says_what_the_model_says(self) -> None:
        model = self.model
        info = self.consumer(0).info()
        waiting = {one: times for one, (_, times) in model.waiting.items() if one in self.messages}
        assert info["num_ack_pending"] == len(waiting)
        assert info["num_redelivered"] == sum(times > 1 for times in waiting.values())
        wanted = model.config.get("filter_subjects", SUBJECTS)
        ahead = [one for one, subject in self.messages.items() if one >= model.next and subject in wanted]
        assert info["num_pending"] == len(ahead)
        if waiting:
            assert info["ack_floor"]["stream_seq"] == min(waiting) - 1


ConsumerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestConsumers = ConsumerMachine.TestCase
