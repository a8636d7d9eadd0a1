"""`jstream doctor`: whether this machine has what jstream needs."""

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import EXIT_FAILED
from spark_stream.cli.options import GroupStoreOption, JsonOption, named_store
from spark_stream.cli.render import print_json, printable, write


def doctor(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Folders for a store to be made: locks, fsync and rename are tried there."),
    ] = None,
    store: GroupStoreOption = None,
    json: JsonOption = False,
) -> None:
    """Look whether this machine has what jstream needs, and say what to do. Exit code 1 if something is wrong."""
    from spark_stream.doctor import PROBLEM, examine

    findings = []
    for finding in examine(named_store(context, store), folders or []):
        findings.append(finding)
        if not json:
            remedy = f"{'':19}-> {printable(finding.remedy)}\n" if finding.remedy else ""
            write(f"{finding.state:<7}  {finding.check:<10}{printable(finding.text)}\n{remedy}")
    if json:
        print_json([finding.to_json() for finding in findings])
    if any(finding.state == PROBLEM for finding in findings):
        raise typer.Exit(EXIT_FAILED)
