"""Creation of volumes: everything durable before the identity is written, so a volume is whole or is none."""

import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from storage_core.errors import AlreadyExistsError, NotAStoreError, RequirementError, StorageError, SupersededError
from storage_core.files import write_durably
from storage_core.metadata.commands import Envelope, Init, NoOp, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.state import StoreState, encode_state
from storage_core.paths import ObjectPath, is_in_object_store, real_place
from storage_core.raft.entry import HISTORY_SIZE, START, CommitRecord, Entry, Vote, make_entry
from storage_core.raft.snapshot_format import STATE_SIZE_MAX, SnapshotBody
from storage_core.store import lock_domain
from storage_core.store.ensemble import interrupted_creation
from storage_core.store.ensemble.metadata_client import MetadataClient, translated
from storage_core.store.environment import Environment
from storage_core.store.volume import identity as volume_file
from storage_core.store.volume import locks, log, object_probe, probe
from storage_core.store.volume.identity import CREATING, RESTORING, STREAMS, VolumeIdentity
from storage_core.store.volume.register import Register
from storage_core.store.volume.volumes import Volume, recorded_paths

logger = logging.getLogger(__name__)
Content = Callable[[Sequence[Volume]], None]


def create_volumes(paths: Sequence[Path], settings: StoreSettings, env: Environment) -> list[Volume]:
    """Make the directories the volumes of a new store; each may be missing, with what it lies in, or empty.

    What a creation left that was killed is finished, or taken away. Raises AlreadyExistsError, StoreBusyError (another
    process makes one there), DiskFullError, ReadOnlyError, VolumeFailedError; ValueError for a number of volumes that
    no store has, or if a parent is a file.
    """
    check_count(paths)
    paths = [real_place(path) for path in paths]  # a volume may be a link; below it none is followed
    if is_in_object_store(paths[0]):
        return _create_remote(paths, settings, env)
    check_outside(paths, env)
    finished = _finished_before(paths, settings, env)
    if finished is not None:
        return finished
    made, store_id, volumes, voters = _new_volumes(paths, env)
    with translated(", ".join(map(str, paths))):
        for path in paths:
            _make_parents(path, settings.is_shared, env)
    domain = lock_domain.of_volumes(env.lock_domain(), paths, env.file_system)
    first = _first_entry(Init(store_id, settings, voters, domain, socket.gethostname()), made, env)

    fill(volumes, first, settings, env, lambda made: interrupted_creation.write_marks(made, CREATING, env))
    with translated(", ".join(map(str, paths))):
        for path in paths:
            interrupted_creation.remove_mark(path, CREATING, env)
    return volumes


def _new_volumes(paths: Sequence[Path], env: Environment) -> tuple[int, bytes, list[Volume], tuple[Voter, ...]]:
    """Return what a new store at these paths is known by: when it was made, its id, its volumes and its voters."""
    made = env.now_ns()
    store_id = env.new_id()
    identities = [VolumeIdentity(store_id, env.new_id(), env.new_id(), made).among(path, paths) for path in paths]
    volumes = [
        Volume(identity.volume_id, path, identity, files=env.files)
        for identity, path in zip(identities, paths, strict=True)
    ]
    places = recorded_paths(volumes)
    voters = tuple(
        Voter(identity.volume_id, identity.instance_id, places[identity.volume_id]) for identity in identities
    )
    return made, store_id, volumes, voters


def _create_remote(paths: Sequence[Path], settings: StoreSettings, env: Environment) -> list[Volume]:
    """Make prefixes in object stores the volumes of a new store: each of them is empty."""
    made, store_id, volumes, voters = _new_volumes(paths, env)
    first = _first_entry(Init(store_id, settings, voters, "", socket.gethostname()), made, env)
    fill_prefixes(volumes, first, env)
    return volumes


