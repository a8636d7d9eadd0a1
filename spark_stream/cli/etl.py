"""`jstream etl`: pipelines, from a shell, cron, Airflow or spark-submit."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import CommandFailed, VerbGroup, WrongUsage
from spark_stream.cli.interrupts import EXIT_INTERRUPTED
from spark_stream.cli.options import (
    GroupStoreOption,
    JsonOption,
    OnDataLossOption,
    StoreOption,
    StreamArgument,
    SubjectFilterOption,
    TakeOverOption,
    named_store,
    open_store,
)
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.storage_options import put_into_environment
from spark_stream.look.terminal import counted, print_facts, print_json, print_lines, print_table, say, write

if TYPE_CHECKING:
    from spark_stream.pipelines.config import Pipeline
    from spark_stream.pipelines.replay import Plan
    from spark_stream.pipelines.run import Progress, Reporter, Stop
    from spark_stream.pipelines.summary import Summary

EXIT_TERMINATED = 143  # by SIGTERM, before everything was read
COUNTS = ("rows_in", "rows_out", "rows_dead", "rows_late")  # of a run

app = typer.Typer(cls=VerbGroup, help="Pipelines: a stream, parsed and transformed, into a table or another stream.")


class IfRunning(str, Enum):
    """What a run does that finds another one at work."""

    fail = "fail"
    skip = "skip"


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline: conf/pipelines/orders.toml.")]
PipelineStoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="VOLUME[,VOLUME]", help="For where the file names none. Default: $JSTREAM_STORE."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print one line on stderr for each step and each batch.")
]
IfRunningOption = Annotated[
    IfRunning, typer.Option("--if-running", help="If another run has the checkpoint: fail (1), or skip (0).")
]
MetricsOption = Annotated[
    Path | None,
    typer.Option("--metrics-textfile", metavar="FILE", help="Write metrics for Prometheus' textfile collector."),
]


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    if store is not None:
        context.obj = store


@app.command("run")
def run(
    context: typer.Context,
    file: FileArgument,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Keep running; without this, end when everything is read.")
    ] = False,
    new_checkpoint: Annotated[
        bool, typer.Option("--new-checkpoint", help="The old checkpoint is lost, and rows may be stored twice for it.")
    ] = False,
    if_running: IfRunningOption = IfRunning.fail,
    verbose: VerboseOption = False,
    metrics_textfile: MetricsOption = None,
    take_over: TakeOverOption = False,
    store: PipelineStoreOption = None,
) -> None:
    """Run a pipeline: everything that is there now, then end; the last line of stdout is a summary as JSON."""
    from spark_stream.pipelines import api
    from spark_stream.pipelines.config import AVAILABLE_NOW
    from spark_stream.pipelines.run import Stop

    pipeline = _load(context, file, store)
    _check_metrics(metrics_textfile)
    summary, stop = api.new_summary(pipeline, continuous), Stop()

    def started() -> None:
        _handle_signals(stop)  # Spark has put its own handler there

    skips = if_running is IfRunning.skip
    with (
        _reporting(summary, metrics_textfile, skips),
        _stopping(stop),
        _watching(pipeline.name, verbose) as shown,
    ):
        if pipeline.source.is_store:
            with open_store(",".join(pipeline.source.volumes), read_only=True):
                pass  # it says which volumes are lost
        api.run(pipeline, summary, stop, shown.batch, new_checkpoint, take_over, started, shown.step)
    if stop.reason and summary.mode == AVAILABLE_NOW:
        say(f"stopped by {stop.reason} between two batches; the next run continues from there")
        raise typer.Exit(EXIT_TERMINATED if stop.reason == "SIGTERM" else EXIT_INTERRUPTED)


@app.command("check")
def check(
    context: typer.Context,
    file: FileArgument,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without Spark: schema and transformation are not checked.")
    ] = False,
    store: PipelineStoreOption = None,
) -> None:
    """Check a pipeline without running it: its file, its streams, its schema and its transformation."""
    from spark_stream.pipelines import api
    from spark_stream.pipelines.source import check_stores

    pipeline = _load(context, file, store)
    if quick:
        for line in check_stores(pipeline):
            say(line)
    else:
        with _failing_in_words(), api.prepared(pipeline, say) as prepared:
            depends = prepared.depends
        print_lines(f"{field.name} {field.dataType.simpleString()}" for field in prepared.schema.fields)
        if depends:
            state = "" if prepared.is_row_by_row else f"; output_mode is {pipeline.sink.output_mode!r}"
            say(f"note: the transformation has {depends}{state}")
    say(f"{pipeline.name}: OK")


@app.command("status")
def status(
    context: typer.Context, file: FileArgument, store: PipelineStoreOption = None, json: JsonOption = False
) -> None:
    """Show how far a pipeline is, how far the stream is ahead of it, and what its last run did."""
    from spark_stream.pipelines.status import status as look

    pipeline = _load(context, file, store)
    with _failing_in_words():
        pipeline_status = look(pipeline)
    if json:
        print_json(pipeline_status)
    else:
        _print_status(pipeline_status)


@app.command("backfill")
def backfill(
    context: typer.Context,
    file: FileArgument,
    first: Annotated[str, typer.Option("--from", metavar="SEQUENCE|TIME", help="Where it begins, inclusive.")],
    end: Annotated[str, typer.Option("--to", metavar="SEQUENCE|TIME", help="Where it ends, exclusive.")],
    verbose: VerboseOption = False,
    metrics_textfile: MetricsOption = None,
    take_over: TakeOverOption = False,
    store: PipelineStoreOption = None,
) -> None:
    """Process a range of the stream again, with the same transformation and sink: exactly once, no matter how often.

    What could store a message twice is refused.
    """
    from spark_stream.pipelines import api
    from spark_stream.pipelines.backfill import Backfill, covered, resolve
    from spark_stream.pipelines.source import take_over_stores
    from spark_stream.pipelines.state import PipelineState
    from spark_stream.pipelines.summary import Summary

    pipeline = _load(context, file, store)
    _check_metrics(metrics_textfile)
    first_sequence, since_ns = _place(first, "--from")
    end_sequence, until_ns = _place(end, "--to")
    state, summary = PipelineState(pipeline.checkpoint), Summary(pipeline.name, "backfill")
    with _reporting(summary, metrics_textfile), state.lock("etl backfill"):
        if take_over:
            take_over_stores(pipeline)
        wanted = resolve(pipeline, first_sequence, end_sequence, since_ns, until_ns)
        with _watching(pipeline.name, verbose) as shown, api.prepared(pipeline, report=shown.step) as prepared:
            made = Backfill(prepared, state, wanted, summary)
            made.check()
            say(f"backfill of {covered(wanted.ranges)}")
            made.execute()


@app.command("schema")
def schema(
    name: StreamArgument,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, max=100_000, help="Of how many messages, the last ones.")
    ] = 1_000,
    subject: SubjectFilterOption = None,
    on_data_loss: OnDataLossOption = "fail",
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Propose the table [payload] of a pipeline from a stream's last messages: their format, fields and types."""
    from spark_stream.cli import follow
    from spark_stream.cli.reading import plan_messages, read_messages
    from spark_stream.look.search import MessageFilter
    from spark_stream.pipelines.samples import propose

    with open_store(store, read_only=True) as opened:
        first = follow.first_of_last(opened, name, samples, MessageFilter.of(subject or ""), on_data_loss)
        plan = plan_messages(opened, name, first, subject)
        batches = read_messages(opened, plan, subject, on_data_loss, columns=("data",))
        payloads = [payload for batch in batches for payload in batch.column("data").to_pylist()]
    if not payloads:
        raise CommandFailed(f"stream {name}: no message to propose a schema from")
    proposal = propose(payloads)
    if json:
        print_json(asdict(proposal))
    else:
        print_lines([f"# from {proposal.sampled:,} messages of {name}", *proposal.toml().splitlines()])


