"""`jstream events`."""

import json
from typing import Any

import pytest

from spark_stream.cli.events import following
from storage_core import Store
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.events import EVENT_COUNT_MAX


def record(store: Store, *events: Event) -> None:
    with store.session() as session:
        session.propose(RecordEvents(events))


@pytest.fixture
def eventful(orders: Store) -> Store:
    """The store with four events, two of them about ORDERS."""
    record(
        orders,
        Event("damaged", "ORDERS", volume="ab" * 16, before="current", after="damaged", reason="bad checksum"),
        Event("scrub"),
        Event("repaired", "ORDERS", volume="ab" * 16),
    )
    record(orders, Event("took_over", before="there", after="here"))
    return orders


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in found]


def test_events_are_listed_oldest_first(jstream, eventful) -> None:
    heading, *rows = jstream.done("events").splitlines()
    assert heading.split() == ["time", "kind", "stream", "consumer", "volume", "before", "after", "count", "reason"]
    assert [row.split()[1] for row in rows] == ["damaged", "scrub", "repaired", "took_over"]
    assert rows[0].endswith("bad checksum")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["damaged", "scrub", "repaired", "took_over"]),
        (["--stream", "ORDERS"], ["damaged", "repaired"]),
        (["--kind", "scrub"], ["scrub"]),
        (["--kind", "lost"], []),
        (["--last", "2"], ["repaired", "took_over"]),
        (["--last", "0"], []),
        (["--last", "99"], ["damaged", "scrub", "repaired", "took_over"]),
        (["--stream", "ORDERS", "--last", "1"], ["repaired"]),
        (["--stream", "ORDERS", "--kind", "scrub"], []),
    ],
)
def test_events_are_chosen_by_stream_kind_and_number(jstream, eventful, words: list[str], wanted: list[str]) -> None:
    assert kinds(json.loads(jstream.done("events", *words, "--json"))) == wanted


def test_a_store_to_which_nothing_happened_says_so(jstream, orders) -> None:
    outcome = jstream("events")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no events\n")
    assert jstream.done("events", "--json") == "[]\n"


def test_a_kind_that_there_is_not_is_wrong_usage_with_the_nearest_one(jstream, orders) -> None:
    outcome = jstream("events", "--kind", "repair")
    assert outcome.code == 2
    assert "did you mean 'repaired'?" in outcome.err


def test_events_of_a_stream_outlive_it_and_one_that_never_was_is_an_error(jstream, eventful) -> None:
    eventful.delete_stream("ORDERS")
    assert kinds(json.loads(jstream.done("events", "--stream", "ORDERS", "--json"))) == ["damaged", "repaired"]
    outcome = jstream("events", "--stream", "NONE")
    assert outcome.code == 1
    assert "NONE" in outcome.err


def test_what_happens_is_followed_a_line_an_event(eventful) -> None:
    news = [Event("scrub"), Event("lost", "ORDERS")]

    def wait() -> None:
        if not news:
            raise KeyboardInterrupt
        record(eventful, news.pop(0))

    found: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        iter_into(found, following(eventful, 1, None, None, wait))
    assert kinds(found) == ["took_over", "scrub", "lost"]


def iter_into(found: list[dict[str, Any]], events: Any) -> None:
    for event in events:
        found.append(event)


def test_following_goes_on_when_the_oldest_events_are_forgotten(orders) -> None:
    record(orders, *(Event("scrub", reason=str(number)) for number in range(EVENT_COUNT_MAX)))
    rounds = [[Event("lost", reason="a"), Event("lost", reason="b")], [Event("scrub", reason="c")]]

    def wait() -> None:
        if not rounds:
            raise KeyboardInterrupt
        record(orders, *rounds.pop(0))

    found: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        iter_into(found, following(orders, 0, None, None, wait))
    assert [event["reason"] for event in found] == ["a", "b", "c"]


def test_a_followed_event_is_one_line_for_people_and_one_object_for_programs(jstream, eventful) -> None:
    for words in ([], ["--json"]):
        with jstream.start("events", "--follow", *words) as process:
            lines = [process.stdout.readline().decode() for _ in range(4)]
            process.terminate()
        if words:
            assert kinds([json.loads(line) for line in lines]) == ["damaged", "scrub", "repaired", "took_over"]
        else:
            assert lines[0].endswith(f"damaged: stream ORDERS volume {'ab' * 16}: current -> damaged: bad checksum\n")
            assert lines[3].endswith("took_over: there -> here\n")
