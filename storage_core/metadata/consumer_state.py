"""What the metadata keeps of a durable consumer, and the table of messages that wait for their acknowledgement.

The table is run-length: one row for neighbouring sequences that were handed out equally often and are due at the same
time. A fetch makes one row a run of sequences, an acknowledgement of a range cuts rows; both are vectorised, so what
they cost follows the number of runs, not of messages.
"""

from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from storage_core.errors import CorruptionError
from storage_core.metadata.commands import Event, QueryStart
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.manifest import Table, decode_table
from storage_core.sequences import SequenceSet

PENDING_DTYPE = np.dtype(
    [
        ("first", "<i8"),
        ("end", "<i8"),
        ("deadline_ns", "<i8"),  # from then on they are handed out again
        ("deliveries", "<i4"),  # times that they were handed out
    ]
)
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
    pending: Table = field(default_factory=lambda: Table.empty(PENDING_DTYPE))  # Invariant: sorted, disjoint, below it
    told: SequenceSet = field(default_factory=SequenceSet.empty)  # lost sequences that it was told of
    paused_until_ns: int = 0
    events: tuple[Event, ...] = ()  # oldest first, the newest CONSUMER_EVENTS_KEPT
    query_start: QueryStart = QueryStart()  # the last one of a query without a checkpoint
    generation: int = 0  # of its ownership by queries; one more with each that took it over from a live one
    clock_ns: int = 0  # the latest time of a command that set or met deadlines, or a pause: they go by that clock

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
        return len(self.pending.rows) > 0 or self.paused_until_ns > self.clock_ns

    def by_clock(self, time_ns: int) -> "ConsumerState":
        """Return the consumer at this time; if the clock was set back, all deadlines move back by as much.

        They are then as far away as when messages were last handed out or acknowledged, or the consumer was paused.
        """
        if not self.is_clock_behind(time_ns):
            return replace(self, clock_ns=max(self.clock_ns, time_ns) if self._has_deadlines else time_ns)
        back_ns = self.clock_ns - time_ns
        rows = self.pending.rows.copy()
        rows["deadline_ns"] -= back_ns
        until_ns = max(0, self.paused_until_ns - back_ns)
        return replace(self, clock_ns=time_ns, paused_until_ns=until_ns, pending=Table.of(rows))


# --- tables of pending messages


def pending_rows(sequences: SequenceSet, deadline_ns: int, deliveries: int) -> np.ndarray:
    """Return the rows of messages that were handed out together."""
    rows = np.zeros(sequences.run_count, PENDING_DTYPE)
    rows["first"], rows["end"] = sequences.starts, sequences.ends
    rows["deadline_ns"], rows["deliveries"] = deadline_ns, deliveries
    return rows


def pending_set(rows: np.ndarray) -> SequenceSet:
    return SequenceSet.from_columns(rows["first"], rows["end"])


def pending_within(rows: np.ndarray, sequences: SequenceSet) -> np.ndarray:
    """Return the parts of the rows whose sequences are in the set."""
    low = np.searchsorted(sequences.ends, rows["first"], side="right")
    high = np.searchsorted(sequences.starts, rows["end"], side="left")
    counts = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(rows)), counts)
    run = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + low[which]
    parts = rows[which]
    parts["first"] = np.maximum(parts["first"], sequences.starts[run])
    parts["end"] = np.minimum(parts["end"], sequences.ends[run])
    return parts


def pending_without(rows: np.ndarray, sequences: SequenceSet) -> np.ndarray:
    """Return the parts of the rows whose sequences are not in the set."""
    return pending_within(rows, sequences.complement()) if sequences else rows


def pending_joined(*tables: np.ndarray) -> Table:
    """Return disjoint rows as one table, sorted; neighbours that say the same are one row."""
    rows = np.concatenate(tables)
    rows = rows[np.argsort(rows["first"], kind="stable")]
    if len(rows) > 1:
        same = rows["first"][1:] == rows["end"][:-1]
        for name in ("deadline_ns", "deliveries"):
            same &= rows[name][1:] == rows[name][:-1]
        heads = np.flatnonzero(np.concatenate(([True], ~same)))
        ends = rows["end"][np.concatenate((heads[1:] - 1, [len(rows) - 1]))]
        rows = rows[heads]
        rows["end"] = ends
    return Table.of(rows)


# --- snapshots


class ConsumerRecord(msgspec.Struct, frozen=True):
    config: ConsumerConfig
    created_ns: int
    incarnation: bytes
    next_sequence: int
    history: tuple[tuple[bytes, int], ...]
    pending: bytes
    told: bytes
    paused_until_ns: int = 0
    events: tuple[Event, ...] = ()
    query_start: QueryStart = QueryStart()
    generation: int = 0
    clock_ns: int = 0


def consumer_record(one: ConsumerState) -> ConsumerRecord:
    values = {name: getattr(one, name) for name in ConsumerRecord.__struct_fields__}
    values.update(pending=one.pending.encode(), told=one.told.encode())
    return ConsumerRecord(**values)


def consumer_of(record: ConsumerRecord) -> ConsumerState:
    """Return the consumer; raises CorruptionError if its tables are none."""
    values = {name: getattr(record, name) for name in ConsumerRecord.__struct_fields__}
    pending = decode_table(record.pending, PENDING_DTYPE, "pending messages")
    rows = pending.rows
    if (rows["first"] >= rows["end"]).any() or (rows["first"][1:] < rows["end"][:-1]).any():
        raise CorruptionError(f"consumer {record.config.name!r}: its pending messages are not in order")
    values.update(pending=pending, told=SequenceSet.decode(record.told))
    return ConsumerState(**values)
