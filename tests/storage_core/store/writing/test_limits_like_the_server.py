"""The same operations on a real nats-server and here: what is left, and what is refused, is the same.

Messages of one stream are of one size, so that `max_bytes` means as many messages there, where a record's own bytes
count, as here. What differs on purpose is in docs/compare.md.
"""

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

from storage_core.errors import LimitExceededError, RequirementError
from storage_core.store.stream import Stream

nats_server = pytest.importorskip("harness.nats_server")

SEED = os.environ.get("JSTREAM_NATS_SEED", "limits")
SUBJECT, DATA = "s.x", b"0123456789"
OUR_SIZE = len(SUBJECT) + len(DATA)
THEIR_SIZE = 22 + len(SUBJECT) + len(DATA) + 8  # fileStoreMsgSize
OPERATIONS = 60
Call = Callable[..., Awaitable[dict[str, Any]]]


class Both:
    """One stream, there and here."""

    def __init__(self, client: Any, machine: Machine, config: dict[str, Any]) -> None:
        self._client, self._machine = client, machine
        self._store = machine.create()
        self._stream: Stream = self._store.add_stream({"name": "S", "subjects": ["s.>"], **config})
        self.config = config

    async def call(self, verb: str, **asked: Any) -> dict[str, Any]:
        reply = await self._client.request(f"$JS.API.{verb}", json.dumps(asked).encode() if asked else b"", timeout=10)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    def _theirs(self) -> dict[str, Any]:
        config = dict(self.config)
        if config.get("max_bytes", -1) > 0:
            config["max_bytes"] = config["max_bytes"] // OUR_SIZE * THEIR_SIZE
        return {"name": "S", "subjects": ["s.>"], "storage": "file", "num_replicas": 1, **config}

    async def begin(self) -> None:
        assert "error" not in await self.call("STREAM.CREATE.S", **self._theirs())

    async def publish(self, subject: str = SUBJECT) -> None:
        reply = json.loads((await self._client.request(subject, DATA, timeout=10)).data)
        try:
            sequence = self._stream.publish(subject, DATA).sequence
        except LimitExceededError as error:
            limits = {"max_msgs": "messages", "max_bytes": "bytes", "max_msgs_per_subject": "messages per subject"}
            limit = limits[error.limit or ""]
            assert reply["error"]["description"] == f"maximum {limit} exceeded"
        else:
            assert reply.get("seq") == sequence, reply

    async def edit(self, **changes: Any) -> None:
        self.config = {**self.config, **changes}
        assert "error" not in await self.call("STREAM.UPDATE.S", **self._theirs())
        self._store.edit_stream({"name": "S", **changes})

    async def remove(self, sequence: int) -> None:
        answer = await self.call("STREAM.MSG.DELETE.S", seq=sequence)
        assert ("error" not in answer) == bool(self._stream.remove(sequence))

    async def purge(self, **asked: int) -> None:
        answer = await self.call("STREAM.PURGE.S", **{"seq" if key == "end" else key: n for key, n in asked.items()})
        assert answer["purged"] == self._stream.purge(**asked), answer

    async def refuse_all(self) -> None:
        """Nothing comes, goes, or is taken back."""
        published = json.loads((await self._client.request(SUBJECT, DATA, timeout=10)).data)
        answers = [
            (published, lambda: self._stream.publish(SUBJECT, DATA)),
            (await self.call("STREAM.MSG.DELETE.S", seq=1), lambda: self._stream.remove(1)),
            (await self.call("STREAM.PURGE.S"), self._stream.purge),
            (
                await self.call("STREAM.UPDATE.S", **{**self._theirs(), "sealed": False}),
                lambda: self._store.edit_stream({"name": "S", "sealed": False}),
            ),
        ]
        for theirs, ours in answers:
            assert "error" in theirs, theirs
            with pytest.raises(RequirementError):
                ours()

    async def add_consumer(self, name: str) -> None:
        config = {"durable_name": name, "ack_policy": "explicit"}
        answer = await self.call(f"CONSUMER.DURABLE.CREATE.S.{name}", stream_name="S", config=config)
        try:
            self._stream.add_consumer({"name": name})
        except LimitExceededError:
            assert answer["error"]["description"] == "maximum consumers limit reached"
        else:
            assert "error" not in answer

    async def check(self, where: str) -> None:
        state = (await self.call("STREAM.INFO.S", deleted_details=True))["state"]
        theirs = set(range(state["first_seq"], state["last_seq"] + 1)) - set(state.get("deleted") or ())
        ours = self._stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
        assert ours == sorted(theirs), where
        here = self._stream.info()["state"]
        assert (here["first_seq"], here["last_seq"]) == (state["first_seq"], state["last_seq"]), where
        assert self._stream.state().data_size == state["bytes"] // THEIR_SIZE * OUR_SIZE, where

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._machine.clock.now += int(seconds * 1e9)
        self._machine.open().maintain()


