"""Pictures of drift: what is drawn follows from the data."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.pictures import (
    COLUMN_COUNT_MAX,
    CSS,
    LABEL_SIZE_MAX,
    RANGE_COUNT_MAX,
    TOGETHER,
    layout,
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


def boxes(drawn: Drift) -> dict[tuple[str, str], list[tuple[float, float, str]]]:
    """Return what the SVG has, by copy and state: left and right end of each box in percent, and its words."""
    found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    states = {css: state.label for state, css in CSS.items()}
    for row in ElementTree.fromstring(replica_map_html(drawn)).iter(f"{SVG}svg"):
        for box in row.iter(f"{SVG}rect") if "data-copy" in row.attrib else ():
            (title,) = box.iter(f"{SVG}title")
            label, state = row.attrib["data-copy"], states[box.attrib["class"]]
            words = str(title.text)
            assert words.startswith(f"{label}: ") and words.endswith(f" {state}")
            left, width = (float(box.attrib[name].removesuffix("%")) for name in ("x", "width"))
            words = words.removeprefix(f"{label}: ").removesuffix(f" {state}")
            found.setdefault((label, state), []).append((left, round(left + width, 3), words))
    return found


def texts(drawn: Drift) -> list[str]:
    return [str(text.text) for text in ElementTree.fromstring(replica_map_html(drawn)).iter(f"{SVG}text")]


def test_each_sequence_of_a_small_stream_has_its_column() -> None:
    small = drift(copy("n1", (1, 101, T)), copy("n2", (1, 10, M), (10, 60, T), (60, 61, D), (61, 63, X), (70, 101, T)))
    assert boxes(small) == {
        ("n1", "there"): [(0, 100, "1 to 100")],
        ("n2", "there"): [(9, 59, "10 to 59"), (69, 100, "70 to 100")],
        ("n2", "missing"): [(0, 9, "1 to 9")],
        ("n2", "damaged"): [(59, 60, "60")],
        ("n2", "different"): [(60, 62, "61 to 62")],
        (TOGETHER, "there"): [(0, 100, "1 to 100")],
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
    assert boxes(big)["n2", "damaged"] == [(69.75, 70, "7,000,000")]
    assert boxes(big)["n2", "missing"] == [(99.75, 100, "9,999,990 to 10,000,000")]


def test_the_words_of_a_box_have_the_sequences_and_not_those_of_its_columns() -> None:
    holes = [(2_000 + 10 * hole, 2_001 + 10 * hole, M) for hole in range(RANGE_COUNT_MAX + 2)]
    drawn = drift(copy("n1", (1, 1_000, T), (1_000, 1_002, D), (1_002, 2_000, T), *holes, (2_500, 10_001, T)))
    assert boxes(drawn)["n1", "damaged"] == [(9.75, 10.25, "1,000 to 1,001")]
    (*_, words), *more = boxes(drawn)["n1", "missing"]
    assert not more
    assert words == "2,000, 2,010, 2,020, 2,030, 2,040, and 2 more ranges"


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


def test_name_verdict_counts_and_the_states_that_show_are_written() -> None:
    one = drift(copy("n1", (1, 1_001, T)), copy("n2", (1, 601, T), (601, 1_001, M)))
    assert texts(one) == [
        "Stream ORDERS",
        "1 of 2 copies is whole, nothing lost",
        "1,000 messages, sequences 1 to 1,000",
        *("there", "missing"),
        *("n1", "1,000 there"),
        *("n2", "600 there, 400 missing"),
        *(TOGETHER, "1,000 served"),
        *("1", "200", "400", "600", "800", "1,000"),
        "sequence; one column is 3 of them and shows the worst",
    ]
    assert "there" not in texts(drift(copy("n1", (1, 1_001, T)), copy("n2", (1, 1_001, T))))


def test_ticks_are_the_ends_and_a_few_round_ones() -> None:
    for end in (2, 7, 60, 101, 999, 1_000, 12_345, 10_000_001):
        ticks = layout(drift(copy("n1", (1, end, T)))).ticks()
        assert len(ticks) <= 8
        assert (ticks[0], ticks[-1]) == (1, end - 1)
        assert all(tick % 5 == 0 or end < 20 for tick in ticks[1:-1])


def test_streams_stand_below_each_other() -> None:
    several = [drift(copy("n1", (1, 11, T)), name=name) for name in ("A", "B", "C")]
    drawn = ElementTree.fromstring(f"<div>{replica_map_html(several)}</div>").findall(f"{SVG}svg")
    assert [text.text for svg in drawn for text in svg.findall(f"{SVG}text[@class='title']")] == [
        f"Stream {name}" for name in ("A", "B", "C")
    ]


def test_a_stream_without_messages_is_drawn_too() -> None:
    empty = drift(copy("n1"), copy("n2"))
    assert "0 messages, no sequence" in texts(empty)
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
    assert "sequence 3: one content in n1, another in n2; that of n2 is served (latest)" in page
    assert "2 of its 3 replicas" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    parser = HTMLParser()
    parser.feed(page)


def test_long_names_keep_their_end() -> None:
    label = texts(drift(copy("a/very/long/name/of/a/place/that/has/a/node-1", (1, 5, T))))[3]
    assert len(label) == LABEL_SIZE_MAX
    assert label.endswith("/that/has/a/node-1")
