"""A store of NATS Streaming: its channels by name, and plans over them."""

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from storage_core.errors import NotFoundError, StorageError, UnsupportedVersionError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.in_use import Writer, writers
from storage_core.foreign.plans import check_asked, match_names
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage
from storage_core.foreign.stan.directory import CLIENTS_FILE, ChannelDirectory, find_channels, read_cluster_id
from storage_core.foreign.stan.reading import SEQUENCE_END
from storage_core.foreign.stan.state import ChannelState, SliceState, load_channel
from storage_core.foreign.stan.subscriptions import (
    Client,
    ReplayOptions,
    Subscription,
    as_consumer,
    replay_clients,
    replay_subscriptions,
)
from storage_core.sequences import SequenceSet

LAYOUT = "stan"


class StanStore:
    """Channels that STAN servers left at or below some paths. What one holds is found out when it is asked for."""

    layout = LAYOUT

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        truncate_bad_eof: bool = False,
        no_crc: bool = False,
        files: Files = OS_FILES,
    ) -> None:
        self._files, self._truncate_bad_eof, self._no_crc = files, truncate_bad_eof, no_crc
        self._roots, self._paths = tuple(paths), ", ".join(str(path) for path in paths)
        found = find_channels(paths, files)
        self.roots = found.roots  # directories of stores, absolute
        self._directories: dict[str, list[ChannelDirectory]] = {}
        for channel in found.channels:
            self._directories.setdefault(channel.name, []).append(channel)
        self._states: dict[str, ChannelState] = {}

    def writers(self) -> list[Writer]:
        """Return the processes that have files of the store open for writing; see in_use.py."""
        return writers(self._roots)

    def streams(self) -> list[str]:
        """Return the names of all channels, sorted, also of those that cannot be read."""
        return sorted(self._directories)

    def directory(self, stream: str) -> ChannelDirectory:
        """Return where a channel lies. Raises NotFoundError, or ValueError if the name is there twice."""
        found = self._directories.get(stream)
        if found is None:
            near = difflib.get_close_matches(stream, self._directories, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(self.streams()[:10])}"
            raise NotFoundError(f"channel {stream!r} is not in {self._paths}{hint}")
        if len(found) > 1:
            places = ", ".join(one.path for one in found)
            raise ValueError(f"path: {len(found)} copies of channel {stream!r}, give the path of one: {places}")
        return found[0]

    def cluster_id(self, root: str) -> str:
        """Return the name of the cluster of one of the `roots`.

        Raises NotAStoreError if its server.dat is missing, CorruptionError if it is damaged.
        """
        return read_cluster_id(root, self._files)

    def state(self, stream: str) -> ChannelState:
        """Return what a channel holds; reads a slice if damage or a missing index leaves no other way."""
        return self._state(self.directory(stream))

    def bounds(self, stream: str) -> tuple[int, int]:
        """Return the sequence of the first message, and one above the highest sequence used; equal if empty."""
        state = self.state(stream)
        return state.first, max(state.first, state.last + 1)

    def subscriptions(
        self, stream: str, on_damage: Callable[[ForeignDamage], None] | None = None
    ) -> list[Subscription]:
        """Return the subscriptions of a channel by id; see replay_subscriptions for what damage does."""
        directory = self.directory(stream)
        return replay_subscriptions(directory.subscriptions_path, stream, self._replay(), on_damage, self._files)

    def clients(self, root: str, on_damage: Callable[[ForeignDamage], None] | None = None) -> list[Client]:
        """Return the clients registered at the server of one of the `roots`, by id."""
        return replay_clients(str(Path(root) / CLIENTS_FILE), self._replay(), on_damage, self._files)

    def notes(self, stream: str) -> list[str]:
        """Return nothing: a channel has no configuration on disk."""
        self.directory(stream)
        return []

    def plan(
        self,
        streams: str | Sequence[str] = "*",
        columns: Sequence[str] | None = None,
        *,
        first: int | None = None,
        end: int | None = None,
        time_first_ns: int | None = None,
        time_end_ns: int | None = None,
        subject_filters: Sequence[str] = (),
    ) -> list[ForeignSlice]:
        """Return the slices to read; see ForeignStore.plan."""
        check_asked(columns, (first, end), (time_first_ns, time_end_ns), subject_filters)
        slices: list[ForeignSlice] = []
        for name in match_names(streams, self._directories, lambda name: self.directory(name).name, self._paths):
            times = (time_first_ns, time_end_ns)
            slices += self._slices(self.directory(name), first, end, times, tuple(subject_filters))
        return slices

    def consumers(self, stream: str, on_damage: Callable[[ForeignDamage], None] | None = None) -> list[ForeignConsumer]:
        """Return the subscriptions of a channel as consumers, by id; see ForeignStore.consumers."""
        return self._consumers(self.directory(stream), on_damage)

    def copies(self, stream: str) -> list[ForeignStream]:
        """Return what is known of each copy of a channel; see ForeignStore.copies."""
        return [self._describe(one) for one in self._copies(stream)]

    def inspect(self, stream: str) -> tuple[list[ForeignDamage], list[ForeignSlice]]:
        """Return what is wrong beside the messages, and the slices to read for the rest; see ForeignStore.inspect."""
        found: list[ForeignDamage] = []
        slices: list[ForeignSlice] = []
        for one in self._copies(stream):
            try:
                slices += self._slices(one)
            except StorageError as error:
                found.append(note_damage(LAYOUT, "", one.name, one.path, str(error)))
                continue
            self._consumers(one, found.append)
        return found, slices

    def _copies(self, stream: str) -> list[ChannelDirectory]:
        return self._directories.get(stream) or [self.directory(stream)]

    def _state(self, one: ChannelDirectory) -> ChannelState:
        if one.path not in self._states:
            self._states[one.path] = load_channel(one, self._files)
        return self._states[one.path]

    def _consumers(
        self, one: ChannelDirectory, on_damage: Callable[[ForeignDamage], None] | None
    ) -> list[ForeignConsumer]:
        found = replay_subscriptions(one.subscriptions_path, one.name, self._replay(), on_damage, self._files)
        return [as_consumer(each, one.subscriptions_path) for each in found]

    def _describe(self, one: ChannelDirectory) -> ForeignStream:
        state, problem, encrypted = None, "", False
        try:
            state = self._state(one)
        except StorageError as error:
            problem, encrypted = str(error), isinstance(error, UnsupportedVersionError)
        return ForeignStream(
            layout=LAYOUT,
            account="",
            stream=one.name,
            path=one.path,
            subjects=(one.name,),
            messages=None if state is None else sum(part.row_count for part in state.slices),
            first=None if state is None else state.first,
            last=None if state is None else state.last,
            byte_size=sum(part.size for part in one.slices),
            block_count=len(one.slices),
            consumer_count=len(self._consumers(one, lambda _: None)),
            compression="none",
            encrypted=encrypted,
            source="slices",
            problem=problem,
        )

    def _slices(
        self,
        one: ChannelDirectory,
        first: int | None = None,
        end: int | None = None,
        times: tuple[int | None, int | None] = (None, None),
        subject_filters: tuple[str, ...] = (),
    ) -> Iterator[ForeignSlice]:
        for state in self._state(one).slices:
            low = state.first if first is None else max(state.first, first)
            high = state.end if end is None else min(state.end, end)
            if low < high:
                yield self._slice(one.name, state, low, high, times, subject_filters)

    def _slice(
        self,
        stream: str,
        state: SliceState,
        first: int,
        end: int,
        times: tuple[int | None, int | None],
        subject_filters: tuple[str, ...],
    ) -> ForeignSlice:
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
            time_first_ns=times[0],
            time_end_ns=times[1],
            subject_filters=subject_filters,
            truncate_bad_eof=self._truncate_bad_eof,
            no_crc=self._no_crc,
        )

    def _replay(self) -> ReplayOptions:
        return ReplayOptions(self._truncate_bad_eof, self._no_crc)
