"""`jstream pub`: one message, many, and lines from standard input."""

import json
from collections.abc import Iterator

import pytest

from spark_stream.cli import publish
from spark_stream.cli.failures import CommandFailed
from spark_stream.cli.publish import LineBatches


@pytest.fixture
def stream(store):
    return store.add_stream({"name": "S", "subjects": ["s.>"]})


def bodies(stream) -> list[bytes | None]:
    return stream.read(columns=["data"]).read_all()["data"].to_pylist()


def test_a_message_is_stored_and_its_sequence_printed(jstream, stream) -> None:
    outcome = jstream("pub", "s.a", "hello", "-H", "Trace: a:b", "--header", "Empty:")
    assert (outcome.code, outcome.out, outcome.err) == (0, "S 1\n", "")
    message = stream.get(1)
    assert (message.subject, message.data) == ("s.a", b"hello")
    assert message.headers == [("Trace", b"a:b"), ("Empty", b"")]
    assert json.loads(jstream.done("pub", "s.a", "", "--json")) == {"stream": "S", "seq": 2, "duplicate": False}
    assert stream.get(2).data == b""


def test_a_message_is_stored_only_if_the_stream_is_as_expected(jstream, stream) -> None:
    assert jstream.done("pub", "s.a", "x", "--expect-last-sequence", "0", "--msg-id", "first") == "S 1\n"
    for expected in ("--expect-last-sequence=0", "--expect-last-subject-sequence=0", "--expect-last-msg-id=other"):
        outcome = jstream("pub", "s.a", "x", expected)
        assert (outcome.code, outcome.out) == (1, "") and "was expected" in outcome.err
    expected = ["--expect-last-sequence=1", "--expect-last-subject-sequence=1", "--expect-last-msg-id=first"]
    assert jstream.done("pub", "s.a", "x", *expected) == "S 2\n"


def test_a_command_waits_for_a_held_store_as_long_as_it_is_told(jstream, stream, store) -> None:
    with store.session():
        for words in (["pub", "s.a", "x", "--lock-timeout", "10ms"], ["--lock-timeout=0s", "pub", "s.a", "x"]):
            outcome = jstream(*words)
            assert outcome.code == 1 and "[JSTREAM_STORE_BUSY]" in outcome.err
    wrong = jstream("pub", "s.a", "x", "--lock-timeout", "10")
    assert wrong.code == 2 and "--lock-timeout: '10' has no unit" in wrong.err
    assert jstream.done("pub", "s.a", "--lock-timeout", "1m", "--", "--lock-timeout") == "S 1\n"
    assert bodies(stream) == [b"--lock-timeout"]


def test_the_same_message_id_is_stored_once(jstream, stream) -> None:
    assert jstream.done("pub", "s.a", "one", "--msg-id", "x") == "S 1\n"
    assert jstream.done("pub", "s.a", "two", "--msg-id", "x") == "S 1 duplicate\n"
    assert bodies(stream) == [b"one"]


def test_a_count_stores_the_message_that_often_in_few_appends(jstream, stream) -> None:
    assert jstream.done("pub", "s.a", "x", "--count", 25_000).splitlines() == [
        "S 1 to 10000",
        "S 10001 to 20000",
        "S 20001 to 25000",
    ]
    assert stream.info()["state"]["messages"] == 25_000


@pytest.mark.parametrize("words", [["-"], ["--stdin"], []])
def test_lines_of_standard_input_are_messages(jstream, stream, words: list[str]) -> None:
    outcome = jstream("pub", "s.a", *words, "-H", "k:v", stdin=b"one\n\ntwo\r\n\xff last")
    assert (outcome.code, outcome.out) == (0, "S 1 to 4\n")
    assert bodies(stream) == [b"one", b"", b"two\r", b"\xff last"]
    assert stream.get(4).headers == [("k", b"v")]


def test_all_of_standard_input_is_one_message_when_asked(jstream, stream) -> None:
    assert jstream.done("pub", "s.a", "-", "--send-on", "eof", stdin=b"one\ntwo\n") == "S 1\n"
    assert bodies(stream) == [b"one\ntwo\n"]


@pytest.mark.parametrize("word", ["-", "--stdin"])
def test_an_empty_standard_input_stores_nothing_and_says_so(jstream, stream, word: str) -> None:
    outcome = jstream("pub", "s.a", word)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "no lines on standard input: nothing was stored\n"
    assert stream.info()["state"]["last_seq"] == 0


def test_a_missing_body_and_nothing_on_standard_input_is_wrong_usage(jstream, stream) -> None:
    outcome = jstream("pub", "s.a")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: no BODY, and nothing on standard input: nothing was stored")
    assert stream.info()["state"]["last_seq"] == 0


def test_nothing_on_standard_input_is_an_empty_message_where_all_of_it_is_one(jstream, stream) -> None:
    assert jstream.done("pub", "s.a", "--send-on", "eof") == "S 1\n"
    assert bodies(stream) == [b""]


def test_a_hundred_thousand_lines_are_a_handful_of_appends(jstream, store, stream) -> None:
    before = store.view().index
    outcome = jstream.process("pub", "s.a", "--json", stdin=b"".join(b"%d\n" % number for number in range(100_000)))
    assert outcome.code == 0
    appends = [json.loads(line) for line in outcome.out.splitlines()]
    assert appends[-1]["end"] == 100_001
    assert 10 <= len(appends) <= 20
    assert store.view().index - before <= 2 * len(appends)
    assert bodies(stream) == [b"%d" % number for number in range(100_000)]


