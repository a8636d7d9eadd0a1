"""Pipelines from a few lines of TOML, a store with orders, and `jstream etl` in the session that tests share."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_stream.cli.app import app
from spark_stream.pipelines.config import Pipeline, load_pipeline
from storage_core import Store

Make = Callable[..., Pipeline]
SCHEMA = "id STRING NOT NULL, amount INT"
ORDERS = f"""
checkpoint = "checkpoint"
[source]
store = "volume"
stream = "ORDERS"
{{source}}
[payload]
format = "json"
schema = "{SCHEMA}"
[transform]
sql = "SELECT sequence, id, amount FROM messages"
[sink]
{{sink}}
"""
LETTERS = '[dead_letters]\nstream = "DEAD"\n'


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    """Makes a pipeline of tables given as text; a source and a sink are put in where none is given."""

    def make(*tables: str, name: str = "orders") -> Pipeline:
        text = "\n".join(tables)
        lines = ['checkpoint = "checkpoint"']
        if "[source]" not in text:
            lines += ["[source]", 'store = "volume"', 'stream = "ORDERS"']
        if "[sink]" not in text:
            lines += ["[sink]", 'kind = "console"']
        file = tmp_path / f"{name}.toml"
        file.write_text("\n".join([*lines, text]) + "\n")
        return load_pipeline(file)

    return make


@dataclass
class Etl:
    """A store with a stream ORDERS and one for dead letters, and a pipeline over it."""

    folder: Path
    store: Store

    @property
    def file(self) -> Path:
        return self.folder / "orders.toml"

    @property
    def table(self) -> str:
        return str(self.folder / "table")

    def define(self, sink: str, source: str = "", letters: bool = False) -> None:
        self.file.write_text(ORDERS.format(sink=sink, source=source) + (LETTERS if letters else ""))

    def publish(self, *amounts: int) -> None:
        """Publish one order for each amount, with the ids o0 to o4 in turn."""
        for amount in amounts:
            self.say(json.dumps({"id": f"o{amount % 5}", "amount": amount}).encode())

    def say(self, data: bytes) -> None:
        self.store.stream("ORDERS").publish("orders.new", data)

    def command(self, *words: object) -> tuple[int, str, str]:
        """Run `jstream etl` in this process; return its exit code and outputs."""
        found = CliRunner().invoke(app, ["etl", *map(str, words)])
        return found.exit_code, found.stdout, found.stderr

    def run(self, *words: object, verb: str = "run") -> dict[str, Any]:
        """Run the pipeline, which must end well; return its summary."""
        code, out, err = self.command(verb, self.file, *words)
        assert code == 0, (out, err)
        return self.summary(out)

    def summary(self, out: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def fail(self, *words: object, verb: str = "run", code: int = 1) -> str:
        """Run the pipeline, which must fail; return what it says on stderr."""
        found, out, err = self.command(verb, self.file, *words)
        assert found == code, (out, err)
        assert "Traceback" not in err
        return err

    def status(self) -> dict[str, Any]:
        code, out, err = self.command("status", self.file, "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def letters(self) -> list[tuple[bytes | None, dict[str, str]]]:
        """Return the data of each dead letter, and its headers."""
        found = self.store.stream("DEAD").read(columns=["headers", "data"]).read_all().to_pylist()
        return [(one["data"], {pair["key"]: pair["value"].decode() for pair in one["headers"]}) for one in found]

    def forget_commit(self) -> None:
        """Make Spark forget that its newest batch was finished, as a kill just before that was noted would."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.fixture
def etl(tmp_path: Path) -> Iterator[Etl]:
    with Store.create(tmp_path / "volume") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        store.add_stream({"name": "DEAD", "subjects": ["dead.orders"]})
        yield Etl(tmp_path, store)


@pytest.fixture
def delta_etl(etl: Etl, delta_spark: SparkSession, make_active: Callable[[SparkSession], None]) -> Etl:
    """The same, with the session that knows Delta as the one that commands find."""
    make_active(delta_spark)
    return etl
