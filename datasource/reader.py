"""Batch reads of messages: planned once on the driver from metadata alone, read on the executors from the block files.

A plan names blocks by digest and range, so that the same DataFrame gives the same rows each time it is used; blocks
that have gone since then are StalePlanError, never fewer rows.
"""

import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from datasource import places
from datasource.filters import INT64_MAX, INT64_MIN, Constraints, push
from datasource.offsets import Extent, resolve_ranges
from datasource.partitions import SlicePartition, pack_blocks
from datasource.settings import ReadSettings
from datasource.values import nearest
from storage_core import Store
from storage_core.errors import NotAStoreError, NotFoundError
from storage_core.store.plan import ReadRequest
from storage_core.store.reading import ReadDamage, ReadOptions, read_slices

log = logging.getLogger("jstream")


class MessageReader(DataSourceReader):
    """Reads messages of the streams that the options name. Holds plain values only: Spark pickles it to its tasks."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema
        self.constraints = push((), settings.subject).constraints

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read; called once a plan, on the driver."""
        if self.constraints.impossible:
            return [SlicePartition(())]
        with open_store(self.settings) as store:
            plan = store.plan(self._request(store))
        packed = pack_blocks(plan.slices, self.settings.min_partitions, self.settings.partition_rows_max)
        return [SlicePartition(slices) for slices in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; called on an executor, once for each attempt of its task."""
        assert isinstance(partition, SlicePartition), partition
        constraints = self.constraints
        options = ReadOptions(
            columns=tuple(self.schema.names),
            subject_filters=constraints.subjects or (),
            time_first_ns=_bound(constraints.time_first_ns, INT64_MIN),
            time_end_ns=_bound(constraints.time_end_ns, INT64_MAX),
            verify=self.settings.verify,
            on_loss="raise" if self.settings.fail_on_data_loss else "skip",
        )
        for batch in read_slices(partition.slices, options, report=self._on_damage):
            yield conform(batch, self.schema)

    def _on_damage(self, damage: ReadDamage) -> None:
        """Hear of a bad copy that another one stood in for, or of messages that no copy has, before the read fails or
        goes on.
        """
        if damage.served:
            log.warning("%s", damage)
            return
        with seen_from_here(self.settings):
            open_store(self.settings).close()
        if not self.settings.fail_on_data_loss:
            log.warning("failOnDataLoss=false, the read goes on: %s", damage)

    def _request(self, store: Store) -> ReadRequest:
        names = select_streams(store.streams(), self.settings.streams)
        ranges = stream_ranges(store, names, self.settings)
        kept = {name: _clip(bounds, self.constraints) for name, bounds in ranges.items() if self._takes(name)}
        return ReadRequest(
            streams=tuple(kept),
            ranges=kept,
            time_first_ns=_bound(self.constraints.time_first_ns, INT64_MIN),
            time_end_ns=_bound(self.constraints.time_end_ns, INT64_MAX),
            subject_filters=self.constraints.subjects or (),
        )

    def _takes(self, stream: str) -> bool:
        return self.constraints.takes_stream(stream)


class FilteringMessageReader(MessageReader):
    """The same with push-down. Spark refuses every read by a reader that has `pushFilters` while its setting
    `spark.sql.python.filterPushdown.enabled` is off, so it gets this one only when it is about to push filters.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be decided from sequence, time, subject and stream; return what Spark still has to check."""
        pushed = push(filters, self.settings.subject)
        self.constraints = pushed.constraints
        return pushed.left


def open_store(settings: ReadSettings) -> Store:
    return places.open_store(settings.paths, settings.lock_timeout_s)


@contextmanager
def seen_from_here(settings: ReadSettings) -> Iterator[None]:
    """Raise NotFoundError naming this host if the store is not to be seen from it at all.

    An executor that lacks the mount would otherwise find every message lost, and with failOnDataLoss=false go on
    without a single one.
    """
    try:
        yield
    except NotAStoreError as error:
        raise NotFoundError(
            f"{', '.join(settings.paths)} cannot be seen on {socket.gethostname()}, or holds no store there: every "
            "executor must see the store at the same path as the driver"
        ) from error


def select_streams(known: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Return the streams that the names and globs of the option `stream` pick, in order of name.

    Raises NotFoundError for a name that does not exist and for a glob that matches nothing.
    """
    listed = sorted(known)
    chosen: set[str] = set()
    for one in wanted:
        if any(character in one for character in "*?["):
            matching = [name for name in listed if fnmatchcase(name, one)]
            problem = f"no stream matches {one!r}"
        else:
            matching = [one] if one in listed else []
            problem = f"no stream {one!r}"
        if not matching:
            hint = nearest(one, listed) or f"; there are {', '.join(listed[:20]) or 'none'}"
            raise NotFoundError(f"option 'stream': {problem} in the store{hint}")
        chosen.update(matching)
    return sorted(chosen)


def stream_ranges(store: Store, names: Iterable[str], settings: ReadSettings) -> dict[str, tuple[int, int]]:
    """Return the sequences that the starting and ending options ask of each stream."""
    extents = {}
    for name in names:
        stream = store.stream(name)
        extents[name] = Extent(stream.first_sequence, stream.last_sequence + 1)
    starting, ending = settings.bounds()
    return resolve_ranges(extents, starting, ending, store.first_at_time, settings.fail_on_data_loss)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch under exactly the declared schema: Spark reads the memory of a wrong one without a look.

    Only NOT NULL may differ, on columns that are never null.
    """
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names or batch.schema.types != schema.types:
        raise TypeError(f"storage returned columns {batch.schema} where {schema} was declared")
    for column, declared in zip(batch.columns, schema, strict=True):
        if not declared.nullable and column.null_count:
            raise TypeError(f"storage returned nulls in column {declared.name!r}, which is declared NOT NULL")
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _clip(bounds: tuple[int, int], constraints: Constraints) -> tuple[int, int]:
    first, end = max(bounds[0], constraints.first), min(bounds[1], constraints.end)
    return first, max(first, end)


def _bound(value: int, unbounded: int) -> int | None:
    return None if value == unbounded else value
