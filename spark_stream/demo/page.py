"""The demo's report as one self-contained HTML page."""

from markupsafe import Markup

from spark_stream.demo.report import COUNTS_HEAD, Report, Step
from spark_stream.look.charts import steps
from spark_stream.look.rendering import render
from spark_stream.pictures import replica_map_svg

COMMANDS = (  # to type in the folder of the demo
    "jstream stream report",
    "jstream consumer report",
    "jstream drift",
    "jstream etl run orders.toml",
    "jstream stream view ORDERS_DEAD",
)


def page(report: Report, title: str) -> str:
    """Return the page; it refers to nothing outside itself."""
    copies = [shown for step in report.steps for shown in step.maps]
    return render(
        "demo.html",
        report=report,
        title=title,
        before_and_after=[copies[0], copies[-1]] if len(copies) > 1 else [],
        counts_head=COUNTS_HEAD,
        commands=COMMANDS,
        picture=replica_map_svg,
        lag=_lag,
    )


def _lag(step: Step) -> Markup:
    """Draw how far the pipeline was behind the end of the stream, batch by batch."""
    first = step.batches[0]
    points = [(0.0, float(first.lag + first.rows)), *((batch.time_s, float(batch.lag)) for batch in step.batches)]
    return steps("Messages behind the end of the stream", "seconds since the run began", points, step.marks)
