"""`jstream demo DIR`: something to play with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from spark_stream.cli.failures import CommandFailed
from spark_stream.look.terminal import counted, say, write

_HINTS = """
  cd {place}
  jstream drift nats nodes/n1 nodes/n2 nodes/n3    # which node has which message
  jstream stream report                            # the store's streams, and their copies
  rm -r store/disk-2; jstream repair               # lose a volume, and bring it back
  jstream etl run orders.toml                      # orders into a table, by Spark
"""


def demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Create a sample folder: broken nodes of a NATS cluster, a store with the rescued messages, and a pipeline."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CommandFailed(f"{directory} is not empty: nothing was done")

    from spark_stream.demo.folder import make_folder
    from spark_stream.jars import delta_package

    kind = "delta" if delta_package() is not None else "parquet"
    made = make_folder(directory, kind)
    messages = counted(made["messages"], "message")
    say(f"{directory} holds three broken nodes of a NATS JetStream cluster, and a store with all that was on them:")
    say(f"{messages} of stream ORDERS, {made['lost']} lost, a copy on each of three volumes. What you can do next:")
    write(_HINTS.format(place=shlex.quote(str(directory))))
