"""What the process of a streaming source keeps while a query runs: its store, its consumer, its targets.

Spark calls it strictly in turn (`initial`, then for each batch `latest`, `partitions`, sometimes `acknowledge`), and
kills the process when the query stops. Nothing here outlives it: what a restart needs stands in the offsets, which
Spark keeps, and in the store. So a batch that is replayed in another process is the same: an offset says where its
batch ends, and, where that does not follow from the offset before it, where it begins (stream_offsets.py).

Every call reconciles: positions that the streams have left behind are reported and moved before anything is read by
them (docs/reconcile.md).

Every call owns a view: it looks at the metadata once, and hands the view down. Where it writes (an acknowledgement, an
event), it goes on by the view that this leaves.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from datasource import known_stores, stream_offsets
from datasource.limits import IdleWait, Patience, admit
from datasource.offsets import Extent, resolve_starts
from datasource.partitions import SlicePartition
from datasource.reader import first_at_time, pick_streams, plan_partitions
from datasource.settings import StreamReadSettings
from datasource.spark_versions import ReadLimit
from datasource.store_opening import open_store_of
from datasource.stream_offsets import Json, Offsets, StreamOffset
from storage_core.errors import (
    DiskFullError,
    NoQuorumError,
    OtherHostError,
    OutcomeUnknownError,
    ProcessError,
    StoreBusyError,
    UnavailableError,
    VolumeFailedError,
)
from storage_core.metadata.appends import replacing_queries
from storage_core.metadata.commands import QueryStart
from storage_core.metadata.reconcile import CONTINUE, FAIL, decide, facts_of
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.paths import is_in_object_store
from storage_core.store.consumers.query import QueryReader
from storage_core.store.consumers.query_position import QueryPosition, beginning, onward
from storage_core.store.ensemble.view import View
from storage_core.store.reading.unread import UnreadRange
from storage_core.store.volume.volumes import Volume

log = logging.getLogger("jstream")
WAIT_S = 0.1  # how long a query without a trigger interval may wait for news in one call
LOOK_EVERY_S = 0.025  # while it waits
ACKNOWLEDGED_LATER = (
    DiskFullError,
    NoQuorumError,
    OutcomeUnknownError,
    ProcessError,
    StoreBusyError,
    VolumeFailedError,
)


@dataclass(frozen=True, slots=True)
class _AvailableNowEnd:
    """Where a stream ended when the trigger said `AvailableNow`."""

    incarnation: bytes
    end: int


class StreamSource:
    """One run of a query. For one thread."""

    def __init__(self, settings: StreamReadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, never going back."""
        self._settings, self._clock = settings, clock
        self._store = open_store_of(settings, settings.take_over)
        if settings.consumer is not None:
            self._store.check_host()  # else it would read, and never acknowledge what it has read
        self._is_remote = any(map(is_in_object_store, self._store.paths))
        self._looked_s = -math.inf
        self._reader = QueryReader(self._store, settings.consumer, settings.consumer_takeover)
        self._policy = FAIL if settings.fail_on_data_loss else CONTINUE
        self._patience = Patience(settings.trigger_delay_max_s, clock())
        # Of a run that ends: nothing beyond them is read.
        self._available_now_ends: dict[str, _AvailableNowEnd] | None = None
        self._starts: dict[str, QueryStart] | None = None
        self._initial: Json | None = None
        self._quiet: tuple[View, Json] | None = None  # nothing is new, and will not be by time alone
        self._idle = IdleWait(clock, lambda seconds: self._store.environment.sleep(seconds))
        self._seen: View | None = None  # what the last call went by
        self._reported: tuple[View, Json] | None = None
        self._unreadable: dict[str, int] = {}  # by stream: before which sequence the query waits
        self._says_none = True  # until it was said once

    def close(self) -> None:
        self._reader.close()
        self._store.close()

    # --- where it begins

    def prepare_available_now(self) -> None:
        """From now on nothing is read beyond what is there now."""
        state = self._store.view().state
        streams = [self._store.stream_state(name, state) for name in self._picked(state)]
        self._available_now_ends = {
            stream.name: _AvailableNowEnd(stream.incarnation, stream.next_sequence) for stream in streams
        }

    def initial(self) -> Json:
        """Return where a query without a checkpoint begins; the same again however often it is asked.

        Raises NotFoundError for a stream that does not exist; a glob may match later.
        """
        if self._initial is None:
            view = self._store.view()
            self._initial = stream_offsets.encode(self._begun(view, self._chosen_starts(view)))
        return self._initial

    def _chosen_starts(self, view: View) -> dict[str, QueryStart]:
        if self._starts is None:
            state, extents = view.state, {}
            for name in self._picked(state, must_exist=True):
                stream = self._store.stream_state(name, state)
                extents[name] = Extent(stream.first_sequence, stream.next_sequence)
            settings = self._settings
            self._starts = resolve_starts(
                extents,
                settings.bounds(),
                partial(first_at_time, self._store),
                settings.fail_on_data_loss,
                settings.consumer is not None,
            )
        return self._starts

    def first_end(self, limit: ReadLimit) -> Json:
        """Return the end of the first batch of a query without a checkpoint.

        Spark asks before it says whether there is a checkpoint, so no consumer is moved.
        """
        own, self._reader = self._reader, QueryReader(self._store, self._settings.consumer, own=False)
        try:
            view = self._store.view()
            begun = self._begun(view, self._chosen_starts(view))
            return self._look(stream_offsets.encode(begun), limit, self._reader.view, is_begun=False)
        finally:
            self._reader = own

    def _picked(self, state: StoreState, must_exist: bool = False) -> list[str]:
        names = pick_streams((stream.name for stream in state.streams.values()), self._settings.streams, must_exist)
        if not names and self._says_none:
            self._says_none = False
            log.warning(
                "no stream of %s matches %s yet: the query waits for one",
                self._store.label, ", ".join(map(repr, self._settings.streams)),
            )  # fmt: skip
        return names

    def _begun(self, view: View, starts: Mapping[str, QueryStart]) -> Offsets:
        self._remember()
        return {name: self._begin_at(at) for name, at in self._reader.begin(starts, view).items()}

    def _remember(self) -> None:
        """Let listeners know where the store is, if they can reach it: they do not get this query's settings."""
        if not self._settings.storage:
            known_stores.remember(self._store.id, self._store.paths)

    def _begin_at(self, at: QueryPosition) -> StreamOffset:
        return self._offset(at, at.position.next_sequence)

    def _offset(self, at: QueryPosition, begin: int | None = None) -> StreamOffset:
        return StreamOffset(self._store.id, at, begin, self._settings.consumer)

    # --- how far a batch goes

    def latest(self, start: Json, limit: ReadLimit) -> Json:
        """Return where the batch that begins at `start` ends; `start` itself if there is nothing for one.

        Everything before `start` is finished, and is acknowledged.
        """

        def look() -> Json:
            view = self._newer_view(start)
            return self._look(start, limit, view) if view is not None else start

        wait_s, look_every_s = (self._settings.poll_interval_s,) * 2 if self._is_remote else (WAIT_S, LOOK_EVERY_S)
        return self._idle.until_changed(start, look, wait_s if self._available_now_ends is None else 0.0, look_every_s)

    def _newer_view(self, start: Json) -> View | None:
        """Return the newest view; None if nothing has changed since there was nothing for a batch from `start`."""
        if self._quiet is None or self._quiet[1] != start:
            self._looked_s = self._clock()
            return self._store.view()
        if self._is_remote and self._clock() - self._looked_s < self._settings.poll_interval_s:
            return None
        self._looked_s = self._clock()
        self._seen = self._store.newer(self._quiet[0])
        return self._seen if self._seen.index != self._quiet[0].index else None

    def _look(self, start: Json, limit: ReadLimit, view: View, is_begun: bool = True) -> Json:
        self._quiet = None
        known = {name: _carried(offset) for name, offset in self._decode(start, view).items()}
        self._remember()
        view, begin = self._reconciled(known, view)
        view, is_acknowledged = self._acknowledge(begin, view) if is_begun else (view, False)
        joining = self._joining(view, known)
        view, begin = self._reconciled({**begin, **joining}, self._reader.view if joining else view)
        self._seen = view
        ends, has_to_wait = self._ends(view, begin, limit)
        batch = {
            name: self._ended(view, name, offset, ends.get(name, offset.sequence)) for name, offset in begin.items()
        }
        if batch != known:
            return stream_offsets.encode(batch)
        self._quiet = (view, start) if is_acknowledged and not has_to_wait else None
        return start

    def _joining(self, view: View, known: Offsets) -> Offsets:
        """Return where streams begin that came since the query began: at their first message, or their consumer."""
        names = [name for name in self._picked(view.state) if name not in known and self._is_open(view.state, name)]
        starts = {name: QueryStart(self._store.stream_state(name, view.state).first_sequence) for name in names}
        return self._begun(view, starts) if starts else {}

    def _is_open(self, state: StoreState, name: str) -> bool:
        """Return whether this run may read the stream, which was made after it began."""
        if self._available_now_ends is None:
            return True
        target = self._available_now_ends.get(name)
        return target is not None and target.incarnation == self._store.stream_state(name, state).incarnation

    def _ends(self, view: View, begin: Offsets, limit: ReadLimit) -> tuple[dict[str, int], bool]:
        """Return where the batch ends in streams that have something new; and whether something new has to wait."""
        unread, has_to_wait = {}, False
        streams = {name: self._store.stream_state(name, view.state) for name in begin}
        has_new_messages = any(self._end_of(stream) > begin[name].sequence for name, stream in streams.items())
        volumes = self._store.volumes_for_reading() if has_new_messages else ()
        for name, offset in begin.items():
            stream = streams[name]
            end = self._end_of(stream)
            if end > offset.sequence and self._reader.is_paused(name, view):
                has_to_wait = True
                continue
            until = self._readable(name, offset.sequence, end, view, volumes)
            has_to_wait |= until < end
            if until > offset.sequence:
                unread[name] = UnreadRange(stream, offset.sequence, until)
        limits = self._settings.limits.under(limit)
        if unread and self._available_now_ends is None:
            count = sum(part.message_count for part in unread.values())
            if not self._patience.is_over(count, limits.message_count_min, self._clock()):
                return {}, True
        return admit(unread, limits), has_to_wait

    def _readable(self, name: str, first: int, end: int, view: View, volumes: Sequence[Volume]) -> int:
        """Return up to where the stream can be read now: a volume that is away is waited for, and nothing is skipped.

        Raises UnavailableError where nothing comes before it, with failOnDataLoss, and under AvailableNow, which waits
        for nothing.
        """
        if end <= first:
            return end
        until, reason = self._reader.readable(name, first, end, view, volumes)
        if not reason:
            self._unreadable.pop(name, None)
            return end
        if until <= first and (self._policy == FAIL or self._available_now_ends is not None):
            raise UnavailableError(reason, stream=name, first=first, end=end)
        if self._unreadable.get(name) != until:
            self._unreadable[name] = until
            log.warning("stream %s: the query waits before sequence %d: %s", name, until, reason)
        return until

    def _end_of(self, stream: StreamState) -> int:
        if self._available_now_ends is None:
            return stream.next_sequence
        target = self._available_now_ends.get(stream.name)
        return target.end if target is not None and target.incarnation == stream.incarnation else 0

    def _ended(self, view: View, name: str, begin: StreamOffset, end: int) -> StreamOffset:
        """Return the offset of a batch from `begin` to before `end`."""
        if end == begin.sequence:
            return begin
        stream = self._store.stream_state(name, view.state)
        count = UnreadRange(stream, begin.sequence, end).message_count
        offset = self._offset(onward(stream, begin.at, end), begin.begin)
        return replace(offset, filters=self._reader.filters(name, view), count=count)

    # --- reconciliation

    def _reconciled(self, offsets: Offsets, view: View) -> tuple[View, Offsets]:
        """Return where the query resumes, and the view of which that holds; deleted streams are left out.

        Raises DataLossError if there is news and failOnDataLoss.
        """
        at = {name: offset.at for name, offset in offsets.items()}
        positions = self._reader.reconcile(at, self._policy, self._remedy(at, view.state), view)
        moved = {name: self._moved(offsets[name], position) for name, position in positions.items()}
        return self._reader.view, moved

    def _moved(self, before: StreamOffset, at: QueryPosition) -> StreamOffset:
        if at == before.at:
            return before
        was, now = before.at.position, at.position
        if (was.incarnation, was.next_sequence) != (now.incarnation, now.next_sequence):
            return self._begin_at(at)
        return self._offset(at, _carried(before).begin)

    def _remedy(self, streams: Mapping[str, object], state: StoreState) -> str:
        text = "To continue without what is gone, start the query once with option failOnDataLoss=false"
        consumer = self._settings.consumer
        known = [name for name in streams if consumer and _has_consumer(state, name, consumer)]
        if not known:  # one of a stream that was deleted went with it
            return f"{text}, or begin with a new checkpoint"
        resets = "; ".join(f"jstream consumer reset {name} {consumer} --execute" for name in known)
        return f"{text}; or begin with a new checkpoint at the consumer's position, after: {resets}"

    def _decode(self, offset: Json, view: View) -> Offsets:
        """Return an offset that Spark gave; raises ValueError if it is not of this query.

        Whether its streams have become others since is asked elsewhere, by reconciliation. The consumer is that of the
        option: a checkpoint may be resumed as another one.
        """
        offsets = stream_offsets.decode(offset)
        picked = pick_streams(offsets, self._settings.streams, must_exist=False)
        for name, stream_offset in offsets.items():
            if name not in picked:
                raise ValueError(
                    f"the checkpoint has stream {name!r}, which option 'stream' does not pick "
                    f"({', '.join(self._settings.streams)}): it is of another query, or the option has changed; name "
                    "the stream there, or begin with a new checkpoint"
                )
            stream = view.state.stream(name)
            incarnations = stream.incarnations if stream is not None else ()
            if stream_offset.store_id != self._store.id and stream_offset.at.position.incarnation not in incarnations:
                self._meet_another_store(name, stream_offset)
        return {
            name: replace(stream_offset, consumer=self._settings.consumer) for name, stream_offset in offsets.items()
        }

    def _meet_another_store(self, name: str, offset: StreamOffset) -> None:
        """Refuse a checkpoint of another store; with failOnDataLoss=false its stream counts as made again."""
        text = (
            f"the checkpoint is of another store: its offset of stream {name!r} is of store {offset.store_id.hex()}, "
            f"and {self._store.label} is store {self._store.id.hex()}"
        )
        if self._policy == FAIL:
            raise ValueError(
                f"{text}. Give the path of that store; or begin with a new checkpoint; or, if this store has taken its "
                "place, start the query once with option failOnDataLoss=false: it then reads this one from the first "
                "message on"
            )
        log.warning("%s: its streams are read from their first messages on", text)

    # --- what a batch reads

    def partitions(self, start: Json, end: Json) -> list[SlicePartition]:
        """Return what the tasks of the batch between two offsets read; the same for the same offsets.

        What was lost in the meantime is reported, with failOnDataLoss as DataLossError.
        """
        view = self._store.newer(self._seen) if self._seen is not None else self._store.view()
        until = self._decode(end, view)
        begin = _begins(self._decode(start, view), until)
        if self._policy == FAIL:
            view, _ = self._reconciled(until, view)
        view, reconciled = self._reconciled(begin, view)
        self._seen, state = view, view.state
        ranges = {name: _range(state, name, offset.sequence, until[name]) for name, offset in reconciled.items()}
        ranges = {name: bounds for name, bounds in ranges.items() if bounds[0] < bounds[1]}
        planned = plan_partitions(
            self._store, ranges, self._settings, {name: until[name].filters for name in ranges}, view
        )
        for name in ranges:
            self._report_loss(view, name, begin[name].sequence, until[name])
        replaced_by = {name: query for name, query in replacing_queries(state).items() if name in ranges}
        for partition in planned:
            partition.replaced_by = replaced_by
        return planned

    def _report_loss(self, view: View, name: str, first: int, until: StreamOffset) -> None:
        """Write down how many messages of a batch were removed since it was planned: a replay goes without them.

        Those that were lost are reported as a loss.
        """
        if until.count is None:
            return
        stream = self._store.stream_state(name, view.state)
        left = UnreadRange(stream, first, until.sequence).message_count + stream.lost.count_in(first, until.sequence)
        if left < until.count:
            self._reader.batch_shortened(name, (first, until.sequence), until.count - left, until.count, view)

    # --- what is known of the end

    def acknowledge(self, end: Json) -> None:
        """Acknowledge everything before `end`: it is finished."""
        view = self._store.view()
        self._seen, _ = self._acknowledge(self._decode(end, view), view)

    def _acknowledge(self, ends: Offsets, view: View) -> tuple[View, bool]:
        """Advance the consumers to the end of the finished batches; return the next view, and whether that was stored.

        A store that cannot be written for a while is logged, and the query continues to read. A repeated call has no
        effect: a consumer never moves back. Raises OtherHostError if another host writes the store.
        """
        if self._settings.consumer is None:
            return view, True
        try:
            self._reader.acknowledge({name: offset.at.position for name, offset in ends.items()}, view)
        except OtherHostError:
            raise
        except ACKNOWLEDGED_LATER as error:
            raise_if_limit(error)
            log.warning("consumer %s acknowledges later what was finished: %s", self._settings.consumer, error)
            return view, False
        return self._reader.view, True

    def report(self) -> Json:
        """Return the true ends of the streams, from which lag is computed; right after `latest` at no cost."""
        view = self._seen or self._store.view()
        if self._reported is None or self._reported[0].index != view.index:
            streams = [self._store.stream_state(name, view.state) for name in self._picked(view.state)]
            ends = {stream.name: self._offset(beginning(stream, stream.next_sequence)) for stream in streams}
            self._reported = view, stream_offsets.encode(ends)
        return self._reported[1]


