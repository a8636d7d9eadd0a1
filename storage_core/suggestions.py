"""What an unknown name may be a slip of, or stands for in Kafka."""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_COUNT_MAX = 32  # names in one message
IN_KAFKA = {  # names of Kafka and of Spark's source for it, in small letters
    "assign": "stream", "subscribe": "stream", "subscribepattern": "stream", "topic": "stream",
    "group.id": "consumer", "groupidprefix": "consumer", "kafka.group.id": "consumer",
    "kafka.bootstrap.servers": "path",
    "key": "subject", "offset": "sequence", "value": "data",
}  # fmt: skip
LIKENESS_MIN = 0.65  # of two names, by difflib: `strem` is 0.91 of `stream`, and `version` 0.62 of `verify`


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that `name` may be a slip of or is in Kafka, whatever its case and dashes; None for neither."""
    by_letters = {_letters(known): known for known in names}
    if (ours := by_letters.get(IN_KAFKA.get(_letters(name), ""))) is not None:
        return ours
    close = get_close_matches(_letters(name), list(by_letters), 1, LIKENESS_MIN)
    return by_letters[close[0]] if close else None


def _letters(name: str) -> str:
    """Return what counts in a comparison: the dashes of `--store` would make any two options alike."""
    return name.casefold().lstrip("-")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the end of a message, or nothing if none of the names is close."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near is not None else ""


def not_one_of(value: object, choices: Iterable[str]) -> str:
    """Return `'x' is not one of a, b; did you mean 'a'?` for a value that has to be one of a few."""
    listed = list(choices)
    hint = did_you_mean(value, listed) if isinstance(value, str) else ""
    return f"{value!r} is not one of {', '.join(listed)}{hint}"


def instead(name: str, names: Iterable[str], verb: str = "there are") -> str:
    """Return the end of a message about an unknown name: the nearest one, or those that there are, not too many."""
    known = list(names)
    shown = [*known[:SHOWN_COUNT_MAX], *(["..."] if len(known) > SHOWN_COUNT_MAX else [])]
    return did_you_mean(name, known) or f"; {verb} {', '.join(shown) or 'none'}"
