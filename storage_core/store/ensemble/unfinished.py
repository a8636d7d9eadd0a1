"""What a creation leaves that was killed: recognised by its mark, and finished or taken away by the next one.

    VOLUME/jstream.creating     the identities of all volumes to be, a page each (identity.py), its own first

The marks of all volumes are durable before anything else of them is written, and go when all identities are durable. So
beside a mark without an identity there is nothing but what the creation wrote, which nobody was told of; once one
volume has its identity, everything else of all of them is durable, and only identities are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import AlreadyExistsError, CorruptionError, NotAStoreError
from storage_core.file_kinds import CREATION_MARK
from storage_core.files import write_durably
from storage_core.store.environment import Environment
from storage_core.store.volume import identity, locks, log, probe
from storage_core.store.volume.identity import CREATING, PAGE_SIZE, STREAMS, VolumeIdentity, decode_identity
from storage_core.store.volume.volumes import Volume

_FIRST_SEGMENT = f"{1:016x}.log"


def write_mark(volume: Volume, made: Sequence[Volume], env: Environment) -> None:
    """Say durably that a store is being made here, before anything else of it is written. Raises OSError."""
    own = [one.identity for one in made if one is volume]
    others = [one.identity for one in made if one is not volume]
    identities = b"".join(other.encode() for other in [*own, *others] if other is not None)
    write_durably(env.files, volume.path / CREATING, identities)
    env.files.sync_directory(volume.path.parent)


def remove_mark(path: Path, env: Environment) -> None:
    try:
        env.files.unlink(path / CREATING)
    except FileNotFoundError:
        return
    env.files.sync_directory(path)


@dataclass(frozen=True, slots=True)
class _There:
    """What is on a volume to be."""

    path: Path
    is_marked: bool
    marked: tuple[VolumeIdentity, ...]  # as the mark says, its own first; empty if it cannot be read
    identity: VolumeIdentity | None  # None: there is none, or it is torn


def resume(paths: Sequence[Path], env: Environment) -> list[Volume] | None:
    """Finish a creation on these directories that was killed; return its volumes, None if there is none to finish.

    One that has not come so far is taken away. Raises AlreadyExistsError (there is more than a creation leaves, or
    other volumes belong to it), StoreBusyError (a creation is under way), OSError.
    """
    if not any(_holds(path, (CREATING,), env) for path in paths):
        return None
    ours = [path for path in paths if _holds(path, (CREATING, identity.FILE_NAME), env)]
    with locks.hold(env.files, ours, len(ours), 0.0):
        there = [_look(path, env) for path in paths]
        attempt = next((present.marked for present in there if present.marked), ())
        if any(present.identity is not None for present in there):
            return _finish(there, attempt, env)
        marked = [present.path for present in there if present.is_marked]
        for path in marked:
            _check_only_ours(path, env)
        for path in marked:
            _clear(path, env)
    return None


def _holds(path: Path, names: Sequence[str], env: Environment) -> bool:
    return env.files.is_directory(path) and not set(names).isdisjoint(env.files.list_directory(path))


def _look(path: Path, env: Environment) -> _There:
    marked: list[VolumeIdentity] = []
    is_marked = _holds(path, (CREATING,), env)
    if is_marked:
        file = env.files.open(path / CREATING)
        try:
            pages = file.read_at(0, CREATION_MARK.size_max)
        finally:
            file.close()
        try:
            for start in range(0, len(pages), PAGE_SIZE):
                marked.append(decode_identity(pages[start : start + PAGE_SIZE], path / CREATING))
        except (NotAStoreError, CorruptionError):  # torn: nothing else had been written
            marked = []
    try:
        own: VolumeIdentity | None = identity.read_identity(env.files, path)
    except (NotAStoreError, CorruptionError):  # torn: the mark has it
        own = None
    return _There(path, is_marked, tuple(marked), own)


def _finish(there: Sequence[_There], attempt: Sequence[VolumeIdentity], env: Environment) -> list[Volume]:
    """Write the identities that are missing, make the others durable, and take the marks away."""
    volumes = []
    for present in there:
        own = present.identity or (present.marked[0] if present.marked else None)
        if present.identity is not None and present.identity not in attempt:
            raise AlreadyExistsError(f"{present.path} holds a jstream store already")
        if own is not None and own in attempt:
            volumes.append(Volume(own.volume_id, present.path, own, files=env.files))
    if not len(there) == len(volumes) == len(attempt):
        raise AlreadyExistsError(
            f"{there[0].path}: the creation of a store on {len(attempt)} volumes was not finished; name all of them to "
            "finish it"
        )
    for volume, before in zip(volumes, there, strict=True):
        assert volume.identity is not None
        path = volume.path / identity.FILE_NAME
        if before.identity is None and path.name in env.files.list_directory(volume.path):
            env.files.unlink(path)
        file = env.files.create(path) if before.identity is None else env.files.open(path, writable=True)
        try:
            if before.identity is None:
                file.write_at(0, volume.identity.encode())
            file.sync()
        finally:
            file.close()
        env.files.sync_directory(volume.path)
        env.files.sync_directory(volume.path.parent)
    for volume in volumes:
        remove_mark(volume.path, env)
    return volumes


def _check_only_ours(path: Path, env: Environment) -> None:
    """Raise AlreadyExistsError if there is anything that no creation leaves."""
    files = env.files
    strange = set(files.list_directory(path)) - {
        locks.FILE_NAME, CREATING, log.DIRECTORY, STREAMS, identity.FILE_NAME, *probe.NAMES,
    }  # fmt: skip
    for name, known in ((log.DIRECTORY, {_FIRST_SEGMENT}), (STREAMS, set[str]())):
        if files.is_directory(path / name):
            strange.update(f"{name}/{one}" for one in set(files.list_directory(path / name)) - known)
    if strange:
        raise AlreadyExistsError(
            f"{path} is not empty: {', '.join(sorted(strange)[:5])}, beside a creation that was not finished"
        )


def _clear(path: Path, env: Environment) -> None:
    """Take away what the creation wrote, its mark last."""
    files, meta = env.files, path / log.DIRECTORY
    if identity.FILE_NAME in files.list_directory(path):  # torn
        files.unlink(path / identity.FILE_NAME)
    if files.is_directory(meta):
        for name in files.list_directory(meta):
            files.unlink(meta / name)
        files.remove_directory(meta)
    if files.is_directory(path / STREAMS):
        files.remove_directory(path / STREAMS)
    files.sync_directory(path)
    remove_mark(path, env)
