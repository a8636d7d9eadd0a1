"""Volumes of a store: which directories they are, and which of them are of use.

Any volume leads to the rest: the metadata records where each one was, relative to the others. Paths that are given win
over recorded ones, so a store that was copied elsewhere is that copy and is never led back to the original.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from storage_core.errors import (
    CorruptionError,
    NotAStoreError,
    ProcessError,
    StorageError,
    UnsupportedVersionError,
    VolumeAwayError,
)
from storage_core.files import Files
from storage_core.metadata.commands import Voter
from storage_core.os_errors import is_of_process, of_process, of_volume, raise_if_limit
from storage_core.paths import is_in_object_store, place, place_key
from storage_core.raft.rules import majority
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.identity import FILE_NAME, VolumeIdentity, read_identity
from storage_core.store.volume.index import VolumeIndex
from storage_core.store.volume.log import VolumeLog
from storage_core.store.volume.object_log import ObjectLog
from storage_core.store.volume.placement_journal import PlacementJournal
from storage_core.store.volume.register import Register
from storage_core.store.volume.reports import Reports
from storage_core.store.volume.reserve import Reserve
from storage_core.store.volume.state import VolumeState

_DEEP = "/" + "/".join(["x"] * 256)  # somewhere from which no recorded path climbs out


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume as it was found just now."""

    volume_id: bytes
    path: Path
    identity: VolumeIdentity | None  # None: there is none of this volume at the path
    state: VolumeState = VolumeState.CURRENT  # as far as its identity tells; without one MISSING, DAMAGED or FOREIGN
    reason: str = ""  # why there is no identity, for people
    is_blank: bool = field(default=False, kw_only=True)  # MISSING, but there is a directory in its place
    refusal: ProcessError | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )  # MISSING for want of it
    store_id: bytes = field(default=bytes(16), kw_only=True, repr=False)  # whose volume it should be
    files: Files = field(kw_only=True, repr=False, compare=False)  # by which it is reached

    @property
    def name(self) -> str:
        """The name that people and JSON see: the id in hex."""
        return self.volume_id.hex()

    @property
    def is_present(self) -> bool:
        """Return whether a directory is in its place that is no other volume's, as far as is known."""
        return self.is_blank or self.state not in (VolumeState.MISSING, VolumeState.FOREIGN)

    @property
    def blocks(self) -> BlockStore:
        return BlockStore(self.files, self.path)

    @property
    def log(self) -> Register:
        """Its voter: the metadata log, votes, commit records and snapshots."""
        identity = self.identity or VolumeIdentity(self.store_id, self.volume_id, bytes(16), 0)
        log_kind = ObjectLog if self.is_remote else VolumeLog
        return log_kind(self.files, self.path, identity)

    @property
    def is_remote(self) -> bool:
        """Return whether it lies in an object store: it is written as it was read, from any host, without locks."""
        return is_in_object_store(self.path)

    @property
    def reports(self) -> Reports:
        """Where word is left of bad copies on other volumes."""
        return Reports(self.files, self.path)

    @property
    def journal(self) -> PlacementJournal:
        return PlacementJournal(self.files, self.path)

    @property
    def reserve(self) -> Reserve:
        return Reserve(self.files, self.path)

    def read_index(self) -> VolumeIndex:
        """Read what is known of the blocks here; each call reads it anew."""
        return VolumeIndex(self.files, self.path)


def label(volumes: Sequence[Volume]) -> str:
    """Return a store's volumes as messages name them."""
    return ", ".join(str(volume.path) for volume in volumes)