def _carried(offset: StreamOffset) -> StreamOffset:
    """Return the end of a batch as the start of the next one, without `count` and `begin`.

    The end of an empty batch keeps `begin`: a replay needs to know where the query began.
    """
    return replace(offset, begin=offset.begin if offset.begin == offset.sequence else None, count=None)


def _has_consumer(state: StoreState, name: str, consumer: str) -> bool:
    stream = state.stream(name)
    return stream is not None and consumer.casefold() in stream.consumers


def _begins(start: Offsets, end: Offsets) -> Offsets:
    """Return where the batch between two offsets begins in each stream of `end`.

    Raises ValueError if the two do not follow one another.
    """
    begins = {}
    for name, offset in end.items():
        first = offset.first_of_batch()
        if first is None and name in start:
            before = start[name].at.position
            first = QueryPosition(before, offset.at.reported)
        is_of_one = first is not None and first.position.incarnation == offset.at.position.incarnation
        if first is None or not is_of_one or first.position.next_sequence > offset.sequence:
            raise ValueError(
                f"the checkpoint's offsets of stream {name!r} do not follow one another: a batch cannot begin at "
                f"{stream_offsets.encode({name: start[name]}) if name in start else 'nothing'} and end at "
                f"{stream_offsets.encode({name: offset})}. They were edited: put the folder 'offsets' of the "
                "checkpoint back from a copy, or begin with a new checkpoint"
            )
        begins[name] = StreamOffset(offset.store_id, first)
    return begins


def _range(state: StoreState, name: str, first: int, until: StreamOffset) -> tuple[int, int]:
    """Return the sequences [first, end) that the stream shares with what the batch was planned on."""
    stream = state.stream(name)
    assert stream is not None, name
    if until.at.position.incarnation not in stream.incarnations:
        return first, first
    shared = decide(until.at.position, facts_of(stream), stream.lost, CONTINUE).next_sequence
    return first, min(until.sequence, shared)
