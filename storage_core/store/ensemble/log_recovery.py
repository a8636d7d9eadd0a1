"""What a session takes over from volumes that were read anew: which log leads, the view of it, and how volumes get it.

The decision itself is pure (decision.py). Nothing here writes but `rewrite`, which brings one volume up to that log.
"""

from collections.abc import Mapping, Sequence

from storage_core.metadata.commands import Voter
from storage_core.raft.entry import Vote
from storage_core.raft.snapshot_format import SnapshotBody
from storage_core.store.ensemble.decision import LogDecision, VolumeLogRead, VolumeStatus, best_chain, decide
from storage_core.store.ensemble.merged_log import LogChain
from storage_core.store.ensemble.process_cache import ProcessCache
from storage_core.store.ensemble.view import View, trail_of
from storage_core.store.volume.log_contents import LogPosition
from storage_core.store.volume.register import Register


class MembershipChanged(Exception):
    """The log speaks of volumes that this session has not locked: begin again with all of them."""


def decide_by(volumes: Sequence[VolumeLogRead], cache: ProcessCache) -> LogDecision:
    """Return what to do with the volumes, by the voters that their logs name.

    Raises what `decide` raises, and MembershipChanged with the voters if some are not among the volumes.
    """
    best = best_chain(volumes)
    voters = cache.state_of(best).voters if best is not None else ()
    if not {voter.volume_id for voter in voters} <= {volume.volume_id for volume in volumes}:
        raise MembershipChanged(voters)
    # A log of which not even the first entry is whole names no voters: then it is one of what was found.
    voters = voters or tuple(Voter(volume.volume_id, volume.instance_id, volume.name) for volume in volumes)
    decision = decide(volumes, voters)
    members = cache.state_of(decision.chosen_log).voters
    if members and _voting(members) != _voting(voters):
        # The members by the log that leads count; those by the newest one had to agree to it as well.
        return decide(volumes, members)
    return decision


def view_of(decision: LogDecision, volumes: Sequence[VolumeLogRead], cache: ProcessCache) -> View:
    """Return the view of the log that leads, with the ends of those logs that need nothing before they go on."""
    chosen = decision.chosen_log
    index, term, chain = chosen.tip
    contents = {volume.volume_id: volume.contents for volume in volumes if volume.contents is not None}
    up_to_date = [volume_id for volume_id, status in decision.statuses.items() if status.written and status.up_to_date]
    return View(
        state=cache.state_of(chosen),
        index=index,
        term=term,
        chain=chain,
        commit=decision.commit,
        positions={volume_id: contents[volume_id].position for volume_id in up_to_date},
        term_seen=max(decision.term_seen, cache.known.term_seen),
        snapshot_index=chosen.snapshot.index if chosen.snapshot is not None else 0,
        durable={**decision.durable, **dict.fromkeys(up_to_date, index)},
        snapshot_streams=cache.snapshot_streams_of(chosen),
        trail=trail_of(chosen),
    )


def snapshot_body(log: LogChain, vote: Vote, durable: Mapping[bytes, int]) -> SnapshotBody | None:
    """Return the snapshot that the log begins with as a new leader writes it; None if there is none."""
    body = log.snapshot_body
    return SnapshotBody(body.state, vote.term, vote.candidate, dict(durable), body.trail) if body is not None else None


def rewrite(
    log: Register, status: VolumeStatus, decision: LogDecision, vote: Vote, body: SnapshotBody | None
) -> LogPosition:
    """Bring one volume up to the log that leads, but for what is known to be durable and right there."""
    chosen, snapshot = decision.chosen_log, None
    base = chosen.at(status.keep_up_to)
    if base is None:
        assert chosen.snapshot is not None and body is not None, (status, chosen.base)
        base, snapshot = chosen.base, (chosen.snapshot.history, body)
    entries = chosen.entries[base.index - chosen.base.index :]
    return log.rewrite(status.end, base, [vote, *entries], decision.commit, snapshot, status.clear_commit_record)


def _voting(voters: Sequence[Voter]) -> set[tuple[bytes, bytes, bool]]:
    return {(voter.volume_id, voter.instance_id, bool(voter.retired)) for voter in voters if not voter.learner}
