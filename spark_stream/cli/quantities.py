"""What the command line adds to the durations, sizes and times of storage_core.quantities, imported when needed."""

from typing import Any

from spark_stream.cli.failures import WrongUsage


def parse_duration_option(text: str, option: str) -> int:
    """Return nanoseconds."""
    from storage_core.quantities import parse_duration_ns

    return parse_duration_ns(text, option)


def parse_size(text: str, option: str) -> int:
    """Return bytes, or -1, which stands for no limit."""
    from storage_core import quantities

    return -1 if text == "-1" else quantities.parse_size(text, option)


def parse_since_ns(text: str, option: str, now_ns: int) -> int:
    """Return nanoseconds since 1970 for an ISO 8601 time (UTC if it names no zone) or a duration before now."""
    from storage_core.quantities import looks_like_time, parse_duration_ns, parse_time_ns

    if looks_like_time(text):
        return parse_time_ns(text, option)
    try:
        return now_ns - parse_duration_ns(text, option)
    except ValueError as error:
        example = "a duration before now like 90s or 2h, or a time like 2026-11-21T12:00:00Z"
        raise WrongUsage(f"{option} {text!r}: write {example}") from error


def parse_pairs(texts: list[str], separator: str, option: str) -> list[tuple[str, str]]:
    """Return (key, value) for each `key<separator>value`; the value may hold the separator again."""
    pairs = []
    for text in texts:
        key, divider, value = text.partition(separator)
        if not divider or not key.strip():
            raise WrongUsage(f"{option} {text!r}: write it as key{separator}value")
        pairs.append((key.strip(), value.strip()))
    return pairs


def read_value(text: str) -> Any:
    """Return what a key of a stream is set to by text: true and false, else the text."""
    return text == "true" if text in ("true", "false") else text
