"""Subjects by the column: which a filter takes, and which no message may carry. The rules are those of `subjects`.

They stand apart because metadata needs the rules, and a process that reads metadata alone starts without Arrow.
"""

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.subjects import LITERAL_PATTERN, SUBJECT_SIZE_MAX, is_literal

_WILDCARD_TOKEN = r"(^|\.)[*>](\.|$)"


@lru_cache(maxsize=1024)
def filter_regex(subject_filter: str) -> str:
    """Return the filter as a regular expression for RE2 (Arrow), anchored at both ends."""
    parts = []
    for token in subject_filter.split("."):
        if token == "*":
            parts.append(r"[^.]+")
        elif token == ">":
            parts.append(r".+")
        else:
            parts.append(re.escape(token))
    return r"\A" + r"\.".join(parts) + r"\z"


def match_mask(subject_filters: tuple[str, ...], subjects: pa.Array) -> pa.BooleanArray:
    """Return, row by row, whether any filter takes the subject (StringArray without nulls)."""
    if ">" in subject_filters:
        return pa.repeat(buffers.constant(True, pa.bool_()), len(subjects))
    encoded = subjects.dictionary_encode()
    taken = pa.repeat(buffers.constant(False, pa.bool_()), len(encoded.dictionary))
    for subject_filter in subject_filters:
        if is_literal(subject_filter):
            hit = pc.equal(encoded.dictionary, buffers.constant(subject_filter, pa.string()))
        else:
            hit = pc.match_substring_regex(encoded.dictionary, filter_regex(subject_filter))
        taken = pc.or_(taken, hit)
    return taken.take(encoded.indices)


def first_invalid(subjects: pa.Array) -> str | None:
    """Return the first subject that no message may carry, None if all are good (StringArray without nulls)."""
    distinct = subjects.unique()
    good = pc.match_substring_regex(distinct, LITERAL_PATTERN)
    good = pc.and_(good, pc.invert(pc.match_substring_regex(distinct, _WILDCARD_TOKEN)))
    good = pc.and_(good, pc.less_equal(pc.binary_length(distinct), buffers.constant(SUBJECT_SIZE_MAX, pa.int32())))
    if pc.all(good).as_py() is not False:
        return None
    return str(distinct.filter(pc.invert(good))[0].as_py())
