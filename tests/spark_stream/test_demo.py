"""The main job as `make demo` runs it, and what it says when counts do not add up."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from spark_stream.demo import folder
from spark_stream.demo.page import page
from spark_stream.demo.report import Report
from spark_stream.pipelines.config import load_pipeline

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "tests" / "data" / "nats-orders"


def demo(*words: str, cwd: Path, module: str = "spark_stream.demo") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.spark
def test_demo_takes_the_jetstream_store_to_a_table_and_its_counts_add_up(tmp_path: Path) -> None:
    output = tmp_path / "with space" / "demo"
    done = demo("--source", str(SOURCE), "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "All counts add up." in done.stdout
    assert "WRONG" not in done.stdout
    for fact in (
        "0 of 3 copies are whole, nothing lost",
        "read by Spark from the three nodes together: 6,011",
        "in the stream after a second import: 6,011",
        "consumer billing came along: it stands at 3,303, and 732 payments follow",
        "rows in the table: 6,011",
        "dead letters: 1",
        "the dead letter says why and where: payload is not JSON, sequence 6015",
        "disk-2    6,012 missing",
        "all copies are current, with equal digests",
        "read by the second run: 25",
        "different sequences among them: 6,036",
        "event rejoined: disk-2, from missing to current",
        "the amounts are those of what the client got",
    ):
        assert fact in done.stdout, fact
    assert (output / "report.txt").read_text().strip() in done.stdout
    assert [node.is_dir() for node in folder.nodes(output)] == [True, True, True]
    assert load_pipeline(output / folder.PIPELINE).source.volumes == list(map(str, folder.volumes(output)))
    written = (output / "report.html").read_text()
    # Before and after; the nodes, the volumes after the import, in between and at the end; and the pipeline's lag.
    assert written.count("<svg xmlns") == 7
    for number, words in (("100 %", "recovered"), ("0", "lost"), ("6,036", "rows in the table")):
        assert re.search(rf"<b>{number}</b> .*{words}", written), number
    assert "All counts add up." in written
    assert "http" not in written.replace("http://www.w3.org/2000/svg", "")  # one file that needs no other


@pytest.mark.soak
def test_demo_runs_on_a_cluster_while_a_bucket_is_emptied(tmp_path: Path) -> None:
    done = demo("--output", str(tmp_path / "demo"), cwd=tmp_path, module="spark_stream.demo.cluster")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for fact in ("read by the pipeline: 6,011", "different ones among them: 1,932", "the copies agree"):
        assert fact in done.stdout, fact
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "whatever it started has ended"


def test_the_nodes_that_the_package_carries_are_those_of_the_tests(tmp_path: Path) -> None:
    folder.unpack_nodes(tmp_path)
    assert files_of(tmp_path / "nodes") == files_of(SOURCE / "store")


def files_of(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_demo_without_its_source_says_what_to_do(tmp_path: Path) -> None:
    done = demo(cwd=tmp_path)
    assert done.returncode == 2
    assert "error: tests/data/nats-orders is not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_count_that_is_not_what_it_must_be_is_shown_and_fails_the_report() -> None:
    shown = io.StringIO()
    report = Report(Console(file=shown, width=100))
    report.step("counting")
    report.count("read", 10, 10, "what was written")
    assert report.verdict == "All counts add up."
    report.count("in the stream", 9, 10, "what was read")
    report.summary()
    assert not report.ok
    assert "WRONG in the stream: 9: must be 10, what was read" in shown.getvalue()
    assert "in the stream   WRONG 9       10  what was read" in shown.getvalue()
    assert "Something does not add up" in shown.getvalue()
    written = page(report, "A <report>")
    assert '<p class="verdict wrong">Something does not add up' in written
    assert '<td class="number wrong">WRONG 9</td>' in written
    assert "A &lt;report&gt;" in written


def test_the_page_begins_with_the_story_if_it_holds_and_ends_with_what_to_type() -> None:
    report = Report(Console(file=io.StringIO()))
    report.step("counting")
    report.count("read", 10, 10, "what was written")
    report.begin_page("Ten were <saved>.", [("10", "messages"), ("0", "lost")])
    written = page(report, "Saved")
    order = ["Ten were &lt;saved&gt;.", "<b>10</b> messages", "<b>0</b> lost", "All counts add up.", "1. counting",
             "<details>", "<code>jstream drift</code>"]  # fmt: skip
    assert sorted(order, key=written.index) == order
    report.count("in the stream", 9, 10, "what was read")
    wrong = page(report, "Saved")
    assert "Ten were" not in wrong and "<details open>" in wrong
