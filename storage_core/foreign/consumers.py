"""What a durable reader of a foreign stream had been sent and had acknowledged. Plain values, picklable."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

CONSUMERS_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("account", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("is_durable", pa.bool_()),
        pa.field("delivered", pa.int64()),
        pa.field("ack_floor", pa.int64()),
        pa.field("num_ack_pending", pa.int64()),
        pa.field("num_redelivered", pa.int64()),
        pa.field("pending", pa.list_(pa.int64())),
        pa.field(
            "redelivered",
            pa.list_(pa.struct([pa.field("sequence", pa.int64()), pa.field("count", pa.int64())])),
        ),
        pa.field("config", pa.string()),
        pa.field("file", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class ForeignConsumer:
    """One reader of a stream, as its server would recover it."""

    layout: str
    account: str
    stream: str
    name: str
    file: str  # where its state lies
    is_durable: bool
    delivered: int | None  # highest sequence of the stream that was sent to it, 0: none; None: its state is damaged
    ack_floor: int | None  # sequence of the stream up to which everything sent to it was acknowledged
    pending: tuple[int, ...] = ()  # sequences sent and not acknowledged, ascending
    pending_times_s: tuple[int, ...] = ()  # when each of them was sent, seconds since 1970; empty if nobody knows
    redelivered: tuple[tuple[int, int], ...] = ()  # (sequence, how often it was sent again), ascending
    config: dict[str, Any] = field(default_factory=dict)  # in the words of its server


def consumers_table(consumers: Iterable[ForeignConsumer]) -> pa.Table:
    """Return consumers as a table in CONSUMERS_SCHEMA, a row each."""
    return pa.Table.from_pylist([_row(consumer) for consumer in consumers], CONSUMERS_SCHEMA)


def _row(consumer: ForeignConsumer) -> dict[str, Any]:
    known = consumer.delivered is not None
    return {
        "stream": consumer.stream,
        "account": consumer.account,
        "consumer": consumer.name,
        "is_durable": consumer.is_durable,
        "delivered": consumer.delivered,
        "ack_floor": consumer.ack_floor,
        "num_ack_pending": len(consumer.pending) if known else None,
        "num_redelivered": len(consumer.redelivered) if known else None,
        "pending": list(consumer.pending) if known else None,
        "redelivered": [{"sequence": at, "count": count} for at, count in consumer.redelivered] if known else None,
        "config": json.dumps(consumer.config, sort_keys=True),
        "file": consumer.file,
    }
