"""Pictures of drift: what is drawn follows from the data."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.pictures import (
    COLOURS,
    COLUMN_COUNT_MAX,
    LABEL_SIZE_MAX,
    NEEDS_MATPLOTLIB,
    TOGETHER,
    layout,
    replica_map,
    replica_map_html,
    replica_map_page,
)
from storage_core.comparison import Conflict, CopyDrift, Drift, Rule, RunsBuilder, State
from storage_core.sequences import SequenceSet

T, M, D, X = State.THERE, State.MISSING, State.DAMAGED, State.DIFFERENT
SVG = "{http://www.w3.org/2000/svg}"


def copy(label: str, *runs: tuple[int, int, State]) -> CopyDrift:
    builder = RunsBuilder()
    for first, end, state in runs:
        builder.add_set(SequenceSet.from_ranges([(first, end)]), state)
    return CopyDrift(label, f"/stores/{label}", builder.build(), 1, 100, "00")


def drift(*copies: CopyDrift, name: str = "ORDERS", **more: object) -> Drift:
    first, end = min(one.runs.bounds[0] for one in copies), max(one.runs.bounds[1] for one in copies)
    together = copy("", (first, end, T)).runs if end > first else copy("").runs
    return Drift(name, "nats", copies, together, **more)  # type: ignore[arg-type]


def bars(drawn: Drift) -> dict[str, list[tuple[float, float]]]:
    """Return what the figure has in its axes: spans of columns by `copy:state`."""
    found = {}
    for axes in replica_map(drawn).axes:
        for collection in axes.collections:
            spans = [path.get_extents() for path in collection.get_paths()]
            found[str(collection.get_gid())] = [(box.x0, box.x1) for box in spans]
    return found


def boxes(drawn: Drift) -> dict[tuple[str, str], list[str]]:
    """Return what the SVG has: the sequences in the title of each box, by copy and state."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in ElementTree.fromstring(replica_map_html(drawn)).iter(f"{SVG}g"):
        for box in group.iter(f"{SVG}rect"):
            (title,) = box.iter(f"{SVG}title")
            label = group.attrib["data-copy"]
            words = str(title.text).removeprefix(f"{label}: ").rsplit(" ", 1)[0]
            assert box.attrib["fill"] == COLOURS[State[box.attrib["data-state"].upper()]]
            found.setdefault((label, box.attrib["data-state"]), []).append(words)
    return found


def test_each_sequence_of_a_small_stream_has_its_column() -> None:
    small = drift(copy("n1", (1, 101, T)), copy("n2", (1, 10, M), (10, 60, T), (60, 61, D), (61, 63, X), (70, 101, T)))
    assert bars(small) == {
        "n1:there": [(0, 100)],
        "n2:there": [(9, 59), (69, 100)],
        "n2:missing": [(0, 9)],
        "n2:damaged": [(59, 60)],
        "n2:different": [(60, 62)],
        "together:there": [(0, 100)],
    }
    assert boxes(small) == {
        ("n1", "there"): ["1 to 100"],
        ("n2", "there"): ["10 to 59", "70 to 100"],
        ("n2", "missing"): ["1 to 9"],
        ("n2", "damaged"): ["60"],
        ("n2", "different"): ["61 to 62"],
        (TOGETHER, "there"): ["1 to 100"],
    }


def test_one_damaged_message_among_ten_million_shows() -> None:
    big = drift(
        copy("n1", (1, 10_000_001, T)),
        copy("n2", (1, 7_000_000, T), (7_000_000, 7_000_001, D), (7_000_001, 9_999_990, T), (9_999_990, 10_000_001, M)),
    )
    drawn = layout(big)
    assert (drawn.column_size, drawn.column_count) == (25_000, COLUMN_COUNT_MAX)
    assert drawn.strips[1].bars(D) == [(279, 280)]
    assert drawn.strips[1].bars(M) == [(399, 400)]
    assert "one column is 25,000 of them and shows the worst" in drawn.scale
    assert bars(big)["n2:damaged"] == [(279, 280)]


@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from(State)), min_size=1, max_size=30),
    st.integers(0, 10**9),
    st.integers(1, 40),
)
def test_columns_show_the_worst_state_among_their_sequences(
    lengths: list[tuple[int, State]], start: int, columns: int
) -> None:
    runs, at = [], start
    for length, state in lengths:
        runs.append((at, at + length, state))
        at += length + length % 3 * 5  # some sequences without a message
    one = drift(copy("n1", *runs))
    drawn = layout(one, columns)
    first, end = one.bounds
    truth = np.zeros(drawn.column_count * drawn.column_size, np.uint8)
    for low, high, state in one.copies[0].runs:
        truth[low - first : high - first] = state
    assert drawn.column_count <= columns
    assert drawn.first + drawn.column_count * drawn.column_size >= end
    assert drawn.strips[0].codes.tolist() == truth.reshape(drawn.column_count, -1).max(axis=1).tolist()


