"""`jstream store`: make a store, and say what one is."""

from typing import Annotated, Any

import typer

from spark_stream.cli.failures import VerbGroup
from spark_stream.cli.options import GroupStoreOption, JsonOption, StoreOption, open_store, remember_store
from spark_stream.cli.quantities import parse_duration_option, show_size
from spark_stream.cli.render import print_facts, print_json, print_table, say

app = typer.Typer(cls=VerbGroup, help="Create a store, and show what is in it.")


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("create")
def create(
    volumes: Annotated[list[str], typer.Argument(metavar="VOLUME", help="Directories, one per disk.")],
    deleted_block_retention: Annotated[
        str | None,
        typer.Option(
            "--deleted-block-retention", metavar="DURATION", help="How long removed messages stay on disk: 24h."
        ),
    ] = None,
    snapshot_every: Annotated[
        int | None, typer.Option("--snapshot-every", metavar="N", help="Changes between two snapshots of metadata.")
    ] = None,
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

    settings: dict[str, Any] = {}
    if deleted_block_retention is not None:
        settings["deleted_block_retention"] = parse_duration_option(
            deleted_block_retention, "--deleted-block-retention"
        )
    if snapshot_every is not None:
        settings["snapshot_every"] = snapshot_every
    if permissions is not None:
        settings["permissions"] = permissions
    with Store.create([path for volume in volumes for path in volume.split(",")], **settings) as store:
        found = store.info()
    say("created the store")
    _print_info(found, json)


@app.command("info")
def info(store: StoreOption = "", json: JsonOption = False) -> None:
    """Show the store: its settings, size and volumes."""
    with open_store(store) as opened:
        found = opened.info()
    _print_info(found, json)


def _print_info(info: dict[str, Any], json: bool) -> None:
    if json:
        print_json(info)
        return

    from storage_core.quantities import format_duration

    facts = [
        ("created", info["created"]),
        ("written from", info["host"]),
        ("streams", info["streams"]),
        ("messages", info["messages"]),
        ("size", show_size(info["bytes"])),
        ("deleted block retention", format_duration(info["settings"]["deleted_block_retention"])),
        ("snapshot every", f"{info['settings']['snapshot_every']} changes"),
        ("permissions", info["settings"]["permissions"]),
    ]
    print_facts(f"Store {info['store_id']}", facts)
    columns = ("name", "instance", "path")
    print_table(columns, [[volume[column] for column in columns] for volume in info["volumes"]], "Volumes")
