"""SharedMap: an immutable mapping that shares with its successors all that has not changed.

A state of the metadata is a value, and so is each map in it: streams by name, consumers of a stream, batches of a
writer. Copying a dict for each command would cost what the map holds; here a change copies one leaf and the path to it,
some microseconds whatever the size. What two maps share is seen by identity, so `changes_since` costs what has changed.

A trie over the CRC-32 of the key, 4 bits a level: leaves are dicts, branches are tuples of 16. The order of a map that
is larger than a leaf is that of the hashes: the same in every process, and of no meaning.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from zlib import crc32

K = TypeVar("K", str, bytes)
V = TypeVar("V")
LEAF_SIZE_MAX = 32  # entries; a leaf that grows beyond becomes a branch
_BITS, _HASH_BITS = 4, 32
_WIDTH = 1 << _BITS
_Node = Any  # dict of K to V, or tuple of _WIDTH nodes


class SharedMap(Mapping[K, V]):
    """A mapping of texts or bytes that is never changed; `with_item` and `without` return another one."""

    __slots__ = ("_count", "_root")
    _root: _Node
    _count: int

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        if isinstance(items, SharedMap):
            self._root, self._count = items._root, items._count
            return
        entries = dict(items)
        self._root, self._count = _build(entries, 0), len(entries)

    @classmethod
    def _of(cls, root: _Node, count: int) -> "SharedMap[K, V]":
        made = cls.__new__(cls)
        made._root, made._count = root, count
        return made

    def __getitem__(self, key: K) -> V:
        leaf = _leaf(self._root, key)
        return leaf[key]  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, bytes)) and key in _leaf(self._root, key)

    def __iter__(self) -> Iterator[K]:
        for leaf in _leaves(self._root):
            yield from leaf

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"SharedMap({dict(self)!r})"

    def with_item(self, key: K, value: V) -> "SharedMap[K, V]":
        """Return the map with this value under the key."""
        added = key not in self
        return self._of(_with(self._root, _hash(key), key, value, 0), self._count + added)

    def without(self, key: K) -> "SharedMap[K, V]":
        """Return the map without this key; KeyError if it is not there."""
        if key not in self:
            raise KeyError(key)
        return self._of(_without(self._root, _hash(key), key), self._count - 1)

    def changes_since(self, before: "SharedMap[K, V]") -> Iterator[tuple[K, V | None, V | None]]:
        """Yield (key, value before, value now) where it is not the same object; None: there is none.

        Costs what has changed if one of the two was made of the other; else what they hold.
        """
        yield from _changes(before._root, self._root)


def _hash(key: str | bytes) -> int:
    return crc32(key if isinstance(key, bytes) else key.encode())


def _build(entries: dict[K, V], depth: int) -> _Node:
    if len(entries) <= LEAF_SIZE_MAX or depth * _BITS >= _HASH_BITS:
        return entries
    parts: list[dict[K, V]] = [{} for _ in range(_WIDTH)]
    for key, value in entries.items():
        parts[_hash(key) >> depth * _BITS & _WIDTH - 1][key] = value
    return tuple(_build(part, depth + 1) for part in parts)


def _leaf(node: _Node, key: str | bytes) -> dict[Any, Any]:
    if isinstance(node, dict):
        return node
    hashed = _hash(key)
    while isinstance(node, tuple):
        node, hashed = node[hashed & _WIDTH - 1], hashed >> _BITS
    return node  # type: ignore[no-any-return]


def _leaves(node: _Node) -> Iterator[dict[Any, Any]]:
    if isinstance(node, dict):
        yield node
        return
    for child in node:
        yield from _leaves(child)


def _with(node: _Node, hashed: int, key: str | bytes, value: object, depth: int) -> _Node:
    if isinstance(node, dict):
        return _build({**node, key: value}, depth)
    at = hashed & _WIDTH - 1
    return (*node[:at], _with(node[at], hashed >> _BITS, key, value, depth + 1), *node[at + 1 :])


def _without(node: _Node, hashed: int, key: str | bytes) -> _Node:
    if isinstance(node, dict):
        return {name: value for name, value in node.items() if name != key}
    at = hashed & _WIDTH - 1
    return (*node[:at], _without(node[at], hashed >> _BITS, key), *node[at + 1 :])


def _changes(before: _Node, now: _Node) -> Iterator[tuple[Any, Any, Any]]:
    if before is now:
        return
    if isinstance(before, tuple) and isinstance(now, tuple):
        for entry, new_entry in zip(before, now, strict=True):
            yield from _changes(entry, new_entry)
        return
    old = {key: value for leaf in _leaves(before) for key, value in leaf.items()}
    for leaf in _leaves(now):
        for key, value in leaf.items():
            former = old.pop(key, None)
            if former is not value:
                yield key, former, value
    for key, value in old.items():
        yield key, value, None
