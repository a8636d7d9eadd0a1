"""What foreign stores of every layout have in common: streams by name, each in one or several copies, and plans.

Several directories of one name (and account) below the given paths are copies of one stream, as the nodes of a cluster
keep them. They are read as one: see union.py.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from storage_core.errors import NotFoundError, StorageError
from storage_core.files import Files
from storage_core.foreign.budget import fold_damage
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.in_use import Writer, writers
from storage_core.foreign.plans import check_asked, match_names
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream, note_damage
from storage_core.foreign.union import StreamCopy, UnionSlice, clip, is_torn_behind, plan_union
from storage_core.foreign.vote import SEQUENCE_END
from storage_core.paths import labels_of
from storage_core.sequences import SequenceSet
from storage_core.suggestions import instead

logger = logging.getLogger(__name__)


class Place(Protocol):
    """A directory that holds one copy of a stream."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def account(self) -> str: ...


class Extent(Protocol):
    """What one copy shows."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    @property
    def removed(self) -> SequenceSet: ...


P = TypeVar("P", bound=Place)
E = TypeVar("E", bound=Extent)


class CopiesStore(ABC, Generic[P, E]):
    """Streams that servers left at or below some paths. What a copy shows is read once, when it is asked for."""

    layout: str
    noun: str  # what a stream is called there

    def __init__(self, paths: Sequence[str | os.PathLike[str]], files: Files, places: Sequence[P]) -> None:
        self._files = files
        self._named_paths, self._paths = tuple(paths), ", ".join(str(path) for path in paths)
        self._directories: dict[str, list[P]] = {}
        for place in places:
            self._directories.setdefault(place.name, []).append(place)
        self._states: dict[str, E] = {}
        for path in empty_paths(paths, [copy.path for copy in places]):
            logger.warning("%s holds no %s", path, self.noun)

    # --- what each layout says of one copy

    @abstractmethod
    def _load(self, copy: P) -> E:
        """Return what a copy shows; raises what makes it unreadable."""

    @abstractmethod
    def _slices(self, copy: P, first: int | None = None, end: int | None = None) -> Sequence[ForeignSlice]:
        """Return the slices of a copy, without filters."""

    @abstractmethod
    def _describe(self, copy: P) -> ForeignStream: ...

    @abstractmethod
    def _consumers(self, copy: P, on_damage: Callable[[ForeignDamage], None] | None) -> list[ForeignConsumer]: ...

    @abstractmethod
    def _notes(self, copy: P) -> Sequence[ForeignDamage]:
        """Return what is wrong beside the messages of a copy."""

    def _caveat(self, state: E) -> str:
        """Return what a copy could not tell although nothing is wrong with it; "" if there is nothing."""
        return ""

    def advice(self) -> str:
        """Return what would make reading a good deal faster; "" if nothing would."""
        return ""

    def _sure_from(self, state: E) -> int:
        """Return from which sequence on a copy shows nothing that was removed: removals of others may be lost."""
        return 0

    def _vouched_end(self, state: E) -> int:
        """Return one above the last sequence that an index of a copy tells of, however much of it is left."""
        return 0

    def _is_member_known(self, copies: Sequence[P]) -> bool:
        """Return whether it can be told of all copies whether they belong to the stream."""
        return True

    def _former(self, copies: Sequence[P]) -> dict[str, str]:
        """Return which copies no longer belong to the stream, by path, and how that is seen."""
        return {}

    @abstractmethod
    def _replica_count(self, copy: P) -> int:
        """Return how many copies there should be, as far as a copy tells; 0 if it does not."""

    # --- streams

    def writers(self) -> list[Writer]:
        """Return the processes that are seen to have files of the store open for writing."""
        return writers(self._named_paths)

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted, also of those that cannot be read."""
        return sorted(self._directories)

    def directory(self, stream: str) -> P:
        """Return where the only copy of a stream lies.

        Raises NotFoundError, or ValueError if it is there twice.
        """
        copies = self._copies(stream)
        if len(copies) > 1:
            places = ", ".join(place.path for place in copies)
            raise ValueError(f"path: {len(copies)} copies of {self.noun} {stream!r}, give the path of one: {places}")
        return copies[0]

    def state(self, stream: str) -> E:
        """Return what the only copy of a stream shows; reads its blocks where no index tells. Raises as `directory`."""
        return self._state(self.directory(stream))

    def bounds(self, stream: str) -> tuple[int, int]:
        """Return the sequence of the first message, and one above the highest sequence used; equal if empty."""
        copies = self._copies(stream)
        former = self._former(copies)
        readable = self._readable(copies)
        states = [state for _, state in readable]
        own = [state for copy, state in readable if copy.path not in former] or states
        filled = [state for state in own if state.first <= state.last] or own
        first = min(state.first for state in filled)
        ends = {copy.path: state.last + 1 for copy, state in readable}
        end = max(first, *ends.values())
        return first, end + (len(copies) > 1 and is_torn_behind(self._stream_copies(copies), ends))

    def notes(self, stream: str) -> list[str]:
        """Return what is wrong beside the messages of a stream, which is read all the same."""
        return list(dict.fromkeys(note.reason for note in self.noted(stream)))

    def replica_count(self, stream: str) -> int:
        """Return how many copies there should be, as far as those that are here tell; 0 if they do not."""
        copies = self._all_copies(stream)
        former = self._former(copies)
        return max(self._replica_count(copy) for copy in copies if copy.path not in former)

    def noted(self, stream: str) -> list[ForeignDamage]:
        """Return the same as damage."""
        return self._notes_of(self._copies(stream))

    def caveat(self, stream: str) -> str:
        """Return what no copy could tell of a stream although nothing is wrong with it; "" if there is nothing."""
        caveats = [self._caveat(state) for _, state in self._readable(self._copies(stream))]
        return caveats[0] if all(caveats) else ""

    def copies(self, stream: str) -> list[ForeignStream]:
        """Return what is known of each copy of a stream below the paths, also of those that cannot be read.

        Raises NotFoundError if there is none.
        """
        return [self._describe(copy) for copy in self._all_copies(stream)]

    # --- plans

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
        """Return the slices to read, by stream and sequence, one a block file. Several copies of a stream are read as
        one: then a slice is a UnionSlice, with what every copy has of it.

        `streams` is a name, names, or globs; `[first, end)` are sequences, times are ns since 1970 UTC, half open too.
        Raises NotFoundError for a name or glob that no stream has, ValueError for columns or ranges that cannot be,
        and whatever makes an asked stream unreadable.
        """
        check_asked(columns, (first, end), (time_first_ns, time_end_ns), subject_filters)
        slices: list[ForeignSlice] = []
        for name in match_names(streams, self._directories, lambda name: self._copies(name)[0].name, self._paths):
            copies = self._copies(name)
            slices += self._slices(copies[0], first, end) if len(copies) == 1 else self._union(copies, first, end)
        filters = tuple(subject_filters)
        return [
            replace(slice_, time_first_ns=time_first_ns, time_end_ns=time_end_ns, subject_filters=filters)
            for slice_ in slices
        ]

    def side_by_side(self, stream: str) -> tuple[list[StreamCopy], list[UnionSlice]]:
        """Return the copies of a stream, and the ranges in which they are compared; also if there is only one.

        A given path that has no copy although it should counts as a copy without anything.
        """
        copies = self._stream_copies(self._copies(stream))
        return copies, plan_union(copies)

    def inspect(self, stream: str) -> tuple[list[ForeignDamage], list[ForeignSlice]]:
        """Return what is wrong with a stream and its consumers beside its messages, and the slices to read for the
        rest; of all copies, whether they can be read or not. Raises NotFoundError if there is none.
        """
        damage: list[ForeignDamage] = []
        slices: list[ForeignSlice] = []
        accounts: dict[str, list[P]] = {}
        for copy in self._all_copies(stream):
            accounts.setdefault(copy.account, []).append(copy)
        for copies in accounts.values():
            readable, unreadable = self._look_at(copies)
            damage += [
                note_damage(self.layout, copy.account, copy.name, copy.path, str(error)) for copy, error in unreadable
            ]
            damage += self._notes_of(copies)
            for place, _ in readable:
                self._consumers(place, damage.append)
            try:
                slices += self._slices(copies[0]) if len(copies) == 1 else self._union(copies)
            except StorageError:
                continue  # none of them can be read, as was reported
        return fold_damage(damage), slices

    def _union(self, copies: Sequence[P], first: int | None = None, end: int | None = None) -> list[ForeignSlice]:
        self._readable(copies)
        planned = plan_union(self._stream_copies(copies))
        inside = [
            slice_
            for slice_ in planned
            if (end is None or slice_.first < end) and (first is None or slice_.end > first)
        ]
        return [
            clip(slice_, slice_.first if first is None else first, slice_.end if end is None else end)
            for slice_ in inside
        ]

    def _stream_copies(self, copies: Sequence[P]) -> list[StreamCopy]:
        bare = empty_paths(self._named_paths, [copy.path for copy in copies])
        if len(bare) > max(map(self._replica_count, copies)) - len(copies):
            bare = []  # it need not be there, or nobody can tell which of them should have it
        places = [copy.path for copy in copies] + bare
        former, is_known = self._former(copies), self._is_member_known(copies)
        stream_copies = []
        for copy, label in zip(copies, _labels(self._named_paths, places), strict=False):
            try:
                slices = sorted(self._slices(copy), key=lambda part: part.first)
                state = self._state(copy)
                sure_from = self._sure_from(state) if is_known else SEQUENCE_END - 1
                sure_from = SEQUENCE_END if copy.path in former else sure_from
                vouched = self._vouched_end(state)
                stream_copies.append(StreamCopy(label, copy.path, tuple(slices), state.removed, "", sure_from, vouched))
            except StorageError as error:
                stream_copies.append(StreamCopy(label, copy.path, (), SequenceSet.empty(), str(error)))
        for path, label in zip(bare, _labels(self._named_paths, places)[len(copies) :], strict=True):
            stream_copies.append(StreamCopy(label, path, (), SequenceSet.empty(), ""))
        return stream_copies

    # --- consumers

    def consumers(self, stream: str, on_damage: Callable[[ForeignDamage], None] | None = None) -> list[ForeignConsumer]:
        """Return the consumers of a stream. Damage to what is kept of them goes to `on_damage`, else it is raised.

        Of one that several copies have, the state that got furthest counts: what was acknowledged stays so. Damage to
        a copy is then never raised.
        """
        best: dict[str, ForeignConsumer] = {}
        readable = self._readable(self._copies(stream))
        for place, _ in readable:
            hears = on_damage if len(readable) == 1 else (on_damage or _log)
            for consumer in self._consumers(place, hears):
                known = best.get(consumer.name)
                if known is None or _progress(consumer) > _progress(known):
                    best[consumer.name] = consumer
        return [best[name] for name in sorted(best)] if len(readable) > 1 else list(best.values())

    # --- copies

    def _all_copies(self, stream: str) -> list[P]:
        """Return every directory of the name, whatever its account. Raises NotFoundError."""
        directories = self._directories.get(stream)
        if directories is None:
            hint = instead(stream, self.streams())
            raise NotFoundError(f"{self.noun} {stream!r} is not in {self._paths}{hint}")
        return directories

    def _copies(self, stream: str) -> list[P]:
        """Return the copies of a stream, one at least. Raises NotFoundError, ValueError if accounts have to be told
        apart."""
        copies = self._all_copies(stream)
        accounts = sorted({place.account for place in copies})
        if len(accounts) > 1:
            raise ValueError(f"account: {self.noun} {stream!r} is in the accounts {', '.join(accounts)}: name one")
        return copies

    def _readable(self, copies: Sequence[P]) -> list[tuple[P, E]]:
        """Return the copies that can be read, with what they show; raises the first one's problem if none can."""
        readable, unreadable = self._look_at(copies)
        if not readable:
            raise unreadable[0][1]
        return readable

    def _look_at(self, copies: Sequence[P]) -> tuple[list[tuple[P, E]], list[tuple[P, StorageError]]]:
        """Return the copies that can be read, with what they show, and the others, with why they cannot be."""
        readable: list[tuple[P, E]] = []
        unreadable: list[tuple[P, StorageError]] = []
        for copy in copies:
            try:
                readable.append((copy, self._state(copy)))
            except StorageError as error:
                unreadable.append((copy, error))
        return readable, unreadable

    def _notes_of(self, copies: Sequence[P]) -> list[ForeignDamage]:
        """Return the notes of copies. What one of several cannot tell of removals is the others' to tell, if they lost
        none. Where copies that cannot be read are half of all or more, nothing tells what those had.
        """
        former = self._former(copies)
        readable = {copy.path: state for copy, state in self._look_at(copies)[0]}
        notes = [
            note_damage(self.layout, copy.account, copy.name, copy.path, former[copy.path])
            for copy in copies
            if copy.path in former
        ]
        own = [(copy, self._notes(copy)) for copy in copies]
        others_tell = any(
            copy.path in readable
            and copy.path not in former
            and not self._sure_from(readable[copy.path])
            and not any(note.unclear for note in some)
            for copy, some in own
        )
        if readable and 2 * len(readable) <= len(copies):
            notes += [
                note_damage(
                    self.layout,
                    copy.account,
                    copy.name,
                    copy.path,
                    "it cannot be read, and the others are no majority: they may be of before it",
                    unclear=True,
                )
                for copy in copies
                if copy.path not in readable
            ]
        for _, some in own:
            notes += [replace(note, unclear=note.unclear and not others_tell) for note in some]
        return notes

    def _state(self, place: P) -> E:
        if place.path not in self._states:
            self._states[place.path] = self._load(place)
        return self._states[place.path]


def empty_paths(paths: Sequence[str | os.PathLike[str]], copy_paths: Sequence[str]) -> list[str]:
    """Return the given paths below which nothing was found."""
    tops = dict.fromkeys(os.path.realpath(path) for path in paths)
    places = [
        Path(place) for path in copy_paths for place in (path, os.path.realpath(path))
    ]  # links may lead out of a path
    return [real for real in tops if not any(place.is_relative_to(real) for place in places)]


def _labels(paths: Sequence[str | os.PathLike[str]], places: Sequence[str]) -> list[str]:
    """Return a short name for each place: by the given path that it is below, if that tells them apart."""
    tops = [os.path.realpath(path) for path in paths]
    above = [next((top for top in tops if Path(place).is_relative_to(top)), place) for place in places]
    return labels_of(above if len(set(above)) == len(places) else places)


def _progress(consumer: ForeignConsumer) -> tuple[int, int]:
    return (consumer.ack_floor or 0, consumer.delivered or 0)


def _log(damage: ForeignDamage) -> None:
    logger.warning("%s", damage.describe())
