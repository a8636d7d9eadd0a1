"""`jstream stream get|view|last|subjects|gaps|purge|rmm`: what is in a stream."""

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.options import (
    AsksNothingOption,
    Base64Option,
    FirstOption,
    ForceOption,
    JsonOption,
    OnDataLossOption,
    RawOption,
    SinceOption,
    StoreOption,
    StreamArgument,
    SubjectFilterOption,
    TakeOverOption,
    ask_consent,
    open_store,
    require_consent_possible,
)
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.reading import plan_messages, read_messages
from spark_stream.cli.stream import app
from spark_stream.cli.verify import ProgressCall, progress_bar
from spark_stream.look.messages import Style, print_batch, print_batches, print_message, show_time
from spark_stream.look.terminal import counted, print_json, print_lines, print_table, say, show_size
from spark_stream.plans import purge_frees, purge_json, purge_scope

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.look.search import MessageFilter
    from storage_core.store.reading.plan import StreamRange
    from storage_core.store.writing.removal import RemovalPlan

SEQUENCE_MAX = 2**63 - 2  # int64, and one above it must be one too
ABSENT_SHOWN_MAX = 10  # sequences that were not there and are named
PAGE_SIZE = 10  # messages of a page on a terminal, as `nats stream view` has it


@app.command("get")
def get(
    name: StreamArgument,
    sequence: Annotated[int | None, typer.Argument(metavar="SEQ", help="Sequence of the message.")] = None,
    last_for: Annotated[
        str | None, typer.Option("--last-for", "-S", metavar="SUBJECT", help="The last message of this subject.")
    ] = None,
    raw: RawOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
    base64: Base64Option = False,
) -> None:
    """Print one message: by sequence, or the last one of a subject."""
    with open_store(store, read_only=True) as opened:
        stream = opened.stream(name)
        if sequence is not None and last_for is None:
            message = stream.get(sequence)
        elif last_for is not None and sequence is None:
            message = stream.last(last_for)
        else:
            raise WrongUsage("pass either a sequence or --last-for SUBJECT")
    print_message(message, Style.chosen(json, raw, base64))


@app.command("view")
def view(
    name: StreamArgument,
    size: Annotated[
        int | None, typer.Argument(metavar="SIZE", min=1, help="Messages of a page; not on a terminal: in all.")
    ] = None,
    first: FirstOption = None,
    since: SinceOption = None,
    subject: SubjectFilterOption = None,
    header: Annotated[
        str, typer.Option("--header", metavar="NAME[:VALUE]", help="Only messages with this header.")
    ] = "",
    field: Annotated[
        str,
        typer.Option(
            "--field", metavar="PATH[=VALUE]", help="Only JSON and MessagePack with this field: customer.id=42."
        ),
    ] = "",
    grep: Annotated[
        str,
        typer.Option("--grep", metavar="PATTERN", help="Only data in which this regular expression (RE2) is found."),
    ] = "",
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Begin with the last N of these messages.")
    ] = None,
    following: Annotated[bool, typer.Option("--follow", help="Then wait for new messages, until interrupted.")] = False,
    raw: RawOption = False,
    on_data_loss: OnDataLossOption = "fail",
    store: StoreOption = "",
    json: JsonOption = False,
    base64: Base64Option = False,
) -> None:
    """Print messages in order: page by page on a terminal, else all of them; --json prints one per line."""
    if sum((first is not None, since is not None, last is not None)) > 1:
        raise WrongUsage("--id, --since and --last all say where to begin: pass one of them")
    from spark_stream.cli import follow
    from spark_stream.look.search import MessageFilter

    style = Style.chosen(json, raw, base64)
    wanted = MessageFilter.of(subject or "", header, field, grep)
    with open_store(store, read_only=True) as opened:
        stream = opened.stream(name)
        if since is not None:
            sequence = stream.first_at_time(parse_since_ns(since, "--since", time.time_ns()))
            first = stream.last_sequence + 1 if sequence is None else sequence
        elif last is not None:
            first = follow.first_of_last(opened, name, last, wanted, on_data_loss)
        if following:
            start = follow.Position(name, stream.incarnation, first or 1)
            follow.print_following(opened, [start], subject, size, style, on_data_loss, chosen=wanted.chosen)
            return
        plan = plan_messages(opened, name, first, subject)
        search = _Search(read_messages(opened, plan, subject, on_data_loss), wanted, plan.ranges[0])
        try:
            if sys.stdin.isatty() and sys.stdout.isatty():
                _print_pages(search, size or PAGE_SIZE, style)
            else:
                with search.shown():
                    print_batches(search, size, style)
        except KeyboardInterrupt:
            if not wanted.is_by_subject:
                say(f"searched up to sequence {search.at - 1} of {search.end - 1}; --id {search.at} resumes")
            raise


