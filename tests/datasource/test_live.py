"""Batch reads of a running server by Spark."""

from collections.abc import Iterator

import pytest
from harness.live_server import LiveServer, create_stream, fill, frame, live_server, numbered
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as F

from datasource.options import READ, check_options
from datasource.settings import ReadSettings, StreamReadSettings, WriteSettings

PASSWORD = "s3cret-of-the-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    config = f'authorization {{ user: "ann", password: "{PASSWORD}" }}'
    with live_server(tmp_path_factory.mktemp("nats") / "server", config=config) as server:
        with server.connect(user="ann", password=PASSWORD) as connection:
            create_stream(connection, "A")
            create_stream(connection, "B")
            fill(connection, "A", numbered("A", 5_000))
            fill(connection, "B", numbered("B", 20))
            fill(connection, "B", [frame("B.h", "gr\u00fcn".encode(), [("K", b"v"), ("K", b"w")])])
            durable = {"durable_name": "reader", "ack_policy": "explicit"}
            connection.request("CONSUMER.DURABLE.CREATE", "B", "reader", body={"stream_name": "B", "config": durable})
        yield server


def reader(spark: SparkSession) -> DataFrameReader:
    return spark.read.format("jstream").option("natsUser", "ann").option("natsPassword", PASSWORD)


def test_streams_are_read_with_ranges_columns_and_tables(spark: SparkSession, server: LiveServer) -> None:
    everything = reader(spark).option("stream", "*").option("minPartitions", 3).load(server.url)
    assert everything.rdd.getNumPartitions() == 6
    counts = everything.groupBy("stream").agg(F.count("*"), F.countDistinct("sequence"), F.max("data"))
    assert {tuple(row)[:3] for row in counts.collect()} == {("A", 5_000, 5_000), ("B", 21, 21)}
    ranged = reader(spark).option("stream", "A,B").option("startingOffsets", '{"A": 4990, "B": 21}')
    ranged = ranged.option("endingOffsets", '{"A": 4993}').load(server.url)
    rows = {(row.stream, row.sequence): row for row in ranged.collect()}
    assert set(rows) == {("A", 4990), ("A", 4991), ("A", 4992), ("B", 21)}
    assert bytes(rows["A", 4990].data) == b"message 4989"
    assert [(pair.key, bytes(pair.value)) for pair in rows["B", 21].headers] == [("K", b"v"), ("K", b"w")]
    text = reader(spark).schema("sequence LONG, timestamp_ns LONG, data STRING").option("stream", "B")
    last = text.option("subject", "B.h").load(server.url).collect()
    assert [(row.sequence, row.data) for row in last] == [(21, "gr\u00fcn")]
    by_time = reader(spark).option("stream", "B").option("startingTimestamp", rows["B", 21].timestamp.isoformat())
    assert by_time.load(server.url).count() >= 1
    streams = reader(spark).option("table", "streams").load(server.url).collect()
    assert {(row.stream, row.messages, row.consumers) for row in streams} == {("A", 5_000, 0), ("B", 21, 1)}
    consumers = reader(spark).option("table", "consumers").load(server.url).collect()
    assert [(row.stream, row.consumer, row.is_durable) for row in consumers] == [("B", "reader", True)]


def test_names_of_the_connector_of_nats_are_taken(spark: SparkSession, server: LiveServer) -> None:
    options = {"nats.host": "127.0.0.1", "nats.port": str(server.port), "nats.stream.name": "B"}
    assert reader(spark).options(**options).load().count() == 21
    assert check_options({"nats.credential.file": "/a", "path": "nats://a"}, READ)["natsCreds"] == "/a"


def test_secrets_stand_in_no_plan_and_errors_name_the_stream(spark: SparkSession, server: LiveServer) -> None:
    frame = reader(spark).option("stream", "A").load(server.url)
    assert PASSWORD not in frame._jdf.queryExecution().toString()
    with pytest.raises((AnalysisException, PythonException), match=r"JSTREAM_STREAM_NOT_FOUND\] no stream 'C'"):
        reader(spark).option("stream", "C").load(server.url)
    wrong = spark.read.format("jstream").option("natsUser", "ann").option("natsPassword", "other").option("stream", "A")
    with pytest.raises((AnalysisException, PythonException), match=r"JSTREAM_LOGIN\].*Authorization Violation"):
        wrong.load(server.url)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "/a", "natsUser": "x"}, "option 'natsUser' is for running servers"),
        ({"path": "nats://a", "lockTimeout": "1s"}, "option 'lockTimeout' is for stores"),
        ({"path": "nats://a", "layout": "nats"}, "option 'layout' is for stores"),
        ({"path": "nats://a", "table": "damage"}, "running servers have messages, streams, consumers"),
        ({"path": "nats://a,/b"}, "'/b' is no address"),
        ({"path": "nats://u:p@a"}, "natsUser and natsPassword"),
        ({"nats.host": "a", "path": "nats://a"}, "mean the same"),
        ({"nats.port": "1"}, "unknown option 'nats.port'"),
    ],
)
def test_options_that_do_not_fit_running_servers_are_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ReadSettings.parse({"stream": "A", **options})


def test_login_is_kept_and_not_shown() -> None:
    options = {"path": "nats://a", "stream": "A", "natsToken": PASSWORD, "natsTlsFirst": "true", "natsDomain": "hub"}
    settings = ReadSettings.parse(options)
    assert (settings.login.token, settings.login.tls_first, settings.login.api) == (PASSWORD, True, "$JS.hub.API")
    assert PASSWORD not in repr(settings)


def test_what_running_servers_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'exactlyOnce' is for running servers"):
        WriteSettings.parse({"path": "/a", "stream": "A", "exactlyOnce": "none"})
    with pytest.raises(ValueError, match="'maxFilesPerTrigger' is for stores"):
        StreamReadSettings.parse({"path": "nats://a", "stream": "A", "maxFilesPerTrigger": "1"})
    assert StreamReadSettings.parse({"path": "nats://a", "stream": "A", "trigger": "availableNow"}).is_live
    with pytest.raises(ValueError, match="consumers of running servers only show"):
        StreamReadSettings.parse({"path": "nats://a", "stream": "A", "startingOffsets": "consumer", "consumer": "c"})
