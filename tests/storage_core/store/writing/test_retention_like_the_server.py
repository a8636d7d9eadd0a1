"""Retention by interest and work queues on a real nats-server and here: the same messages stay, the same is refused."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.processes import Machine

from storage_core.errors import InvalidMessageError, RequirementError

nats_server = pytest.importorskip("harness.nats_server")

SEED = os.environ.get("JSTREAM_NATS_SEED", "retention")
OPERATIONS = 90
SUBJECTS = ("s.a", "s.b", "s.c")
OFTEN = ["publish", "fetch", "ack"]
HOUR_NS = 3_600_000_000_000
MARKER_HEADERS = ("Nats-Marker-Reason", "Nats-TTL", "Nats-Rollup")
Story = Callable[["Both"], Awaitable[None]]


class Both:
    """Streams and consumers, there and here."""

    def __init__(self, client: Any) -> None:
        machine = Machine(1)
        self._client, self._store, self.clock = client, machine.create(), machine.clock
        self.waiting: dict[str, dict[int, str]] = {}  # by consumer: sequence and where its acknowledgement goes
        self.name = ""

    async def call(self, verb: str, **asked: Any) -> dict[str, Any]:
        reply = await self._client.request(f"$JS.API.{verb}", json.dumps(asked).encode() if asked else b"", timeout=10)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    async def begin(self, name: str, **config: Any) -> None:
        config = {"name": name, "subjects": [f"{name}.>"], **config}
        assert "error" not in await self.call(f"STREAM.CREATE.{name}", storage="file", **config)
        self._stream, self.name, self.waiting = self._store.add_stream(config), name, {}

    async def same(self, verb: str, asked: dict[str, Any], ours: Callable[[], object]) -> bool:
        """Do it there and here; return whether it was done, the same in both places."""
        answer, refusal = await self.call(verb, **asked), None
        try:
            ours()
        except (RequirementError, ValueError) as error:
            refusal = error
        assert ("error" in answer) == (refusal is not None), (verb, asked, answer, refusal)
        return refusal is None

    async def edit(self, **changes: Any) -> bool:
        theirs = {"name": self.name, "subjects": [f"{self.name}.>"], "storage": "file", **changes}
        return await self.same(
            f"STREAM.UPDATE.{self.name}", theirs, lambda: self._store.edit_stream({"name": self.name, **changes})
        )

    async def add_consumer(self, name: str, **config: Any) -> bool:
        config = {"ack_policy": "explicit", "ack_wait": HOUR_NS, **config}
        done = await self.same(
            f"CONSUMER.DURABLE.CREATE.{self.name}.{name}",
            {"stream_name": self.name, "config": {"durable_name": name, **config}},
            lambda: self._stream.add_consumer({"name": name, **config}),
        )
        if done:
            self.waiting[name] = {}
        return done

    async def delete_consumer(self, name: str) -> None:
        await self.call(f"CONSUMER.DELETE.{self.name}.{name}")
        self._stream.consumer(name).delete()
        del self.waiting[name]

    async def publish(self, subject: str, **headers: str) -> bool:
        """Publish there and here; return whether the message was taken, the same in both places."""
        named = {f"Nats-{key}": value for key, value in headers.items()}
        asked = self._client.request(f"{self.name}.{subject}", b"data", timeout=10, headers=named or None)
        reply = json.loads((await asked).data)
        try:
            pairs = [(key, value.encode()) for key, value in named.items()]
            sequence = self._stream.publish(f"{self.name}.{subject}", b"data", pairs or None).sequence
        except InvalidMessageError:
            sequence = None
        assert reply.get("seq") == sequence or ("error" in reply and sequence is None), (headers, reply)
        return sequence is not None

    async def fetch(self, name: str) -> None:
        asked = json.dumps({"batch": 1, "no_wait": True}).encode()
        inbox = self._client.new_inbox()  # a message comes with its own subject, so not as a reply
        subscription = await self._client.subscribe(inbox)
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{name}", asked, reply=inbox)
        message = await subscription.next_msg(timeout=10)
        await subscription.unsubscribe()
        ours = self._stream.consumer(name).fetch(1, 0).column("sequence").to_pylist()
        theirs = [int(message.reply.split(".")[5])] if message.reply else []
        assert ours == theirs, (name, ours, theirs)
        self.waiting[name] |= dict.fromkeys(theirs, message.reply)

    async def settle(self, name: str, sequence: int, how: str) -> None:
        reply = self.waiting[name].pop(sequence)
        await self._client.request(reply, {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM"}[how], timeout=10)
        getattr(self._stream.consumer(name), how)(sequence)

    async def purge(self, up_to: int) -> None:
        await self.call(f"STREAM.PURGE.{self.name}", seq=up_to)
        self._stream.purge(end=up_to)

    async def check(self, where: str, size: bool = True) -> None:
        """Wait until the server shows what is here: some of its removals come after its answer."""
        ours = self._stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
        for pause in (0, 0.02, 0.1, 0.3, 1, 3):
            await asyncio.sleep(pause)
            state = (await self.call(f"STREAM.INFO.{self.name}", deleted_details=True))["state"]
            theirs = set(range(state["first_seq"], state["last_seq"] + 1)) - set(state.get("deleted") or ())
            if ours == sorted(theirs):
                break
        assert ours == sorted(theirs), where
        assert not size or self._stream.state().data_size == len(ours) * len(f"{self.name}.adata"), where


def on_server(folder: Path, story: Story) -> None:
    async def run() -> None:
        server = nats_server.Server(nats_server.INSTALLED, folder)
        try:
            client = await server.connect()
            await story(Both(client))
            await client.close()
        finally:
            server.end(signal.SIGKILL)

    asyncio.run(run())


CONSUMERS: dict[str, list[dict[str, Any]]] = {
    "workqueue": [{"filter_subject": "%s.a"}, {"filter_subject": "%s.b"}],
    "interest": [{}, {"filter_subject": "%s.a"}, {"deliver_policy": "new"}, {"ack_policy": "none"}],
}


def named(config: dict[str, Any], stream: str) -> dict[str, Any]:
    return {key: value % stream if "%s" in value else value for key, value in config.items()}


@pytest.mark.parametrize("retention", CONSUMERS)
def test_random_operations_leave_the_same_messages(retention: str, tmp_path: Path) -> None:
    choose = random.Random(f"{SEED} {retention}")

    async def story(both: Both) -> None:
        await both.begin("R", retention=retention)
        for step in range(OPERATIONS):
            what = choose.choice(OFTEN * 5 + ["nak", "term", "add", "delete", "purge"])
            names = sorted(both.waiting)
            if what == "publish":
                await both.publish(choose.choice("abc"))
            elif what == "add":
                at = choose.randrange(len(CONSUMERS[retention]))
                if f"c{at}" not in names:
                    await both.add_consumer(f"c{at}", **named(CONSUMERS[retention][at], "R"))
            elif what == "fetch" and names:
                await both.fetch(choose.choice(names))
            elif what in ("ack", "nak", "term"):
                waits = [(name, sequence) for name in names for sequence in both.waiting[name] if name != "c3"]
                if waits:
                    await both.settle(*choose.choice(waits), what)
            elif what == "delete" and names and choose.random() < 0.5:
                await both.delete_consumer(choose.choice(names))
            elif what == "purge" and choose.random() < 0.3:
                await both.purge(choose.randint(1, both._stream.last_sequence + 1))
            await both.check(f"JSTREAM_NATS_SEED={SEED} {retention} step {step}: {what}")

    on_server(tmp_path, story)


def test_the_rules_about_consumers_are_the_same(tmp_path: Path) -> None:
    tried: list[tuple[str, dict[str, Any]]] = [
        ("a", {"filter_subject": "%s.a"}),
        ("same", {"filter_subject": "%s.a"}),
        ("wider", {"filter_subject": "%s.*"}),
        ("all", {}),
        ("other", {"filter_subject": "%s.b.>"}),
        ("two", {"filter_subjects": ["%s.c", "%s.b.x"]}),
        ("none", {"filter_subject": "%s.n", "ack_policy": "none"}),
        ("ack_all", {"filter_subject": "%s.l", "ack_policy": "all"}),
        ("new", {"filter_subject": "%s.w", "deliver_policy": "new"}),
        ("last", {"filter_subject": "%s.x", "deliver_policy": "last"}),
        ("by_seq", {"filter_subject": "%s.y", "deliver_policy": "by_start_sequence", "opt_start_seq": 1}),
    ]

    async def story(both: Both) -> None:
        for retention in ("workqueue", "interest", "limits"):
            await both.begin(retention.upper(), retention=retention)
            for name, config in tried:
                await both.add_consumer(name, **json.loads(json.dumps(config).replace("%s", retention.upper())))
            for other in ("workqueue", "interest", "limits"):
                await both.edit(retention=other)

    on_server(tmp_path, story)


def test_a_change_of_retention_lets_go_of_what_was_done(tmp_path: Path) -> None:
    async def story(both: Both) -> None:
        await both.begin("C", retention="limits")
        await both.add_consumer("one")
        for _ in range(4):
            await both.publish("a")
        for _ in range(3):
            await both.fetch("one")
        for sequence in (1, 3):
            await both.settle("one", sequence, "ack")
        assert await both.edit(retention="interest")
        await both.publish("a")
        await both.settle("one", 2, "ack")
        await both.check("interest")

    on_server(tmp_path, story)


def test_rollups_leave_the_same_messages(tmp_path: Path) -> None:
    choose = random.Random(f"{SEED} rollup")

    async def story(both: Both) -> None:
        await both.begin("U", allow_rollup_hdrs=True)
        assert not await both.publish("a", Rollup="some")
        for step in range(OPERATIONS):
            headers = choose.choice([{}, {}, {}, {"Rollup": "sub"}, {"Rollup": choose.choice(("all", "ALL", "SUB"))}])
            assert await both.publish(choose.choice("abcde"), **headers)
            await both.check(f"JSTREAM_NATS_SEED={SEED} step {step}: {headers}", size=False)
        await both.edit(allow_rollup_hdrs=False)
        assert not await both.publish("a", Rollup="sub")
        await both.begin("V", deny_purge=False)
        assert not await both.publish("a", Rollup="sub")
        for config in (
            {"allow_rollup_hdrs": True, "deny_purge": True},
            {"allow_rollup_hdrs": True, "deny_delete": True},
        ):
            asked = {"name": "W", "subjects": ["W.>"], **config}
            await both.same("STREAM.CREATE.W", asked, lambda asked=asked: both._store.add_stream(asked))

    on_server(tmp_path, story)


def test_messages_with_a_time_to_live_go_when_it_is_over(tmp_path: Path) -> None:
    async def story(both: Both) -> None:
        await both.begin("T", allow_msg_ttl=True)
        for ttl in ("1s", "1h", "1", "1.9s", "never", "3600", "1h30m"):
            assert await both.publish("a", TTL=ttl), ttl
        for ttl in ("abc", "0", "-1", "999ms", "1s1", "-5s"):
            assert not await both.publish("a", TTL=ttl), ttl
        await both.publish("b")
        await asyncio.sleep(1.5)
        both.clock.now += 2_500_000_000
        both._store.maintain()
        await both.check("later", size=False)
        assert not await both.edit(allow_msg_ttl=False)
        await both.begin("P")
        assert not await both.publish("a", TTL="1s")

    on_server(tmp_path, story)


def is_marker(row: dict[str, Any]) -> bool:
    return any((one["key"], one["value"]) == ("Nats-Marker-Reason", b"MaxAge") for one in row["headers"] or ())


def marker_of(row: dict[str, Any]) -> tuple[str, list[tuple[str, bytes]], bytes]:
    return row["subject"], sorted((one["key"], one["value"]) for one in row["headers"]), row["data"]


async def kept_there(both: Both, name: str) -> list[int]:
    """Return the sequences of a server's stream, without those of its markers, which age takes as well."""
    state = (await both.call(f"STREAM.INFO.{name}"))["state"]
    sequences = range(state["first_seq"], state["last_seq"] + 1)
    answers = [await both.call(f"STREAM.MSG.GET.{name}", seq=sequence) for sequence in sequences]
    rows = [nats_server.row(answer["message"]) for answer in answers if "message" in answer]
    return [row["sequence"] for row in rows if not is_marker(row)]


