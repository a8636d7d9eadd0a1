"""Where a read starts and ends: offsets and times of the options, resolved to sequences of each stream.

Starts are inclusive, ends exclusive. For each stream a time goes before an offset: `startingTimestamp`, then
`startingOffsetsByTimestamp`, then `startingOffsets`, then the consumer, then the default, which is the stream's first
message in batches and its end in streaming reads; ends likewise.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from datasource.values import COUNT_MAX, parse_object, parse_time_ns
from storage_core.errors import DataLossError
from storage_core.metadata.commands import QueryStart
from storage_core.quantities import rfc3339
from storage_core.suggestions import instead

log = logging.getLogger("jstream")

EARLIEST, LATEST, CONSUMER = "earliest", "latest", "consumer"
STARTING, ENDING = "starting", "ending"
_EXAMPLE = '{"ORDERS": 1001}'
_TIME_EXAMPLE = '{"ORDERS": "2026-11-21T12:00:00Z"}'


@dataclass(frozen=True, slots=True)
class Offsets:
    """One place for all streams, and places for some; a place is a sequence, EARLIEST or LATEST; None: not given.

    CONSUMER, for all streams only, leaves it to the consumer, as if nothing was given.
    """

    everywhere: str | None = None
    by_stream: Mapping[str, int | str] | None = None

    def of(self, stream: str) -> int | str | None:
        place = self.everywhere if self.by_stream is None else self.by_stream.get(stream)
        return None if place == CONSUMER else place


@dataclass(frozen=True, slots=True)
class Extent:
    """Sequences that a stream holds, `[first, end)`; `end` is the one that the next message gets."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """One side of a read, as asked for. `side` is STARTING or ENDING, with which the names of its options begin."""

    side: str
    offsets: Offsets
    time_ns: int | None = None
    times_ns: Mapping[str, int] | None = None

    def time_of(self, stream: str) -> int | None:
        return self.time_ns if self.time_ns is not None else (self.times_ns or {}).get(stream)

    def option_of(self, stream: str) -> str | None:
        """Return the option that says where the stream starts or ends, None if none does."""
        if self.time_ns is not None:
            return f"{self.side}Timestamp"
        if stream in (self.times_ns or {}):
            return f"{self.side}OffsetsByTimestamp"
        return None if self.offsets.of(stream) is None else f"{self.side}Offsets"

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield every stream that an option names, after that option."""
        for stream in sorted(self.times_ns or {}):
            yield f"{self.side}OffsetsByTimestamp", stream
        for stream in sorted(self.offsets.by_stream or {}):
            yield f"{self.side}Offsets", stream


def parse_offsets(option: str, text: str) -> Offsets:
    """Return what `startingOffsets` or `endingOffsets` of a batch read says."""
    return _parse_offsets(option, text, (EARLIEST, CONSUMER) if option == "startingOffsets" else (LATEST,))


def parse_stream_offsets(option: str, text: str) -> Offsets:
    """Return what `startingOffsets` of a streaming read says."""
    return _parse_offsets(option, text, (EARLIEST, LATEST, CONSUMER))


def _parse_offsets(option: str, text: str, words: tuple[str, ...]) -> Offsets:
    """Return one of the words that stand for a place, or the JSON of offsets by stream."""
    folded = text.strip().lower()
    if folded in words:
        return Offsets(everywhere=folded)
    if folded in (EARLIEST, LATEST):
        raise ValueError(f"option {option!r}: {folded!r} would make every batch read empty")
    if not text.lstrip().startswith("{"):
        *others, last = [*map(repr, words), f"JSON such as {_EXAMPLE}"]
        raise ValueError(f"option {option!r}: {text!r} is neither {', '.join(others)} nor {last}")
    places = parse_object(option, text, _EXAMPLE)
    return Offsets(by_stream={stream: _place(option, stream, place) for stream, place in places.items()})


def _place(option: str, stream: str, place: object) -> int | str:
    if isinstance(place, str) and place.strip().lower() in (EARLIEST, LATEST):
        return place.strip().lower()
    if not isinstance(place, int) or isinstance(place, bool) or not 1 <= place <= COUNT_MAX:
        raise ValueError(
            f"option {option!r}: {place!r} for stream {stream!r} is neither a sequence (a whole number from 1 on) nor "
            f"{EARLIEST!r} or {LATEST!r}"
        )
    return place


def parse_times(option: str, text: str) -> dict[str, int]:
    """Return nanoseconds since 1970 by stream."""
    times = parse_object(option, text, _TIME_EXAMPLE)
    return {stream: parse_time_ns(option, time) for stream, time in times.items()}


# (stream, time_ns) -> the first sequence whose time is not before it; None: beyond the end
FirstAtTime = Callable[[str, int], int | None]


