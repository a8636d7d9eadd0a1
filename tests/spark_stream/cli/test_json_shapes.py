"""The JSON of every reading verb, as files: scripts rely on it.

A file in tests/data/cli changes only with the contract. `JSTREAM_WRITE_GOLDEN=1 pytest tests/spark_stream/cli/
test_json_shapes.py` writes them anew; what differs from run to run is replaced.
"""

import os
from pathlib import Path

import pytest

from storage_core.store.plan import ReadRequest

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
