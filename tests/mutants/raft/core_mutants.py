"""Known mistakes of Raft implementations, each put into the core for the time of a `with` block.

The simulation must find every one of them by its invariants alone, or because a healed group does not agree: if it
does not, it would not find the same mistake made by accident. Where an implementation known to the public had the
mistake, the line says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from harness.raft.member import Member

from storage_core.raft import election, quorum
from storage_core.raft.core import Node
from storage_core.raft.election import Campaign
from storage_core.raft.entry import Entry
from storage_core.raft.follower import Follower
from storage_core.raft.leader import Leader
from storage_core.raft.log import RaftLog
from storage_core.raft.memberships import Memberships
from storage_core.raft.messages import HeartbeatRequest, HeartbeatResponse, Position, Snapshot, VoteRequest
from storage_core.raft.progress import Progress
from storage_core.raft.reads import ReadQueue, ReadResult
from storage_core.raft.state import NodeState

Replacement = tuple[Any, str, Any]  # owner, name, what takes its place


def commits_entries_of_old_terms() -> list[Replacement]:
    """A majority has it, so it is committed, whatever its term (figure 8 of the paper)."""

    def committed(voters: Sequence[bytes], durable: Mapping[bytes, int], commit: int, term_first: int) -> int:
        return max(commit, quorum.agreed_number(voters, durable))

    return [(quorum, "committed_index", committed)]


def votes_twice_in_a_term() -> list[Replacement]:
    def grants(state: NodeState, request: VoteRequest) -> bool:
        return state.verified and election.is_as_good(request.last, state.log.last)

    return [(election, "grants", grants)]


def forgets_its_vote_in_a_restart() -> list[Replacement]:
    start = Node.__init__

    def forget(self: Node, node_id: bytes, storage: Any, hard_state: Any, *others: Any) -> None:
        start(self, node_id, storage, replace(hard_state, vote=None), *others)

    return [(Node, "__init__", forget)]


def votes_without_looking_at_the_log() -> list[Replacement]:
    return [(election, "is_as_good", lambda last, own_last: True)]


def elects_with_half_of_the_voters() -> list[Replacement]:
    return [(quorum, "majority", lambda voter_count: max(1, voter_count // 2))]


def counts_learners() -> list[Replacement]:
    agreed = quorum.agreed_number
    return [(quorum, "agreed_number", lambda voters, acknowledged: agreed(sorted(acknowledged), acknowledged))]


def acks_before_it_persists() -> list[Replacement]:
    return [(Follower, "_accepted", _at_once(Follower._accepted))]


def votes_before_it_persists() -> list[Replacement]:
    def answer(state: NodeState, request: VoteRequest) -> bool:
        granted = plain(state, request)
        state.at_once.append(state.after_persist.pop())
        return granted

    plain = election.answer
    return [(election, "answer", answer)]


def leads_before_its_own_vote_is_persisted() -> list[Replacement]:
    """When it has forgotten its campaign it votes for somebody else in the same term."""

    def start(self: Node, pre: bool, forced: bool) -> None:
        plain(self, pre, forced)
        if isinstance(self._role, Campaign) and not self._role.pre:
            self._count_vote(self._role, self._state.id, True)

    plain = Node._start_campaign
    return [(Campaign, "ask", _at_once(Campaign.ask)), (Node, "_start_campaign", start)]


def never_waits_for_the_disk() -> list[Replacement]:
    ready = Node.ready
    return [(Node, "ready", lambda self: replace(ready(self), must_sync=False))]


def counts_its_own_entries_before_they_are_persisted() -> list[Replacement]:
    return [(RaftLog, "stable_index", property(lambda self: self.last.index))]


def goes_on_after_a_failed_write() -> list[Replacement]:
    """nats-server #7788, #8290: the error was not kept."""
    return [(Node, "storage_failed", lambda self, reason: self.advance())]


def counts_a_node_that_came_back_blank() -> list[Replacement]:
    """nats-server #7038: a blank disk votes, and elects a node without the data."""
    start = Node.__init__

    def trust(self: Node, *arguments: Any) -> None:
        start(self, *arguments[:-1], True)

    return [(Node, "__init__", trust)]


def changes_members_before_the_last_change_is_applied() -> list[Replacement]:
    return [(Leader, "may_change_members", lambda self: True)]


def changes_members_before_it_has_committed_in_its_term() -> list[Replacement]:
    """The mistake of the thesis itself, found in 2015."""

    def may(self: Leader) -> bool:
        applied = self._state.log.applied
        return self._state.log.members.newest_index <= applied

    return [(Leader, "may_change_members", may)]


def keeps_the_members_of_a_replaced_entry() -> list[Replacement]:
    def follow(self: Memberships, entries: Sequence[Entry]) -> bool:
        try:
            self.append(entries)
        except ValueError:
            pass
        return True

    return [(Memberships, "replace", follow)]


def reads_without_a_quorum() -> list[Replacement]:
    def take(self: ReadQueue, voters: Sequence[bytes]) -> list[ReadResult]:
        results = [ReadResult(read.request, read.index) for read in self._started]
        self._started.clear()
        return results

    return [(ReadQueue, "take_confirmed", take)]


def reads_before_it_has_committed_in_its_term() -> list[Replacement]:
    def read(self: Leader, request: bytes) -> None:
        self.reads.start(request, self._state.log.commit)
        self._send_heartbeats()
        self._confirm_reads()

    return [(Leader, "read", read)]


