"""What goes wrong with simulated nodes and the network between them, and for how long.

Nodes whose storage failed, or came back blank, are never more than Raft promises to survive: a minority of the voters
of every membership that may be in force. Crashes, pauses and partitions may hit everybody at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.raft.disk import NodeDisk
from harness.raft.member import Member
from harness.raft.plan import TICK

from storage_core.raft.membership import Membership, NodeId
from storage_core.raft.messages import AppendRequest, AppendResponse, Message, VoteRequest, VoteResponse

if TYPE_CHECKING:
    from harness.raft.world import World

Undo = Callable[[], None]
SPEECH: tuple[type[Message], ...] = (VoteRequest, VoteResponse, AppendRequest, AppendResponse)


class Faults:
    def __init__(self, world: "World") -> None:
        self._world, self._random = world, world.random
        self._undo: list[Undo] = []  # of the faults that last
        self._healed = False
        self._traps: set[type[Message]] = set()  # who sends such a message next crashes
        self._trap_for_winner = False
        self._end_split: Undo | None = None  # joins the group again that fell apart over a change of members
        kinds: dict[str, Callable[[], None]] = {
            "crash": lambda: self._crash(self._some(1)),
            "crash together": lambda: self._crash(self._some(len(self._world.members))),
            "flap": lambda: self._crash(self._some(2), TICK // 2),
            "crash speaker": lambda: self._traps.add(self._random.choice(SPEECH)),
            "crash voter": lambda: self._traps.add(self._random.choice(SPEECH[:2])),
            "crash winner": lambda: setattr(self, "_trap_for_winner", True),
            "crash leader": lambda: self._crash(self._leader()),
            "partition": self._partition,
            "isolate leader": lambda: self._cut_off(self._leader(), both_ways=True),
            "one way": lambda: self._cut_off(self._some(1), both_ways=False),
            "bridge": self._bridge,
            "pause": self._pause,
            "fail": self._fail,
            "blank": self._blank,
        }
        self._kinds = {kind: act for kind, act in kinds.items() if world.plan.faults.get(kind)}

    def start(self) -> None:
        if self._kinds:
            self._world.soon(self._world.plan.fault_pause, self._next)

    def heal(self) -> None:
        """End all that lasts, and begin nothing new."""
        self._healed = True
        for undo in list(self._undo):
            undo()

    def _next(self) -> None:
        if self._healed:
            return
        (kind,) = self._random.choices(list(self._kinds), [self._world.plan.faults[kind] for kind in self._kinds])
        self._kinds[kind]()
        self._world.covered[kind] += 1
        self._world.soon(self._world.plan.fault_pause, self._next)

    def _last(self, undo: Undo, units_max: int | None = None) -> Undo:
        """Let a fault last a while; return what ends it before that."""

        def once() -> None:
            if once in self._undo:
                self._undo.remove(once)
                undo()

        self._undo.append(once)
        self._world.after(self._random.randint(1, units_max or self._world.plan.fault_max * TICK), once)
        return once

    # --- whom

    def _some(self, count_max: int) -> list[Member]:
        running = self._world.running()
        return self._random.sample(running, min(len(running), self._random.randint(1, count_max)))

    def _leader(self) -> list[Member]:
        leader = self._world.leader()
        return [leader] if leader else []

    def _ids(self) -> list[NodeId]:
        return list(self._world.members)

    # --- what

    def _crash(self, members: list[Member], units_max: int | None = None) -> None:
        for member in members:
            if not member.is_lost:
                self._world.note(f"{member.id.decode()} crashes")
                member.crash()
                self._last(lambda member=member: self._restart(member), units_max)  # type: ignore[misc]

    def on_message(self, message: Message) -> None:
        """Spring the trap: the message is on its way, and its sender gone before, or soon after, it has persisted."""
        if type(message) in self._traps and promises(message) and not self._healed:
            self._traps.remove(type(message))
            soon = self._random.choice((20, self._world.plan.persist_max, 2 * self._world.plan.delay_max))
            self._crash_soon(self._world.members[message.sender], soon)

    def on_elected(self, winner: Member) -> None:
        if self._trap_for_winner and not self._healed:
            self._trap_for_winner = False
            self._crash_soon(winner, 20)

    def _crash_soon(self, member: Member, units_max: int) -> None:
        life = member.life

        def crash() -> None:
            if member.life == life and member.node is not None:
                self._crash([member], TICK // 2)

        self._world.after(self._random.randint(1, units_max), crash)

    def _restart(self, member: Member) -> None:
        member.verified = self._healed or self._random.random() >= self._world.plan.unverified_share
        self._world.note(f"{member.id.decode()} restarts{'' if member.verified else ', not verified yet'}")
        member.start()
        if not member.verified:
            life = member.life
            self._last(lambda: self._verify(member, life))

    def _verify(self, member: Member, life: int) -> None:
        if member.life == life and member.node is not None and not member.retired:
            self._world.note(f"{member.id.decode()} is verified")
            member.set_verified()

    def _partition(self) -> None:
        ids = self._ids()
        self._random.shuffle(ids)
        cut = self._random.randint(0, len(ids))
        self._block([(a, b) for a in ids[:cut] for b in ids[cut:]], "partition")

    def _bridge(self) -> None:
        ids = self._ids()
        self._random.shuffle(ids)
        half = len(ids) // 2
        self._block([(a, b) for a in ids[:half] for b in ids[half + 1 :]], "bridge")

    def _block(self, pairs: list[tuple[NodeId, NodeId]], what: str) -> Undo:
        links = pairs + [(b, a) for a, b in pairs]
        self._world.note(f"{what}: {b' '.join(sorted({a for a, _ in pairs})).decode()} from the others")
        self._world.network.block(links)
        return self._last(lambda: self._world.network.unblock(links))

    def _cut_off(self, members: list[Member], both_ways: bool) -> None:
        for member in members:
            others = [other for other in self._ids() if other != member.id]
            outgoing, incoming = [(member.id, other) for other in others], [(other, member.id) for other in others]
            one_way = outgoing if self._random.random() < 0.5 else incoming
            links = outgoing + incoming if both_ways else one_way
            self._world.note(f"{member.id.decode()} is cut off, {len(links)} links of {2 * len(others)}")
            self._world.network.block(links)
            self._last(lambda links=links: self._world.network.unblock(links))  # type: ignore[misc]

    def on_change(self, proposer: Member) -> None:
        """Let the group fall apart before anybody hears of a change of members; soon somebody else will lead."""
        if self._healed or self._random.random() >= self._world.plan.split_share:
            return
        others = [other for other in self._ids() if other != proposer.id]
        self._random.shuffle(others)
        cut = self._random.choice((0, len(others) // 2, self._random.randint(0, len(others))))
        here, there = [proposer.id, *others[:cut]], others[cut:]
        self._world.covered["split over a change"] += 1
        if self._end_split is not None:
            self._end_split()
        self._end_split = self._block([(a, b) for a in here for b in there], "split over a change")
        for node in there * 2:
            self._world.soon(2 * TICK, lambda node=node: self._campaign(node))  # type: ignore[misc]

    def _campaign(self, node: NodeId) -> None:
        member = self._world.members[node]
        if member.node is not None and member.paused_until <= self._world.now and not self._healed:
            member.node.campaign(forced=True)
            member.pump()

    def _pause(self) -> None:
        for member in self._some(1):
            self._world.note(f"{member.id.decode()} pauses")
            member.paused_until = self._world.now + self._random.randint(1, 60 * TICK)
            self._last(lambda member=member: setattr(member, "paused_until", 0))  # type: ignore[misc]

    def _fail(self) -> None:
        for member in self._some(1):
            if self._may_lose(member):
                self._world.note(f"{member.id.decode()} will fail to persist")
                member.fails_next = True

    def _blank(self) -> None:
        for member in self._some(1):
            if self._may_lose(member):
                self._world.note(f"{member.id.decode()} comes back blank")
                member.crash()
                member.disk = NodeDisk(self._world.origin, self._world.plan.keeps_commit)
                member.verified, member.retired = False, True
                member.start()

    def _may_lose(self, member: Member) -> bool:
        lost = {other.id for other in self._world.members.values() if other.is_lost} | {member.id}
        return not member.is_lost and all(survives(members, lost) for members in self._world.memberships())


def survives(membership: Membership, lost: set[NodeId]) -> bool:
    """Return whether what is left of the voters is a majority, by the promise: f of 2f + 1."""
    return sum(voter in lost for voter in membership.voters) <= (len(membership.voters) - 1) // 2


def promises(message: Message) -> bool:
    """Return whether the sender must not forget what it says here."""
    if isinstance(message, VoteRequest):
        return not message.pre
    if isinstance(message, VoteResponse):
        return message.granted and not message.pre
    if isinstance(message, AppendResponse):
        return message.accepted
    return isinstance(message, AppendRequest) and bool(message.entries)
