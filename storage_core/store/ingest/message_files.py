"""Files of messages, put into a stream: JSON lines and Parquet as `export` writes them, and CSV.

A file is read in parts: raw rows with their numbers, and the function that makes a batch in write columns of them. A
part that is refused is halved until the bad rows are alone, so that each is known by its number, and a file without bad
rows is read and checked in large batches alone. All rows are staged, and one commit stores them, with the file's digest
as the writer's batch: a file is stored once and as a whole, whoever imports it again.

    JSON lines   the keys of message_json.py; `msg_id` besides; only `data` has to be there
    CSV          a first row of names out of the same keys without `base64`; `headers` are in JSON as there
    Parquet      write columns, as an append takes them
"""

import csv
import hashlib
import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData, ParquetFile

from storage_core import buffers
from storage_core.block.format import MESSAGE_SIZE_MAX
from storage_core.errors import InvalidMessageError, RequirementError
from storage_core.quantities import parse_time_ns
from storage_core.schema import HEADERS_TYPE
from storage_core.sequences import SEQUENCE_MAX
from storage_core.store.opened import OpenStore
from storage_core.store.writing import incoming
from storage_core.store.writing.appends import WriterBatch
from storage_core.store.writing.messages import check_write_schema
from storage_core.store.writing.staging import Stager
from storage_core.suggestions import did_you_mean

JSONL, CSV, PARQUET = "jsonl", "csv", "parquet"
WRITER = "import-file"  # who appends a file, with its digest as the batch: each is stored once
PART_SIZE = 4 << 20  # bytes of a file that are read at once
PART_ROW_COUNT = 10_000
LINE_SIZE_MAX = 6 * MESSAGE_SIZE_MAX + (1 << 20)  # bytes; a control character takes six in JSON
Progress = Callable[[int, int], None]
Headers = list[tuple[str, str | None]]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a line has it."""

    data: str | None
    subject: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=1, le=SEQUENCE_MAX)] | None = None
    time: str | None = None
    headers: Headers | None = None
    msg_id: str | None = None
    base64: tuple[Literal["headers", "data"], ...] = ()


_LINES = msgspec.json.Decoder(_Line)
_HEADERS = msgspec.json.Decoder(Headers)
_NAMES = tuple(name for name in _Line.__struct_fields__ if name != "base64")  # of the columns of a CSV file


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a file, not looked at yet."""

    rows: Any  # a list, or a RecordBatch
    numbers: Sequence[int]  # of lines, or of rows; from 1 on
    batch: Callable[[Any], pa.RecordBatch]  # of rows; raises ValueError
    raw: Callable[[Any], bytes]  # of one row as the file has it

    def slice(self, first: int, end: int) -> "_Part":
        return _Part(self.rows[first:end], self.numbers[first:end], self.batch, self.raw)


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """What a stream got of a file."""

    sequences: range  # that the append took, with those between that are holes
    stored: int
    duplicates: int  # messages whose msg_id the stream had: they are not shown
    skipped: int  # bad rows; 0 if the file was stored before
    already: bool  # the file was stored before, and this time nothing was


def import_file(
    store: OpenStore,
    name: str,
    file: BufferedReader,
    kind: str,
    dead_letters: str | None = None,
    subject: str | None = None,
    new_sequences: bool = False,
    progress: Progress | None = None,
) -> ImportedFile:
    """Append the messages of a file to a stream, all of them or none, once; `progress` gets bytes, or rows.

    Messages keep their sequences if they have some, unless they are to get `new_sequences`. `subject`: of those without
    one. Bad rows go to the stream `dead_letters` in the same commit, as they are, with a reason; without it this raises
    InvalidMessageError naming the first one. Raises ValueError for a file that is none of this kind, RequirementError
    if the stream has given the sequences already; what an append raises. Then nothing was stored.
    """
    if dead_letters == name:
        raise ValueError(f"bad rows of {file.name} cannot go to stream {name!r}, which takes the others")
    stamp = _stamp(file)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    stream = store.stream_state(name)
    before = stream.writers.get(WRITER)
    stored = before.find(digest) if before is not None else None
    if stored is not None:
        return ImportedFile(range(stored.first, stored.end), 0, 0, 0, True)
    transaction = store.begin([name] if dead_letters is None else [name, dead_letters])
    stagers = {
        target.stream: Stager(transaction, target, 0, env=store.environment, restores=True)
        for target in transaction.targets.values()
    }
    rejected = _Rejected(file.name, stagers[dead_letters]) if dead_letters is not None else None
    next_sequence = stream.next_sequence
    taking = _Taking(file.name, kind, stagers[name], next_sequence, subject, new_sequences, rejected)

    def write() -> None:
        for part in _PARTS[kind](file, progress):
            taking.take(part)
        if _stamp(file) != stamp:
            raise RequirementError(f"{file.name} was changed while it was read. Nothing was stored")

    result = store.store_all(transaction, list(stagers.values()), write, WriterBatch(WRITER, digest))
    got = result.appended.get(name)
    sequences = range(next_sequence, next_sequence) if got is None else range(got.first, got.end)
    if result.already:
        return ImportedFile(sequences, 0, 0, 0, True)
    duplicates = got.duplicate_count if got is not None else 0
    skipped = rejected.count if rejected is not None else 0
    return ImportedFile(sequences, taking.count - duplicates, duplicates, skipped, False)


