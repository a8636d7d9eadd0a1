"""Airflow: the pipeline of orders every ten minutes. Edit the names, and copy this file into the folder of DAGs.

jstream has an environment of its own, as its packages and Airflow's do not go together. The counts of a run are the
task's XCom. A retry resumes the run that failed; a run that finds another one at work is skipped.
"""

import json
import os
import subprocess
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

JSTREAM = "/opt/jstream/bin/jstream"
PIPELINE = "/srv/shop/conf/pipelines/orders.toml"
VARIABLES = {"JSTREAM_STORE": "/data/disk-1,/data/disk-2,/data/disk-3", "JSTREAM_ETL": "/srv/shop/etl"}


class JstreamPipeline(BaseOperator):
    """Runs a pipeline over all that is there now, and returns its counts."""

    template_fields = ("pipeline",)

    def __init__(self, *, pipeline: str, **more: Any) -> None:
        super().__init__(**more)
        self.pipeline = pipeline

    def execute(self, context: Any) -> dict[str, Any]:
        command = [JSTREAM, "etl", "run", self.pipeline, "--if-running", "skip"]
        variables = {**os.environ, **VARIABLES}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as self.process:
            try:
                output, _ = self.process.communicate()
            finally:
                self.process.terminate()  # after a timeout, for one: the run ends after its batch
        if self.process.returncode != 0:
            raise AirflowException(f"jstream ended with {self.process.returncode}; the log has its words. {output}")
        summary: dict[str, Any] = json.loads(output.splitlines()[-1])
        if summary["skipped"]:
            raise AirflowSkipException("another run is at work")
        return summary

    def on_kill(self) -> None:
        self.process.terminate()


with DAG("orders", schedule="*/10 * * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1) as dag:
    JstreamPipeline(task_id="orders", pipeline=PIPELINE, retries=3, retry_delay=timedelta(minutes=1))
