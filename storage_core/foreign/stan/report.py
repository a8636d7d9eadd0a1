"""How a bad record is shown to people: where it is, its bytes, what it would have been, and what can be done."""

from datetime import datetime, timedelta, timezone

from storage_core.foreign.stan.protobuf import decode_one
from storage_core.foreign.stan.record import HEADER, HEADER_SIZE, MESSAGES, Kind
from storage_core.foreign.stan.scan import Cause, Stretch

BYTES_A_LINE = 16
TEXT_SIZE_MAX = 64  # characters of a name that are shown
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

OPTIONS = {
    Cause.BAD: "noCrc (--no-crc) reads on past bad checksums; each row that is read so is told as damage",
    Cause.END: "truncateBadEof (--truncate-bad-eof) reads past an unexpected end; what was behind it is lost",
    Cause.PADDING: "truncateBadEof (--truncate-bad-eof) reads past an unexpected end; what was behind it is lost",
}


def show(kind: Kind, stretch: Stretch) -> str:
    """Return the bad record in lines, the first of its bytes in hex, and the option that reads past it."""
    lines = []
    head, payload = stretch.shown[:HEADER_SIZE], stretch.shown[HEADER_SIZE:]
    if head:
        lines.append(f"  head     {head.hex(' ')}   {_head(kind, head)}")
    for at in range(0, len(payload), BYTES_A_LINE):
        part = payload[at : at + BYTES_A_LINE]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"  {'payload ' if not at else '        '} {part.hex(' '):<47}   {text}")
    if payload:
        lines.append(f"  it would have been {_would_be(kind, head, payload)}")
    if stretch.cause in OPTIONS:
        lines.append(f"  {OPTIONS[stretch.cause]}")
    return "\n".join(lines)


def _head(kind: Kind, head: bytes) -> str:
    if len(head) < HEADER_SIZE:
        return f"{len(head)} bytes of a head"
    word, crc = HEADER.unpack(head)
    code = word >> 24
    name = kind.types[code][0] if kind.typed and code in kind.types else kind.name if not kind.typed else "unknown"
    typed = f"type {code} ({name})" if kind.typed else f"type {name}"
    return f"{typed}, size {word & kind.size_mask}, checksum {crc:#010x}"


def _would_be(kind: Kind, head: bytes, payload: bytes) -> str:
    fields, _ = decode_one(payload)
    if kind is not MESSAGES:
        code = HEADER.unpack(head)[0] >> 24
        name = kind.types[code][0] if code in kind.types else f"a record of unknown type {code}"
        shown = ", ".join(f"field {number}: {_text(value)}" for number, value in sorted(fields.items())[:4])
        return f"{name} ({shown or 'nothing of it can be read'})"
    sequence, subject, data, time_ns = (fields.get(number) for number in (1, 2, 4, 5))
    if not isinstance(sequence, int):
        return "a message of which nothing can be read"
    parts = [f"message {sequence}"]
    if isinstance(subject, bytes):
        parts.append(f"on {_text(subject)}")
    if isinstance(data, bytes):
        parts.append(f"with data {_text(data)}")
    if isinstance(time_ns, int) and time_ns < 1 << 62:
        parts.append(f"of {(_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat()}")
    return " ".join(parts)


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        return str(value)
    shown = repr(value[:TEXT_SIZE_MAX].decode("utf-8", "backslashreplace"))
    return shown + "..." if len(value) > TEXT_SIZE_MAX else shown
