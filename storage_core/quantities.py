"""Durations, sizes and times as people write them, for options, configurations, pipelines and the command line alike.

    duration  500ms, 90s, 2m, 1h30m, 1.5d, 10 minutes; units ns, us, ms, s, m (or min), h, d, and second, minute,
              hour, day, also in the plural; or a timedelta. Text without a unit is refused: for JSON of NATS it would
              mean nanoseconds, for Spark seconds. A number, as in JSON, is nanoseconds
    size      1048576, 64k, 64MB, 1.5GiB, in powers of 1,024 as Spark and NATS have them; without a unit bytes
    time      2026-11-21, 2026-11-21T12:00:00.5Z, 2026-11-21 12:00+01:00; without a zone UTC

Every function takes the name of what it reads, which its ValueError begins with.
"""

import operator
import re
import time
from datetime import datetime, timedelta, timezone

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_WORDS = {"min": "m", "minute": "m", "second": "s", "hour": "h", "day": "d"}
_PART = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*(?:(second|minute|hour|day)s?|(ns|us|ms|s|min|m|h|d))\s*")
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([kmgt]?)(?:i?b)?")
_SIZE_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:[.,]([0-9]{1,9}))?)?"
    r"\s*(Z|z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DURATION_NS_MAX = 2**62
SIZE_MAX = 2**63 - 1


def check_flag(name: str, value: object) -> None:
    """Raise ValueError for what is no bool: the text "false" would be true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} is neither True nor False")


def whole_number(value: object) -> int | None:
    """Return an integer of Python, numpy or Arrow as an int; None for everything else, a bool among it."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def parse_duration_ns(value: object, name: str) -> int:
    """Return nanoseconds; `0` needs no unit. Raises ValueError naming `name`, what came and what is valid."""
    nanoseconds = whole_number(value)
    if nanoseconds is not None:
        pass
    elif isinstance(value, timedelta):
        nanoseconds = value // timedelta(microseconds=1) * 1_000
    elif isinstance(value, str):
        text = value.strip().lower()
        if text.isdigit() and text != "0":
            raise ValueError(f"{name}: {value!r} has no unit; write it like 500ms, 90s, 2m, 1h30m or 7d")
        nanoseconds = 0 if text == "0" else _sum_of_parts(text)
    if nanoseconds is not None and nanoseconds > DURATION_NS_MAX:
        raise ValueError(f"{name}: {value!r} is too long; the longest duration is {format_duration(DURATION_NS_MAX)}")
    if nanoseconds is None or nanoseconds < 0:
        raise ValueError(f"{name}: {value!r} is not a duration; valid ones are like 500ms, 90s, 2m, 1h30m or 7d")
    return nanoseconds


def _sum_of_parts(text: str) -> int | None:
    total, at = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        unit = part[2] or part[3]
        unit_ns = _UNITS_NS[_WORDS.get(unit, unit)]
        total += int(part[1]) * unit_ns if part[1].isdigit() else round(float(part[1]) * unit_ns)
        at = part.end()
    return total if text else None


def format_duration(nanoseconds: int) -> str:
    """Return the duration in the largest units that are exact, for example `1h30m`."""
    if nanoseconds <= 0:
        return "0s"
    parts, remainder = [], nanoseconds
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, remainder = divmod(remainder, _UNITS_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(text: str, name: str) -> int:
    """Return bytes, from 0 on."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is not None and (match[2] or match[1].isdigit()):  # there are no parts of a byte
        unit = 1 << 10 * _SIZE_POWER[match[2]]
        size = int(match[1]) * unit if match[1].isdigit() else round(float(match[1]) * unit)
        if size <= SIZE_MAX:
            return size
    raise ValueError(f"{name}: {text!r} is not a number of bytes; valid ones are like 1048576, 512k, 64MB or 1.5GiB")


def looks_like_time(text: str) -> bool:
    return _TIME.fullmatch(text.strip()) is not None


def parse_time_ns(text: object, name: str) -> int:
    """Return nanoseconds since 1970, UTC."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is not None:
        date, clock, fraction, zone = match[1], match[2] or "00:00", match[3] or "", match[4] or "+00:00"
        zone = "+00:00" if zone in "Zz" else zone if ":" in zone else f"{zone[:3]}:{zone[3:] or '00'}"
        try:
            moment = datetime.fromisoformat(f"{date}T{clock if len(clock) > 5 else clock + ':00'}{zone}")
            return (moment - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + int(fraction.ljust(9, "0"))
        except (ValueError, OverflowError):
            pass
    raise ValueError(
        f"{name}: {text!r} is not a time; valid ones are ISO 8601, like 2026-11-21T12:00:00Z, without a zone UTC"
    )


def rfc3339(time_ns: int) -> str:
    """Return the time in UTC with nanoseconds, for example 2026-01-31T23:59:59.000000001Z."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"
