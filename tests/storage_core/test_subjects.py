"""Subjects and filters: the rules, and the column functions against the ones for a single subject."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.subject_columns import first_invalid, match_mask
from storage_core.subjects import SUBJECT_SIZE_MAX, filters_overlap, is_filter, is_literal, matches

token = st.sampled_from(["a", "b", "ab", "\u00e9", "a+b", "(x)", "$JS", "a*", ">a", "-"])
literal = st.lists(token, min_size=1, max_size=4).map(".".join)
pattern = st.tuples(st.lists(token | st.just("*"), max_size=3), st.sampled_from([[], [">"], ["*"], ["a"]])).map(
    lambda parts: ".".join([*parts[0], *parts[1]]) or ">"
)

LITERAL = [
    "a",
    "a.b",
    "orders.eu.created",
    "\u00e9.\u65e5\u672c",
    "a*",
    "*a",
    ">>",
    "a>.b",
    "$KV.bucket.key",
    "a-b_c",
    "1",
]
ONLY_FILTER = ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.>"]
NEITHER = ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\nb", "a\n", "\0", "a\x7f", "a\x1f", " ", "a.b c"]


@pytest.mark.parametrize("subject", LITERAL)
def test_subject_that_a_message_may_carry(subject: str) -> None:
    assert is_literal(subject)
    assert is_filter(subject)
    assert first_invalid(pa.array([subject])) is None


@pytest.mark.parametrize("subject", [*ONLY_FILTER, *NEITHER, ">.a", "a.>.b"])
def test_subject_that_no_message_may_carry(subject: str) -> None:
    assert not is_literal(subject)
    assert first_invalid(pa.array(["good", subject, "also.good"])) == subject
    assert is_filter(subject) == (subject in ONLY_FILTER)


def test_half_a_surrogate_pair_is_no_subject_because_it_is_no_utf8() -> None:
    for subject in ("\udcff", "a.\ud800", "*.\udcff", ">.\udcff"):
        assert not is_literal(subject)
        assert not is_filter(subject)


def test_longest_subject_is_counted_in_bytes() -> None:
    for good, bad in (("x" * SUBJECT_SIZE_MAX, "x" * (SUBJECT_SIZE_MAX + 1)), ("\u00e9" * 2048, "\u00e9" * 2049)):
        assert is_literal(good)
        assert first_invalid(pa.array([good])) is None
        assert not is_literal(bad)
        assert not is_filter(bad)
        assert first_invalid(pa.array([good, bad])) == bad


def test_surrogates_are_no_reason_to_fail() -> None:
    assert is_literal("\ud800") in (True, False)


def test_no_subjects_are_all_valid() -> None:
    assert first_invalid(pa.array([], pa.string())) is None


@pytest.mark.parametrize(
    ("subject_filter", "taken", "not_taken"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "aXb", "a.b.", "A.b"]),
        ("a.*", ["a.b", "a.\u00e9"], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b", "x.b"], ["b", "a.b.b"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.b.c"]),
        ("a.>", ["a.b", "a.b.c"], ["a", "ab.c"]),
        ("*.>", ["a.b", "a.b.c"], ["a"]),
        (">", ["a", "a.b.c"], []),
        ("*", ["a"], ["a.b"]),
        ("a+b", ["a+b"], ["aab", "ab"]),
    ],
)
def test_what_a_filter_takes(subject_filter: str, taken: list[str], not_taken: list[str]) -> None:
    assert [matches(subject_filter, one) for one in taken + not_taken] == [True] * len(taken) + [False] * len(not_taken)
    mask = match_mask((subject_filter,), pa.array(taken + not_taken))
    assert mask.to_pylist() == [True] * len(taken) + [False] * len(not_taken)


@given(st.lists(pattern, max_size=3), st.lists(literal, max_size=8))
def test_mask_over_a_column_is_the_single_answer_row_by_row(filters: list[str], subjects: list[str]) -> None:
    mask = match_mask(tuple(filters), pa.array(subjects, pa.string()))
    assert mask.to_pylist() == [any(matches(each, one) for each in filters) for one in subjects]


@given(st.lists(st.text("a.*> \n\x00\x7fb\u00e9", max_size=5), max_size=6))
def test_first_invalid_of_a_column_is_the_first_that_is_no_literal(subjects: list[str]) -> None:
    expected = next((one for one in subjects if not is_literal(one)), None)
    assert first_invalid(pa.array(subjects, pa.string())) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.*", "*.b", True),
        ("a.*", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "*.b", True),
        ("*", ">", True),
        (">", "a.*.c", True),
        ("a.*.c", "a.>", True),
        ("a.*.c", "*.b.d", False),
    ],
)
def test_overlap_of_filters(one: str, other: str, expected: bool) -> None:
    assert filters_overlap(one, other) is filters_overlap(other, one) is expected


@given(pattern, pattern, literal)
def test_filters_that_take_the_same_subject_overlap(one: str, other: str, subject: str) -> None:
    if matches(one, subject) and matches(other, subject):
        assert filters_overlap(one, other)
        assert filters_overlap(other, one)


@given(pattern, pattern)
def test_filters_that_overlap_have_a_subject_in_common(one: str, other: str) -> None:
    """The witness: wildcards of one filled in with what the other has at that place."""
    if filters_overlap(one, other):
        left, right = one.split("."), other.split(".")
        witness = []
        for position in range(max(len(left), len(right))):
            a = left[position] if position < len(left) else left[-1]
            b = right[position] if position < len(right) else right[-1]
            witness.append(next((each for each in (a, b) if each not in ("*", ">")), "w"))
        assert matches(one, ".".join(witness))
        assert matches(other, ".".join(witness))
