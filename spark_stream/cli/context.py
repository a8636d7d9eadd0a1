"""`jstream context`: names for stores, so that a shell need not spell out their volumes."""

import os
import re
from typing import Annotated

import typer

from spark_stream.cli.failures import VerbGroup, WrongUsage
from spark_stream.cli.named_stores import FOLDER_FILE, NAME_MARK, STORE_VARIABLE, default_store, load_contexts
from spark_stream.cli.named_stores import save_contexts as save
from spark_stream.cli.options import JsonOption
from spark_stream.look.terminal import print_json, print_table, say

app = typer.Typer(cls=VerbGroup, help="Names for stores. Commands use the one that is selected, or --store @NAME.")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def complete_context(incomplete: str) -> list[str]:
    """Return the contexts whose names begin so, for the shell."""
    try:
        return [name for name in load_contexts().stores if name.startswith(incomplete)]
    except Exception:  # a shell that completes has no place for an error
        return []


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=complete_context)
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")],
    volumes: Annotated[list[str], typer.Argument(metavar="VOLUME", help="Volumes of the store.")],
    select: Annotated[bool, typer.Option("--select", help="Use it from now on.")] = False,
) -> None:
    """Give a store a name. A context of this name is replaced."""
    if not _NAME.fullmatch(name):
        raise WrongUsage(f"{name!r} is no name for a context; letters, digits, dots, dashes and underscores make one")
    from storage_core.paths import is_in_object_store, volume_path

    paths = [volume_path(path.strip(), "VOLUME") for volume in volumes for path in volume.split(",") if path.strip()]
    if not paths:
        raise WrongUsage(f"context {name}: name at least one volume")
    contexts = load_contexts()
    done = "replaced" if name in contexts.stores else "added"
    contexts.stores[name] = paths
    if select:
        contexts.selected = name
    save(contexts)
    say(
        f"context {name} is selected" if select else f"context {name} was {done}; use it with --store {NAME_MARK}{name}"
    )
    if not any(is_in_object_store(path) or os.path.isdir(path) for path in paths):
        say(f"note: none of its volumes is there yet: {', '.join(paths)}")
    _say_nearer_store(select)


@app.command("select")
def select(name: NameArgument) -> None:
    """Use this store from now on, where nothing else names one."""
    contexts = load_contexts()
    contexts.volumes(name)
    contexts.selected = name
    save(contexts)
    say(f"context {name} is selected")
    _say_nearer_store(True)


@app.command("ls")
def ls(json: JsonOption = False) -> None:
    """List the contexts, and which one is selected."""
    contexts = load_contexts()
    rows = [(name, name == contexts.selected, ",".join(contexts.stores[name])) for name in sorted(contexts.stores)]
    if json:
        print_json([{"name": name, "selected": chosen, "volumes": contexts.stores[name]} for name, chosen, _ in rows])
    else:
        print_table(("name", "selected", "volumes"), rows, "Contexts")


@app.command("rm")
def rm(name: NameArgument) -> None:
    """Forget a name. The store stays as it is."""
    contexts = load_contexts()
    contexts.volumes(name)
    del contexts.stores[name]
    if contexts.selected == name:
        contexts.selected = None
    save(contexts)
    say(f"context {name} was removed; its store stays as it is")


def _say_nearer_store(selected: bool) -> None:
    """Warn where the selected context is not what commands in this shell and folder will use."""
    if not selected:
        return
    contexts = load_contexts()
    assert contexts.selected is not None
    if default_store() != contexts.volumes(contexts.selected):
        source = STORE_VARIABLE if os.environ.get(STORE_VARIABLE) else FOLDER_FILE
        say(f"warning: {source} names another store here, and counts before it")
