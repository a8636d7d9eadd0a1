"""The last message of each subject, against a dict that every message goes through."""

from pathlib import Path
from typing import Any

import pytest
from harness.processes import Machine
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import DataLossError
from storage_core.store.reading import latest, reading
from storage_core.store.reading.reading import ReadDamage
from storage_core.store.store import Store
from storage_core.store.stream import Stream


def made(seed: int, **config: Any) -> Stream:
    return Machine(seed).create().add_stream({"name": "S", "subjects": ["s.>"], **config})


def rows(*subjects: str) -> list[dict[str, Any]]:
    return [{"subject": f"s.{one}", "data": b"%d" % at} for at, one in enumerate(subjects)]


def last_of(stream: Stream, *subject: str, end: int | None = None) -> dict[str, int]:
    found = stream.last_per_subject(subject or None, end, columns=["sequence", "subject"]).read_all().to_pylist()
    assert [one["sequence"] for one in found] == sorted(one["sequence"] for one in found)
    return {one["subject"]: one["sequence"] for one in found}


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), min_size=1, max_size=4),
    st.sets(st.integers(1, 20)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([(), ("s.a",), ("s.*",), ("s.a", "s.c"), ("s.x",)]),
)
@settings(max_examples=40, deadline=None)
def test_the_last_message_of_each_subject_is_found(
    appends: list[list[str]], removed: set[int], end: int | None, filters: tuple[str, ...]
) -> None:
    stream = made(1, block_max_msgs=3)
    subjects = [f"s.{one}" for append in appends for one in append]
    for append in appends:
        stream.append(rows(*append))
    stream.remove(sorted(removed))
    wanted: dict[str, int] = {}
    for sequence, subject in enumerate(subjects, 1):
        if sequence not in removed and (end is None or sequence < end):
            if not filters or subject in filters or "s.*" in filters:
                wanted[subject] = sequence
    assert last_of(stream, *filters, end=end) == wanted


def test_subjects_that_no_footer_lists_are_found_too() -> None:
    stream = made(2)
    count = 2 * latest.FRAME_ROW_COUNT_MAX
    stream.append(rows(*(str(at % 50_000) for at in range(count))))
    stream.append(rows("7"))
    wanted = {f"s.{at % 50_000}": at + 1 for at in range(count)} | {"s.7": count + 1}
    assert last_of(stream) == wanted


@pytest.mark.buckets
def test_blocks_that_have_only_older_messages_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = made(3)
    for _ in range(20):
        stream.append(rows("a", "b"))
    stream.append(rows("c"))
    read = []
    monkeypatch.setattr(latest, "read_slices", lambda *a, **k: read.append(a) or reading.read_slices(*a, **k))
    assert last_of(stream) == {"s.a": 39, "s.b": 40, "s.c": 41}
    assert len(read) == 2


def test_what_is_lost_is_raised_or_passed_over_and_reported(tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "disk").add_stream({"name": "S", "subjects": ["s.>"]})
    stream.append(rows("a", "b"))
    stream.append(rows("a"))
    assert [one["data"] for one in stream.last_per_subject().read_all().to_pylist()] == [b"1", b"0"]
    newest = bytes(stream.state().blocks.rows["block_id"][-1])
    (file,) = (tmp_path / "disk").rglob(f"{newest.hex()}*")
    file.unlink()
    with pytest.raises(DataLossError):
        stream.last_per_subject().read_all()
    heard: list[ReadDamage] = []
    left = stream.last_per_subject(on_data_loss="continue", report=heard.append).read_all()
    assert left.column("sequence").to_pylist() == [1, 2]
    assert [(one.first, one.end) for one in heard] == [(3, 4)]


@pytest.mark.parametrize("wrong", [{"on_data_loss": "no"}, {"columns": "data"}, {"end": -1}, {"subject": "a..b"}])
def test_what_cannot_be_asked_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        made(5).last_per_subject(**wrong)
