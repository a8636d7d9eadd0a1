"""Tables about another server's store: `table=streams`, `consumers` and `damage` with `layout=nats` and `stan`.

Streams and consumers are as of the moment of planning. Damage is found by reading everything with its checksums, on
the executors, a block file at a time; what is wrong beside the messages (configuration, consumers) comes with it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.edge import show_codes
from datasource.foreign import ForeignPart, ForeignReader, plan_store
from datasource.partitions import SlicePartition, pack
from datasource.reader import seen_from_here, select_streams
from datasource.settings import CONSUMERS, DAMAGE, MESSAGES, STREAMS, ReadSettings
from datasource.store_opening import open_foreign_store
from datasource.tables import RowsPartition, TableReader, table_batch
from storage_core.foreign import ForeignDamage, open_foreign_slices

log = logging.getLogger("jstream")


def _streams(settings: ReadSettings) -> list[dict[str, Any]]:
    """Return a row for each copy of a stream, also for those that cannot be read."""
    store = plan_store(settings)
    names = select_streams(store.streams(), settings.streams)
    return [copy.row() for name in names for copy in store.copies(name)]


def _consumers(settings: ReadSettings) -> list[dict[str, Any]]:
    """Return the consumers of streams. What is damaged of one is null, and logged."""
    store = plan_store(settings)
    names = select_streams(store.streams(), settings.streams)
    return [consumer.row() for name in names for consumer in store.consumers(name, _log)]


@show_codes
class ForeignDamageReader(DataSourceReader):
    """Lists all damage of streams, of each copy of one."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema

    def partitions(self) -> Sequence[InputPartition]:
        store = plan_store(self.settings)
        notes: list[ForeignDamage] = []
        parts: list[ForeignPart] = []
        for name in select_streams(store.streams(), self.settings.streams):
            damages, slices = store.inspect(name)
            notes += damages
            parts += map(ForeignPart, slices)
        packed = [SlicePartition(tuple(part.part for part in some)) for some in pack(parts, None, None)]
        return [RowsPartition([note.row() for note in notes]), *packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RowsPartition):
            yield table_batch(partition, self.schema)
            return
        assert isinstance(partition, SlicePartition), partition
        is_seen = False
        for opened in open_foreign_slices(partition.slices):
            damages: list[ForeignDamage] = []
            for _ in opened.read((), damages.append):
                pass
            if damages and not is_seen:  # of what this machine cannot see at all, nothing is known
                with seen_from_here(self.settings):
                    open_foreign_store(self.settings)
                is_seen = True
            yield pa.RecordBatch.from_pylist([damage.row() for damage in damages], schema=self.schema)


def _log(damage: ForeignDamage) -> None:
    log.warning("damage to what is kept of consumers: %s: %s", damage.file, damage.reason)


READERS: dict[str, Callable[[ReadSettings, pa.Schema], DataSourceReader]] = {
    MESSAGES: ForeignReader,
    STREAMS: partial(TableReader, _streams),
    CONSUMERS: partial(TableReader, _consumers),
    DAMAGE: ForeignDamageReader,
}
