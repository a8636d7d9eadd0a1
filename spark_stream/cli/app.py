"""The root command: global options, and the list of all commands."""

import os
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import ClosedStdout, RootGroup, VerbGroup
from spark_stream.cli.front_options import LOCK_TIMEOUT, STORAGE_OPTION
from spark_stream.cli.lock_timeout import keep_lock_timeout
from spark_stream.cli.options import GroupStoreOption, remember_store
from spark_stream.cli.storage_options import keep_storage_options
from spark_stream.look.terminal import Warnings, print_lines


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them, that is imported when it is used."""

    name: str
    place: str  # module of this package, and the function or Typer in it
    help: str  # its line in the list of all commands
    beside: str = ""  # another module, which adds commands to the group

    def load(self) -> Any:
        """Return it as the parser of the command line wants it."""
        module, _, attribute = self.place.partition(":")
        if self.beside:
            import_module(f"{__package__}.{self.beside}")
        target: typer.Typer | Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), attribute)
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        if isinstance(target, typer.Typer):
            empty = copy(target)
            empty.registered_commands = []
            alone.add_typer(empty, name=self.name, help=self.help)
            root: Any = typer.main.get_command(alone)
            group: VerbGroup = root.commands[self.name]
            group.take_verbs(target.registered_commands)
            return group
        alone.command(self.name)(target)
        return typer.main.get_command(alone)


# In the order of the help: what a newcomer needs comes first.
PANELS = {
    "Stores, streams, consumers": [
        Command("store", "store:app", "Create a store, and show what is in it."),
        Command("stream", "stream:app", "Create, configure, read and purge streams.", "messages"),
        Command(
            "consumer", "consumer:app", "Durable consumers: create them, see their lag, move them.", "consumer_moves"
        ),
    ],
    "Messages": [
        Command("pub", "publish:publish", "Store messages."),
        Command("sub", "follow:subscribe", "Print messages as they arrive."),
        Command("export", "export:export", "Write messages to a file: Parquet, or JSON lines."),
    ],
    "Volumes and their copies": [
        Command("ui", "ui:ui", "Serve pages that show the store in a browser."),
        Command("verify", "verify:verify", "Read and check every byte of every copy."),
        Command("scrub", "maintenance:scrub", "Check the next part of all copies."),
        Command("repair", "maintenance:repair", "Repair volumes and copies from good copies."),
        Command("maintain", "maintenance:maintain", "Do the maintenance that is due."),
        Command("check", "check:check", "Report problems for a monitoring system, worst first."),
        Command("events", "events:events", "Show what happened to the store and its volumes."),
        Command("metrics", "metrics:metrics", "Print metrics for Prometheus."),
        Command("cluster", "cluster:app", "Show, add, remove and replace volumes."),
        Command("drift", "drift:app", "Compare the copies of streams, message by message."),
        Command("block", "block:app", "Inspect block files."),
    ],
    "Backups, and stores of other servers": [
        Command("backup", "backup:backup", "Make a backup, or resume one that was interrupted."),
        Command("restore", "backup:restore", "Restore a store, or single streams, from a backup."),
        Command(
            "import", "import_:app", "Import files of messages, and streams of another server's store.", "import_files"
        ),
        Command("mirror", "mirror:mirror", "Mirror streams of running NATS servers."),
    ],
    "Pipelines": [
        Command("init", "init:init", "Write templates of streams, pipelines and Spark's settings."),
        Command("apply", "apply:apply", "Make streams and consumers match a file."),
        Command("etl", "etl:app", "Run pipelines: a stream into a table or another stream."),
    ],
    "This machine and this shell": [
        Command("doctor", "doctor:doctor", "Check that everything jstream needs is installed."),
        Command("demo", "demo:demo", "Create a sample folder with a broken NATS cluster."),
        Command("context", "context:app", "Names for stores."),
        Command("completion", "completion:completion", "Complete words in bash, zsh or fish."),
    ],
}
COMMANDS = {command.name: command for panel in PANELS.values() for command in panel}


class Root(RootGroup):
    """All commands; each is imported when it is used, since most of a start would be imports of others."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.commands[cmd_name] = COMMANDS[cmd_name].load()
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name.ljust(width), command.help) for command in commands])


app = typer.Typer(
    name="jstream",
    cls=Root,
    help="A replicated stream store that Spark reads and writes.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich's help costs as much as all else of a start, and squeezes options
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the versions of what is installed, and stop: a report of a fault needs them."""
    if not wanted:
        return
    from spark_stream.cli.versions import versions

    print_lines(f"{name} {version}" for name, version in versions())
    raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    store: GroupStoreOption = None,
    storage_option: Annotated[
        list[str],
        typer.Option(
            STORAGE_OPTION,
            metavar="KEY=VALUE",
            help="Setting of the volumes' object store, as aws_region=eu-central-1; may be given anywhere.",
        ),
    ] = [],  # noqa: B006
    lock_timeout: Annotated[
        str | None,
        typer.Option(
            LOCK_TIMEOUT,
            metavar="DURATION",
            help="How long to wait for another process that holds the store; may be given anywhere. Default: 60s.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=print_version,
            is_eager=True,
            help="Print versions: jstream, Spark, Java, extras.",
        ),
    ] = False,
) -> None:
    Warnings.listen()
    remember_store(ctx, store)
    keep_storage_options(storage_option)
    keep_lock_timeout(lock_timeout)


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
