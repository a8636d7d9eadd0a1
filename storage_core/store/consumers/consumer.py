"""Consumer: the face of a durable consumer towards Python. It names one consumer of one incarnation of a stream."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa

from storage_core.errors import (
    DataLossError,
    NotFoundError,
    StaleIncarnationError,
    StorageError,
    UnavailableError,
)
from storage_core.metadata import machine
from storage_core.metadata.commands import (
    Acknowledge,
    AddConsumer,
    DeleteConsumer,
    Event,
    MoveConsumer,
    PauseConsumer,
)
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.consumers import ACK, NAK, TERM, WITHHOLD, acknowledged
from storage_core.metadata.pending import pending_set
from storage_core.metadata.reconcile import CONTINUE, FAIL, Action
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet, check_sequence
from storage_core.store import contents
from storage_core.store.arguments import Sequences, check_fetch, nanoseconds, sequence_set
from storage_core.store.consumers.fetching import (
    FETCH_SCHEMA,
    FETCH_SIZE_MAX,
    DeliveredRows,
    Delivery,
    FilterScan,
    RedeliveryScan,
    command_of,
    due_again,
    plan_delivery,
    read_rows,
    scan_for_matches,
    scan_redeliveries,
    size_bound,
    unreadable_reason,
    with_counts,
    withheld_event,
)
from storage_core.store.consumers.position import ConsumerPosition, decision_of
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.reading.reading import ReadDamage
from storage_core.store.volume.volumes import Volume

PAUSE_FIRST_S, PAUSE_MAX_S = 0.01, 0.1  # between two looks of a fetch that waits
LOOKS_MIN = 10  # of a fetch whatever its timeout, where others keep taking what it looked at: empty means nothing there
UNREADABLE_LOOKS_MAX = 64  # reads of one look that bring nothing


@dataclass(frozen=True, slots=True)
class _FetchResult:
    """What a session of a fetch came to."""

    stream: StreamState
    consumer: ConsumerState  # after it
    sequences: SequenceSet
    must_retry: bool = False  # it stands elsewhere than was looked for
    failure: str = ""
    capped: str = ""  # what keeps more of them back
    volumes: tuple[Volume, ...] = ()  # as the session found them; none if some are not in order


@dataclass(frozen=True, slots=True)
class _FetchPlan:
    """What a fetch knows before its session."""

    count_max: int
    size_max: int
    wanted: FilterScan | None = None  # with a filter
    probe: RedeliveryScan | None = None  # of what is due again
    ahead: DeliveredRows | None = None  # what is to be handed out, where that is read first
    has_nothing: bool = False  # there is nothing to do

    @property
    def damage(self) -> tuple[ReadDamage, ...]:
        """Return why messages cannot be read."""
        return (*(self.wanted.damage if self.wanted is not None else ()), *(self.ahead.damage if self.ahead else ()))

    def plan_delivery(self, stream: StreamState, consumer: ConsumerState, now_ns: int) -> Delivery:
        unread = self.ahead.unreadable if self.ahead is not None else SequenceSet.empty()
        return plan_delivery(stream, consumer, now_ns, self.count_max, self.wanted, self.probe, unread)

    def having_read(self, rows: DeliveredRows) -> "_FetchPlan":
        """Return this with rows that are to be handed out, these and no others."""
        probe = self.probe
        if probe is not None:
            probe = replace(probe, readable=probe.readable.difference(rows.unreadable))
        return replace(self, count_max=rows.table.num_rows, probe=probe, ahead=rows)


def _reads_ahead(stream: StreamState, consumer: ConsumerState, sequences: SequenceSet, size_max: int) -> bool:
    """Return whether these messages are read before they are handed out (fetching.py says why)."""
    config = consumer.config
    is_careful = config.on_data_loss == FAIL or config.ack_policy == "none" or consumer.pending.withheld_count > 0
    return is_careful or (bool(sequences) and size_bound(stream, sequences) > size_max)


class Consumer(ConsumerPosition):
    """A durable reader of a stream: what it was handed, and what it acknowledged, survives it. From `Stream.consumer`.

    Several processes may fetch from one consumer: they share the messages, and none is handed out twice within
    ack_wait.
    """

    def __init__(self, store: OpenStore, incarnation: bytes, stream_name: str, name: str) -> None:
        super().__init__(store, incarnation, stream_name, name)
        self._probed_to = 1  # where the last look at messages that are due again ended

    @classmethod
    def add(cls, store: OpenStore, stream: StreamState, config: ConsumerConfig) -> "Consumer":
        """Make a consumer of the stream; raises AlreadyExistsError, ValueError for a start beyond the end."""
        start = _start(store, stream, config)
        store.together(lambda session: session.propose(AddConsumer(stream.incarnation, config, start)))
        return cls(store, stream.incarnation, stream.name, config.name)

    # --- messages

    def fetch(self, max_messages: int = 1, timeout_s: float = 5.0, max_bytes: int | None = None) -> pa.Table:
        """Return at most `max_messages`: redelivered messages first, then new ones, in the order of their sequences.

        The columns are those of a read, and `delivery_count`, 1 the first time. Waits up to `timeout_s` for the first
        message, then returns an empty table. A call may take longer by the time of one attempt and of waiting for the
        store's lock, and by a few attempts more if other fetches keep taking the same messages.

        `max_bytes` bounds the bytes of subjects, headers and data (default FETCH_SIZE_MAX); one message is returned
        whatever its size. If that or max_ack_pending kept messages back, the table's schema has metadata
        `jstream.capped`, with the name of the bound.

        Messages that cannot be read now, and were not declared lost, are kept back: with on_data_loss "continue" the
        others are returned meanwhile; with "fail" DataLossError is raised, as it is for declared losses, or
        UnavailableError where a volume is away. Raises ProcessError, and nothing is delivered.
        """
        check_fetch(max_messages, timeout_s, max_bytes)
        size_max = FETCH_SIZE_MAX if max_bytes is None else max_bytes
        monotonic = self._store.environment.monotonic
        pause, slept, until = PAUSE_FIRST_S, 0.0, monotonic() + timeout_s
        looks = 0
        while True:
            table = self._fetch_now(max_messages, size_max, is_first=not looks)
            if table is not None and table.num_rows:
                return table
            looks += 1
            is_over = slept >= timeout_s or monotonic() >= until
            # Something has moved: look again at once. Empty would say that nothing is there.
            if table is None and (looks < LOOKS_MIN or not is_over):
                continue
            if is_over:
                return FETCH_SCHEMA.empty_table()
            pause = min(pause, max(0.0, timeout_s - slept), PAUSE_MAX_S)
            self._store.environment.sleep(pause)
            slept, pause = slept + pause, pause * 2

    def _fetch_now(self, count_max: int, size_max: int, is_first: bool) -> pa.Table | None:
        """Make one attempt; return the messages, an empty table if there are none, or None if the caller must try again
        at once.
        """
        store, look, view = self._store, _FetchPlan(count_max, size_max), None
        if not (is_first and self._has_cached_messages(look)):
            view = store.view()
            stream, consumer = self._find(view.state)
            if not decision_of(stream, consumer).must_be_reported:
                look = self._look_ahead(view, stream, consumer, look)
                if look.has_nothing:
                    return FETCH_SCHEMA.empty_table()
        handed = store.together(lambda session: self._hand_out(session, look), view)
        if handed.failure:
            raise DataLossError(
                f"consumer {self.name!r}: {handed.failure}", stream=self.stream_name, consumer=self.name
            )
        if handed.must_retry:
            return None
        if not handed.sequences:
            return FETCH_SCHEMA.empty_table()
        if look.ahead is not None:
            return with_counts(look.ahead.table, handed.consumer, "max_bytes" if look.ahead.is_cut else handed.capped)
        try:
            rows = read_rows(
                store, store.known, handed.stream, handed.consumer, handed.sequences, volumes=handed.volumes
            )
        except BaseException:
            with suppress(StorageError, OSError):  # else they come again after ack_wait
                self._withhold(handed.sequences, ())
            raise
        if rows.unreadable:
            self._withhold(rows.unreadable, rows.damage)
            if not rows.table.num_rows:
                return None
        return with_counts(rows.table, handed.consumer, handed.capped)

    def _has_cached_messages(self, look: _FetchPlan) -> bool:
        """Return whether the cached view has undelivered messages, and a delivery of them needs no read before the
        session.

        The session finds the messages that came since.
        """
        try:
            stream, consumer = self._find(self._store.known.state)
        except (NotFoundError, StaleIncarnationError):  # it may have been made since
            return False
        now_ns = self._store.environment.now_ns()
        is_simple = not consumer.config.filter_subjects and not due_again(stream, consumer, now_ns)
        if not is_simple or decision_of(stream, consumer).must_be_reported:
            return False
        handout = look.plan_delivery(stream, consumer, now_ns)
        return bool(handout.new) and not _reads_ahead(stream, consumer, handout.sequences, look.size_max)

    def _look_ahead(self, view: View, stream: StreamState, consumer: ConsumerState, look: _FetchPlan) -> _FetchPlan:
        """Return what has to be known before the session, which takes reading.

        Raises DataLossError or UnavailableError if the consumer fails on loss and what comes next cannot be read.
        """
        store, now_ns = self._store, self._store.environment.now_ns()
        fails = consumer.config.on_data_loss == FAIL
        if (
            consumer.config.filter_subjects
            and consumer.next_sequence < stream.next_sequence
            and consumer.paused_until_ns <= now_ns
        ):
            look = replace(look, wanted=scan_for_matches(store, view, stream, consumer, look.count_max))
        due = due_again(stream, consumer, now_ns)
        if due and fails:
            look = replace(look, probe=RedeliveryScan(due))  # they are read before they are handed out
        elif due:
            probe, self._probed_to = scan_redeliveries(
                store, view, stream, consumer, due, look.count_max, self._probed_to
            )
            look = replace(look, probe=probe)
        handout = look.plan_delivery(stream, consumer, now_ns)
        wanted = look.wanted
        if fails and wanted is not None and wanted.damage and not wanted.sequences and not handout.sequences:
            self._stop(wanted.end, wanted.damage)
        if _reads_ahead(stream, consumer, handout.sequences, look.size_max):
            rows = read_rows(store, view, stream, consumer, handout.sequences, look.size_max)
            if rows.unreadable and fails:
                first = int(rows.unreadable.starts[0])
                rows = rows.before(first)
                if not rows.table.num_rows:
                    self._stop(first, rows.damage)
            for _ in range(UNREADABLE_LOOKS_MAX):
                if rows.table.num_rows or not rows.unreadable:
                    break
                handout = replace(look, ahead=rows).plan_delivery(stream, consumer, now_ns)
                if not handout.new:
                    break
                rows = rows.followed_by(read_rows(store, view, stream, consumer, handout.new, look.size_max))
            look = look.having_read(rows)
            handout = look.plan_delivery(stream, consumer, now_ns)
        return replace(look, has_nothing=handout.is_nothing(consumer))

    def _stop(self, sequence: int, damage: Sequence[ReadDamage]) -> NoReturn:
        """Hand nothing out since what comes next cannot be read; raises DataLossError, UnavailableError."""

        def job(session: Session) -> str:
            reason = unreadable_reason(*self._find(session.state), sequence)
            self._tell_failure(session, reason)
            return reason

        error = UnavailableError if damage[0].is_away else DataLossError
        reason = self._store.together(job)
        raise error(f"consumer {self.name!r}: {reason} ({damage[0]})", **damage[0].fields(), consumer=self.name)

    def _hand_out(self, session: Session, look: _FetchPlan) -> _FetchResult:
        nothing = SequenceSet.empty()
        made = self._reconcile(session)
        stream, consumer = self._find(session.state)
        if made.action is Action.FAIL:
            return _FetchResult(stream, consumer, nothing, failure=made.reason)
        wanted = look.wanted
        if consumer.config.filter_subjects and (wanted is None or wanted.start != consumer.next_sequence):
            is_open = consumer.next_sequence < stream.next_sequence
            if is_open and (made.must_be_reported or wanted is not None):
                return _FetchResult(stream, consumer, nothing, must_retry=True)
            look = replace(look, wanted=FilterScan(consumer.next_sequence, consumer.next_sequence, nothing))
        now_ns = self._store.environment.now_ns()
        handout = look.plan_delivery(stream, consumer, now_ns)
        if handout.is_nothing(consumer):
            return _FetchResult(stream, consumer, nothing)
        if look.ahead is not None or _reads_ahead(stream, consumer, handout.sequences, look.size_max):
            if look.ahead is None or look.ahead.sequences != handout.sequences:
                return _FetchResult(stream, consumer, nothing, must_retry=True)
        session.propose(command_of(stream, consumer, handout, now_ns, look.damage))
        if consumer.config.ack_policy == "none":  # what is handed out is done
            self._store.release(session, self._incarnation, handout.sequences)
        is_over = bool(handout.sequences or not handout.withheld)  # else what comes behind those may be there
        capped = "max_ack_pending" if handout.is_capped else ""
        volumes = session.volumes if len(session.writable) == len(session.volumes) else ()
        return _FetchResult(*self._find(session.state), handout.sequences, not is_over, capped=capped, volumes=volumes)

    def _withhold(self, sequences: SequenceSet, damage: Sequence[ReadDamage]) -> None:
        """Say that these messages were not handed out after all: no copy of them can be read now."""

        def job(session: Session) -> None:
            stream, consumer = self._find(session.state)
            must_be_reported = bool(damage) and not consumer.pending.withheld_count
            events = (withheld_event(stream.name, consumer.name, sequences, damage),) if must_be_reported else ()
            command = Acknowledge(self._incarnation, self.name, WITHHOLD, sequences.encode(), events=events)
            session.propose(command)

        self._store.together(job)

    def ack(self, sequences: Sequences) -> int:
        """Acknowledge these messages durably; return how many of them were pending. Others have no effect.

        Takes a table that `fetch` returned, a part of it, or sequences: a number, a range, a column, any iterable. With
        ack_policy "all" every pending message below the highest sequence is acknowledged, too.
        """
        return self._acknowledge(ACK, sequences)

    def nak(self, sequences: Sequences, delay_s: float = 0) -> int:
        """Ask for these messages again, after `delay_s`; return how many of them were waited for."""
        return self._acknowledge(NAK, sequences, nanoseconds("delay_s", delay_s))

    def term(self, sequences: Sequences) -> int:
        """Say that these messages are given up and never to be handed out again; return how many were waited for."""
        return self._acknowledge(TERM, sequences)

    def _acknowledge(self, kind: str, sequences: Sequences, delay_ns: int = 0) -> int:
        meant = sequence_set(sequences, self.stream_name)

        def job(session: Session) -> int:
            _, consumer = self._find(session.state)
            waiting = pending_set(consumer.pending.within(acknowledged(consumer, kind, meant)))
            if not waiting:
                return 0
            # Without a delay they are due whatever the clock says next.
            deadline_ns = self._store.environment.now_ns() + delay_ns if delay_ns else 0
            command = Acknowledge(self._incarnation, self.name, kind, waiting.encode(), deadline_ns)
            result = session.propose(command)
            assert isinstance(result, machine.ConsumerDone)
            if kind in (ACK, TERM):
                self._store.release(session, self._incarnation, waiting)
            return result.message_count

        return self._store.together(job)

    # --- the consumer itself

    def reset(self, sequence: int | None = None) -> int:
        """Go on from `sequence`, or from the first message that is there and was not acknowledged; return which it is.

        Whatever waited for its acknowledgement is forgotten, and what is lost counts as reported.
        """
        chosen = None if sequence is None else check_sequence("sequence", sequence)

        def job(session: Session) -> int:
            stream, consumer = self._find(session.state)
            to = chosen if chosen is not None else where_to_go_on(stream, consumer)
            reason = "reset by hand" if chosen is not None else "reset by hand to where it can continue"
            before, after = str(consumer.next_sequence - 1), str(to - 1)
            event = Event("consumer_reset", stream.name, self.name, "", before, after, reason)
            session.propose(MoveConsumer(self._incarnation, self.name, to, 0, (event,)))
            self._store.release(session, self._incarnation)
            return to

        return self._store.together(job)

    def pause(self, seconds: float) -> None:
        """Pause: hand out nothing for so long. Acknowledgements still count."""
        span_ns = nanoseconds("seconds", seconds)
        if not span_ns:
            raise ValueError(f"seconds: {seconds!r} is not a number of seconds above 0")
        self._pause(self._store.environment.now_ns() + span_ns)

    def resume(self) -> None:
        """End a pause."""
        self._pause(0)

    def _pause(self, until_ns: int) -> None:
        command = PauseConsumer(self._incarnation, self.name, until_ns)
        self._store.together(lambda session: session.propose(command))

    def delete(self) -> None:
        """Delete the consumer. Messages stay, but for those that with retention by interest no other one needs."""
        self._find(self._store.view().state)
        with self._store.session(releases_space=True) as session, session.group():
            session.propose(DeleteConsumer(self._incarnation, self.name))
            self._store.release(session, self._incarnation)


def _start(store: OpenStore, stream: StreamState, config: ConsumerConfig) -> int:
    """Return the sequence with which a new consumer begins."""
    first, end = stream.first_sequence, stream.next_sequence
    if config.deliver_policy == "new":
        return end
    if config.deliver_policy == "last":
        filters = config.filter_subjects or (">",)
        last_sequences = [contents.last_sequence_of(store, stream, subject_filter) for subject_filter in filters]
        return max((sequence for sequence in last_sequences if sequence is not None), default=end)
    if config.deliver_policy == "by_start_time":
        return contents.first_at_time(store, stream, config.start_time_ns) or end
    if config.deliver_policy == "by_start_sequence":
        if config.opt_start_seq > end:
            raise ValueError(f"opt_start_seq: {config.opt_start_seq} lies beyond the next message of the stream, {end}")
        return max(first, config.opt_start_seq)
    return first


def where_to_go_on(stream: StreamState, consumer: ConsumerState) -> int:
    made = decision_of(stream, consumer, CONTINUE)
    waiting = consumer.outstanding().intersection(stream.shown())
    if made.action is Action.FOLLOW or not waiting:
        return made.next_sequence
    return max(stream.first_sequence, min(made.next_sequence, int(waiting.starts[0])))
