"""`jstream doctor`: whether this machine has what jstream needs."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import EXIT_FAILED, WrongUsage
from spark_stream.cli.options import GroupStoreOption, JsonOption, named_store
from spark_stream.cli.storage_options import storage_options
from spark_stream.look.terminal import print_json, printable, write

if TYPE_CHECKING:
    from spark_stream.doctor import Finding


def doctor(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Folders for a store to be made: locks, fsync and rename are tried there."),
    ] = None,
    store: GroupStoreOption = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark, and check each executor by a task.")
    ] = False,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark for --spark, such as spark.master=yarn."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check that this machine has what jstream needs, and say what to do. Exit code 1 if something is wrong."""
    from spark_stream.doctor import PROBLEM, examine

    settings = spark_settings(conf or [])
    if settings and not spark:
        raise WrongUsage("--conf is for --spark")
    volumes = named_store(context, store)
    findings = []
    looks = [examine(volumes, folders or [], storage_options())]
    if spark:
        looks.append(look_at_executors(volumes, folders or [], settings))
    for finding in chain.from_iterable(looks):
        findings.append(finding)
        if not json:
            remedy = f"{'':19}-> {printable(finding.remedy)}\n" if finding.remedy else ""
            write(f"{finding.state:<7}  {finding.check:<10}{printable(finding.text)}\n{remedy}")
    if json:
        print_json([finding.to_json() for finding in findings])
    if any(finding.state == PROBLEM for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def spark_settings(pairs: list[str]) -> dict[str, str]:
    """Return the settings of --conf KEY=VALUE; raises typer.BadParameter for anything else."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--conf {pair!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def look_at_executors(volumes: str, folders: list[Path], settings: dict[str, str]) -> Iterator["Finding"]:
    """Yield what executors say; a generator, so that Spark starts when everything before it is printed."""
    from spark_stream.executors import examine_executors
    from storage_core.paths import resolve_paths

    yield from examine_executors([*(resolve_paths(volumes) if volumes else []), *folders], settings)
