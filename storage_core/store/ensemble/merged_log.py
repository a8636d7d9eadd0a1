"""Logs put together: what all volumes have, as chains of entries from the newest snapshot on.

No volume needs to have a log as a whole. An entry counts if a chain of whole entries leads to it, wherever they lie; so
two volumes that each lost something may have the whole log between them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from storage_core.metadata.commands import decode_envelope
from storage_core.raft.entry import CHAIN_START, START, CommitRecord, Entry, EntryId
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader, trail_chain
from storage_core.store.volume.log_contents import LogContents

Node = tuple[int, bytes]  # index and chain of an entry


@dataclass(frozen=True, slots=True)
class LogChain:
    """The log to lead with."""

    tip: EntryId
    snapshot: SnapshotHeader | None
    snapshot_body: SnapshotBody | None
    entries: tuple[Entry, ...]  # after the snapshot, up to the tip

    @property
    def base(self) -> EntryId:
        """Return where the entries begin."""
        return self.snapshot.entry if self.snapshot is not None else START

    def at(self, index: int) -> EntryId | None:
        """Return the entry at `index`, None below the snapshot or above the tip."""
        place = index - self.base.index
        if place == 0:
            return self.base
        return self.entries[place - 1].id if 0 < place <= len(self.entries) else None

    def chain_at(self, index: int) -> bytes | None:
        """Return the chain of the entry at `index`, None above the tip and further below than the snapshot knows."""
        entry = self.at(index)
        if entry is not None:
            return entry.chain
        return trail_chain(self.snapshot_body.trail, self.base.index, index) if self.snapshot_body is not None else None

    def agrees(self, index: int, chain: bytes) -> bool:
        """Return whether the log holds this entry; what even its snapshot does not know is taken for granted."""
        own_chain = self.chain_at(index)
        return own_chain == chain if own_chain is not None else index < self.base.index

    def nodes(self) -> Iterator[Node]:
        """Return every entry that is known of the log, by index and chain."""
        for entry in self.entries:
            yield entry.index, entry.chain
        yield self.base.index, self.base.chain
        for index in range(self.base.index - 1, 0, -1):
            chain = self.chain_at(index)
            if chain is None:
                break
            yield index, chain


class MergedLog:
    """All entries and snapshots of all volumes, put together to chains."""

    def __init__(self, contents: Iterable[LogContents]) -> None:
        contents = list(contents)
        self._entries: dict[tuple[int, bytes], Entry] = {}  # those that a whole chain leads to
        self._parents: dict[tuple[int, bytes], bytes] = {}
        self._roots: dict[tuple[int, bytes], tuple[SnapshotHeader, SnapshotBody]] = {}
        self._chains: dict[int, list[bytes]] = {0: [CHAIN_START]}  # by index
        self.statements: dict[bytes, int] = {}  # by volume: the highest index that anything says to be durable there
        for log in contents:
            if log.snapshot is not None and log.snapshot_body is not None:
                self._roots[log.snapshot.index, log.snapshot.chain] = (log.snapshot, log.snapshot_body)
                self._add_statements(log.snapshot_body.durable)
        for index, chain in self._roots:
            self._chains.setdefault(index, []).append(chain)
        pooled: dict[tuple[int, bytes], Entry] = {}
        for log in contents:
            for entry in log.entries_by_index.values():
                pooled.setdefault((entry.index, entry.chain), entry)
        for place in sorted(pooled):
            self._add_statements(decode_envelope(pooled[place].payload).durable)
            self._link(place, pooled[place])

    def _add_statements(self, durable: Mapping[bytes, int]) -> None:
        for volume_id, index in durable.items():
            self.statements[volume_id] = max(self.statements.get(volume_id, 0), index)

    def _link(self, place: tuple[int, bytes], entry: Entry) -> None:
        for before in self._chains.get(entry.index - 1, ()):
            if entry.follows(before):
                self._entries[place], self._parents[place] = entry, before
                known = self._chains.setdefault(entry.index, [])
                if entry.chain not in known:
                    known.append(entry.chain)
                return

    def holds(self, entry: Entry | None) -> bool:
        """Return whether a whole chain leads to the entry."""
        return entry is not None and (entry.index, entry.chain) in self._entries

    def tip_of(self, contents: LogContents) -> EntryId:
        """Return the last entry of a volume that a whole chain leads to, whoever has the entries before it."""
        best = contents.snapshot.entry if contents.snapshot is not None else START
        for entry in contents.entries_by_index.values():
            if entry.index > best.index and self.holds(entry):
                best = entry.id
        return best

    def chain_ending_at(self, tip: EntryId) -> LogChain:
        """Return the log that ends with `tip`, from the newest snapshot on its way on."""
        index, _, chain = tip
        entries: list[Entry] = []
        while (index, chain) not in self._roots and index > 0:
            entry = self._entries[index, chain]
            entries.append(entry)
            index, chain = index - 1, self._parents[index, chain]
        header, body = self._roots.get((index, chain), (None, None))
        return LogChain(tip, header, body, tuple(reversed(entries)))

    def place_of(self, commit: CommitRecord) -> EntryId | None:
        """Return the entry that a commit record names, None if no whole chain leads there."""
        place = (commit.index, commit.chain)
        known = place in self._entries or place in self._roots
        return commit.entry if known else None
