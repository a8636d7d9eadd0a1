"""`jstream pub`: store messages from the command line or from standard input.

Lines from standard input go to the store a batch at a time, each batch one append: some thousand lines when they come
fast, what there is after LINGER_S when they come slowly. An append is there whole or not at all, and what was stored
is printed at once, so whoever repeats a broken run knows the line to resume at.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage, explain
from spark_stream.cli.follow import streams_with
from spark_stream.cli.options import JsonOption, StoreOption, TakeOverOption, open_store
from spark_stream.cli.quantities import parse_pairs
from spark_stream.look.terminal import counted, print_json, say, write

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core import Store
    from storage_core.appended import AppendedRange
    from storage_core.store.stream import Stream

BATCH_ROWS_MAX = 10_000
BATCH_SIZE_MAX = 8 * 1024 * 1024  # bytes of data; a batch is over it by one message at most
LINGER_S = 0.5  # how long a line may wait for others to share its append with
CHUNK_SIZE = 256 * 1024  # bytes that are read at once
LINE_SIZE_MAX = 64 * 1024 * 1024  # bytes; no stream takes larger messages, and a line is held in memory


class LineBatches:
    """Cuts a flow of bytes into lines, and gathers them into batches."""

    def __init__(
        self,
        read: Callable[[int], bytes],
        ready: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
        line_size_max: int = LINE_SIZE_MAX,
    ) -> None:
        """`read(size)` returns what there is, b"" at the end; `ready(seconds)` waits for it that long at most."""
        self._read, self._ready, self._clock, self._line_size_max = read, ready, clock, line_size_max

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield batches of lines without their line breaks; a last line may lack one. Empty lines are lines."""
        batch: list[bytes] = []
        size, since = 0, 0.0
        for line in self._lines():
            if line is not None:
                since = since if batch else self._clock()
                batch.append(line)
                size += len(line)
            full = len(batch) >= BATCH_ROWS_MAX or size >= BATCH_SIZE_MAX
            if batch and (full or (line is None and not self._more_in_time(since))):
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _more_in_time(self, since: float) -> bool:
        left = since + LINGER_S - self._clock()
        return left > 0 and self._ready(left)

    def _lines(self) -> Iterator[bytes | None]:
        """Yield lines, and None whenever the next one has to be read."""
        parts: list[bytes] = []
        size = 0
        while True:
            yield None
            chunk = self._read(CHUNK_SIZE)
            if not chunk:
                break
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*parts, lines[0]])
                parts, size = [], 0
                yield from lines
            parts.append(rest)
            size += len(rest)
            if size > self._line_size_max:
                raise CommandFailed(f"a line is over {self._line_size_max} bytes long: no stream takes such a message")
        if size:
            yield b"".join(parts)


