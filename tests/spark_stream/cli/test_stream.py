"""`jstream stream add|edit|ls|info|find|rm`."""

import json
from pathlib import Path

import pytest


def config_of(jstream, name: str) -> dict[str, object]:
    return json.loads(jstream.done("stream", "info", name, "--json"))["config"]


def test_a_stream_is_made_with_what_was_asked_for(jstream) -> None:
    outcome = jstream(
        *("stream", "add", "ORDERS", "--subjects", "orders.new,orders.paid", "--subjects", "refunds.>"),
        *("--description", "all of them", "--compression", "zstd", "--max-msg-size", "64KB", "--dupe-window", "1h30m"),
        *("--deny-delete", "--metadata", "team=sales", "--metadata", "note=a=b", "--block-max-bytes", "1MB"),
        *("--block-max-msgs", 1000, "--replicas", 1, "--json"),
    )
    assert (outcome.code, outcome.err) == (0, "created stream ORDERS\n")
    config = json.loads(outcome.out)["config"]
    wanted = {
        "name": "ORDERS",
        "subjects": ["orders.new", "orders.paid", "refunds.>"],
        "description": "all of them",
        "compression": "zstd",
        "max_msg_size": 65536,
        "duplicate_window": 5_400_000_000_000,
        "deny_delete": True,
        "deny_purge": False,
        "metadata": {"team": "sales", "note": "a=b"},
        "block_max_bytes": 1 << 20,
        "block_max_msgs": 1000,
        "num_replicas": 1,
    }
    assert {key: config[key] for key in wanted} == wanted


def test_a_stream_without_subjects_takes_its_name(jstream) -> None:
    jstream.done("stream", "add", "ORDERS")
    assert config_of(jstream, "ORDERS")["subjects"] == ["ORDERS"]


