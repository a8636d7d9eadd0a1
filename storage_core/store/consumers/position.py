"""Where a consumer stands in its stream, as far as metadata says it: its state, reconciled and shown without Arrow.

Only a consumer with a filter needs more: which messages it takes is found by reading (`filtered.py`).
"""

from typing import Any

from storage_core import notebook
from storage_core.errors import (
    ConsumerNotFoundError,
    DiskFullError,
    NoQuorumError,
    ProcessError,
    ReadOnlyError,
    StaleIncarnationError,
    StoreBusyError,
    VolumeFailedError,
)
from storage_core.metadata.commands import Event, MoveConsumer, RecordConsumerEvents
from storage_core.metadata.config import check_name
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.consumers import position_of
from storage_core.metadata.pending import pending_set
from storage_core.metadata.reconcile import RANGES_SHOWN, Action, Decision, decide, facts_of
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_limit
from storage_core.quantities import rfc3339
from storage_core.store import describe
from storage_core.store.ensemble.session import Session
from storage_core.store.opened import OpenStore

_NOT_WRITABLE = (DiskFullError, NoQuorumError, ProcessError, ReadOnlyError, StoreBusyError, VolumeFailedError)


class ConsumerPosition:
    """One consumer of one incarnation of a stream, and where it stands."""

    def __init__(self, store: OpenStore, incarnation: bytes, stream_name: str, name: str) -> None:
        self._store, self._incarnation, self.stream_name, self.name = store, incarnation, stream_name, name

    def __repr__(self) -> str:
        return f"Consumer({self.name!r} of stream {self.stream_name!r} of {self._store!r})"

    def _repr_html_(self) -> str:
        return notebook.consumer_html(self.info())

    def _find(self, state: StoreState) -> tuple[StreamState, ConsumerState]:
        """Return the stream and the consumer; raises StaleIncarnationError, NotFoundError naming the nearest name."""
        stream = state.by_incarnation(self._incarnation)
        if stream is None:
            raise StaleIncarnationError(
                f"stream {self.stream_name!r} was deleted, or deleted and made again", stream=self.stream_name
            )
        check_name(self.name, "name of a consumer")
        consumer = stream.consumers.get(self.name.casefold())
        if consumer is None or consumer.name != self.name:
            names = (consumer.name for consumer in stream.consumers.values())
            raise ConsumerNotFoundError(self.stream_name, self.name, names)
        return stream, consumer

    def state(self) -> ConsumerState:
        """Return the consumer's committed state."""
        return self._find(self._store.view().state)[1]

    @property
    def config(self) -> ConsumerConfig:
        """The configuration, as this `Store` last read it. Looks at no volume."""
        return self._find(self._store.known.state)[1].config

    def look(self) -> None:
        """Reconcile the position with the stream, as every open does; a store that cannot be written is left alone."""
        stream, consumer = self._find(self._store.view().state)
        if decision_of(stream, consumer).must_be_reported and not self._store.read_only:
            try:
                self._store.together(self._reconcile)
            except _NOT_WRITABLE as error:  # the next fetch does it, or says why not
                raise_if_limit(error)

    def _reconcile(self, session: Session) -> Decision:
        """Write down what the rule decides, and return it; what was reported before is not reported again."""
        stream, consumer = self._find(session.state)
        made = decision_of(stream, consumer)
        if not made.must_be_reported:
            return made
        if made.action is Action.FAIL:
            self._tell_failure(session, made.reason)
        else:
            session.propose(reconciling(stream, consumer, made))
        return made

    def _tell_failure(self, session: Session, reason: str) -> None:
        """Record that the consumer stays where it is."""
        stream, consumer = self._find(session.state)
        place = str(consumer.next_sequence - 1)
        event = Event("consumer_failed", stream.name, self.name, "", place, place, reason)
        session.propose(RecordConsumerEvents(self._incarnation, self.name, (event,)))

    def info(self) -> dict[str, Any]:
        """Return configuration, state and events with the keys of the NATS JetStream API."""
        return info_of(self._store, *self._find(self._store.view().state))


def position_in(store: OpenStore, stream: StreamState, name: str) -> ConsumerPosition:
    return ConsumerPosition(store, stream.incarnation, stream.name, name)


