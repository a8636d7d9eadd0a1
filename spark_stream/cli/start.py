"""Where the process of `jstream` begins: interrupted before it runs a command, it ends as quietly as later on.

Nothing heavy is imported up here, and nothing has been done yet: whatever Ctrl-C interrupts may be left as it is. An
exception would not do, for many an import makes an error of its own of it.
"""

from spark_stream.cli.interrupts import leave_quietly


def main() -> None:
    """Run the command that the words of the process name, and exit with its code."""
    leave_quietly()
    from spark_stream.cli.app import main as run

    run()
