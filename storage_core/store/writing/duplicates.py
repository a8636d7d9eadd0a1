"""The duplicate window: which msg_ids a stream has seen lately, by the time of the entries that brought them.

The hashes lie in the blocks themselves. A msg_id counts for as long as the window lasts, whether its message is still
shown or not: work that was done and removed shall not be taken in again by a publisher that tries once more. Blocks
whose messages are all gone lie in the pending_deletes, whose rows do not say when the block was committed; its header
says when its append began, and their msg_ids count from then on. What this does not cover:

- a block that was unlinked before the window ended (`deleted_block_retention` shorter than `duplicate_window`), or of
which no
  copy in the pending_deletes is whole: its msg_ids are forgotten;
- an overwrite forgets all that it replaces;
- a duplicate is a sighting, too: the window begins again with each one.

What was read once is remembered for as long as it is of use, as sorted runs of hashes: the msg_ids of an append are
searched in them, so what that costs follows the append and not the window. Which blocks count is asked only of those
in which something was met.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.manifest import BLOCK_DTYPE, PENDING_DELETE_DTYPE, Table, equals_any
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import whole_blocks
from storage_core.store.reading.reading import ask_block
from storage_core.store.volume import placement
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
_NO_BLOCK = bytes(16)  # a delete of a directory
_NOTHING = np.empty((0, 2), np.uint64)
PRUNE_AT_MIN = 65_536  # hashes of a stream from which on those that do not count any more are forgotten


def msg_ids(reader: BlockReader) -> np.ndarray:
    """Return (n, 3) uint64: the two halves of each msg_id's hash, and its relative sequence.

    Raises CorruptFrameError, OSError.
    """
    parts = [np.column_stack((ids.hashes, ids.sequences.astype(np.uint64))) for ids in reader.message_ids()]
    return np.concatenate([np.empty((0, 3), np.uint64), *parts])


class MsgIdWindow:
    """Recent msg_ids of all streams. One for a store; used under its lock."""

    def __init__(self) -> None:
        self._streams: dict[bytes, _StreamWindow] = {}  # by incarnation
        self._names = SharedMap[bytes, str]()  # the streams that there were at the last look

    def seen(
        self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], hashes: np.ndarray, env: Environment
    ) -> np.ndarray:
        """Return, for each of (n, 2) uint64 hashes, whether a msg_id that counts now has it.

        Raises DataLossError or UnavailableError if no copy of a live block of the window can be read, ProcessError:
        then duplicates cannot be known.
        """
        if state.streams.names is not self._names:
            self._names = state.streams.names
            self._streams = {
                incarnation: window for incarnation, window in self._streams.items() if incarnation in self._names
            }
        window = self._streams.setdefault(stream.incarnation, _StreamWindow())
        clock_ns = env.now_ns()
        window.catch_up(state, stream, volumes, clock_ns, env)
        return window.seen(state, stream, hashes, clock_ns)


class _StreamWindow:
    """Recent msg_ids of one stream, as far as this process has read them."""

    def __init__(self) -> None:
        self._runs = SortedRuns()
        self._blocks: list[tuple[bytes, int]] = []  # (id, time at which its append began), by position in the runs
        self._known: set[bytes] = set()  # their ids
        self._prune_at = PRUNE_AT_MIN
        self._manifest, self._pending_deletes = (
            Table.empty(BLOCK_DTYPE),
            Table.empty(PENDING_DELETE_DTYPE),
        )  # that are caught up with
        self._asked = 1 << 63, 1 << 63  # and since when, by the clock and by the time of entries

    def catch_up(
        self, state: StoreState, stream: StreamState, volumes: Sequence[Volume], clock_ns: int, env: Environment
    ) -> None:
        """Read the blocks of the window that have not been read, removed ones too."""
        window_ns = stream.config.duplicate_window
        asked = clock_ns - window_ns, state.time_at(clock_ns) - window_ns
        is_later = asked[0] >= self._asked[0] and asked[1] >= self._asked[1]  # else older ones count again
        rows = stream.blocks.appended_since(self._manifest) if is_later else None
        rows = stream.blocks.rows if rows is None else rows
        rows = rows[rows["msg_id_count"] > 0]
        rows = rows[state.within(rows["committed_ns"], window_ns, clock_ns)]
        rows = rows[[bytes(row) not in self._known for row in rows["block_id"]]]
        for block in whole_blocks(state, stream, rows, volumes):
            self._add(block.block_id, *ask_block(block, _begun_and_hashes, env))
        is_complete = True
        deletes = state.pending_deletes.appended_since(self._pending_deletes) if is_later else None
        deletes = _recent(state, state.pending_deletes.rows if deletes is None else deletes, stream, clock_ns)
        for incarnation, block_id in zip(deletes["incarnation"].tolist(), deletes["block_id"].tolist(), strict=True):
            if block_id not in self._known:
                begun_and_hashes = _hashes_of_deleted_block(state, stream, incarnation, block_id, volumes)
                if begun_and_hashes is None:  # it is asked again
                    is_complete = False
                    continue
                self._add(block_id, *begun_and_hashes)
        self._manifest, self._asked = stream.blocks, asked
        if is_complete:
            self._pending_deletes = state.pending_deletes
        if self._runs.hash_count >= self._prune_at:
            self._prune(state, stream, clock_ns)

    def _add(self, block_id: bytes, begun_ns: int, hashes: np.ndarray) -> None:
        self._runs.add(hashes, len(self._blocks))
        self._blocks.append((block_id, begun_ns))
        self._known.add(block_id)

    def _prune(self, state: StoreState, stream: StreamState, clock_ns: int) -> None:
        """Forget blocks that do not count any more."""
        counting = sorted(self._counting(range(len(self._blocks)), state, stream, clock_ns))
        self._blocks = [self._blocks[position] for position in counting]
        self._known = {block_id for block_id, _ in self._blocks}
        self._runs.keep(np.array(counting, np.int64))
        self._prune_at = max(PRUNE_AT_MIN, 2 * self._runs.hash_count)

    def seen(self, state: StoreState, stream: StreamState, hashes: np.ndarray, clock_ns: int) -> np.ndarray:
        which, positions = self._runs.find(hashes)
        counting = self._counting(np.unique(positions).tolist(), state, stream, clock_ns)
        met = np.zeros(len(hashes), bool)
        met[which[np.isin(positions, np.array(sorted(counting), np.int64))]] = True
        return met

    def _counting(
        self, positions: Iterable[int], state: StoreState, stream: StreamState, clock_ns: int
    ) -> Iterable[int]:
        """Return those of these blocks whose msg_ids count."""
        by_id = {self._blocks[position][0]: position for position in positions}
        if not by_id:
            return ()
        rows, window_ns = stream.blocks.rows, stream.config.duplicate_window
        live = _among(rows[state.within(rows["committed_ns"], window_ns, clock_ns)]["block_id"], by_id)
        removed = _among(_recent(state, state.pending_deletes.rows, stream, clock_ns)["block_id"], by_id)
        begun_ns = clock_ns - window_ns  # appends begin by the clock
        return {by_id[block_id] for block_id in live} | {
            by_id[block_id] for block_id in removed if self._blocks[by_id[block_id]][1] >= begun_ns
        }


class SortedRuns:
    """128-bit hashes in sorted runs, each at least twice as long as the next: to add or to search costs a logarithm."""

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # first halves, second halves, positions

    @property
    def hash_count(self) -> int:
        return sum(len(high) for high, _, _ in self._runs)

    def add(self, hashes: np.ndarray, position: int | np.ndarray) -> None:
        """Take in (n, 2) uint64 hashes; `position`, of all or of each, is what a search says of where it was met."""
        if not len(hashes):
            return
        order = np.argsort(hashes[:, 0], kind="stable")
        positions = np.broadcast_to(np.asarray(position, np.int64), len(hashes))
        run = (hashes[order, 0], hashes[order, 1], positions[order])
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            before = self._runs.pop()
            high, low, positions = (np.concatenate(pair) for pair in zip(before, run, strict=True))
            order = np.argsort(high, kind="stable")  # of two sorted runs: one pass
            run = (high[order], low[order], positions[order])
        self._runs.append(run)

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs (which of (n, 2) uint64 hashes, position where it was met) as two arrays."""
        which, met = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        order = np.argsort(hashes[:, 0], kind="stable")  # neighbours are found near one another
        wanted = hashes[order]
        for high, low, positions in self._runs:
            first = np.searchsorted(high, wanted[:, 0], side="left")
            counts = np.searchsorted(high, wanted[:, 0], side="right") - first
            asked = np.repeat(np.arange(len(wanted)), counts)
            at = np.arange(len(asked)) - np.repeat(np.cumsum(counts) - counts, counts) + first[asked]
            same = low[at] == wanted[asked, 1]
            which.append(order[asked[same]])
            met.append(positions[at[same]])
        return np.concatenate(which), np.concatenate(met)

    def keep(self, positions: np.ndarray) -> None:
        """Forget what was met elsewhere than at these ascending positions, which become 0, 1, 2 and so on."""
        runs, self._runs = self._runs, []
        for high, low, old in runs:
            kept = np.isin(old, positions)
            if kept.any():
                self._runs.append((high[kept], low[kept], np.searchsorted(positions, old[kept])))
        self._runs.sort(key=lambda run: -len(run[0]))