class _Search:
    """Batches of wanted messages, and how far they were searched for."""

    def __init__(self, batches: "Iterator[pa.RecordBatch]", wanted: "MessageFilter", searched: "StreamRange") -> None:
        self._batches, self._wanted = batches, wanted
        self._first, self.at, self.end = searched.first, searched.first, searched.end
        self._progress: ProgressCall | None = None

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        for batch in self._batches:
            yield self._wanted.chosen(batch)
            if batch.num_rows:
                self.at = int(batch.column("sequence")[-1].as_py()) + 1
            if self._progress is not None:
                self._progress(self.at - self._first, self.end - self._first)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show on stderr how far a search is, while the body runs."""
        if self._wanted.is_by_subject or sys.stdout.isatty() and not sys.stdin.isatty():
            yield
            return
        with progress_bar("searched") as self._progress:
            yield
        self._progress = None


def _print_pages(search: _Search, size: int, style: Style) -> None:
    """Print a page at a time and ask for the next one in between."""
    rows = (batch.slice(at, 1) for batch in search for at in range(batch.num_rows))
    page = _page(search, rows, size, style)
    while page:
        for row in page:
            print_batch(row, style)
        page = _page(search, rows, size, style)
        if page and not typer.confirm("Next page?", default=True, err=True):
            return


def _page(search: _Search, rows: "Iterator[pa.RecordBatch]", size: int, style: Style) -> "list[pa.RecordBatch]":
    """Return as many rows; when interrupted, print those that were found."""
    page: list[pa.RecordBatch] = []
    try:
        with search.shown():
            page.extend(islice(rows, size))
    except KeyboardInterrupt:
        for row in page:
            print_batch(row, style)
        raise
    return page


@app.command("last")
def last(
    name: StreamArgument,
    subject: SubjectFilterOption = None,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="N", min=0, help="As if this sequence were the last one.")
    ] = None,
    raw: RawOption = False,
    on_data_loss: OnDataLossOption = "fail",
    store: StoreOption = "",
    json: JsonOption = False,
    base64: Base64Option = False,
) -> None:
    """Print the last message of each subject; --json prints one per line."""
    with open_store(store, read_only=True) as opened:
        from storage_core.store.arguments import check_filters
        from storage_core.store.reading.latest import latest_only

        plan = plan_messages(opened, name, None, subject, None if as_of is None else as_of + 1)
        slices = latest_only(plan.slices, check_filters(subject), on_data_loss, env=opened.environment)
        batches = read_messages(opened, replace(plan, slices=slices), subject, on_data_loss)
        print_batches(batches, None, Style.chosen(json, raw, base64))


@app.command("subjects")
def subjects(
    name: StreamArgument,
    wanted: Annotated[
        str | None, typer.Argument(metavar="FILTER", help="Only subjects that this filter takes.")
    ] = None,
    subject: Annotated[str | None, typer.Option("--subject", metavar="FILTER", help="The same, as an option.")] = None,
    sort: Annotated[str, typer.Option("--sort", metavar="name|messages", help="Order of the subjects.")] = "name",
    names: Annotated[bool, typer.Option("--names", "-n", help="Print the subjects only.")] = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """List the subjects in a stream, and how many messages each has."""
    if sort not in ("name", "messages"):
        raise WrongUsage(f"--sort {sort!r} is neither name nor messages")
    if wanted is not None and subject is not None:
        raise WrongUsage("FILTER and --subject are the same: pass one of them")
    with open_store(store, read_only=True) as opened:
        counts = opened.stream(name).subjects(subject if wanted is None else wanted)
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1] if sort == "messages" else 0, item[0])))
    if json:
        print_json(ordered)
    elif names:
        print_lines(ordered)
    elif ordered:
        print_table(("subject", "messages"), list(ordered.items()), f"Subjects of {name}")
    else:
        say("no subjects")


@app.command("gaps")
def gaps(
    name: StreamArgument,
    force: AsksNothingOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """List the sequences that are removed or lost. As JSON they are half open: first, end."""
    with open_store(store, read_only=True) as opened:
        ranges = opened.stream(name).gaps()
    if json:
        print_json([[first, end] for first, end in ranges])
    elif ranges:
        rows = [(first, end - 1, end - first) for first, end in ranges]
        print_table(("first", "last", "messages"), rows, f"Gaps in {name}")
    else:
        say("no gaps")


@app.command("purge")
def purge(
    name: StreamArgument,
    subject: SubjectFilterOption = None,
    end: Annotated[
        int | None, typer.Option("--seq", metavar="N", min=1, help="Only messages below this sequence.")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=0, help="Keep the last N messages.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Only messages older than this: 1h, 7d.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only messages of before this time: 2026-11-21T12:00Z."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, who has not read it and when room comes back.")
    ] = False,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: Annotated[
        bool, typer.Option("--json", "-j", help="Print what `stream info` prints then, or the plan, as JSON.")
    ] = False,
) -> None:
    """Remove messages of a stream: all, of a subject, below a sequence, or all but the last ones.

    Says what would go before it asks.
    """
    if end is not None and keep is not None:
        raise WrongUsage("--seq and --keep cannot go together")
    before_ns = _before_ns(older_than, before)
    if not dry_run:
        require_consent_possible("stream purge", force)
    with open_store(store, take_over=take_over and not dry_run, read_only=dry_run) as opened:
        stream = opened.stream(name)
        if dry_run or not force:
            plan = stream.purge_plan(subject, keep, end, before_ns)
            if dry_run and json:
                print_json(purge_json(name, plan))
                return
            filtered = {item.name for item in stream.state().consumers.values() if item.config.filter_subjects}
            _say_plan(plan, filtered)
            if dry_run:
                return
        older = f" of before {show_time(before_ns)}" if before_ns is not None else ""
        ask_consent(f"Purge {purge_scope(subject, end, keep)}{older} of stream {name}?", force)
        count = stream.purge(subject=subject, keep=keep, end=end, before_ns=before_ns)
        info = stream.info() if json else None
    # Who was asked has read it in the plan.
    room = "; `jstream cluster info` says when their room comes back" if force and count else ""
    say(f"removed {counted(count, 'message')} from stream {name}{room}")
    if info is not None:
        print_json(info)


def _say_plan(plan: "RemovalPlan", filtered: Collection[str]) -> None:
    """Say what a purge would do. `filtered` consumers want some subjects only, which are known block by block."""
    size = show_size(plan.data_size)
    say(f"would remove {counted(plan.message_count, 'message')} ({size}), and leave {plan.left_count}")
    for consumer, count in plan.unread.items():
        say(f"consumer {consumer} has not acknowledged {'up to ' if consumer in filtered else ''}{count} of them")
    say(purge_frees(plan))


def _before_ns(older_than: str | None, before: str | None) -> int | None:
    """Return the time before which messages go; None for all."""
    from storage_core.quantities import parse_duration_ns, parse_time_ns

    if older_than is not None and before is not None:
        raise WrongUsage("--older-than and --before cannot go together")
    if older_than is not None:
        return time.time_ns() - parse_duration_ns(older_than, "--older-than")
    return parse_time_ns(before, "--before") if before is not None else None


@app.command("rmm")
def remove_messages(
    name: StreamArgument,
    sequences: Annotated[
        list[int], typer.Argument(metavar="SEQ", min=1, max=SEQUENCE_MAX, help="Sequences of the messages.")
    ],
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
) -> None:
    """Remove single messages. Exit code 1 if some of them do not exist."""
    require_consent_possible("stream rmm", force)
    wanted = sorted(set(sequences))
    with open_store(store, take_over=take_over) as opened:
        stream = opened.stream(name)
        ask_consent(f"Remove {counted(len(wanted), 'message')} of stream {name}?", force)
        state = stream.state()
        present = range(state.first_sequence, state.next_sequence)
        absent = [sequence for sequence in wanted if sequence not in present or sequence in state.removed]
        count = stream.remove(wanted)
    if count < len(wanted):
        few = ", ".join(map(str, absent[:ABSENT_SHOWN_MAX])) + (", ..." if len(absent) > ABSENT_SHOWN_MAX else "")
        raise CommandFailed(
            f"removed {count} of {counted(len(wanted), 'message')} from stream {name}: not there: {few}"
        )
    say(f"removed {counted(count, 'message')} from stream {name}")