def load_volume(files: Files, path: Path, volume_id: bytes, store_id: bytes) -> Volume:
    """Return the volume that should be at `path`, with what is wrong if it is not."""
    try:
        identity = read_identity(files, path)
    except UnsupportedVersionError:
        raise
    except NotAStoreError as error:
        if not _is_directory(files, path):
            return Volume(volume_id, path, None, VolumeState.MISSING, str(error), store_id=store_id, files=files)
        reason = str(error) if _has_identity(files, path) else f"there is no {FILE_NAME} in {path}"
        return Volume(volume_id, path, None, VolumeState.MISSING, reason, is_blank=True, store_id=store_id, files=files)
    except CorruptionError as error:
        return Volume(volume_id, path, None, VolumeState.DAMAGED, str(error), store_id=store_id, files=files)
    except (StorageError, OSError) as error:
        raise_if_limit(error, path)
        # For want of rights it is as good as away, not damaged.
        refusal = of_process(error, path) if is_of_process(error) else None
        is_away = refusal is not None or isinstance(error, VolumeAwayError)
        state = VolumeState.MISSING if is_away else VolumeState.DAMAGED
        return Volume(volume_id, path, None, state, str(error), refusal=refusal, store_id=store_id, files=files)
    if identity.store_id != store_id:
        reason = f"{path} belongs to store {identity.store_id.hex()}, not {store_id.hex()}"
        return Volume(volume_id, path, None, VolumeState.FOREIGN, reason, store_id=store_id, files=files)
    if identity.volume_id != volume_id:
        reason = f"{path} is volume {identity.volume_id.hex()}, not {volume_id.hex()}"
        return Volume(volume_id, path, None, VolumeState.FOREIGN, reason, store_id=store_id, files=files)
    return Volume(volume_id, path, identity, store_id=store_id, files=files)


def unreachable_volume(files: Files, path: Path, volume_id: bytes, store_id: bytes, why: OSError) -> Volume:
    """Return a volume that gives no answer."""
    reason = f"{path} gives no answer: {why}"
    return Volume(volume_id, path, None, VolumeState.MISSING, reason, store_id=store_id, files=files)


def volumes_at(
    files: Files, paths: Sequence[Path], looks: Sequence[VolumeIdentity | BaseException] = ()
) -> list[Volume]:
    """Return the volumes at the paths that a user named; those that cannot be known are left out.

    `looks`: what was found at each of them just now, if somebody looked. Of volumes of several stores those count to
    whose store most of the paths belong: another one is a wrong disk. One that is at two paths is left out with both:
    where the others expect it tells which is the copy (`complete`). Raises ValueError (only one volume, at two paths),
    NotAStoreError (most belong to no one store; or none of the paths is a volume), or what is wrong with the only one.
    """
    volumes: list[Volume] = []
    first_error: StorageError | None = None
    for number, path in enumerate(paths):
        try:
            identity = looks[number] if looks else read_identity(files, path)
            if isinstance(identity, OSError):  # nobody even looked: an earlier call there has not returned yet
                raise of_volume(identity, f"{path} cannot be read: {identity}")
            if isinstance(identity, BaseException):
                raise identity
        except UnsupportedVersionError:
            raise
        except StorageError as error:
            raise_if_limit(error, path)
            first_error = first_error or error
            continue
        volumes.append(Volume(identity.volume_id, path, identity, files=files))
    if not volumes:
        assert first_error is not None
        raise first_error
    ours = _of_one_store(volumes, len(paths))
    counts = Counter(volume.volume_id for volume in ours)
    single = [volume for volume in ours if counts[volume.volume_id] == 1]
    if not single:
        raise _at_two_paths(
            ours[0].volume_id, [volume.path for volume in ours if volume.volume_id == ours[0].volume_id]
        )
    return single


def _at_two_paths(volume_id: bytes, places: Sequence[Path]) -> ValueError:
    places_text = f"{places[0]} and {places[1]}; one is a copy: take it away, or name only the other"
    return ValueError(f"volume {volume_id.hex()} is at two paths: {places_text}")


def _of_one_store(volumes: Sequence[Volume], path_count: int) -> list[Volume]:
    """Return the volumes of the store that most of the paths belong to. Raises NotAStoreError, naming all."""
    by_store: dict[bytes, list[Volume]] = {}
    for volume in volumes:
        assert volume.identity is not None
        by_store.setdefault(volume.identity.store_id, []).append(volume)
    most = max(by_store.values(), key=len)
    if len(by_store) == 1 or len(most) >= majority(path_count):
        return most
    stores_text = "; ".join(
        f"{', '.join(str(volume.path) for volume in volumes)} to store {store_id.hex()}"
        for store_id, volumes in by_store.items()
    )
    raise NotAStoreError(
        f"the paths belong to several stores, and most of them to none: {stores_text}; name those of one"
    )


