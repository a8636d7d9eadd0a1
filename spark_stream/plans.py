"""What a change would do, in the words of the command line, which the pages have too."""

import time
from collections.abc import Callable
from json import dumps
from typing import TYPE_CHECKING, Any

from spark_stream.look.terminal import counted, show_size

if TYPE_CHECKING:
    from storage_core import Store
    from storage_core.store.consumers.consumer import Consumer
    from storage_core.store.stream import Stream
    from storage_core.store.writing.removal import RemovalPlan

_DURATIONS = frozenset(
    ("ack_wait", "block_max_age", "duplicate_window", "max_age", "subject_delete_marker_ttl")
)  # keys of configurations, in nanoseconds


def place_in(stream: "Stream", text: str, time_of: Callable[[], int]) -> int:
    """Return the sequence that a text names: `earliest`, `latest`, a sequence, or else the time of `time_of`."""
    if text == "earliest":
        return stream.first_sequence
    if text == "latest":
        return stream.last_sequence + 1
    if text.isdecimal():
        return int(text)
    at_time = stream.first_at_time(time_of())
    return stream.last_sequence + 1 if at_time is None else at_time


def reset_plan(store: "Store", stream: "Stream", consumer: "Consumer", target: int | None) -> dict[str, Any]:
    """Return what a reset would do, in the shape of `consumer reset --json`.

    `target`: where the consumer would resume; None: with the first message that is there and was not acknowledged.
    Raises NotFoundError for a place that the stream does not have.
    """
    from storage_core.errors import NotFoundError
    from storage_core.store.consumers.consumer import where_to_go_on
    from storage_core.store.consumers.filtered import wanted_in

    state, before, info = stream.state(), consumer.state(), consumer.info()
    end = state.next_sequence
    to = where_to_go_on(state, before) if target is None else target
    if not 1 <= to <= end:
        raise NotFoundError(
            f"sequence {to}: stream {stream.name} can be read from 1 to {end}, where its next message will be"
        )
    taken = wanted_in(store, state, before, 1, end)
    ahead = taken.clip(to, end)
    still_open = before.outstanding().intersection(taken).union(taken.clip(before.next_sequence, end))
    return {
        "stream_name": stream.name,
        "name": consumer.name,
        "delivered": info["delivered"],
        "ack_floor": info["ack_floor"],
        "num_ack_pending": info["num_ack_pending"],
        "problem": info["problem"],
        "next_seq": to,
        "num_again": len(ahead.difference(still_open)),
        "num_skipped": len(still_open.difference(ahead)),
        "executed": False,
    }


def seconds_until(text: str) -> float:
    """Return for how long a pause lasts that was given as a duration, or as the time of its end."""
    from storage_core.quantities import looks_like_time, parse_duration_ns, parse_time_ns

    now_ns = time.time_ns()
    if looks_like_time(text):
        end_ns = parse_time_ns(text, "UNTIL")
    else:
        try:
            end_ns = now_ns + parse_duration_ns(text, "UNTIL")
        except ValueError as error:
            example = "a duration like 90s or 2h, or a time like 2026-11-21T12:00:00Z"
            raise ValueError(f"UNTIL {text!r}: write {example}") from error
    if end_ns <= now_ns:
        raise ValueError(f"UNTIL {text!r} is not in the future; `jstream consumer resume` ends a pause")
    return (end_ns - now_ns) / 1e9


def purge_scope(subject: str | None, end: int | None, keep: int | None) -> str:
    """Return what a purge removes, in words."""
    messages = f"messages of subject {subject}" if subject else "messages"
    if end is not None:
        return f"the {messages} below sequence {end}"
    return f"all but the last {keep} {messages}" if keep is not None else f"all {messages}"


def purge_frees(plan: "RemovalPlan") -> str:
    """Return which files a purge leaves without a message, and when their room comes back, in words."""
    from storage_core.quantities import rfc3339

    if not plan.block_count:
        return "no block is left without a message, so no room comes back"
    files = f"{show_size(plan.disk_size)} of {counted(plan.block_count, 'block')}"
    archived = "once archive_command has had them, " if plan.waits_for_archive else ""
    return f"{files} come back with `jstream maintain`, {archived}from {rfc3339(plan.freed_ns)} on"


def purge_json(stream: str, plan: "RemovalPlan") -> dict[str, Any]:
    """Return what a purge would do, in the shape of `stream purge --dry-run --json`."""
    from storage_core.quantities import rfc3339

    return {
        "stream_name": stream,
        "num_removed": plan.message_count,
        "bytes": plan.data_size,
        "num_left": plan.left_count,
        "num_unread": plan.unread,
        "blocks": plan.block_count,
        "disk_bytes": plan.disk_size,
        "freed_from": rfc3339(plan.freed_ns) if plan.block_count else None,
        "executed": False,
    }


def show_value(key: str, value: Any) -> str:
    """Return the value of a configuration's key as a file of definitions may say it: durations with their units."""
    from storage_core.quantities import format_duration

    return dumps(format_duration(value) if key in _DURATIONS and type(value) is int else value)


def edit_removes(stream: "Stream", changes: dict[str, Any]) -> str:
    """Return what changes of the configuration would remove, for people; empty if nothing."""
    excess = stream.excess(changes)
    if excess is None:
        return ""
    done = f"{counted(excess.done_count, 'message')} ({show_size(excess.done_size)}) that no consumer needs"
    if not excess.message_count:
        return done
    messages = f"{counted(excess.message_count, 'message')} ({show_size(excess.data_size)})"
    below, count = f"below sequence {excess.low_watermark}", len(excess.sequences)
    over = "over the limit of their subjects"
    if not count:
        said = f"{messages} {below}"
    elif count == excess.message_count:
        said = f"{messages} {over}"
    else:
        said = f"{messages}, {count} {over}, the others {below}"
    return f"{said}, and {done}" if excess.done_count else said
