"""Make 1.blk.gz: long messages, of which a third has headers, as the installed nats-server stores them.

python tests/data/nats-long/generate.py
"""

import asyncio
import gzip
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from benchmarks.rescue import connect, server  # noqa: E402


async def publish(address: str) -> None:
    client = await connect(address)
    context = client.jetstream()
    await context.add_stream(name="LONG", subjects=["long.>"])
    for number in range(12):
        data = bytes((number + at // 7) % 251 for at in range(17_000 + 2_111 * number))
        headers = {"Number": str(number)} if number % 3 == 0 else None
        await context.publish(f"long.{'x' * number}y", data, headers=headers)
    await client.close()


with tempfile.TemporaryDirectory() as folder:
    with server(Path(folder)) as address:
        asyncio.run(publish(address))
    (block,) = Path(folder).rglob("1.blk")
    (Path(__file__).parent / "1.blk.gz").write_bytes(gzip.compress(block.read_bytes(), mtime=0))
