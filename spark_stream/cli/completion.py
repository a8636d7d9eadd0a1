"""`jstream completion SHELL`: what makes a shell complete the words of `jstream`."""

from enum import Enum
from typing import Annotated

import typer

from spark_stream.cli.failures import COMPLETION_VARIABLE, PROGRAM
from spark_stream.look.terminal import write


class Shell(str, Enum):
    """Shells whose completion Typer writes."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell.")]) -> None:
    """Print what makes a shell complete commands, options and streams: eval "$(jstream completion bash)"."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    write(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell.value) + "\n")
