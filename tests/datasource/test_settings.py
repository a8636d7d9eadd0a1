"""Settings of reads and writes: options that fit together, and those that do not."""

import pytest

from datasource.limits import Limits
from datasource.settings import ReadSettings, StreamReadSettings, WriteSettings

READ = {"path": "/store", "stream": "ORDERS"}
WRITE = {"path": "/store", "stream": "ORDERS"}


def test_read_defaults() -> None:
    settings = ReadSettings.parse(READ)
    assert settings == ReadSettings(paths=("/store",), streams=("ORDERS",))
    assert settings.fail_on_data_loss
    assert settings.verify


def test_read_takes_every_option_of_batches() -> None:
    settings = ReadSettings.parse(
        {
            **READ,
            "subject": "orders.*",
            "startingoffsets": '{"ORDERS": 5}',
            "endingtimestamp": "2026-11-21T12:00:00Z",
            "minpartitions": "4",
            "maxrecordsperpartition": "1000",
            "failondataloss": "false",
            "verify": "none",
            "locktimeout": "5s",
        }
    )
    assert settings.starting.of("ORDERS") == 5
    assert settings.ending_time_ns == 1_795_262_400_000_000_000
    assert (settings.min_partitions, settings.partition_rows_max) == (4, 1000)
    assert not settings.fail_on_data_loss
    assert not settings.verify
    assert settings.lock_timeout_s == 5


def test_missing_path_says_how_to_give_it_and_what_spark_does_to_tables() -> None:
    with pytest.raises(ValueError, match=r"option 'path' is missing.*CREATE TABLE.*WITH \(path") as refused:
        ReadSettings.parse({})
    assert "VIEW" not in str(refused.value), "a view is planned once, and sees no news"