def resolve_volumes(
    files: Files, known: Sequence[Volume], voters: Sequence[Voter], paths: Sequence[Path]
) -> list[Volume]:
    """Return every volume of the store, in the order of `voters`: as `known`, else where it was recorded.

    `paths`: those that the user gave. One of them that holds no volume stands for a volume that has no other place.
    Raises ValueError if one volume is found at two paths, NotAStoreError if none of `known` is a volume any more.
    """
    at = {volume.volume_id: volume for volume in known}
    recorded = {voter.volume_id: voter.path for voter in voters}
    store_id = next(volume.identity.store_id for volume in known if volume.identity is not None)
    real = cache(place_key)  # all volumes tell of all others

    @cache
    def look_at(volume_id: bytes, path: Path) -> Volume:
        return load_volume(files, path, volume_id, store_id)

    if not recorded.keys() & at.keys():
        removed = ", ".join(str(volume.path) for volume in known)
        raise NotAStoreError(f"{removed} was removed from store {store_id.hex()}; name a volume that is part of it")
    search = list(known)
    for volume in search:  # grows: a copy of one volume beside the originals is told by where the others expect it
        for volume_id, path in _neighbours(volume, recorded):
            before = at.get(volume_id)
            if before is not None and before.identity is not None and real(before.path) == real(path):
                continue
            neighbour = look_at(volume_id, path)
            if neighbour.identity is None:
                continue
            if before is None:
                at[volume_id] = neighbour
                search.append(neighbour)
            else:
                raise _at_two_paths(volume_id, [before.path, path])
    expected = {volume_id: path for volume in reversed(known) for volume_id, path in _neighbours(volume, recorded)}
    lost = [voter.volume_id for voter in voters if voter.volume_id not in at]
    spare = [path for path in paths if not any(real(path) == real(volume.path) for volume in at.values())]
    for volume_id in lost:
        here = next((path for path in spare if volume_id in expected and real(path) == real(expected[volume_id])), None)
        if here is not None:
            spare.remove(here)
            at[volume_id] = look_at(volume_id, here)
    for volume_id in recorded if spare else ():  # what lies there is in the place of none
        places = [at[volume_id].path] if volume_id in at and at[volume_id].identity is not None else []
        places += [path for path in spare if look_at(volume_id, path).identity is not None]
        if len(places) > 1:
            raise _at_two_paths(volume_id, places)
    taken = [volume.path for volume in at.values()]
    for volume_id in lost:
        if volume_id not in at:
            # A given path that holds no volume stands for one that has no place of its own.
            place = spare.pop(0) if spare else expected.get(volume_id, Path("/"))
            at[volume_id] = look_at(volume_id, place)
            if any(real(place) == real(path) for path in taken):
                at[volume_id] = Volume(
                    volume_id,
                    place,
                    None,
                    VolumeState.FOREIGN,
                    f"{place} is another volume of the store",
                    store_id=store_id,
                    files=files,
                )
    return [at[voter.volume_id] for voter in voters]


def recorded_paths(volumes: Sequence[Volume]) -> dict[bytes, str]:
    """Return what the metadata keeps of each volume's place: its path from the directory that the first one lies in."""
    if len(volumes) == 1:
        return {volumes[0].volume_id: "."}
    if volumes[0].is_remote:
        return {volume.volume_id: str(volume.path) for volume in volumes}
    base = os.path.dirname(os.path.abspath(volumes[0].path))
    return {volume.volume_id: os.path.relpath(os.path.abspath(volume.path), base) for volume in volumes}


def _neighbours(volume: Volume, recorded: dict[bytes, str]) -> list[tuple[bytes, Path]]:
    """Return where every volume is if all of them lie relative to this one as they were recorded."""
    if volume.volume_id not in recorded:
        return []
    if volume.is_remote:
        return [(volume_id, place(path) if path != "." else volume.path) for volume_id, path in recorded.items()]
    origin = os.path.normpath(f"{_DEEP}/{recorded[volume.volume_id]}")
    neighbours = []
    for volume_id, path in recorded.items():
        step = os.path.relpath(os.path.normpath(f"{_DEEP}/{path}"), origin)
        neighbours.append((volume_id, Path(os.path.normpath(volume.path / step))))
    return neighbours


def _has_identity(files: Files, path: Path) -> bool:
    try:
        return FILE_NAME in files.list_directory(path)
    except OSError as error:
        raise_if_limit(error, path)
        return True  # nobody can tell


def _is_directory(files: Files, path: Path) -> bool:
    try:
        if is_in_object_store(path):  # what lies in no directory: a prefix is there when its bucket is
            files.list_directory(path)
            return True
        return files.is_directory(path)
    except OSError:
        return False
