"""`jstream sub`, and what `stream view --follow` shares with it: print messages as they arrive.

No server announces new messages, so whoever follows looks at the store's commit record every POLL_INTERVAL_S; that
takes no lock and reads some hundred bytes when nothing has changed. A follower keeps a position a stream, with the
incarnation it belongs to, so that it is neither stuck nor silently elsewhere when a stream goes or is made again:

    since the last look         it
    new messages                prints them
    deleted                     says so, drops the stream; with none left it fails
    deleted and made again      says so, resumes at the first message of the new one
    ends before the position    fails: the store was put back to an older copy
    a new stream fits (sub)     says so, joins from its first message
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.options import JsonOption, OnDataLossOption, RawOption, SinceOption, StoreOption, open_store
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.reading import plan_messages, read_messages
from spark_stream.cli.verify import progress_bar
from spark_stream.look.messages import Style, print_batches
from spark_stream.look.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.look.search import MessageFilter
    from storage_core import Store
    from storage_core.store.reading.plan import ReadPlan
    from storage_core.store.stream import Stream

POLL_INTERVAL_S = 0.2
LAST_WINDOW, LAST_WINDOW_MAX = 1024, 1 << 18  # sequences that are looked at for the last N messages, first and at most
TAKEN_COUNT_MAX = 5  # streams, and filters of each, in the error for a subject that none takes


@dataclass
class Position:
    """How far one stream was followed."""

    stream: str
    incarnation: bytes
    next_sequence: int  # Invariant: everything below it was printed, or is not to be
    end_seen: int = 0  # where the stream ended at the last look; it may not end before it now


class Follower:
    """Reads what is new in some streams."""

    def __init__(
        self,
        store: "Store",
        positions: Iterable[Position],
        subject: str | None = None,
        on_data_loss: str = "fail",
        joins: bool = False,
        report: Callable[[str], None] = say,
    ) -> None:
        """`joins`: streams made later that may hold `subject` are followed too. `report` takes texts for people."""
        self._store, self._subject, self._on_data_loss, self._report = store, subject, on_data_loss, report
        self._positions = {position.stream: position for position in positions}
        self._joins, self._known = joins, set(store.streams())

    def batches(self, wait: Callable[[], None]) -> "Iterator[pa.RecordBatch]":
        """Yield new messages without end, columns PRINTED_COLUMNS; calls `wait` whenever there are none."""
        while True:
            has_batch = False
            for batch in self.poll():
                has_batch = True
                yield batch
            if not has_batch:
                wait()

    def poll(self) -> "Iterator[pa.RecordBatch]":
        """Yield what has arrived since the last call, stream by stream, each in order."""
        names = set(self._store.streams())
        if self._joins and names - self._known:
            self._join(sorted(names - self._known))
        self._known = names
        for position in list(self._positions.values()):
            if position.stream in names:
                yield from self._poll_stream(position)
            else:
                self._report(f"stream {position.stream} was deleted")
                del self._positions[position.stream]
        if not self._positions and not self._joins:
            raise CommandFailed("no stream is left to follow")

    def _poll_stream(self, position: Position) -> "Iterator[pa.RecordBatch]":
        from storage_core.errors import NotFoundError

        try:
            plan = self._plan_news(position)
        except NotFoundError:
            return  # deleted just now: the next look says so
        if plan is not None:
            yield from read_messages(self._store, plan, self._subject, self._on_data_loss, self._report)
            position.next_sequence = plan.ranges[0].end

    def _plan_news(self, position: Position) -> "ReadPlan | None":
        """Return a plan over what is new in the stream, or None; moves the position to another incarnation."""
        state = self._store.stream_state(position.stream)
        if state.incarnation != position.incarnation:
            self._report(f"stream {position.stream} was deleted and made again: continuing with its first message")
            position.incarnation, position.next_sequence, position.end_seen = state.incarnation, 1, 0
        if state.next_sequence < position.end_seen:
            raise CommandFailed(
                f"stream {position.stream} ended with sequence {position.end_seen - 1} before, and ends with "
                f"{state.next_sequence - 1} now: the store was put back to an older copy; start again"
            )
        position.end_seen = state.next_sequence
        if state.next_sequence <= position.next_sequence:
            return None
        plan = plan_messages(self._store, position.stream, position.next_sequence, self._subject)
        # If it was made again since the line above, the next look sees that.
        return plan if plan.ranges[0].incarnation == position.incarnation else None

    def _join(self, names: list[str]) -> None:
        for name in names:
            stream = self._store.stream(name)
            if name not in self._positions and may_hold(stream, self._subject):
                self._report(f"stream {name} is new: following it too")
                self._positions[name] = Position(name, stream.incarnation, 1)


def subscribe(
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="Subject or filter; all of --stream if left out.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream; else all that take SUBJECT.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the first message.")] = False,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=0, help="Begin with the last N messages of each stream.")
    ] = None,
    start_sequence: Annotated[
        int | None, typer.Option("--start-sequence", metavar="N", min=1, help="Begin with this sequence.")
    ] = None,
    since: SinceOption = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    raw: RawOption = False,
    on_data_loss: OnDataLossOption = "fail",
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Print messages as they arrive, until interrupted or --count; --json prints one per line."""
    if subject is None and stream is None:
        raise WrongUsage("pass a SUBJECT, or --stream STREAM")
    if sum((everything, last is not None, start_sequence is not None, since is not None)) > 1:
        raise WrongUsage("--all, --last, --start-sequence and --since all say where to begin: pass one of them")
    with open_store(store, read_only=True) as opened:
        streams = [opened.stream(stream)] if stream is not None else streams_with(opened, str(subject))
        if start_sequence is not None and len(streams) > 1:
            names = ", ".join(stream.name for stream in streams)
            raise WrongUsage(f"--start-sequence is one stream's, but {subject} is in {names}: pass --stream")
        from spark_stream.look.search import MessageFilter

        since_ns = None if since is None else parse_since_ns(since, "--since", time.time_ns())
        positions = []
        for followed in streams:
            if everything or start_sequence is not None:
                first = start_sequence or 1
            elif since_ns is not None:
                first = followed.first_at_time(since_ns) or followed.last_sequence + 1
            else:
                first = first_of_last(opened, followed.name, last or 0, MessageFilter.of(subject or ""), on_data_loss)
            positions.append(Position(followed.name, followed.incarnation, first))
        say(f"following {', '.join(position.stream for position in positions)}; Ctrl-C ends it")
        style = Style.chosen(json, raw)
        print_following(opened, positions, subject, count, style, on_data_loss, joins=stream is None)