def test_missing_stream_is_refused_for_messages_only() -> None:
    with pytest.raises(ValueError, match="option 'stream' is missing"):
        ReadSettings.parse({"path": "/store"})
    with pytest.raises(ValueError, match="option 'stream' is missing"):
        ReadSettings.parse({"path": "/store", "table": "last"})
    assert ReadSettings.parse({"path": "/store", "table": "streams"}).table == "streams"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"encryptionKey": "k"}, "option 'encryptionKey' is for layout=nats only"),
        ({"table": "event"}, "did you mean 'events'"),
        ({"table": "events", "subject": "a"}, "'subject' is for reading messages"),
        ({"table": "stream"}, "did you mean 'streams'"),
        ({"layout": "kafka"}, "'kafka' is not one of jstream, nats, stan"),
        ({"layout": "stan", "account": "A"}, "'account' is for layout=nats only"),
        ({"layout": "nats", "noCrc": "true"}, "'noCrc' is for layout=stan only"),
        ({"truncateBadEof": "false"}, "'truncateBadEof' is for layout=stan only"),
        ({"layout": "stan", "noCrc": "perhaps"}, "'noCrc'"),
        ({"layout": "stan", "verify": "none"}, "layout=stan checks every message.*'noCrc' reads on"),
        ({"layout": "stan", "table": "events"}, "'events' is for layout=jstream only"),
        ({"layout": "nats", "table": "last"}, "'last' is for layout=jstream only"),
        ({"layout": "nats", "consumer": "billing"}, "'consumer' is for layout=jstream only"),
        ({"table": "last", "consumer": "c"}, "'consumer': it is handed out all messages; with table=last"),
        ({"table": "streams", "startingOffsets": "earliest"}, "'startingOffsets' is for reading messages"),
        ({"account": "A"}, "'account' is for layout=nats only"),
        ({"startingOffsets": "consumer"}, "option 'consumer' is missing: 'startingOffsets' is 'consumer'"),
        ({"startingOffsets": "latest"}, "would make every batch read empty"),
        ({"endingOffsets": "earliest"}, "would make every batch read empty"),
        ({"startingOffsets": "beginning"}, "neither 'earliest', 'consumer' nor JSON"),
        ({"startingOffsets": '{"ORDERS": 0}'}, "neither a sequence"),
        ({"startingOffsets": '{"ORDERS": -1}'}, "neither a sequence"),
        ({"startingOffsets": '{"ORDERS": true}'}, "neither a sequence"),
        ({"startingOffsetsByTimestamp": '{"ORDERS": "soon"}'}, "is not a time"),
        ({"subject": "a..b"}, "not a subject filter"),
        ({"subject": "a.>.b"}, "not a subject filter"),
        ({"verify": "all"}, "not one of crc, none"),
    ],
)
def test_wrong_reads_are_refused_with_the_reason(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ReadSettings.parse({**READ, **options})


def test_write_takes_its_options() -> None:
    settings = WriteSettings.parse(
        {**WRITE, "subject": "orders.new", "compression": "zstd", "writerid": "etl", "batchid": "7"}
    )
    assert settings == WriteSettings(("/store",), "ORDERS", "orders.new", "zstd", "etl", "7")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "A,B"}, "not the name of one stream"),
        ({"stream": "A*"}, "not the name of one stream"),
        ({"subject": "orders.*"}, "not a subject that a message can carry"),
        ({"compression": "gzip"}, "not one of none, lz4, zstd"),
        ({"writerId": "etl"}, "option 'batchId' is missing"),
        ({"batchId": "7"}, "option 'writerId' is missing"),
        ({"writerId": " ", "batchId": "7"}, "option 'writerId'"),
        ({"writerId": "a\nb", "batchId": "7"}, "option 'writerId'"),
        ({"startingOffsets": "earliest"}, "for batch reads and streaming reads only"),
    ],
)
def test_wrong_writes_are_refused_with_the_reason(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        WriteSettings.parse({**WRITE, **options})


def test_streaming_write_has_a_writer_without_batches() -> None:
    settings = WriteSettings.parse_streaming({**WRITE, "writerId": "etl", "lockTimeout": "5s", "queryName": "q"})
    assert (settings.writer_id, settings.batch_id, settings.lock_timeout_s) == ("etl", None, 5.0)
    with pytest.raises(ValueError, match="'batchId' is for batch writes only"):
        WriteSettings.parse_streaming({**WRITE, "writerId": "etl", "batchId": "7"})


# --- streaming reads


def test_streaming_read_defaults() -> None:
    settings = StreamReadSettings.parse(READ)
    assert settings == StreamReadSettings(paths=("/store",), streams=("ORDERS",))
    assert settings.trigger_delay_max_s == 15 * 60
    assert settings.fail_on_data_loss


def test_streaming_read_takes_every_option() -> None:
    settings = StreamReadSettings.parse(
        {
            **READ,
            "subject": "orders.*",
            "startingoffsets": '{"ORDERS": 5}',
            "startingtimestamp": "2026-11-21T12:00:00Z",
            "startingoffsetsbytimestamp": '{"ORDERS": 5}',
            "consumer": "etl",
            "consumertakeover": "true",
            "maxmessagespertrigger": "1000",
            "maxbytespertrigger": "64m",
            "maxfilespertrigger": "3",
            "minoffsetspertrigger": "10",
            "maxtriggerdelay": "5m",
            "minpartitions": "4",
            "maxrecordsperpartition": "100",
            "failondataloss": "false",
            "verify": "none",
            "locktimeout": "5s",
        }
    )
    assert settings.limits == Limits(1000, 64 * 1024 * 1024, 3, 10)
    assert (settings.consumer, settings.consumer_takeover) == ("etl", True)
    assert settings.starting.of("ORDERS") == 5
    assert settings.bounds().option_of("ORDERS") == "startingTimestamp"
    assert settings.trigger_delay_max_s == 300
    assert not settings.fail_on_data_loss


@pytest.mark.parametrize("word", ["earliest", "Latest", " consumer "])
def test_streaming_read_starts_by_word(word: str) -> None:
    settings = StreamReadSettings.parse({**READ, "startingOffsets": word, "consumer": "etl"})
    assert settings.starting.everywhere == word.strip().lower()


LIMITS = ["maxOffsetsPerTrigger", "maxMessagesPerTrigger", "maxFilesPerTrigger", "minOffsetsPerTrigger"]


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", "1e3", "9" * 20])
@pytest.mark.parametrize("option", [*LIMITS, "maxBytesPerTrigger"])
def test_limits_that_are_no_numbers_from_1_on_are_refused_by_name(option: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"option '{option}': '{text}' is not a "):
        StreamReadSettings.parse({**READ, option: text})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": ""}, "option 'stream' is missing"),
        ({"maxOffsetsPerTrigger": "5", "maxMessagesPerTrigger": "5"}, "mean the same: give one of them"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "6 is more than option 'maxOffsetsPerTrigger', 5"),
        ({"maxBytesPerTrigger": "5x"}, "'5x' is not a number of bytes"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay': 'soon' is not a duration"),
        ({"lockTimeout": "1000001h"}, "option 'lockTimeout': '1000001h' is too long, the most is 1000000h"),
        ({"startingOffsets": "beginning"}, "neither 'earliest', 'latest', 'consumer' nor JSON"),
        ({"startingOffsets": "consumer"}, "option 'consumer' is missing: 'startingOffsets' is 'consumer'"),
        ({"consumerTakeover": "true"}, "option 'consumer' is missing: 'consumerTakeover'"),
        ({"consumer": "e t l"}, "option 'consumer': 'e t l' is not 1 to 128 of the characters"),
        ({"consumer": ""}, "option 'consumer': ''"),
        ({"endingOffsets": "latest"}, "'endingOffsets' is for batch reads only; this is one of the streaming reads"),
        ({"table": "streams"}, "'table' is for batch reads only"),
        ({"layout": "nats"}, "'layout' is for batch reads only"),
        ({"writerId": "x"}, "'writerId' is for batch writes and streaming writes only"),
        ({"subject": "a..b"}, "not a subject filter"),
    ],
)
def test_wrong_streaming_reads_are_refused_with_the_reason(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StreamReadSettings.parse({**READ, **options})
