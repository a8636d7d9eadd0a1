"""Pictures of drift: for each copy of a stream a strip over the sequences, coloured by what the copy has of them.

They are inline SVG, written by a template. Where there are more sequences than columns, one column stands for many of
them, and the worst of these shows, so one damaged message in ten million is seen. The words that show beside a box
have the exact sequences.

What goes wrong is drawn higher than what is well, and what is missing as an empty box; `look.css` has the colours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from spark_stream.look.rendering import render
from storage_core.comparison import CopyDrift, Drift, Runs, State

COLUMN_COUNT_MAX = 400  # of a strip; each is 1.6 px or more wide, on any screen
TOGETHER = "together"
LABEL_SIZE_MAX = 40  # characters of a copy's name; of a longer one the end is shown
CONFLICT_COUNT_MAX = 100  # on a page
HEIGHTS = {State.THERE: 0.5, State.MISSING: 0.9, State.DAMAGED: 0.9, State.DIFFERENT: 0.9}  # of the highest box
CSS = {State.THERE: "current", State.MISSING: "missing", State.DAMAGED: "damaged", State.DIFFERENT: "different"}
RANGE_COUNT_MAX = 5  # of the words beside a box
SUFFIX = ".html"


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of the picture."""

    label: str
    caption: str  # counts, for people
    codes: np.ndarray  # uint8 of State for each column, 0 where the stream has no message
    runs: Runs  # what the columns were made of

    def bars(self, state: State) -> list[tuple[int, int]]:
        """Return the columns `[first, end)` that show a state, neighbours together."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.codes == state, [False])).astype(np.int8)))
        return [(first, end) for first, end in edges.reshape(-1, 2).tolist()]


@dataclass(frozen=True, slots=True)
class ReplicaMap:
    """What is drawn of one stream: a column stands for `column_size` sequences from `first` on."""

    title: str
    verdict: str
    subtitle: str
    first: int
    end: int
    column_size: int
    strips: tuple[Strip, ...]

    @property
    def column_count(self) -> int:
        return -(-(self.end - self.first) // self.column_size)

    @property
    def scale(self) -> str:
        if self.column_size == 1:
            return "sequence"
        return f"sequence; one column is {self.column_size:,} of them and shows the worst"

    def ticks(self) -> list[int]:
        """Return sequences to write below: the first, the last, and a few round ones between them."""
        span = max(1, self.end - self.first)
        sizes = (factor * 10**power for power in range(20) for factor in (1, 2, 5))
        step = next(size for size in sizes if span <= 6 * size)
        inner = range(-(-self.first // step) * step, self.end, step)
        last = max(self.first, self.end - 1)
        return sorted({self.first, last, *(tick for tick in inner if min(tick - self.first, last - tick) > step / 2)})


def layout(drift: Drift, column_count_max: int = COLUMN_COUNT_MAX) -> ReplicaMap:
    """Return what is to be drawn of a stream."""
    first, end = drift.bounds
    column_size = max(1, -(-(end - first) // column_count_max))
    columns = -(-(end - first) // column_size)
    rows = [(copy.label, _caption(copy), copy.runs) for copy in drift.copies]
    if len(drift.copies) > 1:
        rows.append((TOGETHER, _served(drift), drift.together))
    strips = [Strip(label, caption, _columns(runs, first, column_size, columns), runs) for label, caption, runs in rows]
    subtitle = f"{_counted(drift.message_count)}, no sequence" if first == end else _extent(drift, first, end)
    return ReplicaMap(f"Stream {drift.stream}", drift.verdict(), subtitle, first, end, column_size, tuple(strips))


def replica_map_svg(drift: Drift, width: str | int = "100%", alone: bool = False) -> Markup:
    """Return the picture of a stream, for a page that has the look; `alone` brings the look with it."""
    shown = layout(drift)
    axis_y = _TOP + _ROW * len(shown.strips)
    rows = [
        {
            "y": _TOP + _ROW * row,
            "label": _short(strip.label),
            "caption": strip.caption,
            "together": strip.label == TOGETHER,
            "bars": list(_bars(shown, strip)),
        }
        for row, strip in enumerate(shown.strips)
    ]
    return render(
        "strips.svg",
        map=shown,
        scale=shown.scale,
        alone=alone,
        width=width,
        height=axis_y + _BOTTOM,
        legend=_legend(shown),
        rows=rows,
        row_height=_ROW,
        axis_y=axis_y,
        ticks=list(_ticks(shown)),
    )


def replica_map_html(drift: Drift | Sequence[Drift]) -> str:
    """Return pictures that can stand in any page or notebook, and refer to nothing outside."""
    drifts = [drift] if isinstance(drift, Drift) else drift
    return "\n".join(replica_map_svg(stream_drift, alone=True) for stream_drift in drifts)


def replica_map_page(drifts: Sequence[Drift]) -> str:
    """Return a whole HTML page with the pictures of streams and what their copies disagree on."""
    streams = [{"picture": replica_map_svg(drift), "notes": _notes(drift)} for drift in drifts]
    return render("drift.html", title="Drift", streams=streams)


# --- columns


def _columns(runs: Runs, first: int, column_size: int, column_count: int) -> np.ndarray:
    """Return the worst state of each column."""
    codes = np.zeros(column_count, np.uint8)
    for state in State:  # the worst last
        chosen = runs.states == state
        edges = np.zeros(column_count + 1, np.int64)
        np.add.at(edges, (runs.firsts[chosen] - first) // column_size, 1)
        np.add.at(edges, (runs.ends[chosen] - 1 - first) // column_size + 1, -1)
        codes[np.cumsum(edges[:-1]) > 0] = state
    return codes


def _caption(copy: CopyDrift) -> str:
    counts = [f"{copy.count(state):,} {state.label}" for state in State if copy.count(state)]
    return ", ".join(counts or ["cannot be read" if copy.problem else "nothing"])


def _served(drift: Drift) -> str:
    parts = [f"{drift.message_count:,} served"]
    if undecided := drift.together.count(State.DIFFERENT):
        parts.append(f"{undecided:,} without a majority")
    if drift.lost:
        parts.append(f"{len(drift.lost):,} lost")
    if drift.open:
        parts.append(f"{len(drift.open):,} open")
    return ", ".join(parts)


def _short(label: str) -> str:
    return label if len(label) <= LABEL_SIZE_MAX else "\u2026" + label[1 - LABEL_SIZE_MAX :]


def _extent(drift: Drift, first: int, end: int) -> str:
    which = f"sequence {first:,}" if end == first + 1 else f"sequences {first:,} to {end - 1:,}"
    return f"{_counted(drift.message_count)}, {which}"


def _counted(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


# --- SVG

_TOP, _ROW, _BOTTOM, _BAR = 86, 62, 46, 20  # pixels: above the strips, of one, below them; of its highest box
_MIDDLE = 30  # of a row: where its line is


def _bars(picture: ReplicaMap, strip: Strip) -> Iterator[dict[str, Any]]:
    for state in State:
        height = _BAR * HEIGHTS[state]
        for first, end in strip.bars(state):
            low, high = (
                picture.first + first * picture.column_size,
                min(picture.end, picture.first + end * picture.column_size),
            )
            yield {
                "css": CSS[state],
                "x": _percent(first, picture.column_count),
                "width": _percent(end - first, picture.column_count),
                "y": f"{_MIDDLE - height / 2:g}",
                "height": f"{height:g}",
                "words": f"{strip.label}: {_ranges(strip.runs, state, low, high)} {state.label}",
            }


def _ranges(runs: Runs, state: State, low: int, high: int) -> str:
    """Return the sequences of `[low, high)` that are in a state, in words."""
    chosen = (runs.states == state) & (runs.firsts < high) & (runs.ends > low)
    firsts, ends = np.maximum(runs.firsts[chosen], low).tolist(), np.minimum(runs.ends[chosen], high).tolist()
    shown = [
        f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"
        for first, end in list(zip(firsts, ends, strict=True))[:RANGE_COUNT_MAX]
    ]
    more = [f"and {len(firsts) - len(shown):,} more ranges"] if len(firsts) > len(shown) else []
    return ", ".join([*shown, *more])


def _legend(picture: ReplicaMap) -> list[dict[str, str]]:
    """Return what the states that show look like; nothing where all is well."""
    states = [state for state in State if any((strip.codes == state).any() for strip in picture.strips)]
    if states in ([], [State.THERE]):
        return []
    entries = [{"css": CSS[state], "words": state.label} for state in states]
    if any((strip.codes == 0).any() for strip in picture.strips):
        entries.append({"css": "", "words": "no message"})
    return entries


def _ticks(picture: ReplicaMap) -> Iterator[dict[str, str]]:
    for tick in picture.ticks():
        words = {"words": f"{tick:,}"}
        if tick == picture.first:
            yield {"x": "0", "anchor": "", **words}
        elif tick == picture.end - 1:
            yield {"x": "100", "anchor": "end", **words}
        else:
            yield {
                "x": _percent(tick - picture.first, picture.column_size * picture.column_count),
                "anchor": "middle",
                **words,
            }


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.3f}"


def _notes(drift: Drift) -> list[str]:
    more = len(drift.conflicts) - CONFLICT_COUNT_MAX
    conflicts = [conflict.describe() for conflict in drift.conflicts[:CONFLICT_COUNT_MAX]]
    return [*drift.notes, *conflicts, *([f"and {more:,} more"] if more > 0 else [])]
