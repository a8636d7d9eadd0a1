"""`jstream stream get|view|last|subjects|gaps|purge|rmm`."""

import json
import re
import signal

import pytest

from spark_stream.look.terminal import counted


def sequences(out: str) -> list[int]:
    return [json.loads(line)["seq"] for line in out.splitlines()]


def test_a_message_is_got_by_sequence(jstream, orders) -> None:
    first, header, *body = jstream.done("stream", "get", "ORDERS", 4).splitlines()
    assert first.startswith("[4] Subject: orders.new Received: 2")
    assert (header, body) == ("  number: 4", ["", "body 4", ""])
    assert jstream.done("stream", "get", "ORDERS", 4, "--raw") == "body 4\n"


def test_the_last_message_of_a_subject_is_got(jstream, orders) -> None:
    assert json.loads(jstream.done("stream", "get", "ORDERS", "-S", "orders.paid", "--json"))["seq"] == 5
    assert json.loads(jstream.done("stream", "get", "ORDERS", "--last-for", "orders.>", "--json"))["seq"] == 6


@pytest.mark.parametrize(
    ("words", "found"),
    [([], [5, 6]), (["--subject", "orders.paid"], [5]), (["--as-of", 5], [4, 5]), (["--as-of", 3], [1])],
)
def test_the_last_message_of_each_subject_is_printed(jstream, orders, words: list[object], found: list[int]) -> None:
    out = jstream.done("stream", "last", "ORDERS", *words, "--json")
    assert sequences(out) == found
    assert json.loads(out.splitlines()[-1]) == json.loads(jstream.done("stream", "get", "ORDERS", found[-1], "--json"))


@pytest.mark.parametrize(("sequence", "code"), [(0, 2), (2, 1), (7, 1), (10**15, 1)])
def test_a_message_that_is_not_there_is_an_error(jstream, orders, sequence: int, code: int) -> None:
    outcome = jstream("stream", "get", "ORDERS", sequence)
    assert (outcome.code, outcome.out) == (code, "")
    assert str(sequence) in outcome.err


def test_get_wants_either_a_sequence_or_a_subject(jstream, orders) -> None:
    assert jstream("stream", "get", "ORDERS").code == 2
    assert jstream("stream", "get", "ORDERS", 4, "-S", "orders.new").code == 2


def test_what_is_piped_is_all_messages_in_order(jstream, orders) -> None:
    out = jstream.done("stream", "view", "ORDERS")
    heads = [line.split()[0] for line in out.splitlines() if line.startswith("[")]
    assert heads == ["[1]", "[4]", "[5]", "[6]"]
    assert jstream.done("stream", "view", "ORDERS", "--raw") == "body 1\nbody 4\nbody 5\nbody 6\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([2], [1, 4]),
        (["--id", 2], [4, 5, 6]),
        (["--id", 5, 1], [5]),
        (["--id", 99], []),
        (["--subject", "orders.paid"], [5]),
        (["--subject", "none.such"], []),
        (["--since", "1h"], [1, 4, 5, 6]),
        (["--since", "2099-01-01T00:00:00Z"], []),
        (["--last", 2], [5, 6]),
        (["--last", 2, 1], [5]),
        (["--last", 9, "--subject", "orders.new"], [1, 4, 6]),
        (["--grep", "[46]$"], [4, 6]),
        (["--grep", "body", "--last", 2, "--subject", "orders.new"], [4, 6]),
        (["--header", "Number: 4"], [4]),
        (["--header", "number", 3], [1, 4, 5]),
        (["--field", "number=4"], []),
    ],
)
def test_a_view_begins_and_ends_where_it_is_told_to(jstream, orders, words: list[object], found: list[int]) -> None:
    assert sequences(jstream.done("stream", "view", "ORDERS", *words, "--json")) == found


