"""`jstream backup` and `jstream restore`: a store or its streams to a directory, and back."""

from typing import Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage
from spark_stream.cli.options import (
    ForceOption,
    JsonOption,
    StoreOption,
    TakeOverOption,
    ask_consent,
    open_store,
    refuse_twice,
    require_consent_possible,
    resolve_store,
    warn_of_overlaps,
)
from spark_stream.cli.storage_options import storage_options
from spark_stream.cli.verify import progress_bar
from spark_stream.look.terminal import counted, print_json, print_table, say, show_size

_COLUMNS = ("name", "messages", "message bytes", "first", "last", "blocks", "replicas")
BackupArgument = Annotated[str, typer.Argument(metavar="DIR", help="Directory of the backup.")]


def backup(
    directory: BackupArgument,
    streams: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="A stream to back up; may be given again.")
    ] = None,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Make a backup in a new or empty directory; the same command resumes one.

    The store may be written meanwhile: what comes after the beginning is not in it.
    """
    with open_store(store, read_only=True) as opened, progress_bar("blocks") as progress:
        report = opened.backup(directory, streams or None, progress)
    if json:
        print_json(report)
        return
    _print_streams(report)
    copied = f"{counted(report['blocks'], 'block')}, {report['copied']} copied now"
    say(f"backed up to {directory}, as of entry {report['index']} of the metadata log: {copied}")


def restore(
    context: typer.Context,
    directory: BackupArgument,
    volumes: Annotated[
        list[str] | None,
        typer.Argument(metavar="VOLUME", help="One, three or five new or empty directories."),
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="A stream to restore into --store; may be given again."),
    ] = None,
    as_names: Annotated[
        list[str] | None,
        typer.Option("--as", metavar="NAME", help="What to call it there; one for each --stream, in their order."),
    ] = None,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: Annotated[
        str | None, typer.Option("--store", metavar="VOLUME[,VOLUME]", help="With --stream: the store to restore into.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a store of a backup on new VOLUMEs; or, with --stream, restore streams into the store that --store names."""
    paths = [path for volume in volumes or [] for path in volume.split(",")]
    _check_words(paths, streams or [], as_names or [], store, take_over)
    require_consent_possible("restore", force)
    if streams:
        names = dict(zip(streams, as_names or streams, strict=True))
        report = _restore_streams(directory, names, resolve_store(context, store), force, take_over)
    else:
        report = _restore_store(directory, paths, force)
    if json:
        print_json(report)
        return
    _print_streams(report)
    for stream in report["streams"]:
        if stream["num_replicas"] != stream["num_replicas_before"]:
            replicas = f"{stream['num_replicas']} of the {stream['num_replicas_before']} replicas it had"
            say(f"stream {stream['name']} has {replicas}: the store has no more volumes")
    if report.get("finished"):
        say("a restore that was interrupted has been finished")
    say(f"restored from {directory}, made at {report['time']}")


def _check_words(
    volumes: list[str], streams: list[str], as_names: list[str], store: str | None, take_over: bool
) -> None:
    """Raise WrongUsage for words that contradict each other."""
    if streams and volumes:
        raise WrongUsage("--stream restores into a store that there is: name it by --store, and no VOLUME")
    if not streams and not volumes:
        raise WrongUsage("restore onto what? VOLUMEs for a store, or --stream NAME and --store VOLUME for a stream")
    if not streams and (as_names or store or take_over):
        raise WrongUsage("--as, --store and --take-over are for --stream; a whole store is restored onto VOLUMEs")
    if as_names and len(as_names) != len(streams):
        raise WrongUsage(f"--as: {counted(len(as_names), 'name')} for {counted(len(streams), 'stream')}")
    refuse_twice(streams)


def _restore_store(directory: str, volumes: list[str], force: bool) -> dict[str, Any]:
    from storage_core.store.environment import reaching
    from storage_core.store.ingest.backup import describe, open_backup
    from storage_core.store.ingest.restore import restore_store

    env = reaching(storage_options())
    described = describe(open_backup(directory, env))
    size = f"{counted(len(described['streams']), 'stream')} in {counted(described['blocks'], 'block')}"
    ask_consent(
        f"Restore store {described['store_id']} as of {described['time']} ({size}) onto {', '.join(volumes)}?", force
    )
    with progress_bar("blocks") as progress:
        return restore_store(directory, volumes, progress, env).report


def _restore_streams(
    directory: str, names: dict[str, str], volumes: str, force: bool, take_over: bool
) -> dict[str, Any]:
    from storage_core.store.environment import REAL
    from storage_core.store.ingest.backup import open_backup, selected

    messages = sum(stream.message_count for stream in selected(open_backup(directory, REAL), list(names)))
    shown = ", ".join(old if old == new else f"{old} as {new}" for old, new in names.items())
    ask_consent(f"Restore {shown} ({counted(messages, 'message')}) into {volumes}?", force)
    with open_store(volumes, take_over=take_over) as opened, progress_bar("blocks") as progress:
        report = opened.restore_streams(directory, list(names), names, progress)
        warn_of_overlaps(opened, names.values())
        return report


def _print_streams(report: dict[str, Any]) -> None:
    rows = [
        [
            stream["name"], stream["messages"], show_size(stream["bytes"]), stream["first_seq"],
            stream["last_seq"], stream["blocks"], stream["num_replicas"],
        ]
        for stream in report["streams"]
    ]  # fmt: skip
    print_table(_COLUMNS, rows, "Streams")
