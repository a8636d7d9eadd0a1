"""`jstream import nats|stan`: streams of another server's store into this one, with their sequences and consumers."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, CommandFailed, VerbGroup, WrongUsage
from spark_stream.cli.options import (
    EncryptionKeyOption,
    GroupStoreOption,
    JsonOption,
    OnDataLossOption,
    StoreOption,
    TakeOverOption,
    open_store,
    read_keys,
    refuse_twice,
    remember_store,
    warn_of_overlaps,
)
from spark_stream.cli.verify import progress_bar
from spark_stream.look.terminal import counted, print_json, print_lines, print_table, say, show_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage_core.foreign import ForeignStore
    from storage_core.store.ingest.records import PartRecord
    from storage_core.store.ingest.server_parts import PartTask

_RANGE = re.compile(r"^sequences? \d+( to \d+)?:? ")  # what a reason begins with, and the line has already
SPARK_SIZE = 4 << 30  # bytes of block files from which on an import runs on Spark by itself
_COLUMNS = (
    "name",
    "read",
    "messages",
    "message bytes",
    "holes",
    "lost",
    "open",
    "first",
    "last",
    "consumers",
    "replicas",
)

app = typer.Typer(cls=VerbGroup, help="Import files of messages, and streams of another server's store.")

DirectoriesArgument = Annotated[
    list[str], typer.Argument(metavar="DIR", help="Directory of the store, or of a part of it; several: replicas.")
]
StreamsOption = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="A stream, or a glob; may be repeated. Else all."),
]
AsOption = Annotated[
    list[str] | None,
    typer.Option("--as", metavar="NAME", help="What to call it here; one for each --stream, in their order."),
]
ReplicasOption = Annotated[
    int | None, typer.Option("--replicas", metavar="N", help="Copies of each block. Default: one per volume.")
]
SparkOption = Annotated[
    bool | None,
    typer.Option("--spark/--no-spark", help="On Spark, or not; else large stores are.", show_default=False),
]


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("nats")
def import_nats(
    directories: DirectoriesArgument,
    streams: StreamsOption = None,
    as_names: AsOption = None,
    account: Annotated[
        str | None, typer.Option("--account", metavar="NAME", help="Only streams of this account.")
    ] = None,
    encryption_key: EncryptionKeyOption = None,
    on_data_loss: OnDataLossOption = "fail",
    replicas: ReplicasOption = None,
    spark: SparkOption = None,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Import streams of NATS JetStream; the same command, run again, resumes. Exit code 1 if damage is left.

    It stops at the first lost message, unless an option says otherwise.

    A DIR may be what `nats stream backup` wrote. Of a source that has only grown since, what is new is imported.
    """
    from storage_core.foreign import open_foreign
    from storage_core.foreign.nats.store import LAYOUT

    names = _names(streams, as_names)
    with _unpacked(directories) as places:
        source = open_foreign(places, LAYOUT, account, encryption_key=read_keys(encryption_key))
        _import(source, names, replicas, spark, take_over, store, json, on_data_loss)


