"""What the metadata keeps of a durable consumer. The messages that wait for it are in pending.py."""

from dataclasses import dataclass, field

import msgspec

from storage_core.frozen import replace
from storage_core.metadata.commands import Event, QueryStart
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.pending import PendingMessages, decode_pending, pending_set
from storage_core.sequences import SequenceSet

CLOCK_STEP_NS = 1_000_000_000  # clocks go back by less than this without anybody setting them
CONSUMER_EVENTS_KEPT = 16  # newest events of a consumer that its info shows


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """One durable consumer of a stream. Everything below next_sequence that does not wait is done."""

    config: ConsumerConfig
    created_ns: int
    incarnation: bytes  # of the stream, when the position was taken
    next_sequence: int  # the first that was never handed out
    history: tuple[tuple[bytes, int], ...] = ()  # newest runs of the stream below next_sequence, as reconcile.py keeps
    pending: PendingMessages = field(default_factory=PendingMessages)  # Invariant: below next_sequence
    reported: SequenceSet = field(default_factory=SequenceSet.empty)  # lost sequences that were reported to it
    paused_until_ns: int = 0
    events: tuple[Event, ...] = ()  # oldest first, the newest CONSUMER_EVENTS_KEPT
    query_start: QueryStart = QueryStart()  # the last one of a query without a checkpoint
    generation: int = 0  # of its ownership by queries; one more with each query that began
    clock_ns: int = 0  # the latest time of a command that set or met deadlines, or a pause: they go by that clock
    skipped: int = 0  # messages that were removed or lost before it acknowledged them
    skipped_reported: int = 0  # of these, when its events last reported them
    skipped_reported_ns: int = 0  # and when that was
    # Of a stream whose retention is not limits: what it is done with and is still there (retention.py).
    done: SequenceSet = field(default_factory=SequenceSet.empty)  # Invariant: below next_sequence, nothing that waits
    missed: SequenceSet = field(default_factory=SequenceSet.empty)  # declared lost before it acknowledged them

    @property
    def name(self) -> str:
        return self.config.name

    def outstanding(self) -> SequenceSet:
        """Return the sequences that wait for their acknowledgement."""
        return pending_set(self.pending.rows)

    def is_clock_behind(self, time_ns: int) -> bool:
        """Return whether deadlines, or a pause, go by a clock that was set back since, to `time_ns`."""
        return self._has_deadlines and self.clock_ns - time_ns > CLOCK_STEP_NS

    @property
    def _has_deadlines(self) -> bool:
        return bool(self.pending) or self.paused_until_ns > self.clock_ns

    def by_clock(self, time_ns: int) -> "ConsumerState":
        """Return the consumer at this time; if the clock was set back, all deadlines move back by as much.

        They are then as far away as when messages were last handed out or acknowledged, or the consumer was paused.
        """
        if not self.is_clock_behind(time_ns):
            return replace(self, clock_ns=max(self.clock_ns, time_ns) if self._has_deadlines else time_ns)
        back_ns = self.clock_ns - time_ns
        until_ns = max(0, self.paused_until_ns - back_ns)
        return replace(self, clock_ns=time_ns, paused_until_ns=until_ns, pending=self.pending.moved(back_ns))


# --- snapshots


class ConsumerRecord(msgspec.Struct, frozen=True):
    config: ConsumerConfig
    created_ns: int
    incarnation: bytes
    next_sequence: int
    history: tuple[tuple[bytes, int], ...]
    pending: bytes
    reported: bytes
    paused_until_ns: int = 0
    events: tuple[Event, ...] = ()
    query_start: QueryStart = QueryStart()
    generation: int = 0
    clock_ns: int = 0
    skipped: int = 0
    skipped_reported: int = 0
    skipped_reported_ns: int = 0
    done: bytes = b""
    missed: bytes = b""


def consumer_record(state: ConsumerState) -> ConsumerRecord:
    values = {name: getattr(state, name) for name in ConsumerRecord.__struct_fields__}
    for name in ("done", "missed"):
        sequences = getattr(state, name)
        values[name] = sequences.encode() if sequences else b""
    values.update(pending=state.pending.encode(), reported=state.reported.encode())
    return ConsumerRecord(**values)


def consumer_of(record: ConsumerRecord) -> ConsumerState:
    """Return the consumer; raises CorruptionError if its tables are none."""
    values = {name: getattr(record, name) for name in ConsumerRecord.__struct_fields__}
    for name in ("done", "missed"):
        encoded = getattr(record, name)
        values[name] = SequenceSet.decode(encoded) if encoded else SequenceSet.empty()
    values.update(pending=decode_pending(record.pending), reported=SequenceSet.decode(record.reported))
    return ConsumerState(**values)
