"""Metrics of one run for Prometheus' textfile collector: a run has ended before anybody could ask it for them.

Needs `prometheus-client`: pip install 'pyspark-jstream[metrics]'.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from spark_stream.metrics import Families, write_textfile
from spark_stream.pipelines.summary import Summary

_PIPELINE = ("pipeline",)
METRICS: dict[str, tuple[tuple[str, ...], str]] = {
    "jstream_etl_last_run_success": (_PIPELINE, "Whether the last run ended well"),
    "jstream_etl_last_run_end_timestamp_seconds": (_PIPELINE, "When the last run ended"),
    "jstream_etl_last_run_duration_seconds": (_PIPELINE, "How long the last run took"),
    "jstream_etl_last_run_batches": (_PIPELINE, "Batches of the last run"),
    "jstream_etl_last_run_rows_in": (_PIPELINE, "Messages that the last run read"),
    "jstream_etl_last_run_rows_out": (_PIPELINE, "Rows that its transformation made of them"),
    "jstream_etl_last_run_rows_dead": (_PIPELINE, "Messages that it could not parse"),
    "jstream_etl_last_run_rows_late": (_PIPELINE, "Rows that came later than the watermark and were left out"),
    "jstream_etl_next_sequence": (("pipeline", "stream"), "First sequence that the pipeline has not stored"),
}


class RunCollector(Collector):
    """What one finished run came to."""

    def __init__(self, summary: Summary) -> None:
        self._summary, self._ended_s = summary, time.time()

    def collect(self) -> Iterable[Metric]:
        run, families = self._summary, Families(METRICS)
        values = {
            "success": float(run.ok),
            "end_timestamp_seconds": self._ended_s,
            "duration_seconds": run.duration_s,
            "batches": run.batches,
            "rows_in": run.rows_in,
            "rows_out": run.rows_out,
            "rows_dead": run.rows_dead,
            "rows_late": run.rows_late,
        }
        for name, value in values.items():
            families.add(f"jstream_etl_last_run_{name}", value, run.pipeline)
        for stream, sequence in run.end.items():
            families.add("jstream_etl_next_sequence", sequence, run.pipeline, stream)
        return families


def write_metrics(summary: Summary, file: Path) -> None:
    """Write the metrics of a finished run, whole or not at all; raises OSError."""
    write_textfile([RunCollector(summary)], file)