def test_name_verdict_and_counts_are_written_beside_the_strips() -> None:
    one = drift(copy("n1", (1, 1_001, T)), copy("n2", (1, 601, T), (601, 1_001, M)))
    (axes,) = replica_map(one).axes
    texts = {text.get_text() for text in axes.texts}
    assert texts == {
        "Stream ORDERS: 1 of 2 copies is whole, nothing lost",
        "1,000 messages, sequences 1 to 1,000",
        "1,000 there",
        "600 there\n400 missing",
        "1,000 served",
    }
    assert [label.get_text() for label in axes.get_yticklabels()] == ["n1", "n2", TOGETHER]
    legend = [text.get_text() for text in replica_map(one).legends[0].get_texts()]
    assert legend == ["there", "missing", "damaged", "different", "no message"]
    svg = replica_map_html(one)
    for text in ("Stream ORDERS: 1 of 2 copies is whole, nothing lost", "600 there", "400 missing", *legend):
        assert f">{text}</text>" in svg


def test_ticks_are_round_and_few() -> None:
    for end in (2, 7, 60, 101, 999, 1_000, 12_345, 10_000_001):
        ticks = layout(drift(copy("n1", (1, end, T)))).ticks()
        assert 1 <= len(ticks) <= 7
        assert ticks[0] == 1
        assert all(tick < end for tick in ticks)


def test_colours_differ_in_lightness() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    steps = sorted(lightness(colour) for colour in COLOURS.values())
    assert min(np.diff(steps)) > 0.15


def test_streams_stand_below_each_other() -> None:
    several = [drift(copy("n1", (1, 11, T)), name=name) for name in ("A", "B", "C")]
    figure = replica_map(several)
    tops = [axes.get_position().y0 for axes in figure.axes]
    assert tops == sorted(tops, reverse=True)
    assert len(ElementTree.fromstring(f"<div>{replica_map_html(several)}</div>").findall(f"{SVG}svg")) == 3


def test_a_stream_without_messages_is_drawn_too(tmp_path: Path) -> None:
    empty = drift(copy("n1"), copy("n2"))
    replica_map(empty).savefig(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")
    assert "0 messages, no sequence" in replica_map_html(empty)
    assert "no majority" not in replica_map_html(empty)


def test_names_from_outside_stay_text() -> None:
    odd = drift(copy("<script>alert(1)</script>", (1, 5, T)), copy("\"&'", (1, 5, T)), name="<b>&")
    page = replica_map_page([odd])
    assert "<script>" not in page
    assert "Stream &lt;b&gt;&amp;" in page
    ElementTree.fromstring(replica_map_html(odd))


def test_a_page_stands_for_itself_and_says_what_copies_disagree_on() -> None:
    conflict = Conflict(3, 4, (("n1",), ("n2",)), (), 1, Rule.LATEST)
    one = drift(copy("n1", (1, 5, T)), copy("n2", (1, 5, T)), conflicts=(conflict,), notes=("2 of its 3 replicas",))
    page = replica_map_page([one])
    assert "sequence 3: one content in n1, another in n2; served is that of n2 (latest)" in page
    assert "2 of its 3 replicas" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    parser = HTMLParser()
    parser.feed(page)


def test_long_names_keep_their_end() -> None:
    one = drift(copy("a/very/long/name/of/a/node-1", (1, 5, T)))
    (axes,) = replica_map(one).axes
    (label,) = (text.get_text() for text in axes.get_yticklabels())
    assert len(label) == LABEL_SIZE_MAX
    assert label.endswith("/of/a/node-1")


def test_without_matplotlib_svg_works_and_figures_name_the_extra() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
from spark_stream.pictures import replica_map, replica_map_html
from storage_core.comparison import CopyDrift, Drift, RunsBuilder
none = RunsBuilder().build()
one = Drift("S", "nats", (CopyDrift("n1", "/n1", none, 1, 0, ""),), none)
assert "<svg" in replica_map_html(one)
try:
    replica_map(one)
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == NEEDS_MATPLOTLIB


def test_no_picture_is_asked_of_no_stream() -> None:
    with pytest.raises(AssertionError, match="of no stream"):
        replica_map([])
