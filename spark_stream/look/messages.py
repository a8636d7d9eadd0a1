"""Messages on stdout: for people, as JSON lines, or the bare data. Written and flushed a batch at a time.

Batches come with the columns PRINTED_COLUMNS. A message for people looks as the `nats` command prints it:

    [17] Subject: orders.new Received: 2026-11-21T12:00:00.000000000Z
      Customer: 42

    the data
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from json import dumps
from typing import TYPE_CHECKING, Any

from spark_stream.look.terminal import print_json, printable, write

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.store.contents import Message

PRINTED_COLUMNS = ("stream", "sequence", "subject", "timestamp_ns", "headers", "data")


class Style(Enum):
    """How a message is printed."""

    PEOPLE = "people"
    JSON = "json"
    BASE64 = "base64"  # JSON, in which data and headers are never text
    RAW = "raw"

    @classmethod
    def chosen(cls, json: bool, raw: bool, base64: bool = False) -> "Style":
        return cls.BASE64 if base64 else cls.JSON if json else cls.RAW if raw else cls.PEOPLE


def print_batch(batch: "pa.RecordBatch", style: Style, with_stream: bool = False) -> None:
    """Print all messages of a batch in one write, and flush. `with_stream`: people see whose message it is."""
    if not batch.num_rows:
        return
    if style is Style.RAW:
        chunks = [(data or b"") + b"\n" for data in batch.column("data").to_pylist()]
        write(b"".join(chunks))
        return
    if style in (Style.JSON, Style.BASE64):
        write(json_lines(batch, style is Style.BASE64))
    else:
        write("".join(_paragraph(row[0] if with_stream else "", *row[1:]) for row in _rows(batch)))


def print_batches(
    batches: "Iterable[pa.RecordBatch]", count_max: int | None, style: Style, with_stream: bool = False
) -> None:
    """Print batch after batch, up to `count_max` messages."""
    left = count_max
    for batch in batches:
        print_batch(batch if left is None else batch.slice(0, left), style, with_stream)
        if left is not None and (left := left - batch.num_rows) <= 0:
            return


def json_lines(batch: "pa.RecordBatch", base64: bool = False) -> str:
    """Return the messages as JSON, one per line."""
    return "".join(_json_line(*row[1:], base64=base64) for row in _rows(batch))


def _rows(batch: "pa.RecordBatch") -> Iterator[tuple[Any, ...]]:
    """Yield stream, sequence, subject, headers, data and the time as text of each message."""
    columns = [batch.column(name).to_pylist() for name in ("stream", "sequence", "subject", "headers", "data")]
    return zip(*columns, show_times(batch.column("timestamp_ns")), strict=True)


def print_message(message: "Message", style: Style) -> None:
    """Print one message; as JSON it is a document of several lines."""
    if style is Style.RAW:
        write((message.data or b"") + b"\n")
    elif style in (Style.JSON, Style.BASE64):
        print_json(message.to_json(style is Style.BASE64))
    else:
        headers = [{"key": key, "value": value} for key, value in message.headers or ()]
        time = show_time(message.timestamp_ns)
        text = _paragraph("", message.sequence, message.subject, headers, message.data, time)
        write(text)


def show_times(times_ns: "pa.Array") -> list[str]:
    """Return int64 nanoseconds since 1970 as RFC 3339 in UTC, all nine digits."""
    import numpy as np

    moments = times_ns.to_numpy(zero_copy_only=False).astype("datetime64[ns]")
    return [f"{text}Z" for text in np.datetime_as_string(moments, unit="ns").tolist()]


def show_time(time_ns: int) -> str:
    import pyarrow as pa

    return show_times(pa.array([time_ns], pa.int64()))[0]


def _json_line(
    sequence: int, subject: str, headers: list[dict[str, Any]] | None, data: bytes | None, time: str, *, base64: bool
) -> str:
    """Return the message on one line, with the keys that `Message.to_json` gives."""
    from storage_core.message_json import message_fields

    pairs = [(header["key"], header["value"]) for header in headers or ()]
    return dumps(message_fields(subject, sequence, time, pairs, data, base64)) + "\n"


def _paragraph(
    stream: str, sequence: int, subject: str, headers: list[dict[str, Any]] | None, data: bytes | None, time: str
) -> str:
    place = f"{stream} {sequence}" if stream else str(sequence)
    lines = [f"[{place}] Subject: {printable(subject)} Received: {time}"]
    lines += [f"  {printable(header['key'])}: {_readable(header['value'])}" for header in headers or ()]
    body = "(null)" if data is None else _readable(data)
    return "\n".join([*lines, "", body, "", ""])


def _readable(value: bytes | None) -> str:
    """Return bytes as text: UTF-8 where they are that, escapes where not, and nothing that steers a terminal."""
    if value is None:
        return "(null)"
    text = value.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" else printable(letter) for letter in text)
