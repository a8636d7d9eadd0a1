"""`python -m benchmarks.block`: the block codec alone, one thread, no Spark, files in the page cache.

Writes and reads messages of about 130 bytes with each codec. Reading is held against batches that lie ready in memory:
once only iterated, once handed on as Spark's worker does it, which writes each batch to an Arrow stream. Numbers are
medians; writing is timed without the fsync, which is the disk's affair.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from storage_core.block.format import BlockExpectation, BlockIdentity
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.block.writer import BlockWriter
from storage_core.files import OS_FILES, File
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE, READ_SCHEMA

MESSAGES = 1_000_000
ROUNDS = 5
BATCH_ROWS = 10_000  # as Spark hands them over
IDENTITY = BlockIdentity(*(bytes([number]) * 16 for number in range(1, 5)))
TWO_COLUMNS = ("sequence", "data")


def messages(count: int) -> list[pa.RecordBatch]:
    """Return messages in the columns of FRAME_SCHEMA: 16 subjects, rising times, data that looks like small JSON."""
    batches = []
    for first in range(0, count, BATCH_ROWS):
        numbers = range(first, min(first + BATCH_ROWS, count))
        data = [
            b'{"order":%010d,"customer":"c%06d","amount":%d.%02d,"currency":"EUR","state":"created","items":[%d,%d]}'
            % (number, number * 7919 % 999_983, number % 997, number % 100, number % 31, number % 77)
            for number in numbers
        ]
        columns = [
            pa.array([f"orders.region{number * 31 % 16:02d}.created" for number in numbers]),
            pa.array(1_795_262_400_000_000_000 + np.arange(first, first + len(data)) * 1_000_007),
            pa.nulls(len(data), HEADERS_TYPE),
            pa.array(data),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA))
    return batches


class CopyingSink:
    """Copies what a stream writes to one place and forgets it, as a socket would at the least."""

    closed = False

    def __init__(self) -> None:
        self._place = np.empty(16 << 20, np.uint8)

    def write(self, data: pa.Buffer) -> int:
        self._place[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class UnsyncedFile:
    """The file given, with fsync left out."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.write_at = file.write_at

    def sync(self) -> None: ...


def iterate(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def hand_on(batches: Iterable[pa.RecordBatch]) -> int:
    """Write the batches to an Arrow stream, as they go to Spark."""
    rows, stream = 0, None
    for batch in batches:
        if stream is None:
            stream = pa.ipc.new_stream(CopyingSink(), batch.schema)
        stream.write_batch(batch)
        rows += batch.num_rows
    return rows


def timed(work: Callable[[], object], rounds: int) -> float:
    """Return the median of the seconds that `work` takes, after one round that does not count."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def measure(codec: str, batches: list[pa.RecordBatch], folder: Path, rounds: int) -> None:
    rows = sum(batch.num_rows for batch in batches)
    path = folder / f"{codec}.blk"

    def write() -> None:
        path.unlink(missing_ok=True)
        with OS_FILES.create(path) as file:
            writer = BlockWriter(UnsyncedFile(file), IDENTITY, codec)  # type: ignore[arg-type]
            for batch in batches:
                writer.write(batch)
            writer.finish()

    seconds = timed(write, rounds)
    with OS_FILES.open(path) as file:
        summary = BlockReader.open(file).summary()
        ids = (IDENTITY.store_id, IDENTITY.incarnation, IDENTITY.block_id)
        expected = BlockExpectation(*ids, summary.digest, summary.file_size)
        show(f"{codec}: write", rows, seconds, f"{summary.data_size / seconds / 1e6:.0f} MB/s of messages")
        print(f"{'':34}{summary.file_size / 1e6:.1f} MB file, {summary.data_size / rows:.0f} bytes a message")

        def read(columns: Iterable[str], verify: bool = True) -> Iterable[pa.RecordBatch]:
            request = FrameRequest(tuple(columns), "ORDERS", verify=verify)
            return BlockReader.open(file, expected).read(request)

        everything = tuple(READ_SCHEMA.names)
        ready = list(read(everything))
        ready_two = [batch.select(list(TWO_COLUMNS)) for batch in ready]
        ceiling, ceiling_two = timed(lambda: hand_on(ready), rounds), timed(lambda: hand_on(ready_two), rounds)
        show("  ready batches, iterated", rows, timed(lambda: iterate(ready), rounds))
        show("  read, all columns", rows, timed(lambda: iterate(read(everything)), rounds))
        show("  read, two columns", rows, timed(lambda: iterate(read(TWO_COLUMNS)), rounds))
        show("  read, all columns, no CRC", rows, timed(lambda: iterate(read(everything, False)), rounds))
        show("  ready batches, handed on", rows, ceiling)
        seconds = timed(lambda: hand_on(read(everything)), rounds)
        show("  read, all columns, handed on", rows, seconds, f"{ceiling / seconds:.2f} of ready batches")
        seconds = timed(lambda: hand_on(read(TWO_COLUMNS)), rounds)
        show("  read, two columns, handed on", rows, seconds, f"{ceiling_two / seconds:.2f} of ready batches")
        seconds = timed(lambda: list(BlockReader.open(file, expected).verify()), rounds)
        show("  verify", rows, seconds, f"{summary.file_size / seconds / 1e6:.0f} MB/s")


def show(work: str, rows: int, seconds: float, note: str = "") -> None:
    print(f"{work:34}{rows / seconds / 1e6:10.2f} M messages/s   {note}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"how many ({MESSAGES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds that count ({ROUNDS})")
    arguments = parser.parse_args()
    batches = messages(arguments.messages)
    with tempfile.TemporaryDirectory() as folder:
        for codec in ("none", "lz4", "zstd"):
            measure(codec, batches, Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
