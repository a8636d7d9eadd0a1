"""Events: the history of a store, for people. An event is a change of state, told once.

A fact and a condition differ. A *fact* happened at a moment: a volume rejoined, a consumer was reset. A *condition*
lasts until a fact ends it: a copy is damaged, a consumer waits. Whoever meets a condition records it; the state machine
keeps the first event of each and drops the others, so that nobody else decides what was told before. Causes that come
back again and again, such as a disk that errs at times, are counted in the first event about them.

`KINDS` has every kind of event, and what makes it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from storage_core.metadata.commands import Event, timed

EVENT_COUNT_MAX = 4096  # newest events that are kept


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event."""

    made_by: str  # what makes it, for people
    is_condition: bool = False  # it lasts, and is told once until it ends
    ends: bool = False  # it ends the conditions of what it is about
    is_problem: bool = False  # `jstream check --events-since` warns of it
    is_state: bool = False  # a condition that is the same whatever its reason


def _fact(made_by: str, is_problem: bool = False) -> EventKind:
    return EventKind(made_by, is_problem=is_problem)


def _end(made_by: str, is_problem: bool = False) -> EventKind:
    return EventKind(made_by, ends=True, is_problem=is_problem)


def _condition(made_by: str, is_problem: bool = False) -> EventKind:
    return EventKind(made_by, is_condition=True, is_problem=is_problem)


KINDS: Mapping[str, EventKind] = {
    # Volumes and copies.
    "behind": EventKind("an append that a volume could not take, though its disk is not broken", True, is_state=True),
    "damaged": _condition("a session, a scrub, `verify`, a repair or a reader that finds damage", True),
    "drift": _condition("a comparison of names and sizes of blocks with the manifest", True),
    "missing": _condition("a session that finds a volume missing", True),
    "foreign": _condition("a session that finds another volume, or one of another copy of the store", True),
    "rolled_back": _condition("a session that finds an older copy of a volume", True),
    "retired": _condition("a write, an fsync or a read that failed on a volume", True),
    "returned": _end("a session that finds a volume current again"),
    "rejoined": _end("`repair` or `maintain`, when a volume takes part again", True),
    "repaired": _end("a bad copy that was replaced by a good one", True),
    "lost": _end("messages that no volume has, declared lost by `repair` or `repair --adopt`", True),
    "recoverable": _condition("a repair that finds a copy of messages that were declared lost", True),
    "taken_back": _end("`repair --take-back`"),
    "discarded": _end("`repair --discard-lost`"),
    "scrub": _fact("a scrub that has read all copies"),
    "volume_added": _end("`cluster volume add`"),
    "volume_removed": _end("`cluster volume remove`, or an addition that was taken back"),
    "volume_replaced": _end("`cluster volume replace`"),
    "took_over": _fact("the first session of another host, or after a restart of this one"),
    # Streams that come from elsewhere.
    "adopted": _end("`repair --adopt`"),
    "backed_up": _fact("`backup`, in the backup alone"),
    "restored": _end("`restore`"),
    "import_begun": _fact("an import from NATS Streaming that begins"),
    "imported": _end("an import that is done"),
    "copied": _end("`stream copy`"),
    # Mirrors.
    "mirror_begun": _fact("`jstream mirror`, the first time"),
    "mirror_gap": _fact("messages that a mirror's source removed before they came over, and were skipped", True),
    "mirror_kept": _fact("messages of a mirror that were deleted at its source, which removes none by itself"),
    "mirror_diverged": _condition("a mirror whose source is no longer what was mirrored", True),
    "mirror_compared": _fact("`jstream drift` between a mirror and its source"),
    # Appends and what is removed.
    "batch_again": _condition("a batch of a writer that came again, and was not stored again"),
    "replaced": _fact("an overwrite, or the output mode `complete`, that replaces what a stream holds"),
    "replaced_again": _condition("a query or writer that replaces its own result, counted"),
    "batch_shortened": _condition("a batch of a query from which messages were removed after it was planned"),
    "archived": _end("an `archive_command` that printed something, or a block of which no copy is left"),
    "archive_failed": _condition("an `archive_command` that fails"),
    "markers_left_out": _condition("messages that expire without a delete marker, since there is no room for it"),
    # Consumers and queries.
    "consumer_reconciled": EventKind("a position that was moved to where its stream continues", True, True),
    "consumer_failed": _condition("a position that does not fit its stream, with `on_data_loss` `fail`", True),
    "consumer_unreadable": _condition("messages for a consumer that no copy can be read of now", True),
    "consumer_exhausted": _fact("messages that were handed out `max_deliver` times", True),
    "consumer_skipped": _fact("messages that were removed or lost before a consumer acknowledged them", True),
    "consumer_reset": _end("`consumer reset`"),
    "consumer_moved": _end("a query that begins at another place than its consumer stood"),
    "consumer_taken_over": _fact("a query that took a consumer over from another one"),
    "query_reconciled": _condition("a checkpoint whose position was moved to where its stream continues"),
    "query_failed": _condition("a checkpoint whose position does not fit its stream", True),
    "query_unreadable": _condition("messages for a query that no copy can be read of now", True),
    # People.
    "asked": _fact("a change that was requested in the pages"),
}
_UNKNOWN = _fact("a newer version of this program")