def fill_prefixes(
    volumes: Sequence[Volume], first: "FirstEntry", env: Environment, mark: str = "", content: Content | None = None
) -> None:
    """Make empty prefixes in object stores the volumes of a store; if it fails, what was put there is taken away.

    `content` puts what else is on them, and that of one attempt cannot be told from that of another one. So `mark` is
    created first, which one succeeds in, and goes last. Of several that make a store at once one wins, who creates the
    identity of the last volume.
    """
    paths = [volume.path for volume in volumes]
    with translated(", ".join(map(str, paths))):
        for path in paths:
            _check_free(path, env)
        object_probe.check_each(paths, env)
        object_probe.check_distinct(paths, env)
        ordered = sorted(volumes, key=lambda volume: str(volume.path))
        begun: list[Volume] = []  # what lies there but for identities is this attempt's
        try:
            for volume in ordered if mark else ():
                interrupted_creation.write_mark(volume, volumes, mark, env)
                begun.append(volume)
            if content is not None:
                content(volumes)
            for volume in ordered:
                if not mark:
                    begun.append(volume)
                first.begin(volume.log)
            for volume in reversed(ordered):  # whoever sees an identity finds all the rest
                _claim(volume, env)
        except Exception as error:
            for volume in begun:
                _take_back(volume, mark, env)
            if isinstance(error, (FileExistsError, SupersededError)):
                raise AlreadyExistsError(f"{paths[0]}: another process makes a store there") from error
            raise


def _check_free(path: Path, env: Environment) -> None:
    """Raise AlreadyExistsError unless nothing lies at a prefix, NotAStoreError if there is no such bucket."""
    names = listed(path, env)
    if volume_file.FILE_NAME in names:
        raise AlreadyExistsError(f"{path} holds a jstream store already")
    if RESTORING in names:
        raise AlreadyExistsError(
            f"{path}: a backup is being restored there, or a restore was interrupted: if none runs, remove everything "
            "below it and restore again"
        )
    if names:
        raise AlreadyExistsError(f"{path} is not empty: {', '.join(names[:5])}")


def _claim(volume: Volume, env: Environment) -> None:
    """Create the identity of a volume. Raises FileExistsError if it is another one's."""
    try:
        write_identity(volume, env)
    except FileExistsError:  # or it was put twice on the way
        if volume_file.read_identity(env.files, volume.path) != volume.identity:
            raise


def _take_back(volume: Volume, mark: str, env: Environment) -> None:
    """Take away what this attempt put at a prefix: its identity first, and nothing of another one's."""
    files, path = env.files, volume.path
    assert volume.identity is not None
    try:
        with suppress(StorageError):
            if volume_file.read_identity(files, path) == volume.identity:
                files.unlink(path / volume_file.FILE_NAME)
        for name in files.list_directory(path / log.DIRECTORY):
            if name.startswith(volume.identity.instance_id.hex()):
                files.unlink(path / log.DIRECTORY / name)
        if mark:
            for name in files.list_directory(path / STREAMS):
                interrupted_creation.remove_files(path / STREAMS / name, env)
            files.unlink(path / mark)
    except OSError as error:
        logger.warning("%s: what was put there could not be taken away: %s", path, error)


def listed(path: Path, env: Environment) -> list[str]:
    """Return what lies at a prefix. Raises NotAStoreError if there is no such bucket: one is never made."""
    try:
        names = sorted(env.files.list_directory(path))
        # Some servers list folders in which nothing is any more.
        return names if not names or env.files.is_directory(path) else []
    except FileNotFoundError as error:
        bucket = path.bucket if isinstance(path, ObjectPath) else path
        raise NotAStoreError(
            f"{path}: there is no bucket {bucket}. Make it first, or check its name, the region and the endpoint"
        ) from error


def _finished_before(paths: Sequence[Path], settings: StoreSettings, env: Environment) -> list[Volume] | None:
    """Return the volumes of this very store if an earlier attempt made them but was killed before it said so."""
    with translated(", ".join(map(str, paths))):
        finished = interrupted_creation.resume(paths, CREATING, interrupted_creation.clear_creation, env)
    if finished is None:
        return None
    state = MetadataClient(env, finished).view(0.0).state
    if state.settings != settings or state.streams:
        raise AlreadyExistsError(f"{paths[0]} holds a jstream store already")
    return finished


