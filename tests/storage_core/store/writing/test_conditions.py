"""Conditional appends: by one rule with a nats-server, and true whoever else appends at the same time."""

import asyncio
import json
import random
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from storage_core import Store
from storage_core.errors import ConditionFailedError, InvalidMessageError
from storage_core.store.stream import Stream

LAST, SUBJECT_LAST = "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"
SUBJECT_OF, LAST_ID, STREAM = f"{SUBJECT_LAST}-Subject", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Stream"
CONFIG = {"name": "S", "subjects": ["s.>"]}


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Store.create([tmp_path / name for name in "abc"]).add_stream(CONFIG)


def row(subject: str, **headers: object) -> dict[str, Any]:
    pairs = [(key.replace("_", "-"), str(value).encode()) for key, value in headers.items()]
    return {"subject": subject, "data": b"x", "headers": pairs}


def test_publish_is_refused_with_the_actual_value_and_stores_nothing(stream: Stream) -> None:
    assert stream.publish("s.a", "x", expected_last_sequence=0).sequence == 1
    assert stream.publish("s.b", "x", expected_last_subject_sequence=0, msg_id="first").sequence == 2
    assert stream.publish("s.b", "x", expected_last_msg_id="first", expected_last_subject_sequence=2).sequence == 3
    before = stream._store.view().index
    for expected, condition, actual in (
        ({"expected_last_sequence": 2}, "last_sequence", 3),
        ({"expected_last_subject_sequence": 3}, "last_subject_sequence", 1),
        ({"expected_last_msg_id": "first"}, "last_msg_id", None),
    ):
        with pytest.raises(ConditionFailedError) as refused:
            stream.publish("s.a", "x", **expected)
        assert (refused.value.condition, refused.value.expected, refused.value.actual) == (
            condition, next(iter(expected.values())), actual,
        )  # fmt: skip
    assert (stream._store.view().index, stream.last_sequence) == (before, 3)
    files = [path for volume in stream._store.volumes() for path in volume.path.rglob("*.blk")]
    assert len(files) == 3 * 3, "no block of a refused append is left"


def test_messages_count_with_those_before_them_in_their_append(stream: Stream) -> None:
    stream.publish("s.old", "x")
    rows = [
        row("s.a", Nats_Expected_Last_Subject_Sequence=0, Nats_Expected_Last_Sequence=1),
        row("s.b", Nats_Expected_Last_Sequence=2),
        {**row("s.a", Nats_Expected_Last_Subject_Sequence=2), "msg_id": "third"},
        row("s.c", Nats_Expected_Last_Subject_Sequence=4, Nats_Expected_Last_Subject_Sequence_Subject="s.*"),
        row("s.c", Nats_Expected_Last_Msg_Id="no"),
    ]
    with pytest.raises(ConditionFailedError, match="msg_id 'no'"):
        stream.append(rows)
    rows[3]["headers"].append((LAST_ID, b"third"))
    assert stream.append(rows[:4]) == range(2, 6)
    with pytest.raises(ConditionFailedError) as refused:
        stream.append(rows[1:2])
    assert (refused.value.expected, refused.value.actual) == (2, 5)


def test_what_an_append_replaces_still_counts_for_what_it_expects(tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "a").add_stream({**CONFIG, "max_msgs_per_subject": 1})
    revision = 0
    for _ in range(5):
        revision = stream.publish("s.key", "x", expected_last_subject_sequence=revision).sequence
        stream.publish("s.other", "x")
    with pytest.raises(ConditionFailedError):
        stream.publish("s.key", "x", expected_last_subject_sequence=1)
    assert stream.subjects() == {"s.key": 1, "s.other": 1}
    stream.remove(revision)
    assert stream.publish("s.key", "x", expected_last_subject_sequence=0).sequence == 11


def test_an_append_of_nothing_is_refused_as_well(stream: Stream) -> None:
    assert stream.append([], expected_last_sequence=0) == range(1, 1)
    with pytest.raises(ConditionFailedError):
        stream.append([], expected_last_sequence=1)
    assert stream.append([row("s.a")], expected_last_sequence=0) == range(1, 2)


@pytest.mark.parametrize("value", [-1, True, "1", 1.0])
def test_what_is_no_sequence_is_named(stream: Stream, value: Any) -> None:
    with pytest.raises(ValueError, match="expected_last_sequence"):
        stream.append([row("s.a")], expected_last_sequence=value)
    with pytest.raises(ValueError, match="expected_last_subject_sequence"):
        stream.publish("s.a", "x", expected_last_subject_sequence=value)


@pytest.mark.parametrize(
    "headers",
    [{LAST: "abc"}, {LAST: "-1"}, {LAST: "1" * 20}, {SUBJECT_LAST: "+1"}, {SUBJECT_OF: "s.a"},
     {SUBJECT_OF: "s..a", SUBJECT_LAST: "0"}],
)  # fmt: skip
def test_malformed_headers_are_refused(stream: Stream, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidMessageError, match="Nats-Expected"):
        stream.publish("s.a", "x", [(key, value.encode()) for key, value in headers.items()])


