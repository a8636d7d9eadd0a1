"""`jstream` with a user at a terminal: it asks before it destroys, turns pages, and draws tables."""

import codecs
import gzip
import json
import os
import pty
import re
import signal
from pathlib import Path

import pytest

from spark_stream.cli.watching import CLEAR
from storage_core.foreign.nats.index import highwayhash_of

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"


class Terminal:
    """A process whose standard streams are a terminal that this test reads and types on."""

    def __init__(self, jstream, *words: object, columns: int = 80, **variables: str) -> None:
        self._descriptor, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = jstream.start(*words, TERM="xterm", COLUMNS=str(columns), LINES="50", **streams, **variables)
        os.close(theirs)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.seen = ""

    def expect(self, text: str) -> None:
        """Read until `text` has been shown."""
        while text not in self.seen:
            assert self._read(), f"{text!r} was never shown: {self.seen!r}"

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._descriptor, text.encode())

    def end(self) -> int:
        """Read the rest and return the exit code."""
        while self._read():
            pass
        os.close(self._descriptor)
        return self.process.wait(60)

    def _read(self) -> bool:
        """Read what is shown next; False if nothing more comes."""
        try:
            chunk = os.read(self._descriptor, 65536)
        except OSError:  # what Linux says when the other side has gone
            return False
        self.seen += self._decoder.decode(chunk)
        return bool(chunk)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["stream", "rm", "ORDERS"], "Delete stream ORDERS with 4 messages?"),
        (["stream", "purge", "ORDERS"], "Purge all messages of stream ORDERS?"),
        (["stream", "purge", "ORDERS", "--keep", "1"], "Purge all but the last 1 messages of stream ORDERS?"),
        (["stream", "rmm", "ORDERS", "1"], "Remove 1 message of stream ORDERS?"),
    ],
)
def test_what_destroys_asks_and_a_no_leaves_everything(jstream, orders, words: list[str], question: str) -> None:
    terminal = Terminal(jstream, *words)
    terminal.expect(question)
    terminal.type("n\n")
    assert terminal.end() == 1
    assert "nothing was done" in terminal.seen
    assert orders.stream("ORDERS").info()["state"]["messages"] == 4


def test_a_yes_destroys(jstream, orders) -> None:
    terminal = Terminal(jstream, "stream", "purge", "ORDERS")
    terminal.expect("Purge all messages")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert orders.stream("ORDERS").info()["state"]["messages"] == 0


def test_ctrl_c_at_a_question_leaves_everything_and_is_quiet(jstream, orders) -> None:
    terminal = Terminal(jstream, "stream", "rm", "ORDERS")
    terminal.expect("Delete stream ORDERS")
    terminal.process.send_signal(signal.SIGINT)
    # A signal that comes just before the read begins does not end it: Python hears of it with the next key only.
    terminal.type("\n")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen
    assert orders.streams() == ["ORDERS"]


def test_a_view_turns_pages(jstream, orders) -> None:
    terminal = Terminal(jstream, "stream", "view", "ORDERS", 2)
    terminal.expect("Next page?")
    assert "body 4" in terminal.seen
    assert "body 5" not in terminal.seen
    terminal.type("\n")
    assert terminal.end() == 0
    assert "body 6" in terminal.seen
    assert "Next page?" not in terminal.seen


def test_a_view_ends_when_no_further_page_is_wanted(jstream, orders) -> None:
    terminal = Terminal(jstream, "stream", "view", "ORDERS", 2)
    terminal.expect("Next page?")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "body 5" not in terminal.seen


def test_a_table_on_a_narrow_terminal_loses_nothing(jstream, store) -> None:
    subject = "orders." + "x" * 100
    store.add_stream({"name": "S", "subjects": [subject, "[red]"]})
    terminal = Terminal(jstream, "stream", "ls", columns=60)
    assert terminal.end() == 0
    letters = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen)
    assert letters.count("x") == 100
    assert "[red]" in "".join(letters.split()).replace("│", "")


def test_a_message_for_pub_is_not_awaited_from_a_terminal(jstream, orders) -> None:
    terminal = Terminal(jstream, "pub", "orders.new")
    assert terminal.end() == 2
    assert "no BODY" in terminal.seen


