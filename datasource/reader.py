"""Batch reads of messages: planned once on the driver from metadata alone, read on the executors from the block files.

A plan names blocks by digest and range, so that the same DataFrame gives the same rows each time it is used; blocks
that have gone since then are StalePlanError, never fewer rows. A micro-batch of a streaming read is planned and read by
the same functions.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from datasource.edge import show_codes
from datasource.filters import INT64_END, INT64_MIN, Constraints, common_filters, filters_of_both, push
from datasource.offsets import EARLIEST, Extent, choice_of, left_to_consumer, resolve_ranges
from datasource.partitions import SlicePartition, pack_blocks
from datasource.settings import ReadSettings, StreamReadSettings
from datasource.shape import Shape
from datasource.spark_versions import Filter
from datasource.store_opening import open_for_reading, open_store_of
from datasource.workers import freeze_modules
from storage_core import Store
from storage_core.errors import DataLossError, NotAStoreError, NotFoundError, StreamNotFoundError
from storage_core.metadata.commands import QueryStart
from storage_core.metadata.reconcile import CONTINUE, FAIL, Action, decide, facts_of
from storage_core.store.consumers.query import QueryReader
from storage_core.store.ensemble.view import View
from storage_core.store.environment import reaching
from storage_core.store.reading.latest import latest_only
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import ReadDamage, ReadOptions, read_slices
from storage_core.store.reading.slices import BlockSlice, BlockSlices
from storage_core.suggestions import instead

log = logging.getLogger("jstream")


Settings = ReadSettings | StreamReadSettings


@show_codes
class MessageReader(DataSourceReader):
    """Reads messages of the streams that the options name. Holds plain values only: Spark pickles it to its tasks."""

    def __init__(self, settings: ReadSettings, schema: pa.Schema) -> None:
        self.settings, self.schema = settings, schema
        self.constraints = push((), settings.subject).constraints

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read; called once a plan, on the driver."""
        freeze_modules()
        if self.constraints.impossible:
            return [SlicePartition(())]
        opening = open_store_of if self.settings.consumer else open_for_reading  # who reads as a consumer makes it
        with opening(self.settings, self.settings.take_over) as store:
            view = store.view()
            request = self._request(store, view)
            own = self._filters_of_consumer(store, request.streams)
            planned = [self._narrowed(store.plan(part, view).slices, store) for part in _apart(request, own)]
        packed = pack_blocks(
            BlockSlices.concatenate(planned), self.settings.min_partitions, self.settings.partition_rows_max
        )
        subjects = {name: subject_filters for name, subject_filters in own.items() if subject_filters is not None}
        return [SlicePartition(slices, subjects) for slices in packed]

    def _narrowed(self, slices: BlockSlices, store: Store) -> BlockSlices:
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; called on an executor, once for each attempt of its task."""
        assert isinstance(partition, SlicePartition), partition
        constraints, shape = self.constraints, Shape.of(self.settings, self.schema)
        options = ReadOptions(
            columns=shape.asked,
            subject_filters=constraints.subjects or (),
            time_first_ns=_bound(constraints.time_first_ns, INT64_MIN),
            time_end_ns=_bound(constraints.time_end_ns, INT64_END),
            verify=self.settings.verify,
            on_data_loss=_on_data_loss(self.settings),
        )
        yield from rows_of(partition, options, self.settings, shape)

    def _request(self, store: Store, view: View) -> ReadRequest:
        names = select_streams((stream.name for stream in view.state.streams.values()), self.settings.streams)
        ranges = stream_ranges(store, view, names, self.settings)
        kept = {name: _clip(bounds, self.constraints) for name, bounds in ranges.items() if self._takes(name)}
        return ReadRequest(
            streams=tuple(kept),
            ranges=kept,
            time_first_ns=_bound(self.constraints.time_first_ns, INT64_MIN),
            time_end_ns=_bound(self.constraints.time_end_ns, INT64_END),
            subject_filters=self.constraints.subjects or (),
        )

    def _takes(self, stream: str) -> bool:
        return self.constraints.takes_stream(stream)

    def _filters_of_consumer(self, store: Store, names: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
        """Return the subject filters of streams whose consumer has some, met besides the read's; None: take nothing."""
        if self.settings.consumer is None:
            return {}
        reader, asked = QueryReader(store, self.settings.consumer, own=False), self.constraints.subjects or ()
        view = store.known  # which has the consumers that were made just now
        filters = {name: reader.filters(name, view) for name in names}
        return {name: filters_of_both(asked, subjects) for name, subjects in filters.items() if subjects}


