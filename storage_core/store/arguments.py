"""What people give a stream or a consumer: counts, seconds and sequences, checked before the store is asked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core import subjects as subject_rules
from storage_core.appended import AppendedRange
from storage_core.quantities import DURATION_NS_MAX, whole_number
from storage_core.sequences import SequenceSet, check_sequence

MESSAGE_COUNT_MAX = 1_000_000  # of one fetch


class HasSequence(Protocol):
    """A message, or a row."""

    @property
    def sequence(self) -> int: ...


# A table that was fetched or read, its column `sequence`, an array, a range, rows and messages count as iterables.
Sequences: TypeAlias = int | Iterable[Any] | HasSequence | SequenceSet


def check_fetch(max_messages: object, timeout_s: object, max_bytes: object = None) -> None:
    """Raise ValueError for what no fetch can be asked for."""
    if max_bytes is not None and (whole_number(max_bytes) or 0) < 1:
        raise ValueError(f"max_bytes: {max_bytes!r} is not a number of bytes, 1 or more")
    count = whole_number(max_messages)
    if count is None:
        raise ValueError(f"max_messages: {max_messages!r} is not a whole number")
    if not 1 <= count <= MESSAGE_COUNT_MAX:
        raise ValueError(f"max_messages: {max_messages} is not 1 to {MESSAGE_COUNT_MAX}")
    nanoseconds("timeout_s", timeout_s)


def nanoseconds(name: str, seconds: object) -> int:
    """Return seconds as nanoseconds; raises ValueError for what is no time to wait."""
    is_number = isinstance(seconds, (int, float, np.integer, np.floating)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= DURATION_NS_MAX / 1e9:  # type: ignore[operator]
        raise ValueError(f"{name}: {seconds!r} is not a number of seconds, 0 or more")
    return int(seconds * 1_000_000_000)  # type: ignore[operator]


def check_count(name: str, value: object) -> int:
    """Return a whole number from 0 on as an int. Raises ValueError for anything else."""
    count = whole_number(value)
    if count is None or count < 0:
        raise ValueError(f"{name}: {value!r} is not a whole number from 0 on")
    return count


def check_range(first: object, end: object) -> tuple[int | None, int | None]:
    """Return the bounds of sequences [first, end), None for one that is open. Raises ValueError."""
    first = None if first is None else check_sequence("first", first)
    end = None if end is None else check_sequence("end", end)
    if first is not None and end is not None and end < first:
        raise ValueError(f"sequences [{first}, {end}): the end lies before the first")
    return first, end


def sequence_set(sequences: object, stream: str) -> SequenceSet:
    """Return the sequences that were given for `stream`, by themselves or with their messages.

    Takes a sequence, a range, an array or column, a table with a column `sequence` (anything with
    `__arrow_c_stream__`), a message or row with a `sequence`, or an iterable of these. Raises ValueError for anything
    else, and for messages of another stream.
    """
    if isinstance(sequences, SequenceSet):
        return sequences
    if sequences is None or isinstance(sequences, (str, bytes)):
        raise _not_sequences(sequences)
    if hasattr(sequences, "__arrow_c_stream__") or isinstance(sequences, (pa.RecordBatch, pa.Array)):
        return _in_array(_column(sequences, stream))
    if isinstance(sequences, np.ndarray):
        return _in_array(sequences)
    if isinstance(sequences, AppendedRange):
        sequences = range(sequences.start, sequences.stop)
    if isinstance(sequences, range) and sequences.step == 1:
        if not sequences:
            return SequenceSet.empty()
        first, last = (check_sequence("sequences", value) for value in (sequences.start, sequences.stop - 1))
        return SequenceSet.from_ranges([(first, last + 1)])
    is_single = isinstance(sequences, Mapping) or hasattr(sequences, "sequence")
    listed = [sequences] if is_single or not isinstance(sequences, Iterable) else sequences
    return SequenceSet.from_sequences([_single(item, stream) for item in listed])


def _single(item: Any, stream: str) -> int:
    """Return the sequence that an item is or has."""
    if isinstance(item, Mapping):
        fields = item
    elif hasattr(item, "sequence"):
        fields = {name: getattr(item, name, None) for name in ("sequence", "stream")}
    else:
        return check_sequence("sequences", item.as_py() if isinstance(item, pa.Scalar) else item)
    if fields.get("stream") not in (None, stream):
        raise _other_stream(fields["stream"], stream)
    return check_sequence("sequences", fields.get("sequence"))


def _column(table: Any, stream: str) -> np.ndarray:
    """Return the sequences in an Arrow array or column, or in the column `sequence` of a table."""
    column = table
    if not isinstance(table, (pa.Array, pa.ChunkedArray)):
        try:
            column = _column_of_table(pa.table(table), stream)
        except (pa.ArrowException, TypeError):  # a column of another library
            try:
                column = pa.chunked_array(table)
            except (pa.ArrowException, TypeError):
                raise _not_sequences(table) from None
    if not len(column):
        return np.empty(0, np.int64)  # whatever its type
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ValueError(f"sequences: a column of {column.type} holds no sequences")
    numbers: np.ndarray = column.to_numpy()
    return numbers


def _column_of_table(table: pa.Table, stream: str) -> pa.ChunkedArray:
    if "sequence" not in table.column_names:
        raise ValueError(f"sequences: the table has no column 'sequence', only {', '.join(table.column_names)}")
    if "stream" in table.column_names:
        for name in table.column("stream").unique().to_pylist():
            if name != stream:
                raise _other_stream(name, stream)
    return table.column("sequence")


def _in_array(array: np.ndarray) -> SequenceSet:
    if not array.size:
        return SequenceSet.empty()
    if array.dtype.kind not in "iu":
        raise ValueError(f"sequences: an array of {array.dtype} holds no sequences")
    for extreme in (array.min(), array.max()):
        check_sequence("sequences", extreme)
    return SequenceSet.from_sequences(array)


def _not_sequences(given: object) -> ValueError:
    return ValueError(
        f"sequences: {type(given).__name__} is not a sequence, a range, a list of sequences, or a table or message "
        "that was fetched"
    )


def _other_stream(name: object, stream: str) -> ValueError:
    return ValueError(f"sequences: a message is of stream {name!r}, and this is stream {stream!r}")


def check_filter(subject: object) -> str:
    """Return the one subject filter; raises ValueError for several, or what is none."""
    if not isinstance(subject, str):
        raise ValueError(f"subject: {subject!r} is not a filter; one subject or filter is needed")
    return check_filters(subject)[0]


def check_filters(subject: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return subject filters as a tuple; raises ValueError naming one that is not well formed."""
    if subject is None:
        return ()
    filters = (subject,) if isinstance(subject, str) or not isinstance(subject, Iterable) else tuple(subject)
    for subject_filter in filters:
        if not isinstance(subject_filter, str) or not subject_rules.is_filter(subject_filter):
            raise ValueError(
                f"subject: {subject_filter!r} is not a filter; tokens joined by dots, * for one and > for the rest"
            )
    return filters
