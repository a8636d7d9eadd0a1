"""A Raft group in virtual time: one seed decides every delay, loss, fault and request.

Events are handled one after the other; each belongs to one node or to the world. After a time of faults everything is
healed, and the group must agree: one leader, a write committed, all members in the same state.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from harness.raft.checker import Checker, Violation
from harness.raft.disk import NodeDisk
from harness.raft.faults import Faults
from harness.raft.machine import MachineState
from harness.raft.member import Member
from harness.raft.network import Network
from harness.raft.plan import HEAL_TICKS, SLOW_DISK_MAX, TICK, Plan
from harness.raft.requests import Requests

from storage_core.raft.entry import Entry
from storage_core.raft.membership import Membership, NodeId
from storage_core.raft.messages import ORIGIN, Message, Snapshot, SnapshotRequest
from storage_core.raft.outcomes import Ready

Event = Callable[[], None]
UNITS_MAX = 10**9


class World:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed, self.random, self._trace = seed, Random(seed), trace
        self.plan = Plan.of(self.random)
        self.checker = Checker()
        self.network = Network(self.plan, self.random)
        self.now, self.event_count = 0, 0
        self.covered: Counter[str] = Counter()  # what happened how often
        self.members: dict[NodeId, Member] = {}
        self._events: list[tuple[int, int, Event]] = []
        self._scheduled = 0
        self.requests = Requests(self)
        self.faults = Faults(self)

    # --- time

    def after(self, units: int, event: Event) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + max(1, units), self._scheduled, event))

    def soon(self, mean: int, event: Event) -> None:
        """Let it happen at a random time, on average after `mean` units."""
        self.after(self.random.randint(1, 2 * mean), event)

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now / TICK:8.2f}  {text}")

    # --- the run

    def run(self) -> None:
        """Raises Violation, naming the invariant."""
        self.note(f"seed {self.seed}: {self.plan}")
        self._start()
        self._run_until(self.plan.chaos_ticks * TICK, lambda: False)
        self.note("healed")
        self.network.healed = True
        self.faults.heal()
        self.requests.heal()
        end = self.now + HEAL_TICKS * TICK
        self._run_until(end, self.requests.is_settled)
        if not self.requests.is_settled():
            raise Violation(f"the healed group did not agree within {HEAL_TICKS} ticks: {self.requests.describe()}")
        self.covered["reads shown"] = self.checker.read_count

    def _start(self) -> None:
        voters = tuple(f"n{number}".encode() for number in range(self.plan.voter_count))
        self.origin = Snapshot(ORIGIN, Membership.of(voters), b"")
        self.checker.states[0] = MachineState(ORIGIN, b"", self.origin.membership)
        for voter in voters:
            self.add(voter, self.origin)
        self.requests.start()
        self.faults.start()

    def _run_until(self, end: int, is_done: Callable[[], bool]) -> None:
        while self._events and self._events[0][0] <= end and not is_done():
            self.now, _, event = heapq.heappop(self._events)
            self.event_count += 1
            event()

    # --- members

    def add(self, node: NodeId, start: Snapshot) -> Member:
        member = Member(node, self, NodeDisk(start, self.plan.keeps_commit))
        self.members[node] = member
        member.start()
        spread = self.plan.tick_spread
        self._tick(member, TICK + self.random.randint(-spread, spread) * TICK // 100)
        return member

    def _tick(self, member: Member, period: int) -> None:
        def tick() -> None:
            if member.node is not None and member.paused_until <= self.now:
                member.node.tick()
                member.pump()
            self.after(period, tick)

        self.after(self.random.randint(1, period), tick)

    def carry(self, message: Message) -> None:
        delays = self.network.delays(message)
        if self._trace is not None:
            self.note(f"{_describe(message)}{'' if delays else '  LOST'}")
        self.faults.on_message(message)
        for delay in delays:
            self.after(delay, lambda: self._deliver(message))
        if isinstance(message, SnapshotRequest):
            self.covered["snapshots sent"] += 1
            self._report_snapshot(message, bool(delays))

    def _deliver(self, message: Message) -> None:
        member = self.members.get(message.to)
        if member is None or member.node is None:
            return
        if member.paused_until > self.now:
            self.after(member.paused_until - self.now + self.random.randrange(TICK), lambda: self._deliver(message))
            return
        member.node.step(message)
        member.pump()

    def _report_snapshot(self, message: SnapshotRequest, arrived: bool) -> None:
        """The sender is told what became of a snapshot, sooner or later than the receiver answers."""
        sender = self.members[message.sender]
        life = sender.life

        def report() -> None:
            if sender.node is not None and sender.life == life:
                sender.node.report_snapshot(message.to, arrived)
                sender.pump()

        self.after(self.random.randint(1, 2 * self.plan.delay_max), report)

    def persist_later(self, member: Member, ready: Ready) -> None:
        life = member.life

        def finish() -> None:
            if member.life != life or member.node is None:
                return
            if member.paused_until > self.now:
                self.after(member.paused_until - self.now, finish)
            else:
                member.persisted(ready)

        slow = self.random.random() < self.plan.slow_disk_share
        self.after(self.random.randint(1, SLOW_DISK_MAX if slow else self.plan.persist_max), finish)

    def acked(self, entry: Entry) -> None:
        self.covered["writes acked"] += 1
        self.checker.acknowledged(entry.index)
        self.requests.acked(entry)

    def elected(self, member: Member) -> None:
        self.covered["leaders"] += 1
        self.note(f"{member.id.decode()} leads")
        self.faults.on_elected(member)
        self.requests.on_elected(member)

    # --- what there is to know

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.node is not None]

    def leader(self) -> Member | None:
        """Return the leader of the highest term."""
        led = [(member.node.term, member) for member in self.running() if member.node and member.leads]
        return max(led, key=lambda pair: pair[0])[1] if led else None

    def newest_state(self) -> MachineState:
        return self.checker.states[max(self.checker.states)]

    def memberships(self) -> list[Membership]:
        """Return every membership that may be in force at some node now, or by an entry that is in some log."""
        newest = self.newest_state()
        found = {newest.membership: None}
        for member in self.members.values():
            if member.node is not None:
                found[member.node.membership] = None
            for change in member.open_changes(newest.position.index):
                try:
                    found[change.applied_to(newest.membership)] = None
                except ValueError:
                    continue
        return list(found)


def _describe(message: Message) -> str:
    fields = []
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if name not in ("sender", "to"):
            fields.append(f"{name}={_short(value)}")
    return f"{message.sender.decode()}->{message.to.decode()} {type(message).__name__} {' '.join(fields)}"


def _short(value: object) -> str:
    if hasattr(value, "index") and hasattr(value, "chain"):
        return f"{value.term}/{value.index}"
    if isinstance(value, Snapshot):
        return f"snapshot {_short(value.position)}"
    if isinstance(value, tuple):
        return "[" + " ".join(f"{_short(entry)}:{entry.payload.decode()}" for entry in value) + "]"
    return str(value)
