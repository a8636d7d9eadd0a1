"""`python -m benchmarks.live_nats`: reading a running NATS server, against nats-py making the same columns.

One server of this machine (extra `nats`), one stream of messages of 130 bytes under 100 subjects. In turns, each in a
process of its own: all columns by a pull consumer and our frames, and by nats-py's ordered push consumer with a
callback. Then the parser alone on bytes that were captured, a mirror begun from files against one begun live, and what
a publisher that waits for each acknowledgement sees with and without a reader. Processor time is that of the client.
"""

import argparse
import asyncio
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import RESULTS
from benchmarks.rescue import server
from storage_core import Store
from storage_core.foreign import open_foreign
from storage_core.live.columns import Deliveries
from storage_core.live.connection import CHUNK_SIZE, Connection
from storage_core.live.login import Login, parse_address
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, stream_info
from storage_core.live.wire import find_frames
from storage_core.mirror import Mirror, MirrorRequest

COLUMNS = ("sequence", "subject", "timestamp", "headers", "data")
PIECE = 5_000
PUBLISHED = 400  # messages whose acknowledgement is waited for


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measured(work: Callable[[], int]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), cpu_s()
    count = work()
    return {"messages": count, "wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu}


def servers_at(url: str) -> Servers:
    return Servers((parse_address(url, "url"),), Login())


def whole(url: str) -> Range:
    with servers_at(url).connect() as connection:
        info = stream_info(connection, "S")
    return Range("S", info.created, 1, info.next_sequence)


def fail(error: Exception) -> None:
    raise error


def ours(url: str) -> int:
    part = whole(url)
    return sum(len(messages.batch("S", COLUMNS)) for messages in read_range(servers_at(url), part, fail))


def nats_py(url: str) -> int:
    """Make the same columns, with the place read from the reply subject and no more of the message touched."""
    import nats
    import pyarrow as pa

    end = whole(url).end - 1

    async def read() -> int:
        client = await nats.connect(url)
        rows: list[tuple[int, str, int, Any, bytes]] = []
        done = asyncio.Event()

        async def on_message(message: Any) -> None:
            place = message.reply.split(".")
            sequence = int(place[5])
            rows.append((sequence, message.subject, int(place[7]), message.headers, message.data))
            if sequence >= end:
                done.set()

        await client.jetstream().subscribe(">", stream="S", cb=on_message, ordered_consumer=True)
        await done.wait()
        await client.close()
        sequences, subjects, times, _, data = zip(*rows, strict=True)
        pa.record_batch(
            [pa.array(sequences), pa.array(subjects), pa.array(times), pa.array(data, pa.binary())], list("abcd")
        )
        return len(rows)

    return asyncio.run(read())


CONTENDERS = {"ours": ours, "nats_py": nats_py}


def fill(url: str, count: int) -> None:
    with servers_at(url).connect() as connection:
        config = {"name": "S", "subjects": ["s.>", "p.>"], "storage": "file", "num_replicas": 1}
        connection.request("STREAM.CREATE", "S", body=config)
        for start in range(0, count, PIECE):
            numbers = range(start, min(start + PIECE, count))
            connection.send(b"".join(b"PUB s.%d 130\r\n%0130d\r\n" % (number % 100, number) for number in numbers))
            while connection.request("STREAM.INFO", "S")["state"]["last_seq"] < numbers.stop:
                pass


def parser_alone(url: str, count: int) -> dict[str, float]:
    """Capture what a consumer delivers, and find frames and make columns of it again and again."""
    with servers_at(url).connect() as connection:
        config = {"name": "c", "ack_policy": "none", "mem_storage": True}
        connection.request("CONSUMER.CREATE", "S", "c", body={"stream_name": "S", "config": config})
        connection.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": %d}' % count, f"{connection.inbox}.pull")
        blocks, held = [], 0
        while held < count:
            received = connection.receive(10.0)
            assert received is not None
            block, frames = received
            blocks.append(block[: frames.end].copy())
            held += len(frames)
        chunks, captured = [], np.concatenate(blocks)  # as full as where the server is faster than the parser
        while len(captured):
            end = find_frames(captured[:CHUNK_SIZE]).end
            chunks.append(captured[:end].copy())
            captured = captured[end:]
        deliveries = Deliveries(f"{connection.inbox}.pull", connection.inbox_sid, "S", "c")
    cpu = time.process_time()
    rounds = 5
    for _ in range(rounds):
        for block in chunks:
            frames = find_frames(block)
            frames = frames if frames.is_message.all() else frames.rows(frames.is_message)
            messages, _ = deliveries.take(block, frames)
            messages.batch("S", COLUMNS)
    return {"messages": held * rounds, "cpu_s": time.process_time() - cpu}


def mirrors(url: str, folder: Path) -> dict[str, float]:
    """Return how long a mirror takes to have everything, begun live and begun from a copy of the files."""
    shutil.copytree(folder / "store", folder / "copy")
    taken = {}
    for name, files in (("live", None), ("files", open_foreign([folder / "copy"], "nats"))):
        with Store.create(folder / f"volume-{name}") as store:
            began = time.perf_counter()
            Mirror(store, servers_at(url), MirrorRequest("S"), files).step()
            taken[name] = time.perf_counter() - began
    return taken


def latencies(connection: Connection) -> Iterator[float]:
    for number in range(PUBLISHED):
        reply = f"{connection.inbox}.p{number}"
        began = time.perf_counter()
        connection.publish("p.x", bytes(130), reply)
        connection.receive(10.0)
        yield (time.perf_counter() - began) * 1_000


def publishers(url: str) -> dict[str, float]:
    """Return median latencies in milliseconds of a publisher, alone and beside a reader."""
    with servers_at(url).connect() as connection:
        alone = statistics.median(latencies(connection))
        reader = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.live_nats", "--one", "ours", "--url", url, "--repeat"]
        )
        try:
            threading.Event().wait(3.0)  # until it reads
            beside = statistics.median(latencies(connection))
        finally:
            reader.terminate()
            reader.wait()
    return {"alone_ms": alone, "beside_ms": beside}