def _apart(request: ReadRequest, own: Mapping[str, tuple[str, ...] | None]) -> Iterator[ReadRequest]:
    """Yield the request for the streams without subject filters of their own, and one for each other stream."""
    alike = [name for name in request.streams if name not in own]
    yield replace(request, streams=tuple(alike), ranges={name: request.ranges[name] for name in alike})
    for name, subject_filters in own.items():
        if subject_filters is not None:
            yield replace(
                request, streams=(name,), ranges={name: request.ranges[name]}, subject_filters=subject_filters
            )


def rows_of(
    partition: SlicePartition, options: ReadOptions, settings: Settings, shape: Shape
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition in the declared shape."""
    freeze_modules()

    def report_damage(damage: ReadDamage) -> None:
        _on_damage(damage, settings)

    env = reaching(settings.storage)
    for slices, subject_filters in _by_filters(partition, options.subject_filters):
        for batch in read_slices(slices, replace(options, subject_filters=subject_filters), report_damage, env):
            yield shape.conform(batch)


def _by_filters(
    partition: SlicePartition, subject_filters: tuple[str, ...]
) -> Iterator[tuple[Sequence[BlockSlice], tuple[str, ...]]]:
    """Yield the slices in order, with the subject filters of their stream."""
    slices = partition.slices
    if not partition.subjects or not isinstance(slices, BlockSlices):
        yield slices, subject_filters
        return
    for at, stream in enumerate(slices.streams):
        (ours,) = np.nonzero(slices.rows["stream"] == at)
        if len(ours):
            yield slices[int(ours[0]) : int(ours[-1]) + 1], partition.subjects.get(stream.name, subject_filters)


def _on_damage(damage: ReadDamage, settings: Settings) -> None:
    """Report a bad copy that another one stood in for, or messages that no copy has, before the read fails or goes
    on.
    """
    if damage.served:
        log.warning("%s", damage)
        return
    with seen_from_here(settings):
        open_for_reading(settings).close()
    if not settings.fail_on_data_loss and not damage.is_away:
        log.warning("failOnDataLoss=false, the read continues: %s", damage)


def plan_partitions(
    store: Store,
    ranges: Mapping[str, tuple[int, int]],
    settings: Settings,
    filters: Mapping[str, tuple[str, ...]],
    view: View,
) -> list[SlicePartition]:
    """Return what tasks read of these sequences in this view, none for nothing.

    `filters`: subject filters of the consumers, stream by stream, to be met besides that of the option `subject`.
    """
    own = {name: common_filters(settings.subject, consumer_filters) for name, consumer_filters in filters.items()}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in ranges:
        subject_filters = own.get(name, common_filters(settings.subject, ()))
        if subject_filters is not None:
            groups.setdefault(subject_filters, []).append(name)
    volumes = store.volumes_for_reading() if groups else ()
    parts = []
    for subject_filters, names in groups.items():
        wanted = {name: ranges[name] for name in names}
        request = ReadRequest(tuple(names), wanted, subject_filters=subject_filters)
        parts.append(store.plan(request, view, volumes).slices)
    packed = pack_blocks(BlockSlices.concatenate(parts), settings.min_partitions, settings.partition_rows_max)
    differing = {name: own[name] or () for name, consumer_filters in filters.items() if consumer_filters}
    return [SlicePartition(slices, differing) for slices in packed if len(slices)]


@show_codes
class FilteringMessageReader(MessageReader):
    """The same with push-down. Spark refuses every read by a reader that has `pushFilters` while its setting
    `spark.sql.python.filterPushdown.enabled` is off, so it gets this one only when it is about to push filters; and
    only if it keeps the filters of one scan from the others (`spark_versions.keeps_filters_apart`).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be decided from sequence, time, subject and stream; return what Spark still has to check."""
        pushed = push(filters, self.settings.subject)
        self.constraints = pushed.constraints
        return pushed.left


@show_codes
class LastMessageReader(MessageReader):
    """Reads the last message of each subject, which the driver finds when it plans.

    No filter is pushed: which message is the last one is decided before Spark chooses among them.
    """

    def _narrowed(self, slices: BlockSlices, store: Store) -> BlockSlices:
        def report_damage(damage: ReadDamage) -> None:
            _on_damage(damage, self.settings)

        filters = self.constraints.subjects or ()
        return latest_only(slices, filters, _on_data_loss(self.settings), report_damage, store.environment)


def _on_data_loss(settings: ReadSettings) -> str:
    return FAIL if settings.fail_on_data_loss else CONTINUE


@contextmanager
def seen_from_here(settings: Settings) -> Iterator[None]:
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
    return _select(known, wanted, lambda name: True)


def pick_streams(known: Iterable[str], wanted: Sequence[str], must_exist: bool = True) -> list[str]:
    """Return the same for a streaming read, for which a glob may match later.

    Raises NotFoundError for a name that does not exist, unless that is allowed, too.
    """
    return _select(known, wanted, lambda pattern: must_exist and not is_glob(pattern))


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def _select(known: Iterable[str], wanted: Sequence[str], must_match: Callable[[str], bool]) -> list[str]:
    listed = sorted(known)
    chosen: set[str] = set()
    for pattern in wanted:
        matching = [name for name in listed if (fnmatchcase(name, pattern) if is_glob(pattern) else name == pattern)]
        if not matching and must_match(pattern):
            if not is_glob(pattern):
                raise StreamNotFoundError(pattern, "the store", listed)
            hint = instead(pattern, listed)
            raise NotFoundError(f"option 'stream': no stream matches {pattern!r} in the store{hint}")
        chosen.update(matching)
    return sorted(chosen)


def first_at_time(store: Store, name: str, time_ns: int) -> int | None:
    """Return the first sequence of the stream whose time is not before `time_ns`; None if there is none."""
    return store.stream(name).first_at_time(time_ns)


def stream_ranges(store: Store, view: View, names: Iterable[str], settings: ReadSettings) -> dict[str, tuple[int, int]]:
    """Return the sequences that the starting and ending options ask of each stream."""
    extents = {}
    for name in names:
        stream = store.stream_state(name, view.state)
        extents[name] = Extent(stream.first_sequence, stream.next_sequence)
    starting, ending = settings.bounds()
    consumer_at: dict[str, int] = {}
    left = {name: extent for name, extent in extents.items() if left_to_consumer(starting, name)}
    if settings.consumer is not None:
        consumer_at = _places_of_consumer(store, view, left, settings)
    find = partial(first_at_time, store)
    ranges = resolve_ranges(extents, starting, ending, find, settings.fail_on_data_loss, consumer_at)
    if settings.consumer is not None:
        chosen = {
            name: QueryStart(first, choice_of(starting, name, EARLIEST))
            for name, (first, _) in ranges.items()
            if name not in left
        }
        # The first use makes it; no other moves it.
        QueryReader(store, settings.consumer, own=False).begin(chosen, store.known)
    return ranges


def _places_of_consumer(
    store: Store, view: View, extents: Mapping[str, Extent], settings: ReadSettings
) -> dict[str, int]:
    """Return where the consumer stands in each stream, which does not move it; where there is none, it is made.

    Raises DataLossError if the stream has not what comes next for it (with failOnDataLoss; else it is logged).
    """
    reader = QueryReader(store, settings.consumer, own=False)
    sequences = {}
    for name, at in reader.begin({name: QueryStart(extent.first) for name, extent in extents.items()}, view).items():
        facts = facts_of(store.stream_state(name, reader.view.state))
        made = decide(at.position, facts, at.reported, FAIL if settings.fail_on_data_loss else CONTINUE)
        if made.action is Action.FAIL:
            raise DataLossError(
                f"consumer {settings.consumer!r}: {made.reason}. To read what is there, set failOnDataLoss=false; "
                f"`jstream consumer reset {name} {settings.consumer} --execute` moves the consumer on",
                stream=name,
                consumer=settings.consumer,
            )
        if made.must_be_reported:
            log.warning("consumer %s: %s: %s", settings.consumer, made.action.value, made.reason)
        sequences[name] = made.next_sequence
    return sequences


def _clip(bounds: tuple[int, int], constraints: Constraints) -> tuple[int, int]:
    first, end = max(bounds[0], constraints.first), min(bounds[1], constraints.end)
    return first, max(first, end)


def _bound(value: int, unbounded: int) -> int | None:
    return None if value == unbounded else value
