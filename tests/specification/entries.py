"""Entries of the models: interned, so that an entry's number stands for it and for everything before it.

Equal numbers are equal logs up to and including that entry. 0 is the empty log.
"""

PARENT, TERM, INDEX, WHAT = [0], [0], [0], [""]
STATED: list[tuple[int, ...]] = [()]  # by volume: the highest index that the entry says is durable there
LOG: list[tuple[int, ...]] = [()]  # the entry and all before it, the first one first
_INTERNED: dict[tuple[int, int, str, tuple[int, ...]], int] = {}


def entry_after(parent: int, term: int, what: str, stated: tuple[int, ...] = ()) -> int:
    key = (parent, term, what, stated)
    if key not in _INTERNED:
        number = _INTERNED[key] = len(PARENT)
        PARENT.append(parent)
        TERM.append(term)
        INDEX.append(INDEX[parent] + 1)
        WHAT.append(what)
        STATED.append(stated)
        LOG.append((*LOG[parent], number))
    return _INTERNED[key]


def is_prefix(one: int, other: int) -> bool:
    """Return whether the log that ends with `one` is a beginning of the one that ends with `other`."""
    return one == 0 or LOG[other][INDEX[one] - 1 : INDEX[one]] == (one,)


def rank(entry: int) -> tuple[int, int]:
    """Return what makes one log better than another: Raft's order of last term and length."""
    return TERM[entry], INDEX[entry]
