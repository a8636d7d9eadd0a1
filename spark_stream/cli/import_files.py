"""`jstream import jsonl|csv|parquet`: the messages of a file into a stream."""

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed
from spark_stream.cli.import_ import app
from spark_stream.cli.options import JsonOption, StoreOption, TakeOverOption, open_store
from spark_stream.cli.verify import progress_bar
from spark_stream.look.terminal import counted, print_json, say

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file; each is stored once.")]
IntoOption = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="The stream. Default: the file's name without its suffix."),
]
SubjectOption = Annotated[
    str | None, typer.Option("--subject", metavar="SUBJECT", help="Subject of messages that have none.")
]
SkipBadOption = Annotated[
    str | None,
    typer.Option("--skip-bad", metavar="STREAM", help="Put bad rows into this stream, with the reason."),
]
NewSequencesOption = Annotated[
    bool, typer.Option("--new-sequences", help="Give the messages new sequences, even if the file has sequences.")
]


def _add_command(kind: str, help: str) -> None:
    """Add `jstream import KIND`."""

    @app.command(kind, help=help)
    def command(
        file: FileArgument,
        stream: IntoOption = None,
        subject: SubjectOption = None,
        skip_bad: SkipBadOption = None,
        new_sequences: NewSequencesOption = False,
        take_over: TakeOverOption = False,
        store: StoreOption = "",
        json: JsonOption = False,
    ) -> None:
        _import(kind, file, stream, subject, skip_bad, new_sequences, take_over, store, json)


_add_command(
    "jsonl",
    """Import messages as `export` writes them to JSON lines: all of a file or nothing, and each file once.

    Only the key data has to be there. A bad line is named by its number, and nothing is stored.
    """,
)
_add_command(
    "csv",
    """Import messages of a CSV file, whose first row names columns: all of a file or nothing, and each file once.

    Columns are data, and if you like subject, seq, time, headers (in JSON) and msg_id.
    """,
)
_add_command(
    "parquet",
    """Import messages of a Parquet file with the columns that Spark writes: all or nothing, and each file once.""",
)


def _import(
    kind: str,
    path: Path,
    stream: str | None,
    subject: str | None,
    dead_letters: str | None,
    new_sequences: bool,
    take_over: bool,
    store: str,
    json: bool,
) -> None:
    from storage_core.store.ingest.message_files import import_file

    name = stream or path.name.removesuffix(path.suffix)
    if path.exists() and not path.is_file():
        raise CommandFailed(f"{path} is no regular file: it is read twice, first to know whether it was stored before")
    with path.open("rb") as file, open_store(store, take_over=take_over) as opened:
        with progress_bar("rows" if kind == "parquet" else "bytes") as progress:
            try:
                got = import_file(opened, name, file, kind, dead_letters, subject, new_sequences, progress)
            except ValueError as error:
                raise CommandFailed(str(error)) from error
    if json:
        print_json(
            {
                "stream": name,
                "format": kind,
                "path": str(path),
                "first": got.sequences.start,
                "end": got.sequences.stop,
                "messages": got.stored,
                "duplicates": got.duplicates,
                "skipped": got.skipped,
                "already": got.already,
            }
        )
    if got.already:
        say(f"{path} was imported before: nothing was stored now")
        return
    duplicates = f", {counted(got.duplicates, 'duplicate')}" if got.duplicates else ""
    skipped = f", {counted(got.skipped, 'bad row')} into stream {dead_letters}" if got.skipped else ""
    say(f"imported {counted(got.stored, 'message')} of {path} into stream {name}{duplicates}{skipped}")
