"""`python -m spark_stream.demo [--source DIR] [--output DIR]`; exit code 1 if the counts do not add up."""

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.demo.job import run

SOURCE = Path("tests/data/nats-orders")
OUTPUT = Path("build/demo")


def main(
    source: Annotated[Path, typer.Option(help="The JetStream store, and what a client of its server got.")] = SOURCE,
    output: Annotated[Path, typer.Option(help="Where store and table are made; emptied first.")] = OUTPUT,
) -> None:
    """Take a real JetStream store through the whole main job, and show that the counts add up."""
    if not source.is_dir():
        typer.echo(f"error: {source} is not a directory: run from the project's folder, or give --source", err=True)
        raise typer.Exit(2)
    raise typer.Exit(0 if run(source.resolve(), output.resolve()) else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
