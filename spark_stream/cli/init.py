"""`jstream init DIR`: the templates of a project's configuration, as files to begin with."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed
from spark_stream.look.terminal import counted, print_lines, say

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"  # in the repository a link to conf/
PLACE = "conf"


class Scheduler(str, Enum):
    """What starts pipelines, maintenance and checks."""

    kubernetes = "kubernetes"
    systemd = "systemd"
    airflow = "airflow"
    dagster = "dagster"


# For each: the templates that are for it alone. The first one has the names to edit.
OF_SCHEDULER = {
    Scheduler.kubernetes: ("kustomization.yaml", "container", "kubernetes"),
    Scheduler.systemd: ("systemd/jstream.env", "systemd"),
    Scheduler.airflow: ("airflow/orders.py",),
    Scheduler.dagster: ("dagster/orders.py",),
}


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project; created if necessary.")],
    scheduler: Annotated[
        Scheduler | None,
        typer.Option("--for", help="Write what this scheduler needs, instead; for kubernetes also a Containerfile."),
    ] = None,
) -> None:
    """Write templates into DIR/conf: streams, a pipeline, and settings of Spark. What is there already stays."""
    files = [(Path(PLACE) / path.relative_to(TEMPLATES), path) for path in templates(scheduler)]
    present = [name for name, _ in files if (directory / name).exists()]
    if present:
        shown = ", ".join(str(directory / name) for name in present[:5])
        raise CommandFailed(f"{shown}{' and more' if len(present) > 5 else ''}: there already; nothing was written")
    for name, template in files:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(template.read_bytes())
    print_lines(str(directory / name) for name, _ in files)
    folder = directory / PLACE
    if scheduler is None:
        begin = f"begin with: jstream apply {folder / 'streams.toml'}"
    else:
        begin = f"begin with the names in {folder / OF_SCHEDULER[scheduler][0]}"
    say(f"{counted(len(files), 'file')} written; {begin}")


def templates(scheduler: Scheduler | None = None) -> list[Path]:
    """Return the templates that are for this scheduler, else those that are for none, in order of their paths."""
    paths = sorted(path for path in TEMPLATES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path for path in paths if _scheduler_of(path) is scheduler]


def _scheduler_of(template: Path) -> Scheduler | None:
    within = template.relative_to(TEMPLATES)
    return next((name for name, places in OF_SCHEDULER.items() if any(map(within.is_relative_to, places))), None)
