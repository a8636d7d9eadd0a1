"""`jstream apply FILE`: make the store's streams and consumers look like the file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.named_stores import STORE_VARIABLE, volumes_of
from spark_stream.cli.options import (
    AllowOverlapOption,
    ForceOption,
    GroupStoreOption,
    JsonOption,
    TakeOverOption,
    ask_consent,
    named_store,
    open_store,
    require_consent_possible,
)
from spark_stream.look.terminal import counted, print_json, print_lines, say
from spark_stream.plans import show_value

if TYPE_CHECKING:
    from spark_stream.pipelines.definitions import Action, Plan


def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Streams and consumers, as TOML: conf/streams.toml.")],
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only the plan is printed.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete the streams and consumers that the file does not name.")
    ] = False,
    allow_overlap: AllowOverlapOption = False,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: GroupStoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make streams and consumers of the store match a file, in the keys that the file names.

    Prints the plan, and acts on it with --execute. Nothing that the file does not name is changed or deleted.
    """
    from spark_stream.pipelines.definitions import DELETE, load_definitions, plan
    from spark_stream.pipelines.definitions import execute as carry_out

    wanted = replace(load_definitions(file), allow_overlap=allow_overlap)
    volumes = volumes_of(store or "") or ",".join(wanted.store) or named_store(context, None)
    if not volumes:
        raise WrongUsage(
            f"no store: name it in the file (store = [...]), pass --store VOLUME[,VOLUME] or set {STORE_VARIABLE}"
        )
    if execute and delete:
        require_consent_possible("apply --delete", force)
    with open_store(volumes, take_over=take_over and execute, read_only=not execute) as opened:
        planned = plan(opened, wanted, delete)
        if json and (planned.conflicts or not execute):
            print_json(_as_json(planned, False))
        elif not json:
            _print_plan(planned)
        if planned.conflicts:
            raise CommandFailed(f"{counted(len(planned.conflicts), 'conflict')} with what is there; nothing was done")
        if not execute:
            say("nothing was done; --execute does it" if planned.actions else "nothing to do")
            return
        losses = [_name(action) for action in planned.actions if action.kind == DELETE]
        if losses:
            ask_consent(f"Delete {', '.join(losses)} with all that is in there?", force)
        done = 0
        try:
            for action in planned.actions:
                carry_out(opened, wanted, action)
                done += 1
        finally:
            if json:
                print_json(_as_json(planned, done == len(planned.actions)))
            if 0 < done < len(planned.actions):
                say(f"{done} of {counted(len(planned.actions), 'change')} were made before that failed:")
        say(f"done: {counted(len(planned.actions), 'change')}" if planned.actions else "nothing to do")


def _as_json(plan: "Plan", executed: bool) -> dict[str, object]:
    return {
        "actions": [action.to_json() for action in plan.actions],
        "unnamed": plan.unnamed,
        "executed": executed,
    }


def _print_plan(plan: "Plan") -> None:
    lines = []
    for action in plan.actions:
        lines.append(f"{action.kind:<8}  {_name(action)}{': ' + action.reason if action.reason else ''}")
        for key, (before, after) in action.changes.items():
            shown = show_value(key, after)
            change = shown if action.kind == "make" else f"{show_value(key, before)} -> {shown}"
            lines.append(f"            {key}: {change}")
    deleted = {_name(action) for action in plan.actions if action.kind == "delete"}
    lines += [
        f"keep      {name}, which the file does not name" for name in map(_spelled, plan.unnamed) if name not in deleted
    ]
    print_lines(lines)


def _name(action: "Action") -> str:
    if not action.stream:
        return "store"
    return f"consumer {action.stream}/{action.consumer}" if action.consumer else f"stream {action.stream}"


def _spelled(unnamed: str) -> str:
    return f"consumer {unnamed}" if "/" in unnamed else f"stream {unnamed}"
