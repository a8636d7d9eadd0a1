"""What is known of a consumer's messages only by reading: which of them its filter takes, and the time of one."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

from storage_core import buffers
from storage_core.errors import StorageError
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store import contents
from storage_core.store.opened import OpenStore
from storage_core.store.reading.plan import BlockSlice, ReadRequest
from storage_core.store.reading.reading import REPORT, ReadDamage, ReadOptions, read_slices

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Answers about messages, which never change, by question; a bounded number, of which the oldest go first.

    Threads may share it.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._answers: dict[K, V] = {}

    def get(self, question: K) -> V | None:
        return self._answers.get(question)

    def put(self, question: K, answer: V) -> V:
        while len(self._answers) >= self._count_max:
            self._answers.pop(next(iter(self._answers)), None)
        self._answers[question] = answer
        return answer


# How many messages of a block some filters take, and the first of them.
_WANTED: Remembered[tuple[bytes, int, int, int, bytes, tuple[str, ...]], tuple[int, int]] = Remembered(65_536)
_TIMES: Remembered[tuple[bytes, int], int] = Remembered(65_536)  # of messages, by their block's digest and place in it


def wanted_in(store: OpenStore, stream: StreamState, consumer: ConsumerState, first: int, end: int) -> SequenceSet:
    """Return the sequences of the messages of [first, end) that are there and that the consumer's filter takes.

    Of messages that no copy has now it is not known whether a filter takes them: they are left out.
    """
    shown = stream.shown(first, end)
    if not consumer.config.filter_subjects or not shown:
        return shown
    return SequenceSet.from_parts(_taken(store, stream, consumer, int(shown.starts[0]), end))


def _taken(
    store: OpenStore, stream: StreamState, consumer: ConsumerState, first: int, end: int
) -> Iterator[np.ndarray]:
    """Yield the sequences of [first, end) that the filter takes, a frame at a time; what no copy has is left out."""
    filters = consumer.config.filter_subjects
    request = ReadRequest((stream.name,), {stream.name: (first, end)}, subject_filters=filters)
    options = ReadOptions(("sequence",), filters, on_data_loss=REPORT)
    for batch in read_slices(contents.slices(store, stream, request), options, env=store.environment):
        yield buffers.numbers(batch.column("sequence"))


def wanted_by_block(store: OpenStore, stream: StreamState, consumer: ConsumerState) -> Iterator[tuple[int, int]]:
    """Yield for each block how many messages that were never handed out the filter takes, and the first of them."""
    filters = consumer.config.filter_subjects
    start, end = max(consumer.next_sequence, stream.low_watermark), stream.next_sequence
    request = ReadRequest((stream.name,), {stream.name: (start, end)}, subject_filters=filters)
    for block in contents.slices(store, stream, request):
        yield _count_in(store, block, filters)


def _count_in(store: OpenStore, block: BlockSlice, filters: tuple[str, ...]) -> tuple[int, int]:
    """Return how many messages of a slice the filters take, and the first of them, 0 if there is none.

    A block never changes, so the answer is remembered.
    """
    key = (block.digest, block.block_first, block.first, block.end, block.removed, filters)
    known = _WANTED.get(key)
    if known is not None:
        return known
    damage: list[ReadDamage] = []
    options = ReadOptions(("sequence",), filters, on_data_loss=REPORT)
    count = first = 0
    for batch in read_slices([block], options, damage.append, store.environment):
        if batch.num_rows and not count:
            first = batch.column("sequence")[0].as_py()
        count += batch.num_rows
    if any(not loss.served for loss in damage):
        return block.row_count, first
    return _WANTED.put(key, (count, first))


def time_read(store: OpenStore, stream: StreamState, at: int, sequence: int) -> int | None:
    """Return the time of a message of the block at this position of the manifest; None if it cannot be read."""
    rows = stream.blocks.rows
    key = bytes(rows["digest"][at]), sequence - int(rows["first"][at])
    known = _TIMES.get(key)
    if known is not None:
        return known
    request = ReadRequest((stream.name,), {stream.name: (sequence, sequence + 1)})
    options = ReadOptions(("timestamp_ns",), on_data_loss=REPORT)
    try:
        for batch in read_slices(contents.slices(store, stream, request), options, env=store.environment):
            if batch.num_rows:
                return _TIMES.put(key, int(batch.column("timestamp_ns")[0].as_py()))
    except StorageError:
        return None  # damage is reported by reads and by verify, not by failing to show the rest
    return None
