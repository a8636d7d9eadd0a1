"""`jstream check`: whether all is well, for monitoring systems: one line a problem, and the exit code of a plugin."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage, explain
from spark_stream.cli.options import JsonOption, StoreOption
from spark_stream.cli.quantities import parse_duration_option, parse_since_ns
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import counted, print_json, print_lines

if TYPE_CHECKING:
    from spark_stream.check import Limit, Problem

_EITHER = "WARN[,CRIT]"


def check(
    lag: Annotated[
        str | None, typer.Option("--lag", metavar=_EITHER, help="Messages that a consumer is behind: 10000,1000000.")
    ] = None,
    lag_age: Annotated[
        str | None, typer.Option("--lag-age", metavar=_EITHER, help="Age of the oldest message that waits: 15m,2h.")
    ] = None,
    scrub_age: Annotated[
        str, typer.Option("--scrub-age", metavar=_EITHER, help="Time since each copy was last checked.")
    ] = "14d",
    free: Annotated[
        str, typer.Option("--free", metavar=_EITHER, help="Free space of a volume's disk, or less.")
    ] = "10%,5%",
    events_since: Annotated[
        str | None,
        typer.Option("--events-since", metavar="TIME", help="Warn of bad events since then: 1d, or a time."),
    ] = None,
    losses_since: Annotated[
        str | None,
        typer.Option("--losses-since", metavar="TIME", help="Ignore messages that were declared lost before."),
    ] = None,
    pipeline: Annotated[
        list[Path] | None, typer.Option("--pipeline", metavar="FILE", help="A pipeline's file; may be repeated.")
    ] = None,
    pipeline_age: Annotated[
        str,
        typer.Option("--pipeline-age", metavar=_EITHER, help="Time since its last run, while messages wait for it."),
    ] = "1d",
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Report problems for a monitoring system: one line per problem, the worst first.

    Exit code 0 if all is well, 1 for warnings, 2 if something is critical or the store cannot be read. Lost messages,
    volumes, copies and consumers that stopped are always checked. Nothing is locked or written; no block is read.
    """
    from spark_stream.check import About, Level, Limits, Problem, problems_of
    from spark_stream.store_scan import scan_of
    from storage_core import Store
    from storage_core.errors import StorageError

    limits = Limits(
        _limit(lag, "--lag", _count),
        _limit(lag_age, "--lag-age", parse_duration_option),
        _limit(scrub_age, "--scrub-age", parse_duration_option),
        _limit(free, "--free", _used_share),
        _limit(pipeline_age, "--pipeline-age", parse_duration_option),
        None if events_since is None else parse_since_ns(events_since, "--events-since", time.time_ns()),
        0 if losses_since is None else parse_since_ns(losses_since, "--losses-since", time.time_ns()),
    )
    summary = ""
    try:
        with Store.open(store, read_only=True, storage_options=storage_options()) as opened:
            scan, pipelines = scan_of(opened), _pipelines(pipeline or [], store)
            problems = [problem for problem in problems_of(scan, limits, pipelines) if problem.level >= Level.WARNING]
            summary = f"{counted(scan.cluster['voters'], 'volume')}, {counted(len(scan.streams), 'stream')}"
    except (StorageError, OSError) as error:
        problems = [Problem("unreadable", Level.CRITICAL, About(), explain(error))]
    level = max((problem.level for problem in problems), default=Level.OK)
    if json:
        print_json({"level": level.name.lower(), "problems": [_json(problem) for problem in problems]})
    elif problems:
        print_lines(_line(problem) for problem in problems)
    else:
        print_lines([f"OK: {summary}"])
    raise typer.Exit({Level.OK: 0, Level.WARNING: 1, Level.CRITICAL: 2}[level])


def _pipelines(files: "list[Path]", store: str) -> list[dict[str, Any]]:
    if not files:
        return []
    from spark_stream.pipelines.status import short_status

    return [short_status(file, store) for file in files]


def _line(problem: "Problem") -> str:
    from spark_stream.check import command_line, sentence_of

    remedy = f"; run `{command_line(problem)}`" if problem.command else ""
    return f"{problem.level.name}: {problem.about}: {sentence_of(problem)}{remedy}"


def _json(problem: "Problem") -> dict[str, Any]:
    from spark_stream.check import command_line, sentence_of

    return {
        "level": problem.level.name.lower(),
        "kind": problem.kind,
        "subject": str(problem.about),
        "text": sentence_of(problem),
        "command": command_line(problem) or None,
    }


def _limit(text: str | None, option: str, parse: Callable[[str, str], float]) -> "Limit":
    from spark_stream.check import Limit

    if text is None:
        return Limit()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2:
        raise WrongUsage(f"{option} {text!r}: it takes one value for a warning, and one more for critical")
    warning, critical = parse(parts[0], option), parse(parts[1], option) if len(parts) == 2 else None
    if critical is not None and critical < warning:
        raise WrongUsage(f"{option} {text!r}: critical comes before the warning")
    return Limit(warning, critical)


def _count(text: str, option: str) -> float:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise WrongUsage(f"{option} {text!r}: write a number of messages, 1 or more")
    return int(text)


def _used_share(text: str, option: str) -> float:
    """Return which share of a disk is used when so many percent of it are free."""
    digits = text.removesuffix("%")
    if not (text.endswith("%") and digits.isascii() and digits.isdigit() and int(digits) <= 100):
        raise WrongUsage(f"{option} {text!r}: write a share of the disk, such as 10%")
    return 1 - int(digits) / 100