@app.command("letters")
def letters(
    context: typer.Context, file: FileArgument, store: PipelineStoreOption = None, json: JsonOption = False
) -> None:
    """Show the dead letters of a pipeline by kind of reason: how many, since when, and one of them."""
    from spark_stream.pipelines.letters import kept_letters, kinds_of, to_json

    pipeline = _load(context, file, store)
    with _failing_in_words():
        target = kept_letters(pipeline)
        kinds, _ = kinds_of(pipeline)
    if json:
        print_json(to_json(kinds))
        return
    columns = ("kind", "letters", "first", "last", "newest", "source", "reason")
    rows = [
        (row.kind, row.letters, row.first[:19], row.last[:19], row.letter, f"{row.stream} {row.sequence}", row.reason)
        for row in kinds
    ]
    print_table(columns, rows, f"Dead letters in {target.stream}")


@app.command("replay")
def replay(
    context: typer.Context,
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many letters parse now and how many stay; change nothing.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only letters of this kind, as `etl letters` shows it.")
    ] = None,
    if_running: IfRunningOption = IfRunning.fail,
    verbose: VerboseOption = False,
    metrics_textfile: MetricsOption = None,
    take_over: TakeOverOption = False,
    store: PipelineStoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send dead letters that can be parsed now through the pipeline into its sink, each exactly once.

    They leave the dead-letter stream; the others stay. Run it again if it was killed. The last line of stdout is a
    summary as JSON.
    """
    from spark_stream.pipelines import api
    from spark_stream.pipelines.replay import Replay, check_replay
    from spark_stream.pipelines.source import take_over_stores
    from spark_stream.pipelines.state import PipelineState
    from spark_stream.pipelines.summary import Summary

    if json and not dry_run:
        raise WrongUsage("--json: shows the plan of --dry-run; a replay ends with a line of JSON in any case")
    pipeline = _load(context, file, store)
    _check_metrics(metrics_textfile)
    state, summary = PipelineState(pipeline.checkpoint), Summary(pipeline.name, "replay")
    if dry_run:
        with _failing_in_words(), _watching(pipeline.name, verbose) as shown:
            check_replay(pipeline)
            with api.prepared(pipeline, report=shown.step) as prepared:
                made = Replay(prepared, state)
                made.check()
                shown.step("parsing the letters")
                plan = made.plan(kind)
        _print_plan(plan, json)
        return
    skips = if_running is IfRunning.skip
    with _reporting(summary, metrics_textfile, skips), state.lock("etl replay"):
        if take_over:
            take_over_stores(pipeline)
        check_replay(pipeline)
        with _watching(pipeline.name, verbose) as shown, api.prepared(pipeline, report=shown.step) as prepared:
            made = Replay(prepared, state)
            made.check()
            shown.step("parsing the letters")
            plan = made.plan(kind)
            made.execute(plan, summary, shown.step)
    if not summary.skipped:
        say(f"{counted(summary.rows_in, 'letter')} replayed, {counted(summary.rows_dead, 'letter')} stayed")


def _print_plan(plan: "Plan", json: bool) -> None:
    if json:
        print_json(plan.to_json())
        return
    rows = [(kind.kind, kind.parse + kind.stay, kind.parse, kind.stay) for kind in plan.kinds]
    print_table(("kind", "letters", "parse now", "stay"), rows, "Dead letters")
    if plan.unfinished:
        say(f"a replay of {counted(plan.unfinished, 'letter')} was killed, and is finished first")
    say(f"nothing was done; without --dry-run {counted(len(plan.sequences), 'letter')} would be replayed")


@app.command("fetch-jars")
def fetch_jars(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the JARs; created if necessary.")],
) -> None:
    """Fetch Delta's JARs for the installed delta-spark into DIR, for machines without a network.

    Set JSTREAM_DELTA_JARS=DIR there. Where there is a network a pipeline fetches them by itself, once.
    """
    from spark_stream.jars import DELTA_JARS_VARIABLE, JarsError, delta_package, fetch_delta, jar_name, no_delta

    package = delta_package()
    if package is None:
        raise CommandFailed(no_delta())
    if (directory / jar_name(package)).is_file():
        say(f"{directory} has {package} already")
        return
    say(f"fetching {package} and what it needs")
    try:
        fetch_delta(package, directory)
    except JarsError as error:
        raise CommandFailed(str(error)) from error
    print_lines(str(jar) for jar in sorted(directory.glob("*.jar")))
    say(f"set {DELTA_JARS_VARIABLE}={directory.absolute()} where pipelines run")


def _load(context: typer.Context, file: Path, store: str | None) -> "Pipeline":
    from spark_stream.pipelines.config import load_pipeline

    put_into_environment()
    return load_pipeline(file, named_store(context, store))


def _check_metrics(textfile: Path | None) -> None:
    """Raise CommandFailed before anything is run if metrics could not be written at its end."""
    if textfile is None:
        return
    try:
        import spark_stream.pipelines.metrics  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandFailed(str(error)) from error
    if not textfile.absolute().parent.is_dir():
        raise CommandFailed(f"--metrics-textfile {textfile}: its folder is not there")


@contextmanager
def _failing_in_words() -> Iterator[None]:
    """Let what a pipeline refuses or fails with end the command with one line and exit code 1."""
    from spark_stream.pipelines.failures import SPARK_ERRORS, in_words

    try:
        yield
    except SPARK_ERRORS as error:
        raise CommandFailed(in_words(error)) from error


@contextmanager
def _reporting(summary: "Summary", metrics_textfile: Path | None, skips: bool = False) -> Iterator[None]:
    """Report what a run came to, however it ends: a line on stdout, and metrics unless they are another run's.

    `skips`: another run is no failure.
    """
    from spark_stream.pipelines.api import finishing
    from spark_stream.pipelines.errors import CheckpointHeldError, CheckpointLostError

    is_held = False
    with _failing_in_words():
        try:
            with finishing(summary):
                yield
        except CheckpointHeldError as error:
            is_held = True
            if not skips or isinstance(error, CheckpointLostError):
                raise
            summary.skip()
            say(f"skipped: {error}")
        finally:
            write(summary.line())
            if metrics_textfile is not None and not is_held:
                from spark_stream.pipelines.metrics import write_metrics

                write_metrics(summary, metrics_textfile)


@contextmanager
def _stopping(stop: "Stop") -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask the run to stop; put back afterwards what was there before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _handle_signals(stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle_signals(stop: "Stop") -> None:
    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: at once, and the batch is done again
        stop.ask(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


class Shown:
    """How a run gets on, for people: nothing, unless a subclass shows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began_s, self._rows = time.monotonic(), 0

    def step(self, text: str) -> None:
        """Show what the run does now."""

    def batch(self, progress: "Progress") -> None:
        """Show a batch that is finished."""

    def _text(self, progress: "Progress") -> str:
        dead = f", {progress.rows_dead:,} dead" if progress.rows_dead else ""
        return f"{dead}, {progress.rows_per_s:,.0f}/s, {sum(progress.lag.values()):,} to go"


