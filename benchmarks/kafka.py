"""A Kafka broker for the benchmarks: one KRaft node on a free port, its log in a folder, ended with the run."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

JARS = Path(__file__).resolve().parent.parent / ".venv" / "kafka-jars"
START_TIMEOUT_S = 60
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def connector_jars() -> list[Path]:
    """Return Spark's connector and what it needs; none if it was not fetched (scripts/kafka_jars.py)."""
    return sorted((JARS / "connector").glob("*.jar"))


@contextmanager
def broker(folder: Path, partitions: int) -> Iterator[str]:
    """Run a broker in `folder`; yields its address. Topics are made by their first use, with so many partitions."""
    folder.mkdir(parents=True)
    port, controller = _free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder, partitions=partitions))
    scala = next((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))  # Spark has it, so Ivy has not
    java = [str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"), "-Xmx1g", "-cp", f"{JARS}/broker/*:{scala}"]
    cluster = "4L6g3nShT-eMCtK--X86sw"  # an id of our own: any 16 bytes in base64
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
        check=True,
        capture_output=True,
    )
    with (folder / "broker.log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        _wait_until_it_listens(process, port, folder / "broker.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the broker did not start; its log ends with: {log.read_text()[-800:]}")


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
