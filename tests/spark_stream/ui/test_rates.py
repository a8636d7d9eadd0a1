"""Rates, and what they promise: when a limit or a disk is reached, and when a consumer has caught up."""

import re
import time
from pathlib import Path

import pytest

from spark_stream.ui.model.rates import seconds_to_catch_up
from spark_stream.ui.site import Seen
from storage_core import Store


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([], None),
        ([(0, 100)], None),
        ([(0, 100), (10, 100)], None),
        ([(0, 100), (10, 150)], None),
        ([(0, 100), (10, 50)], 10),
        ([(0, 100), (10, 0)], None),
        ([(0, 9_000), (1_000, 100), (1_010, 90)], 90),
    ],
)
def test_a_consumer_is_caught_up_at_the_pace_of_its_last_minutes(seen, seconds) -> None:
    assert seconds_to_catch_up(seen) == seconds


def test_pages_say_bytes_per_second_and_when_a_limit_is_reached(store: Store, volumes: list[Path], serve) -> None:
    stream = store.add_stream({"name": "FULL", "subjects": ["full"], "max_msgs": 300, "max_bytes": "1MB"})
    stream.append([{"subject": "full", "data": b"x" * 100} for _ in range(120)])
    browser = serve(volumes)
    full = next(found for found in browser.api("/streams", search="FULL")["streams"])
    assert full["messages_per_second"] == 2.0
    assert full["bytes_per_second"] == pytest.approx(stream.state().data_size / 60, abs=1)
    assert full["seconds_to_full"] == pytest.approx(180 / 2), "the limit of messages comes before that of bytes"
    overview = browser.api("/overview")
    assert overview["bytes_per_second"] > full["bytes_per_second"]
    assert overview["seconds_to_full"] > 0
    page = browser.page("/streams", search="FULL")
    assert "2.0/s" in page and "at its limit in 1 min 30 s" in page
    stream.edit(max_msgs=-1, max_bytes=-1)
    assert browser.api("/streams", search="FULL")["streams"][0]["seconds_to_full"] is None


def test_a_consumers_chart_draws_only_where_it_was_seen(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    lines = re.compile(r'<polyline class="(out|ack)-line" points="([^"]*)"')

    def drawn() -> dict[str, int]:
        page = browser.page("/streams/ORDERS/consumers/billing")
        return {name: len(points.split()) for name, points in lines.findall(page)}

    at_once = drawn()
    assert at_once["ack"] == at_once["out"] <= 3, "it was seen just now, and nowhere before"
    now_s = time.time()
    browser.site._seen["ORDERS", "billing"].extendleft([Seen(now_s - 1, 44, 12, 12), Seen(now_s - 2, 56, 5, 5)])
    consumer = browser.api("/streams/ORDERS/consumers/billing")
    assert [place[1:] for place in consumer["seen"][:2]] == [[56, 5, 5], [44, 12, 12]]
    assert consumer["seconds_to_catch_up"] is not None
    assert drawn()["ack"] == at_once["ack"] + 2
    assert "caught up in" in browser.page("/streams/ORDERS/consumers/billing")
