"""The root command: global options, and the list of all commands."""

import os
import sys
from typing import Annotated, Any

import typer

from spark_stream.cli import (
    backup,
    block,
    cluster,
    consumer,
    context,
    drift,
    etl,
    events,
    follow,
    maintenance,
    publish,
    store,
    stream,
    verify,
)
from spark_stream.cli import consumer_moves as consumer_moves  # its commands belong to `consumer`
from spark_stream.cli import import_ as import_
from spark_stream.cli import messages as messages  # its commands belong to `stream`
from spark_stream.cli.apply import apply
from spark_stream.cli.completion import completion
from spark_stream.cli.demo import demo
from spark_stream.cli.doctor import doctor
from spark_stream.cli.export import export
from spark_stream.cli.failures import ClosedStdout, RootGroup
from spark_stream.cli.init import init
from spark_stream.cli.metrics import metrics
from spark_stream.cli.options import GroupStoreOption, remember_store
from spark_stream.cli.render import Warnings, write

FIRST = ("store", "stream", "consumer")  # in the help; what follows is in the order of the lines below


class Root(RootGroup):
    """All commands, those first that a newcomer needs first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*FIRST, *(name for name in super().list_commands(ctx) if name not in FIRST)]


app = typer.Typer(
    name="jstream",
    cls=Root,
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
    ctx: typer.Context,
    store: GroupStoreOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    Warnings.listen()
    remember_store(ctx, store)


MESSAGES, STREAMS = "Messages", "Stores, streams, consumers"
COPIES, ELSEWHERE, PIPELINES = "Volumes and their copies", "Backups, and stores of other servers", "Pipelines"
SHELL = "Making it yours"

app.add_typer(store.app, name="store", rich_help_panel=STREAMS)
app.add_typer(stream.app, name="stream", rich_help_panel=STREAMS)
app.add_typer(consumer.app, name="consumer", rich_help_panel=STREAMS)
app.command("pub", rich_help_panel=MESSAGES)(publish.publish)
app.command("sub", rich_help_panel=MESSAGES)(follow.subscribe)
app.command("export", rich_help_panel=MESSAGES)(export)
app.add_typer(cluster.app, name="cluster", rich_help_panel=COPIES)
app.command("verify", rich_help_panel=COPIES)(verify.verify)
app.command("scrub", rich_help_panel=COPIES)(maintenance.scrub)
app.command("repair", rich_help_panel=COPIES)(maintenance.repair)
app.command("maintain", rich_help_panel=COPIES)(maintenance.maintain)
app.add_typer(drift.app, name="drift", rich_help_panel=COPIES)
app.command("events", rich_help_panel=COPIES)(events.events)
app.command("metrics", rich_help_panel=COPIES)(metrics)
app.add_typer(block.app, name="block", rich_help_panel=COPIES)
app.command("backup", rich_help_panel=ELSEWHERE)(backup.backup)
app.command("restore", rich_help_panel=ELSEWHERE)(backup.restore)
app.add_typer(import_.app, name="import", rich_help_panel=ELSEWHERE)
app.command("init", rich_help_panel=PIPELINES)(init)
app.command("apply", rich_help_panel=PIPELINES)(apply)
app.add_typer(etl.app, name="etl", rich_help_panel=PIPELINES)
app.add_typer(context.app, name="context", rich_help_panel=SHELL)
app.command("completion", rich_help_panel=SHELL)(completion)
app.command("demo", rich_help_panel=SHELL)(demo)
app.command("doctor", rich_help_panel=SHELL)(doctor)


def main() -> None:
    """Run the command that the words of the process name, and exit with its code."""
    # Closed by whoever started us, as `jstream ... 2>&-` does; in this order, so that each gets its own number back.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = ClosedStdout()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    app()
