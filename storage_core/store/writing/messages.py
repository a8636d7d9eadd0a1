"""Messages on their way in: columns as writers give them, checked and turned into frame columns, all vectorised.

Every row is checked here, once, on the side of whoever writes; the block writer trusts what it gets.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.block.format import MESSAGE_SIZE_MAX
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.sizing import message_sizes
from storage_core.errors import ConditionFailedError, InvalidMessageError
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE
from storage_core.store.writing import instructions
from storage_core.store.writing.instructions import Condition
from storage_core.subject_columns import first_invalid, match_mask
from storage_core.subjects import SUBJECT_SIZE_MAX, is_filter

WRITE_COLUMNS = ("data", "subject", "headers", "msg_id", "timestamp", "timestamp_ns", "stream", "sequence")
MSG_ID_SIZE_MAX = 4096  # bytes
SUBJECT_SHOWN_MAX = 200  # of a subject that is refused, in the message that says so
REMEMBERED_SUBJECTS_MAX = 256  # distinct ones of a batch


@dataclass(frozen=True, slots=True)
class Messages:
    """Checked messages of one stream."""

    batch: pa.RecordBatch  # FRAME_SCHEMA
    sizes: np.ndarray  # int64, bytes of subject, headers and data, row by row
    msg_ids: np.ndarray | None  # (rows, 2) uint64; a pair of zeros is no msg_id
    has_rollup: bool  # some message takes the place of others
    expires_ns: int  # when the first of them expires; 0: none does
    conditions: tuple[Condition, ...]  # what messages expect of the stream
    given_ns: pa.Array | None  # int64, times as the writer gave them; None, and null: the store chooses


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a stream takes, as its configuration says."""

    stream: str
    subjects: tuple[str, ...]  # filters, one of which must take a message's subject
    max_msg_size: int  # bytes; -1: only what a frame can hold bounds it
    default_subject: str | None  # of rows without one; None: it is an error
    allow_rollup: bool = False
    allow_ttl: bool = False
    max_age: int = 0  # ns; 0: no limit
    obeys_headers: bool = True  # those that tell a stream what to do; else they are headers like others

    def describe(self) -> str:
        return ", ".join(self.subjects)


def check_write_schema(schema: pa.Schema, with_stream: bool) -> None:
    """Raise ValueError naming the column, what came and what is taken, unless messages can be made of it.

    `with_stream`: a `stream` column routes the rows, so it must be there and be a string.
    """
    names = schema.names
    for name in names:
        if name not in WRITE_COLUMNS:
            raise ValueError(f"column {name!r} cannot be written; valid columns are {', '.join(WRITE_COLUMNS)}")
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} is there {names.count(name)} times")
    if "data" not in names:
        raise ValueError(f"column 'data' is missing; the columns are {', '.join(names) or 'none'}")
    if with_stream and "stream" not in names:
        raise ValueError("no stream to write to: give the option or argument 'stream', or a column 'stream'")
    for name in names:
        if name != "sequence" and not _takes(name, schema.field(name).type):
            raise ValueError(f"column {name!r} is {schema.field(name).type}; valid is {_TAKEN[name]}")


_TAKEN = {
    "data": "binary, or string as UTF-8",
    "subject": "string",
    "headers": "array<struct<key:string,value:binary>>",
    "msg_id": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "long (nanoseconds since 1970, UTC)",
    "stream": "string",
}


