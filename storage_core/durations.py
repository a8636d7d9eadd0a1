"""Durations as people write them: `90s`, `2m`, `24h`, `7d`, `1h30m`; a bare number is nanoseconds, as in NATS' JSON."""

import re

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)")
DURATION_NS_MAX = 2**62


def parse_duration_ns(value: object, name: str) -> int:
    """Return nanoseconds; raises ValueError naming `name`, what came and what is taken."""
    nanoseconds: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        nanoseconds = value
    elif isinstance(value, str):
        parts = _PART.findall(value.strip())
        if value.strip().isdigit():
            nanoseconds = int(value)
        elif parts and "".join(number + unit for number, unit in parts) == value.strip():
            nanoseconds = sum(round(float(number) * _UNITS_NS[unit]) for number, unit in parts)
    if nanoseconds is None or not 0 <= nanoseconds <= DURATION_NS_MAX:
        raise ValueError(f"{name}: {value!r} is not a duration; taken are nanoseconds or text such as 90s, 2m, 24h, 7d")
    return nanoseconds


def format_duration(nanoseconds: int) -> str:
    """Return the duration in the largest units that are exact, for example `1h30m`."""
    if nanoseconds <= 0:
        return "0s"
    parts, rest = [], nanoseconds
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, rest = divmod(rest, _UNITS_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
