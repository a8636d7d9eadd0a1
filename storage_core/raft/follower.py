"""What a follower does with what a leader sends: take entries, a commit index, a snapshot.

Every answer here goes out after the entries it speaks of are persisted.

Source: Raft paper, section 5.3 and figure 2; section 7 for snapshots.
"""

from storage_core.errors import CorruptionError
from storage_core.raft.log import Contradiction, Refusal
from storage_core.raft.membership import NodeId
from storage_core.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    SnapshotRequest,
)
from storage_core.raft.state import NodeState


class Follower:
    """The role of a follower, in one term."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._agreed = 0  # this log is the leader's up to here; a commit index says nothing about entries above

    def on_append(self, request: AppendRequest) -> str | None:
        """Take entries; return what is wrong with this log, if the leader's shows it."""
        state, outcome = self._state, self._state.log.accept(request.before, request.entries)
        if isinstance(outcome, Contradiction):
            return outcome.reason
        if isinstance(outcome, Refusal):
            response = AppendResponse(
                state.id,
                request.sender,
                state.term,
                request.before.index,
                state.verified,
                accepted=False,
                hint_index=outcome.hint.index,
                hint_term=outcome.hint.term,
            )
            state.after_persist.append(response)
            return None
        self._agreed = max(self._agreed, outcome)
        state.log.commit_to(min(request.commit, self._agreed))
        self._accepted(request.sender, outcome)
        return None

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        state = self._state
        state.log.commit_to(min(request.commit, self._agreed))
        response = HeartbeatResponse(state.id, request.sender, state.term, request.read_round, state.verified)
        state.after_persist.append(response)

    def on_snapshot(self, request: SnapshotRequest) -> None:
        """Begin anew from the snapshot, unless this log has its entry already."""
        state, position = self._state, request.snapshot.position
        if position.index > state.log.commit:
            if state.log.has(position):
                state.log.commit_to(position.index)
            else:
                state.log.restore(request.snapshot)
        self._agreed = max(self._agreed, state.log.commit)
        self._accepted(request.sender, state.log.commit)

    def _accepted(self, leader: NodeId, index: int) -> None:
        state = self._state
        state.after_persist.append(AppendResponse(state.id, leader, state.term, index, state.verified))


def check_append(request: AppendRequest) -> None:
    """Raises CorruptionError if the entries do not follow each other, or are of a later term than their leader."""
    before = request.before
    term, index, chain = before.term, before.index, before.chain
    for entry in request.entries:
        if entry.index != index + 1 or not term <= entry.term <= request.term or not entry.follows(chain):
            raise CorruptionError(f"entry {entry.index} in a message does not follow entry {index}")
        term, index, chain = entry.term, entry.index, entry.chain