@app.command("stan")
def import_stan(
    directories: DirectoriesArgument,
    streams: StreamsOption = None,
    as_names: AsOption = None,
    truncate_bad_eof: Annotated[
        bool,
        typer.Option("--truncate-bad-eof", help="Read past an unexpected end of a file; not twice in a row."),
    ] = False,
    no_crc: Annotated[
        bool, typer.Option("--no-crc", help="Read messages whose checksum fails; each is reported as damage.")
    ] = False,
    on_data_loss: OnDataLossOption = "fail",
    replicas: ReplicasOption = None,
    spark: SparkOption = None,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Import channels of NATS Streaming; the same command, run again, resumes. Exit code 1 if damage is left.

    It stops at the first bad record, unless an option says otherwise.
    """
    from storage_core.foreign import open_foreign
    from storage_core.foreign.stan.store import LAYOUT

    names = _names(streams, as_names)
    source = open_foreign(directories, LAYOUT, truncate_bad_eof=truncate_bad_eof, no_crc=no_crc)
    _import(source, names, replicas, spark, take_over, store, json, on_data_loss, truncate_bad_eof)


@app.command("block")
def import_block(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Blocks that an archive_command has kept.")],
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="Where their messages go, behind its own.")],
    firsts: Annotated[
        list[int] | None,
        typer.Option(
            "--first",
            metavar="N",
            min=1,
            help="First sequence of a block: its messages keep theirs. One for each FILE, in their order.",
        ),
    ] = None,
    on_data_loss: OnDataLossOption = "fail",
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Append the messages of block files to a stream, with their times; a block that the stream was given is skipped.

    They get new sequences, or with --first those they had. Exit code 1 if damage is left.
    """
    from storage_core.files import OS_FILES
    from storage_core.store.ingest import block_files

    if firsts and len(firsts) != len(files):
        raise WrongUsage(f"--first: {counted(len(firsts), 'sequence')} for {counted(len(files), 'FILE')}")
    damage: list[str] = []
    on_damage = damage.append if on_data_loss == "continue" else None
    rows: list[dict[str, Any]] = []
    with open_store(store, take_over=take_over) as opened:
        target = opened.stream(stream)
        for path, first in zip_longest(files, firsts or ()):
            with closing(OS_FILES.open(path.resolve())) as file:
                got = block_files.import_block(target, file, first, on_damage)
            rows.append({"file": str(path), "stream": stream, "first": got.start, "end": got.stop})
    for sentence in damage:
        say(f"damaged: {sentence}")
    if json:
        print_json({"ok": not damage, "blocks": rows})
    else:
        print_lines(f"{row['file']}: {stream} {row['first']} to {row['end'] - 1}" for row in rows)
    if damage:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _unpacked(directories: list[str]) -> Iterator[list[str]]:
    """Yield the directories, with what backups hold in their place; that is kept until the import is done."""
    from storage_core.foreign.nats.backup_archive import unpacked
    from storage_core.foreign.nats.directory import is_backup

    if not any(map(is_backup, directories)):
        yield directories
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jstream" / "backups"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    places = unpacked(directories, folder)
    yield places
    for place in set(places) - set(directories):
        shutil.rmtree(place, ignore_errors=True)


def _names(streams: list[str] | None, as_names: list[str] | None) -> dict[str, str | None]:
    """Return what is asked for, and what to call it. Raises WrongUsage for words that contradict each other."""
    streams, as_names = streams or [], as_names or []
    if as_names and len(as_names) != len(streams):
        raise WrongUsage(f"--as: {counted(len(as_names), 'name')} for {counted(len(streams), 'stream')} (--stream)")
    refuse_twice(streams)
    return {name: as_names[at] if as_names else None for at, name in enumerate(streams)}


def _import(
    source: "ForeignStore",
    names: dict[str, str | None],
    replicas: int | None,
    spark: bool | None,
    take_over: bool,
    store: str,
    json: bool,
    on_data_loss: str,
    truncate_bad_eof: bool = False,
) -> None:
    from storage_core.errors import DataLossError, UnsupportedVersionError
    from storage_core.store.ingest.from_server import ImportRequest, import_streams

    for writer in source.writers():
        say(f"warning: {writer.describe()}")
    as_names = {old: new for old, new in names.items() if new is not None}
    request = ImportRequest(tuple(names), as_names, replicas, on_data_loss, truncate_bad_eof)
    runner = _Runner(spark)
    with open_store(store, take_over) as opened, progress_bar("block files", source.advice()) as progress:
        try:
            report = import_streams(opened, source, request, progress, runner.run)
            warn_of_overlaps(opened, [stream["name"] for stream in report["streams"]])
        except DataLossError as error:
            for line in str(error).splitlines():
                say(line)
            above = "the options above read past it, and " if "(--" in str(error) else ""
            raise CommandFailed(
                "stopped at the first damage: nothing of that stream was imported; "
                f"{above}--on-data-loss continue reads past everything that cannot be read"
            ) from error
        except UnsupportedVersionError as error:
            raise CommandFailed(_in_our_words(str(error))) from error
        finally:
            runner.close()
    if json:
        print_json(report)
    else:
        _print(report)
    if not report["ok"]:
        raise typer.Exit(EXIT_FAILED)


class _Runner:
    """Writes the parts of an import here, or on Spark if that was asked for or there is much to do."""

    def __init__(self, spark: bool | None) -> None:
        self._spark = spark
        self._session: SparkSession | None = None
        self._open = ExitStack()

    def run(self, tasks: "Sequence[PartTask]", step: Callable[[int], None]) -> "Iterable[PartRecord]":
        size = sum(part.byte_size for task in tasks for part in task.slices)
        if not tasks or self._spark is False or (self._spark is None and size < SPARK_SIZE):
            return _here(tasks, step)

        from spark_stream.importing import job

        try:
            if self._session is None:
                self._session = self._open.enter_context(job.session())
        except RuntimeError as error:
            if self._spark:
                raise CommandFailed(str(error)) from error
            say(f"warning: {error}; continuing without it")
            self._spark = False
            return _here(tasks, step)
        return job.run_parts(self._session, tasks, step)

    def close(self) -> None:
        self._open.close()


def _here(tasks: "Sequence[PartTask]", step: Callable[[int], None]) -> "Iterator[PartRecord]":
    from storage_core.store.ingest.server_parts import write_part

    for task in tasks:
        yield write_part(task, on_slice=lambda: step(1))


def _print(report: dict[str, Any]) -> None:
    rows = [
        [
            stream["name"], stream["read"], stream["messages"], show_size(stream["bytes"]), stream["holes"],
            stream["lost"], stream["open"], stream["first_seq"], stream["last_seq"], len(stream["consumers"]),
            stream["num_replicas"],
        ]
        for stream in report["streams"]
    ]  # fmt: skip
    print_table(_COLUMNS, rows, "Imported")
    if report["damage"]:
        print_lines(_damage_lines(report["damage"]))
    for stream in report["streams"]:
        if stream["already"]:
            say(f"stream {stream['name']} was imported before: nothing was stored now")
        if stream["source"] != stream["name"]:
            say(f"stream {stream['source']} is called {stream['name']} here")
        for note in stream["notes"]:
            say(f"stream {stream['name']}: {note}")
    for failure in report["failed"]:
        say(f"stream {failure['stream']} was not imported: {_in_our_words(failure['reason'])}")
    say(_verdict(report))


def _damage_lines(damage: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each file, which may be long, and below it one for each place in it."""
    for file, places in _joined(damage).items():
        yield f"damage in {file}" if file else "damage"
        for place in places:
            at = f" at byte {place['offset_bytes']}" if place["offset_bytes"] else ""
            first, end = place["first"], place["end"]
            which = (
                "" if first is None else f", sequence {first}" + (f" to {end - 1}" if end and end - 1 > first else "")
            )
            yield f"  stream {place['stream']}{which}{at}: {place['reason']}"


def _joined(damage: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the places of each file, those of a directory together; what follows for the same reason is one place."""
    files: dict[str, list[dict[str, Any]]] = {}
    for place in damage:
        places, reason = files.setdefault(place["file"], []), _RANGE.sub("", place["reason"])
        last = places[-1] if places else {}
        same = (place["first"], place["stream"], reason)
        if place["first"] is not None and (last.get("end"), last.get("stream"), last.get("reason")) == same:
            last["end"] = place["end"]
        else:
            places.append({**place, "reason": reason})
    below: dict[str, list[dict[str, Any]]] = {}  # by directory: the places of the files in it
    for file, places in files.items():
        for directory in PurePosixPath(file).parents:
            below.setdefault(str(directory), []).extend(places)
    kept = {file: [place for place in files[file] if not _is_said(place, below.get(file, []))] for file in files}
    return {file: kept[file] for file in sorted(files, key=lambda file: PurePosixPath(file).parts[:-1]) if kept[file]}


def _is_said(place: Mapping[str, Any], by: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether other places name every sequence of one: a node lacks what lay in its files that are gone."""
    position, end = place["first"], place["end"]
    ranges = [(other["first"], other["end"]) for other in by if other["end"] and other["stream"] == place["stream"]]
    for other_first, other_end in sorted(ranges):
        if position is not None and other_first <= position < other_end:
            position = other_end
    return bool(end and position >= end)


def _in_our_words(reason: str) -> str:
    """Return what the reader says with the option of this command in the place of Spark's."""
    return reason.replace("option encryptionKey", "--encryption-key")


def _verdict(report: dict[str, Any]) -> str:
    streams = [stream for stream in report["streams"] if not stream["already"]]
    total = {key: sum(stream[key] for stream in streams) for key in ("messages", "holes", "lost", "open")}
    consumers = sum(len(stream["consumers"]) for stream in streams)
    left = sum(damage["left"] for damage in report["damage"])
    parts = [
        f"imported {counted(total['messages'], 'message')} of {counted(len(streams), 'stream')}",
        counted(total["holes"], "hole"),
        f"{total['lost']} lost",
        *([f"{total['open']} open (removed or lost)"] if total["open"] else []),
        counted(consumers, "consumer"),
    ]
    overcome = "the damage cost no message" if report["damage"] else "no damage is left"
    if any(stream["lost"] for stream in report["streams"] if stream["already"]):
        overcome = "what was lost before stays lost"
    verdict = f"damage is left in {counted(left, 'place')}" if left else overcome
    if report["failed"]:
        parts.append(f"{counted(len(report['failed']), 'stream')} not imported")
    return f"{', '.join(parts)}; {verdict}"
