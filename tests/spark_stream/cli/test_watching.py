"""`--watch`: a report that is shown again, on a terminal in its own place, elsewhere below the former one."""

import json
import signal

import pytest

from spark_stream.cli.watching import CLEAR


@pytest.mark.parametrize(
    ("words", "head"),
    [(["stream", "report"], "name "), (["consumer", "report"], "stream "), (["cluster", "info"], "Store ")],
)
def test_reports_are_appended_until_interrupted(jstream, orders, words: list[str], head: str) -> None:
    orders.stream("ORDERS").add_consumer({"name": "billing"})
    process = jstream.start(*words, "--watch", "0.1")
    try:
        heads = 0
        while heads < 3:
            heads += process.stdout.readline().decode().startswith(head)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, b"")
    assert CLEAR.encode() not in rest


def test_a_store_that_goes_away_ends_it_with_an_error_and_json_is_a_document_each_time(jstream, orders) -> None:
    process = jstream.start("stream", "report", "--json", "--watch", "0.1")
    try:
        seen = b""
        while not seen.endswith(b"]\n[\n"):
            seen += process.stdout.readline()
        assert json.loads(seen.removesuffix(b"[\n"))[0]["config"]["name"] == "ORDERS"
        jstream.volume.rename(jstream.volume.with_name("elsewhere"))
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert err.startswith(b"error: ")


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_pause_that_is_none_is_refused(jstream, orders, seconds: str) -> None:
    outcome = jstream("stream", "report", "--watch", seconds)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--watch" in outcome.err
