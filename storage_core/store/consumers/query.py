"""What a streaming query does with the store: where it begins, what became of its streams, what it has done.

A query's own memory is its checkpoint: a `QueryPosition` a stream. `reconcile` holds it against the streams as they
are, before every plan. What it finds is reported once: as an event, in the log, and, by a query that may not continue,
as a DataLossError.

A query looks at the metadata once in a micro-batch and hands that view to each call. A call that writes leaves the next
view in `QueryReader.view`.

With a durable consumer the store knows the query's place as well. Without a checkpoint the query begins there, and
whatever batch is finished moves it up, one entry of the log for all streams. Such a query owns its consumers
(ownership.py): what a former one still says is refused.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from storage_core.errors import DataLossError, OtherHostError, ReadOnlyError, StorageError
from storage_core.metadata.commands import (
    AddConsumer,
    AdvanceConsumers,
    ConsumerAdvance,
    Event,
    MoveConsumer,
    PauseConsumer,
    QueryStart,
    RecordConsumerEvents,
    RecordEvents,
)
from storage_core.metadata.config import check_name
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.consumers import ANY_GENERATION, position_of
from storage_core.metadata.events import new_events
from storage_core.metadata.reconcile import (
    CONTINUE,
    FAIL,
    POLICIES,
    Action,
    Decision,
    Position,
    decide,
    decide_without_stream,
    facts_of,
    position_at,
)
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.consumers.fetching import done_by
from storage_core.store.consumers.ownership import Ownership
from storage_core.store.consumers.position import decision_of, move_of, reconciling
from storage_core.store.consumers.query_position import (
    QueryPosition,
    beginning,
    is_on_history,
    onward,
    place_of,
    reported_kept,
    waiting_of,
)
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View
from storage_core.store.opened import OpenStore
from storage_core.store.reading.availability import first_away
from storage_core.store.volume.volumes import Volume

__all__ = ["QueryPosition", "QueryReader", "QueryStart", "onward"]
logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What reconciliation says of a query in one stream."""

    at: QueryPosition
    stream: StreamState | None  # None: it is gone
    made: Decision

    @property
    def reconciled(self) -> QueryPosition | None:
        """Where the query goes on; None: not in this stream."""
        if self.stream is None:
            return None
        place = position_at(facts_of(self.stream), self.made.next_sequence)
        return QueryPosition(place, reported_kept(self.stream.lost, place.next_sequence))