def check_count(paths: Sequence[Path]) -> None:
    """Raise ValueError for a number of volumes that no store has."""
    if len(paths) not in (1, 3, 5):
        why = ": an even number survives no more losses than one less" if len(paths) % 2 == 0 else ""
        raise ValueError(
            f"volumes: {len(paths)} were given ({', '.join(map(str, paths))}); a store has 1, 3 or 5 of them{why}"
        )


def fill(
    made: Sequence[Volume],
    first: "FirstEntry",
    settings: StoreSettings,
    env: Environment,
    content: Content | None = None,
) -> None:
    """Make the volumes, whole: their directories may be missing or empty, and are left so if it fails.

    `content` is called in between, with their locks held: what it writes is durable when it returns, and all in files
    that `empty` takes away.
    """
    with translated(", ".join(str(volume.path) for volume in made)):
        for volume in made:
            _make_root(volume.path, env)
            env.files.share_directory(volume.path, settings.is_shared)
        by_id = sorted(made, key=lambda volume: volume.volume_id)
        with locks.hold(env.files, [volume.path for volume in by_id], len(made), 0.0):
            for volume in made:
                check_empty(volume.path, env)  # once more: another process may have been faster
                probe.check(volume.path, env)
            try:
                if content is not None:
                    content(made)
                for volume in made:
                    write_metadata(volume, first, env)
                for volume in made:  # whoever sees an identity finds all the rest
                    write_identity(volume, env)
            except Exception:  # an interrupt leaves it to the mark: threads may be writing still
                for volume in made:
                    empty(volume.path, env)
                raise


def write_metadata(volume: Volume, first: "FirstEntry", env: Environment, directory: str = log.DIRECTORY) -> None:
    """Write the log of a volume that begins like this, and make it durable; the identity is to follow."""
    assert volume.identity is not None
    env.files.make_directory(volume.path / directory)
    env.files.make_directory(volume.path / STREAMS)
    volume_log = log.VolumeLog(env.files, volume.path, volume.identity)
    volume_log.directory = volume.path / directory
    first.begin(volume_log)
    env.files.sync_directory(volume.path)


def write_identity(volume: Volume, env: Environment) -> None:
    """Write the identity of a volume whose other files are durable, and make it so itself."""
    assert volume.identity is not None
    write_durably(env.files, volume.path / volume_file.FILE_NAME, volume.identity.encode())
    env.files.sync_directory(volume.path.parent)


def rename_places(volume: Volume, places: Sequence[Path], env: Environment) -> None:
    """Let the identity of a volume say where all volumes of its store are now. Raises OSError."""
    assert volume.identity is not None
    identity = volume.identity.among(volume.path, places)
    if identity != volume.identity:
        write_durably(env.files, volume.path / volume_file.FILE_NAME, identity.encode(), replaces=True)


def empty(path: Path, env: Environment) -> None:
    """Take back what was made, identity first, so that the next attempt finds the directory as this one did."""
    try:
        if volume_file.FILE_NAME in env.files.list_directory(path):
            env.files.unlink(path / volume_file.FILE_NAME)
        interrupted_creation.remove_files(path / log.DIRECTORY, env)
        if env.files.is_directory(path / STREAMS):
            for name in env.files.list_directory(path / STREAMS):
                interrupted_creation.remove_files(path / STREAMS / name, env)
            env.files.remove_directory(path / STREAMS)
        for mark in {RESTORING, CREATING}.intersection(env.files.list_directory(path)):
            env.files.sync_directory(path)  # the mark is the last to go
            env.files.unlink(path / mark)
    except OSError as error:
        logger.warning("%s: a store that could not be made is left there: %s", path, error)


def _make_parents(path: Path, is_shared: bool, env: Environment) -> None:
    """Make the directories that a volume lies in, durably. A store that is repaired or restored asks for them to be
    there: a missing one is then rather a disk that is not mounted.
    """
    missing = list(itertools.takewhile(lambda parent: not env.files.is_directory(parent), path.parents))
    for parent in reversed(missing):
        try:
            env.files.make_directory(parent)
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(f"volumes: {path} cannot be made, {parent} is not a directory") from error
        env.files.share_directory(parent, is_shared)
        env.files.sync_directory(parent.parent)


