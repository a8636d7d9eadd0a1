"""Creation of a volume: everything durable before its identity is written, so a volume is whole or is none."""

import logging
import os
import socket
from pathlib import Path

from storage_core.errors import AlreadyExistsError
from storage_core.metadata.commands import Envelope, Init, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings
from storage_core.raft.entry import CHAIN_START, HISTORY_SIZE, CommitRecord, Vote, make_entry
from storage_core.store import identity as volume_file
from storage_core.store import locks, log
from storage_core.store.environment import Environment
from storage_core.store.identity import VolumeIdentity
from storage_core.store.turn import translated

logger = logging.getLogger(__name__)


def create_volume(path: Path, settings: StoreSettings, env: Environment) -> VolumeIdentity:
    """Make `path` the only volume of a new store; the directory may be missing or empty.

    Raises AlreadyExistsError, StoreBusyError (another process makes one there), DiskFullError, ReadOnlyError,
    VolumeFailedError; ValueError if its parent is missing.
    """
    path = Path(os.path.realpath(path))  # the volume itself may be a link; below it none is followed
    with translated(path):
        _make_root(path, env)
        with locks.hold(env.files, path, 0.0):
            _check_empty(path, env)  # once more: another process may have been faster
            identity = VolumeIdentity(env.new_id(), env.new_id(), env.new_id(), env.now_ns())
            try:
                _fill(path, identity, settings, env)
            except OSError:
                _empty(path, env)
                raise
    return identity


def _fill(path: Path, identity: VolumeIdentity, settings: StoreSettings, env: Environment) -> None:
    env.files.make_directory(path / log.DIRECTORY)
    env.files.make_directory(path / "streams")
    _first_entry(path, identity, settings, env)
    env.files.sync_directory(path)  # whoever sees the identity finds all the rest
    file = env.files.create(path / volume_file.FILE_NAME)
    try:
        file.write_at(0, identity.encode())
        file.sync()
    finally:
        file.close()
    env.files.sync_directory(path)
    env.files.sync_directory(path.parent)


def _empty(path: Path, env: Environment) -> None:
    """Take back what was made, identity first, so that the next attempt finds the directory as this one did."""
    meta = path / log.DIRECTORY
    try:
        if volume_file.FILE_NAME in env.files.list_directory(path):
            env.files.unlink(path / volume_file.FILE_NAME)
        if env.files.is_directory(meta):
            for name in env.files.list_directory(meta):
                env.files.unlink(meta / name)
        for directory in (meta, path / "streams"):
            if env.files.is_directory(directory):
                env.files.remove_directory(directory)
    except OSError as error:
        logger.warning("%s: a store that could not be made is left there: %s", path, error)


def _make_root(path: Path, env: Environment) -> None:
    if env.files.is_directory(path):
        _check_empty(path, env)
        return
    if not env.files.is_directory(path.parent):
        raise ValueError(f"volumes: {path} cannot be made, {path.parent} is not a directory")
    try:
        env.files.make_directory(path)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists and is not a directory") from error


def _check_empty(path: Path, env: Environment) -> None:
    there = sorted(set(env.files.list_directory(path)) - {locks.FILE_NAME})
    if volume_file.FILE_NAME in there:
        raise AlreadyExistsError(f"{path} holds a jstream store already")
    if there:
        raise AlreadyExistsError(f"{path} is not empty: {', '.join(there[:5])}")


def _first_entry(path: Path, identity: VolumeIdentity, settings: StoreSettings, env: Environment) -> None:
    """Write the log's first segment, which makes this volume the only voter, and its commit record."""
    voter = Voter(identity.volume_id, identity.instance_id, ".")
    init = Init(identity.store_id, settings, (voter,), env.lock_domain(), socket.gethostname())
    payload = encode_envelope(Envelope(identity.created_ns, init))
    vote = Vote(1, env.new_id())
    entry = make_entry(CHAIN_START, 1, vote.term, env.random_bytes(HISTORY_SIZE), payload)
    volume_log = log.VolumeLog(env.files, path, identity)
    position = volume_log.start_segment((0, 0, CHAIN_START), None, [vote, entry])
    volume_log.write_commit_record(position.segment, CommitRecord(1, entry.term, entry.index, entry.chain))
