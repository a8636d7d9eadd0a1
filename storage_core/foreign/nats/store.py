"""A JetStream store: its streams by name, and plans over them."""

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from storage_core.errors import NotFoundError, StorageError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.in_use import Writer, writers
from storage_core.foreign.nats.consumers import read_consumers
from storage_core.foreign.nats.directory import StreamDirectory, find_streams
from storage_core.foreign.nats.meta import META_FILE
from storage_core.foreign.nats.state import BlockState, StreamState, load_state
from storage_core.foreign.plans import check_asked, match_names
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage

LAYOUT = "nats"


class NatsStore:
    """Streams that nats-servers left at or below some paths. What a stream shows is read once, when it is asked for."""

    layout = LAYOUT

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        account: str | None = None,
        files: Files = OS_FILES,
        encryption_key: str | None = None,
    ) -> None:
        self._files = files
        self._roots, self._paths = tuple(paths), ", ".join(str(path) for path in paths)
        found = find_streams(paths, files, encryption_key)
        if account is not None:
            accounts = sorted({stream.account for stream in found})
            found = [stream for stream in found if stream.account == account]
            if not found:
                raise NotFoundError(f"account {account!r} has no streams in {self._paths}; there are: {accounts}")
        self._directories: dict[str, list[StreamDirectory]] = {}
        for stream in found:
            self._directories.setdefault(stream.name, []).append(stream)
        self._states: dict[str, StreamState] = {}

    def writers(self) -> list[Writer]:
        """Return the processes that have files of the store open for writing; see in_use.py."""
        return writers(self._roots)

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted, also of those that cannot be read."""
        return sorted(self._directories)

    def directory(self, stream: str) -> StreamDirectory:
        """Return where a stream lies, with its configuration.

        Raises NotFoundError, or ValueError if the name is there twice.
        """
        found = self._directories.get(stream)
        if found is None:
            near = difflib.get_close_matches(stream, self._directories, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(self.streams()[:10])}"
            raise NotFoundError(f"stream {stream!r} is not in {self._paths}{hint}")
        if len(found) > 1:
            accounts = sorted({one.account for one in found})
            if len(accounts) == len(found):
                raise ValueError(f"account: stream {stream!r} is in the accounts {', '.join(accounts)}: name one")
            places = ", ".join(one.path for one in found)
            raise ValueError(f"path: {len(found)} copies of stream {stream!r}, give the path of one: {places}")
        return found[0]

    def state(self, stream: str) -> StreamState:
        """Return what a stream shows; reads all its blocks if it has no current index."""
        return self._state(self.directory(stream))

    def bounds(self, stream: str) -> tuple[int, int]:
        """Return the sequence of the first message, and one above the highest sequence used; equal if empty."""
        state = self.state(stream)
        return state.first, max(state.first, state.last + 1)

    def notes(self, stream: str) -> list[str]:
        """Return what is wrong with the configuration of a stream, which then counts as unknown."""
        return list(self.directory(stream).notes)

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
        slices = []
        for name in match_names(streams, self._directories, lambda name: self.directory(name).name, self._paths):
            for part in self._slices(self.directory(name), first, end):
                slices.append(_with_filters(part, time_first_ns, time_end_ns, tuple(subject_filters)))
        return slices

    def consumers(self, stream: str, on_damage: Callable[[ForeignDamage], None] | None = None) -> list[ForeignConsumer]:
        """Return the consumers of a stream; see ForeignStore.consumers."""
        directory = self.directory(stream)
        if directory.problem is not None:
            raise directory.problem
        return read_consumers(directory, self._state(directory).last, on_damage, self._files)

    def copies(self, stream: str) -> list[ForeignStream]:
        """Return what is known of each copy of a stream; see ForeignStore.copies."""
        return [self._describe(one) for one in self._copies(stream)]

    def inspect(self, stream: str) -> tuple[list[ForeignDamage], list[ForeignSlice]]:
        """Return what is wrong beside the messages, and the slices to read for the rest; see ForeignStore.inspect."""
        found: list[ForeignDamage] = []
        slices: list[ForeignSlice] = []
        for one in self._copies(stream):
            try:
                slices += self._slices(one)
            except StorageError as error:
                found.append(note_damage(LAYOUT, one.account, one.name, one.path, str(error)))
                continue
            meta = str(Path(one.path) / META_FILE)
            found += [note_damage(LAYOUT, one.account, one.name, meta, note) for note in one.notes]
            read_consumers(one, self._state(one).last, found.append, self._files)
        return found, slices

    def _copies(self, stream: str) -> list[StreamDirectory]:
        return self._directories.get(stream) or [self.directory(stream)]

    def _state(self, one: StreamDirectory) -> StreamState:
        if one.path not in self._states:
            self._states[one.path] = load_state(one, self._files)
        return self._states[one.path]

    def _slices(self, one: StreamDirectory, first: int | None = None, end: int | None = None) -> Iterator[ForeignSlice]:
        state = self._state(one)
        for block in state.blocks:
            low = block.first if first is None else max(block.first, first)
            high = block.end if end is None else min(block.end, end)
            part = _slice(one, state, block, low, high)
            if low < high and (part.row_count or not block.known):
                yield part

    def _describe(self, one: StreamDirectory) -> ForeignStream:
        state, problem = None, "; ".join(one.notes)
        consumers: list[ForeignConsumer] | None = None
        try:
            state = self._state(one)
            consumers = read_consumers(one, None, lambda _: None, self._files)
        except StorageError as error:
            problem = str(error)
        subjects = one.config.get("subjects")
        return ForeignStream(
            layout=LAYOUT,
            account=one.account,
            stream=one.name,
            path=one.path,
            subjects=tuple(map(str, subjects)) if isinstance(subjects, list) else (),
            messages=None if state is None else state.message_count,
            first=None if state is None else state.first,
            last=None if state is None else state.last,
            byte_size=sum(block.size for block in one.blocks),
            block_count=len(one.blocks),
            consumer_count=None if consumers is None else len(consumers),
            compression=str(one.config.get("compression", "none")),
            encrypted=one.encrypted,
            source="" if state is None else state.source,
            problem=problem,
            config=one.config,
        )


def _slice(directory: StreamDirectory, state: StreamState, block: BlockState, first: int, end: int) -> ForeignSlice:
    removed = block.removed.clip(first, end)
    asked = max(0, end - first) - len(removed)
    row_count = min(asked, block.message_count)  # exact for a known block
    return ForeignSlice(
        layout=LAYOUT,
        account=directory.account,
        stream=directory.name,
        path=block.file.path,
        block_index=block.file.block_index,
        file_size=block.file.size,
        first=first,
        end=end,
        removed=removed.encode(),
        known=block.known,
        row_count=row_count,
        byte_size=block.file.size * row_count // max(1, block.message_count),
        subjects=state.subjects,
        key=block.file.key,
    )


def _with_filters(
    part: ForeignSlice, time_first_ns: int | None, time_end_ns: int | None, subject_filters: tuple[str, ...]
) -> ForeignSlice:
    return replace(part, time_first_ns=time_first_ns, time_end_ns=time_end_ns, subject_filters=subject_filters)