def test_the_config_of_one_stream_makes_another_and_options_win_over_it(jstream, tmp_path) -> None:
    jstream.done("stream", "add", "A", "--subjects", "a.>", "--compression", "lz4", "--deny-purge")
    (tmp_path / "a.json").write_text(jstream.done("stream", "info", "A", "--json"))
    jstream.done("stream", "add", "B", "--config", tmp_path / "a.json", "--subjects", "b.>", "--compression", "zstd")
    made = config_of(jstream, "B")
    assert (made["name"], made["subjects"], made["compression"], made["deny_purge"]) == ("B", ["b.>"], "zstd", True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"max_age": 5}', "max_age"),
        ('{"max_msgs_per_subject": -5}', "max_msgs_per_subject"),
        ('{"discard_new_per_subject": true}', "discard_new_per_subject"),
        ('{"subject": ["a"]}', "did you mean 'subjects'?"),
    ],
)
def test_a_config_that_is_none_is_wrong_usage(jstream, tmp_path, content: str, said: str) -> None:
    (tmp_path / "config.json").write_text(content)
    outcome = jstream("stream", "add", "A", "--config", tmp_path / "config.json")
    assert outcome.code == 2
    assert said in outcome.err
    assert jstream.done("stream", "ls", "--json") == "[]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a b"], "name of a stream"),
        (["A", "--subjects", "a..b"], "subjects"),
        (["A", "--compression", "gzip"], "compression"),
        (["A", "--dupe-window", "120"], "--dupe-window"),
        (["A", "--max-msg-size", "huge"], "--max-msg-size"),
        (["A", "--max-msgs", "-7"], "max_msgs: -7"),
        (["A", "--max-bytes", "10 apples"], "--max-bytes"),
        (["A", "--max-age", "3600"], "--max-age"),
        (["A", "--max-bytes", "1KB", "--max-msg-size", "2KB"], "max_msg_size: 2048 bytes are more than max_bytes"),
        (["A", "--max-consumers", "-2"], "max_consumers"),
        (["A", "--discard", "all"], "discard"),
        (["A", "--metadata", "novalue"], "--metadata"),
        (["A", "--replicas", "3"], "num_replicas"),
    ],
)
def test_a_value_that_is_not_taken_is_wrong_usage_that_names_it(jstream, words: list[str], said: str) -> None:
    outcome = jstream("stream", "add", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_a_name_that_is_taken_in_another_case_is_refused(jstream, orders) -> None:
    outcome = jstream("stream", "add", "orders")
    assert outcome.code == 1
    assert "ORDERS" in outcome.err


def test_an_edit_changes_what_is_given_and_nothing_else(jstream, orders) -> None:
    before = config_of(jstream, "ORDERS")
    outcome = jstream("stream", "edit", "ORDERS", "--max-msg-size", "1KB", "--deny-purge")
    assert outcome.code == 0
    assert outcome.err == "max_msg_size: -1 -> 1024\ndeny_purge: false -> true\n"
    assert config_of(jstream, "ORDERS") == {**before, "max_msg_size": 1024, "deny_purge": True}


def test_limits_are_set_as_the_nats_command_has_them(jstream) -> None:
    words = ("--max-msgs", 5, "--max-bytes", "10GB", "--max-age", "1d", "--max-consumers", 3, "--discard", "new")
    jstream.done("stream", "add", "FULL", *words)
    wanted = {
        "max_msgs": 5, "max_bytes": 10 << 30, "max_age": 86_400_000_000_000, "max_consumers": 3, "discard": "new",
    }  # fmt: skip
    config = config_of(jstream, "FULL")
    assert {key: config[key] for key in wanted} == wanted
    jstream.done("stream", "edit", "FULL", "--max-msgs", -1, "--max-bytes", -1, "--max-age", 0, "--max-consumers", -1)
    config = config_of(jstream, "FULL")
    assert [config[key] for key in wanted] == [-1, -1, 0, -1, "new"]


def test_limits_of_subjects_are_set_and_what_they_remove_is_said_before(jstream, store) -> None:
    jstream.done("stream", "add", "KV", "--subjects", "kv.*", "--max-msgs-per-subject", 2)
    for subject in "abaa":
        jstream.done("pub", f"kv.{subject}", "x")
    dry = jstream("stream", "edit", "KV", "--max-msgs-per-subject", 1, "--dry-run")
    assert "would remove 1 message (5 B) over the limit of their subjects\n" in dry.err
    done = jstream("stream", "edit", "KV", "--max-msgs-per-subject", 1, "--max-msgs", 2, "--force")
    assert "removed 2 messages (10 B), 1 over the limit of their subjects, the others below sequence 3\n" in done.err
    words = ("--max-msgs-per-subject", 1, "--discard", "new", "--discard-per-subject")
    jstream.done("stream", "edit", "KV", *words)
    config = config_of(jstream, "KV")
    assert (config["max_msgs_per_subject"], config["discard_new_per_subject"]) == (1, True)
    refused = jstream("pub", "kv.a", "x")
    assert (refused.code, "max_msgs_per_subject is 1; subject 'kv.a' has 1" in refused.err) == (1, True)
    assert "discard: new, per subject" in jstream.done("stream", "info", "KV")


def test_an_edit_that_removes_messages_says_so_before_and_asks(jstream, orders) -> None:
    count, last = orders.stream("ORDERS").state().message_count, orders.stream("ORDERS").last_sequence
    dry = jstream("stream", "edit", "ORDERS", "--max-msgs", 1, "--dry-run")
    assert dry.code == 0
    assert f"would remove {count - 1} messages (" in dry.err
    assert f"below sequence {last}" in dry.err
    refused = jstream("stream", "edit", "ORDERS", "--max-msgs", 1)
    assert (refused.code, orders.stream("ORDERS").state().message_count) == (2, count)
    assert "pass --force. Nothing was changed" in refused.err
    done = jstream("stream", "edit", "ORDERS", "--max-msgs", 1, "--force")
    assert f"removed {count - 1} messages (" in done.err
    assert (done.code, orders.stream("ORDERS").state().message_count) == (0, 1)


def test_a_full_stream_refuses_with_limit_value_and_what_came(jstream) -> None:
    jstream.done("stream", "add", "FULL", "--max-msgs", 1, "--discard", "new")
    jstream.done("pub", "FULL", "a")
    refused = jstream("pub", "FULL", "b")
    assert (refused.code, refused.out) == (1, "")
    said = "[JSTREAM_LIMIT_EXCEEDED] stream 'FULL': max_msgs is 1; it has 1, and 1 more came. Nothing was stored"
    assert said in refused.err


def test_an_edit_that_the_store_refuses_says_so_and_nothing_else(jstream, orders) -> None:
    orders.edit_stream({"name": "ORDERS", "deny_purge": True})
    outcome = jstream("stream", "edit", "ORDERS", "--no-deny-purge")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: [JSTREAM_REQUIREMENT] stream 'ORDERS': deny_purge cannot be taken back\n"


def test_a_dry_run_says_what_would_change_and_changes_nothing(jstream, orders) -> None:
    before = config_of(jstream, "ORDERS")
    outcome = jstream("stream", "edit", "ORDERS", "--subjects", "a,b", "--dry-run")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == 'subjects: ["orders.>"] -> ["a", "b"]\n'
    outcome = jstream("stream", "edit", "ORDERS", "--subjects", "a,b", "--dry-run", "--json")
    assert json.loads(outcome.out) == {**before, "subjects": ["a", "b"]}
    assert config_of(jstream, "ORDERS") == before


def test_an_edit_without_a_change_is_wrong_usage_and_of_the_same_value_is_none(jstream, orders) -> None:
    assert jstream("stream", "edit", "ORDERS").code == 2
    assert jstream("stream", "edit", "ORDERS", "--compression", "zstd").err == "nothing changes\n"


def test_an_edit_cannot_rename(jstream, orders, tmp_path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"name": "OTHER", "description": "new"}))
    jstream.done("stream", "edit", "ORDERS", "--config", tmp_path / "other.json")
    assert jstream.done("stream", "ls", "--names") == "ORDERS\n"
    assert config_of(jstream, "ORDERS")["description"] == "new"