class Lines(Shown):
    """A line for each step and each batch, for logs."""

    def step(self, text: str) -> None:
        self._say(text)

    def batch(self, progress: "Progress") -> None:
        self._say(f"batch {progress.batch}: done, {progress.rows_in:,} messages{self._text(progress)}")

    def _say(self, text: str) -> None:
        say(f"{self.name}: {text}, {time.monotonic() - self._began_s:.1f} s")


class Spinner(Shown):
    """One line of a terminal, with what is done now, the counts so far, and a clock that runs."""

    def __init__(self, name: str, update: "Reporter") -> None:
        super().__init__(name)
        self._update, self._counts, self._step = update, "", "starting"
        self.step(self._step)

    def step(self, text: str) -> None:
        self._step = text
        self._update(f"{self.name}: {self._counts}{text}")

    def batch(self, progress: "Progress") -> None:
        self._rows += progress.rows_in
        self._counts = f"batch {progress.batch}, {self._rows:,} messages{self._text(progress)}; "
        self.step("next batch")


@contextmanager
def _watching(name: str, verbose: bool) -> Iterator[Shown]:
    """Show how a run gets on: lines if asked for, else one line where stderr is a terminal, else nothing."""
    if verbose:
        yield Lines(name)
        return
    if not sys.stderr.isatty():
        yield Shown(name)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield Spinner(name, lambda text: bar.update(task, description=escape(text)))


