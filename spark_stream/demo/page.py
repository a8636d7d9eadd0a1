"""The demo's report as one self-contained HTML page."""

import html
from collections.abc import Iterator, Sequence

from spark_stream.demo.report import COUNTS_HEAD, Report, Step
from spark_stream.pictures import figure_html, replica_map_html

STYLE = """
body { font-family: system-ui, sans-serif; line-height: 1.45; max-width: 66em; margin: 2em auto; padding: 0 1em;
       color: #1a1a1a; }
h2 { margin: 2.2em 0 .6em; font-size: 1.25em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3em .8em; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
ul { list-style: none; padding-left: 0; }
li { padding-left: 1.6em; text-indent: -1.6em; }
li::before { content: "\\2022"; display: inline-block; width: 1.6em; text-indent: .3em; color: #999; }
li.right::before { content: "\\2713"; color: #2e7d32; }
li.wrong::before { content: "\\2717"; }
.wrong { color: #b00020; font-weight: bold; }
.verdict { font-size: 1.3em; padding: .6em 1em; background: #e8f4ea; border-left: .4em solid #2e7d32; }
.verdict.wrong { background: #fdecea; border-color: #b00020; }
.quiet { color: #555; }
figure { margin: 1.2em 0; } figcaption { color: #555; }
img, svg { max-width: 100%; height: auto; }
"""
CLASSES = {None: "", True: ' class="right"', False: ' class="wrong"'}


def page(report: Report, title: str) -> str:
    """Return the page; it refers to nothing outside itself."""
    verdict = "verdict" if report.ok else "verdict wrong"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{html.escape(title)}</h1>",
            f'<p class="{verdict}">{html.escape(report.verdict)}</p>',
            f'<p class="quiet">{html.escape(report.made)}</p>',
            "<h2>Counts at every stage</h2>",
            *_table(COUNTS_HEAD, report.count_rows(), 2),
            *(part for step in report.steps for part in _step(step)),
            "</body></html>\n",
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], number_count: int) -> Iterator[str]:
    """Write a table; the columns behind the first one are numbers, so many of them."""

    def cells(kind: str, values: Sequence[str]) -> str:
        parts = []
        for at, value in enumerate(values):
            names = ["number"] * (0 < at <= number_count) + ["wrong"] * value.startswith("WRONG")
            parts.append(f'<{kind} class="{" ".join(names)}">{html.escape(value)}</{kind}>')
        return f"<tr>{''.join(parts)}</tr>".replace(' class=""', "")

    yield "<table>"
    yield cells("th", head)
    yield from (cells("td", row) for row in rows)
    yield "</table>"


def _step(step: Step) -> Iterator[str]:
    yield f"<h2>{html.escape(step.title)}</h2><ul>"
    for fact in step.facts:
        yield f"<li{CLASSES[fact.holds]}>{html.escape(fact.text)}</li>"
    yield "</ul>"
    for caption, drift in step.maps:
        yield f"<figure>{replica_map_html(drift)}<figcaption>{html.escape(caption)}</figcaption></figure>"
    if len(step.batches) > 1:
        yield f"<figure>{_throughput(step)}<figcaption>Throughput and lag of the pipeline, by micro-batch</figcaption>"
        yield "</figure>"
    for head, rows in step.tables:
        yield from _table(head, rows, len(head) - 1)


def _throughput(step: Step) -> str:
    """Draw the rate of each micro-batch, and the lag over time."""
    from matplotlib.figure import Figure

    batches = step.batches
    figure = Figure(figsize=(9.5, 3.2), dpi=150, layout="constrained")
    rate, lag = figure.subplots(1, 2)
    numbers = range(1, len(batches) + 1)
    rate.bar(numbers, [one.rows_per_s for one in batches], color="#56B4E9")
    rate.set(title="Messages a second", xlabel="micro-batch", xticks=list(numbers))
    times = [0.0, *(one.time_s for one in batches)]
    lag.step(times, [batches[0].lag + batches[0].rows, *(one.lag for one in batches)], where="post", color="#D55E00")
    lag.set(title="Messages behind the end of the stream", xlabel="seconds since the run began", ylim=(0, None))
    for time_s, what in step.marks:
        lag.axvline(time_s, color="#1a1a1a", linewidth=0.8, linestyle=(0, (4, 3)))
        lag.annotate(what, (time_s, 0.97), xycoords=("data", "axes fraction"), xytext=(5, 0),
                     textcoords="offset points", va="top", fontsize=8)  # fmt: skip
    for axes in (rate, lag):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    return figure_html(figure)
