"""`jstream apply`: the plan, what --execute does, and what is never done without being told."""

import json
from pathlib import Path

import pytest

from storage_core import Store

FILE = """
[streams.ORDERS]
subjects = ["orders.>"]
max_msg_size = "1MB"
duplicate_window = "10m"
[streams.ORDERS.consumers.warehouse]
filter_subjects = ["orders.new"]
ack_wait = "1m"
[streams.DEAD]
subjects = "dead.orders"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "streams.toml"
    path.write_text(FILE)
    return path


def test_the_plan_is_printed_and_only_execute_acts_on_it(jstream, store: Store, file: Path) -> None:
    outcome = jstream("apply", file)
    assert outcome.code == 0 and store.streams() == []
    assert outcome.out.splitlines() == [
        "make      stream ORDERS",
        '            subjects: ["orders.>"]',
        "            max_msg_size: 1048576",
        '            duplicate_window: "10m"',
        "make      consumer ORDERS/warehouse",
        '            ack_wait: "1m"',
        '            filter_subjects: ["orders.new"]',
        "make      stream DEAD",
        '            subjects: ["dead.orders"]',
    ]
    assert "nothing was done; --execute does it" in outcome.err
    assert "done: 3 changes" in jstream("apply", file, "--execute").err
    assert sorted(store.streams()) == ["DEAD", "ORDERS"]
    assert store.stream("ORDERS").consumer("warehouse").config.ack_wait == 60_000_000_000
    again = jstream("apply", file, "--execute")
    assert (again.code, again.out) == (0, "") and "nothing to do" in again.err


def test_keys_that_the_file_names_change_and_others_stay(jstream, orders: Store, file: Path) -> None:
    jstream.done("stream", "edit", "ORDERS", "--description", "mine")
    plan = json.loads(jstream.done("apply", file, "--json", "--execute"))
    assert plan["actions"][0] == {
        "action": "change",
        "stream": "ORDERS",
        "consumer": None,
        "changes": {"max_msg_size": [-1, 1048576], "duplicate_window": [120000000000, 600000000000]},
        "reason": None,
    }
    assert plan["executed"] is True
    config = orders.stream("ORDERS").config
    assert (config.max_msg_size, config.description) == (1048576, "mine")


def test_what_the_file_does_not_name_is_kept_unless_told(jstream, orders: Store, file: Path) -> None:
    orders.add_stream({"name": "OTHER"}).publish("OTHER", b"kept")
    orders.stream("ORDERS").add_consumer({"name": "audit"})
    assert "keep      stream OTHER, which the file does not name" in jstream.done("apply", file)
    jstream.done("apply", file, "--execute")
    assert "OTHER" in orders.streams() and orders.stream("ORDERS").consumers() == ["audit", "warehouse"]
    assert "delete    stream OTHER" in jstream.done("apply", file, "--delete")
    refused = jstream("apply", file, "--delete", "--execute")
    assert refused.code == 2 and "pass --force" in refused.err and "OTHER" in orders.streams()
    jstream.done("apply", file, "--delete", "--execute", "--force")
    assert sorted(orders.streams()) == ["DEAD", "ORDERS"]
    assert orders.stream("ORDERS").consumers() == ["warehouse"]
    assert orders.stream("ORDERS").state().message_count == 4


def test_a_consumer_that_differs_is_a_conflict_and_nothing_is_done(jstream, orders: Store, file: Path) -> None:
    orders.stream("ORDERS").add_consumer({"name": "warehouse"})
    outcome = jstream("apply", file, "--execute")
    assert outcome.code == 1 and "1 conflict with what is there; nothing was done" in outcome.err
    assert "conflict  consumer ORDERS/warehouse: a consumer cannot be changed" in outcome.out
    assert '            ack_wait: "30s" -> "1m"' in outcome.out
    assert orders.streams() == ["ORDERS"] and orders.stream("ORDERS").config.max_msg_size == -1


def test_a_flag_that_cannot_be_taken_back_is_a_conflict(jstream, store: Store, file: Path) -> None:
    store.add_stream({"name": "DEAD", "subjects": ["dead.orders"], "deny_purge": True})
    file.write_text("[streams.DEAD]\ndeny_purge = false\n")
    outcome = jstream("apply", file)
    assert outcome.code == 1 and "conflict  stream DEAD: deny_purge cannot be taken back" in outcome.out


def test_what_the_store_would_refuse_is_a_conflict_before_anything_is_done(jstream, orders: Store, file: Path) -> None:
    orders.stream("ORDERS").add_consumer({"name": "Audit"})
    for text, told in [
        ("[streams.ORDERS]\nnum_replicas = 3", "stream ORDERS: 3 replicas need as many volumes; the store has 1"),
        ("[streams.NEW]\nnum_replicas = 3", "stream NEW: 3 replicas need as many volumes; the store has 1"),
        ("[streams.orders]", "stream orders: stream 'orders' differs from stream 'ORDERS' only in case"),
        ("[streams.ORDERS.consumers.audit]", "consumer ORDERS/audit: consumer 'audit' of stream 'ORDERS' differs"),
        ("[streams.ORDERS]\nmax_age = '1m'", "stream ORDERS: duplicate_window: 2m is longer than max_age, 1m"),
        ("[streams.ORDERS]\nretention = 'workqueue'", "stream ORDERS: retention cannot be changed from 'limits'"),
        ("[settings]\nmax_streams = 1", "stream FIRST: the whole store: max_streams is 1"),
    ]:
        file.write_text(f"[streams.FIRST]\n{text}\n")
        outcome = jstream("apply", file, "--execute", "--json")
        assert outcome.code == 1 and json.loads(outcome.out)["executed"] is False
        assert f"conflict  {told}" in jstream("apply", file).out
    assert orders.streams() == ["ORDERS"]


def test_the_file_may_name_its_store(jstream, store: Store, file: Path) -> None:
    file.write_text('store = ["volume"]\n' + FILE)
    assert jstream("apply", file, "--execute", with_store=False).code == 0
    assert sorted(store.streams()) == ["DEAD", "ORDERS"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[streams.A]\nsubjcts = 5", "streams.A: unknown key of a stream: 'subjcts'; did you mean 'subjects'?"),
        ("[streams.A]\nmax_msg_size = 'big'", "streams.A: max_msg_size: 'big' is not a number of bytes"),
        ("[streams.A]\nretention = 'queue'", "streams.A: retention: 'queue' is not one of"),
        ("[streams.A]\nname = 'B'", "streams.A.name: 'B' is not the name of the table"),
        ("[streams.A.consumers.c]\nack_wait = 'x'", "streams.A.consumers.c: ack_wait: 'x' is not a duration"),
        ("[streams.A.consumer.c]", "streams.A.consumer: there is no such key; did you mean 'consumers'?"),
        ("[streams.A]\n[streams.a]", "streams: 'A' and 'a' differ in case only"),
        ("[stream.A]", "stream: there is no such key; did you mean 'streams'?"),
        ("", "streams: is missing"),
        (
            '[[streams]]\nname = "ORDERS"\n',
            "streams: is a list, as of [[streams]]; each stream is a table [streams.NAME]",
        ),
        ("[streams", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_wrong_usage(jstream, file: Path, text: str, told: str) -> None:
    file.write_text(text)
    outcome = jstream("apply", file, "--execute")
    assert outcome.code == 2 and f"{file}: " in outcome.err and told in outcome.err, outcome


def test_without_a_store_or_a_file_the_error_says_so(jstream, file: Path, tmp_path: Path) -> None:
    outcome = jstream("apply", file, with_store=False)
    assert outcome.code == 2 and "pass --store" in outcome.err
    gone = jstream("apply", tmp_path / "gone.toml")
    assert gone.code == 1 and "gone.toml: no such file or directory" in gone.err


def test_settings_of_the_store_are_applied_before_streams(jstream, store: Store, file: Path) -> None:
    file.write_text(
        FILE + '[settings]\nmax_bytes = "1TB"\nmax_streams = 5\n[settings.stream_defaults."DEA*"]\nmax_age = "7d"\n'
    )
    assert jstream.done("apply", file).splitlines()[:4] == [
        "change    store",
        "            max_bytes: -1 -> 1099511627776",
        "            max_streams: -1 -> 5",
        '            stream_defaults: {} -> {"DEA*": {"max_age": 604800000000000}}',
    ]
    jstream.done("apply", file, "--execute")
    assert (store.stream("DEAD").config.max_age, store.stream("ORDERS").config.max_age) == (7 * 86_400 * 10**9, 0)
    assert store.info()["settings"]["max_streams"] == 5
    assert "nothing to do" in jstream("apply", file).err
    for wrong, said in (
        ('[settings]\nmax_streams = "many"', "settings: max_streams: 'many' is not a whole number"),
        ('[settings]\npermissions = "group"', "permissions are those of files and directories"),
    ):
        file.write_text(FILE + wrong)
        outcome = jstream("apply", file, "--execute")
        assert outcome.code != 0 and said in outcome.out + outcome.err


def test_overlapping_subjects_are_a_conflict_unless_allowed(jstream, orders: Store, file: Path) -> None:
    file.write_text('[streams.A]\nsubjects = ["orders.new"]\n[streams.B]\nsubjects = ["b"]\n')
    refused = jstream("apply", file, "--execute")
    assert refused.code == 1
    assert "conflict  stream A: orders.new overlaps with orders.> of stream 'ORDERS'" in refused.out
    assert orders.streams() == ["ORDERS"]
    jstream.done("apply", file, "--execute", "--allow-overlap")
    assert orders.streams() == ["A", "B", "ORDERS"]
