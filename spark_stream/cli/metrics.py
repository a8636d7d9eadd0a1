"""`jstream metrics`: figures of a store for Prometheus."""

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.options import StoreOption, open_store
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import say, write


def metrics(
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", metavar="FILE", help="Write them into a file, whole or not at all, for cron jobs."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Serve them on this port, until interrupted.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="With --port: address to bind.", show_default="127.0.0.1")
    ] = None,
    store: StoreOption = "",
) -> None:
    """Print Prometheus metrics of the store: sequences, sizes, consumer lag, states of the copies."""
    if textfile is not None and port is not None:
        raise WrongUsage("--textfile writes once and ends, --port serves until interrupted: give one of them")
    if address is not None and port is None:
        raise WrongUsage("--address is for --port")
    try:
        from spark_stream.metrics import MetricsServer, StoreCollector, exposition, write_textfile
    except ModuleNotFoundError as error:
        raise CommandFailed(str(error)) from error
    with open_store(store, read_only=True) as opened:
        collectors = [StoreCollector([opened.paths], storage_options())]
    if textfile is not None:
        check_textfile(textfile, "--textfile")
        write_textfile(collectors, textfile)
    elif port is None:
        write(exposition(collectors))
    else:
        with MetricsServer(collectors, port, address or "127.0.0.1") as server:
            say(f"metrics are served at {server.url}")
            server.wait()


def check_textfile(textfile: Path, option: str) -> None:
    """Raise CommandFailed if metrics cannot be written into this file, or the package for it is missing."""
    try:
        import spark_stream.metrics  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandFailed(str(error)) from error
    if textfile.exists() and not textfile.is_file():
        raise CommandFailed(f"{option} {textfile} is no regular file, and stays as it is")
    if not textfile.absolute().parent.is_dir():
        raise CommandFailed(f"{option} {textfile}: {textfile.absolute().parent} is no directory")
