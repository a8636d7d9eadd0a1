"""The data source as Spark drives it, without Spark: objects are pickled wherever Spark would pickle them.

Tests run on a volume on a disk; those marked `buckets` in a bucket as well. What is of buckets alone is in
test_object_stores.py.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import settings, source
from datasource.spark_versions import SPARK, Filter
from storage_core import Store
from storage_core.paths import is_in_object_store
from storage_core.schema import READ_SCHEMA
from storage_core.store.volume import object_probe

# Spark 4.0 has no filters for Python sources, and so nothing that this module imports.
collect_ignore = [] if SPARK >= (4, 1) else ["test_filters.py"]


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("buckets") is not None:
        metafunc.parametrize("volume", ["disk", "bucket"], indirect=True)


@pytest.fixture(autouse=True)
def says_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests without Spark call as the newest does, whichever is installed, but for test_early_stream_reader.py."""
    is_early = request.module.__name__.rpartition(".")[2] == "test_early_stream_reader"
    if "delta_spark" not in request.fixturenames and not is_early:
        for module in (settings, source):
            monkeypatch.setattr(module, "SAYS_LIMITS", True)


@pytest.fixture
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the volume of `store` is: a directory, or a bucket of a server that is the one of the environment."""
    if getattr(request, "param", "disk") == "disk":
        return str(tmp_path / "my store")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in request.getfixturevalue("s3_options").items():
        patch.setenv(name.upper(), value)
    patch.setattr(object_probe, "RACER_COUNT", 2)
    bucket: str = request.getfixturevalue("buckets")[0]
    return bucket


@pytest.fixture
def storage(volume: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """What the processes of a Spark session, which have another environment, need to reach it: options."""
    if not is_in_object_store(volume):
        return {}
    return {f"storage.{name}": value for name, value in request.getfixturevalue("s3_options").items()}


@pytest.fixture
def store(volume: str) -> Store:
    """A store with the streams ORDERS (orders.>), ORDERS_EU (eu.>) and LOGS (logs.line only)."""
    made = Store.create(volume)
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