def test_verify_shows_how_far_it_is(jstream, orders) -> None:
    terminal = Terminal(jstream, "verify")
    assert terminal.end() == 0
    assert "4 copies of blocks checked: all is well" in terminal.seen


@pytest.mark.parametrize("words", [["import"], ["drift"]])
def test_what_would_read_long_messages_faster_is_named_where_it_is_missing(jstream, tmp_path, words: list[str]) -> None:
    stream = tmp_path / "nats" / "jetstream" / "$G" / "streams" / "LONG"
    (stream / "msgs").mkdir(parents=True)
    (stream / "msgs" / "1.blk").write_bytes(gzip.decompress((DATA / "nats-long" / "1.blk.gz").read_bytes()))
    meta = json.dumps({"name": "LONG", "subjects": ["long.>"]}).encode()
    (stream / "meta.inf").write_bytes(meta)
    (stream / "meta.sum").write_text(highwayhash_of(meta, "LONG").to_bytes(8, "little").hex())
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['numba'] = None")
    python_path = f"{tmp_path}{os.pathsep}{ROOT}"
    terminal = Terminal(jstream, *words, "nats", tmp_path / "nats", columns=200, PYTHONPATH=python_path)
    terminal.expect("with numba they are read 3 times as fast (pip install 'pyspark-jstream[rescue]')")
    assert terminal.end() == 0


def test_a_restore_asks_and_a_no_makes_nothing(jstream, orders, tmp_path) -> None:
    jstream.done("backup", tmp_path / "saved")
    for words, question in (
        ([tmp_path / "new"], "Restore store "),
        (["--stream", "ORDERS", "--as", "COPY"], "Restore ORDERS as COPY (4 messages) into "),
    ):
        terminal = Terminal(jstream, "restore", tmp_path / "saved", *words, columns=400)
        terminal.expect(question)
        terminal.expect("[y/N]: ")
        terminal.type("n\n")
        assert terminal.end() == 1
        assert "not confirmed, nothing was done" in terminal.seen
    assert not (tmp_path / "new").exists()
    assert orders.streams() == ["ORDERS"]


def test_a_yes_restores_and_shows_how_far_it_is(jstream, orders, tmp_path) -> None:
    jstream.done("backup", tmp_path / "saved")
    terminal = Terminal(jstream, "restore", tmp_path / "saved", tmp_path / "new", columns=400)
    terminal.expect("[y/N]: ")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert "8/8" in terminal.seen
    assert (tmp_path / "new" / "jstream.volume").exists()


def test_a_volume_is_removed_only_after_a_yes(trio, replicated, volumes) -> None:
    terminal = Terminal(trio, "cluster", "volume", "remove", volumes[1], volumes[2], columns=200)
    terminal.expect("Remove 2 volumes from the store:")
    terminal.type("n\n")
    assert terminal.end() == 1
    assert "nothing was done" in terminal.seen
    assert replicated.cluster_info()["voters"] == 3


@pytest.mark.parametrize("words", [["scrub"], ["repair"], ["verify"]])
def test_long_work_ends_with_its_verdict(trio, replicated, words: list[str]) -> None:
    terminal = Terminal(trio, *words)
    assert terminal.end() == 0
    assert "12 copies of blocks checked: all is well" in terminal.seen


@pytest.mark.parametrize("words", [["cluster", "info"], ["stream", "report"], ["stream", "info", "ORDERS"]])
def test_states_are_drawn_as_a_table_that_loses_nothing(trio, replicated, volumes, words: list[str]) -> None:
    terminal = Terminal(trio, *words, columns=120)
    assert terminal.end() == 0
    letters = "".join(re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen).split()).replace("│", "")
    assert letters.count("current") >= (1 if "report" in words else 3)


def test_a_report_that_is_watched_shows_what_is_new_in_place_of_what_was_there(jstream, orders) -> None:
    terminal = Terminal(jstream, "stream", "report", "--watch", "0.1", columns=160)
    terminal.expect("ORDERS")
    orders.add_stream({"name": "LATER"})
    terminal.expect("LATER")
    assert terminal.seen.count(CLEAR) >= 2
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.seen