def resolve_ranges(
    extents: Mapping[str, Extent],
    starting: Bounds,
    ending: Bounds,
    first_at_time: FirstAtTime | None,
    fail_on_data_loss: bool,
    consumer_at: Mapping[str, int] | None = None,
) -> dict[str, tuple[int, int]]:
    """Return the sequences `[first, end)` to read of each stream in `extents`.

    Without `first_at_time` nobody knows where a time is: a side that is given by one stays open. `consumer_at`: where
    streams start that no option places (`left_to_consumer`).

    Raises ValueError for a stream that is not read and for a range that ends before it starts, DataLossError for a
    sequence beyond the end of its stream (with `fail_on_data_loss`; else it is logged, and cut to the end).
    """
    _check_streams(extents, starting, ending)
    ranges = {}
    for stream, extent in extents.items():
        _check_times(stream, starting, ending)
        default = (consumer_at or {}).get(stream, extent.first)
        first = _resolve(stream, extent, starting, default, first_at_time)
        end = _resolve(stream, extent, ending, extent.end, first_at_time)
        # A start at the end of a stream by default is an empty read, not a wrong one.
        if first.option and end.option and first.sequence > end.sequence:
            raise ValueError(
                f"stream {stream!r}: the read would start at sequence {first.sequence} (option {first.option!r}) and "
                f"end before {end.sequence} (option {end.option!r})"
            )
        first_sequence = _inside(stream, extent, first, fail_on_data_loss)
        end_sequence = _inside(stream, extent, end, fail_on_data_loss)
        ranges[stream] = (min(first_sequence, end_sequence), end_sequence)
    return ranges


def left_to_consumer(starting: Bounds, stream: str) -> bool:
    """Return whether no option says where the stream starts, so that a consumer may. JSON speaks for all streams."""
    return starting.option_of(stream) is None and starting.offsets.by_stream is None


def resolve_starts(
    extents: Mapping[str, Extent],
    starting: Bounds,
    first_at_time: FirstAtTime,
    fail_on_data_loss: bool,
    has_consumer: bool,
) -> dict[str, QueryStart]:
    """Return where a new streaming query begins in each stream, and which option says so.

    Raises ValueError for a stream that is not read, DataLossError for a sequence beyond the end of its stream (with
    `fail_on_data_loss`; else it is logged, and cut to the end).
    """
    _check_streams(extents, starting)
    starts = {}
    for stream, extent in extents.items():
        if left_to_consumer(starting, stream):
            starts[stream] = QueryStart(extent.first if has_consumer else extent.end)
            continue
        side = _resolve(stream, extent, starting, extent.end, first_at_time)
        starts[stream] = QueryStart(
            _inside(stream, extent, side, fail_on_data_loss), choice_of(starting, stream, LATEST)
        )
    return starts


def choice_of(starting: Bounds, stream: str, default: str) -> str:
    """Return the option that says where the stream starts, and what it says; `default`: its JSON has others only."""
    time_ns, place = starting.time_of(stream), starting.offsets.of(stream)
    said = place or default if time_ns is None else rfc3339(time_ns)
    return f"{starting.option_of(stream) or 'startingOffsets'}={said}"


def _check_streams(known: Iterable[str], *bounds: Bounds) -> None:
    """Raise ValueError for a stream that the bounds name and that is not read."""
    listed = sorted(known)
    for option, stream in (named for bound in bounds for named in bound.named()):
        if stream not in listed:
            hint = instead(stream, listed, "read are")
            raise ValueError(f"option {option!r}: stream {stream!r} is not among those that are read{hint}")


def _check_times(stream: str, starting: Bounds, ending: Bounds) -> None:
    start_ns, end_ns = starting.time_of(stream), ending.time_of(stream)
    if start_ns is not None and end_ns is not None and start_ns > end_ns:
        start, end = starting.option_of(stream), ending.option_of(stream)
        raise ValueError(f"stream {stream!r}: option {start!r} is later than option {end!r}")


@dataclass(frozen=True, slots=True)
class _Side:
    """One end of a stream's range, and the option that put it there; None: it is where it is by default."""

    sequence: int
    option: str | None


def _resolve(stream: str, extent: Extent, bounds: Bounds, default: int, first_at_time: FirstAtTime | None) -> _Side:
    option, time_ns, place = bounds.option_of(stream), bounds.time_of(stream), bounds.offsets.of(stream)
    if time_ns is not None and first_at_time is not None:
        sequence = first_at_time(stream, time_ns)
        if sequence is None:
            log.warning("stream %s has no message from %s on: option %s is its end", stream, rfc3339(time_ns), option)
        return _Side(extent.end if sequence is None else sequence, option)
    if time_ns is not None or place is None:
        return _Side(default, None)
    if isinstance(place, int):
        return _Side(place, option)
    return _Side(extent.first if place == EARLIEST else extent.end, option)


def _inside(stream: str, extent: Extent, side: _Side, fail_on_data_loss: bool) -> int:
    if side.sequence <= extent.end:
        return side.sequence
    message = (
        f"option {side.option!r}: sequence {side.sequence} is beyond the end of stream {stream!r}, whose next message "
        f"gets {extent.end}: the stream was made again or has lost messages, or the number is wrong"
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{message}. Correct it, or set failOnDataLoss=false to read up to the end", stream=stream, end=extent.end
        )
    log.warning("%s; read up to the end", message)
    return extent.end
