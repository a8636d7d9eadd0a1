"""`python -m benchmarks.idle`: what a streaming query costs that has nothing to do, in processor time.

A query with a durable consumer reads a stream to its end and waits, with no trigger interval. Counted is what Spark's
driver and the Python process of the source take of one core from then on, less what the session takes without a query;
beside it Spark's own file source on a folder of Parquet files.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.figures import write_figures
from benchmarks.spark_batch import cpu_seconds, start_session
from storage_core import Store

SECONDS, SETTLE_SECONDS = 30, 10
WANTED_MAX = 5.0  # percent of one core


def share_of_a_core(seconds: float) -> float:
    """Return what this process and all below it take of one core during so many seconds, in percent."""
    start, before = time.perf_counter(), cpu_seconds()
    time.sleep(seconds)
    return 100 * (cpu_seconds() - before) / (time.perf_counter() - start)


def idle_share(frame: DataFrame, checkpoint: Path, seconds: float) -> float:
    """Return the same for a query over `frame` that has come to the end."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        time.sleep(SETTLE_SECONDS)  # compilers and collectors of the JVM have their turn
        return share_of_a_core(seconds)
    finally:
        query.stop()


def main(seconds: float) -> int:
    """Print the shares and write them to benchmarks/results; returns an exit code."""
    shares = {}
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        spark, _ = start_session(place, with_delta=False)
        stack.callback(spark.stop)
        spark.range(3).write.parquet(str(place / "files"))
        time.sleep(SETTLE_SECONDS)
        alone = share_of_a_core(seconds)
        for replicas in (1, 3):
            with Store.create([place / f"r{replicas}-{number}" for number in range(replicas)]) as store:
                store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}).publish("orders.new", b"1")
                paths = ",".join(store.paths)
            options = {"stream": "ORDERS", "startingOffsets": "earliest", "consumer": "etl"}
            frame = spark.readStream.format("jstream").options(**options).load(paths)
            shares[f"an idle query, R{replicas}, % of a core"] = idle_share(
                frame, place / f"check-r{replicas}", seconds
            )
        files = spark.readStream.schema("id long").parquet(str(place / "files"))
        shares["an idle query of Spark's file source, % of a core"] = idle_share(files, place / "check-files", seconds)
    print(f"{'a session without a query, % of a core':<52}{alone:>8.2f}")
    ratios = []
    for name, share in shares.items():
        own = max(0.0, share - alone)
        at_most = WANTED_MAX if name.startswith("an idle query, R") else None
        ratios.append({"name": name, "ratio": round(own, 2), "by_cpu": round(own, 2), "at_most": at_most})
        print(f"{name:<52}{own:>8.2f}{'' if at_most is None else f'<= {at_most}':>10}")
    figures = {"seconds": seconds, "session_alone": round(alone, 2), "ratios": ratios}
    write_figures("idle", f"python -m benchmarks.idle --seconds {seconds:g}", figures)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long each is watched ({SECONDS})")
    sys.exit(main(parser.parse_args().seconds))
