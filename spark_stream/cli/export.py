"""`jstream export`: messages of a stream to a Parquet file or JSON lines.

A file is written beside its place under another name, fsynced, and takes its name at the end: whoever sees it has all
of it, and an export that failed leaves nothing behind.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import EXIT_FAILED, CommandFailed, WrongUsage
from spark_stream.cli.options import (
    FirstOption,
    JsonOption,
    OnDataLossOption,
    SinceOption,
    StoreOption,
    StreamArgument,
    SubjectFilterOption,
    open_store,
)
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.reading import plan_messages, read_messages
from spark_stream.cli.verify import progress_bar
from spark_stream.look.messages import PRINTED_COLUMNS, json_lines
from spark_stream.look.terminal import counted, print_json, say, show_size, write

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core import Store
    from storage_core.store.reading.plan import ReadPlan

PARQUET, JSONL = "parquet", "jsonl"
FORMATS = (PARQUET, JSONL)
STDOUT = "-"
ROW_GROUP_SIZE = 64 << 20  # bytes of messages in one row group of a Parquet file
_SUFFIXES = {".parquet": PARQUET, ".jsonl": JSONL, ".ndjson": JSONL}
Batches = Iterator["pa.RecordBatch"]


def export(
    name: StreamArgument,
    target: Annotated[str, typer.Argument(metavar="FILE|DIR", help="Where to: a file, a directory, or - for stdout.")],
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="parquet|jsonl", help="Else as the file's name ends: .parquet, .jsonl."),
    ] = None,
    first: FirstOption = None,
    end: Annotated[int | None, typer.Option("--end", metavar="N", min=1, help="End before this sequence.")] = None,
    since: SinceOption = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End before the first message of this time.")
    ] = None,
    subject: SubjectFilterOption = None,
    on_data_loss: OnDataLossOption = "fail",
    objects: Annotated[
        bool, typer.Option("--objects", help="Of a bucket of objects (OBJ_...): write each object to a file in DIR.")
    ] = False,
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Messages that another copy of the store had, and that a repair set aside."),
    ] = False,
    base64: Annotated[
        bool, typer.Option("--base64", help="JSON lines: write data and headers in base64, never as text.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Write over a file that is there.")] = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Write messages to a Parquet file, with the columns that Spark reads, or as JSON lines."""
    if (first is not None and since is not None) or (end is not None and until is not None):
        raise WrongUsage("--id and --since both say where to begin, --end and --until where to end: pass one of them")
    if set_aside and (objects or any(given is not None for given in (first, end, since, until, subject))):
        raise WrongUsage("--set-aside writes all that was set aside: leave options that choose some out")
    if objects:
        if base64 or any(given is not None for given in (file_format, first, end, since, until, subject)):
            raise WrongUsage("--objects writes whole objects: leave options that choose messages or a format out")
        with open_store(store, read_only=True) as opened:
            _export_objects(opened, name, Path(target), json)
        return
    chosen, path = _choose(name, target, file_format)
    if base64 and chosen != JSONL:
        raise WrongUsage("--base64 is for JSON lines: a Parquet file has bytes as they are")
    if path is None and json:
        raise WrongUsage("--json is the report, and the messages go to stdout: pass one of them, - or --json")
    if path is not None:
        path = _place(path, force)
    with open_store(store, read_only=True) as opened, progress_bar("messages") as progress:
        columns = PRINTED_COLUMNS if chosen == JSONL else _read_columns()
        if set_aside:
            batches, total, covered = _set_aside(opened, name, columns, on_data_loss)
        else:
            plan = _plan(opened, name, (first, end), (since, until), subject)
            covered = range(plan.ranges[0].first, plan.ranges[0].end)
            batches = read_messages(opened, plan, subject, on_data_loss, columns=columns)
            total = int(plan.slices.rows["row_count"].sum())
        counter = _Counter(batches, total, progress)
        if path is None:
            for batch in counter:
                write(json_lines(batch, base64))
        else:
            _write_file(path, chosen, counter, force, base64)
    where = "stdout" if path is None else str(path)
    size = 0 if path is None else path.stat().st_size
    report = {
        "stream": name,
        "format": chosen,
        "path": where,
        "first_seq": covered.start,
        "last_seq": covered.stop - 1,
        "messages": counter.count,
        "bytes": size,
    }
    if json:
        print_json(report)
    shown = "" if path is None else f" ({show_size(size)})"
    say(f"exported {counted(counter.count, 'message')} of stream {name} to {where}{shown}")


def _export_objects(store: "Store", name: str, folder: Path, json: bool) -> None:
    from storage_core.object_bucket import bucket_of, export_objects

    stream = store.stream(name)
    bucket = bucket_of(stream)
    if bucket is None:
        raise CommandFailed(f"stream {name!r} is no bucket of objects: those are called OBJ_...")
    folder.mkdir(parents=True, exist_ok=True)
    exported = list(export_objects(stream, bucket, folder))
    bad = [each for each in exported if each.problem]
    if json:
        rows = [{"name": each.name, "file": each.file, "size": each.size, "problem": each.problem} for each in exported]
        print_json({"stream": name, "bucket": bucket, "path": str(folder), "ok": not bad, "objects": rows})
    for each in bad:
        say(f"object {each.name!r} was not written: {each.problem}")
    size = show_size(sum(each.size for each in exported if not each.problem))
    say(f"exported {counted(len(exported) - len(bad), 'object')} of bucket {bucket} to {folder} ({size})")
    if bad:
        raise typer.Exit(EXIT_FAILED)


