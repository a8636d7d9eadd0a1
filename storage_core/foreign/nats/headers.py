"""Message headers: from raw bytes to pairs, for many messages at once.

Raw headers are `NATS/1.0` (maybe with a status), CR LF, then `Key: value` CR LF for each pair, then an empty line.
Blanks around keys and values are not part of them, as clients show it; keys may repeat. A line without a colon is a
key whose value is null, so nothing is dropped.

Source: docs.nats.io, "NATS Client Protocol" (HPUB), and the header readers of nats.go and nats.py.
"""

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.foreign.arrays import gather, to_strings
from storage_core.schema import HEADERS_TYPE

_CR, _LF, _COLON, _BLANK, _TAB = 13, 10, 58, 32, 9
_STATUS_LINE = b"NATS"
_TRIM_STEPS = 4  # blanks taken off one by one; nearly always there is one before a value and none elsewhere


def parse_headers(raw: pa.BinaryArray, present: np.ndarray) -> pa.ListArray:
    """Return one list of pairs for each message, as schema.HEADERS_TYPE.

    `present` is a mask over the messages; `raw` has the headers of those where it is set, in order, without nulls.
    The others get null.
    """
    keys, values, counts = _pairs(raw)
    per_message = np.zeros(len(present), np.int64)
    per_message[present] = counts
    offsets = np.concatenate(([0], np.cumsum(per_message))).astype(np.int32)
    pairs = pa.StructArray.from_arrays([to_strings(keys), values], fields=list(HEADERS_TYPE.value_type))
    mask = None if present.all() else buffers.of_bits(~present)
    return pa.ListArray.from_arrays(buffers.of_numbers(offsets), pairs, type=HEADERS_TYPE, mask=mask)


def _pairs(raw: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    """Return all keys, all values, and how many pairs each message has."""
    if not len(raw):
        return buffers.of_bytes(()), buffers.of_bytes(()), np.empty(0, np.int64)
    edges = np.frombuffer(raw.buffers()[1], np.int32, len(raw) + 1, raw.offset * 4).astype(np.int64)
    buffer = raw.buffers()[2]
    text = np.frombuffer(buffer, np.uint8)[: edges[-1]]
    starts, ends, message = _lines(text, edges)
    keep = (starts < ends) & ~_is_status(text, starts, ends, starts == edges[message])
    starts, ends, message = starts[keep], ends[keep], message[keep]
    colons = _first_at_or_after(np.flatnonzero(text == _COLON), starts, ends)
    with_value = colons < ends
    key_starts, key_ends = _trim(text, starts, colons)
    value_starts, value_ends = _trim(text, np.minimum(colons + 1, ends), ends)
    keys = gather(buffer, key_starts, key_ends - key_starts)
    values = gather(buffer, value_starts, value_ends - value_starts)
    if not with_value.all():
        parts = [pa.py_buffer(np.packbits(with_value, bitorder="little")), *values.buffers()[1:]]
        values = pa.Array.from_buffers(pa.binary(), len(values), parts)
    return keys, values, np.bincount(message, minlength=len(raw))


def _lines(text: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start and end (without CR LF) of every line, and which message it belongs to."""
    breaks = np.flatnonzero((text[:-1] == _CR) & (text[1:] == _LF))
    owner = np.searchsorted(edges, breaks, side="right") - 1
    # Not before the first message, where the array is a slice; not half in the next one.
    inside = (owner >= 0) & (breaks + 2 <= edges[owner + 1])
    breaks, owner = breaks[inside], owner[inside]
    # Each message has one line more than breaks. Sorted, starts and ends fall into step.
    starts = np.sort(np.concatenate((edges[:-1], breaks + 2)), kind="stable")  # merges two sorted runs
    ends = np.sort(np.concatenate((breaks, edges[1:])), kind="stable")
    line_counts = 1 + np.bincount(owner, minlength=len(edges) - 1)
    return starts, ends, np.repeat(np.arange(len(edges) - 1), line_counts)


def _is_status(text: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return which lines are a status: the `first` of their message, if all of its beginning lies within it."""
    status = first & (ends - starts >= len(_STATUS_LINE))
    lines = np.flatnonzero(status)
    beginnings = text[starts[lines, np.newaxis] + np.arange(len(_STATUS_LINE))]
    status[lines] = (beginnings == np.frombuffer(_STATUS_LINE, np.uint8)).all(axis=1)
    return np.asarray(status)


def _first_at_or_after(places: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the first of the ascending `places` in each `[start, end)`, else `end`."""
    ended = np.concatenate((places, [np.iinfo(np.int64).max]))
    return np.asarray(np.minimum(ended[np.searchsorted(places, starts)], ends))


def _trim(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges without the blanks at both ends."""
    starts, ends = starts.copy(), ends.copy()
    for _ in range(_TRIM_STEPS):
        leading = np.flatnonzero((starts < ends) & _is_blank(text, starts))
        starts[leading] += 1
        trailing = np.flatnonzero((starts < ends) & _is_blank(text, ends - 1))
        ends[trailing] -= 1
        if not len(leading) and not len(trailing):
            return starts, ends
    # Long runs of blanks: look up the first and the last place that is none.
    solid = np.flatnonzero((text != _BLANK) & (text != _TAB))
    trimmed = _first_at_or_after(solid, starts, ends)
    before = np.concatenate(([-1], solid))[np.searchsorted(solid, ends)]
    return trimmed, np.maximum(before + 1, trimmed)


def _is_blank(text: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return which places hold a blank; places outside the text are as good as any."""
    characters = text.take(places, mode="clip")
    return np.asarray((characters == _BLANK) | (characters == _TAB))
