"""Messages as a file: Parquet or JSON lines, by the filters of the page of messages, with bounds; `jstream export` has
none.

The file is made before it is sent: its name says which sequences it answers for, and a browser that got only a part
of it knows by the size, which was sent first.
"""

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
from pyarrow.parquet import ParquetWriter
from starlette.responses import Response, StreamingResponse

from spark_stream.look.messages import PRINTED_COLUMNS, json_lines
from spark_stream.look.search import MessageFilter
from spark_stream.ui.doors import Receive, Scope, Send
from spark_stream.ui.model.messages import SEARCH_ROW_COUNT, filter_of
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.metadata.reconcile import CONTINUE
from storage_core.schema import FILE_SCHEMA
from storage_core.store.contents import first_at_time, slices
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.reading.reading import REPORT, ReadOptions, read_slices

log = logging.getLogger("jstream")
FORMATS = ("jsonl", "parquet")
MEDIA_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
MESSAGE_COUNT_MAX = 100_000
SIZE_MAX = 64 << 20  # bytes of messages
MAKING_S = 30.0  # for one file
AT_ONCE_MAX = 4  # files that are being made
UNSENT_MAX = 16  # files that are made and not sent to their end: a browser may be slow
SENDING_S = 600.0  # for one file
LINE_COUNT = 1000  # JSON lines that are made together
CHUNK_SIZE = 1 << 20
_making = threading.BoundedSemaphore(AT_ONCE_MAX)
_unsent = threading.BoundedSemaphore(UNSENT_MAX)


class TooManyDownloads(ValueError):
    """As many files are being made or sent as may be."""


def download(site: Site, query: Query, name: str) -> Response:
    """Return the wanted messages of [first, end) as a file; without `first` the newest ones, or those from `time` on.

    A file whose name ends in `-cut` has reached a bound: it has nothing behind the sequence in its name. A name with
    `-2-unsearched` leaves out two messages that are too large to be searched for a field. What is lost is left out.

    Raises NotFoundError, ValueError, TooManyDownloads, and what reading raises.
    """
    store, kind, wanted = site.store(), query.choice("format", FORMATS), filter_of(query)
    stream = store.stream_state(name)
    end = min(query.number("end") or stream.next_sequence, stream.next_sequence)
    first, time_ns = query.number("first"), query.time_ns("time", store.environment.now_ns())
    if first is None and time_ns is not None:
        first = first_at_time(store, stream, time_ns, REPORT) or end
    if first is None:
        first = max(stream.first_sequence, end - (MESSAGE_COUNT_MAX if wanted.is_all else SEARCH_ROW_COUNT))
    columns = PRINTED_COLUMNS if kind == "jsonl" else tuple(FILE_SCHEMA.names)
    request = ReadRequest((name,), {name: (first, max(first, end))}, subject_filters=wanted.subjects)
    options = ReadOptions(columns, subject_filters=wanted.subjects, on_data_loss=CONTINUE)
    batches = read_slices(slices(store, stream, request), options, env=store.environment)
    if not _making.acquire(blocking=False):
        raise TooManyDownloads(f"{AT_ONCE_MAX} files are being made already: try again soon")
    if not _unsent.acquire(blocking=False):
        _making.release()
        raise TooManyDownloads(f"{UNSENT_MAX} files are being sent already: try again soon")
    bounded = _Bounded(wanted, max(first, end))
    file = tempfile.TemporaryFile(prefix="jstream-download-")
    try:
        (_write_lines if kind == "jsonl" else _write_parquet)(file, bounded.batches(batches))
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        _unsent.release()
        raise
    finally:
        _making.release()
    unsearched = f"-{bounded.unparsed_count}-unsearched" if bounded.unparsed_count else ""
    file_name = f"messages-{first}-{bounded.end - 1}{unsearched}{'-cut' if bounded.is_cut else ''}.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"', "Content-Length": str(size)}
    return _Sending(file, headers, MEDIA_TYPES[kind])


class _Sending(StreamingResponse):
    """A file on its way: it keeps its place until it is sent, or its time is over."""

    def __init__(self, file: IO[bytes], headers: dict[str, str], media_type: str) -> None:
        super().__init__(_chunks(file), headers=headers, media_type=media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(SENDING_S):
                await super().__call__(scope, receive, send)
        except TimeoutError:  # the connection is closed; a browser knows by the size that the file is not whole
            log.info("a download was not taken within %.0f seconds", SENDING_S)
        finally:
            self._file.close()
            _unsent.release()


@dataclass
class _Bounded:
    """What of a read goes into a file."""

    wanted: MessageFilter
    end: int  # of the sequences that the file answers for
    is_cut: bool = False
    unparsed_count: int = 0  # messages that are too large to be parsed for a field

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows up to the bounds."""
        until = time.monotonic() + MAKING_S
        count = size = looked_at = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if (
                count >= MESSAGE_COUNT_MAX
                or size >= SIZE_MAX
                or looked_at >= SEARCH_ROW_COUNT
                or time.monotonic() > until
            ):
                self.end, self.is_cut = int(batch.column("sequence")[0].as_py()), True
                return
            looked_at += batch.num_rows
            chosen, unparsed_count = self.wanted.searched(batch)
            self.unparsed_count += unparsed_count
            if count + chosen.num_rows > MESSAGE_COUNT_MAX:
                room = MESSAGE_COUNT_MAX - count
                self.end, self.is_cut = int(chosen.column("sequence")[room].as_py()), True
                yield chosen.slice(0, room)
                return
            count += chosen.num_rows
            size += chosen.nbytes
            yield chosen


def _write_lines(file: IO[bytes], batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        for at in range(0, batch.num_rows, LINE_COUNT):
            file.write(json_lines(batch.slice(at, LINE_COUNT)).encode())


def _write_parquet(file: IO[bytes], batches: Iterator[pa.RecordBatch]) -> None:
    with ParquetWriter(file, FILE_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], FILE_SCHEMA))


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_SIZE):
        yield chunk
