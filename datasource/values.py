"""Option values: every option reaches us as text; these functions read it, and name the option when they cannot."""

import ast
import json
import re

from storage_core import quantities
from storage_core.live.login import is_live, parse_address
from storage_core.metadata.config import check_name
from storage_core.paths import volume_path
from storage_core.subjects import is_filter, is_literal
from storage_core.suggestions import not_one_of

COUNT_MAX = 2**63 - 1
TEXT_SIZE_MAX = 1024  # characters of a writer's or batch's name: they are kept in every append's entry
DURATION_MAX_S = 1_000_000 * 3_600  # a century; the clocks of the operating system end soon after


def parse_flag(option: str, text: str) -> bool:
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise ValueError(f"option {option!r}: {text!r} is neither true nor false")
    return folded == "true"


def parse_choice(option: str, text: str, choices: tuple[str, ...]) -> str:
    folded = text.strip().lower()
    if folded not in choices:
        raise ValueError(f"option {option!r}: {not_one_of(text, choices)}")
    return folded


def parse_verify(option: str, text: str) -> bool:
    return parse_choice(option, text, ("crc", "none")) == "crc"


def parse_last_sequence(option: str, text: str) -> int:
    """Return a sequence, or 0 for a stream that never had a message."""
    return 0 if text.strip() == "0" else parse_count(option, text)


def parse_count(option: str, text: str) -> int:
    """Return a whole number from 1 on."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not 1 <= int(text) <= COUNT_MAX:
        raise ValueError(f"option {option!r}: {text!r} is not a whole number from 1 on")
    return int(text)


def parse_size(option: str, text: str) -> int:
    """Return bytes, from 1 on, for `1048576`, `512k`, `64m`, `1.5g`, in powers of 1,024, as Spark takes them."""
    size = quantities.parse_size(text, f"option {option!r}")
    if size < 1:
        raise ValueError(f"option {option!r}: {text!r} is not a number of bytes from 1 on")
    return size


def parse_duration_s(option: str, text: str) -> float:
    """Return seconds for `60s`, `500 ms`, `2m`, `1h30m`, `1d`."""
    duration_ns = quantities.parse_duration_ns(text, f"option {option!r}")
    if duration_ns > DURATION_MAX_S * 1_000_000_000:
        raise ValueError(f"option {option!r}: {text!r} is too long, the most is {DURATION_MAX_S // 3_600}h")
    return duration_ns / 1_000_000_000


def parse_time_ns(option: str, value: object) -> int:
    """Return nanoseconds since 1970 (UTC) for ISO 8601, without a zone UTC, or for milliseconds since 1970."""
    text = str(value).strip()
    if not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,16}", text) and isinstance(value, int | str):
        return int(text) * 1_000_000
    if not isinstance(value, str):
        raise ValueError(f"option {option!r}: {value!r} is not a time")
    try:
        return quantities.parse_time_ns(value, f"option {option!r}")
    except ValueError as error:
        raise ValueError(f"{error}, and milliseconds since 1970") from None


def parse_object(option: str, text: str, example: str) -> dict[str, object]:
    """Return a JSON object; raises ValueError with an example of what is taken."""
    try:
        value = json.loads(text, object_pairs_hook=_refuse_repeated)
    except ValueError as error:
        raise ValueError(f"option {option!r}: {text!r} is not JSON such as {example}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"option {option!r}: {text!r} is not a JSON object such as {example}")
    return value


def _refuse_repeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name is given twice")
    return mapping


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Return the names of a list, without blanks around them; text is split at commas."""
    names = tuple(dict.fromkeys(part.strip() for part in _listed(text) or text.split(",")))
    if "" in names:
        raise ValueError(f"option {option!r}: {text!r} holds an empty name")
    return names


def parse_paths(option: str, text: str) -> tuple[str, ...]:
    """Return absolute paths, or addresses of servers.

    `load([p, q])` comes as a JSON list, whose elements may hold commas; other text is split.

    Relative paths are resolved where this runs: on the driver.
    """
    listed = _listed(text) or [part.strip() for part in text.split(",")]
    if not all(listed) or text.strip() == "[]":
        raise ValueError(f"option {option!r}: {text!r} holds an empty path")
    if any(map(is_live, listed)):
        return tuple(str(parse_address(address, f"option {option!r}")) for address in listed)
    return tuple(volume_path(path, f"option {option!r}") for path in listed)


def parse_text(option: str, text: str) -> str:
    if not text.strip() or len(text) > TEXT_SIZE_MAX or not text.isprintable():
        raise ValueError(f"option {option!r}: {text!r} is not 1 to {TEXT_SIZE_MAX} printable characters")
    return text


def parse_secret(option: str, text: str) -> str:
    if not text:
        raise ValueError(f"option {option!r} is empty")
    return text


def parse_one_stream(option: str, text: str) -> str:
    if not text.strip() or any(character in text for character in ",*?["):
        raise ValueError(
            f"option {option!r}: {text!r} is not the name of one stream; to write to several, leave the option out and "
            "name the stream of each row in the column 'stream'"
        )
    return text.strip()


def parse_consumer(option: str, text: str) -> str:
    return check_name(text.strip(), f"option {option!r}")


def parse_subject_filter(option: str, text: str) -> str:
    if not is_filter(text):
        raise ValueError(f"option {option!r}: {text!r} is not a subject filter such as orders.* or orders.>")
    return text


def parse_subject(option: str, text: str) -> str:
    if not is_literal(text):
        raise ValueError(
            f"option {option!r}: {text!r} is not a subject that a message can carry: tokens joined by dots, without "
            "blanks and wildcards"
        )
    return text


def _listed(text: str) -> list[str] | None:
    """Return the elements if the text is a list of strings, None for any other text: names may begin with a bracket.

    A list comes as JSON, which Spark makes of `load([p, q])`, or as Python, which it makes of `option(name, [p, q])`.
    """
    if not text.strip().startswith(("[", "(")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, (list, tuple)) and value and all(isinstance(entry, str) for entry in value):
            return list(value)
    return None
