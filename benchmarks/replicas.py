"""`python -m benchmarks.replicas`: appending with one, three and five replicas, on one disk, through Spark.

All volumes are directories of one disk, so that three replicas write three times the bytes to it. Elapsed time is
what the project's figure is about; processor time says how much of it is work, and how much is waiting for the disk.
"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.spark_batch import (
    MESSAGES,
    Ratio,
    Run,
    jstream_write,
    orders,
    report,
    run_from_command_line,
    start_session,
)
from storage_core import Store

REPLICAS = (1, 3, 5)
RATIOS: tuple[Ratio, ...] = (
    ("append R3 / append R1", "append R3", "append R1", 0.6),
    ("append R5 / append R1", "append R5", "append R1", None),
)


def main(messages: int, rounds: int) -> int:
    """Run everything, print the ratios and write them to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder:
        spark, _ = start_session(Path(folder), with_delta=False)
        try:
            run = Run(messages, rounds, spark, Path(folder), False)
            frame = orders(spark, messages)
            stores = {count: make_store(Path(folder), count) for count in REPLICAS}
            for round_number in range(rounds + 1):
                for count, place in stores.items():
                    append(run, f"append R{count}", place, f"ROUND{round_number}", round_number > 0, frame)
        finally:
            spark.stop()
    report(run, RATIOS, "replicas", f"python -m benchmarks.replicas --messages {messages} --rounds {rounds}")
    return 0


def make_store(folder: Path, count: int) -> str:
    """Return the volumes of a store of so many, as one text."""
    volumes = [str(folder / f"r{count}-volume-{number}") for number in range(count)]
    # Streams of earlier rounds go at once, or every write would have to get memory for the page cache anew.
    Store.create(volumes, deleted_block_retention="0s").close()
    return ",".join(volumes)


def append(run: Run, name: str, place: str, stream: str, counted: bool, frame: DataFrame) -> None:
    with Store.open(place) as store:
        store.add_stream({"name": stream, "subjects": ["orders.>"]})
    run.time(name, counted, lambda: jstream_write(frame, stream, place))
    with Store.open(place) as store:
        store.delete_stream(stream)
        store.maintain()


if __name__ == "__main__":
    sys.exit(run_from_command_line("replicas", __doc__, main, MESSAGES, "how many to append"))
