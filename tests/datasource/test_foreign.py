"""Reading a JetStream store in place (`layout=nats`), against what the server itself returned."""

import base64
import gzip
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.sequences import expand

from datasource.foreign import ForeignPart
from storage_core.errors import DataLossError, NotAStoreError, NotFoundError
from storage_core.foreign import open_foreign
from storage_core.sequences import SequenceSet

STORES = Path(__file__).resolve().parent.parent / "data" / "nats"


def served(case: str) -> list[dict[str, Any]]:
    """Return the messages that the server returned."""
    with gzip.open(STORES / case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def place(case: str) -> dict[str, str]:
    return {"path": str(STORES / case / "store"), "layout": "nats"}


def only_stream(case: str) -> str:
    (name,) = open_foreign(STORES / case / "store").streams()
    return name


@pytest.mark.parametrize("case", ["plain-multiblock", "compacted-gaps", "s2-compressed", "headers-empty-unicode"])
def test_messages_are_those_that_the_server_returned(case: str, driver: Any) -> None:
    expected = served(case)
    rows = driver.read(stream=only_stream(case), **place(case)).to_pylist()
    assert [row["sequence"] for row in rows] == [one["seq"] for one in expected]
    assert [row["subject"] for row in rows] == [one["subject"] for one in expected]
    assert [row["data"] for row in rows] == [base64.b64decode(one["data"]) for one in expected]
    keys = [[header["key"] for header in row["headers"] or []] for row in rows]
    assert keys == [[key for key, _ in one["headers"] or []] for one in expected]


def test_partitions_are_split_and_bounded(driver: Any) -> None:
    expected = [one["seq"] for one in served("compacted-gaps")]
    options = {"stream": only_stream("compacted-gaps"), "maxRecordsPerPartition": 7, **place("compacted-gaps")}
    reader, partitions = driver.plan(**options)
    counts = [sum(batch.num_rows for batch in reader.read(one)) for one in partitions]
    assert max(counts) <= 7
    assert driver.sequences(**options) == expected


def test_ranges_by_offset_time_and_subject(driver: Any) -> None:
    expected = served("plain-multiblock")
    options = {"stream": only_stream("plain-multiblock"), **place("plain-multiblock")}
    assert driver.sequences(
        **options, startingOffsets=json.dumps({options["stream"]: 5}), endingOffsets=json.dumps({options["stream"]: 9})
    ) == [5, 6, 7, 8]
    middle = expected[len(expected) // 2]["time_ns"]
    cut_ms = -(-middle // 1_000_000)
    later = [one["seq"] for one in expected if one["time_ns"] >= cut_ms * 1_000_000]
    assert driver.sequences(**options, startingTimestamp=cut_ms) == later
    beyond = json.dumps({options["stream"]: 10**9})  # counts for nothing beside the time
    assert driver.sequences(**options, startingTimestamp=cut_ms, startingOffsets=beyond) == later
    subject = expected[0]["subject"]
    assert driver.sequences(**options, subject=subject) == [one["seq"] for one in expected if one["subject"] == subject]


def test_damage_is_not_served_and_may_be_passed(driver: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = "damaged-bitflip-index-kept"
    options = {"stream": only_stream(case), **place(case)}
    with pytest.raises(DataLossError, match=r"sequence.* lost: .*\.blk at offset_bytes"):
        driver.read(**options)
    with caplog.at_level(logging.WARNING, "jstream"):
        rows = driver.sequences(**options, failOnDataLoss="false")
    assert "failOnDataLoss=false, the read continues" in caplog.text
    assert set(rows) >= {one["seq"] for one in served(case)}


def test_store_is_not_written(driver: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(STORES / "plain-multiblock" / "store", copy)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    driver.read(stream="*", path=str(copy), layout="nats")
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_store_in_use_and_an_unknown_configuration_are_warned_of(
    driver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(STORES / "consumers" / "store", tmp_path / "copy")
    next(tmp_path.rglob("streams/CONS/meta.sum")).unlink()
    hold = "import sys; kept = open(sys.argv[1], 'r+'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(next(tmp_path.rglob("1.blk")))]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        caplog.at_level(logging.WARNING, "jstream"),
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        assert driver.sequences(path=str(tmp_path / "copy"), layout="nats") == list(range(1, 61))
        holder.communicate()
    assert f"process {holder.pid} (" in caplog.text
    assert "the store is in use" in caplog.text
    assert "stream 'CONS': its limits are unknown" in caplog.text


@pytest.mark.parametrize("fail", ["true", "false"])
def test_executor_that_does_not_see_the_store_says_so(fail: str, driver: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(STORES / "plain-multiblock" / "store", copy)
    reader, partitions = driver.plan(stream="*", path=str(copy), layout="nats", failOnDataLoss=fail)
    copy.rename(tmp_path / "not mounted here")
    with pytest.raises(NotFoundError, match="copy cannot be seen on .*every executor must see the store"):
        list(reader.read(partitions[0]))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"stream": "NONE"}, NotFoundError, "no stream 'NONE' in the store"),
        ({"stream": "*", "account": "OTHER"}, NotFoundError, "account 'OTHER' has no streams"),
        ({"stream": "*", "path": "/nowhere/at/all"}, NotAStoreError, "does not exist"),
        ({"stream": "*", "verify": "none"}, ValueError, "layout=nats checks every message"),
        ({"stream": "*", "table": "events"}, ValueError, "'events' is for layout=jstream only"),
        ({"stream": "*", "startingOffsets": '{"NONE": 1}'}, ValueError, "stream 'NONE' is not among those"),
        (
            {"stream": "*", "startingTimestamp": "2030-01-01", "endingTimestamp": "2029-01-01"},
            ValueError,
            "option 'startingTimestamp' is later than option 'endingTimestamp'",
        ),
    ],
)
def test_wrong_reads_are_refused(options: dict[str, str], error: type[Exception], says: str, driver: Any) -> None:
    with pytest.raises(error, match=says):
        driver.read(**{**place("plain-multiblock"), **options})


@pytest.mark.parametrize("case", ["plain-multiblock", "compacted-gaps", "deletes-erase"])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_split_parts_show_what_the_whole_shows(case: str, limit: int) -> None:
    for part in open_foreign(STORES / case / "store").plan():
        parts = ForeignPart(part).split(limit)
        shown = [_shown(one) for one in parts]
        assert sum(shown, []) == _shown(ForeignPart(part))
        assert [len(one) for one in shown] == [one.row_count for one in parts]
        assert all(len(one) <= limit for one in shown)


def _shown(one: ForeignPart) -> list[int]:
    whole = SequenceSet.from_ranges([(one.part.first, one.part.end)])
    return expand(whole.difference(SequenceSet.decode(one.part.removed)))
