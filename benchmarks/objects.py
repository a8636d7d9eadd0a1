"""`python -m benchmarks.objects`: appends and reads on one bucket beside plain puts and gets of as many bytes.

A server of S3's language on loopback, a process of its own, keeps its objects in memory-backed files. The same client
puts and gets objects as large as the blocks are, one after the other, in turns with appends and reads of messages of as
many bytes. A plain put knows its size, and goes at once as far as the client does that; a block is put in parts while
it is made, so that one like that is beside it. Data are random, so that nothing becomes smaller.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from statistics import median

import localbucket
import numpy as np
import pyarrow as pa

from benchmarks.figures import write_figures
from storage_core import Store
from storage_core.block.format import FRAME_SIZE_TARGET
from storage_core.objects.client import PART_SIZE
from storage_core.objects.remote import RemoteObjectStore

SIZES = (1 << 20, 16 << 20, 64 << 20)  # bytes of a block
TOTAL = 192 << 20  # bytes of a round
PAYLOAD_SIZE = 4096
ROUNDS = 3
WANTED = 0.7


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(root: str) -> None:
    """Serve the buckets in a directory; print the port."""
    # Without Nagle's algorithm: else an answer of two writes waits 40 ms for the acknowledgement of the first.
    handler = type("Handler", (localbucket.S3Handler,), {"data_root": Path(root), "disable_nagle_algorithm": True})
    server = Server(("127.0.0.1", 0), handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def serving(root: str) -> Iterator[dict[str, str]]:
    (Path(root) / "bucket").mkdir()
    command = [sys.executable, "-m", "benchmarks.objects", "--serve", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield {
                "aws_endpoint_url": f"http://127.0.0.1:{server.stdout.readline().strip()}",
                "aws_region": "us-east-1",
                "aws_access_key_id": "test",
                "aws_secret_access_key": "test",
                "aws_virtual_hosted_style_request": "false",
            }
        finally:
            server.terminate()


def messages(size: int, seed: int) -> pa.Table:
    """Return messages of so many random bytes in all."""
    count = size // PAYLOAD_SIZE
    data = np.random.default_rng(seed).bytes(count * PAYLOAD_SIZE)
    offsets = np.arange(count + 1, dtype=np.int32) * PAYLOAD_SIZE
    payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.table({"subject": pa.array(["many.one"] * count), "data": payloads})


def once(bucket: str, options: dict[str, str], size: int) -> dict[str, float]:
    """Return seconds for a round's bytes, in blocks of `size` bytes; plain calls and those of a store in turns."""
    client, count = RemoteObjectStore(bucket, options), TOTAL // size
    store = Store.create(f"{bucket}/shop", storage_options=options)
    stream = store.add_stream({"name": "MANY", "subjects": ["many.>"]})
    plain = np.random.default_rng(1).bytes(size)
    taken = dict.fromkeys(("puts", "puts_in_parts", "appends", "gets", "reads"), 0.0)

    @contextmanager
    def timed(work: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        taken[work] += time.perf_counter() - began

    for number in range(count):
        table = messages(size, number)
        with timed("puts"):
            client.put(f"plain/{number}", plain)
        with timed("puts_in_parts"):
            put_in_parts(client, f"parts/{number}", plain)
        with timed("appends"):
            stream.append(table)
    for _ in range(2):
        with timed("gets"):
            for number in range(count):
                client.get(f"plain/{number}", size)
        with timed("reads"):
            rows = sum(batch.num_rows for batch in stream.read(columns=["data"]))
        assert rows == count * (size // PAYLOAD_SIZE)
    return {**taken, "gets": taken["gets"] / 2, "reads": taken["reads"] / 2}


def put_in_parts(client: RemoteObjectStore, name: str, data: bytes) -> None:
    """Put an object as that of a block is put, of which nobody knows how large it becomes."""
    if len(data) <= PART_SIZE:
        client.put(name, data)
        return
    upload = client.begin_put(name)
    for start in range(0, len(data), FRAME_SIZE_TARGET):
        upload.write(data[start : start + FRAME_SIZE_TARGET])
    upload.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--root", default="/dev/shm", help="where the server keeps its objects")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    results = {}
    for size in SIZES:
        rounds = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory(dir=arguments.root) as root, serving(root) as options:
                rounds.append(once("s3://bucket", options, size))
        seconds = {key: median(taken[key] for taken in rounds) for key in rounds[0]}
        append = median(taken["puts"] / taken["appends"] for taken in rounds)
        in_parts = median(taken["puts_in_parts"] / taken["appends"] for taken in rounds)
        read = median(taken["gets"] / taken["reads"] for taken in rounds)
        results[f"{size >> 20} MiB"] = {**seconds, "append": append, "append_in_parts": in_parts, "read": read}
        rates = ", ".join(f"{key} {TOTAL / taken / 1e6:.0f} MB/s" for key, taken in seconds.items())
        ratios = f"append {append:.2f} ({in_parts:.2f} of puts in parts), read {read:.2f}"
        print(f"blocks of {size >> 20:>3} MiB: {ratios} (wanted {WANTED}); {rates}", flush=True)
    write_figures("objects", f"python -m benchmarks.objects --rounds {arguments.rounds}", results)


if __name__ == "__main__":
    main()
