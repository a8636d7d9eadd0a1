"""Files and directories of a simulated disk: what processes see (the page cache), and what the platter has.

`simulated_disk` has the rules. Here is what becomes of each file and name when it is written, synced, fails to be
synced, or loses power.
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.simulated_disk import SimulatedLock

PAGE_SIZE = 4096
SECTOR_SIZE = 512
VERSIONS_KEPT_MAX = 4  # of an un-synced page, from which its fate chooses


@dataclass(frozen=True, slots=True)
class Fate:
    """What a power loss does to what was not synced. Chances are between 0 and 1."""

    page_kept: float = 0.5  # a page is on the platter in some newer version
    page_torn: float = 0.3  # and then only some of its sectors are
    name_kept: float = 0.5  # the creation or removal of a name happened
    sector_size: int = SECTOR_SIZE  # a multiple of 512: within it a write is whole or not there

    @staticmethod
    def draw(random_source: random.Random) -> "Fate":
        """Return a fate: the extremes come as often as mixtures of everything."""
        return Fate(
            page_kept=random_source.choice((0.0, 0.2, 0.5, 0.8, 1.0)),
            page_torn=random_source.choice((0.0, 0.0, 0.3, 1.0)),
            name_kept=random_source.choice((0.0, 0.5, 0.5, 1.0)),
            sector_size=random_source.choice((SECTOR_SIZE, PAGE_SIZE)),
        )


NOTHING_KEPT = Fate(page_kept=0.0, name_kept=0.0)
ALL_KEPT = Fate(page_kept=1.0, page_torn=0.0, name_kept=1.0)


class SimulatedInode:
    """A regular file: what processes read, and what the platter has.

    Both are bytes that are replaced when they change, so copies of a file share them until then.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.platter = content
        self.dirty: dict[int, list[bytes]] = {}  # page number: its versions since it was durable, oldest first
        self.stranded: dict[int, list[bytes]] = {}  # the same of pages whose sync failed
        self.sizes: list[int] = []  # sizes since the last sync that worked, oldest first
        self.lock: SimulatedLock | None = None

    def write(self, offset_bytes: int, data: bytes) -> None:
        end = offset_bytes + len(data)
        if end > len(self.content):
            self.resize(end)
        self.content = _put(self.content, offset_bytes, data)
        self._touch(offset_bytes // PAGE_SIZE, -(-end // PAGE_SIZE))

    def resize(self, size: int) -> None:
        before = len(self.content)
        if size < before:
            self.content = self.content[:size]
            for pages in (self.dirty, self.stranded):
                for number in [one for one in pages if one * PAGE_SIZE >= size]:
                    del pages[number]
            self._touch(size // PAGE_SIZE, -(-size // PAGE_SIZE))
        else:
            self.content += bytes(size - before)
        self.sizes = [*self.sizes, size][-VERSIONS_KEPT_MAX:]

    def _touch(self, first: int, end: int) -> None:
        for number in range(first, end):
            versions = self.dirty.setdefault(number, self.stranded.pop(number, []))
            versions.append(self.content[number * PAGE_SIZE : (number + 1) * PAGE_SIZE])
            del versions[:-VERSIONS_KEPT_MAX]

    def sync(self) -> None:
        if self.stranded:
            self._write_pages({at: self.content[at * PAGE_SIZE : (at + 1) * PAGE_SIZE] for at in self.dirty})
            self._fit(len(self.content))
        else:
            self.platter = self.content
        self.dirty, self.sizes = {}, []

    def strand(self) -> None:
        """Fail to sync: what was dirty counts as clean."""
        self.stranded.update(self.dirty)
        self.dirty = {}

    def evict(self) -> None:
        """Forget the cached copies of stranded pages: from now on they read as the platter has them."""
        for number in self.stranded:
            start = number * PAGE_SIZE
            size = min(PAGE_SIZE, len(self.content) - start)
            if size > 0:
                page = self.platter[start : start + size]
                self.content = _put(self.content, start, page + bytes(size - len(page)))
        self.stranded = {}

    def lose_power(self, fate: Fate, random_source: random.Random) -> None:
        kept = {}
        for number, versions in sorted({**self.stranded, **self.dirty}.items()):
            if random_source.random() < fate.page_kept:
                kept[number] = self._surviving(number, versions, fate, random_source)
        self._write_pages(kept)
        sizes = [len(self.platter), *self.sizes]
        if self.sizes:
            # A size that is not synced goes with the pages more often than not.
            self._fit(sizes[-1] if random_source.random() < fate.page_kept else random_source.choice(sizes))
        self.dirty, self.stranded, self.sizes, self.lock = {}, {}, [], None
        self.content = self.platter

    def flip_bit(self, bit: int) -> None:
        """Turn one bit over, in the cache and on the platter, where what was not synced may not be."""
        self.content, self.platter = _flipped(self.content, bit), _flipped(self.platter, bit)

    def _surviving(self, number: int, versions: list[bytes], fate: Fate, random_source: random.Random) -> bytes:
        newest = versions[-1] if random_source.random() < 0.7 else random_source.choice(versions)
        if random_source.random() >= fate.page_torn:
            return newest
        start = number * PAGE_SIZE
        older = random_source.choice([self.platter[start : start + PAGE_SIZE], *versions])
        older = older[: len(newest)] + bytes(max(0, len(newest) - len(older)))
        return b"".join(
            (newest if random_source.random() < 0.5 else older)[at : at + fate.sector_size]
            for at in range(0, len(newest), fate.sector_size)
        )

    def _write_pages(self, pages: dict[int, bytes]) -> None:
        """Put whole pages on the platter."""
        platter = bytearray(self.platter)
        for number, page in pages.items():
            start = number * PAGE_SIZE
            platter.extend(bytes(max(0, start + len(page) - len(platter))))
            platter[start : start + len(page)] = page
        self.platter = bytes(platter)

    def _fit(self, size: int) -> None:
        self.platter = self.platter[:size] + bytes(size - min(size, len(self.platter)))

    def copy_platter(self) -> "SimulatedInode":
        return SimulatedInode(self.platter)

    def copy(self, copies: "Copies") -> "SimulatedInode":
        copy = SimulatedInode()
        copy.content, copy.platter, copy.sizes = self.content, self.platter, list(self.sizes)
        copy.dirty = {number: list(versions) for number, versions in self.dirty.items()}
        copy.stranded = {number: list(versions) for number, versions in self.stranded.items()}
        return copy


def _put(content: bytes, start: int, data: bytes) -> bytes:
    """Return the content with data at `start`, and zeros before it where it was shorter."""
    return b"".join((content[:start], bytes(max(0, start - len(content))), data, content[start + len(data) :]))


def _flipped(content: bytes, bit: int) -> bytes:
    at = bit // 8
    return _put(content, at, bytes([content[at] ^ 1 << bit % 8])) if at < len(content) else content


@dataclass(slots=True)
class SimulatedDirectory:
    """A directory: the names that processes see, and those that are durable."""

    names: dict[str, "Node"] = field(default_factory=dict)
    platter: dict[str, "Node"] = field(default_factory=dict)
    dirty: dict[str, list["Node | None"]] = field(default_factory=dict)  # what a name stood for since it was durable
    stranded: dict[str, list["Node | None"]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  # old name: new one, until both are durable

    def put(self, name: str, node: "Node | None") -> None:
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.dirty.setdefault(name, self.stranded.pop(name, [])).append(node)
        self.renamed.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        """Give the node another name, in one step: after a power loss it has happened, or it has not."""
        self.put(new, self.names[old])
        self.put(old, None)
        self.renamed[old] = new

    def sync(self) -> None:
        for name in self.dirty:
            _assign(self.platter, name, self.names.get(name))
        self.dirty, self.renamed = {}, {}

    def strand(self) -> None:
        self.stranded.update(self.dirty)
        self.dirty = {}

    def lose_power(self, fate: Fate, random_source: random.Random) -> None:
        changed = {**self.stranded, **self.dirty}
        for name, versions in sorted(changed.items()):
            if name not in self.renamed and random_source.random() < fate.name_kept:
                _assign(
                    self.platter, name, versions[-1] if random_source.random() < 0.8 else random_source.choice(versions)
                )
        for old, new in sorted(self.renamed.items()):
            if new in changed and self.platter.get(new) is changed[new][-1]:
                self.platter.pop(old, None)
        self.dirty, self.stranded, self.renamed, self.names = {}, {}, {}, dict(self.platter)
        for _, node in sorted(self.names.items()):
            node.lose_power(fate, random_source)

    def copy_platter(self) -> "SimulatedDirectory":
        copied = {name: node.copy_platter() for name, node in self.platter.items()}
        return SimulatedDirectory(dict(copied), dict(copied))

    def copy(self, copies: "Copies") -> "SimulatedDirectory":
        return SimulatedDirectory(
            {name: _copied(node, copies) for name, node in self.names.items()},
            {name: _copied(node, copies) for name, node in self.platter.items()},
            {name: [node and _copied(node, copies) for node in versions] for name, versions in self.dirty.items()},
            {name: [node and _copied(node, copies) for node in versions] for name, versions in self.stranded.items()},
            dict(self.renamed),
        )


Node = SimulatedInode | SimulatedDirectory
Copies = dict[int, Node]  # by id of the original: a node that stands in two places is copied once


def _copied(node: Node, copies: Copies) -> Node:
    if id(node) not in copies:
        copies[id(node)] = node.copy(copies)
    return copies[id(node)]


def _assign(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
