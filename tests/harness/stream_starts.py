"""Where a streaming query begins, option by option: what its users know from Spark's Kafka source, and the consumer.

Streams ORDERS and ORDERS_EU have 10 messages each, at seconds 1 to 10 since 1970; consumer `etl` has acknowledged the
first five of ORDERS, and there is none of that name on ORDERS_EU.
"""

from typing import Any

import pyarrow as pa

from storage_core import Store

SECOND = 1_000_000_000
# name, options, the first sequence that is read of each stream
STARTS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("nothing", {"startingOffsets": None}, {"ORDERS": 11, "ORDERS_EU": 11}),
    ("earliest", {"startingOffsets": "Earliest"}, {"ORDERS": 1, "ORDERS_EU": 1}),
    ("latest", {"startingOffsets": "latest"}, {"ORDERS": 11, "ORDERS_EU": 11}),
    ("json, others latest", {"startingOffsets": '{"ORDERS": 4}'}, {"ORDERS": 4, "ORDERS_EU": 11}),
    (
        "json with words",
        {"startingOffsets": '{"ORDERS": "latest", "ORDERS_EU": "earliest"}'},
        {"ORDERS": 11, "ORDERS_EU": 1},
    ),
    (
        "time before offsets",
        {"startingOffsets": "earliest", "startingTimestamp": "1970-01-01T00:00:07Z"},
        {"ORDERS": 7, "ORDERS_EU": 7},
    ),
    ("time in ms", {"startingTimestamp": "6500"}, {"ORDERS": 7, "ORDERS_EU": 7}),
    ("time beyond the end", {"startingTimestamp": "2100-01-01"}, {"ORDERS": 11, "ORDERS_EU": 11}),
    (
        "time for all before times by stream",
        {"startingTimestamp": "7000", "startingOffsetsByTimestamp": '{"ORDERS": 3000}'},
        {"ORDERS": 7, "ORDERS_EU": 7},
    ),
    (
        "times by stream, then offsets",
        {"startingOffsets": '{"ORDERS_EU": 9}', "startingOffsetsByTimestamp": '{"ORDERS": 3000}'},
        {"ORDERS": 3, "ORDERS_EU": 9},
    ),
    (
        "times by stream, then the default",
        {"startingOffsets": None, "startingOffsetsByTimestamp": '{"ORDERS": 3000}'},
        {"ORDERS": 3, "ORDERS_EU": 11},
    ),
    ("new consumer", {"startingOffsets": None, "consumer": "new"}, {"ORDERS": 1, "ORDERS_EU": 1}),
    ("new consumer by word", {"startingOffsets": "consumer", "consumer": "new"}, {"ORDERS": 1, "ORDERS_EU": 1}),
    ("new consumer from latest", {"startingOffsets": "latest", "consumer": "new"}, {"ORDERS": 11, "ORDERS_EU": 11}),
    ("consumer that is there", {"startingOffsets": None, "consumer": "etl"}, {"ORDERS": 6, "ORDERS_EU": 1}),
    ("consumer by word", {"startingOffsets": "consumer", "consumer": "etl"}, {"ORDERS": 6, "ORDERS_EU": 1}),
    (
        "offsets before the consumer",
        {"startingOffsets": '{"ORDERS": 3}', "consumer": "etl"},
        {"ORDERS": 3, "ORDERS_EU": 11},
    ),
    (
        "times before the consumer",
        {"startingOffsets": None, "startingOffsetsByTimestamp": '{"ORDERS": 9000}', "consumer": "etl"},
        {"ORDERS": 9, "ORDERS_EU": 1},
    ),
]


def put(store: Store, stream: str, count: int, times_ns: list[int] | None = None) -> None:
    """Append messages to ORDERS or ORDERS_EU."""
    subject = {"ORDERS": "orders.new", "ORDERS_EU": "eu.new"}[stream]
    columns = {"subject": pa.array([subject] * count), "data": pa.array([b"order"] * count, pa.binary())}
    if times_ns is not None:
        columns["timestamp_ns"] = pa.array(times_ns, pa.int64())
    store.stream(stream).append(pa.table(columns))


def prepare(store: Store) -> None:
    """Fill the streams, which are there and empty."""
    times = [at * SECOND for at in range(1, 11)]
    for stream in ("ORDERS", "ORDERS_EU"):
        put(store, stream, 10, times)
    etl = store.stream("ORDERS").add_consumer({"name": "etl"})
    etl.ack(etl.fetch(5).column("sequence"))


def restarted(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a restart that would begin elsewhere, were it not for the checkpoint."""
    return {
        **options,
        "startingOffsets": "earliest",
        "startingTimestamp": None,
        "startingOffsetsByTimestamp": None,
    }