# What varies in the reason of a condition that is still the same: how far its stream has grown.
_GROWING = re.compile(
    r"it holds (?:\d+ to \d+|no messages, the next one gets sequence \d+)"  # of consumers and queries
    r"|of \d+ blocks compared |; between sequences \d+ and \d+"  # of copies
)
_NUMBERS = re.compile(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b")


def says_the_same(reason: str, other: str) -> bool:
    """Return whether two reasons tell of the same, while the stream may have grown in between."""
    return reason == other or _GROWING.sub("", reason) == _GROWING.sub("", other)


def find_known(history: Sequence[Event], event: Event) -> int | None:
    """Return the place in a history, oldest first, of the event about the same condition; None if there is none.

    Facts are told each time. A condition is told again once it has ended.
    """
    if not _kind(event).is_condition:
        return None
    for at in range(len(history) - 1, -1, -1):
        known = history[at]
        if _is_same(known, event):
            return at
        if _is_ended_by(event, known):
            return None
    return None


def new_events(history: Sequence[Event], events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events that a history does not have yet."""
    return tuple(event for event in events if find_known(history, event) is None)


def with_events(history: tuple[Event, ...], events: Iterable[Event], time_ns: int) -> tuple[Event, ...]:
    """Return the history, oldest first, after these events; the same object if they say nothing new.

    `time_ns`: that of the entry that brings them. Causes that are counted add to what is known of them.
    """
    after = list(history)
    for event in timed(events, time_ns):
        at = find_known(after, event)
        if at is None:
            after.append(event)
        elif event.count:
            known = after[at]
            after[at] = msgspec.structs.replace(known, count=known.count + event.count, last_ns=event.time_ns)
    return tuple(after[-EVENT_COUNT_MAX:]) if after != list(history) else history


def open_conditions(history: Sequence[Event], kind: str) -> list[Event]:
    """Return the newest event of this kind about each stream, consumer and volume, if the condition has not ended."""
    standing: dict[tuple[str, str, str], Event] = {}
    for event in history:
        ended = [key for key, known in standing.items() if _is_ended_by(known, event)]
        for key in ended:
            del standing[key]
        if event.kind == kind:
            standing[event.stream, event.consumer, event.volume] = event
    return list(standing.values())


def _kind(event: Event) -> EventKind:
    return KINDS.get(event.kind, _UNKNOWN)


def _is_same(known: Event, event: Event) -> bool:
    is_about_same = (known.kind, known.stream, known.consumer, known.volume) == (
        event.kind,
        event.stream,
        event.consumer,
        event.volume,
    )
    if not is_about_same or (known.before, known.after) != (event.before, event.after):
        return False
    if event.count:
        return bool(known.count) and _NUMBERS.sub("", known.reason) == _NUMBERS.sub("", event.reason)
    return _kind(event).is_state or says_the_same(known.reason, event.reason)


def _is_ended_by(event: Event, later: Event) -> bool:
    """Return whether a condition has ended with a later event: one about the same, about all of it, or a part of it."""
    is_of_volume = bool(event.volume) and event.volume == later.volume
    if is_of_volume and not event.stream and not later.stream and event.after and later.after:
        return event.after != later.after  # the volume as a whole is in another state
    return (
        _kind(later).ends
        and later.consumer in ("", event.consumer)
        and (later.stream in ("", event.stream) or (is_of_volume and not event.stream))
        and (not event.volume or later.volume in ("", event.volume))
    )
