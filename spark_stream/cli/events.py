"""`jstream events`: what happened to the store and its volumes, and when."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.follow import POLL_INTERVAL_S
from spark_stream.cli.options import JsonOption, StoreOption, open_store, volume_labels
from spark_stream.cli.verify import volume_rows
from spark_stream.look.terminal import print_json, print_table, printable, say, write

if TYPE_CHECKING:
    from storage_core import Store

_COLUMNS = ("time", "kind", "stream", "consumer", "volume", "before", "after", "count", "reason")


def events(
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="Only what happened to this stream.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only events of this kind: damaged, retired, ...")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=0, help="Only the newest N.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events, one per line.")] = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Show what happened to the store and its volumes, oldest first; the newest 4096 events are kept."""
    with open_store(store, read_only=True) as opened:
        labels = volume_labels(opened)
        if follow:
            for event in following(opened, last, stream, kind):
                write(dumps(event) + "\n" if json else _line(event, labels))
            return
        listed = opened.events(last, stream, kind)
    if json:
        print_json(listed)
    elif not listed:
        say("no events")
    else:
        print_table(_COLUMNS, volume_rows(listed, _COLUMNS, labels), "Events")


def following(
    store: "Store",
    last: int | None,
    stream: str | None,
    kind: str | None,
    wait: Callable[[], None] = lambda: time.sleep(POLL_INTERVAL_S),
) -> Iterator[dict[str, Any]]:
    """Yield the newest `last` events, None for all, then what happens, without end; calls `wait` before each look."""
    seen = store.events(stream=stream, kind=kind)
    yield from seen if last is None else seen[len(seen) - min(last, len(seen)) :]
    index = store.view().index
    while True:
        wait()
        newest = store.view().index
        if newest == index:
            continue
        index, listed = newest, store.events(stream=stream, kind=kind)
        yield from _new(seen, listed)
        seen = listed


def _new(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return what `after` has at its end that `before` had not; the oldest events may have gone meanwhile."""
    known, present = [_without_count(event) for event in before], [_without_count(event) for event in after]
    for count in range(len(present) + 1):
        kept = len(present) - count
        if kept <= len(known) and present[:kept] == known[len(known) - kept :]:
            return after[kept:]
    return after


def _without_count(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stays the same of an event, whose cause may be met again."""
    return {key: value for key, value in event.items() if key not in ("count", "last_time")}


def _line(event: dict[str, Any], labels: Mapping[str, str]) -> str:
    event = {**event, "volume": labels.get(event["volume"], event["volume"])}
    about = " ".join(f"{name} {event[name]}" for name in ("stream", "consumer", "volume") if event[name])
    change = " -> ".join(event[name] for name in ("before", "after") if event[name])
    times = f"{event['count']} times, last at {event['last_time']}" if event["last_time"] else ""
    parts = [f"{event['time']} {event['kind']}", about, change, times, event["reason"]]
    return printable(": ".join(part for part in parts if part)) + "\n"
