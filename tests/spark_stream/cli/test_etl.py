"""`jstream etl` as a command: exit codes, what it refuses before Spark starts, and how it tells of progress.

Pipelines that run are in tests/spark_stream/pipelines.
"""

import json
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_stream.cli import etl
from spark_stream.launching import why_not_started
from spark_stream.pipelines.config import load_pipeline
from spark_stream.pipelines.run import Progress
from spark_stream.pipelines.session import conf_beside, conf_folder
from spark_stream.pipelines.state import PipelineState
from spark_stream.pipelines.summary import Summary
from spark_stream.session import conf_defaults, local_settings
from storage_core import Store
from storage_core.store.environment import REAL

ROOT = Path(etl.__file__).resolve().parents[2]
FILE = """
checkpoint = "checkpoint"
[source]
stream = "ORDERS"
consumer = "warehouse"
[sink]
kind = "console"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(FILE)
    return path


def test_a_quick_check_looks_at_file_and_store_and_changes_nothing(jstream, orders: Store, file: Path) -> None:
    before = orders.view().index
    outcome = jstream("etl", "check", file, "--quick")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "source: stream ORDERS, 4 messages\norders: OK\n"
    assert orders.view().index == before and not (file.parent / "checkpoint.etl").exists()


def test_the_store_of_a_pipeline_is_the_files_the_options_or_the_environments(
    jstream, orders: Store, volume: Path, file: Path
) -> None:
    refused = jstream("etl", "check", file, "--quick", with_store=False)
    assert refused.code == 2 and "source.store: is missing" in refused.err
    assert jstream("etl", "check", file, "--quick", "--store", volume, with_store=False).code == 0
    assert jstream("etl", "--store", volume, "check", file, "--quick", with_store=False).code == 0
    file.write_text(FILE.replace("[source]", '[source]\nstore = "volume"'))
    assert jstream("etl", "check", file, "--quick", with_store=False).code == 0


@pytest.mark.parametrize("verb", ["run", "check", "status"])
def test_a_file_with_a_mistake_is_wrong_usage_and_a_missing_one_a_failure(
    jstream, orders: Store, file: Path, verb: str
) -> None:
    file.write_text(FILE.replace("console", "consle"))
    outcome = jstream("etl", verb, file)
    assert outcome.code == 2 and "did you mean 'console'?" in outcome.err and outcome.err.count("\n") == 1
    missing = jstream("etl", verb, file.with_name("gone.toml"))
    assert missing.code == 1 and "gone.toml: no such file or directory" in missing.err


def test_a_stream_that_is_not_there_is_told_before_spark_starts(jstream, orders: Store, file: Path) -> None:
    file.write_text(FILE.replace("ORDERS", "ODERS"))
    outcome = jstream("etl", "run", file)
    assert outcome.code == 1
    assert "source.stream: no stream 'ODERS' in" in outcome.err and "did you mean 'ORDERS'?" in outcome.err
    summary = json.loads(outcome.out)
    assert (summary["ok"], summary["batches"]) == (False, 0) and summary["error"] in outcome.err
    assert json.loads((file.parent / "checkpoint.etl" / "runs.json").read_text())[-1] == summary


def test_a_store_that_is_not_there_is_told_with_the_files_key(jstream, file: Path) -> None:
    file.write_text(FILE.replace("[source]", '[source]\nstore = "nowhere"'))
    outcome = jstream("etl", "check", file, "--quick", with_store=False)
    assert outcome.code == 1
    assert f"[JSTREAM_NOT_A_STORE] {file}: source.store: {file.parent / 'nowhere'} does not exist" in outcome.err


def test_a_backfill_refuses_a_range_that_is_none(jstream, orders: Store, file: Path) -> None:
    for words, code, told in [
        (("--from", "0", "--to", "5"), 2, "--from: 0 is not a sequence"),
        (("--from", "soon", "--to", "5"), 2, "--from 'soon': write a sequence, a duration before now"),
        (("--from", "1"), 2, "option --to is missing"),
        (("--from", "50", "--to", "60"), 1, "there are no messages in that range"),
    ]:
        outcome = jstream("etl", "backfill", file, *words)
        assert outcome.code == code and told in outcome.err, outcome


def test_a_pipeline_on_another_host_is_refused_before_spark_starts_and_takes_its_stores_over_if_told_to(
    jstream, orders: Store, file: Path, tmp_path: Path
) -> None:
    elsewhere = replace(REAL, lock_domain=lambda: "another machine")
    Store.create(tmp_path / "letters", env=elsewhere).add_stream({"name": "BAD"})
    file.write_text(
        f'{FILE}[payload]\nformat = "json"\nschema = "n INT"\n[dead_letters]\nstore = "letters"\nstream = "BAD"\n'
    )
    orders.stream("ORDERS").publish("orders.new", b"x")
    for path in (*orders.paths, tmp_path / "letters"):
        Store.open(path, env=elsewhere, take_over=True).close()
    for words in (("run",), ("check", "--quick")):
        refused = jstream("etl", words[0], file, *words[1:])
        assert refused.code == 1 and "written from host" in refused.err and "--take-over" in refused.err

    # A range that is none ends the command after the stores were taken over, and before Spark starts.
    assert jstream("etl", "backfill", file, "--from", "50", "--to", "60", "--take-over").code == 1
    orders.check_host()
    Store.open(tmp_path / "letters").check_host()
    assert jstream("etl", "check", file, "--quick").code == 0


def test_metrics_that_could_not_be_written_are_told_before_anything_is_run(jstream, orders: Store, file: Path) -> None:
    outcome = jstream("etl", "run", file, "--metrics-textfile", file.parent / "no" / "such.prom")
    assert outcome.code == 1 and "such.prom: its folder is not there" in outcome.err


def test_status_of_a_pipeline_that_never_ran(jstream, orders: Store, file: Path) -> None:
    orders.stream("ORDERS").add_consumer({"name": "warehouse"})
    found = json.loads(jstream.done("etl", "status", file, "--json"))
    assert found == {
        "pipeline": "orders",
        "file": str(file),
        "checkpoint": str(file.parent / "checkpoint"),
        "running": None,
        "query": None,
        "batch_done": None,
        "batch_open": None,
        "streams": [
            {
                "stream": "ORDERS",
                "position": None,
                "end": 7,
                "lag": 4,
                "consumer": {"name": "warehouse", "ack_floor": 0, "num_pending": 4},
            }
        ],
        "last_run": None,
        "backfills": [],
        "replay": None,
    }
    assert "ORDERS  -           7    4  warehouse          0        4" in jstream.done("etl", "status", file)


def test_progress_is_shown_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Progress(batch=3, rows_in=1200, rows_dead=2, rows_per_s=4000.0, lag={"ORDERS": 5000})
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr, os.fdopen(controller, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        with etl._watching("orders", verbose=False) as shown:
            shown.step("starting Spark, 6,200 to go")
            seen = b""
            while b"starting Spark, 6,200 to go" not in seen:
                seen += screen.read(4096)
            shown.batch(batch)
            while b"5,000 to go" not in seen:
                seen += screen.read(4096)
    assert b"orders: batch 3, 1,200 messages, 2 dead, 4,000/s, 5,000 to go" in seen


def test_progress_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with etl._watching("orders", verbose=False) as shown:
        shown.step("starting Spark")
        shown.batch(Progress(1, 1, 0, 1.0, {}))
    assert capfd.readouterr() == ("", "")
    with etl._watching("orders", verbose=True) as shown:
        shown.step("starting Spark")
        shown.batch(Progress(1, 1200, 0, 400.0, {"ORDERS": 3}))
    lines = [line.rpartition(", ")[0] for line in capfd.readouterr().err.splitlines()]
    assert lines == ["orders: starting Spark", "orders: batch 1: done, 1,200 messages, 400/s, 3 to go"]


def test_a_run_beside_another_one_fails_or_is_skipped(jstream, orders: Store, file: Path) -> None:
    with PipelineState(str(file.parent / "checkpoint")).lock("etl run"):
        refused = jstream("etl", "run", file)
        assert refused.code == 1 and "checkpoint is held by etl run, process" in refused.err.replace("\n", " ")
        skipped = jstream("etl", "run", file, "--if-running", "skip")
    assert skipped.code == 0 and skipped.err.startswith("skipped: checkpoint")
    summary = json.loads(skipped.out)
    assert (summary["ok"], summary["skipped"], summary["batches"], summary["error"]) == (True, True, 0, None)
    assert not (file.parent / "checkpoint.etl" / "runs.json").exists()


def test_settings_of_spark_are_found_beside_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    file = tmp_path / "conf" / "pipelines" / "orders.toml"
    file.parent.mkdir(parents=True)
    assert conf_folder(file) is None
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 7\n")
    with conf_beside(file):
        assert conf_defaults() == {"spark.sql.shuffle.partitions": "7"}
    assert "SPARK_CONF_DIR" not in os.environ
    (file.parent / "spark-defaults.conf").touch()  # the nearest one counts
    assert conf_folder(file) == file.parent
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert conf_folder(file) == tmp_path


def test_without_java_a_run_says_what_it_needs(orders: Store, volume: Path, file: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [sys.executable, "-m", "spark_stream.cli", "etl", "run", str(file)],
        cwd="/", env={"PATH": str(tools), "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(volume)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    told = "Spark's JVM did not start: it needs Java 17 or 21, on the PATH or in JAVA_HOME; no java was found"
    assert done.returncode == 1 and done.stderr.endswith(f"error: [JSTREAM_RUN_FAILED] {told}\n")
    assert json.loads(done.stdout)["error"] == told


@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('"spark.driver.extraJavaOptions" = "-Xmx1g"', "Not allowed to specify max heap"),
        ('"spark.jars.packages" = "org.example:no-such-thing:1"', "a package of spark.jars.packages could not be"),
    ],
)
def test_a_launcher_that_ends_is_told_by_its_last_words(
    orders: Store, volume: Path, file: Path, tmp_path: Path, setting: str, told: str
) -> None:
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none"/></resolvers></ivysettings>'
    )
    file.write_text(f'{FILE}[spark]\n"spark.jars.ivySettings" = "{tmp_path}/ivy.xml"\n{setting}\n')
    done = subprocess.run(
        [sys.executable, "-m", "spark_stream.cli", "etl", "run", str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(volume)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("error: [JSTREAM_RUN_FAILED] Spark's JVM did not start: ")
    assert told in done.stderr and "needs Java" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_java_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '    java.version = 11.0.2\\n    java.specification.version = 11\\n' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    told = why_not_started("UnsupportedClassVersionError", {})
    assert told == f"it needs Java 17 or 21, on the PATH or in JAVA_HOME; {java} is Java 11.0.2"
    java.unlink()
    assert why_not_started("", {}).endswith(f"JAVA_HOME={tmp_path} has no bin/java")


def test_a_second_interrupt_is_told_as_what_stopped_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), etl._reporting(Summary("orders", "available-now"), None):
        raise KeyboardInterrupt
    summary = json.loads(capsys.readouterr().out)
    assert (summary["ok"], summary["stopped"], summary["error"]) == (False, "SIGINT", None)


def test_what_spark_defaults_say_is_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: Store, volume: Path, file: Path
) -> None:
    text = "# a comment\nspark.master local[1]\nspark.ui.enabled=true\nspark.driver.extraJavaOptions: -Da=b\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    file.write_text(f'{FILE}[spark]\n"spark.ui.enabled" = false\n')
    assert conf_defaults() == {
        "spark.master": "local[1]",
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Da=b",
    }
    settings = local_settings(load_pipeline(file, str(volume)).spark)
    assert "spark.master" not in settings and settings["spark.ui.enabled"] == "false"
