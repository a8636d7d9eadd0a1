"""The JSON of every reading verb, as files: scripts rely on it.

A file in tests/data/cli changes only with the contract. `JSTREAM_WRITE_GOLDEN=1 pytest tests/spark_stream/cli/
test_json_shapes.py` writes them anew; what differs from run to run is replaced.
"""

import os
import shutil
from pathlib import Path

import pytest

from storage_core.store.reading.plan import ReadRequest

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "cli"
CASES = {
    "store-info": ["store", "info"],
    "stream-ls": ["stream", "ls"],
    "stream-find": ["stream", "find", "--subject", "orders.new"],
    "stream-info": ["stream", "info", "ORDERS"],
    "stream-info-empty": ["stream", "info", "EMPTY"],
    "stream-get": ["stream", "get", "ORDERS", "5"],
    "stream-view": ["stream", "view", "ORDERS"],
    "stream-subjects": ["stream", "subjects", "ORDERS"],
    "stream-gaps": ["stream", "gaps", "ORDERS"],
    "sub": ["sub", "orders.>", "--all", "--count", "2"],
    "pub": ["pub", "EMPTY", "hello"],
    "pub-count": ["pub", "EMPTY", "hello", "--count", "3"],
    "verify": ["verify"],
    "stream-report": ["stream", "report"],
    "cluster-info": ["cluster", "info"],
    "events-none": ["events"],
    "scrub": ["scrub"],
    "repair": ["repair"],
}
CONSUMER_CASES = {
    "consumer-ls": ["consumer", "ls", "ORDERS"],
    "consumer-info": ["consumer", "info", "ORDERS", "billing"],
    "consumer-report": ["consumer", "report"],
    "consumer-next": ["consumer", "next", "ORDERS", "billing"],
    "consumer-reset": ["consumer", "reset", "ORDERS", "billing"],
}


AFTERWARDS = {
    "replicas-store-info": ["store", "info"],
    "replicas-cluster-info": ["cluster", "info"],
    "replicas-stream-info": ["stream", "info", "ORDERS"],
    "replicas-stream-report": ["stream", "report"],
}


def check(name: str, found: str) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("JSTREAM_WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_json_is_as_written_down(jstream, orders, name: str) -> None:
    orders.add_stream({"name": "EMPTY", "description": "nothing yet", "metadata": {"team": "none"}})
    check(name, jstream.normalised(jstream.done(*CASES[name], "--json")))


@pytest.mark.parametrize("name", CONSUMER_CASES)
def test_json_of_consumers_is_as_written_down(jstream, orders, name: str) -> None:
    stream = orders.stream("ORDERS")
    stream.add_consumer({"name": "audit", "deliver_policy": "new", "filter_subjects": ["orders.paid"]})
    consumer = stream.add_consumer({"name": "billing", "max_deliver": 5, "metadata": {"team": "sales"}})
    consumer.reset(4)
    consumer.ack(consumer.fetch(2).column("sequence")[:1])
    check(name, jstream.normalised(jstream.done(*CONSUMER_CASES[name], "--json")))


def test_json_of_damage_is_as_written_down(jstream, orders) -> None:
    (found,) = orders.plan(ReadRequest(("ORDERS",), {"ORDERS": (4, 5)})).slices
    path = Path(found.paths[0])
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    verified = jstream("verify", "--json")
    dumped = jstream("block", "dump", path, "--json")
    assert (verified.code, dumped.code) == (1, 1)
    check("verify-damage", jstream.normalised(verified.out))
    check("block-dump-damage", jstream.normalised(dumped.out))


@pytest.mark.parametrize("name", AFTERWARDS)
def test_json_of_replicas_is_as_written_down(trio, replicated, volumes, name: str) -> None:
    shutil.rmtree(volumes[2])
    check(name, trio.normalised(trio.done(*AFTERWARDS[name], "--json")))


def test_json_of_a_repair_and_its_events_is_as_written_down(trio, replicated, volumes, blocks_on) -> None:
    data = bytearray(blocks_on(volumes[1])[1].read_bytes())
    data[300] ^= 1
    blocks_on(volumes[1])[1].write_bytes(data)
    scrubbed = trio("scrub", "--json")
    assert scrubbed.code == 1
    check("replicas-scrub-damage", trio.normalised(scrubbed.out).replace(blocks_on(volumes[1])[1].name, "<file>"))
    shutil.rmtree(volumes[2])
    check("replicas-repair", trio.normalised(trio.done("repair", "--json")))
    check("replicas-events", trio.normalised(trio.done("events", "--kind", "damaged", "--json")))


@pytest.mark.parametrize("name", ["r3-clean", "r3-lagging-follower", "r3-drift-old-messages-gone"])
def test_json_of_drift_in_a_cluster_is_as_written_down(jstream, name: str) -> None:
    jstream.places = {GOLDEN.parent: "<data>"}
    nodes = sorted((GOLDEN.parent / "nats" / name / "store").iterdir())
    check(f"drift-{name}", jstream.normalised(jstream("drift", "nats", *nodes, "--json").out))


def test_json_of_drift_in_a_store_is_as_written_down(trio, replicated, volumes, blocks_on) -> None:
    data = bytearray(blocks_on(volumes[1])[1].read_bytes())
    data[300] ^= 1
    blocks_on(volumes[1])[1].write_bytes(data)
    shutil.rmtree(volumes[2])
    check("drift-store", trio.normalised(trio("drift", "--json").out))
