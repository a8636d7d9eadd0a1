"""Messages between simulated nodes: delayed, so that they overtake each other; lost, repeated, cut off."""

from random import Random

from harness.raft.plan import SLOW_MAX, Plan

from storage_core.raft.membership import NodeId
from storage_core.raft.messages import Message


class Network:
    """Links are blocked in one direction each."""

    def __init__(self, plan: Plan, random: Random) -> None:
        self._plan, self._random = plan, random
        self._blocked: dict[tuple[NodeId, NodeId], int] = {}  # how many faults block it
        self.healed = False

    def block(self, links: list[tuple[NodeId, NodeId]]) -> None:
        for link in links:
            self._blocked[link] = self._blocked.get(link, 0) + 1

    def unblock(self, links: list[tuple[NodeId, NodeId]]) -> None:
        for link in links:
            self._blocked[link] -= 1

    def delays(self, message: Message) -> list[int]:
        """Return when the message arrives, in units from now: never, once, or twice."""
        if self.healed:
            return [self._random.randint(1, min(20, self._plan.delay_max))]
        if self._blocked.get((message.sender, message.to)) or self._random.random() < self._plan.loss:
            return []
        copies = 2 if self._random.random() < self._plan.duplication else 1
        return [self._delay() for _ in range(copies)]

    def _delay(self) -> int:
        return self._random.randint(
            1, SLOW_MAX if self._random.random() < self._plan.slow_share else self._plan.delay_max
        )
