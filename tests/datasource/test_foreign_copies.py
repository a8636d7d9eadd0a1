"""Several copies of one stream in one read: `load("n1,n2,n3")`."""

import gzip
import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from datasource.schema import FOREIGN_DAMAGE_TYPES, spark_schema
from storage_core.errors import DataLossError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = Path(__file__).resolve().parent.parent / "data" / "nats"
DAMAGE = to_arrow_schema(spark_schema(FOREIGN_DAMAGE_TYPES))


def nodes(store: Path) -> str:
    return ",".join(str(store / name) for name in ("n1", "n2", "n3"))


def served(case: str) -> list[int]:
    with gzip.open(STORES / case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line)["seq"] for line in lines]


def block(node: Path) -> Path:
    return next(node.rglob("1.blk"))


def flip(path: Path, text: bytes) -> None:
    data = path.read_bytes()
    at = data.index(text)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """A copy of three nodes of which one lost its oldest messages."""
    return Path(shutil.copytree(STORES / "r3-drift-old-messages-gone" / "store", tmp_path / "store"))


def place(path: str) -> dict[str, str]:
    return {"path": path, "layout": "nats"}


@pytest.mark.parametrize("case", ["r3-clean", "r3-lagging-follower", "r3-drift-old-messages-gone"])
def test_nodes_given_one_by_one_or_together_are_one_stream(case: str, driver: Any) -> None:
    for path in (nodes(STORES / case / "store"), str(STORES / case / "store")):
        assert driver.sequences(**place(path)) == served(case)
    assert driver.sequences(maxRecordsPerPartition=7, **place(path)) == served(case)
    _, partitions = driver.plan(maxRecordsPerPartition=7, **place(path))
    assert len(partitions) >= len(served(case)) // 7


def test_damage_that_another_copy_makes_good_is_logged_and_read(
    drifted: Path, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flip(block(drifted / "n1"), b"r3.")
    with caplog.at_level(logging.INFO, "jstream"):
        assert driver.sequences(**place(nodes(drifted))) == served("r3-drift-old-messages-gone")
    texts = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert any(level == "WARNING" and "sequence 1 damaged in n1" in text for level, text in texts)
    assert any(level == "INFO" and "n2 does not have them, other copies do" in text for level, text in texts)


def test_a_loss_fails_the_read_unless_it_is_allowed(drifted: Path, driver: Any) -> None:
    for node in ("n1", "n3"):
        flip(block(drifted / node), b"r3.")
    with pytest.raises(DataLossError, match=r"sequence 1 is lost: .*1\.blk at offset_bytes"):
        driver.sequences(**place(nodes(drifted)))
    rest = driver.sequences(failOnDataLoss="false", **place(nodes(drifted)))
    assert rest == [one for one in served("r3-drift-old-messages-gone") if one != 1]


def test_the_table_of_damage_lists_what_each_copy_lacks_and_what_it_costs(drifted: Path, driver: Any) -> None:
    flip(block(drifted / "n1"), b"r3.")
    rows = driver.read(DAMAGE, table="damage", **place(nodes(drifted))).to_pylist()
    assert not any(row["costs"] for row in rows)
    found = {(Path(row["file"]).relative_to(drifted).parts[0], row["first"], row["end"], row["served"]) for row in rows}
    assert found == {("n1", 1, 2, True), ("n2", 1, 7, True), ("n2", 9, 88, True)}
    lagging = driver.read(DAMAGE, table="damage", **place(nodes(STORES / "r3-lagging-follower" / "store"))).to_pylist()
    assert any("sequence 6: in n3, removed in n1 and n2; nothing is served" in row["reason"] for row in lagging)


def test_ranges_and_columns_are_those_of_all_copies_together(drifted: Path, driver: Any) -> None:
    options = {"startingOffsets": '{"R3": 80}', "endingOffsets": '{"R3": 95}', **place(nodes(drifted))}
    assert driver.sequences(**options) == list(range(80, 95))
    only = driver.read(pa.schema([("data", pa.binary())]), **options)
    assert (only.num_rows, only.schema.names) == (15, ["data"])


@pytest.mark.spark
def test_spark_reads_three_damaged_nodes_as_one_stream(spark: "SparkSession", drifted: Path) -> None:
    flip(block(drifted / "n1"), b"r3.")
    reader = spark.read.format("jstream").option("layout", "nats")
    rows = reader.load(nodes(drifted)).select("sequence", "subject").collect()
    assert [row["sequence"] for row in rows] == served("r3-drift-old-messages-gone")
    damage = reader.option("table", "damage").load([str(drifted / name) for name in ("n1", "n2", "n3")]).collect()
    assert {row["first"] for row in damage} == {1, 9}
