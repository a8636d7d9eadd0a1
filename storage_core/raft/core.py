"""A node of a Raft group, without I/O: what it is told goes in, what is to be done comes out.

    node.step(message)   a message came             node.tick()         a tick passed
    node.propose(...)    the leader is to append    node.read_index(...), .transfer_leadership(...), .campaign(...)

After any of these, in this order and before the next round:

    ready = node.ready()
    1. send ready.at_once: the messages that promise nothing about this node's storage. Now, or at any later step
    2. persist ready.snapshot in place of everything, then ready.entries in place of all from the first one's index
       on, then ready.hard_state; when ready.must_sync, do not go on before all of it is durable
    3. send ready.messages
    4. apply ready.committed in order, each once
    5. node.advance()

If step 2 fails, in whole or in part, `storage_failed` takes the place of the rest: nothing is sent, nothing applied.
Between `ready` and `advance` messages may be stepped in, ticks may pass, entries be proposed: a slow disk stops
nobody else. docs/raft.md has the reasons.
"""

from collections.abc import Sequence

from storage_core.raft import election
from storage_core.raft.election import Campaign
from storage_core.raft.follower import Follower, check_append
from storage_core.raft.leader import Leader
from storage_core.raft.log import LogStorage, RaftLog
from storage_core.raft.membership import ChangeKind, Membership, NodeId
from storage_core.raft.messages import (
    AppendRequest,
    AppendResponse,
    CampaignRequest,
    FromLeader,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    Position,
    VoteRequest,
    VoteResponse,
)
from storage_core.raft.outcomes import Proposed, Ready, Refused, Role, Status
from storage_core.raft.quorum import VoteResult
from storage_core.raft.reads import ReadResult
from storage_core.raft.state import Host, NodeState, Settings


