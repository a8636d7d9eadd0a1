"""The nearest name: whatever its case, and nothing where nothing is close."""

import pytest

from storage_core.suggestions import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "names", "close"),
    [
        ("startingoffset", ["startingOffsets", "stream"], "startingOffsets"),
        ("orders", ["ORDERS", "order"], "ORDERS"),
        ("zzz", ["startingOffsets"], None),
        ("x", [], None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case(name: str, names: list[str], close: str | None) -> None:
    assert nearest(name, names) == close
    assert did_you_mean(name, names) == (f"; did you mean {close!r}?" if close else "")
