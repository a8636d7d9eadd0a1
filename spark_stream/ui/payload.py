"""What bytes of a message look like to people: JSON, MessagePack, text or hex; whatever they hold, nothing executes.

Bytes are hostile. Text keeps its letters; what would steer a terminal, turn the direction of reading around or be
invisible is named (`U+202E`) instead of sent. What is shown is bounded, and says so.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from spark_stream.look.values import MSGPACK_SIZE_MAX, parsed_json, parsed_msgpack

FORMATS = ("json", "msgpack", "text", "hex")
SHOWN_SIZE_MAX = MSGPACK_SIZE_MAX  # bytes of one message that a page shows
PREVIEW_SIZE = 256  # bytes of a message in a list
HEX_SIZE_MAX = 8 << 10
HEX_ROW = 16
# Control characters but for tab and line feed; soft hyphen, marks of direction, zero-width ones, separators of lines
# and paragraphs, surrogates, private use, tags, what is no character.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)
COMBINING = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u0610-\u061a\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]{4})"
    "[\u0300-\u036f\u0483-\u0489\u0610-\u061a\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+"
)


def visible(text: object) -> Markup:
    """Return text as HTML in which nothing is invisible, and nothing is markup but ours."""
    shown = str(escape(COMBINING.sub("\\1\ufffd", str(text))))
    return Markup(INVISIBLE.sub(lambda match: f'<span class="mark">U+{ord(match[0]):04X}</span>', shown))


def plain(text: object) -> str:
    """Return text for titles and attributes, with names in place of what is invisible."""
    return INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text))


def format_of(data: bytes) -> str:
    """Return how bytes are best shown. They may be cut off: then JSON and MessagePack are guessed."""
    head = data[:1]
    if head in (b"{", b"[", b'"') and parsed_json(data) is not None:
        return "json"
    if head and (head[0] & 0xE0 == 0x80 or head[0] in range(0xDC, 0xE0)) and parsed_msgpack(data) is not None:
        return "msgpack"
    return "text" if _is_text(data) else "hex"


def shown(data: bytes | None, wanted: str = "") -> dict[str, Any]:
    """Return one message's data as it is shown: `format`, `text`, and `cut` if that is not all of it.

    `wanted`: one of FORMATS; what is not of that format is shown as what it is, and `error` says so.
    """
    if data is None:
        return {"format": "null", "text": "", "size": 0, "cut": False, "error": None}
    chosen = wanted if wanted in FORMATS else format_of(data[:SHOWN_SIZE_MAX] if len(data) > SHOWN_SIZE_MAX else data)
    error = None
    made: str | None = None
    if chosen in ("json", "msgpack"):
        value = (parsed_json if chosen == "json" else parsed_msgpack)(data) if len(data) <= SHOWN_SIZE_MAX else None
        if value is None:
            larger = f"it is larger than {SHOWN_SIZE_MAX >> 10} KiB" if len(data) > SHOWN_SIZE_MAX else "it is not"
            error = f"not shown as {chosen}: {larger}" if wanted else None
            chosen = "text" if _is_text(data[:SHOWN_SIZE_MAX]) else "hex"
        else:
            made = _pretty(value[0])
            if made is None:
                error, chosen = f"not shown as {chosen}: it is nested too deeply", "text"
    if chosen == "hex":
        made = hex_dump(data[:HEX_SIZE_MAX])
    elif made is None:
        made = data[:SHOWN_SIZE_MAX].decode("utf-8", "replace")
    limit = HEX_SIZE_MAX if chosen == "hex" else SHOWN_SIZE_MAX
    cut = len(data) > limit or len(made) > 8 * SHOWN_SIZE_MAX
    return {"format": chosen, "text": made[: 8 * SHOWN_SIZE_MAX], "size": len(data), "cut": cut, "error": error}


def preview(data: bytes | None) -> tuple[str, str]:
    """Return (format, one line) for a list; `data` may be the beginning of a message only."""
    if data is None:
        return "null", ""
    if not data:
        return "empty", ""
    if _is_text(data):
        kind = "json" if data[:1] in (b"{", b"[") else "text"
        return kind, " ".join(data[:PREVIEW_SIZE].decode("utf-8", "replace").rstrip("\ufffd").split())
    value = parsed_msgpack(data)
    if value is not None and isinstance(value[0], (dict, list)):
        text = _pretty(value[0], None)
        if text is not None:
            return "msgpack", text[:PREVIEW_SIZE]
    return "hex", data[:48].hex(" ")


def hex_dump(data: bytes, offset_bytes: int = 0) -> str:
    """Return rows of 16 bytes with their offsets, and the letters that they are in ASCII."""
    rows = []
    for at in range(0, len(data), HEX_ROW):
        row = data[at : at + HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset_bytes + at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  {letters}")
    return "\n".join(rows)


def _pretty(value: Any, indent: int | None = 2) -> str | None:
    try:
        return json.dumps(_jsonable(value), indent=indent, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        return None


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def _is_text(data: bytes) -> bool:
    """Return whether bytes, perhaps cut off within a letter, are UTF-8 that a person can read."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3 or error.reason != "unexpected end of data":
            return False
        text = data[: error.start].decode()
    marks = sum(1 for _ in INVISIBLE.finditer(text[:4096]))
    return marks * 4 <= min(len(text), 4096)
