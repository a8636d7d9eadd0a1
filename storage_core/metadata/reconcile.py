"""Reconciliation: where a reader goes on whose position and stream may disagree. One pure rule.

A position is what a durable consumer's state or a query's checkpoint remembers: the incarnation that it read, the
sequence that comes next, and the newest history runs before it. Between two looks the stream may have lost messages,
had its head removed, been put back to an older copy (and grown again), been rebuilt, or been made again. Sequences
alone cannot tell these apart; with the history ids, what both sides are sure to share has an exact end.

The questions, their answers and the table of what is done stand in docs/reconcile.md; `decide` is that table, and a
test holds one against the other. The rule has no clock and changes nothing: whoever asks writes the outcome down.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

from storage_core.errors import holding
from storage_core.metadata.config import LIMITS
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.suggestions import not_one_of

HISTORY_RUNS_KEPT = 8  # of a position: an older copy may end this many leader sessions back and is still recognised
RANGES_SHOWN = 5  # of an explanation
CONTINUE, FAIL = "continue", "fail"  # policies of on_data_loss; in Spark failOnDataLoss=false and true
POLICIES = (CONTINUE, FAIL)
Runs = tuple[tuple[bytes, int], ...]  # (history id, first sequence of it), oldest first


def check_policy(name: str, policy: object) -> None:
    """Raise ValueError for what is no policy for data loss, naming the argument and the nearest policy."""
    if policy not in POLICIES:
        raise ValueError(f"{name}: {not_one_of(policy, POLICIES)}")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has come in one incarnation of a stream."""

    incarnation: bytes
    next_sequence: int  # everything below it was handed out, or was not wanted
    history: Runs = ()  # newest runs of the stream that begin below next_sequence, at most HISTORY_RUNS_KEPT


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the rule asks of a stream."""

    name: str
    incarnation: bytes
    first_sequence: int  # of the first message that is shown; next_sequence if there is none
    next_sequence: int
    histories: Runs
    origins: tuple[tuple[bytes, int], ...]  # incarnations that it continues, and the end of their sequences
    lost: SequenceSet


class Action(Enum):
    """What is done."""

    GO_ON = "go on"
    TO_FIRST = "move to the first available"
    TO_END = "move back to the end"  # of what the position and the stream share
    FOLLOW = "follow the new incarnation"
    LEAVE = "leave the stream"  # it is gone
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, from where the reader goes on, and what there is to tell."""

    action: Action
    next_sequence: int  # with FAIL: that of the position, which stays
    reason: str = ""  # for people: what happened, and which sequences are gone; empty: there is nothing to tell

    @property
    def must_be_reported(self) -> bool:
        """Return whether this has to be written down and reported."""
        return bool(self.reason)


def facts_of(stream: StreamState) -> StreamFacts:
    """Return what readers go by. What retention took is missed by nobody: no consumer needed it any more."""
    is_limited = stream.config.retention == LIMITS
    return StreamFacts(
        stream.name,
        stream.incarnation,
        stream.first_sequence if is_limited else min(stream.first_sequence, stream.missed_end),
        stream.next_sequence,
        stream.histories,
        stream.origins,
        stream.lost,
    )


def position_at(stream: StreamFacts, next_sequence: int) -> Position:
    """Return the position of a reader of this stream that has everything below `next_sequence`."""
    end = bisect_left(stream.histories, next_sequence, key=_first)
    return Position(stream.incarnation, next_sequence, stream.histories[max(0, end - HISTORY_RUNS_KEPT) : end])


# --- the questions of the table


def answers(position: Position, stream: StreamFacts, known_losses: SequenceSet, policy: str) -> dict[str, str]:
    """Return the answers to the table's questions. `known_losses`: losses that this reader has heard of."""
    return {
        "incarnation": _incarnation(position, stream),
        "history": _history(position, stream),
        "place": _place(position, stream),
        "lost": "new" if stream.lost.difference(known_losses) else "nothing",
        "policy": policy,
    }


def _incarnation(position: Position, stream: StreamFacts) -> str:
    if position.incarnation == stream.incarnation:
        return "same"
    return "continued" if any(incarnation == position.incarnation for incarnation, _ in stream.origins) else "another"


def _history(position: Position, stream: StreamFacts) -> str:
    shared = _shared_end(position, stream)
    if shared is None:
        return "shared" if _is_forgotten(position, stream) else "unknown"
    return "shared" if shared >= min(position.next_sequence, stream.next_sequence) else "parted"


def _place(position: Position, stream: StreamFacts) -> str:
    if position.next_sequence > stream.next_sequence:
        return "ahead"
    return "behind" if position.next_sequence < stream.first_sequence else "within"


def _shared_end(position: Position, stream: StreamFacts) -> int | None:
    """Return up to where position and stream are known to be of one history; None if they have no run in common.

    A history id belongs to one leader session, so what carries the same one is the same, and all before it too.
    """
    if not position.history:
        return position.next_sequence  # it has read nothing that could be another
    ends = _ends(position.history, position.next_sequence)
    places: dict[bytes, int] | None = None
    for (history, first), end in zip(reversed(position.history), reversed(ends), strict=True):
        at = bisect_left(stream.histories, first, key=_first)
        if at < len(stream.histories) and stream.histories[at] == (history, first):  # as it nearly always is
            return min(end, _end_of(stream, at))
        if places is None:
            places = {run[0]: at for at, run in enumerate(stream.histories)}
        if history in places:
            return min(end, _end_of(stream, places[history]))
    return None


