"""A store of NATS Streaming: its channels by name, and plans over them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from storage_core.errors import StorageError, UnsupportedVersionError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.copies import CopiesStore
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage
from storage_core.foreign.stan.directory import (
    CLIENTS_FILE,
    SERVER_FILE,
    ChannelDirectory,
    find_channels,
    read_cluster_id,
)
from storage_core.foreign.stan.reading import SEQUENCE_END
from storage_core.foreign.stan.repeats import Told
from storage_core.foreign.stan.state import ChannelState, SliceState, load_channel
from storage_core.foreign.stan.subscriptions import ReplayOptions, Subscription, as_consumer, replay_subscriptions
from storage_core.os_errors import raise_if_of_process
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
        notes = [
            note_damage(LAYOUT, "", directory.name, path, "the file is empty: " + lost)
            for path, lost in (
                (directory.subscriptions_path, "the subscriptions of the channel are gone"),
                (str(Path(directory.root) / SERVER_FILE), "the name of the cluster is gone"),
                (str(Path(directory.root) / CLIENTS_FILE), "the clients of the server are gone"),
            )
            if self._is_empty(path)
        ]
        try:
            state = self._state(directory)
        except StorageError:  # reported where its messages are asked for
            return notes
        return notes + [note_damage(LAYOUT, "", directory.name, directory.path, note) for note in state.notes]

    def _is_empty(self, path: str) -> bool:
        """Return whether a file is there, without the four bytes that a server begins it with."""
        try:
            return self._files.file_size(Path(os.path.realpath(path))) == 0
        except OSError as error:
            raise_if_of_process(error)
            return False

    def _consumers(
        self, directory: ChannelDirectory, on_damage: Callable[[ForeignDamage], None] | None
    ) -> list[ForeignConsumer]:
        subscriptions = replay_subscriptions(
            directory.subscriptions_path, directory.name, self._replay(), on_damage, self._files
        )
        if on_damage is not None:
            for note in self._ahead(directory, subscriptions):
                on_damage(note)
        return [as_consumer(each, directory.subscriptions_path) for each in subscriptions]

    def _ahead(self, directory: ChannelDirectory, subscriptions: Sequence[Subscription]) -> list[ForeignDamage]:
        """Return which subscriptions were sent messages that the channel has not: its end is gone."""
        try:
            last = self._state(directory).last
        except StorageError:  # reported where its messages are asked for
            return []
        return [
            note_damage(
                LAYOUT,
                "",
                directory.name,
                directory.subscriptions_path,
                f"consumer {each.name!r} is ahead of its channel: it was sent sequence {each.last_sent}, "
                f"the channel ends with {last}",
            )
            for each in subscriptions
            if each.last_sent > last
        ]

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
        # A slice answers for messages even where it has none of them, and must not count as empty.
        row_count = min(end - first, max(1, state.row_count))
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
            left_out=state.left_out.encode() if state.left_out else b"",
            told=tuple(_told(stream, place, first, end) for place in state.told_repeats),
        )

    def _replay(self) -> ReplayOptions:
        return ReplayOptions(self.truncate_bad_eof, self._no_crc)


def _told(stream: str, place: Told, first: int, end: int) -> tuple[int, ForeignDamage]:
    """Return what is to be told of repeated records, and at which sequence of a part."""
    is_bounded = place.end < SEQUENCE_END
    damage = ForeignDamage(
        layout=LAYOUT,
        account="",
        stream=stream,
        file=place.path,
        offset_bytes=place.offset_bytes,
        end_bytes=place.end_bytes,
        reason=place.reason,
        first=place.first if place.costs else None,
        end=place.end if place.costs and is_bounded else None,
        disputed=place.costs and is_bounded,
        places=place.places,
    )
    return min(max(place.first, first), end - 1), damage