def print_following(
    store: "Store",
    positions: list[Position],
    subject: str | None,
    count_max: int | None,
    style: Style,
    on_data_loss: str,
    joins: bool = False,
    wait: Callable[[], None] = lambda: time.sleep(POLL_INTERVAL_S),
    chosen: Callable[["pa.RecordBatch"], "pa.RecordBatch"] = lambda batch: batch,
) -> None:
    """Print what the streams hold from `positions` on, and what arrives, up to `count_max` messages.

    `chosen`: leaves in a batch what is to be printed.
    """
    follower = Follower(store, positions, subject, on_data_loss, joins)
    many = joins or len(positions) > 1
    print_batches(map(chosen, follower.batches(wait)), count_max, style, with_stream=many)


def first_of_last(store: "Store", stream: str, count: int, wanted: "MessageFilter", on_data_loss: str) -> int:
    """Return the sequence from which on the stream shows `count` wanted messages, as it is now."""
    import pyarrow as pa

    bounds = plan_messages(store, stream, None, None).ranges[0]
    end, window = bounds.end, max(count, LAST_WINDOW)
    with progress_bar("searched backwards") as progress:
        while count and end > bounds.first:
            begin = max(bounds.first, end - window)
            plan = plan_messages(store, stream, begin, wanted.subjects, end)
            columns = wanted.columns("sequence")
            batches = read_messages(store, plan, wanted.subjects, on_data_loss, lambda text: None, columns)
            chosen = [wanted.chosen(batch).column("sequence") for batch in batches]
            sequences = pa.chunked_array(chosen, pa.int64())
            if len(sequences) >= count:
                return int(sequences[len(sequences) - count].as_py())
            count, end, window = count - len(sequences), begin, min(2 * window, LAST_WINDOW_MAX)
            if progress is not None:
                progress(bounds.end - end, bounds.end - bounds.first)
    return end


def may_hold(stream: "Stream", subject: str | None) -> bool:
    """Return whether the stream takes a subject that the filter takes too."""
    from storage_core.subjects import filters_overlap

    return subject is None or any(filters_overlap(own, subject) for own in stream.config.subjects)


def streams_with(store: "Store", subject: str) -> "list[Stream]":
    from storage_core.subjects import is_filter

    if not is_filter(subject):
        raise WrongUsage(f"{subject!r} is no subject: tokens of UTF-8 joined by dots, * for one, > for the rest")
    streams = [store.stream(name) for name in sorted(store.streams())]
    matching = [stream for stream in streams if may_hold(stream, subject)]
    if not matching:
        raise CommandFailed(f"no stream takes subject {subject}; {_taken_subjects(streams)}")
    return matching


def _taken_subjects(streams: "list[Stream]") -> str:
    if not streams:
        return "there is no stream yet: jstream stream add makes one"
    taken = [
        f"{stream.name} takes {', '.join(stream.config.subjects[:TAKEN_COUNT_MAX])}"
        for stream in streams[:TAKEN_COUNT_MAX]
    ]
    return "; ".join(taken) + ("; ..." if len(streams) > TAKEN_COUNT_MAX else "")
