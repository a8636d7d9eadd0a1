"""Headers by which messages end: `Nats-TTL`, their own time to live, and `Nats-Rollup`, which ends those before.

The time to live is `never`, whole seconds, or a duration as Go writes it, `1h30m`, of a second at least. What is none
of these is no time to live: the server refuses such a message unless the stream did not look at the header yet.

Source: nats-server, server/stream.go (`getMessageTTL`, `parseMessageTTL`, `getRollup`); Go, package time
(`ParseDuration`).
"""

import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers

NO_TTL, NEVER = 0, -1
NO_ROLLUP, ROLLUP_SUBJECT, ROLLUP_ALL = 0, 1, 2
_TEXT_SIZE_MAX = 64  # characters
TTL_NS_MIN = 1_000_000_000
TTL_NS_MAX = (1 << 62) - 1  # so that time + time to live fits into 64 bits, as far as a time can be
_HEADER = rb"\r\nNats-TTL:[ \t]*(?P<ttl>[^\r\n]*?)[ \t]*\r\n"
_ROLLUP = rb"\r\nNats-Rollup:[ \t]*(?P<rollup>[^\r\n]*?)[ \t]*\r\n"
_ROLLUPS = {b"sub": ROLLUP_SUBJECT, b"all": ROLLUP_ALL}
_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # the micro sign
    "\u03bcs": 10**3,  # the letter mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_DURATION = re.compile(rf"\+?(?:{_PART.pattern})+")


def parse_ttls(raw: pa.BinaryArray, present: np.ndarray) -> np.ndarray:
    """Return the time to live of each message in ns (int64), NO_TTL or NEVER.

    `present` is a mask over the messages; `raw` has the headers of those where it is set, in order, without nulls.
    """
    ttls = np.zeros(len(present), np.int64)
    if len(raw):
        texts = pc.extract_regex(raw, _HEADER).field("ttl").dictionary_encode()
        values = [parse_ttl(value) for value in texts.dictionary.to_pylist()]
        codes = np.where(buffers.nulls(texts.indices), len(values), buffers.numbers(texts.indices))
        ttls[present] = np.array([*values, NO_TTL], np.int64)[codes]
    return ttls


def parse_rollups(raw: pa.BinaryArray, present: np.ndarray) -> np.ndarray:
    """Return what each message replaces (int8): NO_ROLLUP, ROLLUP_SUBJECT, ROLLUP_ALL. Arguments as of parse_ttls."""
    rollups = np.zeros(len(present), np.int8)
    if len(raw):
        texts = pc.extract_regex(raw, _ROLLUP).field("rollup").dictionary_encode()
        values = [_ROLLUPS.get(value.lower(), NO_ROLLUP) for value in texts.dictionary.to_pylist()]
        codes = np.where(buffers.nulls(texts.indices), len(values), buffers.numbers(texts.indices))
        rollups[present] = np.array([*values, NO_ROLLUP], np.int8)[codes]
    return rollups


def parse_ttl(value: bytes) -> int:
    """Return the time to live in ns that the header's value means, NO_TTL or NEVER."""
    text = value.decode("utf-8", "replace")
    if text == "never":
        return NEVER
    if re.fullmatch(r"\+?[0-9]{1,18}", text):
        ns = int(text) * 10**9
    elif len(text) <= _TEXT_SIZE_MAX and _DURATION.fullmatch(text):
        ns = int(sum(Fraction(number) * _UNITS_NS[unit] for number, unit in _PART.findall(text)))
    else:
        return NO_TTL
    return min(ns, TTL_NS_MAX) if ns >= TTL_NS_MIN else NO_TTL
