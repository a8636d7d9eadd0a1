"""Pictures of drift: for each copy of a stream a strip over the sequences, coloured by what the copy has of them.

`replica_map` draws with matplotlib (extra `pictures`), for files and reports; `replica_map_html` writes SVG by itself,
for notebooks and pages, and needs nothing. Both show the same columns: where there are more sequences than columns,
one column stands for many of them, and the worst of these shows, so one damaged message in ten million is seen.

What goes wrong is drawn higher than what is well, and the colours are four that people with any kind of colour vision
tell apart, of different lightness. Source: Okabe and Ito, "Color Universal Design" (2008).
"""

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storage_core.comparison import CopyDrift, Drift, Runs, State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_COUNT_MAX = 400  # of a strip; each is 1.6 px or more wide, on any screen
TOGETHER = "together"
LABEL_SIZE_MAX = 17  # characters of a copy's name; of a longer one the end is shown
COLOURS = {State.THERE: "#56B4E9", State.MISSING: "#F0E442", State.DAMAGED: "#D55E00", State.DIFFERENT: "#000000"}
LEGEND = {
    State.THERE: "there",
    State.MISSING: "missing",
    State.DAMAGED: "damaged",
    State.DIFFERENT: "different",
}
TRACK_COLOUR = "#D0D0D0"  # of the line where the stream has no message
TEXT_COLOUR, QUIET_COLOUR = "#1A1A1A", "#5F5F5F"
HEIGHTS = {State.THERE: 0.5, State.MISSING: 0.9, State.DAMAGED: 0.9, State.DIFFERENT: 0.9}  # of a row
NEEDS_MATPLOTLIB = (
    "matplotlib is not installed, which draws PNG pictures: pip install 'pyspark-jstream[pictures]'; a picture as HTML "
    "needs nothing more"
)


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of the picture."""

    label: str
    captions: tuple[str, ...]  # counts, for people; a line or two
    codes: np.ndarray  # uint8 of State for each column, 0 where the stream has no message

    def bars(self, state: State) -> list[tuple[int, int]]:
        """Return the columns `[first, end)` that show a state, neighbours together."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.codes == state, [False])).astype(np.int8)))
        return [(first, end) for first, end in edges.reshape(-1, 2).tolist()]