def _is_forgotten(position: Position, stream: StreamFacts) -> bool:
    """Return whether the stream keeps no runs of where the position is: those that end before its first message go.

    All that can be said then is that the position lies before that message.
    """
    is_before = bool(stream.histories) and position.next_sequence <= stream.histories[0][1]
    return is_before and _place(position, stream) == "behind"


def _first(run: tuple[bytes, int]) -> int:
    return run[1]


def _end_of(stream: StreamFacts, at: int) -> int:
    return stream.histories[at + 1][1] if at + 1 < len(stream.histories) else stream.next_sequence


def _ends(runs: Runs, last_end: int) -> list[int]:
    return [*(first for _, first in runs[1:]), last_end][: len(runs)]


# --- the rule


def decide(
    position: Position, stream: StreamFacts, known_losses: SequenceSet, policy: str, remedy: str = ""
) -> Decision:
    """Return what a reader at `position` does about the stream as it is.

    `known_losses`: lost sequences that this reader has heard of. `policy`: CONTINUE or FAIL. `remedy`: the command or
    option that resumes, for the text of a failure.
    """
    assert policy in POLICIES, policy
    case = answers(position, stream, known_losses, policy)
    if case["incarnation"] != "same":
        wanted = Action.FOLLOW
    elif case["history"] == "unknown" or (case["history"] == "shared" and case["place"] == "behind"):
        wanted = Action.TO_FIRST
    elif case["history"] == "parted" or case["place"] == "ahead":
        wanted = Action.TO_END
    elif case["lost"] == "new":
        wanted = Action.GO_ON
    else:
        return Decision(Action.GO_ON, position.next_sequence)
    target = _target(position, stream, case)
    reason = _reason(position, stream, known_losses, case, target)
    if policy == FAIL:
        return Decision(Action.FAIL, position.next_sequence, f"{reason}. {remedy}" if remedy else reason)
    return Decision(wanted, target, reason)


def decide_without_stream(position: Position, name: str, policy: str) -> Decision:
    """Return what a reader does about a stream that was deleted and not made again: there is nothing to compare."""
    assert policy in POLICIES, policy
    reason = (
        f"stream {name!r} was deleted since it was read up to sequence {position.next_sequence - 1}: everything of its "
        f"incarnation {position.incarnation.hex()} is gone"
    )
    return Decision(Action.FAIL if policy == FAIL else Action.LEAVE, position.next_sequence, reason)


def _target(position: Position, stream: StreamFacts, case: dict[str, str]) -> int:
    """Return where the reader goes on if it may: at the first message that it can be without, or has not seen."""
    if case["incarnation"] == "another":
        return stream.first_sequence
    if case["incarnation"] == "continued":
        (kept,) = (end for incarnation, end in stream.origins if incarnation == position.incarnation)
        shared = min(position.next_sequence, kept)
    else:
        known = _shared_end(position, stream)
        shared = min(position.next_sequence, known) if known is not None else stream.first_sequence
    return max(stream.first_sequence, min(shared, stream.next_sequence))


def _reason(
    position: Position, stream: StreamFacts, known_losses: SequenceSet, case: dict[str, str], target: int
) -> str:
    name, before = f"stream {stream.name!r}", position.next_sequence - 1
    holds = f"it {holding(stream.first_sequence, stream.next_sequence)}"
    if case["incarnation"] == "another":
        text = (
            f"{name} was deleted and made again since it was read up to sequence {before}: everything of its former "
            f"incarnation {position.incarnation.hex()} is gone; {holds}"
        )
    elif case["incarnation"] == "continued":
        text = f"{name} was rebuilt from its blocks after it was read up to sequence {before}: {holds}"
        if target < position.next_sequence:
            text += f"; sequences {target} to {before}, which were read, are gone or are other messages now"
    elif case["history"] == "unknown":
        text = (
            f"{name} was put back to an older copy and has grown since: none of what was read up to sequence {before} "
            f"is known to be in it; {holds}"
        )
    elif case["history"] == "parted":
        text = (
            f"{name} was put back to an older copy and has grown since: sequences {target} to {before}, which were "
            f"read, are gone, and other messages have their numbers; {holds}"
        )
    elif case["place"] == "ahead":
        text = (
            f"{name} was put back to an older copy: sequences {stream.next_sequence} to {before}, which were read, "
            f"are gone; {holds}"
        )
    elif case["place"] == "behind":
        missed = f"{position.next_sequence} to {stream.first_sequence - 1}"
        text = f"{name}: sequences {missed} were removed or lost before they were read; {holds}"
    else:
        text = ""
    lost = stream.lost.difference(known_losses)
    if not lost or case["incarnation"] == "another":
        return text
    shown = ", ".join(f"{first} to {end - 1}" for first, end in lost.ranges_head(RANGES_SHOWN))
    more = f" and {lost.run_count - RANGES_SHOWN} more ranges" if lost.run_count > RANGES_SHOWN else ""
    losses = f"sequences {shown}{more} are lost ({len(lost)} messages)"
    unread = lost.count_in(position.next_sequence, stream.next_sequence)
    losses += f", {unread} of them not read yet" if unread else ", all of them read before"
    return f"{text}; {losses}" if text else f"{name}: {losses}"
