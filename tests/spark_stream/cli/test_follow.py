"""`jstream sub` and `stream view --follow`: messages as they arrive."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from spark_stream.cli.failures import CommandFailed
from spark_stream.cli.follow import LAST_WINDOW, Follower, Position, first_of_last
from spark_stream.look.search import MessageFilter


class Stop(Exception):
    """Ends a follower that would wait for ever."""


def script(*steps: Callable[[], object]) -> Callable[[], None]:
    """Return a wait that takes the next step each time there is nothing new, and stops after the last."""
    left = list(steps)

    def wait() -> None:
        if not left:
            raise Stop
        left.pop(0)()

    return wait


def follow(follower: Follower, *steps: Callable[[], object]) -> list[tuple[str, int]]:
    """Return (stream, sequence) of all that the follower yields while the steps are taken."""
    got: list[tuple[str, int]] = []
    with suppress(Stop):
        for batch in follower.batches(script(*steps)):
            got += zip(batch["stream"].to_pylist(), batch["sequence"].to_pylist(), strict=True)
    return got


def start(stream, sequence: int) -> Position:
    return Position(stream.name, stream.incarnation, sequence)


def test_what_is_there_comes_first_and_then_what_arrives(orders) -> None:
    stream = orders.stream("ORDERS")
    got = follow(
        Follower(orders, [start(stream, 5)]),
        lambda: stream.publish("orders.new", b""),
        lambda: None,
        lambda: [stream.publish("orders.new", b"") for _ in range(2)],
    )
    assert got == [("ORDERS", sequence) for sequence in (5, 6, 7, 8, 9)]


def test_messages_of_other_subjects_are_passed_by_once(orders) -> None:
    stream = orders.stream("ORDERS")
    position = start(stream, 1)
    got = follow(
        Follower(orders, [position], "orders.paid"),
        lambda: stream.publish("orders.new", b""),
        lambda: stream.publish("orders.paid", b""),
    )
    assert got == [("ORDERS", 5), ("ORDERS", 8)]
    assert position.next_sequence == 9


def test_messages_of_another_process_are_seen(orders, jstream) -> None:
    got = follow(
        Follower(orders, [start(orders.stream("ORDERS"), 7)]),
        lambda: jstream.process("pub", "orders.new", "from outside"),
    )
    assert got == [("ORDERS", 7)]


def test_a_stream_that_was_made_again_is_followed_from_its_first_message_and_told(orders) -> None:
    told: list[str] = []

    def again() -> None:
        orders.delete_stream("ORDERS")
        orders.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}).publish("orders.new", b"new life")

    got = follow(Follower(orders, [start(orders.stream("ORDERS"), 6)], report=told.append), again)
    assert got == [("ORDERS", 6), ("ORDERS", 1)]
    assert told == ["stream ORDERS was deleted and made again: continuing with its first message"]


def test_when_the_last_stream_is_deleted_the_follower_ends(orders) -> None:
    told: list[str] = []
    follower = Follower(orders, [start(orders.stream("ORDERS"), 7)], report=told.append)
    with pytest.raises(CommandFailed, match="no stream is left"):
        list(follower.batches(script(lambda: orders.delete_stream("ORDERS"), lambda: None)))
    assert told == ["stream ORDERS was deleted"]


def test_of_several_streams_the_others_are_followed_on(orders) -> None:
    other = orders.add_stream({"name": "OTHER", "subjects": ["orders.other"]}, allow_overlap=True)
    follower = Follower(orders, [start(orders.stream("ORDERS"), 7), start(other, 1)], report=lambda _: None)
    got = follow(follower, lambda: orders.delete_stream("ORDERS"), lambda: other.publish("orders.other", b""))
    assert got == [("OTHER", 1)]


def test_a_stream_that_ends_before_where_it_ended_is_an_error(orders) -> None:
    position = start(orders.stream("ORDERS"), 100)
    position.end_seen = 100
    with pytest.raises(CommandFailed, match="ended with sequence 99 before, and ends with 6 now"):
        list(Follower(orders, [position]).poll())


def test_a_sequence_that_is_not_there_yet_is_waited_for(orders) -> None:
    stream = orders.stream("ORDERS")
    steps = [lambda: stream.publish("orders.new", b"")] * 3
    assert follow(Follower(orders, [start(stream, 8)]), *steps) == [("ORDERS", 8), ("ORDERS", 9)]


def test_a_stream_that_appears_later_joins_if_it_may_hold_the_subject(orders) -> None:
    told: list[str] = []

    def more() -> None:
        orders.add_stream({"name": "LATER", "subjects": ["orders.late"]}, allow_overlap=True).publish(
            "orders.late", b""
        )
        orders.add_stream({"name": "ELSEWHERE"}).publish("ELSEWHERE", b"")

    follower = Follower(orders, [start(orders.stream("ORDERS"), 7)], "orders.>", joins=True, report=told.append)
    assert follow(follower, more) == [("LATER", 1)]
    assert told == ["stream LATER is new: following it too"]


def test_removed_messages_do_not_come_and_do_not_stop_it(orders) -> None:
    stream = orders.stream("ORDERS")

    def store_and_remove() -> None:
        stream.publish("orders.new", b"")
        stream.remove([7])

    got = follow(Follower(orders, [start(stream, 7)]), store_and_remove, lambda: stream.publish("orders.new", b""))
    assert got == [("ORDERS", 8)]


@pytest.mark.parametrize(("count", "first"), [(0, 7), (1, 6), (3, 4), (4, 1), (5, 1)])
def test_the_last_n_are_messages_that_are_there(orders, count: int, first: int) -> None:
    assert first_of_last(orders, "ORDERS", count, MessageFilter(), "fail") == first


def test_the_last_of_a_rare_subject_are_found_far_back(jstream, orders) -> None:
    jstream.done("pub", "orders.new", "x", "--count", 3 * LAST_WINDOW)
    paid = MessageFilter.of("orders.paid")
    assert first_of_last(orders, "ORDERS", 1, paid, "fail") == 5
    assert first_of_last(orders, "ORDERS", 2, paid, "fail") == 1
    assert first_of_last(orders, "ORDERS", 1, MessageFilter.of(grep="^body 4$"), "fail") == 4


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["orders.>", "--all"], [1, 4, 5, 6]),
        (["orders.paid", "--all"], [5]),
        (["--stream", "ORDERS", "--all"], [1, 4, 5, 6]),
        (["orders.>", "--last", 2], [5, 6]),
        (["orders.new", "--last", 2], [4, 6]),
        (["orders.>", "--start-sequence", 5], [5, 6]),
        (["orders.>", "--since", "1h"], [1, 4, 5, 6]),
    ],
)
def test_sub_begins_where_it_is_told_to_and_ends_after_its_count(jstream, orders, words, found) -> None:
    outcome = jstream("sub", *words, "--count", len(found), "--json")
    assert outcome.code == 0
    assert [json.loads(line)["seq"] for line in outcome.out.splitlines()] == found
    assert outcome.err == "following ORDERS; Ctrl-C ends it\n"


def test_a_count_cuts_a_batch(jstream, orders) -> None:
    assert jstream.done("sub", "orders.>", "--all", "--count", 2, "--raw") == "body 1\nbody 4\n"
    assert jstream.done("stream", "view", "ORDERS", 3, "--follow", "--raw") == "body 1\nbody 4\nbody 5\n"


def test_messages_of_several_streams_say_whose_they_are(jstream, orders) -> None:
    orders.add_stream({"name": "MORE", "subjects": ["orders.more"]}, allow_overlap=True).publish("orders.more", b"")
    out = jstream.done("sub", "orders.>", "--last", 1, "--count", 2)
    assert [line.split("] ")[0] for line in out.splitlines() if line.startswith("[")] == ["[MORE 1", "[ORDERS 6"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["a..b"], 2),
        (["orders.>", "--all", "--last", 1], 2),
        (["orders.>", "--since", "never"], 2),
        (["other.>"], 1),
        (["--stream", "NONE"], 1),
    ],
)
def test_sub_refuses_what_it_cannot_follow(jstream, orders, words: list[object], code: int) -> None:
    assert jstream("sub", *words).code == code


def test_a_sequence_to_start_with_belongs_to_one_stream(jstream, orders) -> None:
    orders.add_stream({"name": "MORE", "subjects": ["orders.more"]}, allow_overlap=True)
    outcome = jstream("sub", "orders.>", "--start-sequence", 1)
    assert outcome.code == 2
    assert "MORE, ORDERS" in outcome.err


def test_sub_prints_what_arrives_at_once_and_ctrl_c_ends_it_quietly(jstream, orders) -> None:
    with jstream.start("sub", "orders.>", "--raw") as process:
        assert process.stderr.readline() == b"following ORDERS; Ctrl-C ends it\n"
        for body in (b"first", b"second"):
            orders.stream("ORDERS").publish("orders.new", body)
            assert process.stdout.readline() == body + b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