def test_a_view_refuses_two_beginnings_and_filters_that_are_none(jstream, orders) -> None:
    assert jstream("stream", "view", "ORDERS", "--id", 1, "--since", "1h").code == 2
    assert jstream("stream", "view", "ORDERS", "--subject", "a..b").code == 2
    assert jstream("stream", "view", "ORDERS", "--since", "soon").code == 2
    assert jstream("stream", "view", "ORDERS", "--last", 1, "--id", 1).code == 2
    refused = jstream("stream", "view", "ORDERS", "--grep", "(")
    assert refused.code == 2 and "grep: '(' is no regular expression of RE2: missing )" in refused.err


def test_a_search_by_fields_follows_what_arrives(jstream, orders) -> None:
    for number in range(3):
        orders.stream("ORDERS").publish("orders.new", b'{"customer": {"id": %d}}' % number)
    found = jstream.done("stream", "view", "ORDERS", 1, "--field", "customer.id=1", "--follow", "--json")
    assert sequences(found) == [8]


def test_a_search_that_is_interrupted_says_where_to_resume(jstream, store) -> None:
    stream, big = store.add_stream({"name": "S", "block_max_msgs": 1}), b"x" * 200_000
    for _ in range(9):
        stream.publish("S", big)
    with jstream.start("stream", "view", "S", "--grep", "x", "--raw") as searching:
        assert searching.stdout.read(1) == b"x"  # and then it waits, since a pipe takes less than a message
        searching.send_signal(signal.SIGINT)
        _, said = searching.communicate(timeout=120)
    assert searching.returncode == 130
    assert re.search(rb"searched up to sequence (\d) of 9; --id (\d) resumes", said), said


def test_each_line_of_a_view_is_what_get_says_as_json(jstream, orders) -> None:
    orders.stream("ORDERS").publish("orders.größe", None, [("a", None), ("a", b"\xff")])
    lines = jstream.done("stream", "view", "ORDERS", "--json").splitlines()
    assert [json.loads(line) for line in lines] == [
        json.loads(jstream.done("stream", "get", "ORDERS", json.loads(line)["seq"], "--json")) for line in lines
    ]
    assert json.loads(lines[-1])["headers"] == [["a", None], ["a", "/w=="]]
    assert json.loads(lines[-1])["base64"] == ["headers"]
    assert json.loads(lines[-1])["data"] is None


def test_null_and_empty_and_binary_data_can_be_told_apart_and_steer_no_terminal(jstream, store) -> None:
    stream = store.add_stream({"name": "S"})
    for data in (None, b"", b"\x1b[31m\xff", b"zwei\nZeilen"):
        stream.publish("S", data)
    bodies = [text.split("\n\n", 1)[1] for text in jstream.done("stream", "view", "S").split("[")[1:]]
    assert bodies[0] == "(null)\n\n"
    assert bodies[1] == "\n\n"
    assert jstream.done("stream", "get", "S", 3).splitlines()[2] == "\\x1b[31m\\xff"
    assert jstream.done("stream", "get", "S", 4).splitlines()[2:4] == ["zwei", "Zeilen"]


def test_subjects_are_counted(jstream, orders) -> None:
    assert jstream.done("stream", "subjects", "ORDERS").splitlines() == [
        "subject      messages",
        "orders.new          3",
        "orders.paid         1",
    ]
    assert json.loads(jstream.done("stream", "subjects", "ORDERS", "--json")) == {"orders.new": 3, "orders.paid": 1}
    assert jstream.done("stream", "subjects", "ORDERS", "--subject", "*.paid", "--names") == "orders.paid\n"
    assert jstream("stream", "subjects", "ORDERS", "--subject", "nothing").err == "no subjects\n"


def test_subjects_are_sorted_by_messages_when_asked(jstream, orders) -> None:
    for _ in range(5):
        orders.stream("ORDERS").publish("orders.paid", b"")
    assert jstream.done("stream", "subjects", "ORDERS", "--sort", "messages", "-n") == "orders.paid\norders.new\n"
    assert jstream("stream", "subjects", "ORDERS", "--sort", "age").code == 2


