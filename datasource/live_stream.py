"""Streaming reads of running NATS servers: what the process of the source keeps, and what Spark calls.

Offsets carry all that a restart needs (storage_core/live/offsets.py); between two calls only an open connection is
kept. Every call looks at the streams again, and what has happened to them goes by `failOnDataLoss`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from datasource.edge import show_codes
from datasource.limits import IdleWait, Patience, admit
from datasource.live_reader import first_at_time, infos_of, parts_of, rows_of, servers_of
from datasource.offsets import Extent, resolve_starts
from datasource.partitions import SlicePartition
from datasource.reader import pick_streams
from datasource.settings import StreamReadSettings
from datasource.spark_versions import EarlyCalls, ReadLimit
from datasource.stream_calls import QueryStreamReader
from datasource.stream_offsets import Json
from storage_core.errors import DataLossError, ServerError, StreamNotFoundError
from storage_core.live import offsets
from storage_core.live.connection import Connection
from storage_core.live.offsets import Finding, Position
from storage_core.live.positions import show_position
from storage_core.live.server import Retries, StreamInfo, message_time, stream_info

log = logging.getLogger("jstream")
T = TypeVar("T")
LOOK_EVERY_S = 0.1  # while a query without a trigger interval waits for news
REMEDY = "To continue without lost messages, set failOnDataLoss=false for one run, or take a new checkpoint"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a stream has for the next batch: sequences `[first, end)`, as many messages at most."""

    info: StreamInfo
    first: int
    end: int

    block_count = 0

    @property
    def message_count(self) -> int:
        return self.end - self.first

    @property
    def byte_count(self) -> int:
        return self.message_count * self._message_size

    @property
    def _message_size(self) -> int:
        return max(1, self.info.byte_count // max(1, self.info.message_count))

    def end_of_messages(self, count: int) -> int:
        return min(self.end, self.first + count)

    def end_of_bytes(self, size: int) -> int:
        return min(self.end, self.first + max(1, size // self._message_size))

    def end_of_blocks(self, count: int) -> int:
        return self.end


class LiveSource:
    """One run of a query. For one thread."""

    def __init__(self, settings: StreamReadSettings, schema: pa.Schema) -> None:
        self._settings, self._schema = settings, schema
        self._servers = servers_of(settings)
        self._connection: Connection | None = None
        self._patience = Patience(settings.trigger_delay_max_s, time.monotonic())
        # Of a run that ends: nothing beyond them is read.
        self._available_now_ends: dict[str, Position] | None = None
        self._initial: Json | None = None
        self._idle = IdleWait(time.monotonic, time.sleep)
        self._ends: Json = {}  # true ends, as the last call found them
        self._shown: Json | None = None  # by consumers

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns; after a fault of the moment it is done again with a new connection."""
        retries = Retries(self._servers)
        while True:
            try:
                if self._connection is None:
                    self._connection = retries.connect()
                return work(self._connection)
            except ServerError as error:
                self.close()
                retries.failed(error)

    def prepare_available_now(self) -> None:
        infos = self._ask(lambda connection: infos_of(connection, self._settings, must_match=False))
        self._available_now_ends = {name: Position(info.created, info.next_sequence) for name, info in infos.items()}

    def initial(self) -> Json:
        """Return where a query without a checkpoint begins; the same again however often it is asked."""
        if self._initial is None:
            self._initial = offsets.encode(self._ask(self._begin))
        return self._initial

    def _begin(self, connection: Connection) -> dict[str, Position]:
        infos = infos_of(connection, self._settings, must_match=False)
        extents = {name: Extent(info.first_sequence, info.next_sequence) for name, info in infos.items()}
        find = partial(first_at_time, connection, infos)
        settings = self._settings
        starts = resolve_starts(extents, settings.bounds(), find, settings.fail_on_data_loss, has_consumer=False)
        return {name: self._at(connection, infos[name], max(1, at.sequence)) for name, at in starts.items()}

    def _at(self, connection: Connection, info: StreamInfo, sequence: int) -> Position:
        """Return a place in a stream whose last message before it is the anchor."""
        time_ns = message_time(connection, info.name, sequence - 1) if sequence > info.first_sequence else None
        return Position(info.created, sequence, begin=sequence).onward(sequence, time_ns)

    # --- how far a batch goes

    def latest(self, start: Json, limit: ReadLimit) -> Json:
        """Return where the batch that begins at `start` ends; `start` itself if there is nothing for one."""
        self.acknowledge(start)

        def look() -> Json:
            return self._ask(lambda connection: self._look(connection, start, limit))

        wait_s = self._settings.poll_interval_s if self._available_now_ends is None else 0.0
        return self._idle.until_changed(start, look, wait_s, LOOK_EVERY_S)

    def first_end(self, limit: ReadLimit) -> Json:
        """Return where the first batch of a query without a checkpoint ends, and show it nowhere: it may not be one."""
        start = self.initial()
        return self._ask(lambda connection: self._look(connection, start, limit))

    def _look(self, connection: Connection, start: Json, limit: ReadLimit) -> Json:
        known = self._decode(start)
        infos = {**self._infos(connection, known), **self._joining(connection, known)}
        at = {name: self._compared(connection, infos.get(name), name, position) for name, position in known.items()}
        begins = {name: position for name, position in at.items() if position is not None}
        for name in infos.keys() - known.keys():
            begins[name] = Position(infos[name].created, infos[name].first_sequence, begin=infos[name].first_sequence)
        self._ends = offsets.encode({name: Position(info.created, info.next_sequence) for name, info in infos.items()})
        ends = self._admitted(begins, infos, limit)
        if not ends and begins == {name: position.carried() for name, position in known.items()}:
            return start
        return offsets.encode(
            {
                name: position.onward(end, message_time(connection, name, end - 1))
                if (end := ends.get(name, position.sequence)) > position.sequence
                else position
                for name, position in begins.items()
            }
        )

    def _decode(self, offset: Json) -> dict[str, Position]:
        positions = offsets.decode(offset)
        picked = pick_streams(positions, self._settings.streams, must_exist=False)
        others = sorted(positions.keys() - set(picked))
        if others:
            raise ValueError(
                f"the checkpoint has stream {others[0]!r}, which option 'stream' does not pick "
                f"({', '.join(self._settings.streams)}): name it there, or begin with a new checkpoint"
            )
        return positions

    def _infos(self, connection: Connection, names: Mapping[str, Position]) -> dict[str, StreamInfo]:
        infos = {}
        for name in names:
            try:
                infos[name] = stream_info(connection, name)
            except StreamNotFoundError:
                continue
        return infos

    def _joining(self, connection: Connection, known: Mapping[str, Position]) -> dict[str, StreamInfo]:
        """Return the streams that came since the query began and that a glob picks."""
        if not any(character in pattern for pattern in self._settings.streams for character in "*?["):
            return {}
        names = [name for name in connection.stream_names() if name not in known]
        picked = pick_streams(names, self._settings.streams, must_exist=False)
        open_ = [name for name in picked if self._available_now_ends is None or name in self._available_now_ends]
        return {name: stream_info(connection, name) for name in open_}

    def _compared(
        self, connection: Connection, info: StreamInfo | None, name: str, position: Position
    ) -> Position | None:
        """Return where the query goes on in a stream, None if it is gone. Raises DataLossError with failOnDataLoss."""
        if info is None:
            reason = f"stream {name!r} was deleted since it was read up to sequence {position.sequence - 1}"
            self._tell(Finding("deleted", 1, position.sequence, position, reason), name)
            return None
        finding = offsets.compare(position, info, partial(message_time, connection, name))
        if finding is None:
            return position.carried()
        self._tell(finding, name)
        return finding.position

    def _tell(self, finding: Finding, name: str) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{finding.reason}. {REMEDY}", stream=name, first=finding.first, end=finding.end)
        log.warning("failOnDataLoss=false, the query continues: %s", finding.reason)

    def _admitted(
        self, begins: Mapping[str, Position], infos: Mapping[str, StreamInfo], limit: ReadLimit
    ) -> dict[str, int]:
        """Return where the batch ends in the streams that have something for it."""
        pending = {}
        for name, position in begins.items():
            end = infos[name].next_sequence
            if self._available_now_ends is not None:
                target = self._available_now_ends.get(name)
                end = min(end, target.sequence) if target is not None and target.created == position.created else 0
            if end > position.sequence:
                pending[name] = _Waiting(infos[name], position.sequence, end)
        limits = self._settings.limits.under(limit)
        if pending and self._available_now_ends is None:
            count = sum(waiting.message_count for waiting in pending.values())
            if not self._patience.is_over(count, limits.message_count_min, time.monotonic()):
                return {}
        return admit(pending, limits)

    # --- what a batch reads

    def partitions(self, start: Json, end: Json) -> list[SlicePartition]:
        """Return what the tasks of the batch between two offsets read; the same for the same offsets."""
        before, until = self._decode(start), self._decode(end)
        return self._ask(lambda connection: self._parts(connection, before, until))

    def _parts(
        self, connection: Connection, before: Mapping[str, Position], until: Mapping[str, Position]
    ) -> list[SlicePartition]:
        parts = []
        for name, position in until.items():
            first = position.begin
            if first is None and name in before and before[name].created == position.created:
                first = before[name].sequence
            if first is None or first > position.sequence:
                raise ValueError(
                    f"the checkpoint's offsets of stream {name!r} do not follow one another: they were edited; put the "
                    "folder 'offsets' of the checkpoint back from a copy, or begin with a new checkpoint"
                )
            if first == position.sequence:
                continue
            info = stream_info(connection, name, with_deleted=True)
            finding = offsets.compare(position.carried(), info, partial(message_time, connection, name))
            lost_head = info.first_sequence > first and not info.is_for_consumers
            if finding is None and lost_head:
                finding = offsets.compare(Position(position.created, first), info, lambda _: None)
            if finding is not None:
                self._tell(finding, name)
                if finding.kind == offsets.MADE_AGAIN:
                    continue
            parts += parts_of(
                info, max(first, info.first_sequence), min(position.sequence, info.next_sequence),
                self._settings, self._schema,
            )  # fmt: skip
        return [SlicePartition((part,)) for part in parts]

    # --- what others see

    def report(self) -> Json:
        """Return the true ends of the streams, as the last call found them."""
        return self._ends

    def acknowledge(self, end: Json) -> None:
        """Move the consumers that show the query's position to `end`; everything before it is finished."""
        consumer = self._settings.consumer
        if consumer is None or end == self._shown:
            return
        self._ask(lambda connection: _show(connection, consumer, self._decode(end)))
        self._shown = end


def _show(connection: Connection, consumer: str, positions: Mapping[str, Position]) -> None:
    for name, position in positions.items():
        show_position(connection, name, consumer, position.created, position.sequence)


@show_codes
class LiveStreamReader(QueryStreamReader):
    """Reads messages of streams of running servers, batch by batch."""

    def _open(self) -> LiveSource:
        return LiveSource(self.settings, self.schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from rows_of(partition, self.settings, self.schema)


class EarlyLiveStreamReader(EarlyCalls, LiveStreamReader):  # type: ignore[misc]
    """The same for Spark 4.0 and 4.1."""