def test_streams_are_listed_for_people_as_names_and_as_json(jstream, orders) -> None:
    jstream.done("stream", "add", "EMPTY", "--subjects", "e")
    heading, empty, full = jstream.done("stream", "ls").splitlines()
    assert heading.split()[:4] == ["name", "subjects", "replicas", "messages"]
    assert empty.split()[:4] == ["EMPTY", "e", "1", "0"]
    assert full.split()[:4] == ["ORDERS", "orders.>", "1", "4"]
    assert jstream.done("stream", "ls", "--names") == "EMPTY\nORDERS\n"
    assert json.loads(jstream.done("stream", "ls", "--json")) == ["EMPTY", "ORDERS"]
    assert json.loads(jstream.done("stream", "ls", "--subject", "orders.new", "--json")) == ["ORDERS"]


def test_a_store_without_streams_says_so_on_stderr(jstream) -> None:
    outcome = jstream("stream", "ls")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no streams\n")


def test_info_for_people_has_configuration_state_and_replicas(jstream, orders) -> None:
    lines = [line.strip() for line in jstream.done("stream", "info", "ORDERS").splitlines()]
    assert lines[0] == "Stream ORDERS"
    assert {"subjects: orders.>", "messages: 4", "removed: 2", "deny delete: no", "lost ranges: -"} <= set(lines)
    assert lines[-1].split()[1:3] == ["current", "yes"]


@pytest.mark.parametrize(
    ("criteria", "found"),
    [
        (["--empty"], ["EMPTY"]),
        (["--empty", "--invert"], ["ORDERS"]),
        (["--subject", "orders.*"], ["ORDERS"]),
        (["--subject", ">"], ["EMPTY", "ORDERS"]),
        (["--subject", "orders.new", "--empty"], []),
        (["--created", "1h"], []),
        (["--created", "0s"], ["EMPTY", "ORDERS"]),
        (["--created", "2099-01-01"], ["EMPTY", "ORDERS"]),
        (["--idle", "1h"], ["EMPTY"]),
        (["--idle", "0s"], ["EMPTY", "ORDERS"]),
        (["--replicas", "1"], ["EMPTY", "ORDERS"]),
        (["--replicas", "0"], []),
    ],
)
def test_streams_are_found_by_criteria(jstream, orders, criteria: list[str], found: list[str]) -> None:
    orders.add_stream({"name": "EMPTY"})
    assert json.loads(jstream.done("stream", "find", *criteria, "--json")) == found


def test_finding_without_a_criterion_or_by_no_filter_is_wrong_usage(jstream, orders) -> None:
    assert jstream("stream", "find").code == 2
    assert jstream("stream", "find", "--subject", "a..b").code == 2


def test_metadata_cannot_steer_a_terminal(jstream) -> None:
    note = "k\x1b[31m\x9b2J\u202e\r\nx=v\x1b]0;title\x07"
    jstream.done("stream", "add", "NOTES", "--metadata", note)
    jstream.done("consumer", "add", "NOTES", "reader", "--metadata", note)
    for words in (["stream", "info", "NOTES"], ["consumer", "info", "NOTES", "reader"]):
        shown = jstream.done(*words)
        assert r"metadata k\x1b[31m\x9b2J\u202e\r\nx: v\x1b]0;title\x07" in shown
        assert shown.replace("\n", "").isprintable()
    edited = jstream("stream", "edit", "NOTES", "--metadata", "other\x1b[2J=v\x07", "--dry-run")
    assert edited.code == 0 and (edited.out + edited.err).replace("\n", "").isprintable()
    assert jstream.done("stream", "info", "NOTES", "--json").isascii()


def test_a_stream_is_not_deleted_without_consent(jstream, orders) -> None:
    outcome = jstream("stream", "rm", "ORDERS")
    assert outcome.code == 2
    assert "--force" in outcome.err
    assert jstream.done("stream", "ls", "--names") == "ORDERS\n"


def test_a_stream_is_deleted_with_force(jstream, orders) -> None:
    outcome = jstream("stream", "rm", "ORDERS", "--force")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "stream ORDERS was deleted with 4 messages\n")
    assert jstream("stream", "info", "ORDERS").code == 1
    assert jstream("stream", "rm", "ORDERS", "--force").code == 1


