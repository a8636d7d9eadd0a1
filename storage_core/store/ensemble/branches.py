"""Branches: which volumes stand on one history of the store, and which on that of a copy that was written on by itself.

All commit records of a store lie on one chain of entries. Where they do not, one of the volumes is of another copy: a
restored backup, a snapshot of a test. Then the majority counts, whatever the length of the logs:

- An entry that a majority of the voters holds is never given up for one that contradicts it. Every committed entry is
  on a majority, and two majorities have a volume in common, so what contradicts the entry was never committed here.
- A volume whose commit record or snapshot contradicts it is foreign: nothing that it says of itself or others counts.
- A copy that only went further than ours contradicts no entry. But its entries and its commit record say up to where
  the others are durable: a volume by whose word a majority has lost entries is foreign, since that is one fault and
  their loss would be many.
- Commit records of the others that contradict each other have no majority. Neither has one that is too far above to
  tell whether the same log leads there, nor one of two entries of the same index and term. Then nobody can decide, and
  the store refuses.

A volume holds its last entry and all before it: also those that only others still have, and those below its snapshot,
of which the snapshot keeps the newest chains (`trail`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from storage_core.store.ensemble.merged_log import LogChain, Node


@dataclass(frozen=True, slots=True)
class VolumeBranch:
    """Where one volume stands."""

    volume_id: bytes
    name: str  # for people
    log: LogChain  # its own, to the last entry that a whole chain leads to
    marks: tuple[tuple[Node, LogChain | None], ...]  # what it says is committed, with the log that leads there
    end: int  # the last entry before the first one that is bad, on a whole chain or not
    stated: Mapping[bytes, int]  # by volume: the highest index that its log or commit record says to be durable there


@dataclass(slots=True)
class BranchComparison:
    """What becomes of the volumes."""

    foreign: dict[bytes, str] = field(default_factory=dict)  # by volume: why
    split: str = ""  # why nobody can tell which branch counts; empty if somebody can
    held: tuple[Node, ...] = ()  # what the log to lead with has to hold


def compare(branches: Sequence[VolumeBranch], voting: Collection[bytes], needed: int) -> BranchComparison:
    """Return on which branch the store goes on. `needed`: how many of the `voting` volumes are a majority."""
    foreign = _foreign_by_their_word(branches, voting, needed)
    branches = [branch for branch in branches if branch.volume_id not in foreign]
    if _are_on_one_branch(branches):
        return BranchComparison(foreign)
    majority, log = _deepest_held([branch for branch in branches if branch.volume_id in voting], needed)
    result = BranchComparison(foreign, held=(majority,))
    agrees: bool | None
    for branch in branches:
        for mark, leading in branch.marks:
            if leading is None and branch.log.chain_at(mark[0]) not in (mark[1], None):
                agrees = False  # with what stands beside it
            elif leading is None and mark[0] > majority[0]:  # its log was cut: the mark lies where that would have led
                agrees = _agree((branch.log.tip.index, branch.log.tip.chain), branch.log, majority, log)
            else:
                agrees = _agree(mark, leading, majority, log)
            if agrees is None and mark[0] > majority[0]:
                result.split = (
                    f"entry {mark[0]} is committed by what {branch.name} says, and a majority of the volumes holds "
                    f"entry {majority[0]}, too far below to tell whether it leads there"
                )
            elif agrees is False:
                result.foreign[branch.volume_id] = foreign_reason(branch.name, mark[0], len(voting))
    marks = [pair for branch in branches if branch.volume_id not in result.foreign for pair in branch.marks]
    highest, path = max(((mark, log) for mark, log in marks if log is not None), default=((0, b""), None), key=_index)
    if path is not None and highest[0] > majority[0]:
        result.held += (highest,)
        if any(path.chain_at(mark[0]) not in (mark[1], None) for mark, _ in marks):
            result.split = "commit records contradict each other, and no branch of the log has a majority"
    logs = [branch.log for branch in branches if branch.volume_id not in result.foreign]
    if not _is_of_one_leader_a_term([log for log in logs if all(log.agrees(*node) for node in result.held)]):
        result.split = "two entries have one place and one term, and a term has one leader"
    if result.split:
        result.split = f"{result.split}: {_description(branches, majority)}"
    return result


def _foreign_by_their_word(
    branches: Sequence[VolumeBranch], voting: Collection[bytes], needed: int
) -> dict[bytes, str]:
    """Return the volumes by whose word a majority of the voters has lost entries that were durable.

    If these are more than may fail, volumes that contradict each other are no evidence against one another.
    """
    for lost in (_has_lost, _ends_below):
        foreign = {
            branch.volume_id: f"{branch.name}: by its metadata log a majority of the volumes had entries that none of "
            "them has: the volume is of another copy of the store"
            for branch in branches
            if sum(lost(other, branch) for other in branches if other.volume_id in voting and other is not branch)
            >= needed
        }
        if len(foreign) <= len(voting) - needed:
            break
    return foreign


def _ends_below(branch: VolumeBranch, teller: VolumeBranch) -> bool:
    return branch.end < teller.stated.get(branch.volume_id, 0)


def _has_lost(branch: VolumeBranch, teller: VolumeBranch) -> bool:
    """Return whether a volume lacks what is said to be durable on it. What a later leader replaced is not lost, and
    what was committed is never replaced.
    """
    if _ends_below(branch, teller):
        return True
    index = teller.stated.get(branch.volume_id, 0)
    own = branch.log.chain_at(index)  # also below its snapshot
    if own is None:
        return False
    committed = [path.chain_at(index) for mark, path in teller.marks if path is not None and index <= mark[0]]
    if any(chain not in (own, None) for chain in committed):
        return True
    entry, teller_entry = branch.log.at(index), teller.log.at(index)
    return (
        entry is not None
        and teller_entry is not None
        and entry.chain != teller_entry.chain
        and entry.term <= teller_entry.term
    )


def _is_of_one_leader_a_term(logs: Sequence[LogChain]) -> bool:
    """Return whether entries of one index and term are the same everywhere; those of two copies need not be."""
    chains: dict[tuple[int, int], bytes] = {}
    return all(
        chains.setdefault((entry.index, entry.term), entry.chain) == entry.chain
        for log in logs
        for entry in log.entries
    )


def foreign_reason(name: str, index: int, voter_count: int) -> str:
    if voter_count == 1:
        return f"{name}: entry {index} of the metadata log is not the one that was committed (the hash chains differ)"
    return (
        f"{name}: entry {index} of its metadata log is of another history than that of the majority of the volumes "
        "(the hash chains differ): the volume is of another copy of the store"
    )


def _index(mark: tuple[Node, LogChain | None]) -> int:
    return mark[0][0]


def _are_on_one_branch(branches: Sequence[VolumeBranch]) -> bool:
    """Return whether everything lies on the longest log, for certain."""
    logs = [branch.log for branch in branches] + [
        log for branch in branches for _, log in branch.marks if log is not None
    ]
    longest = max(logs, key=lambda log: log.tip.index, default=None)
    if longest is None:
        return True
    nodes = [(branch.log.tip.index, branch.log.tip.chain) for branch in branches] + [
        mark for branch in branches for mark, _ in branch.marks
    ]
    return all(index > longest.tip[0] or longest.chain_at(index) == chain for index, chain in nodes)


def _deepest_held(voters: Sequence[VolumeBranch], needed: int) -> tuple[Node, LogChain | None]:
    """Return the last entry that so many volumes hold, and a log that leads there."""
    counts = Counter(node for voter in voters for node in voter.log.nodes())
    deepest = max((node for node, count in counts.items() if count >= needed), default=(0, b""))
    return deepest, next((voter.log for voter in voters if voter.log.chain_at(deepest[0]) == deepest[1]), None)


def _agree(mark: Node, path: LogChain | None, held: Node, log: LogChain | None) -> bool | None:
    """Return whether an entry, to which `path` leads, is on one chain with the one that is held; None: unknown."""
    if log is None:  # nothing is held
        return True
    if mark[0] <= held[0]:
        known, expected = log.chain_at(mark[0]), mark[1]
    else:
        assert path is not None
        known, expected = path.chain_at(held[0]), held[1]
    return None if known is None else known == expected


def _description(all_branches: Sequence[VolumeBranch], majority: Node) -> str:
    """Return who stands where, for people."""
    branches: dict[Node, list[VolumeBranch]] = {}
    for branch in sorted(all_branches, key=lambda branch: -branch.log.tip.index):
        node = (branch.log.tip.index, branch.log.tip.chain)
        leaf = next((leaf for leaf, members in branches.items() if members[0].log.chain_at(node[0]) == node[1]), node)
        branches.setdefault(leaf, []).append(branch)
    branch_texts = [
        ", ".join(f"{branch.name} up to entry {branch.log.tip.index}" for branch in members)
        for members in branches.values()
    ]
    return f"{' against '.join(branch_texts)}; the last entry that a majority holds is {majority[0]}"
