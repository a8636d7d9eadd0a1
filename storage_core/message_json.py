"""A message as JSON, on one line of a file or in an answer.

    subject, seq, time   as the NATS JetStream API has them; the time is RFC 3339 in UTC with nine digits
    headers              [[key, value], ...]; a value is text or null
    data                 text; null for a message without data
    base64               only where some bytes are not UTF-8, or base64 is asked for: the keys, of "headers" and "data",
                         whose values are in base64

A reader goes by the key `base64`, never by the look of a value.
"""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any


def message_fields(
    subject: str,
    sequence: int,
    time: str,
    headers: Iterable[tuple[str, bytes | None]],
    data: bytes | None,
    base64: bool = False,
) -> dict[str, Any]:
    """Return the keys of one message. `base64`: data and headers are in base64 whatever they hold."""
    pairs = list(headers)
    values, values_encoded = _encode([value for _, value in pairs], base64)
    (text,), data_encoded = _encode([data], base64)
    shown: dict[str, Any] = {
        "subject": subject,
        "seq": sequence,
        "time": time,
        "headers": [[key, value] for (key, _), value in zip(pairs, values, strict=True)],
        "data": text,
    }
    encoded = [key for key, is_encoded in (("headers", values_encoded), ("data", data_encoded)) if is_encoded]
    return {**shown, "base64": encoded} if encoded else shown


def _encode(values: list[bytes | None], base64: bool) -> tuple[list[str | None], bool]:
    """Return bytes as text, or all of them in base64; and whether they are in base64."""
    if not base64:
        try:
            return [None if value is None else value.decode() for value in values], False
        except UnicodeDecodeError:
            pass
    return [None if value is None else b64encode(value).decode() for value in values], True
