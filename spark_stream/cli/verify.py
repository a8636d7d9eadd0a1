"""`jstream verify`: read every byte of the store and say what is damaged."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, WrongUsage
from spark_stream.cli.options import GroupStoreOption, JsonOption, open_store, remedy_of, resolve_store, volume_labels
from spark_stream.look.terminal import print_json, print_table, say
from spark_stream.repairs import checked, damage_counts

ProgressCall = Callable[[int, int], None]
_COLUMNS = ("stream", "volume", "file", "offset_bytes", "first", "end", "reason")
StreamsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="STREAM", help="Streams to check; all of them if none is named.")
]


def verify(
    context: typer.Context,
    streams: StreamsArgument = None,
    backup: Annotated[str, typer.Option("--backup", metavar="DIR", help="Check a backup, and no store.")] = "",
    store: GroupStoreOption = None,
    json: JsonOption = False,
) -> None:
    """Read and check everything: metadata, and every byte of every copy. Exit code 1 if anything is damaged."""
    if backup:
        if store:
            raise WrongUsage("--backup and --store: check one of them")
        report, labels, remedy = _verify_backup(backup, streams), {backup: backup}, "make another backup"
    else:
        with open_store(resolve_store(context, store)) as opened, progress_bar("blocks") as progress:
            report = opened.verify(progress=progress, streams=streams or None)
            labels, remedy = volume_labels(opened), remedy_of(opened)
    if json:
        print_json(report)
    else:
        print_verdict(report, labels, remedy)
    if not report["ok"]:
        raise typer.Exit(EXIT_FAILED)


def _verify_backup(directory: str, streams: list[str] | None) -> dict[str, Any]:
    from storage_core.store.environment import REAL
    from storage_core.store.ingest.backup import verify_backup

    with progress_bar("blocks") as progress:
        return verify_backup(directory, REAL, progress, streams or None)


def print_verdict(report: dict[str, Any], labels: Mapping[str, str], remedy: str) -> None:
    """Print the damage that was found as a table; the verdict itself is talk."""
    damage = report["damage"]
    if damage:
        print_table(_COLUMNS, volume_rows(runs_of(damage), _COLUMNS, labels), "Damage")
    say(
        f"{checked(report)}: all is well"
        if report["ok"]
        else f"{checked(report)}; bad or missing: {damage_counts(damage)}; {remedy}"
    )


def runs_of(damage: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return damage with files of one copy that follow one another and are wrong alike as one; --json has each."""
    runs: list[dict[str, Any]] = []
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for place in damage:
        kind = tuple(place.get(key) for key in ("stream", "volume", "reason", "repaired", "offset_bytes"))
        run = newest.get(kind)
        if run is not None and run["end"] == place["first"] < place["end"]:
            count = run.get("count", 1) + 1
            folder = os.path.dirname(place["file"])
            run.update(end=place["end"], count=count, file=f"{folder}: {count:,} files")
        else:
            newest[kind] = dict(place)
            runs.append(newest[kind])
    return list(runs)


def volume_rows(
    entries: Sequence[Mapping[str, Any]], columns: Sequence[str], labels: Mapping[str, str]
) -> list[list[Any]]:
    """Return the rows of a table that calls volumes, also those of files, what people call them.

    Damage that costs no message has neither first nor end: a volume, metadata, a frame without messages.
    """
    shown = []
    for entry in entries:
        label = labels.get(entry["volume"], entry["volume"])
        file = {"file": short_path(entry["file"], label)} if "file" in entry else {}  # events have none
        nothing = {"first": None, "end": None} if entry.get("end") == 0 else {}
        shown.append({**entry, "stream": entry["stream"] or None, "volume": label, **file, **nothing})
    return [[entry.get(column) for column in columns] for entry in shown]


def short_path(file: str, label: str) -> str:
    """Return the path of a volume's file, from what people call the volume on; --json has the whole of it."""
    _, volume, rest = file.partition(f"/{label}/")
    return f"{label}/{rest}" if volume else file


@contextmanager
def progress_bar(label: str, advice: str = "") -> Iterator[ProgressCall | None]:
    """Show a bar on stderr while the body runs, if that is a terminal; it is fed (done, total).

    `advice`: what would make it faster, in front of the bar.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if advice:
        say(advice)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