async def on_server(folder: Path, config: dict[str, Any], story: Callable[[Both], Awaitable[None]]) -> None:
    server = nats_server.Server(nats_server.INSTALLED, folder)
    try:
        client = await server.connect()
        both = Both(client, Machine(1), config)
        await both.begin()
        await story(both)
        await client.close()
    finally:
        server.end(signal.SIGKILL)


LIMITS: list[dict[str, Any]] = [
    {"max_msgs": 5},
    {"max_msgs": 5, "discard": "new"},
    {"max_bytes": 4 * OUR_SIZE},
    {"max_msgs": 6, "max_bytes": 7 * OUR_SIZE, "discard": "new"},
    {"max_msgs_per_subject": 2, "max_msgs": 6},
    {"max_msgs_per_subject": 2, "max_msgs": 4, "discard": "new"},
    {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True},
]


@pytest.mark.parametrize("config", LIMITS, ids=lambda one: "-".join(map(str, one.values())))
def test_random_operations_leave_the_same_messages(config: dict[str, Any], tmp_path: Path) -> None:
    choose = random.Random(f"{SEED} {config}")

    async def story(both: Both) -> None:
        last = 0
        subjects = ("s.x", "s.y", "s.z") if "max_msgs_per_subject" in config else (SUBJECT,)
        for step in range(OPERATIONS):
            what = choose.choice(["publish"] * 6 + ["remove", "remove", "purge", "edit"])
            if what == "publish":
                await both.publish(choose.choice(subjects))
            elif what == "remove" and last:
                await both.remove(choose.randint(max(1, last - 8), last))
            elif what == "purge":
                await both.purge(
                    **choose.choice([{"keep": choose.randint(1, 4)}, {"end": choose.randint(1, last + 1)}])
                )
            elif what == "edit":
                key = choose.choice([one for one in config if not one.startswith("discard")])
                lowest, highest = (1, 4) if key == "max_msgs_per_subject" else (2, 9)
                await both.edit(**{key: choose.randint(lowest, highest) * (OUR_SIZE if key == "max_bytes" else 1)})
            last = both._stream.last_sequence
            await both.check(f"JSTREAM_NATS_SEED={SEED} {config} step {step}: {what}")

    asyncio.run(on_server(tmp_path, config, story))


def test_messages_go_by_age(tmp_path: Path) -> None:
    async def story(both: Both) -> None:
        for _ in range(3):
            await both.publish()
        await both.check("young")
        await both.wait(2.5)
        await both.check("old")
        await both.publish()
        await both.check("afterwards")

    asyncio.run(on_server(tmp_path, {"max_age": 1_000_000_000, "duplicate_window": 1_000_000_000}, story))


def test_consumers_are_limited(tmp_path: Path) -> None:
    async def story(both: Both) -> None:
        for name in "abc":
            await both.add_consumer(name)

    asyncio.run(on_server(tmp_path, {"max_consumers": 2}, story))


def test_a_sealed_stream_keeps_what_it_has(tmp_path: Path) -> None:
    async def story(both: Both) -> None:
        for _ in range(3):
            await both.publish()
        await both.edit(sealed=True)
        await both.refuse_all()
        await both.check("sealed")

    asyncio.run(on_server(tmp_path, {"max_msgs": 3}, story))


@pytest.mark.parametrize(
    "config",
    [
        {"max_age": 99_000_000},
        {"max_age": 60_000_000_000, "duplicate_window": 61_000_000_000},
        {"discard": "all"},
        {"max_msgs_per_subject": 1, "discard_new_per_subject": True},
        {"discard": "new", "discard_new_per_subject": True},
    ],
)
def test_what_the_server_refuses_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    async def ask() -> dict[str, Any]:
        server = nats_server.Server(nats_server.INSTALLED, tmp_path)
        try:
            client = await server.connect()
            asked = {"name": "S", "subjects": ["s.>"], **config}
            reply = await client.request("$JS.API.STREAM.CREATE.S", json.dumps(asked).encode(), timeout=10)
            await client.close()
            return dict(json.loads(reply.data))
        finally:
            server.end(signal.SIGKILL)

    answer = asyncio.run(ask())
    assert "error" in answer, answer
    with pytest.raises(ValueError, match=next(reversed(config))):
        Machine(1).create().add_stream({"name": "S", "subjects": ["s.>"], **config})
