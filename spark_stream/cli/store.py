"""`jstream store`: make a store, and say what one is."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import VerbGroup, WrongUsage
from spark_stream.cli.options import (
    GroupStoreOption,
    JsonOption,
    StoreOption,
    TakeOverOption,
    open_store,
    remember_store,
)
from spark_stream.cli.quantities import (
    parse_duration_option,
    parse_pairs,
    parse_size,
    read_value,
    show_value,
)
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import print_facts, print_json, print_table, say, show_size

LIMITS = ("max_streams", "max_consumers", "max_msgs", "open_files_max")  # settings that are plain numbers

app = typer.Typer(cls=VerbGroup, help="Create a store, and show what is in it.")


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


RetentionOption = Annotated[
    str | None,
    typer.Option("--deleted-block-retention", metavar="DURATION", help="How long removed messages stay on disk: 24h."),
]
SnapshotOption = Annotated[
    int | None, typer.Option("--snapshot-every", metavar="N", help="Changes between two snapshots of metadata.")
]
MaxStreamsOption = Annotated[
    int | None, typer.Option("--max-streams", metavar="N", help="Streams at most; -1 for no limit.")
]
MaxConsumersOption = Annotated[
    int | None, typer.Option("--max-consumers", metavar="N", help="Durable consumers of all streams at most.")
]
MaxMessagesOption = Annotated[
    int | None, typer.Option("--max-msgs", metavar="N", help="Messages of all streams at most.")
]
MaxBytesOption = Annotated[
    str | None, typer.Option("--max-bytes", metavar="SIZE", help="Bytes of all streams' messages at most: 1TB.")
]
OpenFilesOption = Annotated[
    int | None, typer.Option("--open-files-max", metavar="N", help="Files of blocks that a task has open at once.")
]
DefaultsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stream-default",
        metavar="NAMES:KEY=VALUE",
        help="A key of streams made from now on: 'LOGS*:max_age=7d'; '*' is every name. May be repeated.",
    ),
]


@app.command("create")
def create(
    context: typer.Context,
    volumes: Annotated[
        list[str],
        typer.Argument(metavar="VOLUME", help="Directories, one per disk, or s3://bucket/prefix."),
    ],
    deleted_block_retention: RetentionOption = None,
    snapshot_every: SnapshotOption = None,
    max_streams: MaxStreamsOption = None,
    max_consumers: MaxConsumersOption = None,
    max_msgs: MaxMessagesOption = None,
    max_bytes: MaxBytesOption = None,
    open_files_max: OpenFilesOption = None,
    stream_default: DefaultsOption = None,
    permissions: Annotated[
        str | None,
        typer.Option(
            "--permissions",
            metavar="private|group",
            help="Who may use its files: you alone (the default), or the group of the directories as well.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Create a store on these volumes: directories that are empty or do not exist yet."""
    from storage_core import Store

    settings = _settings(context.params)
    if permissions is not None:
        settings["permissions"] = permissions
    paths = [path for volume in volumes for path in volume.split(",")]
    with Store.create(paths, storage_options=storage_options(), **settings) as store:
        described = store.info()
    say("created the store")
    _print_info(described, json)


@app.command("edit")
def edit(
    context: typer.Context,
    deleted_block_retention: RetentionOption = None,
    snapshot_every: SnapshotOption = None,
    max_streams: MaxStreamsOption = None,
    max_consumers: MaxConsumersOption = None,
    max_msgs: MaxMessagesOption = None,
    max_bytes: MaxBytesOption = None,
    open_files_max: OpenFilesOption = None,
    stream_default: DefaultsOption = None,
    no_stream_defaults: Annotated[
        bool, typer.Option("--no-stream-defaults", help="Drop the defaults that there are first.")
    ] = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Change settings of the store: those that are given, and no others.

    Limits lower than what there is remove nothing: nothing is added before there is room.
    """
    settings = _settings(context.params)
    if not settings and not no_stream_defaults:
        raise WrongUsage("nothing to change: pass an option that names a new value")
    with open_store(store, take_over=take_over) as opened:
        if "stream_defaults" in settings or no_stream_defaults:
            kept = {} if no_stream_defaults else opened.state().settings.to_json()["stream_defaults"]
            new = settings.get("stream_defaults", {})
            settings["stream_defaults"] = {
                pattern: {**kept.get(pattern, {}), **new.get(pattern, {})} for pattern in {**kept, **new}
            }
        opened.edit(**settings)
        described = opened.info()
    _print_info(described, json)


def _settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command's parameters ask for."""
    settings = {
        key: parameters[key]
        for key in ("deleted_block_retention", "snapshot_every", "max_bytes", *LIMITS)
        if parameters[key] is not None
    }
    if "deleted_block_retention" in settings:
        settings["deleted_block_retention"] = parse_duration_option(
            settings["deleted_block_retention"], "--deleted-block-retention"
        )
    if "max_bytes" in settings:
        settings["max_bytes"] = parse_size(settings["max_bytes"], "--max-bytes")
    for text in parameters["stream_default"] or ():
        pattern, _, pair = text.partition(":")
        ((key, value),) = parse_pairs([pair], "=", f"--stream-default {pattern}:")
        defaults = settings.setdefault("stream_defaults", {})
        defaults.setdefault(pattern, {})[key] = read_value(value)
    return settings


@app.command("info")
def info(store: StoreOption = "", json: JsonOption = False) -> None:
    """Show the store: its settings, size and volumes."""
    with open_store(store) as opened:
        described = opened.info()
    _print_info(described, json)


def _print_info(info: dict[str, Any], json: bool) -> None:
    if json:
        print_json(info)
        return

    from storage_core.paths import labels_of
    from storage_core.quantities import format_duration

    facts = [
        ("created", info["created"]),
        ("written from", info["host"]),
        ("streams", info["streams"]),
        ("messages", info["messages"]),
        ("message bytes", show_size(info["bytes"])),
        ("deleted block retention", format_duration(info["settings"]["deleted_block_retention"])),
        ("snapshot every", f"{info['settings']['snapshot_every']} changes"),
        ("permissions", info["settings"]["permissions"]),
        *_limit_facts(info["settings"]),
    ]
    print_facts(f"Store {info['store_id']}", facts)
    paths = [volume["path"] for volume in info["volumes"]]
    print_table(("volume", "path"), list(zip(labels_of(paths), paths, strict=True)), "Volumes")


def _limit_facts(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the store's settings limit, and what they say of new streams."""
    for key in (*LIMITS, "max_bytes"):
        if settings[key] >= 0:
            yield key.replace("_", " "), show_size(settings[key]) if key == "max_bytes" else settings[key]
    for pattern, keys in settings["stream_defaults"].items():
        yield f"streams {pattern}", ", ".join(f"{key} {show_value(key, value)}" for key, value in keys.items())
