"""Options that may stand anywhere among the words of a command."""

from collections.abc import Sequence

STORAGE_OPTION, LOCK_TIMEOUT = "--storage-option", "--lock-timeout"
OPTIONS = (STORAGE_OPTION, LOCK_TIMEOUT)  # each takes one value


def in_front(words: Sequence[str]) -> list[str]:
    """Return the words with these options, wherever they stand, before the verb: there they are parsed."""
    front: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(words):
        if words[at] == "--":
            return [*front, *rest, *words[at:]]
        size = 2 if words[at] in OPTIONS else 1
        (front if words[at].partition("=")[0] in OPTIONS else rest).extend(words[at : at + size])
        at += size
    return [*front, *rest]
