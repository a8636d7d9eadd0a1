"""What a durable reader of a foreign stream had been sent and had acknowledged. Plain values, picklable."""

import json
from dataclasses import dataclass, field
from typing import Any


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

    def row(self) -> dict[str, Any]:
        """Return it as a row of the table of consumers, whose types are in datasource/schema.py."""
        known = self.delivered is not None
        return {
            "stream": self.stream,
            "account": self.account,
            "consumer": self.name,
            "is_durable": self.is_durable,
            "delivered": self.delivered,
            "ack_floor": self.ack_floor,
            "num_ack_pending": len(self.pending) if known else None,
            "num_redelivered": len(self.redelivered) if known else None,
            "pending": list(self.pending) if known else None,
            "redelivered": [{"sequence": at, "count": count} for at, count in self.redelivered] if known else None,
            "config": json.dumps(self.config, sort_keys=True),
            "file": self.file,
        }