def _takes(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    text = _is_one_of(kind, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if name == "data":
        return text or _is_one_of(
            kind, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary
        )
    if name == "headers":
        return _is_headers(kind)
    if name == "timestamp":
        return _is_one_of(kind, pa.types.is_timestamp)
    if name == "timestamp_ns":
        return _is_one_of(kind, pa.types.is_integer)
    return text


def _is_one_of(kind: pa.DataType, *tests: Callable[[pa.DataType], bool]) -> bool:
    return any(test(kind) for test in tests)


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    if pair.num_fields != 2 or {pair.field(0).name, pair.field(1).name} != {"key", "value"}:
        return False
    key, value = pair.field("key").type, pair.field("value").type
    return _takes("subject", key) and _takes("data", value)


def check_messages(batch: pa.RecordBatch, acceptance: Acceptance, now_ns: int) -> Messages:
    """Return the messages in `batch`, whose schema has passed `check_write_schema`.

    Raises InvalidMessageError naming the stream, the row of the batch and what is wrong with it.
    """
    columns = {name: batch.column(position) for position, name in enumerate(batch.schema.names)}
    subject = _subject(columns.get("subject"), batch.num_rows, acceptance)
    data = _cast(columns["data"], pa.binary(), "data", acceptance)
    headers = columns.get("headers")
    headers = pa.nulls(batch.num_rows, HEADERS_TYPE) if headers is None else _headers(headers, acceptance)
    given_ns = _given_ns(columns, acceptance)
    timestamp = _times(given_ns, now_ns, batch.num_rows)
    made = pa.RecordBatch.from_arrays([subject, timestamp, headers, data], schema=FRAME_SCHEMA)
    sizes = message_sizes(made)
    limit = acceptance.max_msg_size if acceptance.max_msg_size >= 0 else MESSAGE_SIZE_MAX
    if len(sizes) and int(sizes.max()) > limit:
        row = int(sizes.argmax())
        which = "max_msg_size" if acceptance.max_msg_size >= 0 else "the largest that can be stored"
        raise _invalid(acceptance, row, f"message of {int(sizes[row])} bytes, {which} is {limit}")
    msg_ids = columns.get("msg_id")
    hashes = None if msg_ids is None else _msg_ids(msg_ids, acceptance)
    has_rollup, expires_ns = False, 0
    expected: tuple[Condition, ...] = ()
    if acceptance.obeys_headers and instructions.may_have_any(headers):
        has_rollup = _check_rollups(headers, acceptance)
        expires_ns = _first_expiry(headers, timestamp, acceptance, now_ns)
        expected = _conditions(headers, subject, acceptance)
    return Messages(made, sizes, hashes, has_rollup, expires_ns, expected, given_ns)


def _conditions(headers: pa.Array, subjects: pa.Array, acceptance: Acceptance) -> tuple[Condition, ...]:
    """Return what messages expect; raises ConditionFailedError (another stream), InvalidMessageError."""
    expected: list[Condition] = []
    for _, name in _texts(headers, instructions.EXPECTED_STREAM, acceptance):
        if name != acceptance.stream:
            raise ConditionFailedError(acceptance.stream, "stream", name, acceptance.stream)
    filters = dict(_texts(headers, instructions.EXPECTED_SUBJECT, acceptance))
    sequences = dict(_texts(headers, instructions.EXPECTED_LAST_SUBJECT_SEQUENCE, acceptance))
    for row, subject in filters.items():
        if row not in sequences:
            reason = f"{instructions.EXPECTED_SUBJECT} without {instructions.EXPECTED_LAST_SUBJECT_SEQUENCE}"
            raise _invalid(acceptance, row, reason)
        if not is_filter(subject):
            raise _invalid(acceptance, row, f"{instructions.EXPECTED_SUBJECT}: {subject!r} is not a subject or filter")
    for row, text in sequences.items():
        sequence = _expected_sequence(instructions.EXPECTED_LAST_SUBJECT_SEQUENCE, text, row, acceptance)
        subject = filters.get(row) or subjects[row].as_py()
        expected.append(Condition(row, instructions.LAST_SUBJECT_SEQUENCE, sequence, subject))
    for row, text in _texts(headers, instructions.EXPECTED_LAST_SEQUENCE, acceptance):
        sequence = _expected_sequence(instructions.EXPECTED_LAST_SEQUENCE, text, row, acceptance)
        expected.append(Condition(row, instructions.LAST_SEQUENCE, sequence))
    for row, msg_id in _texts(headers, instructions.EXPECTED_LAST_MSG_ID, acceptance):
        expected.append(Condition(row, instructions.LAST_MSG_ID, msg_id))
    return tuple(expected)


def _texts(headers: pa.Array, name: str, acceptance: Acceptance) -> list[tuple[int, str]]:
    """Return (row, value) of the messages that have a header of this name which is not empty."""
    rows, values = instructions.values_of(headers, name)
    if len(rows) > instructions.CONDITION_COUNT_MAX:
        reason = f"{len(rows)} messages have {name}; an append takes {instructions.CONDITION_COUNT_MAX} at most"
        raise _invalid(acceptance, int(rows[0]), reason)
    texts = []
    for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
        try:
            texts.append((row, (value or b"").decode()))
        except UnicodeDecodeError as error:
            raise _invalid(acceptance, row, f"{name}: {value!r} is not UTF-8") from error
    return [(row, text) for row, text in texts if text]


def _expected_sequence(name: str, text: str, row: int, acceptance: Acceptance) -> int:
    if not re.fullmatch("[0-9]{1,19}", text):
        raise _invalid(acceptance, row, f"{name}: {text[:SUBJECT_SHOWN_MAX]!r} is not a sequence, or 0 for none")
    return int(text)


def _check_rollups(headers: pa.Array, acceptance: Acceptance) -> bool:
    """Return whether a message takes the place of others; raises InvalidMessageError where that cannot be."""
    rows, values = instructions.values_of(headers, instructions.ROLLUP)
    if not len(rows):
        return False
    if not acceptance.allow_rollup:
        reason = f"header {instructions.ROLLUP} is not taken: the stream has not set allow_rollup_hdrs"
        raise _invalid(acceptance, int(rows[0]), reason)
    _, bad = instructions.rollups(values)
    if bad >= 0:
        reason = f"{instructions.ROLLUP}: {instructions.shown(values[bad])} is neither 'sub' nor 'all'"
        raise _invalid(acceptance, int(rows[bad]), reason)
    return True


def _first_expiry(headers: pa.Array, times: pa.Array, acceptance: Acceptance, now_ns: int) -> int:
    """Return when the first message expires, 0 if none does; raises InvalidMessageError for what cannot be."""
    rows, values = instructions.values_of(headers, instructions.TTL)
    if not len(rows):
        return 0
    if not acceptance.allow_ttl:
        reason = f"header {instructions.TTL} is not taken: the stream has not set allow_msg_ttl"
        raise _invalid(acceptance, int(rows[0]), reason)
    spans_ns, bad = instructions.ttls(values)
    if bad >= 0:
        said = f"{instructions.shown(values[bad])} is not a number of seconds, a duration of 1s and more, or 'never'"
        raise _invalid(acceptance, int(rows[bad]), f"{instructions.TTL}: {said}")
    never = np.flatnonzero(spans_ns == instructions.NEVER)
    if len(never) and acceptance.max_age:
        reason = (
            f"{instructions.TTL}: 'never' is not taken by a stream with max_age, which would remove it all the same"
        )
        raise _invalid(acceptance, int(rows[never[0]]), reason)
    ends = (buffers.numbers(times)[rows] + spans_ns)[spans_ns > 0]
    over = np.flatnonzero(ends <= now_ns)
    if len(over):
        at = int(np.flatnonzero(spans_ns > 0)[over[0]])
        reason = f"{instructions.TTL}: {instructions.shown(values[at])} after its timestamp is over already"
        raise _invalid(acceptance, int(rows[at]), reason)
    return int(ends.min()) if len(ends) else 0


def _invalid(acceptance: Acceptance, row: int, reason: str) -> InvalidMessageError:
    text = f"stream {acceptance.stream!r}, row {row} of the batch: {reason}"
    return InvalidMessageError(text, stream=acceptance.stream, row=row)


def _cast(column: pa.Array, kind: pa.DataType, name: str, acceptance: Acceptance) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        holds = ", which holds times from 1677-09-21 to 2262-04-11" if name == "timestamp" else ""
        reason = f"stream {acceptance.stream!r}: column {name!r} ({column.type}) does not fit {kind}{holds}: {error}"
        raise InvalidMessageError(reason, stream=acceptance.stream) from error


def _not_utf8(column: pa.Array) -> tuple[int, bytes] | None:
    """Return position and bytes of the first string that is not UTF-8, None if all are.

    Strings of Spark and of Arrow hold any bytes (`cast(X'ff' AS STRING)`); a message that has some is one that many
    readers fail at.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for position, value in enumerate(column.cast(pa.binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                return position, value
        raise
    return None


def _subject(column: pa.Array | None, row_count: int, acceptance: Acceptance) -> pa.Array:
    default = acceptance.default_subject
    if column is None:
        if default is None and row_count:
            raise _invalid(
                acceptance, 0, f"no subject, and none to fall back on: the stream takes {acceptance.describe()}"
            )
        made = buffers.repeated(default or "", row_count)
        _check_subjects(made[:1], acceptance)
        return made
    column = _cast(column, pa.string(), "subject", acceptance)
    if column.null_count:
        if default is None:
            row = int(np.flatnonzero(buffers.nulls(column))[0])
            raise _invalid(acceptance, row, f"subject is null, and none to fall back on in {acceptance.describe()}")
        column = column.fill_null(buffers.constant(default, pa.string()))
    _check_subjects(column, acceptance)
    return column


def _check_subjects(subjects: pa.Array, acceptance: Acceptance) -> None:
    distinct = subjects.unique()
    if len(distinct) <= REMEMBERED_SUBJECTS_MAX:
        names = distinct.cast(pa.binary()).to_pylist()
        if _are_taken(acceptance.subjects, tuple(sorted(names))):
            return
    broken = _not_utf8(distinct)
    if broken is not None:
        row = pc.index(subjects.cast(pa.binary()), broken[1]).as_py()
        raise _invalid(acceptance, row, f"subject {broken[1]!r} is not UTF-8")
    bad = first_invalid(distinct)
    if bad is not None:
        row = pc.index(subjects, bad).as_py()
        size = len(bad.encode())
        shown = repr(bad) if size <= SUBJECT_SHOWN_MAX else f"{bad[:SUBJECT_SHOWN_MAX]!r}... of {size} bytes"
        raise _invalid(
            acceptance, row, f"subject {shown} is not one that a message can carry: tokens joined by dots, without "
            f"blanks, control characters and wildcards, {SUBJECT_SIZE_MAX} bytes at most",
        )  # fmt: skip
    refused = distinct.filter(pc.invert(match_mask(acceptance.subjects, distinct)))
    if len(refused):
        row = pc.index(subjects, refused[0]).as_py()
        reason = f"subject {refused[0].as_py()!r} is not taken; the stream takes {acceptance.describe()}"
        raise _invalid(acceptance, row, reason)


@lru_cache(maxsize=4096)
def _are_taken(subject_filters: tuple[str, ...], subjects: tuple[bytes, ...]) -> bool:
    """Return whether messages can carry all of these subjects, and a filter takes each.

    Remembered, since the batches of a stream have the same few subjects again and again, and Arrow compiles the regular
    expressions for each of them anew: a fifth of what a batch of 10,000 messages takes.
    """
    try:
        column = buffers.of_bytes(subjects).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return first_invalid(column) is None and pc.all(match_mask(subject_filters, column)).as_py() is not False


def _headers(column: pa.Array, acceptance: Acceptance) -> pa.Array:
    if column.type != HEADERS_TYPE:
        if not pa.types.is_null(column.type) and column.type.value_type.field(0).name != "key":
            pairs = column.flatten()
            ordered = pa.StructArray.from_arrays([pairs.field("key"), pairs.field("value")], ["key", "value"])
            column = pa.ListArray.from_arrays(_offsets(column), ordered, mask=column.is_null())
        column = _cast(column, HEADERS_TYPE, "headers", acceptance)
    pairs = column.flatten()
    if pairs.null_count or pairs.field("key").null_count:
        missing = np.flatnonzero(pc.or_(pairs.is_null(), pairs.field("key").is_null()))[0]
        raise _invalid(acceptance, _row_of(column, int(missing)), "a header without a key")
    bad = _not_utf8(pairs.field("key"))
    if bad is not None:
        raise _invalid(acceptance, _row_of(column, bad[0]), f"header key {bad[1]!r} is not UTF-8")
    return column


def _row_of(column: pa.Array, item: int) -> int:
    """Return the row whose list holds that item of `column.flatten()`."""
    return int(np.searchsorted(buffers.numbers(_offsets(column)), item, side="right")) - 1


def _offsets(column: pa.Array) -> pa.Array:
    """Return where each row's items begin in `column.flatten()`, with the end at last."""
    lengths = _filled(pc.list_value_length(column), 0)
    return buffers.of_numbers(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _filled(column: pa.Array, value: int) -> np.ndarray:
    """Return a column of numbers, `value` where it is null."""
    return buffers.numbers(column.fill_null(buffers.constant(value, column.type)))


def _times(given_ns: pa.Array | None, now_ns: int, row_count: int) -> pa.Array:
    """Return the time of each row: as it was given, else `now_ns`."""
    if given_ns is None:
        return buffers.of_numbers(np.full(row_count, now_ns, np.int64))
    return given_ns.fill_null(buffers.constant(now_ns, pa.int64()))


def _given_ns(columns: dict[str, pa.Array], acceptance: Acceptance) -> pa.Array | None:
    """Return the times that the writer gave, null where it gave none; None if it gave none at all."""
    given_ns = columns.get("timestamp_ns")
    if given_ns is not None:
        given_ns = _cast(given_ns, pa.int64(), "timestamp_ns", acceptance)
    if "timestamp" in columns:
        times = _cast(columns["timestamp"], pa.timestamp("ns", "UTC"), "timestamp", acceptance).cast(pa.int64())
        if given_ns is not None:
            _check_same_times(given_ns, times, columns["timestamp"], acceptance)
        given_ns = times if given_ns is None else pc.coalesce(given_ns, times)
    return given_ns


def _check_same_times(given_ns: pa.Array, times: pa.Array, timestamps: pa.Array, acceptance: Acceptance) -> None:
    """Raise InvalidMessageError for a row whose two times are not the same, as far as the coarser one says."""
    units_ns = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
    unit_ns = units_ns[timestamps.type.unit] if pa.types.is_timestamp(timestamps.type) else 1
    both = ~(buffers.nulls(given_ns) | buffers.nulls(times))
    exact, coarse = _filled(given_ns, 0), _filled(times, 0)
    bad = np.flatnonzero(both & (exact // unit_ns != coarse // unit_ns))
    if len(bad):
        row = int(bad[0])
        raise _invalid(
            acceptance, row, f"timestamp_ns {exact[row]} is another time than timestamp {timestamps[row]}: give one of "
            "them, or the same in both",
        )  # fmt: skip


def _msg_ids(column: pa.Array, acceptance: Acceptance) -> np.ndarray | None:
    column = _cast(column, pa.string(), "msg_id", acceptance)
    if column.null_count == len(column):
        return None
    lengths = _filled(pc.binary_length(column), 1)
    bad = np.flatnonzero((lengths == 0) | (lengths > MSG_ID_SIZE_MAX))
    if len(bad):
        reason = f"msg_id of {int(lengths[bad[0]])} bytes; 1 to {MSG_ID_SIZE_MAX} are taken"
        raise _invalid(acceptance, int(bad[0]), reason)
    broken = _not_utf8(column)
    if broken is not None:
        raise _invalid(acceptance, broken[0], f"msg_id {broken[1]!r} is not UTF-8")
    hashes = msg_id_hashes(column.fill_null(buffers.constant("", pa.string())))
    hashes[buffers.nulls(column)] = 0
    return hashes
