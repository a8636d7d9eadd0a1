"""Where the process of `jstream` begins: interrupted before it runs a command, it ends as quietly as later on.

Nothing heavy is imported up here, and nothing has been done yet: whatever Ctrl-C interrupts may be left as it is. An
exception would not do, for many an import makes an error of its own of it.
"""

import gc

from spark_stream.cli.interrupts import leave_quietly

FIRST_SEARCH_AT = 100_000  # objects: imports alone make most of them, and are no garbage


def main() -> None:
    """Run the command that the words of the process name, and exit with its code."""
    leave_quietly()
    usual = gc.get_threshold()

    def search_as_usual(phase: str, info: object) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(search_as_usual)

    gc.callbacks.append(search_as_usual)
    gc.set_threshold(FIRST_SEARCH_AT)
    from spark_stream.cli.app import main as run

    try:
        run()
    finally:
        gc.freeze()  # else the interpreter searches all that was imported once more as it ends
