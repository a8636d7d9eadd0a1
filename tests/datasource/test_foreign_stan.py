"""Reading a STAN store in place (`layout=stan`), against what the server itself returned."""

import base64
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import DataLossError, NotAStoreError, NotFoundError, UnsupportedVersionError

STORES = Path(__file__).resolve().parent.parent / "data" / "stan"


def served(case: str, name: str = "expected") -> list[dict[str, Any]]:
    """Return the messages that the server returned, by channel and sequence."""
    with gzip.open(STORES / case / f"{name}.jsonl.gz", "rt") as lines:
        return sorted(map(json.loads, lines), key=lambda one: (one["channel"], one["seq"]))


def place(case: str) -> dict[str, str]:
    return {"path": str(STORES / case / "store"), "layout": "stan"}


def test_messages_are_those_that_the_server_returned(driver: Any) -> None:
    rows = driver.read(**place("basic")).to_pylist()
    found = [(row["stream"], row["sequence"], row["subject"], row["data"]) for row in rows]
    expected = [(one["channel"], one["seq"], base64.b64decode(one["data"])) for one in served("basic")]
    assert sorted(found) == [(channel, sequence, channel, data) for channel, sequence, data in expected]


def test_streams_offsets_and_times_choose_messages(driver: Any) -> None:
    options = {"stream": "foo", **place("basic")}
    offsets = {"startingOffsets": '{"foo": 15}', "endingOffsets": '{"foo": 25}'}
    assert driver.sequences(**options, **offsets) == list(range(15, 25))
    assert driver.sequences(**place("basic"), stream="l*,bar.baz") == [*range(1, 36), 1]
    assert driver.sequences(**place("basic"), subject="bar.*") == list(range(1, 36))
    cut_ms = -(-served("basic")[60]["time_ns"] // 1_000_000)
    later = [one["seq"] for one in served("basic") if one["channel"] == "foo" and one["time_ns"] >= cut_ms * 1_000_000]
    assert driver.sequences(**options, startingTimestamp=cut_ms) == later


@pytest.mark.parametrize("case", ["damaged-bitflip-index-kept", "damaged-bitflip-no-index"])
def test_bad_checksum_fails_the_read_unless_no_crc_asks_to_go_on(
    case: str, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"stream": "foo", **place(case)}
    for more in ({}, {"truncateBadEof": "true"}):
        with pytest.raises(
            DataLossError, match=r"sequence 11 is lost: (.|\n)*would have been(.|\n)*noCrc \(--no-crc\)"
        ):
            driver.read(**options, **more)
    with caplog.at_level(logging.WARNING, "jstream"):
        assert driver.sequences(**options, noCrc="true") == list(range(1, 71))
        assert (
            "as the options ask, the read continues: stream 'foo': the message with sequence 11 was read" in caplog.text
        )
        caplog.clear()
        assert driver.sequences(**options, failOnDataLoss="false") == [*range(1, 11), *range(12, 71)]
        assert "the read continues: stream 'foo': the message with sequence 11 is lost" in caplog.text


def test_unexpected_end_fails_the_read_unless_truncate_bad_eof_asks_to_go_on(
    driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"stream": "foo", **place("damaged-truncated-msgs")}
    for more in ({}, {"noCrc": "true"}):
        with pytest.raises(DataLossError, match=r"sequence 70 is lost: (.|\n)*truncateBadEof \(--truncate-bad-eof\)"):
            driver.read(**options, **more)
    with caplog.at_level(logging.WARNING, "jstream"):
        for _ in range(2):  # nothing is cut off, so reading twice is no harm
            assert driver.sequences(**options, truncateBadEof="true") == list(range(1, 70))
    assert "as the options ask, the read continues: stream 'foo': the message with sequence 70 is lost" in caplog.text


@pytest.mark.parametrize("case", ["basic", "damaged-bitflip-no-index", "damaged-truncated-msgs", "damaged-zero-tail"])
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_small_partitions_read_what_large_ones_do(
    case: str, limit: int, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"stream": "foo", **place(case), "noCrc": "true", "truncateBadEof": "true"}
    with caplog.at_level(logging.WARNING, "jstream"):
        assert driver.read(**options, maxRecordsPerPartition=limit) == driver.read(**options)
    wrong = [text for text in caplog.messages if "was read" in text or "is lost" in text]
    assert len(wrong) == (2 if case in ("damaged-bitflip-no-index", "damaged-truncated-msgs") else 0)  # once a read


@pytest.mark.parametrize("fail", ["true", "false"])
def test_encrypted_channel_is_refused(fail: str, driver: Any) -> None:
    with pytest.raises(UnsupportedVersionError, match="channel 'foo': its messages are encrypted"):
        driver.read(**place("encrypted"), failOnDataLoss=fail)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"stream": "fooo"}, NotFoundError, "no stream 'fooo' in the store; did you mean 'foo'"),
        ({"path": "/nowhere/at/all"}, NotAStoreError, "does not exist"),
        ({"layout": "nats"}, NotAStoreError, "no JetStream store"),
        ({"layout": "jstream", "stream": "foo"}, NotAStoreError, "option layout=stan reads it"),
        ({"startingOffsets": '{"NONE": 1}'}, ValueError, "stream 'NONE' is not among those"),
    ],
)
def test_wrong_reads_are_refused(options: dict[str, str], error: type[Exception], says: str, driver: Any) -> None:
    with pytest.raises(error, match=says):
        driver.read(**{**place("basic"), **options})
