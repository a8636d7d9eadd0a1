"""Batch reads of another server's store (`layout=nats`, `stan`), in place, with its checksums; nothing is written.

The server keeps no index of times: a start or end by time is a filter on the messages' times, stream by stream.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.edge import show_codes
from datasource.offsets import Extent, resolve_ranges
from datasource.partitions import SlicePartition, pack
from datasource.reader import seen_from_here, select_streams
from datasource.settings import ReadSettings
from datasource.shape import Shape
from datasource.store_opening import open_foreign_store
from datasource.workers import freeze_modules
from storage_core.errors import DataLossError
from storage_core.foreign import ForeignDamage, ForeignSlice, ForeignStore, open_foreign_slices
from storage_core.foreign.union import UnionSlice, clip
from storage_core.sequences import SequenceSet

log = logging.getLogger("jstream")


@dataclass(frozen=True, slots=True)
class ForeignPart:
    """A slice of a foreign stream that can be split."""

    part: ForeignSlice

    @property
    def row_count(self) -> int:
        # How many messages a block holds without an index is known when it is read: it must not count as empty.
        return self.part.row_count if self.part.known else max(1, self.part.row_count)

    @property
    def byte_size(self) -> int:
        return self.part.byte_size

    def split(self, row_count_max: int) -> "list[ForeignPart]":
        """Return parts of at most `row_count_max` messages, or the whole if nobody knows where its messages are."""
        removed = SequenceSet.decode(self.part.removed)
        shown = SequenceSet.from_ranges([(self.part.first, self.part.end)]).difference(removed)
        # Several copies can be cut anywhere, but not where a damaged one may have held anything.
        if not (self.part.known or (isinstance(self.part, UnionSlice) and len(shown) <= 2 * self.part.row_count)):
            return [self]
        rows = np.cumsum(shown.ends - shown.starts)
        cuts = np.arange(row_count_max, int(rows[-1]), row_count_max)
        run = np.searchsorted(rows, cuts, side="right")
        firsts = [self.part.first, *(shown.ends[run] - (rows[run] - cuts)).tolist()]
        ends = [*firsts[1:], self.part.end]
        return [self._between(first, end, removed) for first, end in zip(firsts, ends, strict=True)]

    def _between(self, first: int, end: int, removed: SequenceSet) -> "ForeignPart":
        if isinstance(self.part, UnionSlice):
            return ForeignPart(clip(self.part, first, end))
        inside = removed.clip(first, end)
        row_count = end - first - len(inside)
        byte_size = self.part.byte_size * row_count // max(1, self.part.row_count)
        return ForeignPart(
            replace(self.part, first=first, end=end, removed=inside.encode(), row_count=row_count, byte_size=byte_size)
        )


@show_codes
class ForeignReader(DataSourceReader):
    """Reads messages of a store that another server wrote."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema

    def partitions(self) -> Sequence[InputPartition]:
        store = plan_store(self.settings)
        parts = [ForeignPart(part) for part in self._plan(store)]
        packed = pack(parts, self.settings.min_partitions, self.settings.partition_rows_max)
        freeze_modules()
        return [SlicePartition(tuple(part.part for part in parts)) for parts in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition), partition
        settings, shape = self.settings, Shape.of(self.settings, self.schema)
        hears = settings.truncate_bad_eof or settings.no_crc or not settings.fail_on_data_loss
        try:
            for opened in open_foreign_slices(partition.slices):
                # Copies that differ are reported also where that costs nothing.
                listener = self._on_damage if hears or isinstance(opened.part, UnionSlice) else None
                for batch in opened.read(shape.asked, listener):
                    yield shape.conform(batch)
            freeze_modules()
        except DataLossError:
            self._check_seen()
            raise

    def _on_damage(self, damage: ForeignDamage) -> None:
        """Report damage before the messages that it lies among; fails the read if no option allows it."""
        fails = self.settings.fail_on_data_loss
        if fails and damage.costs and not damage.allowed:
            raise DataLossError(damage.explain())
        if damage.elsewhere:
            level = logging.INFO if damage.gone else logging.WARNING  # a copy that lacks something, or contradicts
            log.log(level, "copies differ, the read continues: %s", damage.describe())
            return
        self._check_seen()
        why = "as the options ask" if fails else "failOnDataLoss=false"
        log.warning("%s, the read continues: %s", why, damage.describe())

    def _check_seen(self) -> None:
        with seen_from_here(self.settings):
            open_foreign_store(self.settings)

    def _plan(self, store: ForeignStore) -> Iterator[ForeignSlice]:
        settings = self.settings
        names = select_streams(store.streams(), settings.streams)
        for name in names:
            for note in store.noted(name):
                if note.costs:
                    self._on_damage(note)
                log.warning("stream %r: %s", name, note.reason)
            if caveat := store.caveat(name):
                log.warning("stream %r: %s", name, caveat)
        columns = Shape.of(settings, self.schema).asked
        extents = {name: Extent(*store.bounds(name)) for name in names}
        starting, ending = settings.bounds()
        ranges = resolve_ranges(extents, starting, ending, None, settings.fail_on_data_loss)
        for name, (first, end) in ranges.items():
            yield from store.plan(
                name,
                columns,
                first=first,
                end=end,
                time_first_ns=starting.time_of(name),
                time_end_ns=ending.time_of(name),
                subject_filters=() if settings.subject is None else (settings.subject,),
            )


def plan_store(settings: ReadSettings) -> ForeignStore:
    """Return the store on the driver; logs if it is in use."""
    store = open_foreign_store(settings)
    for writer in store.writers():
        log.warning("%s", writer.describe())
    return store
