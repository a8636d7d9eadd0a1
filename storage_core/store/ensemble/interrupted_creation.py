"""What making volumes leaves when it is killed: recognised by its mark, and finished or taken away by the next attempt.

    VOLUME/jstream.creating     a store is created here   } the identities of all volumes to be, a page each
    VOLUME/jstream.restoring    a backup is restored here } (identity.py), the volume's own first

The marks of all volumes are durable before anything else of them is written, and go when all identities are durable. So
beside a mark without an identity there is nothing but what that attempt wrote, which nobody was told of; once one
volume has its identity, everything else of all of them is durable, and only identities are missing.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import AlreadyExistsError, CorruptionError, NotAStoreError
from storage_core.file_kinds import MAKING_MARK
from storage_core.files import write_durably
from storage_core.store.environment import Environment
from storage_core.store.volume import identity, locks, log, probe
from storage_core.store.volume.identity import CREATING, RESTORING, STREAMS, VolumeIdentity, decode_mark, encode_mark
from storage_core.store.volume.volumes import Volume

_FIRST_SEGMENT = f"{1:016x}.log"
_WORK = {CREATING: "the creation of a store", RESTORING: "a restore"}


def write_marks(made: Sequence[Volume], mark: str, env: Environment) -> None:
    """Say durably on each volume what is being made, before anything else of it is written. Raises OSError."""
    for volume in made:
        write_mark(volume, made, mark, env)


def write_mark(volume: Volume, made: Sequence[Volume], mark: str, env: Environment) -> None:
    """Say it on one of them. Raises OSError."""
    identities = [other.identity for other in made if other.identity is not None and other is not volume]
    assert volume.identity is not None
    write_durably(env.files, volume.path / mark, encode_mark([volume.identity, *identities]))
    env.files.sync_directory(volume.path.parent)


def remove_mark(path: Path, mark: str, env: Environment) -> None:
    try:
        env.files.unlink(path / mark)
    except FileNotFoundError:
        return
    env.files.sync_directory(path)


@dataclass(frozen=True, slots=True)
class PartialVolume:
    """What is on a volume to be."""

    path: Path
    is_marked: bool
    marked: tuple[VolumeIdentity, ...]  # as the mark says, its own first; empty if it cannot be read
    identity: VolumeIdentity | None  # None: there is none, or it is torn


def resume(
    paths: Sequence[Path], mark: str, clear: Callable[[Sequence[PartialVolume], Environment], None], env: Environment
) -> list[Volume] | None:
    """Finish what was killed on these directories; return its volumes, None if there is none to finish.

    What has not come so far is given to `clear`, which takes it away. Raises AlreadyExistsError (there is more than
    such an attempt leaves, or other volumes belong to it), StoreBusyError (one is under way), OSError.
    """
    if not any(_holds(path, (mark,), env) for path in paths):
        return None
    ours = [path for path in paths if _holds(path, (mark, identity.FILE_NAME), env)]
    with locks.hold(env.files, ours, len(ours), 0.0):
        partial_volumes = [_read_partial(path, mark, env) for path in paths]
        if any(volume.identity is not None for volume in partial_volumes):
            return _finish(partial_volumes, mark, env)
        clear(partial_volumes, env)
    return None


def _holds(path: Path, names: Sequence[str], env: Environment) -> bool:
    return env.files.is_directory(path) and not set(names).isdisjoint(env.files.list_directory(path))


def _read_partial(path: Path, mark: str, env: Environment) -> PartialVolume:
    marked: tuple[VolumeIdentity, ...] = ()
    is_marked = _holds(path, (mark,), env)
    if is_marked:
        with closing(env.files.open(path / mark)) as file:
            pages = file.read_at(0, MAKING_MARK.size_max)
        try:
            marked = decode_mark(pages, path / mark)
        except (NotAStoreError, CorruptionError):  # torn: nothing else had been written
            marked = ()
    try:
        own: VolumeIdentity | None = identity.read_identity(env.files, path)
    except (NotAStoreError, CorruptionError):  # torn: the mark has it
        own = None
    return PartialVolume(path, is_marked, marked, own)


def _finish(partial_volumes: Sequence[PartialVolume], mark: str, env: Environment) -> list[Volume]:
    """Write the identities that are missing, make the others durable, and take the marks away."""
    attempt = max((before.marked for before in partial_volumes), key=len)  # one that was cut off has fewer
    volumes = []
    for before in partial_volumes:
        if before.identity is not None and before.identity not in attempt:
            raise AlreadyExistsError(f"{before.path} holds a jstream store already")
        own = before.identity or (before.marked[0] if before.marked else None)
        if own is not None and own in attempt:
            volumes.append(Volume(own.volume_id, before.path, own, files=env.files))
    here, wanted = {volume.volume_id for volume in volumes}, {expected.volume_id for expected in attempt}
    if not len(partial_volumes) == len(volumes) == len(attempt) or here != wanted:
        raise AlreadyExistsError(
            f"{partial_volumes[0].path}: {_WORK[mark]} on {len(attempt)} volumes was not finished; "
            "name all of them to finish it"
        )
    for volume, before in zip(volumes, partial_volumes, strict=True):
        assert volume.identity is not None
        path = volume.path / identity.FILE_NAME
        if before.identity is None and path.name in env.files.list_directory(volume.path):
            env.files.unlink(path)
        file = env.files.create(path) if before.identity is None else env.files.open(path, writable=True)
        with closing(file):
            if before.identity is None:
                file.write_at(0, volume.identity.encode())
            file.sync()
        env.files.sync_directory(volume.path)
        env.files.sync_directory(volume.path.parent)
    for volume in volumes:
        remove_mark(volume.path, mark, env)
    return volumes


def clear_creation(partial_volumes: Sequence[PartialVolume], env: Environment) -> None:
    """Take away what a creation wrote. Raises AlreadyExistsError if there is more than that, and touches nothing."""
    marked = [volume.path for volume in partial_volumes if volume.is_marked]
    for path in marked:
        _check_only_ours(path, env)
    for path in marked:
        _clear(path, env)


def _check_only_ours(path: Path, env: Environment) -> None:
    """Raise AlreadyExistsError if there is anything that no creation leaves."""
    files = env.files
    strange = set(files.list_directory(path)) - {
        locks.FILE_NAME, CREATING, log.DIRECTORY, STREAMS, identity.FILE_NAME, *probe.NAMES,
    }  # fmt: skip
    for name, known in ((log.DIRECTORY, {_FIRST_SEGMENT}), (STREAMS, set[str]())):
        if files.is_directory(path / name):
            strange.update(f"{name}/{entry}" for entry in set(files.list_directory(path / name)) - known)
    if strange:
        raise AlreadyExistsError(
            f"{path} is not empty: {', '.join(sorted(strange)[:5])}, beside a creation that was not finished"
        )


def _clear(path: Path, env: Environment) -> None:
    """Take away what the creation wrote, its mark last."""
    files, meta = env.files, path / log.DIRECTORY
    if identity.FILE_NAME in files.list_directory(path):  # torn
        files.unlink(path / identity.FILE_NAME)
    remove_files(meta, env)
    if files.is_directory(path / STREAMS):
        files.remove_directory(path / STREAMS)
    files.sync_directory(path)
    remove_mark(path, CREATING, env)


def remove_files(directory: Path, env: Environment) -> None:
    """Remove a directory with the files in it, if it is there."""
    if env.files.is_directory(directory):
        for name in env.files.list_directory(directory):
            env.files.unlink(directory / name)
        env.files.remove_directory(directory)
