"""Pages with pipelines (OF_PIPELINES in test_documentation.py): their files are written, their commands run, in order.

Blocks `sh` are commands, each of which must end with 0, or with the exit code that its comment ends with. Blocks `toml`
and `py` that begin with a comment are files of that name. A block `text` ends what the command before it prints.
"""

import importlib.util
import json
import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_stream.cli.app import app
from storage_core import Store

pytestmark = [pytest.mark.spark, pytest.mark.delta]

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"^```(sh|toml|py|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exit code (\d)$")


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Write the files and run the commands of a page in the current folder; return what each printed on stdout."""
    printed: dict[str, str] = {}
    shown = ""
    for kind, text in BLOCK.findall(page.read_text()):
        name = re.match(r"# (\S+\.(?:toml|py))\n", text)
        if kind == "text":
            assert shown.rstrip().endswith(text.rstrip()), f"{page.name}: printed:\n{shown}\non the page:\n{text}"
        elif kind != "sh":
            assert name, text
            Path(name[1]).write_text(text)
        else:
            for line in text.splitlines():
                printed[line], shown = run_line(line, monkeypatch, capsys)
    return printed


def run_line(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Run a command line; return what it printed on stdout, and on both outputs."""
    before, _, command = line.rpartition(" | ")
    stdin = shlex.split(before)[1].encode().decode("unicode_escape") if before else ""
    program, *words = shlex.split(command, comments=True)
    if program == "export":
        monkeypatch.setenv(*words[0].split("="))
    elif program == "rm":
        shutil.rmtree(words[-1])
    elif program == "python":
        capsys.readouterr()
        runpy.run_path(words[0], run_name="__main__")
        printed = capsys.readouterr().out
        return printed, printed
    else:
        assert program == "jstream", line
        done = CliRunner().invoke(app, words, input=stdin)
        said = EXIT_CODE.search(line)
        assert done.exit_code == (int(said[1]) if said else 0), (line, done.output)
        return done.stdout, done.output
    return "", ""


@pytest.fixture
def place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delta_spark: SparkSession,
    make_active: Callable[[SparkSession], None],
) -> Path:
    make_active(delta_spark)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JSTREAM_ETL", raising=False)
    return tmp_path


def test_the_guide_does_what_it_says_down_to_the_change_feed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], delta_spark: SparkSession
) -> None:
    printed = run_page(DOCS / "guide" / "etl.md", monkeypatch, capsys)
    first = json.loads(printed["jstream etl run conf/pipelines/orders.toml"])
    shown = json.loads(re.findall(r"^```json\n(.*?)^```", (DOCS / "guide" / "etl.md").read_text(), re.M | re.S)[0])
    varies = ("started", "duration_s", "query")
    assert {**first, **dict.fromkeys(varies)} == {**shown, **dict.fromkeys(varies)}
    assert "Jstream-Reason: payload is not JSON" in printed["jstream stream view ORDERS_DEAD"]
    gross = printed["jstream etl run gross.toml"]
    assert gross.splitlines()[:2] == ["sequence  order_id  gross", "       1  o1        387.5"]
    publish_changes(place, delta_spark)


def publish_changes(place: Path, spark: SparkSession) -> None:
    """Change a real table twice, publish its changes after each, and the first ones again, as after a kill."""
    spec = importlib.util.spec_from_file_location("change_feed", place / "change_feed.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = str(place / "feed")
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id INT, n INT) USING delta TBLPROPERTIES (delta.enableChangeDataFeed=true)"
    )
    with Store.open("shop") as store:
        stream = store.add_stream({"name": "CHANGES", "subjects": ["changes.*"]})
        arguments = (spark, table, str(place / "shop"), "CHANGES", str(place / "feed-state"))
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 10)")
        module.publish_changes(*arguments).awaitTermination()
        for file in ("0", ".0.crc"):
            (place / "feed-state" / "commits" / file).unlink()
        spark.sql(f"UPDATE delta.`{table}` SET n = 11")
        module.publish_changes(*arguments).awaitTermination()
        found = stream.read(columns=["subject", "data"]).read_all().to_pylist()
    assert [(one["subject"], json.loads(one["data"])) for one in found] == [
        ("changes.insert", {"id": 1, "n": 10}),
        ("changes.update_postimage", {"id": 1, "n": 11}),
    ]


def test_windows_and_totals_are_what_the_page_says(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], delta_spark: SparkSession
) -> None:
    run_page(DOCS / "guide" / "windows.md", monkeypatch, capsys)
    (row,) = delta_spark.read.format("delta").load(str(place / "tables/sales")).collect()
    assert (f"{row['start']:%H:%M}", row["country"], row["sales"], row["amount"]) == ("12:00", "DE", 2, 12)
    totals = delta_spark.read.format("delta").load(str(place / "tables/countries")).collect()
    assert [tuple(row) for row in totals] == [("DE", 21)]


def test_dead_letters_are_what_the_page_says_and_replayed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], delta_spark: SparkSession
) -> None:
    page = DOCS / "guide" / "dead-letters.md"
    printed = run_page(page, monkeypatch, capsys)
    table = re.findall(r"^\| `(.*?)` \| 1 \| (\d) \| (.*?) \| (.*?) \|$", page.read_text(), re.M)
    shown = [re.split(r" {2,}", line.strip()) for line in printed["jstream etl letters orders.toml"].splitlines()[1:]]
    assert [(kind, newest, source, reason) for kind, _, _, _, newest, source, reason in shown] == table
    rows = delta_spark.read.format("delta").load(str(place / "tables/orders")).orderBy("sequence").collect()
    assert [tuple(row) for row in rows] == [(1, "o1", 3.0), (2, "o2", 2.5)]
    with Store.open("shop") as store:
        assert store.stream("ORDERS_DEAD").read(columns=["data"]).read_all()["data"].to_pylist() == [b"not an order"]


def test_the_commands_for_schedulers_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_page(DOCS / "scheduling.md", monkeypatch, capsys)
    assert json.loads(printed["jstream etl run conf/pipelines/orders.toml --metrics-textfile orders.prom"])["ok"]
    assert "jstream_etl_last_run_success" in Path("orders.prom").read_text()


def test_the_first_hour_is_as_its_page_says(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_page(DOCS / "guide" / "first-hour.md", monkeypatch, capsys)
    summary = json.loads(printed["jstream etl run hours.toml"].splitlines()[-1])
    assert (summary["rows_in"], summary["rows_late"], summary["ok"]) == (10_000, 0, True)
    assert 'jstream_consumer_lag_messages{consumer="hours"' in Path("shop.prom").read_text()
