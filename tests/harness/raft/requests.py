"""What is asked of a simulated group: writes, reads, changes of members, hand-overs; and whether it agrees at last."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.raft.faults import survives
from harness.raft.machine import encode_change
from harness.raft.member import Member
from harness.raft.plan import TICK

from storage_core.raft.entry import Entry
from storage_core.raft.membership import ChangeKind, MembershipChange
from storage_core.raft.outcomes import Proposed

if TYPE_CHECKING:
    from harness.raft.world import World

LEARNERS_MAX = 2
LAST_WRITE = b"set last"


class Requests:
    def __init__(self, world: "World") -> None:
        self._world, self._random = world, world.random
        self._count = 0
        self._is_written = False  # a write that was asked for after the healing is acked
        self.healed = False

    def start(self) -> None:
        plan = self._world.plan
        for mean, request in (
            (plan.write_pause, self._write),
            (plan.read_pause, self._read),
            (plan.change_pause, self._change),
            (plan.transfer_pause, self._transfer),
            (plan.campaign_pause, self._campaign),
        ):
            if mean:
                self._repeat(mean, request)

    def heal(self) -> None:
        self.healed = True
        self._write_until_acked()

    def _repeat(self, mean: int, request: Callable[[Member], None]) -> None:
        def once() -> None:
            if not self.healed:
                member = self._whom()
                if member is not None:
                    request(member)
                    member.pump()
                self._world.soon(mean, once)

        self._world.soon(mean, once)

    def _whom(self) -> Member | None:
        """Return somebody who believes to lead, or at times anybody."""
        running = [member for member in self._world.running() if member.paused_until <= self._world.now]
        leading = [member for member in running if member.leads]
        chosen = leading if leading and self._random.random() < 0.9 else running
        return self._random.choice(chosen) if chosen else None

    def _write(self, member: Member) -> None:
        assert member.node is not None
        self._count += 1
        proposed = member.node.propose([f"set {self._count}".encode()])
        if isinstance(proposed, Proposed):
            member.waiting_writes[proposed.first] = proposed.term

    def _read(self, member: Member) -> None:
        assert member.node is not None
        self._count += 1
        request = f"read {self._count}".encode()
        member.waiting_reads[request] = self._world.checker.acked
        if member.node.read_index(request) is not None:
            del member.waiting_reads[request]

    def _transfer(self, member: Member) -> None:
        assert member.node is not None
        member.node.transfer_leadership(self._random.choice(list(self._world.members)))

    def _campaign(self, member: Member) -> None:
        """Let one node, or two that do not know of each other, try to lead."""
        duel = self._random.random() < self._world.plan.duel_share
        forced = duel or self._random.random() < 0.5
        running = [each for each in self._world.running() if not each.leads]
        for each in self._random.sample(running, min(len(running), 2 if duel else 1)):
            if each.node is not None and each.paused_until <= self._world.now:
                each.node.campaign(forced)
                each.pump()

    def _change(self, member: Member) -> None:
        assert member.node is not None
        change = self._choose_change(member)
        if change is None:
            return
        answer = member.node.propose_membership(encode_change(change))
        self._world.note(f"{member.id.decode()} is asked to {change.kind.value} {change.node.decode()}: {answer}")
        if isinstance(answer, Proposed):
            self._world.covered["changes of members"] += 1
            self._world.faults.on_change(member)
            if change.node not in self._world.members:
                self._world.add(change.node, self._world.origin)

    def on_elected(self, member: Member) -> None:
        """Ask a leader to change members before it has said a word."""
        plan = self._world.plan
        if not self.healed and plan.change_pause and self._random.random() < plan.eager_share:
            self._change(member)

    def _choose_change(self, member: Member) -> MembershipChange | None:
        """Choose a change that leaves the group alive: lost members go first."""
        assert member.node is not None
        membership, world = member.node.membership, self._world
        lost = {other.id for other in world.members.values() if other.is_lost}
        lost_here = [node for node in membership.members if node in lost]
        learners = [node for node in membership.learners if node not in lost]
        if lost_here:
            change = MembershipChange(ChangeKind.REMOVE, self._random.choice(lost_here))
        elif learners and len(membership.voters) < world.plan.voters_max and self._random.random() < 0.7:
            change = MembershipChange(ChangeKind.PROMOTE, self._random.choice(learners))
        elif len(membership.voters) < world.plan.voters_min or (
            len(membership.learners) < LEARNERS_MAX and self._random.random() < 0.3
        ):
            change = MembershipChange(ChangeKind.ADD_LEARNER, self._new_node(membership.members))
        else:
            kind = self._random.choice((ChangeKind.DEMOTE, ChangeKind.REMOVE))
            change = MembershipChange(kind, self._random.choice(membership.voters))
        try:
            after = change.applied_to(membership)
        except ValueError:
            return None
        return change if survives(after, lost) else None

    def _new_node(self, members: tuple[bytes, ...]) -> bytes:
        """Return a node that was never a member, or one whose addition came to nothing, or was undone."""
        world = self._world
        spare = [each.id for each in world.members.values() if each.id not in members and not each.is_lost]
        if spare and self._random.random() < 0.5:
            return self._random.choice(spare)
        return f"m{len(world.members)}".encode()

    # --- after the healing

    def _write_until_acked(self) -> None:
        leader = self._world.leader()
        if leader is not None and leader.node is not None:
            proposed = leader.node.propose([LAST_WRITE])
            if isinstance(proposed, Proposed):
                leader.waiting_writes[proposed.first] = proposed.term
            leader.pump()
        if not self._is_written:
            self._world.after(20 * TICK, self._write_until_acked)

    def acked(self, entry: Entry) -> None:
        self._is_written = self._is_written or entry.payload == LAST_WRITE

    def is_settled(self) -> bool:
        """Return whether a write of after the healing is acked, and all members are in the same state."""
        checker, newest = self._world.checker, self._world.newest_state()
        if not self.healed or not self._is_written or newest.position.index != len(checker.committed) - 1:
            return False
        members = [self._world.members[node] for node in newest.membership.members]
        return all(member.is_lost or member.state == newest for member in members)

    def describe(self) -> str:
        parts = []
        for member in self._world.members.values():
            node = member.node
            what = f"{node.role.value} of {node.term}, {member.state.position.index}/{node.commit}" if node else "away"
            parts.append(f"{member.id.decode()}: {what}{', lost' if member.is_lost else ''}")
        return f"committed {len(self._world.checker.committed) - 1}; " + "; ".join(parts)
