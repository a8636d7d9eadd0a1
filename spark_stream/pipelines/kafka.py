"""Topics of Kafka as the source of a pipeline, read by Spark's own connector.

The view `messages` has, besides the columns of every message, `key`, `partition` and `msg_id`, which is
TOPIC/PARTITION/OFFSET: an id that no other message has. `stream` and `subject` are the topic, `sequence` the offset.
"""

from fnmatch import translate

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from datasource.values import parse_time_ns
from spark_stream.pipelines.config import Source, is_glob
from spark_stream.pipelines.toml import KAFKA_SCHEME

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
SCHEMA = "key BINARY, partition INT, msg_id STRING"  # of what a message has besides the other columns
_NS_PER_MS = 1_000_000


def read_topics(spark: SparkSession, source: Source) -> DataFrame:
    """Return the messages of the topics as a streaming DataFrame. Raises ConnectorMissingError."""
    reader = spark.readStream.format("kafka").options(**_options(source))
    try:
        rows = reader.load()
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND" or "find data source: kafka" in str(error):
            raise ConnectorMissingError(
                f'the session lacks Spark\'s connector for Kafka: below [spark], set "spark.jars.packages" = '
                f'"{CONNECTOR}:{spark.version}", or "spark.jars" to its files'
            ) from error
        raise
    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return rows.select(
        F.col("topic").alias("stream"),
        F.col("offset").alias("sequence"),
        F.col("topic").alias("subject"),
        "timestamp",
        "headers",
        F.col("value").alias("data"),
        "key",
        "partition",
        place.alias("msg_id"),
    )


class ConnectorMissingError(Exception):
    """The session has no connector for Kafka."""


def _options(source: Source) -> dict[str, str]:
    servers = ",".join(address.removeprefix(KAFKA_SCHEME) for address in source.volumes)
    options = {
        **source.options,
        "kafka.bootstrap.servers": servers,
        "includeHeaders": "true",
        "failOnDataLoss": str(source.fails_on_data_loss).lower(),
    }
    if any(map(is_glob, source.streams)):
        options["subscribePattern"] = "|".join(map(translate, source.streams))
    else:
        options["subscribe"] = ",".join(source.streams)
    if source.max_messages is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_messages)
    assert isinstance(source.start, str), source.start
    if source.start in ("", "earliest", "latest"):
        options["startingOffsets"] = source.start or "earliest"
    else:
        options["startingTimestamp"] = str(parse_time_ns("start", source.start) // _NS_PER_MS)
    return options
