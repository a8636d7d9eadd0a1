"""What a store holds at one moment, and reads of a stream that go by one view of the metadata."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core import notebook
from storage_core.errors import (
    DataLossError,
    MessageNotFoundError,
    NotFoundError,
    holding,
)
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.reconcile import FAIL, check_policy
from storage_core.metadata.state import StreamState
from storage_core.quantities import whole_number
from storage_core.schema import read_schema
from storage_core.sequences import check_sequence
from storage_core.store import contents, describe
from storage_core.store.arguments import check_filter, check_filters, check_range
from storage_core.store.contents import Message
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.reading.latest import latest_only
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import ReadDamage, ReadOptions, read_slices

if TYPE_CHECKING:
    import polars as pl

    from storage_core.store.reading.lazy import Fields


class ReadableStream(ABC):
    """Reads of one stream, by the view that `_look` returns. Each method looks once."""

    _store: OpenStore
    name: str

    @abstractmethod
    def _look(self) -> tuple[View, StreamState]:
        """Return the view that a read goes by, and the stream in it."""

    def state(self) -> StreamState:
        """Return the stream's committed state; raises StaleIncarnationError if it was deleted."""
        return self._look()[1]

    def info(self) -> dict[str, Any]:
        """Return configuration, state and replicas with the keys of the NATS JetStream API."""
        return notebook.Info(describe.stream_info(self._store, self.state()), notebook.stream_html)

    def _repr_html_(self) -> str:
        return notebook.stream_html(self.info())

    def consumers(self) -> list[str]:
        """Return the names of the stream's consumers, sorted."""
        return sorted(consumer.name for consumer in self.state().consumers.values())

    def read(
        self,
        first: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        subject: str | Sequence[str] | None = None,
        on_data_loss: str = FAIL,
        report: Callable[[ReadDamage], None] | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader over sequences [first, end), in order, as batches of `read_schema(columns)`.

        `on_data_loss`: at messages that are damaged or gone "fail" raises DataLossError, "continue" leaves them out.
        `report` hears of each loss. What `repair` has declared lost stops nobody: `lost_ranges` of `info` has it.
        """
        first, end = check_range(first, end)
        check_read(columns, on_data_loss)
        schema = read_schema(tuple(columns) if columns is not None else None)
        filters = check_filters(subject)
        request = ReadRequest((self.name,), {self.name: (first, end)}, subject_filters=filters)
        batches = self._batches(*self._look(), request, schema.names, on_data_loss, report)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _batches(
        self,
        view: View,
        stream: StreamState,
        request: ReadRequest,
        columns: Sequence[str],
        on_data_loss: str,
        report: Callable[[ReadDamage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a request, with these columns."""
        options = ReadOptions(
            tuple(columns), request.subject_filters, request.time_first_ns, request.time_end_ns,
            on_data_loss=on_data_loss,
        )  # fmt: skip
        slices = contents.slices(self._store, stream, request, view)
        return read_slices(slices, options, report, env=self._store.environment)

    def to_polars(
        self,
        schema: "Fields | None" = None,
        first: int | None = None,
        end: int | None = None,
        subject: str | Sequence[str] | None = None,
        on_data_loss: str = FAIL,
    ) -> "pl.LazyFrame":
        """Return the messages of [first, end), as the stream is now, as a lazy frame of polars; DuckDB reads it, too.

        `schema`: fields of JSON payloads that become columns, by a schema of polars or Arrow; null where a payload has
        no such field, or is no object of these types. A query reads the columns it names, and no blocks that its
        filters on sequence, timestamp and subject exclude. `on_data_loss`: as in `read`. Needs the extra `polars`.
        Raises ValueError naming a field; ModuleNotFoundError without polars.
        """
        try:
            from storage_core.store.reading.lazy import lazy_frame
        except ModuleNotFoundError as error:
            if error.name != "polars":
                raise
            raise ModuleNotFoundError(
                "to_polars needs polars: pip install 'pyspark-jstream[polars]'", name="polars"
            ) from error
        check_read(None, on_data_loss)
        filters = check_filters(subject)
        view, stream = self._look()

        def read(request: ReadRequest, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return self._batches(view, stream, request, columns, on_data_loss)

        request = ReadRequest((self.name,), {self.name: check_range(first, end)}, subject_filters=filters)
        return lazy_frame(read, request, schema)

    def get(self, sequence: int) -> Message:
        """Return one message; raises NotFoundError if there is none of that sequence, DataLossError if it is lost."""
        return self._get(*self._look(), check_sequence("sequence", sequence))

    def _get(self, view: View, state: StreamState, sequence: int) -> Message:
        for message in contents.messages(self._store, state, sequence, sequence + 1, view=view):
            return message
        if sequence in state.lost:
            raise DataLossError(
                f"stream {self.name!r}: message {sequence} is lost: no volume has it; the stream "
                f"{holding(state.first_sequence, state.next_sequence)}",
                stream=self.name,
                first=sequence,
                end=sequence + 1,
            )
        was_removed = state.low_watermark > sequence or sequence in state.removed
        raise MessageNotFoundError(self.name, sequence, was_removed, state.first_sequence, state.next_sequence)

    def last(self, subject: str) -> Message:
        """Return the newest message whose subject the filter takes; raises NotFoundError if there is none."""
        subject_filter = check_filter(subject)
        view, stream = self._look()
        sequence = contents.last_sequence_of(self._store, stream, subject_filter, view)
        if sequence is None:
            raise NotFoundError(f"stream {self.name!r} has no message with subject {subject!r}")
        return self._get(view, stream, sequence)

    def last_per_subject(
        self,
        subject: str | Sequence[str] | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        on_data_loss: str = FAIL,
        report: Callable[[ReadDamage], None] | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader over the last message of each subject that a filter takes, in order of sequence.

        `end`: as the stream was when only messages below this sequence had come, of those that are still there. All
        else as in `read`.
        """
        _, end = check_range(None, end)
        check_read(columns, on_data_loss)
        schema = read_schema(tuple(columns) if columns is not None else None)
        filters, env = check_filters(subject), self._store.environment
        request = ReadRequest((self.name,), {self.name: (None, end)}, subject_filters=filters)
        view, stream = self._look()
        slices = contents.slices(self._store, stream, request, view)
        last = latest_only(slices, filters, on_data_loss, report, env)
        batches = read_slices(
            last, ReadOptions(tuple(schema.names), filters, on_data_loss=on_data_loss), report, env=env
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def first_at_time(self, time_ns: int) -> int | None:
        """Return the first sequence whose time is not before `time_ns`; None if there is none. Raises ValueError."""
        moment_ns = whole_number(time_ns)
        if moment_ns is None:
            raise ValueError(f"time_ns: {time_ns!r} is not a number of nanoseconds since 1970")
        view, stream = self._look()
        return contents.first_at_time(self._store, stream, moment_ns, view=view)

    def subjects(self, subject: str | Sequence[str] | None = None) -> dict[str, int]:
        """Return the subjects of the messages that a filter takes, and how many each has, sorted."""
        view, stream = self._look()
        return contents.subject_counts(self._store, stream, check_filters(subject), view)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges [first, end) between the first and the last message whose messages are removed or lost."""
        state = self.state()
        missing = state.removed.clip(state.first_sequence, state.next_sequence)
        return list(missing.union(state.lost.clip(state.first_sequence, state.next_sequence)).ranges())


class StreamSnapshot(ReadableStream):
    """A stream as it was when `Store.snapshot` looked; whatever is written since does not show. From `Snapshot.stream`.

    Its properties read what the snapshot holds and ask no volume.
    """

    def __init__(self, store: OpenStore, view: View, stream: StreamState) -> None:
        self._store, self._view, self._state, self.name = store, view, stream, stream.name

    def _look(self) -> tuple[View, StreamState]:
        self._store.check_open()
        return self._view, self._state

    @property
    def incarnation(self) -> bytes:
        """16 bytes that no other stream has, not even a later stream of this name."""
        return self._state.incarnation

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""
        return self._state.config

    @property
    def first_sequence(self) -> int:
        """Sequence of the first message; one above last_sequence if there is none."""
        return self._state.first_sequence

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever used, 0 for none."""
        return self._state.next_sequence - 1

    def __repr__(self) -> str:
        return f"StreamSnapshot({self.name!r} at {self._view.index} of {self._store!r})"


class Snapshot:
    """A store at one moment: all that is read from it goes by one look at the volumes. From `Store.snapshot`.

    It holds no lock and no file open. Blocks of messages that were removed since stay readable for the store's
    `deleted_block_retention`; later a read of them raises StalePlanError, and a new snapshot is needed.
    """

    def __init__(self, store: OpenStore, view: View) -> None:
        self._store, self._view = store, view

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def index(self) -> int:
        """Where in the metadata log the snapshot stands: the index grows with every change of the store."""
        return self._view.index

    def streams(self) -> list[str]:
        """Return the names of the streams, sorted."""
        return sorted(stream.name for stream in self._view.state.streams.values())

    def stream(self, name: str) -> StreamSnapshot:
        """Return the stream as it was; raises NotFoundError naming the nearest name."""
        return StreamSnapshot(self._store, self._view, self._store.stream_state(name, self._view.state))

    def info(self) -> dict[str, Any]:
        """Return what there is to know about the store, with keys of the NATS API where they mean the same."""
        return notebook.Info(describe.store_info(self._view.state, self._store.volumes()), notebook.store_html)

    def __repr__(self) -> str:
        return f"Snapshot(at {self.index} of {self._store!r})"


def check_read(columns: Sequence[str] | None, on_data_loss: str) -> None:
    """Raise ValueError for what cannot be asked of a read."""
    check_policy("on_data_loss", on_data_loss)
    if isinstance(columns, str) or not isinstance(columns, Iterable | None):
        raise ValueError(f"columns: {columns!r} is not a list of names")
