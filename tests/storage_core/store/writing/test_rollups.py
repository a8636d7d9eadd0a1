"""Rollups: what a message with Nats-Rollup takes the place of, also within one append, and who has missed it."""

from typing import Any

import pytest
from harness.processes import Machine

from storage_core.errors import InvalidMessageError
from storage_core.store.stream import Stream
from storage_core.store.writing import rollups
from storage_core.store.writing.appends import WriterBatch


def made(seed: int, **config: Any) -> Stream:
    return Machine(seed).create().add_stream({"name": "S", "subjects": ["*"], "allow_rollup_hdrs": True, **config})


def rows(*texts: str) -> list[dict[str, Any]]:
    """Return messages: `a` of subject a, `a!` a rollup of it, `a!!` one of all."""
    value = {0: None, 1: [("Nats-Rollup", b"sub")], 2: [("other", b"x"), ("Nats-Rollup", b"all")]}
    return [{"subject": text[0], "data": b"x", "headers": value[len(text) - 1]} for text in texts]


def left(stream: Stream) -> list[int]:
    sequences: list[int] = stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
    return sequences


@pytest.mark.buckets
@pytest.mark.parametrize("filters_max", [rollups.FILTERS_MAX, 0])
def test_rollups_within_one_append_and_before_it(filters_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "FILTERS_MAX", filters_max)
    stream = made(1, block_max_msgs=2)
    stream.append(rows("a", "b", "c", "a"))
    stream.append(rows("b", "a!", "a", "b!", "d"))
    assert left(stream) == [3, 6, 7, 8, 9]
    stream.append(rows("c!", "e!!", "a", "a!", "b"))
    assert (left(stream), stream.first_sequence) == ([11, 13, 14], 11)
    assert stream.state().data_size == 3 * 2 + len("otherx") + len("Nats-Rollupall") + len("Nats-Rollupsub")


def test_consumers_have_missed_what_was_rolled_up() -> None:
    stream = made(2)
    consumer = stream.add_consumer({"name": "c"})
    stream.append(rows("a", "b", "a!"))
    assert consumer.info()["num_skipped"] == 1
    assert consumer.fetch(9, 0).column("sequence").to_pylist() == [2, 3]


@pytest.mark.buckets
def test_a_batch_that_comes_again_rolls_up_what_a_crash_had_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = made(3)
    stream.append(rows("a"))
    with monkeypatch.context() as patched:
        patched.setattr(rollups, "command", lambda *_: None)
        stream.append(rows("a!"), WriterBatch("w", "1"))
    assert left(stream) == [1, 2]
    stream.append(rows("a!"), WriterBatch("w", "1"))
    assert left(stream) == [2]


def test_a_stream_that_forbids_it_and_values_that_are_none() -> None:
    stream = made(4)
    with pytest.raises(InvalidMessageError) as refused:
        stream.append([*rows("a", "a!"), {"subject": "a", "data": b"", "headers": [("Nats-Rollup", b"each")]}])
    assert (refused.value.row, stream.last_sequence) == (2, 0)
    store = stream._store
    plain = store.add_stream({"name": "P", "subjects": ["p"]}, allow_overlap=True)  # type: ignore[attr-defined]
    with pytest.raises(InvalidMessageError, match="allow_rollup_hdrs"):
        plain.append([{"subject": "p", "data": b"", "headers": [("Nats-Rollup", b"sub")]}])
    plain.append([{"subject": "p", "data": b"Nats-Rollup", "headers": [("nats-rollup", b"sub"), ("x", b"Nats-TTL")]}])
    assert plain.last_sequence == 1
