"""Errors that leave for Spark show their code; those that are asked for by Python callers do not."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from datasource import source
from datasource.schema import CONSUMER_TYPES, MESSAGE_TYPES, spark_schema
from storage_core import Store
from storage_core.errors import DataLossError, OptionError, StorageError, StreamNotFoundError

SCHEMA = spark_schema(MESSAGE_TYPES)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    with Store.create(tmp_path / "shop") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}).publish("orders.new", b"a bell")
    return {"path": str(tmp_path / "shop"), "stream": "ORDERS"}


def read(options: dict[str, str]) -> list[Any]:
    reader = source.reader(options, SCHEMA)
    return [row for partition in reader.partitions() for row in reader.read(partition)]


CALLS: dict[str, Callable[[dict[str, str]], Any]] = {
    "columns": source.schema,
    "batch read": read,
    "streaming read": lambda options: source.stream_reader(options, SCHEMA).initialOffset(),
    "batch write": lambda options: source.writer(options, SCHEMA, False),
    "streaming write": lambda options: source.stream_writer(options, SCHEMA, False),
    "table": lambda options: source.reader(
        {**options, "table": "consumers"}, spark_schema(CONSUMER_TYPES)
    ).partitions(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_error_towards_spark_shows_its_code(options: dict[str, str], call: Callable[[dict[str, str]], Any]) -> None:
    with pytest.raises(StorageError) as raised:
        call({**options, "path": f"{options['path']}-not-there"})
    assert str(raised.value).startswith("[JSTREAM_NOT_A_STORE] ")


def test_an_error_towards_spark_is_a_few_lines(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> int:
        with pytest.raises(StorageError) as raised:
            source.schema({**options, "path": f"{options['path']}-not-there"})
        return len(list(traceback.TracebackException.from_exception(raised.value).format()))

    assert lines() <= 8
    monkeypatch.setenv("JSTREAM_TRACEBACK", "1")
    assert lines() > 12


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_refused_option_is_one_line_with_a_code(
    options: dict[str, str], call: Callable[[dict[str, str]], Any]
) -> None:
    with pytest.raises(
        OptionError, match=r"\[JSTREAM_OPTION\] unknown option 'strem'.*did you mean 'stream'"
    ) as raised:
        call({**options, "strem": "ORDERS"})
    assert isinstance(raised.value, ValueError) and raised.value.__cause__ is None


def test_columns_of_kafka_are_named_as_here(options: dict[str, str]) -> None:
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(OptionError, match="unknown column 'value'; did you mean 'data'"):
        source.writer(options, schema, False)


def test_so_does_one_in_the_middle_of_the_rows(options: dict[str, str]) -> None:
    assert len(read(options)) == 1
    (block,) = Path(options["path"]).rglob("*.blk")
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)
    with pytest.raises(DataLossError) as raised:
        read(options)
    assert str(raised.value).startswith("[JSTREAM_DATA_LOSS] stream 'ORDERS': ")


def test_a_python_caller_asks_for_the_code(options: dict[str, str]) -> None:
    with Store.open(options["path"]) as store, pytest.raises(StreamNotFoundError) as raised:
        store.stream("ORDRES")
    assert str(raised.value).startswith("no stream 'ORDRES'")
