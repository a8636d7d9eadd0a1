"""A JetStream store: its streams by name, and plans over them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from storage_core.errors import NotFoundError, StorageError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.copies import CopiesStore
from storage_core.foreign.nats.block import first_size
from storage_core.foreign.nats.consumers import CONSUMERS_DIRECTORY, read_consumers
from storage_core.foreign.nats.directory import StreamDirectory, find_streams
from storage_core.foreign.nats.extent import BlockState, StreamState, with_sent
from storage_core.foreign.nats.highwayhash import LONG_SIZE
from storage_core.foreign.nats.holes import removes_silently
from storage_core.foreign.nats.index import SEQUENCE_END
from storage_core.foreign.nats.limits import configured_subjects
from storage_core.foreign.nats.long_chains import COMPILED_TIMES, side_by_side_size
from storage_core.foreign.nats.meta import INDEX_FILE, META_FILE
from storage_core.foreign.nats.state import load_state
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage
from storage_core.suggestions import instead

LAYOUT = "nats"


class NatsStore(CopiesStore[StreamDirectory, StreamState]):
    """Streams that nats-servers left at or below some paths. What a stream shows is read once, when it is asked for."""

    layout, noun = LAYOUT, "stream"

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        account: str | None = None,
        files: Files = OS_FILES,
        encryption_key: str | Sequence[str] | None = None,
    ) -> None:
        streams = find_streams(paths, files, encryption_key)
        if account is not None:
            accounts = sorted({stream.account for stream in streams})
            streams = [stream for stream in streams if stream.account == account]
            if not streams:
                where = ", ".join(str(path) for path in paths)
                raise NotFoundError(f"account {account!r} has no streams in {where}{instead(account, accounts)}")
        super().__init__(paths, files, streams)

    def _load(self, directory: StreamDirectory) -> StreamState:
        state = load_state(directory, self._files)
        sent: list[int] = []
        if state.last < SEQUENCE_END:
            with suppress(StorageError):  # what is wrong with consumers is told of them
                sent += [each.delivered or 0 for each in read_consumers(directory, None, lambda _: None, self._files)]
        is_silent = removes_silently(directory.config, False)
        return with_sent(state, max(sent, default=0), directory.messages_path, is_silent)

    def _is_member_known(self, copies: Sequence[StreamDirectory]) -> bool:
        return not any(copy.notes for copy in copies)

    def _former(self, copies: Sequence[StreamDirectory]) -> dict[str, str]:
        """A scale-down leaves the directories of nodes that were off: they still have the former number of replicas,
        and are behind.
        """
        if len(copies) < 2 or len({self._replica_count(copy) for copy in copies}) < 2:
            return {}
        lasts = {}
        for copy in copies:
            with suppress(StorageError):  # of one that cannot be read nobody knows
                lasts[copy.path] = self._state(copy).last
        known = [copy for copy in copies if copy.path in lasts and self._replica_count(copy)]
        if not known:
            return {}
        # Of a stream with one replica there is no other copy; with more, a node may have missed that some were added.
        leading = max(
            known, key=lambda copy: (self._replica_count(copy) == 1, lasts[copy.path], -self._replica_count(copy))
        )
        count = self._replica_count(leading)
        return {
            copy.path: (
                f"{copy.path} is of before a scale-down: its num_replicas is {self._replica_count(copy)}, that of "
                f"{leading.path} is {count}. It no longer belongs to the stream: what the other "
                "says was removed stays so"
            )
            for copy in known
            if self._replica_count(copy) > count
        }

    def _replica_count(self, directory: StreamDirectory) -> int:
        count = directory.config.get("num_replicas", 0)
        return count if isinstance(count, int) else 0

    def _notes(self, directory: StreamDirectory) -> list[ForeignDamage]:
        meta = str(Path(directory.path) / META_FILE)
        unknown = "its limits are unknown, what they had removed may show again"
        try:
            state = self._state(directory)
        except StorageError:  # reported where its messages are asked for
            state = None
        rebuilt = state is not None and state.source == "blocks"
        account, name = directory.account, directory.name
        notes = list(_purge_notes(directory, state))
        notes += [note_damage(LAYOUT, account, name, meta, f"{unknown}: {note}", rebuilt) for note in directory.notes]
        return notes + [
            note_damage(LAYOUT, account, name, directory.messages_path, note.reason, note.unclear)
            for note in (state.notes if state is not None else ())
        ]

    def _vouched_end(self, state: StreamState) -> int:
        return state.vouched_end

    def _sure_from(self, state: StreamState) -> int:
        return state.forgets_below

    def _caveat(self, state: StreamState) -> str:
        if state.indexed:
            return ""
        return (
            f"no {INDEX_FILE} tells how far it went: messages of a last block that is gone, and removals that were "
            "noted in it, leave no trace"
        )

    def advice(self) -> str:
        directories = (directory for copies in self._directories.values() for directory in copies)
        if not side_by_side_size() or not any(map(self._has_long_messages, directories)):
            return ""
        return (
            f"the messages are long: with numba they are read {COMPILED_TIMES} times as fast "
            "(pip install 'pyspark-jstream[rescue]')"
        )

    def _has_long_messages(self, directory: StreamDirectory) -> bool:
        """Return whether the largest plain block begins with a long one."""
        blocks = [block for block in directory.blocks if not block.key]
        return bool(blocks) and first_size(max(blocks, key=lambda block: block.size), self._files) >= LONG_SIZE

    def _consumers(
        self, directory: StreamDirectory, on_damage: Callable[[ForeignDamage], None] | None
    ) -> list[ForeignConsumer]:
        if directory.problem is not None:
            raise directory.problem
        return read_consumers(directory, self._state(directory).last, on_damage, self._files)

    def _slices(
        self, directory: StreamDirectory, first: int | None = None, end: int | None = None
    ) -> list[ForeignSlice]:
        state = self._state(directory)
        slices = []
        for block in state.blocks:
            low = block.first if first is None else max(block.first, first)
            high = block.end if end is None else min(block.end, end)
            part = _slice(directory, state, block, low, high)
            if low < high and (part.row_count or not block.known):
                slices.append(part)
        return slices

    def _describe(self, directory: StreamDirectory) -> ForeignStream:
        state, problem = None, "; ".join(directory.notes)
        consumers: list[ForeignConsumer] | None = None
        unread: list[ForeignDamage] = []
        try:
            state = self._state(directory)
            consumers = read_consumers(directory, None, unread.append, self._files)
        except StorageError as error:
            problem = str(error)
        all_consumers = str(Path(directory.path) / CONSUMERS_DIRECTORY)
        if any(damage.file == all_consumers for damage in unread):
            consumers = None
        subjects = directory.config.get("subjects")
        return ForeignStream(
            layout=LAYOUT,
            account=directory.account,
            stream=directory.name,
            path=directory.path,
            subjects=tuple(map(str, subjects)) if isinstance(subjects, list) else (),
            messages=None if state is None else state.message_count,
            first=None if state is None else state.first,
            last=None if state is None else state.last,
            byte_size=sum(block.size for block in directory.blocks),
            block_count=len(directory.blocks),
            consumer_count=None if consumers is None else len(consumers),
            compression=str(directory.config.get("compression", "none")),
            encrypted=directory.encrypted,
            source="" if state is None else state.source,
            problem=problem,
            config=directory.config,
        )


def _purge_notes(directory: StreamDirectory, state: StreamState | None) -> Iterator[ForeignDamage]:
    """Yield what is to be said of a purge that was not finished."""
    place = Path(directory.messages_path)
    if directory.is_purged and state is not None:
        reason = (
            f"{place.name} holds {state.first} to {state.last} of a purge that was not finished, and there are no "
            "other blocks: they are read as they were, and were to be removed"
        )
        yield note_damage(LAYOUT, directory.account, directory.name, str(place), reason, unclear=True)
    if directory.begun_purge:
        reason = f"a purge was begun and not finished: {directory.begun_purge}, which it would have left, is not read"
        yield note_damage(LAYOUT, directory.account, directory.name, str(place), reason)


def _slice(directory: StreamDirectory, state: StreamState, block: BlockState, first: int, end: int) -> ForeignSlice:
    asked = max(0, end - first) - len(block.removed.clip(first, end))
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
        removed=block.removed.encode(),
        known=block.known,
        row_count=row_count,
        byte_size=block.file.size * row_count // max(1, block.message_count),
        subjects=state.subjects,
        configured=configured_subjects(directory.config),
        key=block.file.key,
        sound_crc32c=block.sound_crc32c,
        missing=block.missing,
        bounds=(block.first, block.end),
        atomic_end=state.last + 1 if directory.config.get("allow_atomic") is True else 0,
        open=block.open,
    )
