"""`python -m spark_stream.demo.cluster [--output DIR]`: the demo's orders on a cluster that shares nothing but buckets.

An object-store server on loopback with three buckets; a standalone Spark master and two workers, each in a folder of
its own that no other one knows; a pipeline from the buckets into the buckets, while one of them is emptied; a repair.
Whatever is started here is ended with this process. Exit code 1 if the counts do not add up.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pyspark.find_spark_home import _find_spark_home

from spark_stream import rescue
from spark_stream.demo import folder
from spark_stream.demo.folder import STREAM
from spark_stream.demo.job import made_with
from spark_stream.demo.report import Report
from spark_stream.pipelines.api import run_pipeline
from spark_stream.pipelines.run import Progress
from storage_core import Store

OUTPUT = Path("build/demo-cluster")
HOST = "127.0.0.1"
BUCKETS = ("bucket-a", "bucket-b", "bucket-c")
WORKER_COUNT = 2
START_S = 60.0  # for a server to listen
PAID, CONSUMER = "PAID", "cashier"
PIPELINE = """
description = "payments of the rescued orders into a stream of their own, on a cluster"
checkpoint = "checkpoint"

[source]
store = [{volumes}]
stream = "ORDERS"
consumer = "cashier"
max_messages = 1_500

[payload]
format = "json"
schema = "order_id STRING NOT NULL, amount DOUBLE, currency STRING, event STRING NOT NULL"

[transform]
sql = \"\"\"
    SELECT concat('paid.', split(subject, '[.]')[2]) AS subject,
           to_json(struct(sequence, order_id, amount, currency)) AS data
    FROM messages WHERE event = 'paid'
\"\"\"

[sink]
kind = "jstream"
stream = "PAID"

[spark]
"spark.master" = "spark://{host}:{port}"
"spark.driver.host" = "{host}"
"spark.executor.memory" = "1g"
"spark.executor.cores" = "1"
"""


def main(output: Annotated[Path, typer.Option(help="Where everything is made; emptied first.")] = OUTPUT) -> None:
    """Run the demo's pipeline on a cluster of processes, with its store in three buckets of which one is emptied."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended
    raise typer.Exit(0 if run(output.resolve()) else 1)


def run(output: Path) -> bool:
    """Do it all and print what happens; return whether all counts add up."""
    began = time.monotonic()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    report = Report()
    with ExitStack() as stack:
        report.step("An object store, a Spark master and two workers, each in a folder of its own")
        volumes = stack.enter_context(_object_store(output))
        port = stack.enter_context(_spark(output))
        report.say(f"buckets {', '.join(volumes)}; spark://{HOST}:{port}; the workers share no directory")
        _Job(output, volumes, port, report).run()
    report.made = made_with(time.monotonic() - began)
    report.summary()
    (output / "report.txt").write_text(report.console.export_text().lstrip())
    return report.ok


