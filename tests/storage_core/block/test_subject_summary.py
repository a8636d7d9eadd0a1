"""What a block says of its subjects, and which frames a filter can leave out because of it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.subject_summary import SUBJECT_COUNT_MAX, SUBJECT_TEXT_SIZE_MAX, SubjectCounter, SubjectSummary
from storage_core.subjects import matches

subject = st.sampled_from(["a", "a.b", "a.c", "b", "b.b.b", "\u00e9.b"])
filters = st.lists(st.sampled_from(["a", "a.*", "*.b", ">", "b.>", "zzz", "a.b"]), min_size=1, max_size=3, unique=True)


def summarize(frames: list[list[str]]) -> SubjectSummary:
    counter = SubjectCounter()
    for frame in frames:
        counter.add_frame(pa.array(frame, pa.string()))
    return counter.finish()


@given(st.lists(st.lists(subject, min_size=1, max_size=6), min_size=1, max_size=5), filters)
def test_listed_subjects_answer_exactly(frames: list[list[str]], wanted: list[str]) -> None:
    summary = summarize(frames)
    rows = [one for frame in frames for one in frame]
    assert summary.is_exact
    assert summary.count_by_subject() == {one: rows.count(one) for one in sorted(set(rows))}
    hit = {one for one in rows if any(matches(each, one) for each in wanted)}
    may, whole = summary.match_frames(tuple(wanted), len(frames))
    assert may.tolist() == [any(one in hit for one in frame) for frame in frames]
    assert whole.tolist() == [all(one in hit for one in frame) for frame in frames]


def test_without_filters_every_frame_matches_whole() -> None:
    may, whole = summarize([["a"], ["b"]]).match_frames((), 2)
    assert may.all()
    assert whole.all()


def test_64_subjects_have_bits_and_65_have_not() -> None:
    names = [f"s.{number:03}" for number in range(65)]
    bits = summarize([names[:64], names[63:64]])
    assert bits.frame_bits.tolist() == [(1 << 64) - 1, 1 << 63]
    none = summarize([names[:64], names[64:]])
    assert not len(none.frame_bits)
    may, whole = none.match_frames(("s.064",), 2)
    assert may.all()
    assert not whole.any()
    assert not none.match_frames(("t.>",), 2)[0].any()
    assert none.match_frames(("s.*",), 2)[1].all()


@pytest.mark.parametrize("count", [SUBJECT_COUNT_MAX, SUBJECT_COUNT_MAX + 1])
def test_a_bloom_filter_stands_for_more_subjects_than_are_listed(count: int) -> None:
    frames = [[f"s.{number}" for number in range(first, min(first + 500, count))] for first in range(0, count, 500)]
    summary = summarize(frames)
    assert summary.is_exact == (count == SUBJECT_COUNT_MAX)
    if summary.is_exact:
        return
    assert summary.count_by_subject() is None
    assert summary.match_frames(("s.0",), 3)[0].all()
    assert summary.match_frames((f"s.{count - 1}",), 3)[0].all()
    assert not summary.match_frames(("other", "another"), 3)[0].any()
    assert summary.match_frames(("other.*",), 3)[0].all(), "a wildcard cannot be looked up"
    assert not summary.match_frames(("s.*",), 3)[1].any(), "nothing says that rows need no look"


def test_long_subjects_are_not_listed_either() -> None:
    long = "x" * 4_000
    count = SUBJECT_TEXT_SIZE_MAX // len(long)
    assert summarize([[f"{number:03}{long[3:]}" for number in range(count)]]).is_exact
    assert not summarize([[f"{number:03}{long[3:]}" for number in range(count + 1)]]).is_exact