def test_a_sealed_stream_keeps_what_it_has_and_takes_nothing(jstream, orders) -> None:
    asked = jstream("stream", "seal", "ORDERS")
    assert (asked.code, config_of(jstream, "ORDERS")["sealed"]) == (2, False)
    assert "stream seal cannot be taken back" in asked.err and "pass --force" in asked.err
    done = jstream("stream", "seal", "ORDERS", "--force")
    assert (done.code, done.out, done.err) == (0, "", "stream ORDERS is sealed with 4 messages\n")
    assert "sealed: yes" in jstream.done("stream", "info", "ORDERS")
    for refused in (("pub", "orders.eu", "late"), ("stream", "rmm", "ORDERS", 1, "--force")):
        outcome = jstream(*refused)
        assert outcome.code == 1
        assert "[JSTREAM_REQUIREMENT] stream 'ORDERS' is sealed" in outcome.err
    again = jstream("stream", "seal", "ORDERS")
    assert (again.code, again.err) == (0, "stream ORDERS is sealed already, with 4 messages\n")
    assert orders.stream("ORDERS").state().message_count == 4


def test_flags_of_nats_that_ask_nothing_are_taken(jstream, orders) -> None:
    jstream.done("stream", "add", "SCRIPTED", "--defaults")
    jstream.done("stream", "edit", "SCRIPTED", "--description", "by a script", "--force")
    jstream.done("stream", "gaps", "ORDERS", "--force")
    jstream.done("consumer", "add", "SCRIPTED", "c", "--defaults")
    jstream.done("consumer", "pause", "SCRIPTED", "c", "1h", "--force")
    jstream.done("consumer", "resume", "SCRIPTED", "c", "--force")
    assert orders.stream("SCRIPTED").config.description == "by a script"


def test_a_work_queue_is_made_with_the_flag_of_nats(jstream, orders) -> None:
    made = json.loads(jstream.done("stream", "add", "QUEUE", "--retention", "work", "--json"))
    assert made["config"]["retention"] == "workqueue"
    jstream.done("consumer", "add", "QUEUE", "first")
    assert jstream("consumer", "add", "QUEUE", "second").code == 1
    assert jstream("stream", "edit", "QUEUE", "--retention", "limits", "--force").code == 1
    jstream.done("pub", "QUEUE", "job")
    jstream.done("consumer", "next", "QUEUE", "first", "--ack")
    assert json.loads(jstream.done("stream", "info", "QUEUE", "--json"))["state"]["messages"] == 0


def test_what_a_server_shows_of_a_stream_is_taken_as_its_configuration(jstream, store, tmp_path: Path) -> None:
    told = {
        **{"name": "OTHER", "subjects": ["n.>"], "retention": "limits", "max_consumers": -1, "max_msgs": -1},
        **{"max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1, "discard": "old"},
        **{"storage": "file", "num_replicas": 1, "duplicate_window": 120000000000, "compression": "zstd"},
        **{"allow_direct": True, "mirror_direct": False, "sealed": False, "deny_delete": True, "deny_purge": False},
        **{"allow_rollup_hdrs": False, "consumer_limits": {}, "allow_msg_ttl": False},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": told, "state": {}}))
    made = json.loads(jstream.done("stream", "add", "MINE", "--config", path, "--json"))["config"]
    assert (made["name"], made["subjects"], made["deny_delete"]) == ("MINE", ["n.>"], True)
    path.write_text(json.dumps({**told, "consumer_limits": {"max_ack_pending": 5}}))
    assert "consumer_limits" in jstream("stream", "add", "OTHER", "--config", path).err


def test_subjects_of_another_stream_are_taken_only_if_that_is_allowed(jstream, tmp_path) -> None:
    jstream.done("stream", "add", "A", "--subjects", "a.>")
    jstream.done("stream", "add", "C", "--subjects", "c")
    overlap = "stream 'B': a.x overlaps with a.> of stream 'A'"
    for words in (["add", "B", "--subjects", "a.x,b"], ["edit", "C", "--subjects", "a.x"]):
        refused = jstream("stream", *words)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith(f"error: [JSTREAM_SUBJECTS_OVERLAP] {overlap.replace('B', words[1])}. ")
        allowed = jstream("stream", *words, "--allow-overlap")
        assert allowed.code == 0
        assert f"warning: {overlap.replace('B', words[1])}\n" in allowed.err
    jstream.done("backup", tmp_path / "backup")
    restored = jstream("restore", tmp_path / "backup", "--stream", "A", "--as", "OLD", "--force")
    assert restored.code == 0
    assert "warning: stream 'OLD': a.> overlaps with a.> of stream 'A'\n" in restored.err
    assert jstream("stream", "edit", "A", "--max-msgs", "9").err == "max_msgs: -1 -> 9\n"
