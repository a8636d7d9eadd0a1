"""Which messages are wanted: by subject, header, field of the payload, and text. For commands, pages and downloads.

Subjects are chosen where blocks are read. The rest is decided over whole batches: the text by RE2, whose time grows
with the text and never explodes, and the field by its name and value as bytes, so that only messages that may have it
are parsed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.look.values import field_of, parsed
from storage_core.store.arguments import check_filters

SIZE_MAX = (1 << 31) - 1  # bytes of any message
_AS_TEXT = pc.CastOptions(target_type=pa.string(), allow_invalid_utf8=True)
_WORDS = {True: "true", False: "false"}
_INTEGER = re.compile(r"-?[0-9]+")
# Bytes in which a field need not be found as it is written: maps and arrays of MessagePack, which has no numbers in
# text, and JSON with escapes or in UTF-16.
_IN_OTHER_BYTES = r"^[\x80-\x9f\xdc-\xdf]|[\x00\\]"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages are wanted; each part that is given has to hold."""

    subjects: tuple[str, ...] = ()
    header: tuple[str, str | None] | None = None  # name in any case, value; None: any
    field: tuple[str, str | None] | None = None  # dotted path in JSON or MessagePack, value as text
    pattern: str = ""  # RE2, within the data; letters are UTF-8
    parsed_size_max: int | None = None  # bytes of a message that is parsed for the field; None: any

    @classmethod
    def of(cls, subject: str = "", header: str = "", field: str = "", grep: str = "") -> "MessageFilter":
        """Take `orders.>`, `Trace` or `Trace: abc`, `customer.id` or `customer.id=42`, and a regular expression.

        Raises ValueError naming what is not valid.
        """
        if grep:
            try:
                pc.match_substring_regex(pa.array([""]), grep)
            except pa.ArrowInvalid as error:
                reason = str(error).removeprefix("Invalid regular expression: ")
                raise ValueError(f"grep: {grep!r} is no regular expression of RE2: {reason}") from error
        return cls(check_filters(subject or None), _pair(header, ":"), _pair(field, "="), grep)

    @property
    def is_all(self) -> bool:
        """Whether every message is wanted."""
        return not self.subjects and self.is_by_subject

    @property
    def is_by_subject(self) -> bool:
        """Whether reading with the subjects has chosen all that is wanted."""
        return not (self.header or self.field or self.pattern)

    def columns(self, *others: str) -> tuple[str, ...]:
        """Return the columns that `chosen` needs, and the others."""
        needed = {"headers": self.header is not None, "data": bool(self.field or self.pattern)}
        return (*others, *(name for name, is_needed in needed.items() if is_needed and name not in others))

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of a batch whose subjects are chosen already."""
        return self.searched(batch)[0]

    def searched(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Return the wanted rows of a batch, and how many others may be wanted but are too large to be parsed."""
        rows = reduce(lambda rows, test: rows.filter(test(rows)) if rows.num_rows else rows, self._tests(), batch)
        if self.field is None:
            return rows, 0
        small = pc.less_equal(pc.binary_length(rows.column("data")), self.parsed_size_max or SIZE_MAX)
        parsed_rows = rows.filter(small)
        return parsed_rows.filter(self._have_field(parsed_rows)), rows.num_rows - parsed_rows.num_rows

    def _tests(self) -> list[Callable[[pa.RecordBatch], pa.Array]]:
        """Return the tests of whole batches, in the order of what they cost."""
        tests: list[Callable[[pa.RecordBatch], pa.Array]] = []
        if self.header is not None:
            tests.append(self._have_header)
        if self.pattern:
            tests.append(lambda rows: pc.match_substring_regex(_text(rows), self.pattern))
        if self.field is not None:
            tests.append(self._may_have_field)
        return tests

    def _have_header(self, rows: pa.RecordBatch) -> pa.Array:
        assert self.header is not None
        name, value = self.header
        headers = rows.column("headers")
        pairs, parents = pc.list_flatten(headers), pc.list_parent_indices(headers)
        names = pc.utf8_lower(pc.struct_field(pairs, "key"))
        have = pc.equal(names, name.lower())
        if value is not None:
            values = pc.fill_null(pc.struct_field(pairs, "value"), b"")
            have = pc.and_(have, pc.equal(values, pa.scalar(value.encode(), values.type)))
        return pc.is_in(pa.array(range(rows.num_rows), parents.type), value_set=parents.filter(have))

    def _may_have_field(self, rows: pa.RecordBatch) -> pa.Array:
        """Leave out messages whose bytes cannot hold the field, so that they are not parsed."""
        assert self.field is not None
        path, value = self.field
        data = rows.column("data")
        names = [name for name in path.split(".") if not name.isdigit()]
        has_parts = [pc.match_substring(data, name.encode()) for name in names[-1:]]
        if value and _is_literal(value):
            has_parts.append(pc.match_substring(data, value.encode()))
        if not has_parts:
            return pc.is_valid(data)
        return pc.or_(reduce(pc.and_, has_parts), pc.match_substring_regex(data, _IN_OTHER_BYTES))

    def _have_field(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.array([self._has_field(data) for data in rows.column("data").to_pylist()], pa.bool_())

    def _has_field(self, data: bytes | None) -> bool:
        assert self.field is not None
        path, wanted = self.field
        held = field_of(parsed(data), path)
        return held is not None and (wanted is None or wanted in _texts(held))


def _text(rows: pa.RecordBatch) -> pa.Array:
    return pc.cast(rows.column("data"), options=_AS_TEXT)


def _texts(value: Any) -> tuple[str, ...]:
    """Return how a value may be asked for."""
    return (str(value), _WORDS[value]) if isinstance(value, bool) else (str(value),)


def _is_literal(text: str) -> bool:
    """Return whether JSON has a value that is asked for by this text in these very letters.

    A fraction may be written in several ways, True and False are words of Python, and of lists spaces may differ.
    """
    if _INTEGER.fullmatch(text):
        return True
    try:
        float(text)
    except ValueError:
        return text not in ("True", "False") and text[0] not in "[{"
    return False


def _pair(text: str, separator: str) -> tuple[str, str | None] | None:
    name, divider, value = text.partition(separator)
    return (name.strip(), value.strip() if divider else None) if name.strip() else None