def _make_root(path: Path, env: Environment) -> None:
    if env.files.is_directory(path):
        check_empty(path, env)
        return
    if not env.files.is_directory(path.parent):
        raise ValueError(f"volumes: {path} cannot be made, {path.parent} is not a directory")
    try:
        env.files.make_directory(path)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists and is not a directory") from error


def is_free(path: Path, env: Environment) -> bool:
    """Return whether a volume can be made there: nothing is, or what a creation left that did not get to its end.

    Or, in an object store, what one has put there that may be under way.
    """
    is_remote = is_in_object_store(path)
    try:
        names = set(listed(path, env) if is_remote else env.files.list_directory(path))
    except (FileNotFoundError, NotAStoreError):
        return True
    except OSError:
        return False
    if is_remote:
        return all(name == log.DIRECTORY or name.startswith(object_probe.NAME_PREFIX) for name in names)
    return CREATING in names or not names - {locks.FILE_NAME, *probe.NAMES}


def check_outside(paths: Sequence[Path], env: Environment) -> None:
    """Raise AlreadyExistsError if a directory lies within a volume of a store, and would be lost with it."""
    for path in paths:
        for parent in real_place(path).parents:
            try:
                env.files.file_size(parent / volume_file.FILE_NAME)
            except OSError:
                continue
            raise AlreadyExistsError(f"{path} lies within {parent}, a volume of a store: take one outside of it")


def check_empty(path: Path, env: Environment) -> None:
    """Raise AlreadyExistsError unless there is nothing in the directory but its lock."""
    names = sorted(set(env.files.list_directory(path)) - {locks.FILE_NAME, *probe.NAMES})
    if volume_file.FILE_NAME in names:
        raise AlreadyExistsError(f"{path} holds a jstream store already")
    if RESTORING in names:
        raise AlreadyExistsError(f"{path} holds a restore that was not finished: restore onto the same volumes again")
    if CREATING in names:
        raise AlreadyExistsError(f"{path}: a store is being made there, or that was interrupted: create it again")
    if names:
        raise AlreadyExistsError(f"{path} is not empty: {', '.join(names[:5])}")


@dataclass(frozen=True, slots=True)
class FirstEntry:
    """How the log of every volume of a store begins."""

    vote: Vote
    entry: Entry
    body: SnapshotBody | None = None  # with a snapshot that takes the place of the entry, since a state may be large

    def begin(self, register: Register) -> None:
        """Write the beginning of a volume's log."""
        entry = self.entry
        commit = CommitRecord(1, entry.term, entry.index, entry.chain)
        if self.body is None:
            position = register.begin([self.vote, entry], None)
        else:
            position = register.begin([self.vote], (entry.id, entry.history, self.body), commit)
        register.write_commit_record(position, commit)


def _first_entry(command: Init | NoOp, time_ns: int, env: Environment) -> FirstEntry:
    """Return the first vote and entry of a new log."""
    vote = Vote(1, env.new_id())
    payload = encode_envelope(Envelope(time_ns, command))
    return FirstEntry(vote, make_entry(START.chain, 1, vote.term, env.random_bytes(HISTORY_SIZE), payload))


def first_entry_of(state: StoreState, env: Environment) -> FirstEntry:
    """Return the beginning of a log that starts with a whole state: of a store that is rebuilt or restored.

    Raises RequirementError for a state that no snapshot takes.
    """
    encoded = encode_state(state)
    if len(encoded) > STATE_SIZE_MAX:
        raise RequirementError(f"the metadata has {len(encoded)} bytes, a snapshot takes {STATE_SIZE_MAX}")
    first = _first_entry(NoOp(), env.now_ns(), env)
    durable = {voter.volume_id: first.entry.index for voter in state.voters}
    body = SnapshotBody(msgspec.Raw(encoded), first.vote.term, first.vote.candidate, durable, first.entry.chain)
    return FirstEntry(first.vote, first.entry, body)