def publish(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject of the messages.")],
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="Data of the message; - for standard input.")
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", "--force-stdin", help="Read standard input, one message a line.")
    ] = False,
    send_on: Annotated[
        str, typer.Option("--send-on", metavar="newline|eof", help="Standard input: a message a line, or one in all.")
    ] = "newline",
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY:VALUE", help="A header; may be repeated.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Store the message N times.")] = 1,
    msg_id: Annotated[
        str | None, typer.Option("--msg-id", metavar="ID", help="Store it once only, however often this id is sent.")
    ] = None,
    expect_last_sequence: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Store it only if N is the stream's last sequence; 0: it never had one."),
    ] = None,
    expect_last_subject_sequence: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Store it only if N is the last sequence of SUBJECT; 0: it has none."),
    ] = None,
    expect_last_msg_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Store it only if the stream's last message has this msg_id.")
    ] = None,
    stream_name: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="The stream, where several take the subject.")
    ] = None,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Store messages. Without BODY the messages are the lines of standard input."""
    if send_on not in ("newline", "eof"):
        raise WrongUsage(f"--send-on {send_on!r} is neither newline nor eof")
    from_input = stdin or body == "-" or (body is None and not sys.stdin.isatty())
    if not from_input and body is None:
        raise WrongUsage("no BODY: pass one, or - to read standard input, one message a line")
    if stdin and body not in (None, "-"):
        raise WrongUsage("both a BODY and --stdin: pass one of them")
    by_line = from_input and send_on == "newline"
    expected = (expect_last_sequence, expect_last_subject_sequence, expect_last_msg_id)
    if (by_line or count > 1) and any(value is not None for value in expected):
        raise WrongUsage("--expect-last-... is about one message, not about --count or lines of standard input")
    if by_line and (msg_id is not None or count > 1):
        raise WrongUsage("--msg-id and --count are about one message, not about lines of standard input")
    if msg_id is not None and count > 1:
        raise WrongUsage("--msg-id stores a message once, --count does so several times: pass one of them")
    pairs = [(key, os.fsencode(value)) for key, value in parse_pairs(headers or [], ":", "--header")]
    with open_store(store, take_over=take_over) as opened:
        stream = choose_stream(opened, subject, stream_name)
        if by_line:
            stored = _append_all(stream, subject, LineBatches(_read_stdin, _stdin_ready), pairs, json)
            if not stored:
                _report_no_lines(asked_for=stdin or body == "-")
            return
        data = sys.stdin.buffer.read() if from_input else os.fsencode(str(body))
        if count > 1:
            _append_all(stream, subject, _repeated(data, count), pairs, json)
            return
        published = stream.publish(subject, data, pairs or None, msg_id, *expected)
    _print_published(stream.name, published.sequence, published.duplicate, json)


def choose_stream(store: "Store", subject: str, name: str | None) -> "Stream":
    """Return the stream that is named, else the only one that takes the subject."""
    if name is not None:
        return store.stream(name)
    streams = streams_with(store, subject)
    if len(streams) > 1:
        names = ", ".join(stream.name for stream in streams)
        raise WrongUsage(f"several streams take subject {subject}: pass --stream with one of {names}")
    return streams[0]


def _append_all(
    stream: "Stream", subject: str, batches: Iterable[list[bytes]], headers: list[tuple[str, bytes]], json: bool
) -> int:
    """Append batch after batch, and say at once what each got; a failure says what was stored before it.

    Return the number of messages stored.
    """
    from storage_core.errors import StorageError

    stored = 0
    try:
        for batch in batches:
            got = stream.append(message_batch(subject, batch, headers))
            stored += len(batch)
            _print_appended(stream.name, got, json)
    except (StorageError, OSError, CommandFailed) as error:
        if not stored or isinstance(error, BrokenPipeError):
            raise
        raise CommandFailed(f"{explain(error)} ({counted(stored, 'message')} stored before)") from error
    return stored


def _report_no_lines(asked_for: bool) -> None:
    """Say that standard input held nothing; refuse it where nobody named it as the place of the messages.

    A job without a terminal (cron, `</dev/null`) reaches standard input by leaving BODY out, and may have meant an
    empty message, which is what `nats pub SUBJECT` sends there.
    """
    if not asked_for:
        raise WrongUsage(
            "no BODY, and nothing on standard input: nothing was stored; '' stores an empty message, - as many as "
            "there are lines"
        )
    say("no lines on standard input: nothing was stored")


def message_batch(subject: str, lines: list[bytes], headers: list[tuple[str, bytes]]) -> "pa.RecordBatch":
    """Return messages in the write schema: one per line, all with the same subject and headers."""
    import pyarrow as pa

    from storage_core.schema import HEADERS_TYPE

    columns: dict[str, Any] = {
        "subject": pa.repeat(pa.scalar(subject, pa.string()), len(lines)),
        "data": pa.array(lines, pa.binary()),
    }
    if headers:
        shared = [{"key": key, "value": value} for key, value in headers]
        columns["headers"] = pa.array([shared] * len(lines), HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _repeated(data: bytes, count: int) -> Iterator[list[bytes]]:
    """Yield `count` times the same data in batches."""
    rows = max(1, min(BATCH_ROWS_MAX, BATCH_SIZE_MAX // max(1, len(data))))
    while count > 0:
        yield [data] * min(rows, count)
        count -= rows


def _read_stdin(size: int) -> bytes:
    # Unbuffered: what a buffer holds back is invisible to select. Tests have no raw stream, and need none.
    stream: Any = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return bytes(stream.read(size) or b"")


def _stdin_ready(seconds: float) -> bool:
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])
    except (OSError, ValueError):
        return True  # not a file of the operating system: it never makes anybody wait


def _print_published(stream: str, sequence: int, duplicate: bool, json: bool) -> None:
    if json:
        print_json({"stream": stream, "seq": sequence, "duplicate": duplicate})
    else:
        write(f"{stream} {sequence}{' duplicate' if duplicate else ''}\n")


def _print_appended(stream: str, got: "AppendedRange", json: bool) -> None:
    if json:
        write(dumps({"stream": stream, "first": got.start, "end": got.stop}) + "\n")
    else:
        write(f"{stream} {got.start} to {got.stop - 1}\n")