def _choose(name: str, target: str, file_format: str | None) -> tuple[str, Path | None]:
    """Return the format, and the file; None for stdout. Raises WrongUsage."""
    if file_format is not None and file_format not in FORMATS:
        from storage_core.suggestions import not_one_of

        raise WrongUsage(f"--format {not_one_of(file_format, FORMATS)}")
    if target == STDOUT:
        if file_format == PARQUET:
            raise WrongUsage("a Parquet file is not written to stdout: name a file, or pass --format jsonl")
        return JSONL, None
    path = Path(target)
    if target.endswith(os.sep) or path.is_dir():
        return file_format or PARQUET, path / f"{name}.{file_format or PARQUET}"
    chosen = file_format or _SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise WrongUsage(f"{target}: which format? pass --format parquet or jsonl, or a name that ends so")
    return chosen, path


def _place(path: Path, force: bool) -> Path:
    """Return where the file will lie; what is there is written over, if `force`, where a link to it leads.

    Raises CommandFailed: a device, a FIFO or a directory is never replaced by a file.
    """
    if not force:
        _check_free(path)
        return path
    if path.exists() and not path.is_file():
        raise CommandFailed(f"{path} is no regular file, and stays; - writes to stdout")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _check_free(path: Path) -> None:
    """Raise CommandFailed if there is something of that name already."""
    if os.path.lexists(path):
        raise CommandFailed(f"{path} exists: pass --force to write over it, or another name")


def _plan(
    store: "Store",
    name: str,
    sequences: tuple[int | None, int | None],
    times: tuple[str | None, str | None],
    subject: str | None,
) -> "ReadPlan":
    """Return the plan of the messages between the bounds that are given. Raises WrongUsage if they end before they
    begin.
    """
    now_ns, bounds = time.time_ns(), list(sequences)
    for at, (text, option) in enumerate(zip(times, ("--since", "--until"), strict=True)):
        if text is not None:
            stream = store.stream(name)
            sequence = stream.first_at_time(parse_since_ns(text, option, now_ns))
            bounds[at] = stream.last_sequence + 1 if sequence is None else sequence
    first, end = bounds
    if first is not None and end is not None and first > end:
        raise WrongUsage(f"from {sequences[0] or times[0]} to {sequences[1] or times[1]} ends before it begins")
    return plan_messages(store, name, first, subject, end)


def _set_aside(store: "Store", name: str, columns: tuple[str, ...], on_data_loss: str) -> "tuple[Batches, int, range]":
    """Return the messages of a stream that were set aside, how many they are, and the range of their sequences."""
    from storage_core.sequences import SequenceSet
    from storage_core.store.recovery.other_copies import set_aside_of

    batches = store.read_set_aside(name, columns, on_data_loss)
    held = [SequenceSet.decode(messages.sequences) for messages in set_aside_of(store.view().state, name)]
    bounds = [sequences.bounds for sequences in held]
    covered = range(min(first for first, _ in bounds), max(end for _, end in bounds))
    return batches, sum(map(len, held)), covered


def _read_columns() -> tuple[str, ...]:
    from storage_core.schema import FILE_SCHEMA

    return tuple(FILE_SCHEMA.names)


class _Counter:
    """Hands batches on, and counts their messages."""

    def __init__(self, batches: Batches, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._batches, self._total, self._progress = batches, total, progress
        self.count = 0

    def __iter__(self) -> Batches:
        for batch in self._batches:
            yield batch
            self.count += batch.num_rows
            if self._progress is not None:
                self._progress(self.count, self._total)


def _write_file(path: Path, file_format: str, batches: _Counter, force: bool, base64: bool) -> None:
    with _new_file(path, force) as file:
        if file_format == JSONL:
            for batch in batches:
                file.write(json_lines(batch, base64).encode())
        else:
            _write_parquet(file, batches)


@contextmanager
def _new_file(path: Path, force: bool) -> "Iterator[IO[bytes]]":
    """Give a file that gets its name when it is whole and durable; with an error there is none."""
    if not path.parent.is_dir():
        raise CommandFailed(f"{path.parent}: no such directory")
    made = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with made.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force:
            _check_free(path)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_parquet(file: "IO[bytes]", batches: _Counter) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from storage_core.schema import FILE_SCHEMA

    gathered: list[pa.RecordBatch] = []
    with ParquetWriter(file, FILE_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            gathered.append(batch)
            if sum(batch.nbytes for batch in gathered) >= ROW_GROUP_SIZE:
                writer.write_table(pa.Table.from_batches(gathered, FILE_SCHEMA))
                gathered = []
        if gathered:
            writer.write_table(pa.Table.from_batches(gathered, FILE_SCHEMA))