class Node:
    """Give it what storage holds; `applied` and `membership` are those of the state machine as it was restored."""

    def __init__(
        self,
        node_id: NodeId,
        storage: LogStorage,
        hard_state: HardState,
        applied: int,
        membership: Membership,
        settings: Settings,
        host: Host,
        verified: bool = True,
    ) -> None:
        """Raises CorruptionError if the log does not reach from `applied` to the commit index."""
        log = RaftLog(storage, hard_state.commit, applied, membership, host.change_of)
        term, vote = hard_state.term, hard_state.vote
        if log.last.term > term:  # entries were persisted, the term that came with them was not: nor was a vote
            term, vote = log.last.term, None
        self._state = NodeState(node_id, settings, log, term, vote, verified)
        self._host = host
        self._persisted = hard_state
        self._handed: Ready | None = None  # between ready and advance
        self._lost_reads: list[ReadResult] = []
        self._role: Follower | Campaign | Leader = Follower(self._state)
        self._silence = 0  # ticks since a leader was heard of, or a vote was given
        self._patience = self._new_patience()

    # --- what happens to the node

    def step(self, message: Message) -> None:
        """Take a message. Raises CorruptionError, and takes nothing, if it contradicts itself."""
        state = self._state
        if message.to != state.id:
            raise ValueError(f"message to {message.to.hex()} came to {state.id.hex()}")
        if isinstance(message, AppendRequest):
            check_append(message)
        if state.failure is not None:
            return
        if isinstance(message, VoteRequest) and self._is_content() and not message.forced:
            return
        if message.term < state.term:
            election.answer_older_term(state, message)
            return
        if message.term > state.term and not election.is_of_next_term(message):
            self._follow(message.term, None)
        self._take(message)
        self._step_down_if_removed()

    def _is_content(self) -> bool:
        """Return whether a leader was heard of lately, so that nobody else needs to be listened to."""
        return self._state.leader is not None and self._silence < self._state.settings.election_ticks

    def _take(self, message: Message) -> None:
        """Take a message of this term, or one of a pre-vote for the next."""
        role = self._role
        if isinstance(message, VoteRequest):
            if election.answer(self._state, message):
                self._silence = 0
        elif isinstance(message, FromLeader):
            self._take_from_leader(message)
        elif isinstance(message, CampaignRequest):
            if self._state.may_campaign and not isinstance(role, Leader):
                self._start_campaign(pre=False, forced=True)
        elif isinstance(message, VoteResponse):
            # A refusal comes with the voter's own term, a vote with the one that was asked for.
            if isinstance(role, Campaign) and role.pre == message.pre:
                if not message.granted or message.term == role.term:
                    self._count_vote(role, message.sender, message.granted)
        elif isinstance(role, Leader):
            if isinstance(message, AppendResponse):
                role.on_append_response(message)
            elif isinstance(message, HeartbeatResponse):
                role.on_heartbeat_response(message)

    def _take_from_leader(self, message: FromLeader) -> None:
        assert not isinstance(self._role, Leader), f"two leaders in term {message.term}"
        if self._state.leader != message.sender or not isinstance(self._role, Follower):
            self._follow(self._state.term, message.sender)
        self._silence = 0
        follower = self._role
        assert isinstance(follower, Follower)
        if isinstance(message, AppendRequest):
            contradiction = follower.on_append(message)
            if contradiction is not None:
                self.storage_failed(contradiction)
        elif isinstance(message, HeartbeatRequest):
            follower.on_heartbeat(message)
        else:
            follower.on_snapshot(message)

    def tick(self) -> None:
        """Let a tick pass: a leader sends heartbeats, everybody else loses patience after a while."""
        if self._state.failure is not None:
            return
        if isinstance(self._role, Leader):
            if not self._role.tick():
                self._follow(self._state.term, None)
            return
        self._silence += 1
        if self._silence >= self._patience and not self.campaign():
            self._follow(self._state.term, None)

    def storage_failed(self, reason: str) -> None:
        """Fall silent for good: no vote, no ack, no campaign. A verified node made anew takes this one's place."""
        self._follow(self._state.term, None)
        self._state.failure = reason
        self._state.at_once.clear()
        self._state.after_persist.clear()
        self._handed = None

    def set_verified(self, verified: bool) -> None:
        """Say whether log and vote are known to be all that this node ever persisted: only then do they count."""
        self._state.verified = verified
        if not verified and not isinstance(self._role, Follower):
            self._follow(self._state.term, None)

    # --- what the shell asks for

    def propose(self, payloads: Sequence[bytes]) -> Proposed | Refused:
        """Append one entry for each payload, to be committed with one round of persisting."""
        assert payloads and not any(map(self._host.change_of, payloads)), payloads
        leader = self._leader_that_may_append(payloads)
        if not isinstance(leader, Leader):
            return leader
        first = self._state.log.last.index + 1
        leader.append(payloads)
        return Proposed(first, first + len(payloads), self._state.term)

    def propose_membership(self, payload: bytes) -> Proposed | Refused:
        """Append an entry that changes the members, as `Host.change_of` reads it.

        It counts as soon as it is in a log, and is done when it is applied. Only then may the next one follow.
        """
        state, change = self._state, self._host.change_of(payload)
        assert change is not None, payload
        leader = self._leader_that_may_append([payload])
        if not isinstance(leader, Leader):
            return leader
        if not leader.may_change_members():
            return Refused.CHANGE_PENDING
        try:
            change.applied_to(state.membership)
        except ValueError:
            return Refused.CHANGE_IMPOSSIBLE
        if change.kind is ChangeKind.PROMOTE and not leader.is_caught_up(change.node):
            return Refused.NOT_CAUGHT_UP
        index = leader.change_members(payload)
        return Proposed(index, index + 1, state.term)

    def _leader_that_may_append(self, payloads: Sequence[bytes]) -> Leader | Refused:
        if self._state.failure is not None:
            return Refused.STORAGE_FAILED
        if not isinstance(self._role, Leader):
            return Refused.NOT_LEADER
        if self._role.successor is not None or not self._state.is_voter:
            return Refused.HANDING_OVER
        return self._role if self._role.has_room_for(payloads) else Refused.TOO_MUCH_UNCOMMITTED

    def read_index(self, request: bytes) -> Refused | None:
        """Ask from which index on a read is linearizable. A Ready brings the answer, or that the request is lost."""
        if self._state.failure is not None:
            return Refused.STORAGE_FAILED
        if not isinstance(self._role, Leader):
            return Refused.NOT_LEADER
        self._role.read(request)
        return None

    def transfer_leadership(self, to: NodeId) -> Refused | None:
        """Hand over to another voter. Proposals are refused until it leads, or `election_ticks` have passed."""
        if not isinstance(self._role, Leader):
            return Refused.NOT_LEADER
        if to == self._state.id or to not in self._state.membership.voters:
            return Refused.NO_SUCH_VOTER
        self._role.hand_over_to(to)
        return None

    def campaign(self, forced: bool = False) -> bool:
        """Try to lead; return False if this node must not. `forced` asks nobody whether it could win.

        Forced is for a caller who knows that nobody else leads, as the holder of all locks does.
        """
        if self._state.failure is not None or not self._state.may_campaign or isinstance(self._role, Leader):
            return False
        self._start_campaign(pre=not forced, forced=forced)
        return True

    def report_snapshot(self, node: NodeId, arrived: bool) -> None:
        """Say what became of a snapshot that was sent. Before this, or an answer, nothing more is sent to that node."""
        if isinstance(self._role, Leader):
            self._role.on_snapshot_report(node, arrived)

    def report_unreachable(self, node: NodeId) -> None:
        if isinstance(self._role, Leader):
            self._role.on_unreachable(node)

    # --- what is to be done

    def has_ready(self) -> bool:
        """Return whether `ready` would have anything in it. False between `ready` and `advance`."""
        state, log = self._state, self._state.log
        if self._handed is not None or state.failure is not None:
            return False
        return bool(
            state.at_once
            or state.after_persist
            or log.incoming
            or log.unstable()
            or state.hard_state != self._persisted
            or self._lost_reads
            or (isinstance(self._role, Leader) and self._role.confirmed)
            or log.can_apply
        )

    def ready(self) -> Ready:
        """Return what is to be done. Each is handed out once, and the next one only after `advance`."""
        assert self._handed is None, "advance() has not confirmed the Ready before"
        assert self._state.failure is None, self._state.failure
        state, log = self._state, self._state.log
        entries, hard_state = log.unstable(), state.hard_state
        promised = (hard_state.term, hard_state.vote) != (self._persisted.term, self._persisted.vote)
        reads = self._lost_reads
        self._lost_reads = []
        if isinstance(self._role, Leader):
            reads, self._role.confirmed = reads + self._role.confirmed, []
        self._handed = Ready(
            at_once=tuple(state.at_once),
            snapshot=log.incoming,
            entries=entries,
            hard_state=hard_state if hard_state != self._persisted else None,
            must_sync=bool(entries) or promised or log.incoming is not None,
            messages=tuple(state.after_persist),
            committed=log.to_apply(state.settings.apply_size_max),
            reads=tuple(reads),
        )
        state.at_once, state.after_persist = [], []
        return self._handed

    def advance(self) -> None:
        """Confirm that everything in the last Ready was done."""
        if self._state.failure is not None:
            return
        assert self._handed is not None, "there is no Ready to confirm"
        ready, self._handed = self._handed, None
        log = self._state.log
        self._persisted = ready.hard_state or self._persisted
        log.persisted(ready.snapshot, Position.of(ready.entries[-1]) if ready.entries else None)
        if ready.committed:
            log.applied_to(ready.committed[-1].index)
        if isinstance(self._role, Campaign) and not self._role.pre:
            self._count_own_vote(self._role)
        if isinstance(self._role, Leader):
            self._role.on_persisted()
        self._step_down_if_removed()

    # --- what there is to know

    @property
    def id(self) -> NodeId:
        return self._state.id

    @property
    def role(self) -> Role:
        if isinstance(self._role, Leader):
            return Role.LEADER
        if isinstance(self._role, Campaign):
            return Role.PRE_CANDIDATE if self._role.pre else Role.CANDIDATE
        return Role.FOLLOWER

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def leader(self) -> NodeId | None:
        """Who leads this term, as far as is known; this node itself, if it does."""
        return self._state.leader

    @property
    def commit(self) -> int:
        return self._state.log.commit

    @property
    def membership(self) -> Membership:
        """By the newest change in the log, committed or not."""
        return self._state.membership

    @property
    def failure(self) -> str | None:
        """Why the node has fallen silent; None if it has not."""
        return self._state.failure

    def position(self, index: int) -> Position | None:
        """Return what stands at `index` of the log, persisted or not; None: compacted away, or beyond the end."""
        return self._state.log.position(index)

    def status(self) -> Status:
        progress = self._role.progress if isinstance(self._role, Leader) else {}
        return Status.of(self._state, self.role, progress)

    # --- from role to role

    def _follow(self, term: int, leader: NodeId | None) -> None:
        state = self._state
        if isinstance(self._role, Leader):
            self._lost_reads += self._role.confirmed + self._role.reads.drop()
        if term > state.term:
            state.enter_term(term)
        state.leader = leader
        self._role = Follower(state)
        self._silence, self._patience = 0, self._new_patience()

    def _step_down_if_removed(self) -> None:
        if isinstance(self._role, Leader) and self._role.has_removed_itself():
            self._follow(self._state.term, None)

    def _start_campaign(self, pre: bool, forced: bool) -> None:
        state = self._state
        state.leader = None
        if not pre:
            state.enter_term(state.term + 1)
            state.vote = state.id
        self._silence, self._patience = 0, self._new_patience()
        self._role = Campaign(state, pre, forced)
        self._role.ask()
        if pre:
            # Nothing is promised, so nothing needs to be persisted first.
            self._count_vote(self._role, state.id, True)

    def _count_own_vote(self, role: Campaign) -> None:
        """Count the candidate's vote for itself once it is persisted."""
        state = self._state
        if (self._persisted.term, self._persisted.vote) == (state.term, state.id):
            self._count_vote(role, state.id, True)

    def _count_vote(self, role: Campaign, voter: NodeId, granted: bool) -> None:
        state, result = self._state, role.count(voter, granted)
        if result is VoteResult.LOST:
            self._follow(state.term, None)
        elif result is VoteResult.WON and role.pre:
            self._start_campaign(pre=False, forced=False)
        elif result is VoteResult.WON:
            state.leader, self._silence = state.id, 0
            self._role = Leader(state, self._host.open_term(state.term))

    def _new_patience(self) -> int:
        election_ticks = self._state.settings.election_ticks
        jitter = self._host.jitter(election_ticks)
        assert 0 <= jitter < election_ticks, jitter
        return election_ticks + jitter
