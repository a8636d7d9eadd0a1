"""The files for Airflow and Dagster, run by these programs themselves, which have an environment of their own."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orchestrators
import pytest

from spark_stream.pipelines.state import PipelineState
from storage_core import Store

CONF = Path(__file__).resolve().parents[3] / "conf"
PYTHON = orchestrators.FOLDER / "bin" / "python"
TIMEOUT_S = 300

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not PYTHON.exists(), reason="Airflow and Dagster are installed by `make test-orchestrators`"),
]

PIPELINE = """
checkpoint = "state/orders"

[source]
stream = "ORDERS"

[payload]
format = "utf8"

[sink]
kind = "parquet"
path = "orders"
"""

# A run as `airflow dags test` makes it: {"state": ..., "counts": what the task left as XCom}.
RUN_AIRFLOW = """
import json, sys
sys.path.insert(0, sys.argv[1])
from orders import dag
run = dag.test()
(task,) = run.get_task_instances()
print(json.dumps({"state": str(task.state), "counts": task.xcom_pull(task_ids="orders")}))
"""

# The same of Dagster; `counts`: the metadata of the asset.
RUN_DAGSTER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from orders import definitions
job = definitions.resolve_job_def("orders_job")
run = job.execute_in_process(raise_on_error=False)
made = run.asset_materializations_for_node("orders")
counts = {name: entry.value for name, entry in made[0].metadata.items()} if made else None
retries = len([event for event in run.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"])
print(json.dumps({"state": "success" if run.success else "failed", "counts": counts, "retries": retries}))
"""

# One attempt, without the retries around it: the name of what was raised, and its words.
CALL = {
    "airflow": "from orders import dag; call = lambda: dag.get_task('orders').execute({})",
    "dagster": "from orders import orders as call",
}
ATTEMPT = """
try:
    print(json.dumps({"counts": call().metadata}))
except Exception as error:
    print(json.dumps({"raised": type(error).__name__, "words": getattr(error, "description", None) or str(error)}))
"""


@pytest.fixture
def project(tmp_path: Path, store: Store) -> Path:
    """A folder with a pipeline, over the store whose stream ORDERS has two messages."""
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(2):
        stream.publish("orders.new", b"order %d" % number)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "orders.toml").write_text(PIPELINE)
    return folder


def run(orchestrator: str, program: str, project: Path, volume: Path) -> dict[str, Any]:
    """Run the file of an orchestrator, with the names of this project in it."""
    text = (CONF / orchestrator / "orders.py").read_text()
    names = {
        "JSTREAM": str(Path(sys.executable).parent / "jstream"),
        "PIPELINE": str(project / "orders.toml"),
        "VARIABLES": {"JSTREAM_STORE": str(volume)},
    }
    for name, value in names.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", text, flags=re.MULTILINE)
        assert count == 1, name
    folder = project / orchestrator
    folder.mkdir(exist_ok=True)
    (folder / "orders.py").write_text(text)
    home = folder / "home"
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DAGSTER_HOME": "",
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    home.mkdir(exist_ok=True)
    if program is RUN_AIRFLOW:
        for words in (("db", "migrate"), ("dags", "reserialize")):
            command = [str(PYTHON), "-m", "airflow", *words]
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
    command = [str(PYTHON), "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome | {"log": done.stdout + done.stderr}


@pytest.mark.parametrize(("orchestrator", "program"), [("airflow", RUN_AIRFLOW), ("dagster", RUN_DAGSTER)])
def test_a_run_reports_its_counts_and_the_next_one_stores_nothing_twice(
    project: Path, volume: Path, orchestrator: str, program: str
) -> None:
    first = run(orchestrator, program, project, volume)
    assert first["state"] == "success", first["log"][-4000:]
    assert first["counts"]["rows_in"] == first["counts"]["rows_out"] == 2
    again = run(orchestrator, program, project, volume)
    assert again["state"] == "success" and again["counts"]["rows_in"] == 0


@pytest.mark.parametrize("orchestrator", CALL)
def test_a_run_that_fails_is_a_failure_with_jstreams_exit_code(project: Path, volume: Path, orchestrator: str) -> None:
    (project / "orders.toml").write_text(PIPELINE.replace("utf8", "utf7"))
    outcome = attempt(orchestrator, project, volume)
    assert outcome["raised"] == {"airflow": "AirflowException", "dagster": "Failure"}[orchestrator]
    assert "jstream ended with 2" in outcome["words"] and "utf7" in outcome["log"]


@pytest.mark.parametrize("orchestrator", CALL)
def test_a_run_beside_another_one_is_skipped(project: Path, volume: Path, orchestrator: str) -> None:
    with PipelineState(str(project / "state" / "orders")).lock("etl run"):
        outcome = attempt(orchestrator, project, volume)
    if orchestrator == "airflow":
        assert outcome["raised"] == "AirflowSkipException"
    else:
        assert outcome["counts"]["skipped"] is True


def attempt(orchestrator: str, project: Path, volume: Path) -> dict[str, Any]:
    program = f"import json, sys\nsys.path.insert(0, sys.argv[1])\n{CALL[orchestrator]}\n{ATTEMPT}"
    return run(orchestrator, program, project, volume)
