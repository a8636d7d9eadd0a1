"""What lies beside a checkpoint: the lock and whom it names, records, and what Spark's own files say."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_stream.pipelines import state as pipeline_state
from spark_stream.pipelines.errors import CheckpointError, CheckpointHeldError
from spark_stream.pipelines.state import PipelineState, read_checkpoint
from storage_core.paths import place
from storage_core.store.consumers.leases import EXPIRES_S
from storage_core.store.environment import REAL

HOLD = """
import sys
from spark_stream.pipelines.state import PipelineState
from storage_core.store.consumers import leases
leases.RENEW_S = 0.1
with PipelineState(sys.argv[1]).lock("etl run"):
    print("held", flush=True)
    sys.stdin.read()
"""

# Notes two things, and is stopped in between.
STEPS = """
import os, signal, sys
from spark_stream.pipelines.errors import PipelineError
from spark_stream.pipelines.state import PipelineState
from storage_core.store.consumers import leases
leases.RENEW_S = 0.05
state = PipelineState(sys.argv[1])
try:
    with state.lock("etl run"):
        state.write("state.json", {"by": "the first"})
        os.kill(os.getpid(), signal.SIGSTOP)
        state.write("state.json", {"by": "the first, once more"})
except PipelineError as error:
    print(error.code, error)
"""


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    return PipelineState(str(tmp_path / "check" / "orders"))


def test_the_second_run_is_told_who_holds_the_checkpoint_until_that_one_is_dead(state: PipelineState) -> None:
    assert state.owner() == ""
    command = [sys.executable, "-c", HOLD, str(state.checkpoint)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointHeldError) as held, state.lock("etl run"):
            raise AssertionError("two runs at once")
        assert held.value.checkpoint == str(state.checkpoint)
        who = rf"etl run, process {process.pid} on {os.uname().nodename}, since 20\d\d-.*Z"
        assert re.fullmatch(who, held.value.owner)
        assert f"process {process.pid} on" in state.owner()
        process.kill()
    with state.lock("etl run"):
        assert f"process {os.getpid()} on" in state.owner()
    assert state.owner() == ""


def test_a_checkpoint_has_one_lock_by_whatever_link_it_is_reached(state: PipelineState, tmp_path: Path) -> None:
    state.checkpoint.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(state.checkpoint)
    other = PipelineState(str(link))
    with state.lock("etl run"), pytest.raises(CheckpointHeldError), other.lock("etl run"):
        raise AssertionError("two runs at once")


def test_a_record_is_written_whole_and_a_damaged_one_is_named(state: PipelineState) -> None:
    assert state.read("state.json") is None
    state.write("state.json", {"a": 1})
    state.write("state.json", {"a": 2})
    assert state.read("state.json") == {"a": 2}
    assert os.listdir(state.folder) == ["state.json"]
    (state.folder / "state.json").write_text('{"a"')
    with pytest.raises(CheckpointError) as damaged:
        state.read("state.json")
    assert damaged.value.code == "JSTREAM_CHECKPOINT"
    assert damaged.value.fields == {
        "checkpoint": str(state.checkpoint), "file": str(state.folder / "state.json"),
    }  # fmt: skip


def checkpoint(folder: Path, offsets: dict[int, object], commits: list[int]) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"5f0c"}')
    for batch, offset in offsets.items():
        (folder / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps(offset))
        (folder / "offsets" / f".{batch}.crc").write_text("")
    for batch in commits:
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    return folder


def test_a_checkpoint_says_what_is_planned_and_what_is_done(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "none") is None
    order = {"incarnation": "5f", "sequence": 101}
    ends = {9: {"ORDERS": order}, 10: {"ORDERS": {"sequence": 201}, "NEW": {"sequence": 5}}}
    found = read_checkpoint(checkpoint(tmp_path / "two", ends, [9]))
    assert found is not None
    assert (found.query_id, found.batch_planned, found.batch_done) == ("5f0c", 10, 9)
    assert (found.done, found.incarnations) == ({"ORDERS": 101}, {"ORDERS": "5f"})
    fresh = read_checkpoint(checkpoint(tmp_path / "fresh", {}, []))
    assert fresh is not None and (fresh.batch_planned, fresh.done) == (-1, {})


def test_checkpoint_in_an_object_store_has_a_lease_and_records_beside_it(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in s3_options.items():
        monkeypatch.setenv(key.upper(), value)
    bucket = buckets[0].split("/")[2]
    state = PipelineState(f"s3a://{bucket}/check/orders/")
    assert state.owner() == "" and state.offsets() is None and state.runs() == []
    assert state.dead_letter_checkpoint == f"s3a://{bucket}/check/orders.etl/dead-letters"
    command = [sys.executable, "-c", HOLD, f"s3://{bucket}/check/orders"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointHeldError) as held, state.lock("etl run"):
            raise AssertionError("two runs at once")
        assert f"process {process.pid} on {os.uname().nodename}" in held.value.owner
        assert f"process {process.pid} on" in state.owner()
        process.kill()
    with state.lock("etl run"):
        assert f"process {os.getpid()} on" in state.owner()
        state.add_run({"number": 1})
        state.add_run({"number": 2})
    assert state.owner() == ""
    assert state.runs() == [{"number": 1}, {"number": 2}]
    beside = s3_root / bucket / "check" / "orders.etl"
    assert {path.name for path in beside.rglob("*") if path.is_file()} == {"runs.json", "etl-2.lease"}
    (beside / "runs.json").write_text("[")
    with pytest.raises(CheckpointError) as damaged:
        state.runs()
    assert damaged.value.fields["file"] == f"s3://{bucket}/check/orders.etl/runs.json"
    checkpoint(s3_root / bucket / "check" / "orders", {9: {"ORDERS": {"sequence": 101}}}, [9])
    found = read_checkpoint(place(f"s3a://{bucket}/check/orders"))
    assert found is not None and (found.query_id, found.batch_done, found.done) == ("5f0c", 9, {"ORDERS": 101})


def test_a_run_that_was_stopped_takes_no_further_step_beside_its_successor(
    buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in s3_options.items():
        monkeypatch.setenv(key.upper(), value)
    now = [0.0]
    elsewhere = replace(
        REAL, monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s), lock_domain=lambda: "another boot"
    )
    monkeypatch.setattr(pipeline_state, "REAL", elsewhere)
    bucket = buckets[0].split("/")[2]
    checkpoint = f"s3://{bucket}/check/orders"
    command = [sys.executable, "-c", STEPS, checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            successor = PipelineState(checkpoint)
            with successor.lock("etl run"):
                assert now[0] >= EXPIRES_S and successor.read("state.json") == {"by": "the first"}
                successor.write("state.json", {"by": "its successor"})
                process.send_signal(signal.SIGCONT)
                said, _ = process.communicate(timeout=120)
                assert said.startswith("JSTREAM_CHECKPOINT_LOST") and f"process {os.getpid()} on " in said
                assert successor.read("state.json") == {"by": "its successor"}
                successor.check()
        finally:
            process.kill()


def test_offsets_of_another_source_are_told_as_such(tmp_path: Path) -> None:
    place = tmp_path / "files"
    with pytest.raises(CheckpointError) as told:
        read_checkpoint(checkpoint(place, {0: {"logOffset": 5}}, [0]))
    assert told.value.fields == {"checkpoint": str(place), "file": str(place / "offsets" / "0")}
