"""A Kafka broker and Spark's connector for it, as JARs: for `make bench-peers`, and a test that is skipped without."""

import sys
from pathlib import Path

from spark_stream import jars

BROKER, BROKER_JAR = "org.apache.kafka:kafka_2.13:3.9.1", "kafka_2.13-3.9.1.jar"
CONNECTOR, CONNECTOR_JAR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "spark-sql-kafka-0-10_2.13-4.2.0.jar"
# The connector asks for a token provider of its own version, which Maven Central does not have.
TOKENS, TOKENS_JAR = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
)
IN_SPARK = ("org.apache.hadoop:hadoop-client-runtime", "org.apache.hadoop:hadoop-client-api")  # and large


def fetch(folder: Path) -> str | None:
    """Fill `folder`/broker and `folder`/connector; return None, or in one line why that was not possible."""
    broker, connector = folder / "broker", folder / "connector"
    if not (broker / BROKER_JAR).is_file():
        reason = jars.fetch(broker, [BROKER, TOKENS], BROKER_JAR, IN_SPARK)
        if reason:
            return reason
    if not (connector / CONNECTOR_JAR).is_file():
        without = (*IN_SPARK, TOKENS.rpartition(":")[0])
        reason = jars.fetch(connector, [CONNECTOR], CONNECTOR_JAR, without)
        if reason:
            return reason
        (connector / TOKENS_JAR).write_bytes((broker / TOKENS_JAR).read_bytes())
    return None


def main() -> int:
    folder = Path(__file__).resolve().parent.parent / ".venv" / "kafka-jars"
    reason = fetch(folder)
    if reason:
        print(f"Kafka's JARs cannot be fetched, so it is left out: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
