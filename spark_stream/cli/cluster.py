"""`jstream cluster`: the volumes of a store, what they are like, and which they are."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import CommandFailed, VerbGroup
from spark_stream.cli.options import (
    ForceOption,
    GroupStoreOption,
    JsonOption,
    StoreOption,
    TakeOverOption,
    ask_consent,
    open_store,
    remember_store,
    require_consent_possible,
    volume_labels,
)
from spark_stream.cli.watching import WatchOption, show_repeatedly
from spark_stream.look.terminal import counted, print_facts, print_json, print_table, say, show_size

if TYPE_CHECKING:
    from storage_core import Store

app = typer.Typer(cls=VerbGroup, help="Show, add, remove and replace the volumes of a store.")
volume_app = typer.Typer(cls=VerbGroup, help="Add, remove and replace volumes.")
app.add_typer(volume_app, name="volume")
VolumeArgument = Annotated[
    str,
    typer.Argument(metavar="VOLUME", help="A volume of the store: its path, or its name as tables or JSON show it."),
]
OF_VOLUMES = (  # problems that `cluster info` tells
    "messages_lost", "messages_gone", "messages_away", "not_writable", "volume", "copies_damaged", "copies_behind",
)  # fmt: skip
_NAME_SIZE_MIN = 4  # letters of a volume's name that say which one is meant


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@volume_app.callback()
def volume_group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("info")
def info(watch: WatchOption = None, store: StoreOption = "", json: JsonOption = False) -> None:
    """Show the state of each volume: its metadata, and all blocks on it."""
    show_repeatedly(watch, lambda: _show_info(store, json))


def _show_info(store: str, json: bool) -> None:
    with open_store(store, warns=False, read_only=True) as opened:
        shown = _look(opened)
    _print_info(*shown, json)


@app.command("step-down")
def step_down(take_over: TakeOverOption = False, store: StoreOption = "", json: JsonOption = False) -> None:
    """Start a new term: the next writer reads every volume again. Nothing stops.

    The process that writes leads all volumes; the one that is called the leader may stay the same.
    """
    with open_store(store, take_over=take_over, warns=False) as opened:
        opened.step_down()
        cluster, labels, problems = _look(opened)
    say(f"volume {labels.get(cluster['leader'], cluster['leader'])} leads in term {cluster['term']}")
    _print_info(cluster, labels, problems, json)


@volume_app.command("add")
def add(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="New or empty directories.")],
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Add volumes: two at a time, so that their number stays odd. They vote once they have caught up."""
    with open_store(store, take_over=take_over, warns=False) as opened:
        opened.add_volumes(_split(paths))
        cluster, labels, problems = _look(opened)
    say(f"{counted(len(_split(paths)), 'volume')} added")
    _print_info(cluster, labels, problems, json)


@volume_app.command("remove")
def remove(
    volumes: Annotated[
        list[str],
        typer.Argument(metavar="VOLUME", help="Volumes of the store: paths, or names as tables or JSON show them."),
    ],
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Remove volumes: two at a time, so that their number stays odd. Their files are left where they are."""
    require_consent_possible("cluster volume remove", force)
    with open_store(store, take_over=take_over, warns=False) as opened:
        names = [resolve_volume(opened, volume) for volume in _split(volumes)]
        shown = ", ".join(volume_labels(opened)[name] for name in names)
        ask_consent(f"Remove {counted(len(names), 'volume')} from the store: {shown}?", force)
        opened.remove_volumes(names)
        cluster, labels, problems = _look(opened)
    say(f"{counted(len(names), 'volume')} removed")
    _print_info(cluster, labels, problems, json)


@volume_app.command("replace")
def replace(
    volume: VolumeArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A new or empty directory.")],
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Replace a volume, lost or still there, by a new directory."""
    with open_store(store, take_over=take_over, warns=False) as opened:
        name = resolve_volume(opened, volume)
        label = volume_labels(opened)[name]
        opened.replace_volume(name, path)
        cluster, labels, problems = _look(opened)
    say(f"volume {label} was replaced by {path}")
    _print_info(cluster, labels, problems, json)


def resolve_volume(store: "Store", text: str) -> str:
    """Return the name of the volume that a path, a name or its first letters mean."""
    volumes = store.volumes()
    at = os.path.realpath(os.path.expanduser(text))
    names = [volume.name for volume in volumes if volume.name == text.lower() or os.path.realpath(volume.path) == at]
    if not names:
        names = [name for name, label in volume_labels(store).items() if label == text]
    if not names and len(text) >= _NAME_SIZE_MIN:
        names = [volume.name for volume in volumes if volume.name.startswith(text.lower())]
    if len(names) != 1:
        known = ", ".join(f"{volume.name} ({volume.path})" for volume in volumes)
        problem = f"{text} may be any of {', '.join(names)}" if names else f"no volume {text} in this store"
        raise CommandFailed(f"{problem}; there are {known}")
    return names[0]


def _split(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",")]


def _look(store: "Store") -> tuple[Mapping[str, Any], Mapping[str, str], list[str]]:
    """Return what `cluster info` prints, what people call the volumes, and what is wrong, a sentence per problem."""
    from spark_stream.check import Limits, command_line, problems_of, sentence_of
    from spark_stream.store_scan import scan_of

    scan = scan_of(store)
    problems = []
    for problem in problems_of(scan, Limits()):
        if problem.kind in OF_VOLUMES:
            remedy = f"; run `{command_line(problem)}`" if problem.command else ""
            problems.append(f"{problem.about} {sentence_of(problem)}{remedy}")
    return scan.cluster, scan.labels, problems


def _print_info(info: Mapping[str, Any], labels: Mapping[str, str], problems: Sequence[str], json: bool) -> None:
    if json:
        print_json(info)
    else:
        _print_tables(info, labels)
    for problem in problems:
        say(problem)


def _print_tables(info: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    change = info["change"]
    facts = [
        ("leader", labels.get(info["leader"], info["leader"]) or "none: too few volumes can vote"),
        ("term", info["term"]),
        ("index", info["index"]),
        ("can vote now", f"{info['voting']} of {counted(info['voters'], 'volume')}"),
        ("needed", info["quorum"]),
        ("change in progress", f"{change['kind']} since {change['started']}" if change else None),
    ]
    print_facts(f"Store {info['name']}", [*facts, ("blocks to be freed", _freed(info["pending_deletes"]))])
    columns = (
        "volume", "state", "role", "lag", "blocks", "on disk", "to be freed", "damaged blocks", "last scrub", "path",
    )  # fmt: skip
    print_table(columns, [[labels.get(volume["name"]), *_row(volume)] for volume in info["volumes"]], "Volumes")


def _freed(deletes: dict[str, Any]) -> str:
    if not deletes["blocks"]:
        return "none"
    first, last = deletes["freed_from"], deletes["freed_by"]
    return f"{deletes['blocks']}, by maintenance from {first} on" + (f", all from {last} on" if last != first else "")


def _row(volume: dict[str, Any]) -> list[Any]:
    role = "learner" if volume["learner"] else "retired" if volume["retired"] else "voter"
    return [
        volume["state"],
        role,
        volume["lag"],
        volume["blocks"],
        show_size(sum(volume["disk_bytes"].values())),
        show_size(volume["disk_bytes"]["pending_delete"]),
        volume["damaged_blocks"],
        volume["last_scrub"],
        volume["path"],
    ]
