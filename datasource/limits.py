"""How much of what is new one micro-batch takes: the limits per trigger, and the wait for enough.

Limits are soft: whatever they say, each stream that has something new hands on one message at least, since a query that
could not move would never move. They count messages as stored, before the subject filter: a filter is
applied where the messages are read, on the executors. A limit is shared among streams in proportion to what waits in
each, as Kafka's source does it, and of several limits the smallest wins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from datasource.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

T = TypeVar("T")
TIGHT_S = 0.05  # a query that asks again so soon has no trigger interval


class UnreadRange(Protocol):
    """What a stream has for the next batch."""

    @property
    def end(self) -> int: ...

    @property
    def message_count(self) -> int: ...

    @property
    def byte_count(self) -> int: ...

    @property
    def block_count(self) -> int: ...

    def end_of_messages(self, count: int) -> int: ...

    def end_of_bytes(self, size: int) -> int: ...

    def end_of_blocks(self, count: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one batch, over all streams; None: none."""

    message_count: int | None = None
    byte_size: int | None = None
    block_count: int | None = None
    message_count_min: int | None = None  # below it the batch waits for more

    def read_limit(self) -> ReadLimit:
        """Return what Spark is to hand back with each call.

        It knows no combination, so one of the limits stands for all; what counts is that Spark says something else,
        `ReadAllAvailable`, when a trigger asks for everything.
        """
        if self.message_count is not None:
            return ReadMaxRows(self.message_count)
        if self.byte_size is not None:
            return ReadMaxBytes(self.byte_size)
        if self.block_count is not None:
            return ReadMaxFiles(self.block_count)
        if self.message_count_min is not None:
            return ReadMinRows(self.message_count_min)
        return ReadAllAvailable()

    def under(self, asked: ReadLimit) -> "Limits":
        """Return the limits of a call in which Spark asks for `asked`: none if it asks for everything."""
        if isinstance(asked, ReadAllAvailable):
            return Limits()
        return Limits(
            _smaller(self.message_count, asked.max_rows if isinstance(asked, ReadMaxRows) else None),
            _smaller(self.byte_size, asked.max_bytes if isinstance(asked, ReadMaxBytes) else None),
            _smaller(self.block_count, asked.max_files if isinstance(asked, ReadMaxFiles) else None),
            asked.min_rows if isinstance(asked, ReadMinRows) else self.message_count_min,
        )


def admit(unread: Mapping[str, UnreadRange], limits: Limits) -> dict[str, int]:
    """Return for each stream where the batch ends."""
    ends = {name: waiting.end for name, waiting in unread.items()}
    if limits.message_count is not None:
        _cut(
            ends,
            unread,
            limits.message_count,
            lambda waiting: waiting.message_count,
            lambda waiting, most: waiting.end_of_messages(most),
        )
    if limits.byte_size is not None:
        _cut(
            ends,
            unread,
            limits.byte_size,
            lambda waiting: waiting.byte_count,
            lambda waiting, most: waiting.end_of_bytes(most),
        )
    if limits.block_count is not None:
        _cut(
            ends,
            unread,
            limits.block_count,
            lambda waiting: waiting.block_count,
            lambda waiting, most: waiting.end_of_blocks(most),
        )
    return ends


def _cut(
    ends: dict[str, int],
    unread: Mapping[str, UnreadRange],
    limit: int,
    measure: Callable[[UnreadRange], int],
    end_of: Callable[[UnreadRange, int], int],
) -> None:
    """Bring the ends down to what one limit leaves each stream."""
    sizes = {name: measure(waiting) for name, waiting in unread.items() if waiting.message_count}
    total = sum(sizes.values())
    if total <= limit:
        return
    for name, size in sizes.items():
        ends[name] = min(ends[name], end_of(unread[name], max(1, limit * size // total)))


class Patience:
    """The wait for `minOffsetsPerTrigger` messages, `maxTriggerDelay` at most.

    Times are of a clock that never goes back, in seconds; the delay runs from the last batch, or the start of the run.
    """

    def __init__(self, delay_s: float, now_s: float) -> None:
        self._delay_s, self._since_s = delay_s, now_s

    def is_over(self, message_count: int, message_count_min: int | None, now_s: float) -> bool:
        """Return whether a batch of so many messages may go; it then counts as gone."""
        if (
            message_count_min is not None
            and message_count < message_count_min
            and now_s - self._since_s < self._delay_s
        ):
            return False
        self._since_s = now_s
        return True


class IdleWait:
    """Holds up a query that asks in a tight loop and has nothing to do, so that waiting for messages costs little."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """`clock`: seconds, never going back."""
        self._clock, self._sleep = clock, sleep
        self._returned_s: float | None = None  # when the last call found nothing new; None: it found something

    def until_changed(self, start: T, look: Callable[[], T], wait_s: float, look_every_s: float) -> T:
        """Return what `look` returns: at once, or, in a tight loop, once that is not `start` or `wait_s` is over."""
        now_s = self._clock()
        is_tight = self._returned_s is not None and now_s - self._returned_s < TIGHT_S
        until_s = now_s + (wait_s if is_tight else 0.0)
        while True:
            end = look()
            now_s = self._clock()
            if end != start or now_s >= until_s:
                break
            self._sleep(min(look_every_s, until_s - now_s))
        self._returned_s = now_s if end == start else None
        return end


def _smaller(first: int | None, other: int | None) -> int | None:
    limits = [limit for limit in (first, other) if limit is not None]
    return min(limits, default=None)
