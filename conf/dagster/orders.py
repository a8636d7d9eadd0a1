"""Dagster: the table of orders as an asset, made by its pipeline every ten minutes. Edit the names, then:

    dagster dev --python-file conf/dagster/orders.py

jstream has an environment of its own, as its packages and Dagster's need not go together. The counts of a run are
metadata of the asset. A retry resumes the run that failed; a run that finds another one at work does nothing.
"""

import json
import os
import subprocess

import dagster as dg

JSTREAM = "/opt/jstream/bin/jstream"
PIPELINE = "/srv/shop/conf/pipelines/orders.toml"
VARIABLES = {"JSTREAM_STORE": "/data/disk-1,/data/disk-2,/data/disk-3", "JSTREAM_ETL": "/srv/shop/etl"}


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3, delay=60))
def orders() -> dg.MaterializeResult:
    command = [JSTREAM, "etl", "run", PIPELINE, "--if-running", "skip"]
    variables = {**os.environ, **VARIABLES}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            output, _ = process.communicate()
        finally:
            process.terminate()  # if Dagster ends this step: the run ends after its batch
    if process.returncode != 0:
        raise dg.Failure(f"jstream ended with {process.returncode}; stderr has its words. {output}")
    return dg.MaterializeResult(metadata=json.loads(output.splitlines()[-1]))


job = dg.define_asset_job("orders_job", [orders])
schedule = dg.ScheduleDefinition(job=job, cron_schedule="*/10 * * * *")
definitions = dg.Definitions(assets=[orders], jobs=[job], schedules=[schedule])
