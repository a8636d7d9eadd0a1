"""Headers that tell a stream what to do with a message, as in JetStream: rollups, times to live, conditions.

Looked for in whole columns. Where no key of a batch has such a name, one search in the bytes of its keys says so.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.quantities import parse_duration_ns

ROLLUP, TTL = "Nats-Rollup", "Nats-TTL"
EXPECTED_STREAM, EXPECTED_LAST_SEQUENCE = "Nats-Expected-Stream", "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = "Nats-Expected-Last-Msg-Id"
SUBJECT, ALL = "sub", "all"  # what a rollup takes the place of
LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE, LAST_MSG_ID = "last_sequence", "last_subject_sequence", "last_msg_id"
CONDITION_COUNT_MAX = 1000  # of one kind in an append, as messages of an atomic batch of a nats-server
NEVER = -1
_SECOND_NS = 1_000_000_000
_TTL_MAX_S = 1 << 33  # 272 years: with it a time is still an int64
_NAMES = re.compile(rb"Nats-(?:Rollup|TTL|Expected-)")
_VALUES_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Condition:
    """What a message expects of the stream; its append is refused where that is not so (conditions.py)."""

    row: int  # of the message, within what the condition travels with: batch, block, append
    kind: str  # LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE, LAST_MSG_ID
    expected: int | str  # a sequence, 0 for none; a msg_id
    subject: str = ""  # LAST_SUBJECT_SEQUENCE: the filter whose last message counts


def may_have_any(headers: pa.Array) -> bool:
    """Return whether some key in a column of headers may be one of these; False: none is."""
    if headers.null_count == len(headers):
        return False
    keys = headers.values.field("key").buffers()[2]
    return keys is not None and _NAMES.search(keys) is not None


def values_of(headers: pa.Array, name: str) -> tuple[np.ndarray, pa.Array]:
    """Return the rows that have a header of that name, ascending, and the first value of each, binary."""
    pairs = headers.flatten()
    at = buffers.numbers(pc.indices_nonzero(pc.equal(pairs.field("key"), buffers.constant(name, pa.string()))))
    lengths = pc.list_value_length(headers).fill_null(buffers.constant(0, pa.int32()))
    ends = np.cumsum(buffers.numbers(lengths))
    rows = np.searchsorted(ends, at, side="right")
    is_first = np.diff(rows, prepend=-1) > 0
    chosen = buffers.of_numbers(at[is_first].astype(np.int64))
    return rows[is_first], pairs.field("value").take(chosen)


def _decoded(values: pa.Array, kind: np.dtype, decode: Callable[[str], int]) -> tuple[np.ndarray, int]:
    """Return what `decode` makes of each value, and the position of the first that it refuses, -1 if it takes all."""
    coded = values.dictionary_encode()
    made, is_bad = np.zeros(len(coded.dictionary) + 1, kind), np.zeros(len(coded.dictionary) + 1, bool)
    for at, value in enumerate(coded.dictionary.to_pylist()):
        try:
            made[at] = decode((value or b"").decode())
        except (ValueError, OverflowError):
            is_bad[at] = True
    try:
        made[-1] = decode("")  # a value that is null
    except ValueError:
        is_bad[-1] = True
    codes = buffers.numbers(coded.indices.fill_null(buffers.constant(len(made) - 1, coded.indices.type)))
    bad = np.flatnonzero(is_bad[codes])
    return made[codes], int(bad[0]) if len(bad) else -1


def rollups(values: pa.Array) -> tuple[np.ndarray, int]:
    """Return of each value of Nats-Rollup whether it is for all subjects, and the first that is malformed, or -1."""

    def decode(text: str) -> int:
        if text.lower() not in (SUBJECT, ALL):
            raise ValueError(text)
        return int(text.lower() == ALL)

    return _decoded(values, np.dtype(bool), decode)


def ttls(values: pa.Array) -> tuple[np.ndarray, int]:
    """Return of each value of Nats-TTL the nanoseconds, 0 for none, NEVER; and the first that is malformed, or -1."""
    return _decoded(values, np.dtype(np.int64), _ttl_ns)


def _ttl_ns(text: str) -> int:
    """Return a TTL as a server reads it: whole seconds, as a number or a duration."""
    if text == "":
        return 0
    if text.lower() == "never":
        return NEVER
    seconds = int(text) if re.fullmatch(r"[0-9]{1,12}", text) else parse_duration_ns(text, TTL) // _SECOND_NS
    if not 1 <= seconds <= _TTL_MAX_S:
        raise ValueError(text)
    return seconds * _SECOND_NS


def shown(value: pa.Scalar) -> str:
    """Return a value for the text of an error."""
    text = (value.as_py() or b"").decode(errors="replace")
    return repr(text if len(text) <= _VALUES_SHOWN_MAX else text[:_VALUES_SHOWN_MAX] + "...")
