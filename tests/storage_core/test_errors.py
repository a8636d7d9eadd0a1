"""Errors: a code of its own for each class, fields for programs, and the same error on the other side of a pickle."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from storage_core import Store, errors
from storage_core.block.damage import Defect
from storage_core.errors import StorageError
from storage_core.store.stream import Stream

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StorageError)]
MADE: list[tuple[StorageError, dict[str, Any]]] = [
    (errors.CorruptionError("block 5"), {}),
    (
        errors.CorruptFrameError(Defect("5.blk", 96, "checksum of frame 0", "0x1", "0x2")),
        {"file": "5.blk", "offset_bytes": 96, "what": "checksum of frame 0", "expected": "0x1", "found": "0x2"},
    ),
    (
        errors.CorruptRecordError("log record", 4096, "bad checksum"),
        {"what": "log record", "offset_bytes": 4096},
    ),
    (errors.DataLossError("lost", stream="ORDERS", first=5, end=9), {"stream": "ORDERS", "first": 5, "end": 9}),
    (errors.StreamNotFoundError("ORDRES", "/shop", ["ORDERS"]), {"stream": "ORDRES", "nearest": "ORDERS"}),
    (errors.ConsumerNotFoundError("ORDERS", "x", []), {"stream": "ORDERS", "consumer": "x"}),
    (
        errors.MessageNotFoundError("ORDERS", 7, True, 8, 10),
        {"stream": "ORDERS", "sequence": 7, "was_removed": True, "first": 8, "end": 10},
    ),
    (errors.OtherHostError("/shop", "a", "b"), {"store": "/shop", "host": "a", "here": "b"}),
    (errors.ProcessError("/shop/x", 24, "raise it"), {"file": "/shop/x", "errno": 24, "advice": "raise it"}),
    (
        errors.UnsuitableFileSystemError("/shop", "nfs", "a lock", "none"),
        {"path": "/shop", "file_system": "nfs", "what": "a lock", "outcome": "none"},
    ),
]


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(kind).get("code", "") for kind in CLASSES]
    assert all(code.startswith("JSTREAM_") for code in codes)
    assert len(set(codes)) == len(CLASSES) > 25


@pytest.mark.parametrize(("error", "fields"), MADE)
def test_an_error_is_the_same_behind_a_pickle(error: StorageError, fields: dict[str, Any]) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == error.sentence()
    again.shows_code = True
    again = pickle.loads(pickle.dumps(again))
    assert type(again) is type(error)
    assert again.fields == error.fields == fields
    assert str(again) == f"[{error.code}] {error.sentence()}"
    assert again.to_json() == {"code": error.code, "text": error.sentence(), **fields}


@pytest.mark.parametrize(("error", "fields"), MADE)
def test_fields_are_attributes_and_those_of_the_class(error: StorageError, fields: dict[str, Any]) -> None:
    assert {name: getattr(error, name) for name in fields} == fields
    assert set(fields) <= set(type(error).field_names)
    assert not error.shows_code and not str(error).startswith("[")


def test_a_subclass_has_the_fields_of_the_class_above() -> None:
    assert set(errors.StoreBusyError.field_names) < set(errors.OtherHostError.field_names)


@pytest.fixture
def orders(tmp_path: Path) -> Stream:
    return Store.create(tmp_path / "shop").add_stream({"name": "ORDERS", "subjects": ["orders.>"]})


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path, orders: Stream) -> None:
    orders.publish("orders.new", b"")
    orders.add_consumer({"name": "billing"})
    with Store.open(tmp_path / "shop") as store:
        with pytest.raises(errors.StreamNotFoundError) as stream:
            store.stream("orders")
        with pytest.raises(errors.ConsumerNotFoundError) as consumer:
            store.stream("ORDERS").consumer("biling")
        with pytest.raises(errors.MessageNotFoundError) as message:
            store.stream("ORDERS").get(2)
    assert stream.value.fields == {"stream": "orders", "nearest": "ORDERS"}
    assert consumer.value.fields == {"stream": "ORDERS", "consumer": "biling", "nearest": "billing"}
    assert message.value.fields == {"stream": "ORDERS", "sequence": 2, "was_removed": False, "first": 1, "end": 2}


def test_a_message_that_is_lost_is_told_with_place_and_sequences(tmp_path: Path, orders: Stream) -> None:
    orders.publish("orders.new", b"a bell")
    (block,) = (tmp_path / "shop").rglob("*.blk")
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)
    with pytest.raises(errors.DataLossError) as lost:
        orders.read().read_all()
    fields = lost.value.fields
    assert (fields["stream"], fields["first"], fields["end"], fields["file"]) == ("ORDERS", 1, 2, str(block))


def test_a_message_that_is_refused_is_named_by_its_row(orders: Stream) -> None:
    rows = [{"subject": "orders.new", "data": b""}, {"subject": "returns.new", "data": b""}]
    with pytest.raises(errors.InvalidMessageError) as refused:
        orders.append(rows)
    assert refused.value.fields == {"stream": "ORDERS", "row": 1}


# The sentences of the classes that make their own: for whoever changes one to read it as people will.
SENTENCES = [
    "log record: offset_bytes 4096: bad checksum",
    "no stream 'ORDRES' in /shop; did you mean 'ORDERS'?",
    "no consumer 'x' of stream 'ORDERS'; there are none",
    "stream 'ORDERS': message 7 was removed; the stream holds 8 to 9",
    "/shop/x: Too many open files: this process cannot continue: raise it",
    "/shop: no store can be on this file system (nfs). Tried: a lock. Outcome: none. Take a local disk, or a mount "
    "that has file locks and fsync",
]


def test_sentences_read_as_reviewed() -> None:
    made = [str(error) for error, _ in MADE if type(error).sentence is not StorageError.sentence]
    assert [sentence for sentence in made if "--take-over" not in sentence] == SENTENCES