def test_what_was_stored_before_a_bad_line_is_kept_and_counted(jstream, store) -> None:
    stream = store.add_stream({"name": "SMALL", "max_msg_size": 100})
    outcome = jstream("pub", "SMALL", "-", stdin=b"x\n" * 10_000 + b"y" * 200 + b"\n")
    assert outcome.code == 1
    assert outcome.out == "SMALL 1 to 10000\n"
    assert "max_msg_size" in outcome.err
    assert "10000 messages stored before" in outcome.err
    assert stream.info()["state"]["last_seq"] == 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pub", "t.a", "x"], "no stream takes subject t.a; S takes s.>\n"),
        (["pub", "s.a", "x", "--stream", "T"], "no stream 'T'"),
        (["pub", "t.a", "x", "--stream", "S"], "is not taken"),
        (["pub", "s.*", "x"], "s.*"),
    ],
)
def test_a_subject_that_no_stream_takes_fails(jstream, stream, words: list[str], said: str) -> None:
    outcome = jstream(*words)
    assert outcome.code == 1
    assert said in outcome.err
    assert stream.info()["state"]["last_seq"] == 0


def test_a_store_without_streams_says_how_to_make_one(jstream) -> None:
    outcome = jstream("pub", "t.a", "x")
    assert outcome.code == 1
    assert outcome.err == "error: no stream takes subject t.a; there is no stream yet: jstream stream add makes one\n"


def test_a_body_may_be_any_bytes_but_a_subject_is_utf_8(jstream, stream) -> None:
    assert jstream.process("pub", "s.a", b"\xff\xfe".decode("utf-8", "surrogateescape")).out == "S 1\n"
    assert stream.get(1).data == b"\xff\xfe"
    outcome = jstream.process("pub", b"s.\xff".decode("utf-8", "surrogateescape"), "x")
    assert outcome.code == 2
    assert outcome.err.startswith("error: 's.\\udcff' is no subject: tokens of UTF-8")


def test_of_several_streams_with_the_subject_one_must_be_named(jstream, store, stream) -> None:
    other = store.add_stream({"name": "T", "subjects": ["s.a"]}, allow_overlap=True)
    outcome = jstream("pub", "s.a", "x")
    assert outcome.code == 2
    assert "--stream with one of S, T" in outcome.err
    assert jstream.done("pub", "s.a", "x", "--stream", "T") == "T 1\n"
    assert (stream.info()["state"]["last_seq"], other.info()["state"]["last_seq"]) == (0, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--stdin"],
        ["-", "--msg-id", "a"],
        ["-", "--count", "2"],
        ["x", "--msg-id", "a", "--count", "2"],
        ["x", "-H", "novalue"],
        ["x", "--send-on", "tuesday"],
        ["x", "--count", "0"],
        ["x", "--count", "2", "--expect-last-sequence", "0"],
        ["-", "--expect-last-msg-id", "a"],
        ["x", "--expect-last-sequence", "-1"],
    ],
)
def test_options_that_make_no_sense_together_are_wrong_usage(jstream, stream, words: list[str]) -> None:
    outcome = jstream("pub", "s.a", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert stream.info()["state"]["last_seq"] == 0


class Flow:
    """Bytes that arrive in pieces; None is a pause in which the clock goes on by a second."""

    def __init__(self, *pieces: bytes | None) -> None:
        self._pieces, self._now_s = list(pieces), 0.0

    def batches(self) -> Iterator[list[bytes]]:
        return iter(LineBatches(self._read, self._ready, lambda: self._now_s))

    def _ready(self, seconds: float) -> bool:
        if self._pieces and self._pieces[0] is None:
            self._now_s += max(seconds, 1.0)
            del self._pieces[0]
            return False
        return True

    def _read(self, _size: int) -> bytes:
        while self._pieces and self._pieces[0] is None:
            del self._pieces[0]
        return (self._pieces.pop(0) if self._pieces else None) or b""


def test_lines_that_come_slowly_do_not_wait_for_others() -> None:
    assert list(Flow(b"a\nb\n", None, b"c\n").batches()) == [[b"a", b"b"], [b"c"]]


def test_lines_that_come_at_once_share_a_batch() -> None:
    assert list(Flow(b"a\n", b"b\n", b"c\n").batches()) == [[b"a", b"b", b"c"]]


def test_a_line_may_come_in_pieces_and_the_last_one_without_its_break() -> None:
    assert list(Flow(b"a", b"b", b"c\nd", b"\n", b"e").batches()) == [[b"abc", b"d", b"e"]]


def test_half_a_line_waits_for_its_other_half() -> None:
    assert list(Flow(b"a\nb", None, b"c\n").batches()) == [[b"a"], [b"bc"]]


def test_a_batch_is_bounded_by_messages_and_by_bytes() -> None:
    sizes = [len(batch) for batch in Flow(b"\n" * (2 * publish.BATCH_ROWS_MAX + 1)).batches()]
    assert sizes == [publish.BATCH_ROWS_MAX, publish.BATCH_ROWS_MAX, 1]
    large = b"x" * (publish.BATCH_SIZE_MAX // 2 + 1) + b"\n"
    assert [len(batch) for batch in Flow(large * 5).batches()] == [2, 2, 1]


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    read: list[int] = []

    def endless(_size: int) -> bytes:
        read.append(100)
        return b"x" * 100

    with pytest.raises(CommandFailed, match="over 1000 bytes"):
        list(LineBatches(endless, lambda _: True, line_size_max=1000))
    assert sum(read) <= 1100