def confirms_reads_by_answers_to_older_heartbeats() -> list[Replacement]:
    def answered(self: Leader, response: HeartbeatResponse) -> None:
        plain(self, replace(response, read_round=self.reads.round))

    plain = Leader.on_heartbeat_response
    return [(Leader, "on_heartbeat_response", answered)]


def takes_a_snapshot_beside_the_applier() -> list[Replacement]:
    """nats-server #6153: the state of now, with the applied index of a moment ago."""

    def snapshot(self: Member) -> Snapshot:
        now = self.state.snapshot()
        before = self.node.position(now.position.index - 1) if self.node else None
        return replace(now, position=before) if before else now

    return [(Member, "snapshot", snapshot)]


def installs_a_snapshot_one_entry_too_low() -> list[Replacement]:
    """The log goes on with the entry that the snapshot ends with, which is then applied twice."""
    persisted = RaftLog.persisted

    def install(self: RaftLog, snapshot: Snapshot | None, last: Position | None) -> None:
        persisted(self, snapshot, last)
        if snapshot is not None:
            self.applied -= 1

    return [(RaftLog, "persisted", install)]


def believes_a_heartbeat_about_entries_it_never_compared() -> list[Replacement]:
    def commit(self: Follower, request: HeartbeatRequest) -> None:
        self._agreed = self._state.log.last.index
        plain(self, request)

    plain = Follower.on_heartbeat
    return [(Follower, "on_heartbeat", commit)]


def cuts_its_log_at_an_old_message() -> list[Replacement]:
    """Entries behind those in a message are dropped though they agree: the message may be a late one."""

    def accept(self: RaftLog, before: Position, entries: Sequence[Entry]) -> Any:
        outcome = plain(self, before, entries)
        if isinstance(outcome, int) and entries and self.commit <= outcome < self.last.index:
            self._replace(entries[-1:])
        return outcome

    plain = RaftLog.accept
    return [(RaftLog, "accept", accept)]


def counts_what_a_follower_was_sent() -> list[Replacement]:
    sent = Progress.sent

    def count(self: Progress, last_index: int, entry_count: int, size: int) -> None:
        sent(self, last_index, entry_count, size)
        self.counted = max(self.counted, last_index)

    return [(Progress, "sent", count)]


def applies_what_is_not_committed() -> list[Replacement]:
    def to_apply(self: RaftLog, size_max: int) -> tuple[Entry, ...]:
        first, end = self.applied + 1, self.stable_index + 1
        return tuple(self._storage.entries(first, end, size_max)) if first < end else ()

    return [(RaftLog, "to_apply", to_apply)]


def never_sends_again_what_was_lost() -> list[Replacement]:
    """No invariant is broken, but a group that is healed does not agree."""

    def heard(self: Leader, response: HeartbeatResponse) -> None:
        progress = self.progress.get(response.sender)
        if progress is not None:
            progress.active, progress.verified = True, response.verified
            self.reads.answered(response.sender, response.read_round)
            self._confirm_reads()

    return [(Leader, "on_heartbeat_response", heard)]


def never_gives_up_a_hand_over() -> list[Replacement]:
    """It refuses proposals for ever for the sake of a successor that is gone."""

    def tick(self: Leader) -> bool:
        successor = self.successor
        leads = plain(self)
        self.successor = successor
        return leads

    plain = Leader.tick
    return [(Leader, "tick", tick)]


def _at_once(method: Callable[..., None]) -> Callable[..., None]:
    """Let what a method says after persisting be said before."""

    def hurry(self: Any, *arguments: Any) -> None:
        waiting = len(self._state.after_persist)
        method(self, *arguments)
        self._state.at_once += self._state.after_persist[waiting:]
        del self._state.after_persist[waiting:]

    return hurry


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    mutant.__name__: mutant
    for mutant in (
        commits_entries_of_old_terms,
        votes_twice_in_a_term,
        forgets_its_vote_in_a_restart,
        votes_without_looking_at_the_log,
        elects_with_half_of_the_voters,
        counts_learners,
        acks_before_it_persists,
        votes_before_it_persists,
        leads_before_its_own_vote_is_persisted,
        never_waits_for_the_disk,
        counts_its_own_entries_before_they_are_persisted,
        goes_on_after_a_failed_write,
        counts_a_node_that_came_back_blank,
        changes_members_before_the_last_change_is_applied,
        changes_members_before_it_has_committed_in_its_term,
        keeps_the_members_of_a_replaced_entry,
        reads_without_a_quorum,
        reads_before_it_has_committed_in_its_term,
        confirms_reads_by_answers_to_older_heartbeats,
        takes_a_snapshot_beside_the_applier,
        installs_a_snapshot_one_entry_too_low,
        believes_a_heartbeat_about_entries_it_never_compared,
        cuts_its_log_at_an_old_message,
        counts_what_a_follower_was_sent,
        applies_what_is_not_committed,
        never_sends_again_what_was_lost,
        never_gives_up_a_hand_over,
    )
}


@contextmanager
def made(name: str) -> Iterator[None]:
    """Make this mistake in the core while the block runs."""
    with ExitStack() as stack:
        for owner, attribute, replacement in MUTANTS[name]():
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
