"""`jstream ui`: pages over the store in a browser."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.named_stores import load_contexts
from spark_stream.cli.options import StoreOption
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import say

PORT = 8222
NICENESS = 5  # who reads and writes the store has the processor first


def ui(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="ADDRESS", help="Serve on this address; another than loopback needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Serve on this port; 0 takes a free one.")
    ] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Ask for the token in this file, one line of 16 letters or more."
        ),
    ] = None,
    host_names: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="A name that a proxy in front has; may be repeated."),
    ] = None,
    pipelines: Annotated[
        list[Path] | None,
        typer.Option("--pipeline", metavar="FILE", help="Show this pipeline, too; may be repeated."),
    ] = None,
    rescues: Annotated[
        list[Path] | None,
        typer.Option("--rescue", metavar="DIR", help="Compare what a node of a NATS server left there; repeatable."),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes", help="Let pages repair, maintain, edit streams, publish, purge, replay, reset consumers."
        ),
    ] = False,
    contexts: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="NAME", help="Serve this context's store, too, below /@NAME; repeatable."),
    ] = None,
    store: StoreOption = "",
) -> None:
    """Serve pages over the store: its health, messages, copies, consumers, volumes and events.

    Without --allow-changes it changes nothing, and takes no lock. It is of most use when the store is broken. TLS is
    the business of a proxy in front.
    """
    from spark_stream.ui.doors import TOKEN_SIZE_MIN
    from spark_stream.ui.server import bind, is_loopback, read_token, serve
    from spark_stream.ui.site import Site

    token = read_token(token_file, TOKEN_SIZE_MIN) if token_file is not None else None
    if not is_loopback(listen) and token is None:
        raise WrongUsage(
            f"--listen {listen} is not loopback: everyone who can reach it could read the store; pass --token-file"
        )
    named = load_contexts()
    others = {name: named.volumes(name) for name in contexts or ()}
    try:
        listener = bind(listen, port)
    except OSError as error:
        raise CommandFailed(f"{error.strerror}; --port takes another one, 0 a free one") from error
    with listener:
        site = Site(
            [path.strip() for path in store.split(",")],
            storage_options=storage_options(),
            allows_changes=allow_changes,
            pipelines=[file.absolute() for file in pipelines or ()],
            rescues=[directory.absolute() for directory in rescues or ()],
        )
        beside = {
            name: Site(volumes.split(","), storage_options=storage_options(), allows_changes=allow_changes)
            for name, volumes in others.items()
        }
        address, taken = listener.getsockname()[:2]
        place = f"[{address}]" if ":" in address else address
        say(f"the store's pages are at http://{place}:{taken}/ until Ctrl-C")
        if not is_loopback(listen):
            say("this is plain HTTP: put a proxy with TLS in front of it where others could listen")
        os.nice(NICENESS)
        serve(site, listener, token, tuple(host_names or ()), beside)