def test_delete_markers_are_left_where_the_server_leaves_them(tmp_path: Path) -> None:
    """By age where subjects have several messages; by TTL where they have one, since markers outlive others there."""
    streams: dict[str, dict[str, Any]] = {
        "AGE": {"max_age": 3_000_000_000},
        "TTL": {"max_msgs_per_subject": 1},
        "WORK": {"max_age": 3_000_000_000, "retention": "workqueue"},
        "SHORT": {"max_age": 3_000_000_000, "subject_delete_marker_ttl": 5_900_000_000},
        "FEW": {"max_msgs": 2},
    }
    told: list[tuple[str, dict[str, str]]] = [
        ("a", {}), ("b", {}), ("a", {}), ("c", {"Nats-Marker-Reason": "Remove"}), ("d", {"KV-Operation": "PURGE"}),
        ("e", {"KV-Operation": "DEL"}), ("f", {"Nats-Msg-Id": "x"}), ("g", {"Nats-Marker-Reason": "Remove"}), ("g", {}),
    ]  # fmt: skip

    async def story(both: Both) -> None:
        theirs: dict[str, list[Any]] = {name: [] for name in streams}

        async def hear(message: Any) -> None:
            """Take in what the server says of each message that a stream stores."""
            sent = {key: value for key, value in (message.headers or {}).items() if key in MARKER_HEADERS}
            if sent.get("Nats-Marker-Reason") == "MaxAge":
                headers = sorted((key, value.encode()) for key, value in sent.items())
                subject = message.subject.removeprefix("copy.")
                theirs[subject.split(".")[0]].append((subject, headers, message.data))

        await both._client.subscribe("copy.>", cb=hear)
        ours = {}
        for name, config in streams.items():
            config = {"name": name, "subjects": [f"{name}.>"], "subject_delete_marker_ttl": HOUR_NS, **config}
            republish = {"src": f"{name}.>", "dest": f"copy.{name}.>"}
            answer = await both.call(f"STREAM.CREATE.{name}", storage="file", republish=republish, **config)
            assert "error" not in answer, answer
            ours[name] = both._store.add_stream(config)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in streams}
        for name in streams:
            for subject, headers in told:
                sent = {**headers, **({"Nats-TTL": "3s"} if name == "TTL" and subject != "b" else {})}
                await both._client.publish(f"{name}.{subject}", b"data", headers=sent or None)
                pairs = [(key, value.encode()) for key, value in sent.items()]
                rows[name].append({"subject": f"{name}.{subject}", "data": b"data", "headers": pairs or None})
        await both._client.flush()
        for name, stream in ours.items():
            stream.append(rows[name])
        both.clock.now += 4_000_000_000
        both._store.maintain()
        for name, stream in ours.items():
            left = stream.read().read_all().to_pylist()
            markers = sorted(marker_of(row) for row in left if is_marker(row))
            kept = [row["sequence"] for row in left if not is_marker(row)]
            for _ in range(600):
                if sorted(theirs[name]) == markers and await kept_there(both, name) == kept:
                    break
                await asyncio.sleep(0.05)
            assert (sorted(theirs[name]), await kept_there(both, name)) == (markers, kept), name
        asked = {"name": "W", "subjects": ["W.>"], "subject_delete_marker_ttl": 999_000_000}
        await both.same("STREAM.CREATE.W", asked, lambda: both._store.add_stream(asked))

    on_server(tmp_path, story)
