"""A standard output that was closed: what a command prints for others fails, what it did is not called a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLOSING = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def closed(jstream, *words: object) -> tuple[int, str]:
    """Run a command whose standard output was closed before it began; return its exit code and what it complains of."""
    command = [sys.executable, "-c", CLOSING, "-m", "spark_stream.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(jstream.volume)}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=60, check=False)
    return done.returncode, done.stderr.decode()


PRODUCTS = [
    ("stream", "view", "ORDERS"),
    ("stream", "view", "ORDERS", "--raw"),
    ("stream", "get", "ORDERS", 1),
    ("stream", "get", "ORDERS", 1, "--json"),
    ("stream", "ls"),
    ("stream", "info", "ORDERS", "--json"),
    ("stream", "subjects", "ORDERS"),
    ("export", "ORDERS", "-"),
    ("sub", ">", "--all", "--count", 1),
    ("store", "info"),
    ("metrics",),
]


@pytest.mark.parametrize("words", PRODUCTS, ids=lambda words: " ".join(map(str, words)))
def test_what_is_printed_for_others_fails(jstream, orders, words: tuple[object, ...]) -> None:
    code, complaint = closed(jstream, *words)
    assert code == 1
    *_, last = complaint.splitlines()  # `sub` says before what it follows
    assert last.startswith("error: standard output: ")


@pytest.mark.parametrize("style", ["--raw", "--json", ""])
def test_messages_that_nobody_saw_are_not_acknowledged(jstream, orders, style: str) -> None:
    stream = orders.stream("ORDERS")
    consumer = stream.add_consumer({"name": "c"})
    code, _ = closed(jstream, "consumer", "next", "ORDERS", "c", "--count", 4, *filter(None, [style]))
    assert code == 1
    assert consumer.info()["ack_floor"]["stream_seq"] == 0
    assert consumer.info()["num_ack_pending"] + consumer.info()["num_pending"] == 4


def test_what_was_done_is_no_failure(jstream, orders) -> None:
    stream = orders.stream("ORDERS")
    last = stream.info()["state"]["last_seq"]
    assert closed(jstream, "pub", "orders.new", "x") == (0, "")
    assert stream.info()["state"]["last_seq"] == last + 1
    assert closed(jstream, "stream", "add", "NEXT")[0] == 0
    assert "NEXT" in orders.streams()