class _Job:
    def __init__(self, output: Path, volumes: Sequence[str], port: int, report: Report) -> None:
        self.output, self.volumes, self.report = output, list(volumes), report
        listed = ", ".join(f'"{volume}"' for volume in volumes)
        (output / "paid.toml").write_text(PIPELINE.format(volumes=listed, host=HOST, port=port))

    def run(self) -> None:
        self.report.step("Broken nodes of a JetStream cluster, rescued into three buckets")
        nodes = folder.unpack_nodes(self.output)
        with Store.create(self.volumes) as store:
            (imported,) = rescue.import_streams(store, rescue.open(nodes), streams=STREAM)["streams"]
            store.add_stream({"name": PAID, "subjects": ["paid.>"]})
            orders = store.stream(STREAM).read(columns=["data"]).read_all()["data"].to_pylist()
        count, paid = imported["messages"], sum(b'"event":"paid"' in order.replace(b" ", b"") for order in orders)
        self.report.say(f"{count:,} messages, {paid:,} of them payments")
        self.report.step("The pipeline on the cluster, while a bucket is emptied")
        done = run_pipeline(self.output / "paid.toml", watch=self._empty_a_bucket).to_json()
        self.report.count("read by the pipeline", done["rows_in"], count, "all of the stream")
        with Store.open(self.volumes[0]) as store:
            stored = store.stream(PAID).read(columns=["data"]).read_all()["data"].to_pylist()
            info = store.stream(STREAM).consumer(CONSUMER).info()
        self.report.count("payments in the stream PAID", len(stored), paid, "as many as were rescued")
        self.report.count("different ones among them", len(set(stored)), paid, "nothing is there twice")
        self.report.count("behind the consumer", info["num_pending"], 0, "everything is acknowledged")
        self.report.step("The bucket is given back, and filled again")
        with Store.open(self.volumes[0]) as store:
            self.report.check("the repair left nothing bad", store.repair()["ok"], "see jstream repair")
            drift = rescue.compare(store, STREAM)
            self.report.show_copies("The buckets after the repair", drift, f"jstream drift --stream {STREAM}")
            self.report.check("all copies agree", drift.agrees, drift.verdict())

    def _empty_a_bucket(self, progress: Progress) -> None:
        if progress.batch == 0:
            bucket = self.output / "object-store" / BUCKETS[1]
            shutil.rmtree(bucket)
            bucket.mkdir()
            self.report.say(f"after the first batch {BUCKETS[1]} is emptied; reads and writes go on with two")


# --- what is started


@contextmanager
def _object_store(output: Path) -> Iterator[list[str]]:
    """Serve three buckets; yield the addresses of volumes in them. The environment leads there, also that of Spark."""
    root, port = output / "object-store", _free_port()
    for bucket in BUCKETS:
        (root / bucket).mkdir(parents=True)
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{HOST}:{port}", AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="demo",
        AWS_SECRET_ACCESS_KEY="demo", AWS_VIRTUAL_HOSTED_STYLE_REQUEST="false", AWS_ALLOW_HTTP="true",
    )  # fmt: skip
    command = [sys.executable, "-m", "localbucket", "--host", HOST, "--port", str(port), str(root)]
    with _running(command, output / "server", port):
        yield [f"s3://{bucket}/shop" for bucket in BUCKETS]


@contextmanager
def _spark(output: Path) -> Iterator[int]:
    """Start a standalone master and its workers; yield the port of the master."""
    port, deploy = _free_port(), "org.apache.spark.deploy"
    launcher = [str(Path(_find_spark_home()) / "bin" / "spark-class")]
    with ExitStack() as stack:
        master = ["--host", HOST, "--port", str(port), "--webui-port", str(_free_port())]
        stack.enter_context(_running([*launcher, f"{deploy}.master.Master", *master], output / "master", port))
        for number in range(1, WORKER_COUNT + 1):
            place, own = output / f"worker-{number}", _free_port()
            words = ["--host", HOST, "--port", str(own), "--webui-port", str(_free_port()), "--cores", "1"]
            words += ["--memory", "1g", "--work-dir", str(place / "work"), f"spark://{HOST}:{port}"]
            local = {"SPARK_LOCAL_DIRS": str(place / "local")}
            stack.enter_context(_running([*launcher, f"{deploy}.worker.Worker", *words], place, own, local))
        yield port


@contextmanager
def _running(
    command: Sequence[str], place: Path, port: int, settings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server in a folder of its own until the block ends, with all that it starts."""
    place.mkdir()
    with (place / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=place, env={**os.environ, **(settings or {})}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(port, process, place / "log.txt")
        yield
    finally:
        for number, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
            try:
                os.killpg(process.pid, number)
                process.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server listens. Raises SystemExit with what it said if it does not."""
    until_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until_s:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"{' '.join(map(str, process.args))} does not listen:\n{log.read_text()[-2000:]}")  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
