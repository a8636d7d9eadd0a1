"""`jstream init DIR`: the templates of a project's configuration, as files to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed
from spark_stream.look.terminal import counted, print_lines, say

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"  # the repository's conf/ holds the same files
PLACE = "conf"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project; created if necessary.")],
) -> None:
    """Write templates into DIR/conf: streams, a pipeline, and settings of Spark. What is there already stays."""
    files = [(Path(PLACE) / path.relative_to(TEMPLATES), path) for path in templates()]
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
    say(f"{counted(len(files), 'file')} written; begin with: jstream apply {directory / PLACE / 'streams.toml'}")


def templates() -> list[Path]:
    """Return the files of the package that are written, in order of their paths."""
    return sorted(path for path in TEMPLATES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
