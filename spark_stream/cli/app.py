"""The root command: global options, and the list of all commands."""

import os
import sys
from typing import Annotated

import typer

from spark_stream.cli import (
    backup,
    block,
    cluster,
    consumer,
    drift,
    etl,
    events,
    follow,
    publish,
    store,
    stream,
    upkeep,
    verify,
)
from spark_stream.cli import consumer_moves as consumer_moves  # its commands belong to `consumer`
from spark_stream.cli import import_ as import_
from spark_stream.cli import messages as messages  # its commands belong to `stream`
from spark_stream.cli.apply import apply
from spark_stream.cli.export import export
from spark_stream.cli.failures import RootGroup
from spark_stream.cli.init import init
from spark_stream.cli.metrics import metrics
from spark_stream.cli.options import GroupStoreOption, remember_store
from spark_stream.cli.render import Warnings, write

app = typer.Typer(
    name="jstream",
    cls=RootGroup,
    help="A replicated stream store that Spark reads and writes.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the version of the installed distribution and stop."""
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("pyspark-jstream")
    except PackageNotFoundError:
        found = "(not installed: run from its source)"
    write(f"jstream {found}\n")
    raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    store: GroupStoreOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    Warnings.listen()
    remember_store(context, store)


app.add_typer(store.app, name="store")
app.add_typer(stream.app, name="stream")
app.add_typer(consumer.app, name="consumer")
app.add_typer(cluster.app, name="cluster")
app.add_typer(block.app, name="block")
app.add_typer(etl.app, name="etl")
app.add_typer(drift.app, name="drift")
app.add_typer(import_.app, name="import")
app.command("pub")(publish.publish)
app.command("sub")(follow.subscribe)
app.command("verify")(verify.verify)
app.command("scrub")(upkeep.scrub)
app.command("repair")(upkeep.repair)
app.command("maintain")(upkeep.maintain)
app.command("metrics")(metrics)
app.command("events")(events.events)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("export")(export)
app.command("apply")(apply)
app.command("init")(init)


def main() -> None:
    """Run the command that the words of the process name, and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us, as `jstream ... 2>&-` does
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    app()
