"""`--watch SECONDS`: a report again and again, as `watch` shows commands."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from spark_stream.look.terminal import Warnings, write

CLEAR = "\x1b[H\x1b[2J"  # the terminal, and begin at its top
WatchOption = Annotated[
    float | None,
    typer.Option("--watch", metavar="SECONDS", min=0.1, help="Show it again after so many seconds, until Ctrl-C."),
]


def show_repeatedly(
    seconds: float | None, show: Callable[[], None], wait: Callable[[float], None] = time.sleep
) -> None:
    """Call `show` once, or every so many seconds until Ctrl-C, which ends well; a terminal shows the newest alone."""
    if seconds is None:
        show()
        return
    try:
        while True:
            if sys.stdout.isatty():
                write(CLEAR)
                Warnings.listen()  # what was said before is off the screen
            show()
            wait(seconds)
    except KeyboardInterrupt:
        return
