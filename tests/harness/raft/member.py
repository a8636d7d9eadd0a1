"""One simulated node: the core, its disk, its state machine, and the shell between them."""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from harness.raft.checker import Checker, Violation
from harness.raft.disk import NodeDisk
from harness.raft.machine import MachineState, decode_change, restored
from harness.raft.plan import Plan

from storage_core.raft.core import Node
from storage_core.raft.entry import Entry
from storage_core.raft.membership import Membership, MembershipChange, NodeId
from storage_core.raft.messages import ORIGIN, Message, Snapshot, SnapshotRequest
from storage_core.raft.outcomes import Ready, Role
from storage_core.raft.state import Host, TermOpening

START = Membership()


class World(Protocol):
    """What a member needs of the simulation around it."""

    random: Random
    plan: Plan
    checker: Checker

    def carry(self, message: Message) -> None: ...
    def persist_later(self, member: "Member", ready: Ready) -> None: ...
    def acked(self, entry: Entry) -> None: ...
    def elected(self, member: "Member") -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Member:
    id: NodeId
    world: World
    disk: NodeDisk
    verified: bool = True
    node: Node | None = None  # None: not running
    life: int = 0  # counts restarts: what belongs to an earlier one is forgotten
    retired: bool = False  # its storage failed, or was blank: it must be replaced
    fails_next: bool = False  # its storage fails when it persists the next time
    paused_until: int = 0
    state: MachineState = field(default_factory=lambda: MachineState(ORIGIN, b"", START))
    waiting_writes: dict[int, int] = field(default_factory=dict)  # index: term that was proposed
    waiting_reads: dict[bytes, int] = field(default_factory=dict)  # request: what it must show at least
    confirmed_reads: list[tuple[int, int]] = field(default_factory=list)  # (index, what it must show at least)
    _handed: bool = False
    _led: int = 0  # the last term it led
    _last_snapshot: int = 0

    def start(self) -> None:
        """Start, or restart, from what is on disk."""
        snapshot = self.disk.storage.snapshot()
        base = snapshot or Snapshot(ORIGIN, START, b"")
        self.life += 1
        self.state, self._handed = restored(base), False
        self.waiting_writes, self.waiting_reads, self.confirmed_reads = {}, {}, []
        self._last_snapshot = base.position.index
        random = self.world.random
        host = Host(
            jitter=random.randrange,
            open_term=lambda term: TermOpening(random.randbytes(8), f"open {term}".encode()),
            change_of=decode_change,
        )
        checker = self.world.checker
        checker.forget(self.id)
        checker.restored(self.id, self.state)
        checker.appended(self.id, self.disk.durable_entries())
        if self.verified:
            checker.persisted(self.id, self.disk.durable_entries(), self.disk.durable_snapshot())
        self.node = Node(
            self.id,
            self.disk.storage,
            self.disk.hard_state,
            base.position.index,
            base.membership,
            self.world.plan.settings,
            host,
            self.verified,
        )
        self.pump()

    @property
    def is_lost(self) -> bool:
        """Return whether its storage failed, is about to, or came back blank: it is to be replaced."""
        return self.retired or self.fails_next

    def set_verified(self) -> None:
        """All that it has on disk is known to be what it persisted."""
        assert self.node is not None
        self.verified = True
        self.world.checker.persisted(self.id, self.disk.durable_entries(), self.disk.durable_snapshot())
        self.node.set_verified(True)
        self.pump()

    def open_changes(self, applied: int) -> list[MembershipChange]:
        """Return the changes of members in its log above `applied`."""
        storage = self.disk.storage
        first, end = max(applied, storage.base().index) + 1, storage.last().index + 1
        entries = storage.entries(first, end, 1 << 60) if first < end else []
        return [change for entry in entries if (change := decode_change(entry.payload)) is not None]

    def crash(self) -> None:
        self.node = None
        self.life += 1
        self.disk.crash(self.world.random)

    @property
    def leads(self) -> bool:
        return self.node is not None and self.node.role is Role.LEADER

    def pump(self) -> None:
        """Do what the node has ready, until something takes time or nothing is left."""
        while self.node is not None:
            self.world.checker.check(self.node)
            if self.leads and self._led != self.node.term:
                self._led = self.node.term
                self.world.elected(self)
            if self.node.failure is not None and not self.retired:
                raise Violation(f"{self.id!r} found fault with a log that nobody has harmed: {self.node.failure}")
            if self._handed:
                return
            if not self.node.has_ready():
                return
            ready = self.node.ready()
            for message in ready.at_once:
                self._send(message)
            self.disk.write(ready)
            self.world.checker.appended(self.id, ready.entries)
            if ready.must_sync:
                self._handed = True
                self.world.persist_later(self, ready)
            else:
                self._finish(ready)

    def persisted(self, ready: Ready) -> None:
        """Go on after the time that persisting took."""
        self._handed = False
        assert self.node is not None
        if self.fails_next:
            self.world.note(f"{self.id.decode()} fails to persist")
            self.retired, self.fails_next = True, False
            self.disk.fail_to_sync(self.world.random)
            self.node.storage_failed("fsync failed")
        elif self.node.failure is None:
            self.disk.sync()
            if self.verified:
                durable = [entry for entry in ready.entries if self.disk.has_durably(entry)]
                self.world.checker.persisted(self.id, durable, ready.snapshot)
            self._finish(ready)
        self.pump()

    def _finish(self, ready: Ready) -> None:
        assert self.node is not None
        for message in ready.messages:
            self._send(message)
        if ready.snapshot is not None:
            self.state = restored(ready.snapshot)
            self._last_snapshot = self.state.position.index
            self.world.checker.restored(self.id, self.state)
            self.waiting_writes.clear()
        for entry in ready.committed:
            self._apply(entry)
        for result in ready.reads:
            required = self.waiting_reads.pop(result.request)
            if result.index is not None:
                self.confirmed_reads.append((result.index, required))
        self.node.advance()
        self.world.checker.check(self.node)
        self._check_members(self.node)
        self._serve_reads()
        self._take_snapshot()

    def _apply(self, entry: Entry) -> None:
        before = self.state
        self.state = before.after(entry)
        self.world.checker.applied(self.id, before, entry, self.state)
        if self.waiting_writes.pop(entry.index, None) == entry.term:
            self.world.acked(entry)

    def _check_members(self, node: Node) -> None:
        """What the core counts by is what the state machine says, but for changes that are not applied."""
        if node.membership == self.state.membership:
            return
        status, last = node.status(), self.disk.storage.last()
        if status.last == last and not self.open_changes(status.applied):
            raise Violation(f"members: {self.id!r} counts {node.membership}, applied were {self.state.membership}")

    def _serve_reads(self) -> None:
        shown, waiting = self.state.position.index, []
        for index, required in self.confirmed_reads:
            if index <= shown:
                self.world.checker.read(self.id, shown, required)
            else:
                waiting.append((index, required))
        self.confirmed_reads = waiting

    def _take_snapshot(self) -> None:
        every = self.world.plan.snapshot_every
        if every and self.state.position.index >= self._last_snapshot + every:
            self._last_snapshot = self.state.position.index
            self.disk.compact(self.snapshot(), self.world.plan.keep_count)

    def snapshot(self) -> Snapshot:
        """State, position and members in one step, by the one that applies (P6)."""
        return self.state.snapshot()

    def _send(self, message: Message) -> None:
        self.world.carry(message)
        if isinstance(message, SnapshotRequest):
            assert self.node is not None
            self.world.note(f"{self.id.decode()} sends a snapshot to {message.to.decode()}")