@dataclass(frozen=True, slots=True)
class ReplicaMap:
    """What is drawn of one stream: a column stands for `column_size` sequences from `first` on."""

    title: str
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
        """Return round sequences to write below, a few of them."""
        span = max(1, self.end - self.first)
        step = next(one for power in range(20) for one in (10**power, 2 * 10**power, 5 * 10**power) if span <= 6 * one)
        inner = range(-(-self.first // step) * step, self.end, step)
        return sorted({self.first, *(one for one in inner if one - self.first > step / 3)})


def layout(drift: Drift, column_count_max: int = COLUMN_COUNT_MAX) -> ReplicaMap:
    """Return what is to be drawn of a stream."""
    first, end = drift.bounds
    column_size = max(1, -(-(end - first) // column_count_max))
    columns = -(-(end - first) // column_size)
    strips = [Strip(one.label, _captions(one), _columns(one.runs, first, column_size, columns)) for one in drift.copies]
    if len(drift.copies) > 1:
        strips.append(Strip(TOGETHER, _served(drift), _columns(drift.together, first, column_size, columns)))
    title = f"Stream {drift.stream}: {drift.verdict()}"
    subtitle = f"{_counted(drift.message_count)}, no sequence" if first == end else _extent(drift, first, end)
    return ReplicaMap(title, subtitle, first, end, column_size, tuple(strips))


def replica_map(drift: Drift | Sequence[Drift]) -> "Figure":
    """Return a matplotlib figure with the copies of a stream, or of several, below each other.

    Save it with `figure.savefig("drift.png")`. Raises ModuleNotFoundError naming the extra if matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NEEDS_MATPLOTLIB, name=error.name) from error

    maps = [layout(one) for one in ([drift] if isinstance(drift, Drift) else drift)]
    assert maps, "a picture of no stream"
    height = sum(_HEAD_INCHES + _ROW_INCHES * len(one.strips) for one in maps) + _LEGEND_INCHES
    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=150, facecolor="white")
    bottom = height
    for one in maps:
        rows = _ROW_INCHES * len(one.strips)
        bottom -= _HEAD_INCHES + rows
        place = (1.4 / _WIDTH_INCHES, (bottom + _AXIS_INCHES) / height, 6.9 / _WIDTH_INCHES, rows / height)
        _draw(figure.add_axes(place), one)
    _draw_legend(figure, height)
    return figure


def replica_map_html(drift: Drift | Sequence[Drift]) -> str:
    """Return the same as HTML with inline SVG: it can stand in a page or a notebook, and refers to nothing outside."""
    drifts = [drift] if isinstance(drift, Drift) else drift
    return "\n".join(_svg(layout(one)) for one in drifts)


def replica_map_page(drifts: Sequence[Drift], title: str = "Drift") -> str:
    """Return a whole HTML page with the pictures of streams and what their copies disagree on."""
    parts = [replica_map_html(one) + _details(one) for one in drifts]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body{font-family:sans-serif;margin:2em;max-width:70em;color:#1a1a1a}ul{margin:0 0 2em 6em}</style>\n"
        "</head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def figure_html(figure: "Figure") -> str:
    """Return a figure as an image inside HTML, for pages that must be one file."""
    from io import BytesIO

    target = BytesIO()
    figure.savefig(target, format="png")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}">'


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


def _captions(copy: CopyDrift) -> tuple[str, ...]:
    counts = [f"{copy.count(state):,} {LEGEND[state]}" for state in State if copy.count(state)]
    return _lines(counts or ["cannot be read" if copy.problem else "nothing"])


def _served(drift: Drift) -> tuple[str, ...]:
    parts = [f"{drift.message_count:,} served"]
    if unsettled := drift.together.count(State.DIFFERENT):
        parts.append(f"{unsettled:,} without a majority")
    if drift.lost:
        parts.append(f"{len(drift.lost):,} lost")
    return _lines(parts)


def _lines(parts: Sequence[str]) -> tuple[str, ...]:
    return (parts[0], ", ".join(parts[1:])) if len(parts) > 1 else tuple(parts)


def _short(label: str) -> str:
    return label if len(label) <= LABEL_SIZE_MAX else "\u2026" + label[1 - LABEL_SIZE_MAX :]


def _extent(drift: Drift, first: int, end: int) -> str:
    which = f"sequence {first:,}" if end == first + 1 else f"sequences {first:,} to {end - 1:,}"
    return f"{_counted(drift.message_count)}, {which}"


def _counted(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


# --- matplotlib

_WIDTH_INCHES, _ROW_INCHES, _LEGEND_INCHES = 11.0, 0.36, 0.4
_HEAD_INCHES, _AXIS_INCHES = 1.3, 0.55  # title and axis of one stream together; the axis below its strips


def _draw(axes: "Axes", one: ReplicaMap) -> None:
    axes.set_xlim(0, max(1, one.column_count))
    axes.set_ylim(len(one.strips) - 0.5, -0.5)
    for row, strip in enumerate(one.strips):
        axes.axhline(row, color=TRACK_COLOUR, linewidth=1, zorder=0)
        for state in State:
            bars = [(first, end - first) for first, end in strip.bars(state)]
            if bars:
                height = HEIGHTS[state]
                drawn = axes.broken_barh(bars, (row - height / 2, height), facecolors=COLOURS[state], linewidth=0)
                drawn.set_gid(f"{strip.label}:{state.label}")
        axes.text(
            1.012,
            row,
            "\n".join(strip.captions),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=TEXT_COLOUR,
        )
    if one.strips[-1].label == TOGETHER:
        axes.axhline(len(one.strips) - 1.5, color=QUIET_COLOUR, linewidth=0.6, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(one.strips)), [_short(strip.label) for strip in one.strips], fontsize=9)
    ticks = one.ticks()
    axes.set_xticks(
        [(tick - one.first) / one.column_size for tick in ticks], [f"{tick:,}" for tick in ticks], fontsize=8
    )
    axes.set_xlabel(one.scale, fontsize=8, color=QUIET_COLOUR)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _write_above(axes, one.title, 24, fontsize=11, fontweight="bold", color=TEXT_COLOUR)
    _write_above(axes, one.subtitle, 10, fontsize=8, color=QUIET_COLOUR)


def _write_above(axes: "Axes", text: str, points: int, **style: Any) -> None:
    axes.annotate(text, (0, 1), xycoords="axes fraction", xytext=(-85, points), textcoords="offset points", **style)


def _draw_legend(figure: "Figure", height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(facecolor=COLOURS[state], label=LEGEND[state]) for state in State]
    handles.append(Line2D([], [], color=TRACK_COLOUR, label="no message"))
    place = (1.3 / _WIDTH_INCHES, 0.05 / height)
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=place, ncols=5, fontsize=8, frameon=False)


# --- SVG

_LEFT, _WIDTH, _RIGHT, _ROW = 120, 640, 240, 26  # units of the picture
_TOP, _BOTTOM = 52, 76


def _svg(one: ReplicaMap) -> str:
    height = _TOP + _ROW * len(one.strips) + _BOTTOM
    unit = _WIDTH / max(1, one.column_count)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" role="img" '
        f'width="100%" style="max-width:{_LEFT + _WIDTH + _RIGHT}px" font-family="sans-serif" font-size="12">',
        f"<title>{html.escape(one.title)}</title>",
        f'<rect width="{_LEFT + _WIDTH + _RIGHT}" height="{height}" fill="#FFFFFF"/>',
        _text(8, 18, one.title, size=14, bold=True),
        _text(8, 36, one.subtitle, colour=QUIET_COLOUR),
    ]
    for row, strip in enumerate(one.strips):
        lines += _svg_strip(one, strip, _TOP + _ROW * row, unit)
    if one.strips[-1].label == TOGETHER:
        y = _TOP + _ROW * (len(one.strips) - 1) - 1
        lines.append(
            f'<line x1="8" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="{QUIET_COLOUR}" stroke-dasharray="4 3"/>'
        )
    lines += _svg_axis(one, _TOP + _ROW * len(one.strips) + 2, unit)
    lines += _svg_legend(height - 12)
    return "\n".join([*lines, "</svg>"])


def _svg_strip(one: ReplicaMap, strip: Strip, top: int, unit: float) -> Iterable[str]:
    middle = top + _ROW / 2
    yield f'<g data-copy="{html.escape(strip.label, quote=True)}">'
    yield _text(_LEFT - 10, middle + 4, _short(strip.label), anchor="end")
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{middle}" y2="{middle}" stroke="{TRACK_COLOUR}"/>'
    for state in State:
        height = (_ROW - 4) * HEIGHTS[state]
        for first, end in strip.bars(state):
            low, high = one.first + first * one.column_size, min(one.end, one.first + end * one.column_size) - 1
            where = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            x, width = _LEFT + first * unit, (end - first) * unit
            box = f'x="{x:.2f}" y="{middle - height / 2:.1f}" width="{width:.2f}" height="{height:.1f}"'
            told = f"<title>{html.escape(strip.label)}: {where} {LEGEND[state]}</title>"
            yield f'<rect {box} fill="{COLOURS[state]}" data-state="{state.label}">{told}</rect>'
    for line, caption in enumerate(strip.captions):
        yield _text(_LEFT + _WIDTH + 10, middle + 4 + 11 * line - 5.5 * (len(strip.captions) - 1), caption, size=10)
    yield "</g>"


def _svg_axis(one: ReplicaMap, y: int, unit: float) -> Iterable[str]:
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="{TEXT_COLOUR}"/>'
    for tick in one.ticks():
        x = _LEFT + (tick - one.first) / one.column_size * unit
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{y}" y2="{y + 4}" stroke="{TEXT_COLOUR}"/>'
        yield _text(x, y + 16, f"{tick:,}", size=10, anchor="middle")
    yield _text(_LEFT + _WIDTH / 2, y + 32, one.scale, size=10, anchor="middle", colour=QUIET_COLOUR)


def _svg_legend(y: int) -> Iterable[str]:
    for at, state in enumerate(State):
        yield f'<rect x="{_LEFT + at * 105}" y="{y - 10}" width="12" height="12" fill="{COLOURS[state]}"/>'
        yield _text(_LEFT + at * 105 + 18, y, LEGEND[state], size=11)
    x = _LEFT + len(State) * 105
    yield f'<line x1="{x}" x2="{x + 14}" y1="{y - 4}" y2="{y - 4}" stroke="{TRACK_COLOUR}" stroke-width="2"/>'
    yield _text(x + 20, y, "no message", size=11)


def _text(
    x: float, y: float, text: str, size: int = 12, anchor: str = "start", bold: bool = False, colour: str = TEXT_COLOUR
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{weight}>{html.escape(text)}</text>"


def _details(drift: Drift) -> str:
    if not drift.conflicts and not drift.notes:
        return ""
    rows = [f"<li>{html.escape(note)}</li>" for note in drift.notes]
    rows += [f"<li>{html.escape(one.describe())}</li>" for one in drift.conflicts[:100]]
    if len(drift.conflicts) > 100:
        rows.append(f"<li>and {len(drift.conflicts) - 100:,} more</li>")
    return f"<ul>{''.join(rows)}</ul>"
