"""A schema proposed from messages: the fields of their JSON or MessagePack, each with the narrowest type of Spark.

A proposal is made for people, who read it before it is used: no field is NOT NULL, a text is a TIMESTAMP only if all
its values are times with a zone, and what has several types is a STRING, which takes anything as text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_stream.look.values import parsed_json
from spark_stream.pipelines.config import BYTES, ENVELOPE, JSON, MSGPACK, UTF8
from spark_stream.pipelines.payload import msgpack_to_json

DEPTH_MAX = 20  # levels of structs and lists; what is deeper is a STRING
FIELDS_MAX = 1_000  # of one struct; an object of more names is a map in all but name
INDENT = "    "
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONG, _DIGITS_MAX = range(-(2**63), 2**63), 10**38


@dataclass(slots=True)
class Kind:
    """What values of one field have been."""

    names: set[str] = field(default_factory=set)  # types of Spark; of objects and lists what is within
    fields: dict[str, "Kind"] = field(default_factory=dict)
    items: "Kind | None" = None
    count: int = 0  # values that are not null

    def add(self, value: Any, depth: int = 0) -> None:
        if value is None:
            return
        self.count += 1
        if isinstance(value, Mapping) and value and depth < DEPTH_MAX and len(self.fields) <= FIELDS_MAX:
            self.names.add("STRUCT")
            for name, inner in value.items():
                self.fields.setdefault(str(name), Kind()).add(inner, depth + 1)
        elif isinstance(value, list) and depth < DEPTH_MAX:
            self.names.add("ARRAY")
            self.items = self.items or Kind()
            for inner in value:
                self.items.add(inner, depth + 1)
        else:
            self.names.add(_plain(value))

    def ddl(self, indent: str = "") -> str:
        """Return the type as Spark writes it; structs over several lines."""
        if self.names == {"BIGINT", "DOUBLE"}:
            return "DOUBLE"
        if self.names == {"BIGINT", "DECIMAL(38, 0)"}:
            return "DECIMAL(38, 0)"
        if self.names == {"ARRAY"}:
            assert self.items is not None, self
            return f"ARRAY<{self.items.ddl(indent)}>"
        if self.names == {"STRUCT"} and len(self.fields) <= FIELDS_MAX:
            inner = f"{indent}{INDENT}"
            lines = [f"{inner}{quoted(name)}: {kind.ddl(inner)}" for name, kind in self.fields.items()]
            return "STRUCT<\n" + ",\n".join(lines) + f"\n{indent}>"
        return next(iter(self.names)) if len(self.names) == 1 and not self.fields else "STRING"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Format and schema for the table [payload], and how far the samples bear them out."""

    format: str
    schema: str  # DDL, a field a line; empty for utf8 and bytes
    column: str  # set if a field is called like a column of every message
    sampled: int
    others: int  # messages that are not of the format
    sometimes: dict[str, int]  # fields that are missing or null, and in how many messages

    def toml(self) -> str:
        """Return the table as it stands in a pipeline, with the doubts as comments."""
        lines = ["[payload]", f'format = "{self.format}"']
        if self.column:
            lines.append(f'column = "{self.column}"  # a field is called like a column of every message')
        if self.schema:
            lines += ["schema = '''", self.schema, "'''"]
        if self.others:
            lines.append(f"# {self.others:,} of {self.sampled:,} messages are not {self.format}")
        for name, count in self.sometimes.items():
            lines.append(f"# {name!r} is missing or null in {count:,}")
        return "\n".join(lines)


def propose(payloads: list[bytes | None]) -> Proposal:
    """Return what most of the payloads are, and the schema of those."""
    counts, tops = {JSON: 0, MSGPACK: 0, UTF8: 0, BYTES: 0}, {JSON: Kind(), MSGPACK: Kind()}
    texts = msgpack_to_json(pa.array(payloads, pa.binary())).field("text").to_pylist()
    for payload, text in zip(payloads, texts, strict=True):
        format, value = _read(payload or b"", text)
        counts[format] += 1
        if value is not None:
            tops[format].add(value)
    sampled = len(payloads)
    format = max(counts, key=lambda name: counts[name]) if sampled else BYTES
    if format not in tops:
        others = counts[MSGPACK] + counts[BYTES] if format == UTF8 else 0
        return Proposal(format, "", "", sampled, others, {})
    fields = tops[format].fields
    lines = ",\n".join(f"{INDENT}{quoted(name)} {kind.ddl(INDENT)}" for name, kind in fields.items())
    column = "body" if {name.lower() for name in fields} & set(ENVELOPE) else ""
    sometimes = {name: counts[format] - kind.count for name, kind in fields.items() if kind.count < counts[format]}
    return Proposal(format, lines, column, sampled, sampled - counts[format], sometimes)


def quoted(name: str) -> str:
    """Return a name as DDL takes it."""
    return name if _NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _read(payload: bytes, unpacked: str | None) -> tuple[str, dict[str, Any] | None]:
    """Return a payload's format, and its value if that is an object. `unpacked`: its MessagePack as JSON."""
    for format, text in ((JSON, payload), (MSGPACK, (unpacked or "").encode())):
        value = parsed_json(text)
        if value is not None and isinstance(value[0], dict) and value[0]:
            return format, value[0]
    try:
        payload.decode()
    except UnicodeDecodeError:
        return BYTES, None
    return UTF8, None


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if value in _LONG else "DECIMAL(38, 0)" if abs(value) < _DIGITS_MAX else "STRING"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, str):
        return "TIMESTAMP" if _TIME.fullmatch(value) else "DATE" if _DATE.fullmatch(value) else "STRING"
    return "STRING"  # an empty object, or something deep