def test_gaps_are_listed(jstream, orders) -> None:
    assert jstream.done("stream", "gaps", "ORDERS").splitlines()[1].split() == ["2", "3", "2"]
    assert json.loads(jstream.done("stream", "gaps", "ORDERS", "--json")) == [[2, 4]]


def test_a_stream_without_gaps_says_so_on_stderr(jstream, store) -> None:
    store.add_stream({"name": "S"})
    outcome = jstream("stream", "gaps", "S")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no gaps\n")
    assert jstream.done("stream", "gaps", "S", "--json") == "[]\n"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([], []),
        (["--seq", 5], [5, 6]),
        (["--keep", 1], [6]),
        (["--subject", "orders.new"], [5]),
        (["--subject", "orders.new", "--keep", 1], [5, 6]),
        (["--subject", "orders.new", "--seq", 5], [5, 6]),
        (["--before", "1971-01-01"], [1, 4, 5, 6]),
        (["--before", "2100-01-01T12:00Z"], []),
        (["--before", "2100-01-01", "--subject", "orders.new"], [5]),
        (["--before", "2100-01-01", "--keep", 1], [6]),
        (["--older-than", "10000d"], [1, 4, 5, 6]),
        (["--older-than", "0"], []),
    ],
)
def test_a_purge_leaves_what_it_is_told_to(jstream, orders, words: list[object], left: list[int]) -> None:
    outcome = jstream("stream", "purge", "ORDERS", *words, "--force")
    assert (outcome.code, outcome.out) == (0, "")
    removed = f"removed {counted(4 - len(left), 'message')} from stream ORDERS"
    room = "; `jstream cluster info` says when their room comes back" if len(left) < 4 else ""
    assert outcome.err == f"{removed}{room}\n"
    assert sequences(jstream.done("stream", "view", "ORDERS", "--json")) == left


@pytest.mark.parametrize("words", [["purge", "ORDERS"], ["rmm", "ORDERS", 1]])
def test_nothing_is_removed_without_consent(jstream, orders, words: list[object]) -> None:
    outcome = jstream("stream", *words)
    assert outcome.code == 2
    assert "Nothing was changed" in outcome.err
    assert "--force" in outcome.err
    assert sequences(jstream.done("stream", "view", "ORDERS", "--json")) == [1, 4, 5, 6]


def test_a_purge_refuses_two_limits(jstream, orders) -> None:
    assert jstream("stream", "purge", "ORDERS", "--seq", 3, "--keep", 1, "--force").code == 2
    assert jstream("stream", "purge", "ORDERS", "--older-than", "1d", "--before", "2026-01-01", "--force").code == 2


@pytest.mark.parametrize(
    ("option", "value"), [("--older-than", "7"), ("--older-than", "-1d"), ("--before", "yesterday")]
)
def test_a_purge_by_what_is_no_time_is_wrong_usage(jstream, orders, option: str, value: str) -> None:
    outcome = jstream("stream", "purge", "ORDERS", option, value, "--force")
    assert (outcome.code, outcome.out) == (2, "")
    assert option in outcome.err
    assert sequences(jstream.done("stream", "view", "ORDERS", "--json")) == [1, 4, 5, 6]


