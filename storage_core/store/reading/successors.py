"""Where messages are whose block is gone: merged into other blocks, or removed too long ago.

A plan names blocks. Those that were merged since are kept for as long as removed ones are, so that most plans never
notice; after that a reader comes here. The store says which blocks hold these sequences now. If all that the plan shows
is still shown, the reader goes on with them and yields the same rows; if any of it was removed, the plan is stale.
"""

from dataclasses import replace

import numpy as np

from storage_core.errors import StalePlanError, StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.paths import place
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.slices import BlockSlice
from storage_core.store.volume.volumes import Volume


class Successors:
    """What the store says of blocks that are gone, asked when the first one is met. One for a read."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.was_asked = True  # or could not be
        self._known: tuple[StoreState, tuple[Volume, ...]] | None = None

    def of(self, block_slice: BlockSlice) -> list[BlockSlice] | str:
        """Return slices of the blocks that hold what this one holds, or why it is missing though it should be there.

        Raises StalePlanError if messages of it were removed since.
        """
        stream = self._stream(block_slice)
        if self._known is None or _is_live(stream, block_slice):  # what is remembered is older than the loss
            why = self._ask(block_slice)
            if why:
                return why
            stream = self._stream(block_slice)
        if _is_live(stream, block_slice):
            return ""
        assert self._known is not None
        removed = SequenceSet.decode(block_slice.removed) if block_slice.removed else SequenceSet.empty()
        wanted = SequenceSet.from_ranges([(block_slice.first, block_slice.end)]).difference(removed)
        if stream is None or wanted.difference(stream.shown(block_slice.first, block_slice.end)):
            raise StalePlanError(
                f"stream {block_slice.stream!r}: this read was planned before sequences {block_slice.first} to "
                f"{block_slice.end - 1} were removed, and they are no longer kept. Read again. In Spark, load a "
                "DataFrame again; use a table with WITH (...) instead of a temporary view; uncache a cached table, and "
                "load and cache it again; load the static side of a streaming join in foreachBatch, or restart the "
                "query",
                stream=block_slice.stream,
                first=block_slice.first,
                end=block_slice.end,
            )
        state, volumes = self._known
        slices, _ = plan_stream(
            state, stream, volumes, ReadRequest((stream.name,), {stream.name: (block_slice.first, block_slice.end)})
        )
        if wanted.difference(SequenceSet.from_ranges([(successor.first, successor.end) for successor in slices])):
            return ", and no other block has its messages"
        return [_as_planned(successor, block_slice.stream, removed) for successor in slices]

    def _stream(self, block_slice: BlockSlice) -> StreamState | None:
        return self._known[0].by_incarnation(block_slice.incarnation) if self._known is not None else None

    def _ask(self, block_slice: BlockSlice) -> str:
        """Look at the store as it is now; return why that is not possible, or nothing. Any live volume can tell."""
        try:
            paths = [place(uri) for uri in dict.fromkeys(copy.uri for copy in block_slice.copies)]
            metadata = MetadataClient.at(self._env, paths, read_only=True, for_view=True)
            self._known, self.was_asked = (metadata.view(lock_timeout_s=0.0).state, metadata.volumes()), True
        except (StorageError, OSError, ValueError) as error:
            raise_if_of_process(error, block_slice.stream)
            self.was_asked = False
            return f", and the store cannot be asked why: {error}"
        return ""


def _is_live(stream: StreamState | None, block_slice: BlockSlice) -> bool:
    return stream is not None and bool((stream.blocks.rows["block_id"] == np.void(block_slice.block_id)).any())


def _as_planned(successor: BlockSlice, stream: str, removed: SequenceSet) -> BlockSlice:
    inside = removed.clip(successor.first, successor.end)
    return replace(successor, stream=stream, removed=inside.encode() if inside else b"")
