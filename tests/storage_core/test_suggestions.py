"""The nearest name: whatever its case, and nothing where nothing is close."""

import pytest

from storage_core.suggestions import did_you_mean, instead, nearest, not_one_of


@pytest.mark.parametrize(
    ("name", "names", "close"),
    [
        ("startingoffset", ["startingOffsets", "stream"], "startingOffsets"),
        ("orders", ["ORDERS", "order"], "ORDERS"),
        ("zzz", ["startingOffsets"], None),
        ("--jsn", ["--json", "--store"], "--json"),
        ("--since", ["--kind", "--store"], None),
        ("version", ["verify"], None),
        ("x", [], None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case(name: str, names: list[str], close: str | None) -> None:
    assert nearest(name, names) == close
    assert did_you_mean(name, names) == (f"; did you mean {close!r}?" if close else "")


def test_what_is_there_is_shown_where_nothing_is_close() -> None:
    assert instead("orders", ["ORDERS", "x"]) == "; did you mean 'ORDERS'?"
    assert instead("zzz", ["a", "b"]) == "; there are a, b"
    assert instead("zzz", [], "valid ones are") == "; valid ones are none"
    shown = instead("zzz", [f"name{number}" for number in range(1000)])
    assert shown.endswith(", name31, ...") and "name32" not in shown


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ztsd", "'ztsd' is not one of none, lz4, zstd; did you mean 'zstd'?"),
        ("gzip", "'gzip' is not one of none, lz4, zstd"),
        (5, "5 is not one of none, lz4, zstd"),
    ],
)
def test_a_wrong_choice_is_answered_with_all_of_them_and_the_nearest(value: object, said: str) -> None:
    assert not_one_of(value, ("none", "lz4", "zstd")) == said