def _place(text: str, option: str) -> tuple[int | None, int | None]:
    """Return a sequence, or nanoseconds since 1970."""
    if text.isdigit():
        from storage_core.sequences import check_sequence

        try:
            return check_sequence(option, int(text)), None
        except ValueError as error:
            raise WrongUsage(str(error)) from error
    try:
        return None, parse_since_ns(text, option, time.time_ns())
    except WrongUsage as error:
        raise WrongUsage(str(error).replace(": write ", ": write a sequence, ", 1)) from error


def _print_status(pipeline_status: dict[str, Any]) -> None:
    print_facts(
        f"Pipeline {pipeline_status['pipeline']}",
        [
            ("checkpoint", pipeline_status["checkpoint"]),
            ("running", pipeline_status["running"] or "no"),
            ("query", pipeline_status["query"]),
            ("last batch done", pipeline_status["batch_done"]),
            ("batch not finished", pipeline_status["batch_open"]),
            ("backfills", len(pipeline_status["backfills"])),
            ("replay", _replay_text(pipeline_status["replay"])),
        ],
    )
    last = pipeline_status["last_run"]
    if last is not None:
        result = (
            "ok" if last["ok"] else f"stopped by {last['stopped']}" if last["stopped"] else f"failed: {last['error']}"
        )
        facts = [("result", result), ("started", last["started"]), ("seconds", last["duration_s"])]
        counts = [(name.replace("rows_", "rows "), last[name]) for name in COUNTS]
        print_facts("Last run", [*facts, *counts, ("batches", last["batches"])])
    rows = [
        [stream["stream"], stream["position"], stream["end"], stream["lag"], *_consumer_cells(stream["consumer"])]
        for stream in pipeline_status["streams"]
    ]
    print_table(("stream", "position", "end", "lag", "consumer", "ack floor", "pending"), rows, "Streams")


def _replay_text(replay: dict[str, Any] | None) -> str | None:
    if replay is None:
        return None
    stage = f"done {replay['done']}" if replay["done"] else f"begun {replay['begun']}, not finished: run it again"
    return f"{counted(replay['letters'], 'letter')}, {stage}"


def _consumer_cells(consumer: dict[str, Any] | None) -> list[Any]:
    return [None] * 3 if consumer is None else [consumer["name"], consumer["ack_floor"], consumer["num_pending"]]
