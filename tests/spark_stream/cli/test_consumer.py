"""`jstream consumer`: made, listed, read on, moved, held and deleted."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from storage_core import Store
from storage_core.paths import store_label
from storage_core.store.stream import Stream


def info_of(jstream: Any, name: str = "billing") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jstream.done("consumer", "info", "ORDERS", name, "--json"))
    return found


@pytest.fixture
def billing(jstream: Any, orders: Store) -> Any:
    """The store with ORDERS of four messages (1, 4, 5, 6) and a consumer of it."""
    jstream.done("consumer", "add", "ORDERS", "billing")
    return jstream


def test_a_filter_for_nothing_is_noted(jstream, orders) -> None:
    assert "note:" not in jstream("consumer", "add", "ORDERS", "billing", "--filter", "orders.*").err
    noted = jstream("consumer", "add", "ORDERS", "idle", "--filter", "orders.new", "--filter", "other.x").err
    assert noted.endswith("note: filter other.x matches nothing that ORDERS takes, orders.>\n")


def sequences(out: str) -> list[int]:
    return [json.loads(line)["seq"] for line in out.splitlines()]


# --- add


def test_a_consumer_is_made_with_what_was_asked_for(jstream: Any, orders: Store) -> None:
    outcome = jstream(
        *("consumer", "add", "ORDERS", "billing", "--deliver", "new", "--ack", "all", "--wait", "1m30s"),
        *("--max-deliver", 5, "--max-pending", 10, "--filter", "orders.new,orders.paid", "--filter", "orders.sent"),
        *("--description", "invoices", "--metadata", "team=sales", "--on-data-loss", "fail", "--pull", "--json"),
    )
    assert (outcome.code, outcome.err) == (0, "created consumer billing of stream ORDERS\n")
    config = json.loads(outcome.out)["config"]
    wanted = {
        "name": "billing",
        "deliver_policy": "new",
        "ack_policy": "all",
        "ack_wait": 90_000_000_000,
        "max_deliver": 5,
        "max_ack_pending": 10,
        "filter_subjects": ["orders.new", "orders.paid", "orders.sent"],
        "description": "invoices",
        "metadata": {"team": "sales"},
        "on_data_loss": "fail",
    }
    assert {key: config[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("deliver", "first"),
    [("all", 1), ("new", 7), ("last", 6), ("5", 5), ("1h", 1), ("2020-01-01T00:00:00Z", 1)],
)
def test_a_consumer_begins_where_it_was_told_to(jstream: Any, orders: Store, deliver: str, first: int) -> None:
    jstream.done("consumer", "add", "ORDERS", "billing", "--deliver", deliver)
    assert info_of(jstream)["delivered"]["stream_seq"] == first - 1


def test_the_config_of_one_consumer_makes_another_and_options_win_over_it(
    jstream: Any, orders: Store, tmp_path: Path
) -> None:
    jstream.done("consumer", "add", "ORDERS", "a", "--deliver", "5", "--max-deliver", 3, "--filter", "orders.new")
    (tmp_path / "a.json").write_text(jstream.done("consumer", "info", "ORDERS", "a", "--json"))
    jstream.done("consumer", "add", "ORDERS", "b", "--config", tmp_path / "a.json", "--deliver", "all")
    made = info_of(jstream, "b")["config"]
    assert (made["name"], made["max_deliver"], made["filter_subjects"]) == ("b", 3, ["orders.new"])
    assert (made["deliver_policy"], made["opt_start_seq"]) == ("all", 0)


def test_the_config_that_nats_prints_is_taken(jstream: Any, orders: Store, tmp_path: Path) -> None:
    config = {
        "durable_name": "theirs", "ack_policy": "explicit", "ack_wait": 30000000000, "deliver_policy": "all",
        "filter_subject": "orders.new", "max_ack_pending": 1000, "max_deliver": -1, "max_waiting": 512,
        "name": "theirs", "num_replicas": 0, "replay_policy": "instant",
    }  # fmt: skip
    (tmp_path / "nats.json").write_text(json.dumps({"config": config, "num_pending": 7}))
    jstream.done("consumer", "add", "ORDERS", "ours", "--config", tmp_path / "nats.json")
    assert info_of(jstream, "ours")["config"]["filter_subjects"] == ["orders.new"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a b"], "name of a consumer"),
        (["c", "--deliver", "nwe"], "did you mean 'new'?"),
        (["c", "--deliver", "99"], "opt_start_seq: 99 lies beyond"),
        (["c", "--deliver", "subject"], "not supported"),
        (["c", "--ack", "each"], "ack_policy: 'each'"),
        (["c", "--wait", "30"], "--wait: '30' has no unit"),
        (["c", "--filter", "orders..new"], "filter_subjects"),
        (["c", "--max-pending", "0"], "max_ack_pending: 0"),
        (["c", "--max-deliver", "0"], "max_deliver: 0"),
        (["c", "--on-data-loss", "ignore"], "on_data_loss: 'ignore'"),
        (["c", "--metadata", "novalue"], "--metadata"),
        (["c", "--delivr", "all"], "did you mean '--deliver'?"),
    ],
)
def test_a_value_that_is_not_taken_is_wrong_usage_that_names_it(
    jstream: Any, orders: Store, words: list[str], said: str
) -> None:
    outcome = jstream("consumer", "add", "ORDERS", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err and outcome.err.count("\n") == 1
    assert jstream.done("consumer", "ls", "ORDERS", "--json") == "[]\n"


def test_names_that_are_not_there_are_answered_with_the_nearest(billing: Any) -> None:
    for words, said in (
        (("info", "ORDERS", "biling"), "did you mean 'billing'?"),
        (("info", "ORDRES", "billing"), "did you mean 'ORDERS'?"),
        (("rm", "ORDERS", "Billing", "--force"), "did you mean 'billing'?"),
        (("add", "ORDERS", "BILLING"), "differs from consumer 'billing' only in case"),
        (("report", "ORDER"), "did you mean 'ORDERS'?"),
    ):
        outcome = billing("consumer", *words)
        assert (outcome.code, outcome.out) == (1, "")
        assert said in outcome.err
    assert "did you mean 'report'?" in billing("consumer", "reprot").err


# --- ls, info, report


def test_a_consumer_is_described_for_people(jstream: Any, orders: Store) -> None:
    words = ("--deliver", "4", "--max-pending", "-1", "--max-deliver", 3, "--metadata", "team=sales")
    jstream.done("consumer", "add", "ORDERS", "billing", *words)
    jstream.done("consumer", "reset", "ORDERS", "billing", "--to", "earliest", "--execute")
    lines = [line.strip() for line in jstream.done("consumer", "info", "ORDERS", "billing").splitlines()]
    for fact in (
        "begins with: sequence 4", "ack wait: 30s", "max deliver: 3", "max ack pending: no limit",
        "on data loss: continue", "metadata team: sales", "pending: 4", "paused: no",
    ):  # fmt: skip
        assert fact in lines
    assert lines[-1].split()[1] == "consumer_reset"


def test_consumers_are_listed(billing: Any) -> None:
    billing.done("consumer", "add", "ORDERS", "audit", "--filter", "orders.paid")
    assert billing.done("consumer", "ls", "ORDERS", "--names") == "audit\nbilling\n"
    heading, audit, _ = billing.done("consumer", "ls", "ORDERS").splitlines()
    assert heading.split()[:2] == ["name", "filter"]
    assert audit.split()[:2] == ["audit", "orders.paid"]


def test_a_stream_and_a_store_without_consumers_say_so(jstream: Any, orders: Store) -> None:
    assert jstream("consumer", "ls", "ORDERS").err == "stream ORDERS has no consumers\n"
    assert jstream("consumer", "report").err == "no consumers\n"
    assert jstream.done("consumer", "report", "--json") == "[]\n"


def test_the_report_shows_how_far_each_consumer_is_behind(billing: Any, orders: Store) -> None:
    billing.done("consumer", "next", "ORDERS", "billing", "--count", 2)
    billing.done("consumer", "next", "ORDERS", "billing", "--no-ack")
    billing.done("consumer", "add", "ORDERS", "audit", "--deliver", "new")
    heading, audit, found = (line.split() for line in billing.done("consumer", "report").splitlines())
    assert (
        heading
        == "stream consumer delivered ack floor ack pending redelivered pending skipped lag behind state".split()
    )
    assert audit == ["ORDERS", "audit", "6", "6", "0", "0", "0", "0", "0", "-", "ok"]
    assert found[:9] == ["ORDERS", "billing", "5", "4", "1", "0", "1", "0", "2"]
    (shown,) = [
        one for one in json.loads(billing.done("consumer", "report", "ORDERS", "--json")) if one["lag"]["messages"]
    ]
    assert shown["lag"]["oldest_ts"] == json.loads(billing.done("stream", "get", "ORDERS", 5, "--json"))["time"]
    assert shown["lag"]["oldest_seq"] == 5


# --- next


def test_next_prints_messages_once_and_acknowledges_them(billing: Any) -> None:
    assert sequences(billing.done("consumer", "next", "ORDERS", "billing", "--count", 3, "--json")) == [1, 4, 5]
    assert info_of(billing)["ack_floor"] == {"stream_seq": 5}
    assert billing.done("consumer", "next", "ORDERS", "billing", "--raw") == "body 6\n"
    outcome = billing("consumer", "next", "ORDERS", "billing", "--wait", "0")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "error: no message now\n")


def test_next_prints_what_get_prints(billing: Any) -> None:
    shown = billing.done("consumer", "next", "ORDERS", "billing", "--json")
    assert json.loads(shown) == json.loads(billing.done("stream", "get", "ORDERS", 1, "--json"))
    assert billing.done("consumer", "next", "ORDERS", "billing") == billing.done("stream", "get", "ORDERS", 4)


def test_what_is_not_acknowledged_waits_and_comes_again(billing: Any, orders: Store) -> None:
    outcome = billing("consumer", "next", "ORDERS", "billing", "--count", 2, "--no-ack")
    assert (outcome.code, outcome.err) == (0, "2 messages to be acknowledged\n")
    assert info_of(billing)["num_ack_pending"] == 2
    orders.stream("ORDERS").consumer("billing").nak([1, 4])
    outcome = billing("consumer", "next", "ORDERS", "billing", "--count", 9, "--wait", "0", "--json")
    assert (sequences(outcome.out), outcome.err) == ([1, 4, 5, 6], "2 messages of them handed out before\n")


def test_next_of_more_than_there_is_prints_what_there_is(billing: Any) -> None:
    outcome = billing("consumer", "next", "ORDERS", "billing", "--count", 9, "--wait", "10ms", "--raw")
    assert (outcome.code, outcome.out) == (0, "body 1\nbody 4\nbody 5\nbody 6\n")


def test_next_takes_messages_that_lie_far_apart(billing: Any, orders: Store) -> None:
    stream = orders.stream("ORDERS")
    billing.done("consumer", "next", "ORDERS", "billing", "--no-ack")
    printed = billing.done("pub", "orders.new", "-", stdin="x\n" * 3000)
    assert printed == "ORDERS 7 to 3006\n"
    stream.consumer("billing").nak([1])
    stream.remove(range(4, 3000))
    out = billing.done("consumer", "next", "ORDERS", "billing", "--count", 3, "--wait", "0", "--json")
    assert sequences(out) == [1, 3000, 3001]
    for line in out.splitlines():
        assert json.loads(line) == stream.get(json.loads(line)["seq"]).to_json()


def test_next_says_that_no_more_messages_may_wait(jstream: Any, orders: Store) -> None:
    orders.stream("ORDERS").add_consumer({"name": "slow", "max_ack_pending": 1}).fetch(1, 0)
    outcome = jstream("consumer", "next", "ORDERS", "slow", "--wait", "0")
    why = "no message now: 1 message to be acknowledged, no more may wait (max ack pending)"
    assert (outcome.code, outcome.err) == (1, f"error: {why}\n")


@pytest.mark.parametrize("words", [["--count", "0"], ["--wait", "5"], ["--wait", "soon"]])
def test_next_with_a_value_that_is_not_taken_is_wrong_usage(billing: Any, words: list[str]) -> None:
    assert billing("consumer", "next", "ORDERS", "billing", *words).code == 2
    assert info_of(billing)["delivered"] == {"stream_seq": 0}


# --- pause and resume


def test_a_paused_consumer_hands_out_nothing_until_it_is_resumed(billing: Any) -> None:
    assert billing("consumer", "pause", "ORDERS", "billing", "1h").err.endswith("is paused for 1 h\n")
    assert info_of(billing)["paused"] is True
    assert "paused" in billing.done("consumer", "report").splitlines()[1]
    outcome = billing("consumer", "next", "ORDERS", "billing", "--wait", "0")
    assert (outcome.code, outcome.err) == (1, "error: no message now: consumer billing is paused\n")
    billing.done("consumer", "resume", "ORDERS", "billing")
    assert sequences(billing.done("consumer", "next", "ORDERS", "billing", "--json")) == [1]


def test_a_pause_lasts_until_a_time(billing: Any) -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    billing.done("consumer", "pause", "ORDERS", "billing", f"{tomorrow:%Y-%m-%dT%H:%M:%SZ}")
    assert 23 * 3600e9 < info_of(billing)["pause_remaining"] <= 24 * 3600e9


@pytest.mark.parametrize("until", ["2020-01-01T00:00:00Z", "0", "90", "later", "2026-13-01"])
def test_a_pause_that_is_none_is_wrong_usage(billing: Any, until: str) -> None:
    outcome = billing("consumer", "pause", "ORDERS", "billing", until)
    assert (outcome.code, outcome.out) == (2, "")
    assert until in outcome.err
    assert info_of(billing)["paused"] is False


# --- reset


@pytest.mark.parametrize(
    ("to", "first", "again", "skipped"),
    [
        ([], 5, 0, 0),
        (["--to", "earliest"], 1, 2, 0),
        (["--to", "latest"], 7, 0, 2),
        (["--to", "6"], 6, 0, 1),
        (["--to", "1h"], 1, 2, 0),
        (["--to", "2100-01-01"], 7, 0, 2),
    ],
)
def test_a_reset_prints_its_plan_and_acts_only_when_told_to(
    billing: Any, to: list[str], first: int, again: int, skipped: int
) -> None:
    billing.done("consumer", "next", "ORDERS", "billing", "--count", 2)
    billing.done("consumer", "next", "ORDERS", "billing", "--no-ack")
    before = info_of(billing)
    outcome = billing("consumer", "reset", "ORDERS", "billing", *to, "--json")
    plan = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "nothing was done; --execute does it\n")
    assert (plan["next_seq"], plan["num_again"], plan["num_skipped"]) == (first, again, skipped)
    assert info_of(billing) == before
    done = json.loads(billing.done("consumer", "reset", "ORDERS", "billing", *to, "--execute", "--json"))
    assert done == {**plan, "executed": True}
    after = info_of(billing)
    assert (after["delivered"]["stream_seq"], after["num_ack_pending"]) == (first - 1, 0)
    assert [event["kind"] for event in after["events"]] == ["consumer_reset"]


@pytest.mark.parametrize(
    ("to", "code", "said"),
    [("8", 1, "can be read from 1 to 7"), ("0", 1, "can be read from 1"), ("lates", 2, "did you mean 'latest'?")],
)
def test_a_reset_to_no_place_of_the_stream_is_an_error(billing: Any, to: str, code: int, said: str) -> None:
    outcome = billing("consumer", "reset", "ORDERS", "billing", "--to", to, "--execute")
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.err


# --- rm


def test_removing_asks_and_without_anybody_to_ask_does_nothing(billing: Any) -> None:
    outcome = billing("consumer", "rm", "ORDERS", "billing")
    assert outcome.code == 2 and "--force" in outcome.err
    assert billing.done("consumer", "ls", "ORDERS", "--names") == "billing\n"
    outcome = billing("consumer", "rm", "ORDERS", "billing", "--force")
    assert (outcome.code, outcome.out) == (0, "")
    assert billing.done("consumer", "ls", "ORDERS", "--json") == "[]\n"
    assert billing.done("stream", "ls", "--json") == '[\n  "ORDERS"\n]\n'


# --- a loss


def test_a_consumer_that_fails_on_data_loss_names_the_command_that_goes_on(
    trio: Any, replicated: Store, volumes: list[Path], blocks_on: Callable[[Path], list[Path]]
) -> None:
    trio.done("consumer", "add", "ORDERS", "billing", "--on-data-loss", "fail")
    for volume in volumes:
        blocks_on(volume)[1].unlink()
    trio("repair")
    command = "jstream consumer reset ORDERS billing --execute"
    outcome = trio("consumer", "next", "ORDERS", "billing")
    assert (outcome.code, outcome.out) == (1, "")
    assert "2 to 2 are lost" in outcome.err and command in outcome.err
    report = trio("consumer", "report")
    assert "stopped" in report.out and command in report.err
    outcome = trio("consumer", "reset", "ORDERS", "billing")
    assert "are lost" in outcome.out and info_of(trio)["events"][-1]["kind"] == "consumer_failed"
    trio.done(*command.split()[1:])
    assert sequences(trio.done("consumer", "next", "ORDERS", "billing", "--count", 3, "--json")) == [1, 3, 4]


def test_next_says_what_it_passed_by_because_it_cannot_be_read(jstream: Any, orders: Store, volume: Path) -> None:
    jstream.done("consumer", "add", "ORDERS", "c")
    for path in sorted(volume.rglob("*.blk"), key=lambda one: one.stat().st_mtime_ns)[:1]:
        path.unlink()
    outcome = jstream("consumer", "next", "ORDERS", "c", "--raw")
    assert (outcome.code, outcome.out) == (0, "body 4\n")
    assert "consumer_unreadable 1" in outcome.err and "the file is missing" in outcome.err
    assert jstream("consumer", "next", "ORDERS", "c", "--raw").err == ""


REMOVALS: dict[str, Callable[[Stream], object]] = {
    "purge": lambda stream: stream.purge(keep=2),
    "purge by time": lambda stream: stream.purge(before_ns=time_of(stream, 5)),
    "removed": lambda stream: stream.remove([1, 2, 3, 4]),
    "max_msgs": lambda stream: stream._store.edit_stream({"name": "ORDERS", "max_msgs": 2}),
    "max_bytes": lambda stream: stream._store.edit_stream({"name": "ORDERS", "max_bytes": 32}),
    "lost": lambda stream: lose(stream, 4),
}


def time_of(stream: Stream, sequence: int) -> int:
    found = stream.read(columns=["sequence", "timestamp_ns"]).read_all().to_pylist()
    return next(row["timestamp_ns"] for row in found if row["sequence"] == sequence)


def lose(stream: Stream, count: int) -> None:
    for row in stream.state().blocks.rows[:count]:
        path = Path(stream._store.paths[0], "streams", stream.incarnation.hex(), f"{bytes(row['block_id']).hex()}.blk")
        path.write_bytes(b"lost")
    stream._store.repair()


@pytest.mark.parametrize("cause", REMOVALS)
def test_what_was_removed_before_it_was_acknowledged_is_skipped_wherever_one_looks(
    jstream, store: Store, cause: str
) -> None:
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(6):
        stream.publish("orders.new", b"body %d" % number)
    consumer = stream.add_consumer({"name": "warehouse"})
    consumer.ack(consumer.fetch(1, 0).column("sequence"))
    REMOVALS[cause](stream)
    info = json.loads(jstream.done("consumer", "info", "ORDERS", "warehouse", "--json"))
    (row,) = json.loads(jstream.done("consumer", "report", "--json"))
    assert (info["num_skipped"], row["num_skipped"]) == (3, 3)
    assert f'consumer="warehouse",store="{store_label(store.paths)}",stream="ORDERS"}} 3.0' in "".join(
        line for line in jstream.done("metrics").splitlines() if line.startswith("jstream_consumer_skipped{")
    )
    (event,) = json.loads(jstream.done("events", "--kind", "consumer_skipped", "--json"))
    assert (event["stream"], event["consumer"]) == ("ORDERS", "warehouse") and "3" in event["reason"]
    assert info["num_pending"] + info["num_ack_pending"] == 2
