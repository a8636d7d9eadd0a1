"""A store of NATS Streaming: its channels by name, and plans over them."""

import os
from collections.abc import Callable, Sequence

from storage_core.errors import StorageError, UnsupportedVersionError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.copies import CopiesStore
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage
from storage_core.foreign.stan.directory import ChannelDirectory, find_channels, read_cluster_id
from storage_core.foreign.stan.reading import SEQUENCE_END
from storage_core.foreign.stan.state import ChannelState, SliceState, load_channel
from storage_core.foreign.stan.subscriptions import ReplayOptions, as_consumer, replay_subscriptions
from storage_core.sequences import SequenceSet

LAYOUT = "stan"


class StanStore(CopiesStore[ChannelDirectory, ChannelState]):
    """Channels that STAN servers left at or below some paths. What one holds is found out when it is asked for."""

    layout, noun = LAYOUT, "channel"

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        truncate_bad_eof: bool = False,
        no_crc: bool = False,
        files: Files = OS_FILES,
    ) -> None:
        self.truncate_bad_eof, self._no_crc = truncate_bad_eof, no_crc
        listing = find_channels(paths, files)
        self.roots = listing.roots  # directories of stores, absolute
        super().__init__(paths, files, listing.channels)

    def cluster_id(self, root: str) -> str:
        """Return the name of the cluster of one of the `roots`.

        Raises NotAStoreError if its server.dat is missing, CorruptionError if it is damaged.
        """
        return read_cluster_id(root, self._files)

    def _load(self, directory: ChannelDirectory) -> ChannelState:
        return load_channel(directory, self._files)

    def _replica_count(self, directory: ChannelDirectory) -> int:
        return 0

    def _notes(self, directory: ChannelDirectory) -> list[ForeignDamage]:
        try:
            return [
                note_damage(LAYOUT, "", directory.name, directory.path, note) for note in self._state(directory).notes
            ]
        except StorageError:  # reported where its messages are asked for
            return []

    def _consumers(
        self, directory: ChannelDirectory, on_damage: Callable[[ForeignDamage], None] | None
    ) -> list[ForeignConsumer]:
        subscriptions = replay_subscriptions(
            directory.subscriptions_path, directory.name, self._replay(), on_damage, self._files
        )
        return [as_consumer(each, directory.subscriptions_path) for each in subscriptions]

    def _describe(self, directory: ChannelDirectory) -> ForeignStream:
        state, problem, encrypted = None, "", False
        try:
            state = self._state(directory)
        except StorageError as error:
            problem, encrypted = str(error), isinstance(error, UnsupportedVersionError)
        return ForeignStream(
            layout=LAYOUT,
            account="",
            stream=directory.name,
            path=directory.path,
            subjects=(directory.name,),
            messages=None if state is None else sum(part.row_count for part in state.slices),
            first=None if state is None else state.first,
            last=None if state is None else state.last,
            byte_size=sum(part.size for part in directory.slices),
            block_count=len(directory.slices),
            consumer_count=len(self._consumers(directory, lambda _: None)),
            compression="none",
            encrypted=encrypted,
            source="slices",
            problem=problem,
        )

    def _slices(
        self, directory: ChannelDirectory, first: int | None = None, end: int | None = None
    ) -> list[ForeignSlice]:
        slices = []
        for state in self._state(directory).slices:
            low = state.first if first is None else max(state.first, first)
            high = state.end if end is None else min(state.end, end)
            if low < high:
                slices.append(self._slice(directory.name, state, low, high))
        return slices

    def _slice(self, stream: str, state: SliceState, first: int, end: int) -> ForeignSlice:
        row_count = min(end - first, state.row_count)
        return ForeignSlice(
            layout=LAYOUT,
            account="",
            stream=stream,
            path=state.file.path,
            block_index=state.file.number,
            file_size=state.file.size,
            first=first,
            end=end,
            removed=SequenceSet.empty().encode(),
            known=end < SEQUENCE_END,
            row_count=row_count,
            byte_size=state.file.size * row_count // max(1, state.row_count),
            truncate_bad_eof=self.truncate_bad_eof,
            no_crc=self._no_crc,
            bounds=state.bounds,
        )

    def _replay(self) -> ReplayOptions:
        return ReplayOptions(self.truncate_bad_eof, self._no_crc)
