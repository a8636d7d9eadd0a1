"""Where a read starts and ends: precedence, defaults, and ranges that cannot be."""

import logging

import pytest

from datasource.offsets import ENDING, STARTING, Bounds, Extent, Offsets, parse_offsets, resolve_ranges
from storage_core.errors import DataLossError

EXTENTS = {"A": Extent(101, 201), "B": Extent(1, 11)}
TIMES = {"A": range(101, 201), "B": range(1, 11)}  # message n has time n * 100 ns


def first_at_time(stream: str, time_ns: int) -> int | None:
    return next((sequence for sequence in TIMES[stream] if sequence * 100 >= time_ns), None)


def ranges(start: Bounds | None = None, end: Bounds | None = None, fail: bool = True) -> dict[str, tuple[int, int]]:
    start = start or Bounds(STARTING, Offsets())
    end = end or Bounds(ENDING, Offsets())
    return resolve_ranges(EXTENTS, start, end, first_at_time, fail)


def starting(text: str, **times: object) -> Bounds:
    return Bounds(STARTING, parse_offsets("startingOffsets", text), **times)  # type: ignore[arg-type]


def ending(text: str, **times: object) -> Bounds:
    return Bounds(ENDING, parse_offsets("endingOffsets", text), **times)  # type: ignore[arg-type]


def test_default_is_everything() -> None:
    assert ranges() == {"A": (101, 201), "B": (1, 11)}


def test_streams_missing_in_the_json_are_read_whole() -> None:
    assert ranges(starting('{"A": 150}'), ending('{"A": 160}')) == {"A": (150, 160), "B": (1, 11)}


def test_words_stand_for_the_ends_of_a_stream() -> None:
    assert ranges(starting('{"A": "latest", "B": "earliest"}')) == {"A": (201, 201), "B": (1, 11)}


def test_start_below_the_first_message_reads_from_the_first() -> None:
    assert ranges(starting('{"A": 1}'), ending('{"A": 110}'))["A"] == (1, 110)


def test_start_at_the_end_is_an_empty_read() -> None:
    assert ranges(starting('{"B": 11}'))["B"] == (11, 11)


def test_end_before_the_first_message_is_an_empty_read() -> None:
    assert ranges(end=ending('{"A": 50}'))["A"] == (50, 50)


def test_times_go_before_offsets() -> None:
    start = starting('{"A": 120, "B": 3}', times_ns={"A": 15_000})
    assert ranges(start) == {"A": (150, 201), "B": (3, 11)}
    everywhere = starting('{"A": 120, "B": 3}', times_ns={"A": 15_000}, time_ns=500)
    assert ranges(everywhere) == {"A": (101, 201), "B": (5, 11)}


def test_end_by_time_is_exclusive_and_start_inclusive() -> None:
    assert ranges(starting("earliest", time_ns=300), ending("latest", time_ns=500))["B"] == (3, 5)


def test_time_beyond_the_end_is_latest_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jstream"):
        assert ranges(starting("earliest", times_ns={"B": 99_999}))["B"] == (11, 11)
    assert "stream B has no message" in caplog.text
    assert "startingOffsetsByTimestamp is its end" in caplog.text


@pytest.mark.parametrize(("first", "end"), [(150, 140), (9, 3)])
def test_range_that_ends_before_it_starts_is_refused(first: int, end: int) -> None:
    text = f"would start at sequence {first} .option 'startingOffsets'. and end before {end} .option 'endingOffsets'."
    with pytest.raises(ValueError, match=text):
        ranges(starting(f'{{"A": {first}}}'), ending(f'{{"A": {end}}}'))


def test_range_that_ends_before_it_starts_names_the_options_that_decided() -> None:
    start = starting('{"A": 120, "B": 3}', times_ns={"A": 15_000})
    with pytest.raises(ValueError, match=r"150 \(option 'startingOffsetsByTimestamp'\) and end before 140"):
        ranges(start, ending('{"A": 140}'))
    with pytest.raises(ValueError, match=r"150 \(option 'startingTimestamp'\) and end before 140"):
        ranges(starting("earliest", time_ns=15_000, times_ns={"A": 1}), ending('{"A": 140}'))


def test_start_later_than_the_end_is_refused_by_the_names_of_its_options() -> None:
    with pytest.raises(ValueError, match="'A': option 'startingTimestamp' is later than option 'endingTimestamp'"):
        ranges(starting("earliest", time_ns=500), ending("latest", time_ns=300))
    with pytest.raises(ValueError, match="'B': option 'startingOffsetsByTimestamp' is later than .*'endingTimestamp'"):
        ranges(starting("earliest", times_ns={"B": 500}), ending("latest", time_ns=300))


def test_where_nobody_knows_times_a_side_that_is_one_stays_open() -> None:
    def resolved(start: Bounds, end: Bounds) -> tuple[int, int]:
        return resolve_ranges(EXTENTS, start, end, None, True)["A"]

    assert resolved(starting('{"A": 500}', time_ns=15_000), ending('{"A": 50}')) == (50, 50)
    assert resolved(starting('{"A": 120}'), ending('{"A": 500}', times_ns={"A": 15_000})) == (120, 201)
    with pytest.raises(ValueError, match="'startingTimestamp' is later than"):
        resolved(starting("earliest", time_ns=500), ending("latest", time_ns=300))


@pytest.mark.parametrize("side", ["start", "end"])
def test_sequence_beyond_the_end_is_data_loss(side: str, caplog: pytest.LogCaptureFixture) -> None:
    bounds = {"start": starting('{"A": 500}')} if side == "start" else {"end": ending('{"A": 500}')}
    with pytest.raises(
        DataLossError, match="sequence 500 is beyond the end of stream 'A', whose next message gets 201"
    ):
        ranges(**bounds)
    with caplog.at_level(logging.WARNING, "jstream"):
        assert ranges(**bounds, fail=False)["A"] == ((201, 201) if side == "start" else (101, 201))
    assert "read up to the end" in caplog.text


def test_stream_that_is_not_read_is_refused_with_the_nearest() -> None:
    extents = {"ORDERS": Extent(1, 2)}
    with pytest.raises(ValueError, match="'startingOffsets': stream 'ORDER'.*did you mean 'ORDERS'"):
        resolve_ranges(extents, starting('{"ORDER": 1}'), ending("latest"), first_at_time, True)


def test_stream_that_is_not_read_is_refused_by_the_option_that_names_it() -> None:
    with pytest.raises(ValueError, match="'endingOffsetsByTimestamp': stream 'C' is not among .*; read are A, B"):
        ranges(end=ending('{"A": 160}', times_ns={"C": 1}))
    with pytest.raises(ValueError, match="option 'endingOffsets': stream 'C'"):
        ranges(end=ending('{"C": 160}', times_ns={"A": 1}))