def _stamp(file: BufferedReader) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


class _Rejected:
    """Bad rows on their way into a stream of dead letters."""

    def __init__(self, path: str, stager: Stager) -> None:
        self._path, self._stager = path, stager
        self.count = 0

    def take(self, raw: bytes, number: int, reason: str) -> None:
        self.count += 1
        headers = {"Jstream-Reason": reason, "Jstream-File": self._path, "Jstream-Line": str(number)}
        self._stager.write(incoming.batch_of_rows("", [{"data": raw, "headers": headers}]))


class _Taking:
    """Gives a stager the rows of a file, and takes the bad ones out."""

    def __init__(
        self, path: str, kind: str, stager: Stager, next_sequence: int, subject: str | None, new_sequences: bool,
        rejected: _Rejected | None,
    ) -> None:  # fmt: skip
        self._path, self._word = path, "row" if kind == PARQUET else "line"
        self._stager, self._subject = stager, subject
        self._next_sequence, self._rejected = next_sequence, rejected
        self._drops = new_sequences
        self._keeps: bool | None = None  # None: the first message will say
        self._last = 0  # the last sequence that was kept
        self.count = 0  # messages written

    def take(self, part: _Part) -> None:
        """Write all good rows, in order; raises InvalidMessageError for a bad one if there is no place for those."""
        count = len(part.numbers)
        if not count:
            return
        try:
            batch = self._placed(part.batch(part.rows))
            self._stager.write(batch, self._subject)
        except (ValueError, OverflowError, InvalidMessageError) as error:
            if count == 1:
                self._refuse(part, str(error).replace(", row 0 of the batch", ""))
                return
        else:
            self.count += count
            if self._keeps:
                self._last = batch.column("sequence")[-1].as_py()
            return
        self.take(part.slice(0, count // 2))
        self.take(part.slice(count // 2, count))

    def _refuse(self, part: _Part, reason: str) -> None:
        (number,) = part.numbers
        if self._rejected is None:
            text = f"{self._path}, {self._word} {number}: {reason}. Nothing was stored"
            raise InvalidMessageError(text, row=number)
        self._rejected.take(part.raw(part.rows), number, reason)

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with a column `sequence` if messages keep theirs; raises ValueError where they cannot."""
        at = batch.schema.get_field_index("sequence")
        if at < 0:
            given = pa.nulls(batch.num_rows, pa.int64())
        else:
            given = batch.column(at).cast(pa.int64())
            batch = batch.remove_column(at)
        if self._drops:
            return batch
        if self._keeps is None:
            self._keeps = given[0].is_valid
            if self._keeps and given[0].as_py() < self._next_sequence:
                raise RequirementError(
                    f"{self._path} begins with sequence {given[0]}, and the stream has given its sequences up to "
                    f"{self._next_sequence - 1}: take a new stream, or let the messages get new sequences "
                    "(--new-sequences). Nothing was stored"
                )
        if given.null_count != (0 if self._keeps else batch.num_rows):
            raise ValueError(f"{'no sequence' if self._keeps else 'a sequence'}, unlike the first message")
        if not self._keeps:
            return batch
        numbers = buffers.numbers(given)
        steps = np.diff(numbers, prepend=self._last)
        if (steps <= 0).any():
            at = int(np.flatnonzero(steps <= 0)[0])
            raise ValueError(f"sequence {numbers[at]} does not come after {numbers[at] - steps[at]}")
        return batch.append_column("sequence", given)


# --- JSON lines


def _json_parts(file: BufferedReader, progress: Progress | None) -> Iterator[_Part]:
    number, size = 1, _stamp(file)[0]
    for lines in _lines(file):
        numbers = [at for at, line in enumerate(lines, number) if line and not line.isspace()]
        yield _Part([lines[at - number] for at in numbers], numbers, _of_json, lambda rows: bytes(rows[0]))
        number += len(lines)
        if progress is not None:
            progress(file.tell(), size)


def _lines(file: BufferedReader) -> Iterator[list[bytes]]:
    """Yield all lines of a file, without their ends; raises ValueError for a line that is too long."""
    begun: list[bytes] = [b""]  # pieces of a line
    number = size = 0
    if file.peek(3).startswith(b"\xef\xbb\xbf"):  # a byte order mark
        file.read(3)
    while chunk := file.read(PART_SIZE):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LINE_SIZE_MAX:
            raise ValueError(f"{file.name}, line {number + 1} has more than {LINE_SIZE_MAX} bytes. Nothing was stored")
        if others:
            lines = [b"".join(begun), *others[:-1]]
            begun, size = [others[-1]], len(others[-1])
            number += len(lines)
            yield lines
    if size:
        yield [b"".join(begun)]


def _of_json(lines: list[bytes]) -> pa.RecordBatch:
    try:
        rows = [_LINES.decode(lines[0])] if len(lines) == 1 else _LINES.decode_lines(b"\n".join(lines))
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}; the keys of a message are {', '.join(_Line.__struct_fields__)}") from error
    if len(rows) != len(lines):
        raise ValueError("several messages on a line")
    return _of_rows(rows)


def _of_rows(rows: list[_Line]) -> pa.RecordBatch:
    """Return messages in write columns; raises ValueError."""
    columns: dict[str, pa.Array] = {"data": _bytes([row.data for row in rows], [row.base64 for row in rows], "data")}
    headers = [row.headers for row in rows]
    if any(headers):
        columns["headers"] = _headers(headers, [row.base64 for row in rows])
    times = [row.time for row in rows]
    if any(times):
        columns["timestamp_ns"] = _times_ns(times)
    for column, kind, values in (
        ("subject", pa.string(), [row.subject for row in rows]),
        ("msg_id", pa.string(), [row.msg_id for row in rows]),
        ("sequence", pa.int64(), [row.seq for row in rows]),
    ):
        made = pa.array(values, kind)
        if made.null_count < len(made):
            columns[column] = made
    return pa.RecordBatch.from_pydict(columns)


def _bytes(values: list[str | None], encoded: list[tuple[Any, ...]], key: str) -> pa.Array:
    """Return text as bytes; `encoded` says of each value which keys are in base64."""
    if not any(encoded):
        return pa.array(values, pa.string()).cast(pa.binary())
    decoded = [
        None if value is None else b64decode(value, validate=True) if key in keys else value.encode()
        for value, keys in zip(values, encoded, strict=True)
    ]
    return pa.array(decoded, pa.binary())


def _headers(headers: list[Headers | None], encoded: list[tuple[Any, ...]]) -> pa.Array:
    lengths = [len(pairs or ()) for pairs in headers]
    flat = list(chain.from_iterable(pairs or () for pairs in headers))
    of_pairs = list(chain.from_iterable([keys] * count for keys, count in zip(encoded, lengths, strict=True)))
    pairs = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in flat], pa.string()), _bytes([value for _, value in flat], of_pairs, "headers")],
        ["key", "value"],
    )
    offsets = buffers.of_numbers(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, mask=pa.array([not count for count in lengths])).cast(HEADERS_TYPE)


def _times_ns(times: list[str | None]) -> pa.Array:
    try:
        return pa.array(times, pa.string()).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:  # some have no zone, or are none
        return pa.array([None if time is None else parse_time_ns(time, "time") for time in times], pa.int64())


# --- CSV


def _csv_parts(file: BufferedReader, progress: Progress | None) -> Iterator[_Part]:
    csv.field_size_limit(LINE_SIZE_MAX)
    taken, size = _Taken(file), _stamp(file)[0]
    reader = csv.reader(taken, strict=True)
    names = next(reader, [])
    _check_names(file.name, names)
    rows: list[tuple[str, list[str] | str]] = []
    numbers: list[int] = []
    held = 0  # bytes of the rows
    while True:
        taken.text = []
        number = reader.line_num + 1
        try:
            row: list[str] | str = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            row = str(error)
        if row:
            raw = "".join(taken.text)
            rows.append((raw, row))
            numbers.append(number)
            held += len(raw)
        if held >= PART_SIZE or len(rows) >= PART_ROW_COUNT:
            yield _Part(rows, numbers, lambda some: _of_csv(names, some), _raw_csv)
            rows, numbers, held = [], [], 0
            if progress is not None:
                progress(file.tell(), size)
    yield _Part(rows, numbers, lambda some: _of_csv(names, some), _raw_csv)


class _Taken:
    """Lines of a file as text, and those that a reader took for its row."""

    def __init__(self, file: BufferedReader) -> None:
        self._file, self._number = file, 0
        self.text: list[str] = []

    def __iter__(self) -> Iterator[str]:
        encoding = "utf-8-sig"
        while line := self._file.readline(LINE_SIZE_MAX + 1):
            self._number += 1
            if len(line) > LINE_SIZE_MAX:
                where = f"{self._file.name}, line {self._number}"
                raise ValueError(f"{where} has more than {LINE_SIZE_MAX} bytes. Nothing was stored")
            self.text.append(line.decode(encoding, "surrogateescape"))
            encoding = "utf-8"
            yield self.text[-1]


def _raw_csv(rows: list[tuple[str, Any]]) -> bytes:
    return rows[0][0].rstrip("\r\n").encode("utf-8", "surrogateescape")


def _check_names(path: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in _NAMES:
            raise ValueError(
                f"{path}: column {name!r} is none of a message; valid ones are {', '.join(_NAMES)}"
                f"{did_you_mean(name, _NAMES)}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{path}: column {name!r} is there {names.count(name)} times")
    if "data" not in names:
        raise ValueError(f"{path}: column 'data' is missing; the first row has {', '.join(names) or 'none'}")


def _of_csv(names: Sequence[str], rows: list[tuple[str, list[str] | str]]) -> pa.RecordBatch:
    return _of_rows([_csv_line(names, cells) for _, cells in rows])


def _csv_line(names: Sequence[str], cells: list[str] | str) -> _Line:
    """Return a row; an empty cell is an empty message, or nothing. `cells`: or why there are none."""
    if isinstance(cells, str):
        raise ValueError(cells)
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} cells, and the first row has {len(names)}")
    given: dict[str, Any] = {name: cell for name, cell in zip(names, cells, strict=True) if cell or name == "data"}
    if "headers" in given:
        given["headers"] = _HEADERS.decode(given["headers"])
    if "seq" in given:
        if not given["seq"].isdecimal() or not 1 <= int(given["seq"][:20]) <= SEQUENCE_MAX:
            raise ValueError(f"seq: {given['seq'][:40]!r} is no sequence from 1 on")
        given["seq"] = int(given["seq"])
    return _Line(**given)


# --- Parquet


def _parquet_parts(file: BufferedReader, progress: Progress | None) -> Iterator[_Part]:
    try:
        with ParquetFile(file) as opened:
            try:
                check_write_schema(incoming.without_dictionaries(opened.schema_arrow), with_stream=False)
            except ValueError as error:
                raise ValueError(f"{file.name}: {error}") from error
            number, count = 1, opened.metadata.num_rows
            for batch in opened.iter_batches(_row_count(opened.metadata)):
                yield _Part(batch, range(number, number + batch.num_rows), _of_parquet, _raw_parquet)
                number += batch.num_rows
                if progress is not None:
                    progress(number - 1, count)
    except pa.ArrowException as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{file.name} is no Parquet file, or damaged: {reason}. Nothing was stored") from error


def _row_count(metadata: FileMetaData) -> int:
    """Return how many rows to read at once, so that large ones need no more memory."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    row_size = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(PART_ROW_COUNT, PART_SIZE // max(row_size, 1)))


def _of_parquet(batch: pa.RecordBatch) -> pa.RecordBatch:
    (made,) = incoming.batches("", batch)
    return made


def _raw_parquet(batch: pa.RecordBatch) -> bytes:
    data = batch.column("data")[0].as_py()
    return data.encode("utf-8", "replace") if isinstance(data, str) else data or b""


_PARTS: dict[str, Callable[[BufferedReader, Progress | None], Iterator[_Part]]] = {
    JSONL: _json_parts,
    CSV: _csv_parts,
    PARQUET: _parquet_parts,
}
KINDS = tuple(_PARTS)
