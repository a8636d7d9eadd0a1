"""Limits a trigger: smallest wins, soft, shared among streams in proportion; and the wait for enough."""

import pickle

import numpy as np
import pytest

from datasource.limits import Limits, Patience, admit
from datasource.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from storage_core.chunked_set import ChunkedSet
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.reading.unread import UnreadRange


def unread(name: str, spans: list[int], first: int = 1, size: int = 10, removed: range = range(0)) -> UnreadRange:
    """Return all messages from `first` on of a stream with blocks of so many messages, `size` bytes each."""
    rows = np.zeros(len(spans), BLOCK_DTYPE)
    ends = 1 + np.cumsum(spans)
    rows["first"], rows["span"], rows["row_count"] = ends - spans, spans, spans
    rows["data_size"] = np.array(spans) * size
    gone = SequenceSet.from_sequences(list(removed))
    config = StreamConfig(name=name, subjects=(f"{name}.>",))
    state = StreamState(config, bytes(16), 0, (bytes(16),), 1, int(ends[-1]), Table.of(rows), ChunkedSet.of(gone))
    return UnreadRange(state, first, int(ends[-1]))


def through(waiting: dict[str, UnreadRange], limits: Limits) -> dict[str, int]:
    """Return how many sequences of each stream a batch takes."""
    return {name: end - waiting[name].first for name, end in admit(waiting, limits).items()}


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (Limits(), 250),
        (Limits(message_count=1), 1),
        (Limits(message_count=130), 130),
        (Limits(message_count=10_000), 250),
        (Limits(byte_size=1), 1),
        (Limits(byte_size=1_305), 130),
        (Limits(block_count=2), 150),
        (Limits(message_count=200, byte_size=900, block_count=2), 90),
        (Limits(message_count=200, byte_size=1_900, block_count=1), 50),
        (Limits(message_count=7, byte_size=1_900, block_count=1), 7),
    ],
)
def test_smallest_limit_wins_and_cuts_within_blocks(limits: Limits, count: int) -> None:
    waiting = {"A": unread("A", [100, 100, 100], first=51)}
    assert through(waiting, limits) == {"A": count}


def test_limit_is_shared_in_proportion_to_what_waits() -> None:
    waiting = {"A": unread("A", [300]), "B": unread("B", [100]), "C": unread("C", [600])}
    assert through(waiting, Limits(message_count=100)) == {"A": 30, "B": 10, "C": 60}
    assert through(waiting, Limits(byte_size=1_000)) == {"A": 30, "B": 10, "C": 60}


def test_bytes_are_shared_by_bytes_and_blocks_by_blocks() -> None:
    waiting = {"A": unread("A", [10] * 9), "B": unread("B", [10] * 3, size=90)}
    assert through(waiting, Limits(byte_size=900)) == {"A": 22, "B": 7}
    assert through(waiting, Limits(block_count=4)) == {"A": 30, "B": 10}


def test_each_stream_with_something_hands_on_one_message_at_least() -> None:
    waiting = {"A": unread("A", [100_000]), "B": unread("B", [1]), "C": unread("C", [2])}
    assert through(waiting, Limits(message_count=2)) == {"A": 1, "B": 1, "C": 1}
    assert through(waiting, Limits(byte_size=2)) == {"A": 1, "B": 1, "C": 1}


def test_removed_messages_count_for_nothing_and_hold_nothing_up() -> None:
    waiting = {"A": unread("A", [100], removed=range(1, 91)), "B": unread("B", [100], removed=range(1, 101))}
    assert through(waiting, Limits(message_count=5)) == {"A": 95, "B": 100}


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (Limits(), ReadAllAvailable()),
        (Limits(5, 6, 7, 2), ReadMaxRows(5)),
        (Limits(None, 6, 7, 2), ReadMaxBytes(6)),
        (Limits(None, None, 7, 2), ReadMaxFiles(7)),
        (Limits(None, None, None, 2), ReadMinRows(2)),
    ],
)
def test_spark_hands_back_one_limit_for_all(limits: Limits, asked: ReadLimit) -> None:
    assert limits.read_limit() == asked
    assert limits.under(asked) == limits


def test_everything_is_read_if_spark_asks_for_it_and_less_if_it_asks_for_less() -> None:
    assert Limits(5, 6, 7, 2).under(ReadAllAvailable()) == Limits()
    assert Limits(5, 6, 7, 2).under(ReadMaxRows(3)) == Limits(3, 6, 7, 2)
    assert Limits(5).under(ReadMaxFiles(1)) == Limits(5, None, 1)


def test_limits_travel_with_the_reader() -> None:
    assert pickle.loads(pickle.dumps(Limits(5, 6, 7, 2))) == Limits(5, 6, 7, 2)


# --- minOffsetsPerTrigger, maxTriggerDelay


def test_few_messages_wait_for_more_or_for_the_delay_from_the_start_of_the_run() -> None:
    patience = Patience(delay_s=60, now_s=1_000)
    assert not patience.is_over(9, 10, now_s=1_059.9)
    assert patience.is_over(10, 10, now_s=1_001)


def test_delay_runs_from_the_last_batch() -> None:
    patience = Patience(delay_s=60, now_s=1_000)
    assert patience.is_over(1, 10, now_s=1_060)
    assert not patience.is_over(1, 10, now_s=1_119)
    assert patience.is_over(1, 10, now_s=1_120)
    assert patience.is_over(50, 10, now_s=1_150)
    assert not patience.is_over(1, 10, now_s=1_200)


def test_nobody_waits_without_a_minimum() -> None:
    assert Patience(delay_s=60, now_s=0).is_over(1, None, now_s=0)
