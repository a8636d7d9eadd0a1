"""The data source as Spark drives it, without Spark: objects are pickled wherever Spark would pickle them."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, Filter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from storage_core import Store
from storage_core.schema import READ_SCHEMA


def travel(value: Any) -> Any:
    """Return what arrives in another of Spark's processes."""
    return pickle.loads(pickle.dumps(value))


@dataclass
class Driver:
    """What Spark's planning worker, tasks and commit worker do with the data source, one after another."""

    path: str

    def options(self, given: dict[str, Any]) -> CaseInsensitiveDict:
        texts = {name: str(value) for name, value in {"path": self.path, **given}.items() if value is not None}
        return CaseInsensitiveDict(texts)

    def plan(self, schema: pa.Schema = READ_SCHEMA, filters: Sequence[Filter] = (), **options: Any) -> Any:
        """Return (reader, partitions), both as the tasks get them."""
        reader = source.reader(self.options(options), from_arrow_schema(schema))
        if filters:
            assert list(reader.pushFilters(list(filters))) == []
        return travel(reader), travel(reader.partitions())

    def read(self, schema: pa.Schema = READ_SCHEMA, filters: Sequence[Filter] = (), **options: Any) -> pa.Table:
        reader, partitions = self.plan(schema, filters, **options)
        return pa.Table.from_batches([batch for one in partitions for batch in reader.read(one)], schema)

    def sequences(self, **options: Any) -> list[int]:
        found: list[int] = self.read(pa.schema([READ_SCHEMA.field("sequence")]), **options)["sequence"].to_pylist()
        return found

    def writer(self, schema: pa.Schema, overwrite: bool = False, **options: Any) -> Any:
        return source.writer(self.options(options), from_arrow_schema(schema), overwrite)

    def write(self, *tasks: pa.Table, overwrite: bool = False, **options: Any) -> list[WriterCommitMessage]:
        """Write each table as a task of its own and commit; returns the messages of the tasks."""
        writer = self.writer(tasks[0].schema, overwrite, **options)
        messages = [travel(travel(writer).write(iter(task.to_batches()))) for task in tasks]
        travel(writer).commit(messages)
        return messages


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the streams ORDERS (orders.>), ORDERS_EU (eu.>) and LOGS (logs.line only)."""
    made = Store.create(tmp_path / "my store")
    made.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    made.add_stream({"name": "ORDERS_EU", "subjects": ["eu.>"]})
    made.add_stream({"name": "LOGS", "subjects": ["logs.line"]})
    return made


@pytest.fixture
def driver(store: Store) -> Driver:
    return Driver(store.paths[0])


@pytest.fixture
def orders() -> Callable[..., pa.Table]:
    """Return `n` messages for ORDERS, the first with number `first`."""

    def make(count: int, first: int = 0, prefix: str = "orders.") -> pa.Table:
        numbers = range(first, first + count)
        return pa.table(
            {
                "subject": [f"{prefix}{number % 3}.new" for number in numbers],
                "data": pa.array([f"order {number}".encode() for number in numbers], pa.binary()),
            }
        )

    return make
