"""Ctrl-C: it ends a process that runs no command yet at once and quietly; a command ends as it has to.

Nothing heavy is imported up here: this is in force before anything else is.
"""

import os
import signal
import threading
from types import FrameType

EXIT_INTERRUPTED = 130


def leave_quietly() -> None:
    """Let Ctrl-C end the process without a word, until a command begins."""
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not: ignored, as by nohup
        signal.signal(signal.SIGINT, _leave)


def begin() -> None:
    """Let Ctrl-C be a KeyboardInterrupt from here on: a command begins, which ends as it has to."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
