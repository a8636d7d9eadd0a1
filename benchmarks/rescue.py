"""`python -m benchmarks.rescue`: reading a JetStream store in place, against getting the same from its server.

A nats-server of this machine (extra `nats`) is given a stream; nats-py then reads it with an ordered push consumer, the
fastest that it has, and with a pull consumer that acknowledges each message. Spark reads the same files with
layout=nats, every checksum verified, into a sink that throws away: a copy of them, made while the server was stopped,
as its documentation advises. All run once in each round, in turns; the pull consumer gets a part of the messages, and
its time is scaled to all of them.
"""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.spark_batch import Ratio, Run, cpu_seconds, report, run_from_command_line, start_session

MESSAGES = 1_000_000
PULLED = 100_000  # messages that the pull consumer gets in a round
WINDOW = 5_000  # messages that are published before an acknowledgement is waited for
FETCH = 500  # messages of one pull request
START_S = 20.0
RATIOS: tuple[Ratio, ...] = (
    ("layout=nats / ordered push consumer of nats-py", "read layout=nats", "push consumer", 5.0),
    ("layout=nats / pull consumer of nats-py with acks", "read layout=nats", "pull consumer", 25.0),
)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a nats-server with its store in `folder/store`; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "server.conf"
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: {json.dumps(str(folder / "store"))} }}\n')
    binary = Path(sys.executable).parent / "nats-server"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([str(binary), "-c", str(config)], stdout=log, stderr=log)
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


async def connect(address: str) -> Any:
    import nats

    until = time.monotonic() + START_S
    while True:
        try:
            return await nats.connect(address, allow_reconnect=False, connect_timeout=2)
        except Exception:  # of many kinds, until it listens
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


async def publish(address: str, message_count: int) -> None:
    client = await connect(address)
    stream = client.jetstream()
    await stream.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(message_count):
        subject = f"orders.region{number % 16}.created"
        data = b'{"order":%d,"customer":"%06d","amount":%d,"currency":"EUR","token":"%016X"}' % (
            number, number % 99991, number * 7919 % 100_000, number * 2654435761,
        )  # fmt: skip
        if number % WINDOW == WINDOW - 1 or number == message_count - 1:
            await stream.publish(subject, data, timeout=30)
        else:
            await client.publish(subject, data)
    state = (await stream.stream_info("ORDERS")).state
    assert state.messages == message_count, state
    await client.close()


async def push(address: str, message_count: int) -> None:
    """Get every message with an ordered consumer, in a callback."""
    client = await connect(address)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    got = 0

    async def take(message: Any) -> None:
        nonlocal got
        got += 1
        if got == message_count and not done.done():
            done.set_result(None)

    await client.jetstream().subscribe(
        "orders.>", ordered_consumer=True, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    await done
    await client.close()


async def pull(address: str, message_count: int, name: str) -> None:
    """Get messages in batches and acknowledge each."""
    client = await connect(address)
    consumer = await client.jetstream().pull_subscribe("orders.>", durable=name)
    got = 0
    while got < message_count:
        for message in await consumer.fetch(min(FETCH, message_count - got), timeout=30):
            await message.ack()
            got += 1
    await client.flush()
    await client.close()


def main(message_count: int, rounds: int) -> int:
    """Measure, print, and write the ratios to benchmarks/results; returns an exit code."""
    with tempfile.TemporaryDirectory(prefix="jstream-bench-") as folder:
        place = Path(folder)
        with server(place) as address:
            asyncio.run(publish(address, message_count))
        shutil.copytree(place / "store", place / "copy")
        spark, _ = start_session(place, with_delta=False)
        run = Run(message_count, rounds, spark, place, False)
        try:
            with server(place) as address:
                for number in range(rounds + 1):
                    compare(run, address, number)
                    print(
                        f"round {number} of {rounds} done" + ("" if number else " (warm-up, not counted)"), flush=True
                    )
        finally:
            spark.stop()
    report(run, RATIOS, "rescue", f"python -m benchmarks.rescue --messages {message_count} --rounds {rounds}")
    return 0


def compare(run: Run, address: str, number: int) -> None:
    counted = number > 0
    frame = run.spark.read.format("jstream").option("layout", "nats").load(str(run.place / "copy"))
    if not counted:
        assert frame.count() == run.messages, "not all messages were read"
    run.time("read layout=nats", counted, lambda: frame.write.format("noop").mode("overwrite").save())
    run.time("push consumer", counted, lambda: asyncio.run(push(address, run.messages)))
    some = min(PULLED, run.messages)
    start, cpu_start = time.perf_counter(), cpu_seconds()
    asyncio.run(pull(address, some, f"pull-{number}"))
    if counted:
        scale = run.messages / some
        run.seconds.setdefault("pull consumer", []).append((time.perf_counter() - start) * scale)
        run.cpu_seconds.setdefault("pull consumer", []).append((cpu_seconds() - cpu_start) * scale)


if __name__ == "__main__":
    sys.exit(run_from_command_line("rescue", __doc__, main, MESSAGES, "how many are in the stream"))
