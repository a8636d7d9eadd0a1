"""What people give a consumer: counts, seconds and sequences, checked before anything is asked of the store."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.quantities import DURATION_NS_MAX
from storage_core.sequences import SEQUENCE_MAX, SequenceSet

MESSAGE_COUNT_MAX = 1_000_000  # of one fetch
Sequences = int | Iterable[Any] | SequenceSet  # a column of a fetched table, an array and a range as well


def check_fetch(max_messages: object, timeout_s: object, max_bytes: object = None) -> None:
    """Raise ValueError for what no fetch can be asked for."""
    is_size = isinstance(max_bytes, (int, np.integer)) and not isinstance(max_bytes, bool) and max_bytes >= 1
    if max_bytes is not None and not is_size:
        raise ValueError(f"max_bytes: {max_bytes!r} is not a number of bytes, 1 or more")
    if isinstance(max_messages, bool) or not isinstance(max_messages, (int, np.integer)):
        raise ValueError(f"max_messages: {max_messages!r} is not a whole number")
    if not 1 <= max_messages <= MESSAGE_COUNT_MAX:
        raise ValueError(f"max_messages: {max_messages} is not 1 to {MESSAGE_COUNT_MAX}")
    nanoseconds("timeout_s", timeout_s)


def nanoseconds(name: str, seconds: object) -> int:
    """Return seconds as nanoseconds; raises ValueError for what is no time to wait."""
    is_number = isinstance(seconds, (int, float, np.integer, np.floating)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= DURATION_NS_MAX / 1e9:  # type: ignore[operator]
        raise ValueError(f"{name}: {seconds!r} is not a number of seconds, 0 or more")
    return int(seconds * 1_000_000_000)  # type: ignore[operator]


def sequence_set(sequences: object) -> SequenceSet:
    """Return what was given as a set; raises ValueError for what are no sequences."""
    if isinstance(sequences, SequenceSet):
        return sequences
    if isinstance(sequences, (str, bytes, dict, pa.Table, pa.RecordBatch)) or sequences is None:
        raise ValueError(f"sequences: {type(sequences).__name__} is not a sequence, a range or a list of sequences")
    if isinstance(sequences, (pa.Array, pa.ChunkedArray, np.ndarray)) and not len(sequences):
        return SequenceSet.empty()  # one of nothing has any type
    if isinstance(sequences, (pa.Array, pa.ChunkedArray)):
        if not pa.types.is_integer(sequences.type) or sequences.null_count:
            raise ValueError(f"sequences: a column of {sequences.type} holds no sequences")
        sequences = sequences.to_numpy()
    if isinstance(sequences, range) and sequences.step == 1:
        if not sequences:
            return SequenceSet.empty()
        for sequence in (sequences.start, sequences.stop - 1):
            if not 1 <= sequence <= SEQUENCE_MAX:
                raise ValueError(f"sequences: {sequence} is not a sequence; they are 1 to {SEQUENCE_MAX}")
        return SequenceSet.from_ranges([(sequences.start, sequences.stop)])
    if isinstance(sequences, np.ndarray):
        if sequences.size and sequences.dtype.kind == "u" and sequences.max() > SEQUENCE_MAX:
            raise ValueError(f"sequences: {sequences.max()} is not a sequence; they end at {SEQUENCE_MAX}")
        if sequences.dtype.kind not in "iu" or (sequences.size and sequences.min() < 1):
            raise ValueError("sequences: the array holds what is no sequence; they are whole numbers from 1 on")
        return SequenceSet.from_sequences(sequences)
    listed: list[Any] = list(sequences) if isinstance(sequences, Iterable) else [sequences]
    listed = [value.as_py() if isinstance(value, pa.Scalar) else value for value in listed]
    for sequence in listed:
        if (
            isinstance(sequence, bool)
            or not isinstance(sequence, (int, np.integer))
            or not 1 <= sequence <= SEQUENCE_MAX
        ):
            raise ValueError(
                f"sequences: {sequence!r} is not a sequence; they are whole numbers from 1 to {SEQUENCE_MAX}"
            )
    return SequenceSet.from_sequences(listed)
