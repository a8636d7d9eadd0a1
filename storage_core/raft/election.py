"""Campaigns and votes: who may lead a term.

A campaign has two rounds. In the first, nobody's term moves: the candidate asks whether it would get the votes, so
that a node which cannot win, because it was cut off or removed, disturbs nobody. In the second it enters the next
term and votes for itself; that vote counts when it is persisted, like the votes of the others.

A voter grants once a term, to a candidate whose log is at least as good as its own. While it hears from a leader it
does not listen to candidates at all, unless that leader has sent them.

Source: Raft paper, sections 5.2 and 5.4.1; Ongaro's thesis, sections 4.2.3, 9.6 and 3.10 (hand-over).
"""

from collections.abc import Mapping

from storage_core.errors import CorruptionError
from storage_core.raft import quorum
from storage_core.raft.membership import NodeId
from storage_core.raft.messages import FromLeader, Message, Position, TermNotice, VoteRequest, VoteResponse
from storage_core.raft.quorum import VoteResult
from storage_core.raft.state import NodeState


class Campaign:
    """The role of a candidate: the votes of one round."""

    def __init__(self, state: NodeState, pre: bool, forced: bool) -> None:
        self._state, self.pre, self.forced = state, pre, forced
        self.term = state.term + 1 if pre else state.term
        self.votes: dict[NodeId, bool] = {}

    def ask(self) -> None:
        """Ask all other voters. Goes out when the candidate's own term and vote are persisted."""
        state = self._state
        for voter in state.membership.voters:
            if voter != state.id:
                request = VoteRequest(
                    state.id, voter, self.term, state.log.last, state.log.members.newest_index, self.pre, self.forced
                )
                state.after_persist.append(request)

    def count(self, voter: NodeId, granted: bool) -> VoteResult:
        """Note a vote, of which the first one of each voter counts, and return how the campaign stands."""
        self.votes.setdefault(voter, granted)
        return quorum.count_votes(self._state.membership.voters, self.votes)


def is_of_next_term(message: Message) -> bool:
    """Return whether a message speaks of a term that its sender has not entered: a campaign's first round."""
    if isinstance(message, VoteResponse):
        return message.pre and message.granted
    return isinstance(message, VoteRequest) and message.pre


def answer_older_term(state: NodeState, message: Message) -> None:
    """Tell who leads or campaigns in an older term that there is a newer one; nobody else needs to know."""
    if isinstance(message, FromLeader):
        state.after_persist.append(TermNotice(state.id, message.sender, state.term))
    elif isinstance(message, VoteRequest):
        response = VoteResponse(state.id, message.sender, state.term, False, message.pre)
        state.after_persist.append(response)


def is_as_good(last: Position, own_last: Position) -> bool:
    """Return whether a log that ends at `last` has every entry that may be committed in one that ends at `own_last`."""
    return (last.term, last.index) >= (own_last.term, own_last.index)


def best_log(lasts: Mapping[NodeId, Position]) -> NodeId:
    """Return whose log to lead with, of those that end like this; of equal ones the first by id.

    If the logs of a majority of the voters are among them, no committed entry is missing in it. Raises CorruptionError
    if two end in different entries of one index and term, which no leader has made.
    """
    assert lasts
    best = min(lasts, key=lambda node: (-lasts[node].term, -lasts[node].index, node))
    for node, last in lasts.items():
        if is_as_good(last, lasts[best]) and last.chain != lasts[best].chain:
            raise CorruptionError(
                f"the logs of {best.hex()} and {node.hex()} both end at entry {last.index} of term {last.term}, "
                "but these are two entries"
            )
    return best


def grants(state: NodeState, request: VoteRequest) -> bool:
    """Return whether the node votes for the sender. For a vote proper its term is the request's by now.

    A learner that was promoted may not have heard of it. The sender asks voters only, so a node that is none by its
    own log is one if the sender's members are newer; were it to refuse, the group could be without a leader for ever.
    """
    members = state.log.members
    is_voter = members.may_be_voter(state.id) or request.members_index > members.newest_index
    if not state.verified or not is_voter or not is_as_good(request.last, state.log.last):
        return False
    if request.pre and request.term > state.term:
        return True
    if state.vote is None:
        return state.leader is None
    return state.vote == request.sender


def answer(state: NodeState, request: VoteRequest) -> bool:
    """Answer a request, to be sent when the vote is persisted; return whether a vote proper was given."""
    granted = grants(state, request)
    if granted and not request.pre:
        state.vote = request.sender
    term = request.term if granted else state.term
    response = VoteResponse(state.id, request.sender, term, granted, request.pre)
    state.after_persist.append(response)
    return granted and not request.pre
