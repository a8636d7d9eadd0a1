"""Where the process of `jstream` begins: interrupted before it runs a command, it ends as quietly as later on.

Nothing heavy is imported up here, and nothing has been done yet: whatever Ctrl-C interrupts may be left as it is. An
exception would not do, for many an import makes an error of its own of it.
"""

import os
import signal
import threading
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command that the words of the process name, and exit with its code."""
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not: ignored, as by nohup
        signal.signal(signal.SIGINT, _leave)
    from spark_stream.cli.app import main as run

    run()


def begin() -> None:
    """Let Ctrl-C be a KeyboardInterrupt from here on: a command begins, which ends as it has to."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
