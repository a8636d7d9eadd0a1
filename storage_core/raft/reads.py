"""Linearizable reads without a clock: the leader asks a quorum whether it still leads.

A read that is asked for gets the commit index of that moment, and the number of a round of heartbeats that is sent
after it. When a majority has answered that round or a later one, nobody else can have committed anything before the
read was asked for, and the state as of the index, or a newer one, may be shown. Before the leader has committed an
entry of its own term its commit index may lag behind what an earlier leader acked, so reads wait for that.

Source: Ongaro's thesis, section 6.4 (without 6.4.1: no leases).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.raft import quorum
from storage_core.raft.membership import NodeId


@dataclass(frozen=True, slots=True)
class ReadResult:
    request: bytes  # as given to `read_index`
    index: int | None  # serve once this is applied; None: leadership was lost, ask again


@dataclass(frozen=True, slots=True)
class _Started:
    request: bytes
    index: int
    round: int


class ReadQueue:
    """The reads of one leader in one term."""

    def __init__(self) -> None:
        self.round = 0  # of the newest read that was started
        self._waiting: deque[bytes] = deque()  # for the first commit of the term
        self._started: deque[_Started] = deque()  # rounds ascend
        self._answered: dict[NodeId, int] = {}  # the highest round each node has answered

    def wait(self, request: bytes) -> None:
        self._waiting.append(request)

    def start(self, request: bytes, commit: int) -> None:
        """Start a read at this commit index. The caller sends a heartbeat with `round` next."""
        self.round += 1
        self._started.append(_Started(request, commit, self.round))

    def start_waiting(self, commit: int) -> bool:
        """Start the reads that waited; return whether there were any."""
        started = bool(self._waiting)
        while self._waiting:
            self.start(self._waiting.popleft(), commit)
        return started

    def answered(self, node: NodeId, read_round: int) -> None:
        self._answered[node] = max(self._answered.get(node, 0), read_round)

    def take_confirmed(self, voters: Sequence[NodeId]) -> list[ReadResult]:
        """Return the reads that a majority has confirmed, in the order they were asked for."""
        confirmed, results = quorum.agreed_number(voters, self._answered), []
        while self._started and self._started[0].round <= confirmed:
            read = self._started.popleft()
            results.append(ReadResult(read.request, read.index))
        return results

    def drop(self) -> list[ReadResult]:
        """Return all reads as lost."""
        requests = [read.request for read in self._started] + list(self._waiting)
        self._started.clear()
        self._waiting.clear()
        return [ReadResult(request, None) for request in requests]