def _begun_and_hashes(reader: BlockReader) -> tuple[int, np.ndarray]:
    """Return when the block's transaction was made, in ns, and the hashes of its msg_ids."""
    return int.from_bytes(reader.identity.transaction_id[:8], "big"), msg_ids(reader)[:, :2]


def _recent(state: StoreState, deletes: np.ndarray, stream: StreamState, clock_ns: int) -> np.ndarray:
    """Return the deletes of blocks that were removed within the window. Those that were overwritten lie elsewhere."""
    recent = deletes[state.within(deletes["dropped_ns"], stream.config.duplicate_window, clock_ns)]
    is_block = ~equals_any(recent["block_id"], (_NO_BLOCK,))
    mine: np.ndarray = recent[is_block & equals_any(recent["incarnation"], stream.incarnations)]
    return mine


def _among(block_ids: np.ndarray, wanted: Mapping[bytes, int]) -> set[bytes]:
    """Return those of the ids in a column that are wanted."""
    keys = block_ids.copy().view("<u8")[::2]  # numpy compares whole ids one by one
    listed = np.frombuffer(b"".join(wanted), "<u8")[::2]
    return {bytes(block_id) for block_id in block_ids[np.isin(keys, listed)]} & wanted.keys()


def _hashes_of_deleted_block(
    state: StoreState,
    stream: StreamState,
    incarnation: bytes,
    block_id: bytes,
    volumes: Sequence[Volume],
) -> tuple[int, np.ndarray] | None:
    """Return what a removed block says, from the first copy that is whole; (0, nothing) if none is left.

    None if some copy could not be asked, and may say something later. Raises ProcessError.

    The manifest has forgotten its digest: header and footer vouch for each other, and the header says whose it is.
    """
    readable = placement.read_volumes(state, stream, volumes)
    is_sure = len(readable) == len(volumes)
    for volume in readable:
        path = volume.blocks.path(incarnation, block_id)
        try:
            with closing(volume.blocks.open(incarnation, block_id)) as file:
                reader = BlockReader.open(file)
                identity = reader.identity
                if (identity.store_id, identity.incarnation, identity.block_id) != (
                    state.store_id, incarnation, block_id,
                ):  # fmt: skip
                    raise CorruptionError(f"{path} is another block: {identity}")
                return _begun_and_hashes(reader)
        except FileNotFoundError:
            continue
        except (StorageError, OSError) as error:
            raise_if_of_process(error, path)
            logger.warning("the msg_ids of a removed block cannot be read there: %s", error)
            is_sure = is_sure and isinstance(error, StorageError)
    return (0, _NOTHING) if is_sure else None
