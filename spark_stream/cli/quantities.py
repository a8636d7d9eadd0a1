"""Durations, sizes and times as people type them: `2m`, `1h30m`, `64MB`, `2026-11-21T12:00:00Z`."""

import re
from datetime import datetime, timedelta, timezone

from spark_stream.cli.failures import WrongUsage

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?\s*(Z|[+-]\d{2}:?\d{2})?", re.IGNORECASE
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def parse_duration_option(text: str, option: str) -> int:
    """Return nanoseconds for `500ms`, `90s`, `1h30m`, `2d` or `0`; another bare number would be a guess at its unit."""
    if text != "0" and text.strip().isdigit():
        raise WrongUsage(f"{option} {text!r} has no unit: write it like 500ms, 90s, 2m, 1h30m, 7d")

    from storage_core.durations import parse_duration_ns

    return parse_duration_ns(text, option)


def parse_size(text: str, option: str) -> int:
    """Return bytes for `1024`, `64KB`, `1MiB` or `-1` (no limit); k, m, g, t are powers of 1024, as NATS has them."""
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise WrongUsage(f"{option} {text!r} is no size: write it like 1024, 64KB, 1MB, 2GB")
    return round(float(found[1]) * (1 << 10 * _SIZE_POWER[found[2].lower()]))


def parse_since_ns(text: str, option: str, now_ns: int) -> int:
    """Return nanoseconds since 1970 for an ISO 8601 time (UTC if it names no zone) or a duration before now."""
    moment_ns = parse_time_ns(text, option)
    if moment_ns is not None:
        return moment_ns
    try:
        return now_ns - parse_duration_option(text, option)
    except ValueError as error:
        example = "a duration before now like 90s or 2h, or a time like 2026-11-21T12:00:00Z"
        raise WrongUsage(f"{option} {text!r}: write {example}") from error


def parse_time_ns(text: str, option: str) -> int | None:
    """Return nanoseconds since 1970 for an ISO 8601 time (UTC if it names no zone); None for what is no time."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        return None
    date, minute, second, fraction, zone = found.groups()
    offset = "+00:00" if zone in (None, "Z", "z") else f"{zone[:3]}:{zone[-2:]}"
    try:
        moment = datetime.fromisoformat(f"{date}T{minute or '00:00'}:{second or '00'}{offset}")
    except ValueError as error:
        raise WrongUsage(f"{option} {text!r}: {error}") from error
    whole_s = (moment - _EPOCH) // timedelta(seconds=1)
    return whole_s * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def parse_pairs(texts: list[str], separator: str, option: str) -> list[tuple[str, str]]:
    """Return (key, value) for each `key<separator>value`; the value may hold the separator again."""
    pairs = []
    for text in texts:
        key, found, value = text.partition(separator)
        if not found or not key.strip():
            raise WrongUsage(f"{option} {text!r}: write it as key{separator}value")
        pairs.append((key.strip(), value.strip()))
    return pairs


def show_size(byte_count: int) -> str:
    """Return a size for people: `1.5 MiB`."""
    size = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
