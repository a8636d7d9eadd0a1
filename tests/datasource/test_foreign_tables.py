"""`table=streams`, `consumers` and `damage` over other servers' stores, and `damage` over one of ours."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from datasource import source
from datasource.schema import DAMAGE_TYPES, FOREIGN_CONSUMER_TYPES, FOREIGN_DAMAGE_TYPES, FOREIGN_STREAM_TYPES
from datasource.schema import spark_schema as as_spark
from datasource.settings import ReadSettings
from storage_core import Store
from storage_core.errors import NotFoundError
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.slices import DAMAGE_COLUMNS, STREAM_COLUMNS

DATA = Path(__file__).resolve().parent.parent / "data"
STREAMS = to_arrow_schema(as_spark(FOREIGN_STREAM_TYPES))
CONSUMERS = to_arrow_schema(as_spark(FOREIGN_CONSUMER_TYPES))
DAMAGE = to_arrow_schema(as_spark(FOREIGN_DAMAGE_TYPES))
KEY = "fixture-key-not-secret"


def place(layout: str, case: str) -> dict[str, str]:
    return {"path": str(DATA / layout / case / "store"), "layout": layout}


@pytest.mark.parametrize(
    ("types", "columns"),
    [
        (FOREIGN_STREAM_TYPES, STREAM_COLUMNS),
        (FOREIGN_CONSUMER_TYPES, tuple(ForeignConsumer("nats", "$G", "S", "c", "o.dat", True, 0, 0).row())),
        (FOREIGN_DAMAGE_TYPES, DAMAGE_COLUMNS),
    ],
)
def test_tables_of_the_core_and_of_spark_have_the_same_columns(types: Any, columns: tuple[str, ...]) -> None:
    assert tuple(types) == columns


@pytest.mark.parametrize("layout", ["nats", "stan"])
def test_schema_is_that_of_the_table(layout: str, driver: Any) -> None:
    case = {"nats": "consumers", "stan": "basic"}[layout]
    for table, types in (("streams", FOREIGN_STREAM_TYPES), ("consumers", FOREIGN_CONSUMER_TYPES)):
        assert source.schema(driver.options({**place(layout, case), "table": table})) == as_spark(types)


def test_streams_are_listed_with_each_copy_and_what_is_wrong(driver: Any) -> None:
    rows = driver.read(STREAMS, table="streams", **place("nats", "r3-drift-old-messages-gone")).to_pylist()
    assert [row["path"].split("/store/")[1][:2] for row in rows] == ["n1", "n2", "n3"]
    assert [(row["messages"], row["first_sequence"], row["last_sequence"]) for row in rows] == [
        (108, 1, 110),
        (23, 1, 110),  # what nobody can read any more counts
        (108, 1, 110),
    ]
    assert [row["source"] for row in rows] == ["index.db", "blocks", "index.db"]
    assert {row["consumers"] for row in rows} == {1}
    (locked,) = driver.read(STREAMS, table="streams", **place("nats", "encrypted")).to_pylist()
    assert locked["encrypted"]
    assert "option encryptionKey" in locked["problem"]
    assert locked["messages"] is None
    (opened,) = driver.read(STREAMS, table="streams", encryptionKey=KEY, **place("nats", "encrypted")).to_pylist()
    assert (opened["messages"], opened["problem"]) == (20, "")
    channels = driver.read(STREAMS, table="streams", **place("stan", "basic")).to_pylist()
    assert {row["stream"]: row["messages"] for row in channels} == {"bar.baz": 35, "foo": 70, "leer": 1}


def test_consumers_are_rows_with_their_positions(driver: Any) -> None:
    rows = driver.read(CONSUMERS, table="consumers", **place("nats", "consumers")).to_pylist()
    found = {row["consumer"]: row for row in rows}
    exact = found["exact"]
    assert (exact["delivered"], exact["ack_floor"], exact["num_ack_pending"], exact["num_redelivered"]) == (13, 4, 6, 5)
    assert len(exact["pending"]) == 6
    assert json.loads(found["filtered"]["config"])["filter_subject"] == "cons.3"
    channels = driver.read(CONSUMERS, table="consumers", **place("stan", "basic")).to_pylist()
    assert channels
    assert all(row["delivered"] >= row["ack_floor"] for row in channels)


def test_a_damaged_consumer_is_null_and_logged(driver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(DATA / "nats" / "consumers" / "store", tmp_path / "copy")
    next(tmp_path.rglob("exact/o.dat")).write_bytes(b"\x16\x02\x01")
    options = {"path": str(tmp_path / "copy"), "layout": "nats"}
    with caplog.at_level(logging.WARNING, "jstream"):
        rows = driver.read(CONSUMERS, table="consumers", **options).to_pylist()
    assert [row["pending"] for row in rows if row["consumer"] == "exact"] == [None]
    assert "consumer 'exact'" in caplog.text
    (row,) = driver.read(DAMAGE, table="damage", **options).to_pylist()
    assert "consumer 'exact'" in row["reason"]


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        ("damaged-bitflip-no-index", [(48, 49, True)]),
        ("damaged-middle-block-gone", [(86, 171, True)]),
        ("plain-multiblock", []),
        ("damaged-stuck-consumer", [(None, None, False), (1, 31, True)]),  # its index.db is empty, its consumer tells
        ("encrypted", [(None, None, False)]),
    ],
)
def test_damage_is_a_row_a_place(case: str, rows: list[Any], driver: Any) -> None:
    found = driver.read(DAMAGE, table="damage", **place("nats", case)).to_pylist()
    assert [(row["first"], row["end"], row["costs"]) for row in found] == rows
    assert all(row["reason"] and row["file"] for row in found)


def test_damage_is_not_what_an_executor_does_not_see(driver: Any, tmp_path: Path) -> None:
    shutil.copytree(DATA / "nats" / "consumers" / "store", tmp_path / "copy")
    reader, partitions = driver.plan(DAMAGE, table="damage", path=str(tmp_path / "copy"), layout="nats")
    (tmp_path / "copy").rename(tmp_path / "not mounted here")
    with pytest.raises(NotFoundError, match="every executor must see the store"):
        [list(reader.read(one)) for one in partitions]


def test_damage_of_stan_names_what_an_option_serves(driver: Any) -> None:
    options = {"table": "damage", "stream": "foo", **place("stan", "damaged-bitflip-no-index")}
    (row,) = driver.read(DAMAGE, **options).to_pylist()
    assert (row["first"], row["end"], row["served"]) == (11, 12, False)
    (row,) = driver.read(DAMAGE, **options, noCrc="true").to_pylist()
    assert (row["first"], row["end"], row["served"]) == (11, 12, True)


def test_damage_of_our_own_store_is_found(store: Store, driver: Any, orders: Callable[..., pa.Table]) -> None:
    schema = to_arrow_schema(as_spark(DAMAGE_TYPES))
    store.stream("ORDERS").append(orders(3))
    assert driver.read(schema, table="damage").num_rows == 0
    (block,) = Path(store.paths[0]).rglob("*.blk")
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)
    rows = driver.read(schema, table="damage", stream="ORDERS").to_pylist()
    assert {(row["stream"], row["repaired"]) for row in rows} == {("ORDERS", False)}
    assert driver.read(schema, table="damage", stream="LOGS").num_rows == 0


def test_the_key_is_shown_nowhere() -> None:
    options = {"path": "/data", "layout": "nats", "encryptionKey": KEY}
    assert KEY not in repr(ReadSettings.parse(options))
    with pytest.raises(ValueError, match="'encryptionKey' is empty"):
        ReadSettings.parse({**options, "encryptionKey": ""})
