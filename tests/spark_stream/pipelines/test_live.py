"""Pipelines that read running NATS servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import create_stream, fill, frame, live_server
from pyspark.sql import SparkSession

from spark_stream.pipelines.config import Pipeline
from spark_stream.pipelines.errors import DefinitionError

SOURCE = '[source]\nstore = "nats://localhost:1"\nstream = "ORDERS"\n'


def test_pipeline_reads_a_server_and_keeps_bad_messages(
    etl: Any, spark: SparkSession, make_active: Callable[[SparkSession], None], tmp_path: Path
) -> None:
    make_active(spark)
    config = 'authorization { user: "ann", password: "x" }'
    with live_server(tmp_path / "server", config=config) as server:
        with server.connect(user="ann", password="x") as connection:
            create_stream(connection, "ORDERS", subjects=["orders.>"])
            good = [frame("orders.new", b'{"id": "o%d", "amount": %d}' % (number, number)) for number in range(50)]
            fill(connection, "ORDERS", [*good, frame("orders.new", b"no JSON")])
        etl.define('kind = "parquet"\npath = "table"', "max_messages = 20", letters=True)
        text = etl.file.read_text().replace('store = "volume"', f'store = "{server.url}"')
        text = text.replace("[payload]", '[source.options]\nnatsUser = "ann"\nnatsPassword = "x"\n[payload]')
        etl.file.write_text(text.replace('stream = "DEAD"', 'stream = "DEAD"\nstore = "volume"'))
        summary = etl.run()
        assert (summary["rows_in"], summary["rows_dead"], summary["to"]) == (51, 1, {"ORDERS": 52})
        rows = spark.read.parquet(etl.table).collect()
        assert sorted((row.sequence, row.id, row.amount) for row in rows) == [
            (number + 1, f"o{number}", number) for number in range(50)
        ]
        assert [data for data, _ in etl.letters()] == [b"no JSON"]
        (stream,) = etl.status()["streams"]
        assert (stream["stream"], stream["position"], stream["end"], stream["lag"]) == ("ORDERS", 52, 52, 0)
        assert "a backfill reads a store" in etl.fail("--from", "1", "--to", "5", verb="backfill")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (f'{SOURCE}lock_timeout = "5s"\n[sink]\nkind = "console"', "source.lock_timeout"),
        (f'{SOURCE}max_blocks = 5\n[sink]\nkind = "console"', "source.max_blocks"),
        (f'{SOURCE}[source.options]\nuser = "a"\n[sink]\nkind = "console"', "source.options.user"),
        (f'{SOURCE}[sink]\nkind = "jstream"\nstore = "nats://localhost:1"\nstream = "A"', "sink.store"),
        (f'{SOURCE}[sink]\nkind = "jstream"\nstream = "A"', "sink.store"),
        ('[source]\nstore = "nats://u:p@h"\nstream = "A"\n[sink]\nkind = "console"', "natsUser"),
        (
            '[source]\nstore = "volume"\nstream = "A"\noptions = { natsUser = "a" }\n[sink]\nkind = "console"',
            "source.options",
        ),
    ],
)
def test_keys_that_do_not_fit_a_server_are_refused(pipeline: Callable[..., Pipeline], tables: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        pipeline(tables)


def test_server_stands_in_place_of_volumes(tmp_path: Path, pipeline: Callable[..., Pipeline]) -> None:
    made = pipeline('[source]\nstore = "nats://a,tls://b:4333"\nstream = "A"\n[source.options]\nnatsTlsFirst = true')
    assert made.source.volumes == ["nats://a:4222", "tls://b:4333"]
    assert made.source.options == {"natsTlsFirst": "true"}
