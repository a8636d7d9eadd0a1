"""Maintenance: bounded work at the end of a session, after its commit and before it releases its locks.

Copies that need repair first (background_repair.py), then merging of small blocks (compaction.py), the journal of
placements, unlinking of blocks whose delete is old enough and that do not wait to be archived (archives.py), a snapshot
of the metadata, the reserves for a full disk. Each piece is bounded. A failure of one is logged, and the next session
tries that piece again; the commit stands.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np

from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.commands import ForgetTransactions, Unlinked
from storage_core.metadata.manifest import id_numbers, ids
from storage_core.metadata.state import StoreState, Streams, StreamState
from storage_core.store.ensemble.process_cache import Leadership
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.maintenance.archives import must_wait
from storage_core.store.maintenance.compaction import Merging
from storage_core.store.replicas.background_repair import BackgroundRepair
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.placement_journal import Placement, PlacementJournal
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing.mirrored_file import is_disk_failure

logger = logging.getLogger(__name__)
UNLINKED_PER_SESSION_MAX = 256
TRANSACTIONS_KEPT_MAX = 16_384  # remembered outcomes beyond which the old ones go
TRANSACTION_KEEP_NS = 24 * 3_600 * 1_000_000_000
_NO_BLOCK = bytes(16)  # a delete without a block: the stream's directory


class Maintenance:
    """Bounded maintenance of the volumes. One for a store; used under its locks."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        # By volume: the streams as of which its journal has every block.
        self._journaled: dict[Volume, Streams] = {}
        self._journals: dict[Volume, PlacementJournal] = {}  # with the file that records are appended to
        # By volume: under which leadership its reserve was seen to be whole. Others that use it lead from then on.
        self._filled: dict[Volume, Leadership] = {}
        self.archived: set[bytes] = set()  # ids of blocks that may be unlinked, as archives.py found
        self._repair = BackgroundRepair(env)
        self._merging = Merging(env)

    def close(self) -> None:
        """Close the files that are kept from one session to the next."""
        while self._journals:
            self._journals.popitem()[1].close()

    def after(self, session: Session, everything: bool = False) -> None:
        """Do what is due; `everything`: without the bounds of one session. Failures are logged and left for later."""
        for piece in (self._repair_copies, self._merge, self._write_journal, self._unlink, self._forget_transactions):
            self._try(session, piece.__name__.strip("_"), partial(piece, session, everything))
        self._try(session, "snapshot", partial(self._snapshot, session))
        self._try(session, "reserve", partial(self._fill_reserves, session))

    def _try(self, session: Session, name: str, piece: Callable[[], None]) -> None:
        """Do one piece. Whatever it fails with, a mistake of ours too, comes after an ack, which still holds."""
        try:
            piece()
        except (OSError, StorageError) as error:
            logger.warning("%s: maintenance (%s): %s", session.label, name, error)
        except Exception:
            logger.exception("%s: maintenance (%s)", session.label, name)

    def _snapshot(self, session: Session) -> None:
        if session.snapshot_if_due():
            self._begin_journals(session)

    def journal(self, session: Session) -> None:
        """Write down on every volume which blocks it should have: those that were made anew have no journal yet."""
        self._try(session, "write_journal", partial(self._write_journal, session, True))

    def repair(self, session: Session) -> bool:
        """Repair some copies, whether it is time to look for them or not; return whether there may be more to do.

        Raises what a session raises.
        """
        return self._repair.run(session, everything=True)

    def _repair_copies(self, session: Session, everything: bool) -> None:
        self._repair.run(session, everything)

    def _merge(self, session: Session, everything: bool) -> None:
        self._merging.merge(session)

    def _write_journal(self, session: Session, everything: bool) -> None:
        for volume in _volumes_on_disks(session):
            try:
                self._write_one(session, volume)
            except OSError as error:
                self._failed(session, volume, error)

    def _write_one(self, session: Session, volume: Volume) -> None:
        journal, streams = self._journals.setdefault(volume, volume.journal), session.state.streams
        journaled, journaled_ids = self._journaled.get(volume), dict[bytes, set[bytes]]()
        if journaled is None:
            # What others wrote after the snapshot may be torn anywhere: this process goes by what it finds, once.
            beginning = journal.beginning()
            if beginning is None or beginning.index < session.view.snapshot_index:
                self._begin(session, volume)
                return
            try:
                journaled, journaled_ids = session.view.snapshot_streams, _blocks(journal, beginning.end)
            except CorruptionError as error:
                logger.warning("%s; it is written again", error)
                self._begin(session, volume)
                return
        placements = []
        for before, stream in streams.changes_since(journaled):
            if stream is None or volume.volume_id not in stream.placement:
                continue
            rows = stream.blocks.rows
            if before is not None and (before.incarnation, before.placement) == (stream.incarnation, stream.placement):
                rows = _new_rows(rows, before.blocks.rows)
            if stream.incarnation in journaled_ids:
                rows = rows[[bytes(row) not in journaled_ids[stream.incarnation] for row in rows["block_id"]]]
            if len(rows):
                placements.append(Placement(session.view.index, stream.incarnation, stream.name, rows))
        journal.append(placements, is_checked=volume in self._journaled)
        self._journaled[volume] = streams

    def _begin(self, session: Session, volume: Volume) -> None:
        """Write the journal of a volume anew: what it said of blocks that are still there, and the live ones."""
        index, streams = session.view.index, session.state.streams
        journal = volume.journal
        live = (
            Placement(index, stream.incarnation, stream.name, _rows_to_keep(stream))
            for stream in streams.values()
            if volume.volume_id in stream.placement
        )
        journal.write(index, chain(_of_removed(journal, volume.blocks, session.state), live))
        self._journaled[volume] = streams

    def _begin_journals(self, session: Session) -> None:
        for volume in _volumes_on_disks(session):
            try:
                self._begin(session, volume)
            except OSError as error:
                self._failed(session, volume, error)

    def _fill_reserves(self, session: Session) -> None:
        leadership = session.leadership
        for volume in _volumes_on_disks(session):
            if leadership is not None and self._filled.get(volume) == leadership and not session.drew_on_reserves:
                continue
            self._filled.pop(volume, None)
            try:
                if volume.reserve.fill() and leadership is not None:
                    self._filled[volume] = leadership
            except OSError as error:
                self._failed(session, volume, error)

    def _failed(self, session: Session, volume: Volume, error: OSError) -> None:
        """Leave a volume alone whose disk failed; the only one is not retired for want of somewhere to say so.

        One that is merely full goes on: what is unlinked next makes room. One that went away comes back.
        """
        logger.warning("%s: maintenance: %s", volume.path, error)
        if len(session.volumes) > 1 and is_disk_failure(error):
            session.failed(volume.volume_id, error)

    def _unlink(self, session: Session, everything: bool) -> None:
        """Unlink what has been in its delete for long enough. A volume that is away finds it when it is repaired."""
        state = session.state
        deletes, retention_ns = state.deletes, state.settings.deleted_block_retention
        # One that is exactly so old is due.
        due = deletes[~state.within(deletes["dropped_ns"] - 1, retention_ns, self._env.now_ns())]
        if len(due) and len(state.archives):
            due = due[~must_wait(state, due, self.archived)]
        if not everything:
            due = due[:UNLINKED_PER_SESSION_MAX]
        if not len(due):
            return
        unlinked_ids, touched = [], set()
        for delete in due:
            incarnation, block_id = bytes(delete["incarnation"]), bytes(delete["block_id"])
            try:
                for volume in session.writable:
                    touched.add((volume.path, _unlink_one(volume.blocks, incarnation, block_id)))
            except OSError as error:  # it stays in the pending_deletes; those behind it shall not wait for it
                logger.warning("%s: maintenance (unlink): %s", session.label, error)
            else:
                unlinked_ids.append(incarnation + block_id)
        stores = {volume.path: volume.blocks for volume in session.writable}
        for path, directory in touched:
            _sync(stores[path], directory)
        if unlinked_ids:
            session.propose(Unlinked(tuple(unlinked_ids)))
            self.archived.difference_update(key[16:] for key in unlinked_ids)

    def _forget_transactions(self, session: Session, everything: bool) -> None:
        known = session.state.transactions.rows
        if len(known) <= TRANSACTIONS_KEPT_MAX:
            return
        made_ns = np.frombuffer(np.ascontiguousarray(known["id"]).tobytes(), ">u8").reshape(-1, 2)[:, 0]
        before_ns = min(int(np.sort(made_ns)[len(made_ns) // 2]), self._env.now_ns() - TRANSACTION_KEEP_NS)
        if before_ns > session.state.transaction_floor_ns:
            session.propose(ForgetTransactions(before_ns))


def _volumes_on_disks(session: Session) -> list[Volume]:
    """Return the volumes that can be full, and whose files are written on: those on disks."""
    return [volume for volume in session.writable if not volume.is_remote]


def _unlink_one(blocks: BlockStore, incarnation: bytes, block_id: bytes) -> bytes | None:
    """Unlink a block, or what is left of a deleted stream: what was staged for it and never committed.

    Returns what has to be synced for it: the incarnation, None for the names of all of them.
    """
    is_block = block_id != _NO_BLOCK
    try:
        if is_block:
            blocks.delete(incarnation, block_id)
        else:
            blocks.remove(incarnation)
    except FileNotFoundError:
        pass
    return incarnation if is_block else None


def _sync(blocks: BlockStore, incarnation: bytes | None) -> None:
    """Make removals durable before their deletes are forgotten: what a power loss brought back nobody would know."""
    try:
        if incarnation is None:
            blocks.sync_removals()
        else:
            blocks.sync(incarnation)
    except FileNotFoundError:
        return


def _rows_to_keep(stream: StreamState) -> np.ndarray:
    """Return the live blocks, and those of lost messages that may come back."""
    rows, lost = stream.blocks.rows, stream.lost_blocks.rows
    return np.concatenate((rows, lost[~np.isin(lost["block_id"], rows["block_id"])])) if len(lost) else rows


def _blocks(journal: PlacementJournal, start: int) -> dict[bytes, set[bytes]]:
    """Return, by incarnation, which blocks the journal has from `start` on."""
    blocks: dict[bytes, set[bytes]] = {}
    for placement in journal.read(start):
        blocks.setdefault(placement.incarnation, set()).update(map(bytes, placement.rows["block_id"]))
    return blocks


def _of_removed(journal: PlacementJournal, blocks: BlockStore, state: StoreState) -> Iterator[Placement]:
    """Yield what a journal says of blocks in their deletes, and of others that are still there, each once: the metadata
    has forgotten where they were."""
    records: list[Placement] = []
    try:
        records.extend(journal.read())
    except CorruptionError as error:
        logger.warning("%s; what it says of removed blocks before that is kept", error)
    if not records:
        return
    rows = np.concatenate([entry.rows for entry in records])
    live = [id_numbers(_rows_to_keep(stream)["block_id"]) for stream in state.streams.values()]
    keys, at = np.unique(id_numbers(rows["block_id"]), return_index=True)
    at = np.sort(at[~np.isin(keys, np.concatenate((np.empty(0, keys.dtype), *live)))])
    if not len(at):
        return
    record_of, starts = np.unique(np.repeat(np.arange(len(records)), [len(entry.rows) for entry in records])[at], True)
    by_stream: dict[tuple[bytes, str], list[tuple[int, np.ndarray]]] = {}
    for record, part in zip(record_of.tolist(), np.split(at, starts[1:]), strict=True):
        entry = records[record]
        by_stream.setdefault((entry.incarnation, entry.stream), []).append((entry.index, part))
    for (incarnation, stream), parts in by_stream.items():
        removed = rows[np.concatenate([part for _, part in parts])]
        kept = np.concatenate((state.deletes["block_id"], ids(blocks.ids(incarnation))))
        removed = removed[np.isin(id_numbers(removed["block_id"]), id_numbers(kept))]
        if len(removed):
            yield Placement(max(index for index, _ in parts), incarnation, stream, removed)


def _new_rows(rows: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the rows of a manifest that were not in it before: behind its end then, and in the place of merged ones.

    Blocks go by being removed or merged, and come at the end or by being merged: if as many as before stand below the
    end of then, none of them is new.
    """
    if not len(before):
        return rows
    below = int(np.searchsorted(rows["first"], before["first"][-1], side="right"))
    if below == len(before):
        return rows[below:]
    head = _equal_count(rows[:below], before)
    tail = _equal_count(rows[head:below][::-1], before[head:][::-1])
    middle = rows[head : below - tail]  # comparing ids of all of them would take long
    is_new = ~np.isin(middle["block_id"], before["block_id"][head : len(before) - tail])
    return np.concatenate((middle[is_new], rows[below:]))


def _equal_count(rows: np.ndarray, others: np.ndarray) -> int:
    """Return how many rows at the beginning have the same places in the stream."""
    count = min(len(rows), len(others))
    differs = (rows["first"][:count] != others["first"][:count]) | (rows["span"][:count] != others["span"][:count])
    return int(differs.argmax()) if differs.any() else count