def test_a_dry_purge_says_what_it_would_do_and_does_nothing(jstream, orders) -> None:
    stream = orders.stream("ORDERS")
    for name in ("all", "half", "new"):
        stream.add_consumer({"name": name})
    for name, count in (("all", 4), ("half", 2)):
        got = stream.consumer(name).fetch(count, 0)
        stream.consumer(name).ack(got["sequence"])
    stream.add_consumer({"name": "paid", "filter_subjects": ["orders.paid"]})
    assert "consumer paid has not acknowledged up to 1 of them" in jstream("stream", "purge", "ORDERS", "--dry-run").err
    jstream.done("consumer", "rm", "ORDERS", "paid", "--force")
    index, state = orders.view().index, stream.state()
    for words in (["--subject", "orders.new"], ["--seq", 5], ["--keep", 1], []):
        planned = json.loads(jstream.done("stream", "purge", "ORDERS", *words, "--dry-run", "--json"))
        said = jstream("stream", "purge", "ORDERS", *words, "--dry-run").err
        assert f"would remove {counted(planned['num_removed'], 'message')} (" in said
        assert "consumer new has not acknowledged " in said and "consumer all" not in said
        assert ("come back" in said) == (planned["blocks"] > 0) == (planned["freed_from"] is not None)
        assert (planned["executed"], orders.view().index) == (False, index)
    assert planned["blocks"] == len(state.blocks) and planned["num_left"] == 0

    # Then it does just that.
    planned = json.loads(jstream.done("stream", "purge", "ORDERS", "--keep", 1, "--dry-run", "--json"))
    files = {row.tobytes(): int(row["file_size"]) for row in state.blocks.rows}
    assert jstream("stream", "purge", "ORDERS", "--keep", 1, "--force").err.startswith(
        f"removed {planned['num_removed']} messages"
    )
    after = stream.state()
    freed = set(files) - {row.tobytes() for row in after.blocks.rows}
    assert (len(freed), sum(files[row] for row in freed)) == (planned["blocks"], planned["disk_bytes"])
    assert state.data_size - after.data_size == planned["bytes"]
    skipped = {name: stream.consumer(name).info()["num_skipped"] for name in ("all", "half", "new")}
    assert {name: count for name, count in skipped.items() if count} == planned["num_unread"] == {"half": 1, "new": 3}


def test_a_purge_that_the_stream_denies_fails(jstream, orders) -> None:
    orders.edit_stream({"name": "ORDERS", "deny_purge": True})
    for how in ("--force", "--dry-run"):
        outcome = jstream("stream", "purge", "ORDERS", how)
        assert outcome.code == 1
        assert "deny_purge" in outcome.err


def test_single_messages_are_removed(jstream, orders) -> None:
    assert jstream("stream", "rmm", "ORDERS", 6, 1, 6, "--force").err == "removed 2 messages from stream ORDERS\n"
    assert sequences(jstream.done("stream", "view", "ORDERS", "--json")) == [4, 5]


def test_removing_what_is_not_there_fails_and_says_how_many_were(jstream, orders) -> None:
    outcome = jstream("stream", "rmm", "ORDERS", 1, 2, 99, "--force")
    assert outcome.code == 1
    assert "removed 1 of 3 messages" in outcome.err


@pytest.mark.parametrize("sequence", [0, -1, 2**63, 10**30])
def test_what_can_be_no_sequence_is_wrong_usage(jstream, orders, sequence: int) -> None:
    assert jstream("stream", "rmm", "ORDERS", "--force", "--", sequence).code == 2


def test_subjects_take_their_filter_as_an_argument_too(jstream, orders) -> None:
    assert json.loads(jstream.done("stream", "subjects", "ORDERS", "*.paid", "--json")) == {"orders.paid": 1}
    outcome = jstream("stream", "subjects", "ORDERS", "*.paid", "--subject", "*.paid")
    assert outcome.code == 2 and "pass one of them" in outcome.err


def test_a_purge_prints_the_stream_as_json_when_asked(jstream, orders) -> None:
    info = json.loads(jstream.done("stream", "purge", "ORDERS", "--force", "--json"))
    assert info == json.loads(jstream.done("stream", "info", "ORDERS", "--json"))
    assert (info["state"]["messages"], info["state"]["last_seq"]) == (0, 6)


def test_messages_that_were_not_there_to_be_removed_are_named(jstream, orders) -> None:
    outcome = jstream("stream", "rmm", "ORDERS", 1, 2, 99, "--force")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: removed 1 of 3 messages from stream ORDERS: not there: 2, 99\n"
    assert jstream("stream", "rmm", "ORDERS", *range(50, 80), "--force").err.endswith("57, 58, 59, ...\n")
