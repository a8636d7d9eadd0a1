"""The demo's report as one self-contained HTML page."""

import html
from collections.abc import Iterator

from spark_stream.demo.report import Batch, Report, Step
from spark_stream.pictures import figure_html, replica_map_html

STYLE = """
body { font-family: system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3em .8em; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.wrong { color: #b00020; font-weight: bold; }
.verdict { font-size: 1.3em; padding: .6em 1em; background: #e8f4ea; border-left: .4em solid #2e7d32; }
.verdict.wrong { background: #fdecea; border-color: #b00020; }
figure { margin: 1em 0; } figcaption { color: #555; }
img, svg { max-width: 100%; height: auto; }
"""


def page(report: Report, title: str) -> str:
    """Return the page; it refers to nothing outside itself."""
    verdict = "verdict" if report.ok else "verdict wrong"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{html.escape(title)}</h1>",
            f'<p class="{verdict}">{html.escape(report.verdict)}</p>',
            *_counts(report),
            *(part for step in report.steps for part in _step(step)),
            *_consumers(report),
            *_throughput(report.batches),
            "</body></html>\n",
        ]
    )


def _counts(report: Report) -> Iterator[str]:
    yield "<h2>Counts at every stage</h2><table>"
    yield '<tr><th>stage</th><th class="number">messages</th><th class="number">must be</th><th></th></tr>'
    for one in report.counts:
        judged = "ok" if one.found == one.expected else '<span class="wrong">WRONG</span>'
        numbers = "".join(f'<td class="number">{value:,}</td>' for value in (one.found, one.expected))
        yield f"<tr><td>{html.escape(one.stage)}</td>{numbers}<td>{judged}</td></tr>"
    yield "</table>"


def _step(step: Step) -> Iterator[str]:
    yield f"<h2>{html.escape(step.title)}</h2><ul>"
    for fact in step.facts:
        attribute = "" if fact.holds else ' class="wrong"'
        yield f"<li{attribute}>{html.escape(fact.text)}</li>"
    yield "</ul>"
    for caption, drift in step.maps:
        yield f"<figure>{replica_map_html(drift)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _consumers(report: Report) -> Iterator[str]:
    if not report.consumers:
        return
    names = list(report.consumers[0][1])
    yield "<h2>The consumer, seen from outside</h2><table><tr><th>when</th>"
    yield "".join(f'<th class="number">{html.escape(name)}</th>' for name in names) + "</tr>"
    for when, info in report.consumers:
        cells = "".join(f'<td class="number">{info[name]:,}</td>' for name in names)
        yield f"<tr><td>{html.escape(when)}</td>{cells}</tr>"
    yield "</table>"


def _throughput(batches: list[Batch]) -> Iterator[str]:
    """Draw the rate and the lag of each micro-batch of the first run."""
    first = [one for one in batches if one.run == 1]
    if not first:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    rate, lag = figure.subplots(1, 2)
    numbers = range(1, len(first) + 1)
    rate.bar(numbers, [one.rows_per_s for one in first], color="#0072b2")
    rate.set(title="Messages a second", xlabel="micro-batch", xticks=list(numbers))
    lag.step([0, *(one.time_s for one in first)], [first[0].lag + first[0].rows, *(one.lag for one in first)],
             where="post", color="#d55e00")  # fmt: skip
    lag.set(title="Messages still to come", xlabel="seconds since the run began", ylim=(0, None))
    yield "<h2>The first run of the pipeline</h2>"
    yield f"<figure>{figure_html(figure)}</figure>"