def test_more_conditions_than_an_append_takes_are_refused(stream: Stream) -> None:
    rows = [row("s.a", Nats_Expected_Last_Sequence=number) for number in range(1001)]
    with pytest.raises(InvalidMessageError, match="1001 messages"):
        stream.append(rows)
    assert stream.append(rows[:1000]) == range(1, 1001)


def increments(volumes: list[str], count: int) -> int:
    """Raise a counter so many times, as one of several; return how often another one was first."""
    stream, refused = Store.open(volumes).stream("S"), 0
    for _ in range(count):
        while True:
            last = stream.last("s.counter")
            value = int(last.data or b"0") + 1
            try:
                stream.publish("s.counter", str(value), expected_last_subject_sequence=last.sequence)
                break
            except ConditionFailedError:
                refused += 1
    return refused


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_no_update_is_lost_between(how: str, tmp_path: Path) -> None:
    volumes = [str(tmp_path / name) for name in "abc"]
    stream = Store.create(volumes).add_stream({**CONFIG, "max_msgs_per_subject": 5})
    stream.publish("s.counter", "0")
    if how == "threads":
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: increments(volumes, 8), range(3)))
    else:
        with get_context("spawn").Pool(3) as pool:
            pool.starmap(increments, [(volumes, 8)] * 3)
    assert stream.last("s.counter").data == b"24"


# --- beside a real server

nats_server = pytest.importorskip("harness.nats_server")
REFUSALS = {10071: ("last_sequence", "last_subject_sequence"), 10070: ("last_msg_id",), 10060: ("stream",)}


def test_outcomes_are_those_of_a_nats_server(tmp_path: Path) -> None:
    server = nats_server.Server(nats_server.INSTALLED, tmp_path / "server")
    try:
        asyncio.run(compare(server, tmp_path))
    finally:
        server.end(signal.SIGTERM)


class Both:
    """One stream, there and here."""

    def __init__(self, client: Any, stream: Stream) -> None:
        self._client, self.stream = client, stream
        self.outcomes: Counter[str] = Counter()

    async def publish(self, subject: str, headers: dict[str, str]) -> None:
        """Publish a message to both, and compare what becomes of it."""
        theirs = json.loads((await self._client.request(subject, b"x", headers=headers)).data)
        pairs = [(key, value.encode()) for key, value in headers.items() if key != "Nats-Msg-Id"]
        refusal = None
        try:
            ours = self.stream.publish(subject, b"x", pairs, headers.get("Nats-Msg-Id"))
        except ConditionFailedError as error:
            refusal = error
        if refusal is None:
            assert (theirs.get("seq"), theirs.get("duplicate", False)) == (ours.sequence, ours.duplicate), headers
            self.outcomes["duplicate" if ours.duplicate else "stored"] += 1
            return
        assert refusal.condition in REFUSALS[theirs["error"]["err_code"]], (headers, theirs)
        if refusal.condition in REFUSALS[10071]:
            assert theirs["error"]["description"] == f"wrong last sequence: {refusal.actual}", headers
        self.outcomes[str(refusal.condition)] += 1


async def compare(server: Any, folder: Path) -> None:
    client = await server.connect()
    reply = await client.request("$JS.API.STREAM.CREATE.S", json.dumps({**CONFIG, "storage": "file"}).encode())
    assert "error" not in json.loads(reply.data)
    both, choose = Both(client, Store.create(folder / "store").add_stream(CONFIG)), random.Random(1)
    for number in range(250):
        last = both.stream.last_sequence
        near = str(max(0, last - choose.choice([0, 0, 0, 1, 2])))
        headers = {
            name: value
            for name, value, chance in (
                (LAST, near, 0.3), (SUBJECT_LAST, near, 0.3), (LAST_ID, f"id{number - 1}", 0.2),
                (STREAM, choose.choice(["S", "S", "T"]), 0.1), ("Nats-Msg-Id", f"id{number}", 0.5),
            )
            if choose.random() < chance
        }  # fmt: skip
        if SUBJECT_LAST in headers and choose.random() < 0.5:
            headers[SUBJECT_OF] = choose.choice(["s.*", "s.0", "s.>", "elsewhere"])
        await both.publish(f"s.{choose.randrange(3)}", headers)
    # A duplicate uses up a sequence here, so it comes last.
    await both.publish("s.0", {"Nats-Msg-Id": "twice"})
    last = both.stream.last_sequence
    await both.publish("s.0", {"Nats-Msg-Id": "twice", LAST: str(last - 1)})
    await both.publish("s.0", {"Nats-Msg-Id": "twice", SUBJECT_LAST: str(last - 1)})
    await both.publish("s.0", {"Nats-Msg-Id": "twice", LAST: str(last), LAST_ID: "another"})
    await client.close()
    assert min(both.outcomes.values()) >= 1 and len(both.outcomes) == 6 and both.outcomes["stored"] > 50, both.outcomes