def decision_of(stream: StreamState, consumer: ConsumerState, policy: str | None = None) -> Decision:
    """Return what reconciliation says of the consumer, by its own policy unless another one is named."""
    policy = policy or consumer.config.on_data_loss
    return decide(
        position_of(consumer), facts_of(stream), consumer.reported, policy, remedy(stream.name, consumer.name)
    )


def remedy(stream: str, consumer: str) -> str:
    """Return what somebody can do about a consumer that fails."""
    return (
        f"`jstream consumer reset {stream} {consumer} --execute`, or `consumer.reset()` in Python, continues from "
        "there; with on_data_loss='continue' a consumer continues by itself"
    )


def count_wanted(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> int:
    """Return how many messages there are that were never handed out.

    With a filter they are counted by reading, each block once in this process as long as it shows the same messages.
    What cannot be read now counts as wanted.
    """
    start, end = max(consumer.next_sequence, stream.low_watermark), stream.next_sequence
    if not consumer.config.filter_subjects:
        return max(0, end - start) - stream.removed.count_in(start, end)
    from storage_core.store.consumers.filtered import wanted_by_block

    return sum(count for count, _ in wanted_by_block(store, stream, consumer))


def first_wanted(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> int | None:
    """Return the first message that is there, was never handed out and can be read; found as `count_wanted` counts."""
    if not consumer.config.filter_subjects:
        ahead = stream.shown_head(consumer.next_sequence, 1)
        return int(ahead.starts[0]) if ahead else None
    from storage_core.store.consumers.filtered import wanted_by_block

    return next((first for _, first in wanted_by_block(store, stream, consumer) if first), None)


def info_of(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> dict[str, Any]:
    """Return `Consumer.info` of a consumer as it stood when this state was read.

    `problem`: why the consumer waits for a decision, or None. `moves_to`: where it goes on by itself, and why, or None.
    """
    shown = stream.shown()
    waiting, withheld = (
        sequences.intersection(shown) for sequences in (consumer.outstanding(), consumer.pending.withheld())
    )
    delivered = consumer.next_sequence - 1
    rows = consumer.pending.rows
    again = pending_set(rows[rows["deliveries"] > 1]).intersection(shown)
    made = decision_of(stream, consumer)
    moves = made.must_be_reported and made.action is not Action.FAIL
    now_ns = store.environment.now_ns()
    paused_ns = consumer.by_clock(now_ns).paused_until_ns - now_ns
    info = {
        "stream_name": stream.name,
        "name": consumer.name,
        "created": rfc3339(consumer.created_ns),
        "config": consumer.config.to_json(),
        "delivered": {"stream_seq": delivered},
        "ack_floor": {"stream_seq": int(waiting.starts[0]) - 1 if waiting else delivered},
        "num_ack_pending": len(waiting) - len(withheld),
        "num_redelivered": len(again),
        "num_pending": count_wanted(store, stream, consumer) + len(withheld),
        "num_skipped": consumer.skipped,
        "num_unreadable": len(withheld),
        "unreadable_ranges": [list(run) for run in withheld.ranges_head(RANGES_SHOWN)],
        "paused": paused_ns > 0,
        "pause_remaining": max(0, paused_ns),
        "incarnation": consumer.incarnation.hex(),
        "problem": made.reason if made.action is Action.FAIL else None,
        "moves_to": {"next_seq": made.next_sequence, "reason": made.reason} if moves else None,
        "events": [describe.event_json(event) for event in consumer.events],
    }
    return notebook.Info(info, notebook.consumer_html)


def reconciling(stream: StreamState, consumer: ConsumerState, made: Decision) -> MoveConsumer:
    """Return the command that carries out a decision about the consumer, and says so in an event."""
    places = str(consumer.next_sequence - 1), str(made.next_sequence - 1)
    reason = f"{made.action.value}: {made.reason}"
    event = Event("consumer_reconciled", stream.name, consumer.name, "", *places, reason)
    return move_of(stream, consumer, made, (event,))


def move_of(stream: StreamState, consumer: ConsumerState, made: Decision, events: tuple[Event, ...]) -> MoveConsumer:
    """Return the command that carries out a decision about the consumer. What is lost by now counts as reported."""
    # In another lifetime of the name the same numbers are other messages.
    is_kept = made.action is not Action.FOLLOW or any(
        incarnation == consumer.incarnation for incarnation, _ in stream.origins
    )
    pending_end = made.next_sequence if is_kept else 0
    return MoveConsumer(stream.incarnation, consumer.name, made.next_sequence, pending_end, events)