class QueryReader:
    """One query's dealings with a store. For one thread at a time, as Spark calls a source.

    Calls that take a `view` go by it; without one they look at the metadata themselves.
    """

    view: View  # that the last call went by, or, if it wrote, left

    def __init__(
        self, store: OpenStore, consumer: str | None = None, take_over: bool = False, own: bool = True
    ) -> None:
        """`consumer`: the durable consumer that the query reads as, of each of its streams, made by first use.

        `take_over`: take it away from a live query. `own=False`: look, and acknowledge on behalf of whoever owns it;
        such a reader makes a consumer, and moves none anywhere but up.
        """
        self._store, self._consumer, self._own = store, consumer, own
        self._ownership: Ownership | None = None
        if consumer is not None:
            check_name(consumer, "name of a consumer")
            if own and not store.read_only:
                self._ownership = Ownership(store, consumer, take_over)
        self._outcomes: dict[str, tuple[QueryPosition, QueryPosition | None]] = {}  # what was reported, where it led

    def close(self) -> None:
        """Let go of the consumers."""
        if self._ownership is not None:
            self._ownership.close()

    @property
    def _state(self) -> StoreState:
        return self.view.state

    def _use_view(self, view: View | None) -> None:
        """Go by this view; without one, look."""
        self.view = view if view is not None else self._store.view()

    def _write(self, job: Callable[[Session], T]) -> T:
        """Return what a job in a session returns; the next view is what it leaves."""
        result = self._store.together(job, self.view)
        self.view = self._store.known
        return result

    def _own_consumers(self, names: Iterable[str]) -> None:
        """Own the consumers that these streams have.

        Raises StoreBusyError naming a live query that has one, FencedError if one was taken over.
        """
        if self._ownership is not None:
            for stream in self._streams(self._state, names):
                self._consumer_in(stream)
            self.view = self._ownership.own(names, self.view)

    def _make(self, session: Session, stream: StreamState, start: QueryStart) -> None:
        """Make the consumer of a stream, and own it."""
        assert self._consumer is not None
        logger.info("stream %s: consumer %s is made at sequence %d", stream.name, self._consumer, start.sequence)
        config = ConsumerConfig(name=self._consumer)
        session.propose(AddConsumer(stream.incarnation, config, start.sequence, start))
        if self._ownership is not None:
            made = self._store.stream_state(stream.name, session.state)
            self._ownership.own_new(session, made, made.consumers[self._consumer.casefold()])

    # --- where a query begins

    def at(self, stream: str, sequence: int) -> QueryPosition:
        """Return the position of a query that begins at `sequence` now: whatever is lost by now is nothing to tell.

        Raises NotFoundError.
        """
        return beginning(self._store.stream_state(stream), sequence)

    def begin(self, starts: Mapping[str, QueryStart], view: View | None = None) -> dict[str, QueryPosition]:
        """Return where a query without a checkpoint begins in each stream; the same again if it is asked again.

        With a consumer that is where the consumer stands, unless an option chose a place: then the consumer is moved
        there, once. One that is not there yet is made. The positions are still to be reconciled. Raises NotFoundError,
        ReadOnlyError, StoreBusyError, FencedError.
        """
        self._use_view(view)
        if self._consumer is None:
            streams = {name: self._store.stream_state(name, self._state) for name in starts}
            return {name: beginning(stream, starts[name].sequence) for name, stream in streams.items()}
        self._own_consumers(starts)
        if not all(self._is_begun(self._store.stream_state(name, self._state), at) for name, at in starts.items()):

            def job(session: Session) -> None:
                for name, start in starts.items():
                    stream = self._store.stream_state(name, session.state)
                    if not self._is_begun(stream, start):
                        self._begin_one(session, stream, start)

            self._write(job)
        return self._places(self._state, starts)

    def _is_begun(self, stream: StreamState, start: QueryStart) -> bool:
        """Return whether the stream's consumer stands where the query begins."""
        consumer = self._consumer_in(stream)
        if consumer is None:
            return False
        if not start.choice or not self._own:
            return True
        is_there = consumer.next_sequence == consumer.query_start.sequence and not consumer.outstanding()
        return consumer.query_start.choice == start.choice and is_there and consumer.incarnation == stream.incarnation

    def _begin_one(self, session: Session, stream: StreamState, start: QueryStart) -> None:
        """Make the consumer, or move it where an option says."""
        consumer = self._consumer_in(stream)
        if consumer is None:
            self._make(session, stream, start)
            return
        if self._ownership is not None:
            self._ownership.generation(session, stream, consumer)
        events: tuple[Event, ...] = ()
        before, after = place_of(stream, consumer).next_sequence, start.sequence
        if before != after:
            reason = f"a query without a checkpoint begins there: {start.choice}"
            events = (Event("consumer_moved", stream.name, consumer.name, "", str(before - 1), str(after - 1), reason),)
            logger.warning(
                "consumer %s of stream %s is moved from sequence %d to %d: %s",
                consumer.name, stream.name, before, after, reason,
            )  # fmt: skip
        session.propose(MoveConsumer(stream.incarnation, consumer.name, after, 0, events, start))

    def _places(self, state: StoreState, starts: Mapping[str, QueryStart]) -> dict[str, QueryPosition]:
        places = {}
        for name, start in starts.items():
            stream = self._store.stream_state(name, state)
            consumer = self._consumer_in(stream)
            if consumer is None or (start.choice and not self._own):
                places[name] = beginning(stream, start.sequence)
                continue
            place = place_of(stream, consumer)
            places[name] = QueryPosition(place, reported_kept(consumer.reported, place.next_sequence))
            if self._own and place.next_sequence != (consumer.query_start.sequence or stream.first_sequence):
                logger.warning(
                    "stream %s: a query without a checkpoint resumes from consumer %s, at sequence %d",
                    name, consumer.name, place.next_sequence,
                )  # fmt: skip
        return places

    def _consumer_in(self, stream: StreamState) -> ConsumerState | None:
        """Return the query's consumer of a stream; raises ValueError if there is one of another case."""
        if self._consumer is None:
            return None
        consumer = stream.consumers.get(self._consumer.casefold())
        if consumer is not None and consumer.name != self._consumer:
            raise ValueError(
                f"consumer {self._consumer!r} differs from consumer {consumer.name!r} of stream {stream.name!r} only "
                "in case"
            )
        return consumer

    # --- what became of the streams

    def reconcile(
        self, at: Mapping[str, QueryPosition], policy: str, remedy: str, view: View | None = None
    ) -> dict[str, QueryPosition]:
        """Return the positions from which a query at these positions continues; a stream that was deleted is left out.

        If nothing has changed, they are the same positions. Otherwise the changes are decided under the store's lock,
        by `policy`: FAIL raises DataLossError with all changes and `remedy`, and moves no consumer; CONTINUE moves the
        consumers, records the decisions and logs them. Called before every plan. Raises FencedError, StoreBusyError.
        """
        assert policy in POLICIES, policy
        self._use_view(view)
        while True:  # until nothing is left to write: other processes may have written in between
            index = self.view.index
            self._own_consumers(at)
            if self._news(self._state, self._after_outcomes(self._state, at), policy):
                self._reconcile_news(at, policy, remedy)
            self._make_missing(self._after_outcomes(self._state, at))
            if self.view.index == index:
                return self._after_outcomes(self._state, at)

    def _after_outcomes(self, state: StoreState, at: Mapping[str, QueryPosition]) -> dict[str, QueryPosition]:
        """Return the positions with those replaced that this process has reconciled before."""
        positions: dict[str, QueryPosition] = {}
        for name, position in at.items():
            before = self._outcomes.get(name)
            current = before[1] if before is not None and before[0] == position else position
            if current is None and state.stream(name) is not None:  # made again since
                current = position
            if current is not None:
                positions[name] = current
        return positions

    def _news(self, state: StoreState, at: Mapping[str, QueryPosition], policy: str) -> dict[str, _Verdict]:
        verdicts = {name: self._verdict(state, name, position, policy) for name, position in at.items()}
        return {name: verdict for name, verdict in verdicts.items() if verdict.made.must_be_reported}

    def _verdict(self, state: StoreState, name: str, at: QueryPosition, policy: str) -> _Verdict:
        stream = state.stream(name)
        if stream is None:
            return _Verdict(at, None, decide_without_stream(at.position, name, policy))
        made = decide(at.position, facts_of(stream), at.reported, policy)
        consumer = self._consumer_in(stream)
        if (
            made.must_be_reported
            and policy == CONTINUE
            and consumer is not None
            and at.position == position_of(consumer)
        ):
            waiting = waiting_of(stream, consumer)
            if waiting:  # it stands at the consumer's end, for its history: what waits before comes first
                made = replace(made, next_sequence=min(made.next_sequence, int(waiting.starts[0])))
        return _Verdict(at, stream, made)

    def _reconcile_news(self, at: Mapping[str, QueryPosition], policy: str, remedy: str) -> None:
        """Decide under the lock and write it down."""

        def job(session: Session) -> dict[str, _Verdict]:
            news = self._news(session.state, self._after_outcomes(session.state, at), policy)
            for name, verdict in news.items():
                if policy == FAIL:
                    self._record(session, verdict.stream, self._event(name, verdict))
                else:
                    self._carry_out(session, name, verdict)
            return news

        doubt = ""
        try:
            news = self._write(job)
        except (ReadOnlyError, OtherHostError):
            news = self._news(self._state, self._after_outcomes(self._state, at), policy)
            doubt = " (judged by what can be read: the store is not written from here)"
        if news and policy == FAIL:
            reasons = "; ".join(verdict.made.reason for verdict in news.values())
            raise DataLossError(f"{reasons}{doubt}. {remedy}" if remedy else f"{reasons}{doubt}")
        for name, verdict in news.items():
            logger.warning("%s: %s%s", verdict.made.action.value, verdict.made.reason, doubt)
            self._outcomes[name] = at[name], verdict.reconciled

    def readable(
        self, name: str, first: int, end: int, view: View | None = None, volumes: Sequence[Volume] | None = None
    ) -> tuple[int, str]:
        """Return up to where [first, end) of a stream can be read now, and why no further; that is reported once.

        `volumes`: as they were found a moment ago. What cannot be read, and was not declared lost, is never gone on
        past: a volume is away. Raises ProcessError.
        """
        store = self._store
        self._use_view(view)
        stream = store.stream_state(name, self._state)
        volumes = volumes if volumes is not None else store.volumes()
        away = first_away(self._state, stream, volumes, first, end, store.environment)
        if away is None:
            return end, ""
        sequence, reason = away
        kind = "query_unreadable" if self._ownership is None else "consumer_unreadable"
        event = Event(kind, name, self._consumer or "", before=f"from {sequence} on", reason=f"it waits: {reason}")
        self._tell_once(stream, event)
        return sequence, reason

    def batch_shortened(
        self, name: str, bounds: tuple[int, int], gone_count: int, count: int, view: View | None = None
    ) -> None:
        """Write down that a batch of `count` messages is read without those that were removed since it was planned."""
        self._use_view(view)
        stream = self._store.stream_state(name, self._state)
        reason = f"{gone_count} of {count} messages were removed after the batch was planned; it is read without them"
        logger.warning("stream %s, sequences %d to %d: %s", name, bounds[0], bounds[1] - 1, reason)
        place = f"{bounds[0]} to {bounds[1] - 1}"
        self._tell_once(stream, Event("batch_shortened", name, self._consumer or "", before=place, reason=reason))

    def _tell_once(self, stream: StreamState, event: Event) -> None:
        """Write an event down, unless the store has it; where it cannot be written now the query goes on."""
        if self._store.read_only or not new_events(self._state.events, (event,)):
            return
        try:
            self._write(lambda session: self._record(session, session.state.by_incarnation(stream.incarnation), event))
        except StorageError as error:
            logger.info("stream %s: an event cannot be written down: %s: %s", stream.name, event.reason, error)

    def _record(self, session: Session, stream: StreamState | None, event: Event) -> None:
        """Write an event down for the stream's consumer, as the session has it, if this query owns that."""
        consumer = self._consumer_in(stream) if stream is not None and self._ownership is not None else None
        if stream is None or consumer is None:
            session.propose(RecordEvents((event,)))
        else:
            session.propose(RecordConsumerEvents(stream.incarnation, consumer.name, (event,)))

    def _event(self, name: str, verdict: _Verdict) -> Event:
        who, before = "query" if self._ownership is None else "consumer", str(verdict.at.position.next_sequence - 1)
        if verdict.made.action is Action.FAIL:
            return Event(f"{who}_failed", name, self._consumer or "", "", before, before, verdict.made.reason)
        after = "" if verdict.stream is None else str(verdict.made.next_sequence - 1)
        reason = f"{verdict.made.action.value}: {verdict.made.reason}"
        return Event(f"{who}_reconciled", name, self._consumer or "", "", before, after, reason)

    def _carry_out(self, session: Session, name: str, verdict: _Verdict) -> None:
        """Write down where the query goes on, and take its consumer along."""
        event, stream = self._event(name, verdict), verdict.stream
        consumer = self._consumer_in(stream) if stream is not None else None
        if self._ownership is None or stream is None:
            session.propose(RecordEvents((event,)))
        elif consumer is None:
            self._make(session, stream, QueryStart(verdict.made.next_sequence))
            self._record(session, session.state.by_incarnation(stream.incarnation), event)
        else:
            self._ownership.generation(session, stream, consumer)
            session.propose(move_of(stream, consumer, decision_of(stream, consumer, CONTINUE), (event,)))

    def _make_missing(self, at: Mapping[str, QueryPosition]) -> None:
        """Make the consumers of streams that have none, or none any more, where the query stands."""
        if self._ownership is None or all(map(self._consumer_in, self._streams(self._state, at))):
            return

        def job(session: Session) -> None:
            for stream in self._streams(session.state, at):
                start = at[stream.name].position
                if self._consumer_in(stream) is None and start.incarnation == stream.incarnation:
                    self._make(session, stream, QueryStart(start.next_sequence))

        self._write(job)

    @staticmethod
    def _streams(state: StoreState, names: Iterable[str]) -> list[StreamState]:
        return [stream for name in sorted(names) if (stream := state.stream(name)) is not None]

    # --- what was done

    def acknowledge(self, ends: Mapping[str, Position], view: View | None = None) -> None:
        """Advance each consumer durably to its position, with one entry for all streams; no consumer moves back.

        Nothing is written if no consumer moves, or without a consumer. A position that is not on its stream's history
        is skipped: `reconcile` decides about it. Raises FencedError, ReadOnlyError, StoreBusyError.
        """
        if self._consumer is None:
            return
        self._use_view(view)
        self._own_consumers(ends)
        if not self._advances(self._state, ends):
            return

        def job(session: Session) -> None:
            for stream, consumer, _ in self._advances(session.state, ends):
                if not is_on_history(stream, position_of(consumer)):  # the query's place is good, its consumer's is not
                    session.propose(reconciling(stream, consumer, decision_of(stream, consumer, CONTINUE)))
            advances, done = [], {}
            for stream, consumer, end in self._advances(session.state, ends):
                done[stream.incarnation] = done_by(self._store, stream, consumer, end)
                advances.append(
                    ConsumerAdvance(
                        stream.incarnation, consumer.name, end, self._generation(session, stream, consumer),
                        done[stream.incarnation].encode() if done[stream.incarnation] else b"",
                    )
                )  # fmt: skip
            if advances:
                session.propose(AdvanceConsumers(tuple(advances)))
            for incarnation, sequences in done.items():
                if sequences:
                    self._store.release(session, incarnation, sequences)

        self._write(job)

    def _generation(self, session: Session, stream: StreamState, consumer: ConsumerState) -> int:
        if self._ownership is None:
            return ANY_GENERATION
        return self._ownership.generation(session, stream, consumer)

    def _advances(
        self, state: StoreState, ends: Mapping[str, Position]
    ) -> list[tuple[StreamState, ConsumerState, int]]:
        """Return which consumers have to move, and up to where."""
        advances = []
        for name, end in ends.items():
            stream = state.stream(name)
            consumer = self._consumer_in(stream) if stream is not None else None
            if stream is None or consumer is None:
                continue
            if not is_on_history(stream, end):
                logger.info("stream %s: it has left sequence %d, which is acknowledged", name, end.next_sequence)
                continue
            is_there = consumer.next_sequence >= end.next_sequence and is_on_history(stream, position_of(consumer))
            if not is_there or consumer.outstanding().clip(1, end.next_sequence):
                advances.append((stream, consumer, end.next_sequence))
        return advances

    # --- what the consumer says

    def is_paused(self, stream: str, view: View | None = None) -> bool:
        """Return whether the stream's consumer is paused now."""
        consumer, now_ns = self._of(stream, view), self._store.environment.now_ns()
        if consumer is None or consumer.paused_until_ns <= now_ns:
            return False
        if consumer.is_clock_behind(now_ns) and not self._store.read_only:
            self._write(lambda session: self._set_back(session, stream, now_ns))
        return True

    def _set_back(self, session: Session, name: str, now_ns: int) -> None:
        """Write down that a pause goes by a clock that was set back: it would be as far away at each look."""
        stream = session.state.stream(name)
        consumer = self._consumer_in(stream) if stream is not None else None
        if stream is not None and consumer is not None and consumer.is_clock_behind(now_ns):
            until_ns = consumer.by_clock(now_ns).paused_until_ns
            session.propose(PauseConsumer(stream.incarnation, consumer.name, until_ns))

    def filters(self, stream: str, view: View | None = None) -> tuple[str, ...]:
        """Return the filter_subjects of the stream's consumer; none without."""
        consumer = self._of(stream, view)
        return consumer.config.filter_subjects if consumer is not None else ()

    def _of(self, name: str, view: View | None) -> ConsumerState | None:
        self._use_view(view)
        stream = self._state.stream(name)
        return self._consumer_in(stream) if stream is not None else None
