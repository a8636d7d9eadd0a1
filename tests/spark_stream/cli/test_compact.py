"""`jstream stream compact`: fewer blocks, the same messages."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import Store


@pytest.fixture
def many(store: Store) -> Store:
    """A store with a stream of twelve small blocks."""
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(12):
        stream.append(pa.table({"subject": [f"orders.{number % 3}"], "data": [b"%d" % number]}))
    return store


def test_blocks_become_one_and_the_messages_stay(jstream, many: Store) -> None:
    before = jstream.done("stream", "view", "ORDERS", "--json"), jstream.done("stream", "info", "ORDERS", "--json")
    outcome = jstream("stream", "compact", "ORDERS")
    assert (outcome.code, outcome.err) == (0, "12 blocks merged: there were 12, and are 1\n")
    assert jstream.done("stream", "view", "ORDERS", "--json") == before[0]
    assert json.loads(jstream.done("stream", "info", "ORDERS", "--json"))["state"] == json.loads(before[1])["state"]
    assert "nothing to merge: there were 1, and are 1" in jstream("stream", "compact", "ORDERS").err


def test_programs_hear_what_was_merged(jstream, many: Store) -> None:
    done = json.loads(jstream.done("stream", "compact", "ORDERS", "--json"))
    assert (done["runs"], done["blocks"], done["unreadable"]) == (1, 12, [])
    assert done["bytes"] > 0


def test_a_damaged_block_is_named_and_the_exit_code_says_so(jstream, many: Store, volume: Path) -> None:
    bad = sorted((volume / "streams").glob("*/*.blk"))[0]
    data = bytearray(bad.read_bytes())
    data[250] ^= 1
    bad.write_bytes(data)
    outcome = jstream("stream", "compact", "ORDERS")
    assert outcome.code == 1
    assert "not merged before it is repaired: stream 'ORDERS': sequences" in outcome.err and bad.name in outcome.err
    assert many.stream("ORDERS").read(on_data_loss="continue").read_all().num_rows == 11


def test_an_unknown_stream_is_named(jstream, many: Store) -> None:
    outcome = jstream("stream", "compact", "ORDER")
    assert outcome.code == 1
    assert "no stream 'ORDER'" in outcome.err and "did you mean 'ORDERS'?" in outcome.err
