"""The command line: `jstream`, or `python -m spark_stream.cli`."""

from spark_stream.cli.start import main

__all__ = ["main"]
