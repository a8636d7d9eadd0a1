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
from spark_stream.cli.quantities import parse_pairs, read_value
from spark_stream.cli.spelling import count, duration, size, spells, texts
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import print_facts, print_json, print_table, say, show_size
from spark_stream.plans import show_value

LIMITS = ("max_streams", "max_consumers", "max_msgs", "open_files_max")  # settings that are plain numbers

app = typer.Typer(cls=VerbGroup, help="Create a store, and show what is in it.")


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


def _stream_defaults(typed: list[str]) -> dict[str, dict[str, Any]]:
    """Return the keys of new streams, by pattern of names."""
    defaults: dict[str, dict[str, Any]] = {}
    for text in typed:
        pattern, _, pair = text.partition(":")
        ((key, value),) = parse_pairs([pair], "=", f"--stream-default {pattern}:")
        defaults.setdefault(pattern, {})[key] = read_value(value)
    return defaults


SETTINGS = {
    "deleted_block_retention": duration("--deleted-block-retention", "How long removed messages stay on disk: 24h."),
    "snapshot_every": count("--snapshot-every", "Changes between two snapshots of metadata."),
    "max_streams": count("--max-streams", "Streams at most; -1 for no limit."),
    "max_consumers": count("--max-consumers", "Durable consumers of all streams at most."),
    "max_msgs": count("--max-msgs", "Messages of all streams at most."),
    "max_bytes": size("--max-bytes", "Bytes of all streams' messages at most: 1TB."),
    "open_files_max": count("--open-files-max", "Files of blocks that a task has open at once."),
    "stream_defaults": texts(
        "--stream-default",
        "NAMES:KEY=VALUE",
        "A key of streams made from now on: 'LOGS*:max_age=7d'; '*' is every name. May be repeated.",
        _stream_defaults,
    ),
}


@app.command("create")
@spells(SETTINGS)
def create(
    volumes: Annotated[
        list[str],
        typer.Argument(metavar="VOLUME", help="Directories, one per disk, or s3://bucket/prefix."),
    ],
    spelled: dict[str, Any],
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

    if permissions is not None:
        spelled["permissions"] = permissions
    paths = [path for volume in volumes for path in volume.split(",")]
    with Store.create(paths, storage_options=storage_options(), **spelled) as store:
        described = store.info()
    say("created the store")
    _print_info(described, json)


@app.command("edit")
@spells(SETTINGS)
def edit(
    spelled: dict[str, Any],
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
    if not spelled and not no_stream_defaults:
        raise WrongUsage("nothing to change: pass an option that names a new value")
    with open_store(store, take_over=take_over) as opened:
        if "stream_defaults" in spelled or no_stream_defaults:
            kept = {} if no_stream_defaults else opened.view().state.settings.to_json()["stream_defaults"]
            new = spelled.get("stream_defaults", {})
            spelled["stream_defaults"] = {
                pattern: {**kept.get(pattern, {}), **new.get(pattern, {})} for pattern in {**kept, **new}
            }
        opened.edit(**spelled)
        described = opened.info()
    _print_info(described, json)


@app.command("info")
def info(store: StoreOption = "", json: JsonOption = False) -> None:
    """Show the store: its settings, size and volumes."""
    with open_store(store, read_only=True) as opened:
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