def one(name: str, url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.live_nats", "--one", name, "--url", url]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_nats", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        while arguments.repeat:
            CONTENDERS[arguments.one](arguments.url)
        print(json.dumps(measured(lambda: CONTENDERS[arguments.one](arguments.url))))
        return 0
    with tempfile.TemporaryDirectory() as place, server(Path(place)) as url:
        while True:
            try:
                fill(url, arguments.messages)
                break
            except OSError:
                time.sleep(0.1)
            except Exception as error:
                if "answers" not in str(error):
                    raise
        rounds = [{name: one(name, url) for name in CONTENDERS} for _ in range(arguments.rounds)]
        parser_run = parser_alone(url, min(arguments.messages, 200_000))
        mirrored = mirrors(url, Path(place))
        published = publishers(url)
    wall = statistics.median(each["nats_py"]["wall_s"] / each["ours"]["wall_s"] for each in rounds)
    cpu = statistics.median(each["nats_py"]["cpu_s"] / each["ours"]["cpu_s"] for each in rounds)
    figures = {
        "reading, wall: nats-py / ours": (wall, 3.0),
        "reading, client's processor: nats-py / ours": (cpu, 8.0),
        "parser, messages/s of a core": (parser_run["messages"] / parser_run["cpu_s"], 1_500_000),
        "mirror: live / from files": (mirrored["live"] / mirrored["files"], 5.0),
        "publisher's median beside a reader / alone": (published["beside_ms"] / published["alone_ms"], -2.0),
    }
    for name, (value, wanted) in figures.items():
        sign, met = ("<=", value <= -wanted) if wanted < 0 else (">=", value >= wanted)
        verdict = "met" if met else "MISSED"
        print(f"{name:<48}{value:>14,.2f}   wanted {sign} {abs(wanted):,.1f}   {verdict}")
    made = {"figures": {name: value for name, (value, _) in figures.items()}, "rounds": rounds, "mirror_s": mirrored}
    made |= {"publisher": published, "messages": arguments.messages}
    (RESULTS / "live_nats.json").write_text(json.dumps(made, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(run())
