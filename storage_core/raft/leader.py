"""What a leader does: append, send, count, commit, confirm reads, hand over.

Its own log is one copy among the others: it counts when it is persisted, not when it is appended. An index is
committed when a majority of the voters has persisted it and its entry is of the leader's own term; entries of earlier
terms are committed by that, never by themselves.

Source: Raft paper, sections 5.3, 5.4.2 and 8; Ongaro's thesis, sections 3.10, 4, 6.2 and 6.4.
"""

from collections import deque
from collections.abc import Sequence

from storage_core.errors import CorruptionError
from storage_core.raft import quorum
from storage_core.raft.entry import make_entry
from storage_core.raft.membership import NodeId
from storage_core.raft.messages import (
    AppendRequest,
    AppendResponse,
    CampaignRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    SnapshotRequest,
)
from storage_core.raft.progress import Inflight, Progress, Sending
from storage_core.raft.reads import ReadQueue, ReadResult
from storage_core.raft.state import NodeState, TermOpening


class Leader:
    """The role of a leader, in one term."""

    def __init__(self, state: NodeState, opening: TermOpening) -> None:
        self._state, self._history = state, opening.history
        self.progress: dict[NodeId, Progress] = {}  # of every member but this node, in order of id
        self.reads = ReadQueue()
        self.confirmed: list[ReadResult] = []  # reads to be handed out
        self.successor: NodeId | None = None  # set: proposals are refused, so that it can catch up
        self._first_index = state.log.last.index + 1  # of the term's first entry
        self._change_index = self._first_index  # of the last change of members; before there is one, of that
        self._proposed: deque[tuple[int, int]] = deque()  # index and payload bytes of what is not committed
        self._heartbeat_elapsed = self._quorum_elapsed = 0
        self._follow_membership(self._first_index)
        self.append([opening.payload])

    # --- appending and sending

    def append(self, payloads: Sequence[bytes]) -> None:
        """Add entries to the log and send them to whoever can take them."""
        for payload in payloads:
            self._append(payload)
        self._send_appends(empty_too=False)

    def _append(self, payload: bytes) -> None:
        log = self._state.log
        last, index = log.last, log.last.index + 1
        log.append(make_entry(last.chain, index, self._state.term, self._history, payload))
        self._proposed.append((index, len(payload)))

    def may_change_members(self) -> bool:
        """Return whether the change before is applied, and an entry of the own term.

        Without the latter two leaders could change different members at once (Ongaro on raft-dev, 2015).
        """
        return self._change_index <= self._state.log.applied

    def change_members(self, payload: bytes) -> int:
        """Add an entry that changes the members, and return its index. It counts at once, for its own commit, too."""
        self._append(payload)
        self._change_index = self._state.log.last.index
        self._follow_membership(self._change_index)
        self._send_appends(empty_too=False)
        return self._change_index

    def has_room_for(self, payloads: Sequence[bytes]) -> bool:
        """Return whether the bound of uncommitted bytes lets these in. An empty backlog takes anything."""
        backlog = sum(size for _, size in self._proposed)
        return not backlog or backlog + sum(map(len, payloads)) <= self._state.settings.uncommitted_size_max

    def _send_appends(self, empty_too: bool) -> None:
        for node in self.progress:
            self._send_append(node, empty_too)

    def _send_append(self, node: NodeId, empty_too: bool) -> bool:
        """Send the next entries, or a snapshot if they are compacted away; return whether anything was sent."""
        state, progress = self._state, self.progress[node]
        if progress.is_paused:
            return False
        before = state.log.position(progress.next - 1)
        if before is None:
            return self._send_snapshot(node, progress)
        entries = state.log.entries(progress.next, state.settings.append_size_max)
        if not entries and not empty_too:
            return False
        state.at_once.append(AppendRequest(state.id, node, state.term, before, entries, state.log.commit))
        progress.sent(before.index + len(entries), len(entries), sum(len(entry.payload) for entry in entries))
        return True

    def _send_snapshot(self, node: NodeId, progress: Progress) -> bool:
        """Send a snapshot to a node that was heard of lately: it is large, and pauses everything else."""
        state, snapshot = self._state, self._state.log.newest_snapshot()
        if snapshot is None or not progress.active:
            return False
        state.at_once.append(SnapshotRequest(state.id, node, state.term, snapshot))
        progress.sent_snapshot(snapshot.position.index)
        return True

    def _send_heartbeats(self) -> None:
        self._heartbeat_elapsed = 0
        state = self._state
        for node in self.progress:
            heartbeat = HeartbeatRequest(state.id, node, state.term, state.log.commit, self.reads.round)
            state.at_once.append(heartbeat)

    # --- what the others answer

    def on_append_response(self, response: AppendResponse) -> None:
        progress = self.progress.get(response.sender)
        if progress is None:
            return
        if response.index > self._state.log.last.index:
            raise CorruptionError(f"{response.sender.hex()} has persisted entry {response.index}, which was never sent")
        progress.active, progress.verified = True, response.verified
        if not response.accepted:
            if progress.refused(response.index, self._next_after(response)):
                self._send_append(response.sender, empty_too=True)
            return
        was_paused = progress.is_paused
        news = progress.accepted(response.index, response.verified)
        if progress.sending is not Sending.REPLICATE and self._log_goes_on_from(progress.match):
            progress.replicate()
        elif progress.sending is Sending.SNAPSHOT and progress.match >= progress.snapshot_index:
            progress.probe()  # it has arrived, and this node's log begins behind it by now
        if not self.try_commit() and was_paused:
            self._send_append(response.sender, empty_too=news)  # what was committed meanwhile is news, too
        if news:
            while self._send_append(response.sender, empty_too=False):
                pass
        self._hand_over_if_ready()

    def _next_after(self, refusal: AppendResponse) -> int:
        """Return the first index at which the follower's log can differ, or lacks an entry."""
        log = self._state.log
        if refusal.hint_index < log.base_index:
            return refusal.hint_index + 1
        return log.highest_of_term(refusal.hint_index, refusal.hint_term, log.base_index).index + 1

    def _log_goes_on_from(self, index: int) -> bool:
        return self._state.log.position(index) is not None

    def on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        state, progress = self._state, self.progress.get(response.sender)
        if progress is None:
            return
        progress.active, progress.verified = True, response.verified
        progress.answered_heartbeat()
        # Also where a node was not verified when it accepted the last entries: it is to say so again.
        if progress.counted < state.log.last.index or progress.sending is Sending.PROBE:
            self._send_append(response.sender, empty_too=True)
        if response.verified:
            self.reads.answered(response.sender, response.read_round)
            self._confirm_reads()

    def on_snapshot_report(self, node: NodeId, arrived: bool) -> None:
        """Go on with a follower whose snapshot was carried there, or was not."""
        progress = self.progress.get(node)
        if progress is None or progress.sending is not Sending.SNAPSHOT:
            return
        if arrived:
            progress.probe()
        else:
            progress.snapshot_failed()
        progress.awaits_answer = True  # until the next heartbeat is answered: at once would be too often

    def on_unreachable(self, node: NodeId) -> None:
        """Stop sending ahead to a follower that messages are known not to have reached."""
        progress = self.progress.get(node)
        if progress is not None and progress.sending is Sending.REPLICATE:
            progress.probe()

    # --- committing

    def on_persisted(self) -> None:
        """Count what this node has persisted itself."""
        self.try_commit()

    def try_commit(self) -> bool:
        """Commit what a majority has; tell everybody, and return True, if that is more than before."""
        state = self._state
        acknowledged = {node: progress.counted for node, progress in self.progress.items()}
        acknowledged[state.id] = state.log.stable_index
        index = quorum.committed_index(
            state.membership.voters, acknowledged, state.log.commit, term_first=self._first_index
        )
        if index == state.log.commit:
            return False
        state.log.commit_to(index)
        while self._proposed and self._proposed[0][0] <= index:
            self._proposed.popleft()
        if self.reads.start_waiting(index):
            self._send_heartbeats()
            self._confirm_reads()
        self._send_appends(empty_too=True)
        return True

    # --- reads

    def read(self, request: bytes) -> None:
        state = self._state
        if state.log.commit < self._first_index:
            self.reads.wait(request)
            return
        self.reads.start(request, state.log.commit)
        self._send_heartbeats()
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        self.reads.answered(self._state.id, self.reads.round)
        self.confirmed += self.reads.take_confirmed(self._state.membership.voters)

    # --- time, membership, hand-over

    def tick(self) -> bool:
        """Let a tick pass; return False if no quorum was heard of for so long that this node should not lead."""
        state = self._state
        self._heartbeat_elapsed += 1
        self._quorum_elapsed += 1
        if self._quorum_elapsed >= state.settings.election_ticks:
            self._quorum_elapsed = 0
            self.successor = None  # it did not take over in time
            present = {node for node, progress in self.progress.items() if progress.active and progress.verified}
            for progress in self.progress.values():
                progress.active = False
            if not quorum.is_quorum(state.membership.voters, present | {state.id}):
                return False
        if self._heartbeat_elapsed >= state.settings.heartbeat_ticks:
            self._send_heartbeats()
        return True

    def _follow_membership(self, next_index: int) -> None:
        """Keep a progress for each member; to new ones, entries are sent from `next_index` on."""
        state, known = self._state, self.progress
        others = [node for node in state.membership.members if node != state.id]
        self.progress = {node: known.get(node) or self._new_progress(next_index) for node in others}
        if self.successor not in state.membership.voters:
            self.successor = None

    def _new_progress(self, next_index: int) -> Progress:
        settings = self._state.settings
        inflight = Inflight(settings.inflight_count_max, settings.inflight_size_max)
        # Active at first, so that nobody is held to be away before it had the time to answer.
        return Progress(next=next_index, inflight=inflight, active=True, verified=True)

    def has_removed_itself(self) -> bool:
        """Return whether this node is no voter any more, and that is committed: it must not go on leading."""
        state = self._state
        return not state.is_voter and state.log.members.newest_index <= state.log.commit

    def hand_over_to(self, node: NodeId) -> None:
        """Let `node` catch up, then tell it to campaign. Given up after `election_ticks`."""
        self.successor, self._quorum_elapsed = node, 0
        if not self._hand_over_if_ready():
            self._send_append(node, empty_too=True)

    def _hand_over_if_ready(self) -> bool:
        state = self._state
        if self.successor is None or self.progress[self.successor].match < state.log.last.index:
            return False
        state.at_once.append(CampaignRequest(state.id, self.successor, state.term))
        return True

    def is_caught_up(self, node: NodeId) -> bool:
        """Return whether a node is verified and has all that is committed: its promotion then weakens nobody."""
        progress = self.progress.get(node)
        return progress is not None and progress.counted >= self._state.log.commit
