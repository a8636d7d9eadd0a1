"""Restoring: a store made of a backup, on new volumes, as many as are given.

It is the same store: same id, incarnations, sequences, histories, removed and lost messages, and writers with what they
have stored. Its volumes are new, and its log begins with the whole state. Everything is checked before anything is
made, and everything is durable before the first volume gets its identity:

    1  a mark on each volume, with the identities of all; directories; blocks; the log
    2  the identity of each volume
    3  the marks are taken away

Whoever restores onto the same directories again clears what was left by an attempt that ended in 1, and finishes one
that ended in 2 or 3. Source: docs/formats/volume.md, "Backups".
"""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata import events as event_history
from storage_core.metadata.commands import Event, Voter
from storage_core.metadata.manifest import ARCHIVE_DTYPE, PENDING_DELETE_DTYPE, Table
from storage_core.metadata.state import TRANSACTION_DTYPE, StoreState, Streams, StreamState
from storage_core.paths import Paths, is_in_object_store, real_place, resolve_paths
from storage_core.paths import check_apart as check_volumes_apart
from storage_core.quantities import rfc3339
from storage_core.store import lock_domain
from storage_core.store.ensemble import creation, interrupted_creation
from storage_core.store.ensemble.interrupted_creation import PartialVolume
from storage_core.store.ensemble.metadata_client import MetadataClient, translated
from storage_core.store.environment import REAL, Environment
from storage_core.store.ingest.backup import Backup, PathLike, check_apart, damage_of, describe, open_backup
from storage_core.store.ingest.progress import Progress, ProgressCounter
from storage_core.store.opened import LOCK_TIMEOUT_S, OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import live_blocks
from storage_core.store.volume import placement
from storage_core.store.volume.identity import RESTORING, STREAMS, VolumeIdentity
from storage_core.store.volume.volumes import Volume, recorded_paths

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """A store that was restored, and what there is to say about that."""

    metadata: MetadataClient
    report: dict[str, Any]


def restore_store(
    directory: PathLike, volumes: Paths, progress: Progress | None = None, env: Environment = REAL
) -> Restored:
    """Make a store of a backup on `volumes`: one, three or five directories that are missing or empty, or prefixes.

    `progress` gets (blocks done, blocks in all). Raises NotAStoreError (no backup), CorruptionError (a damaged one),
    UnsupportedVersionError, AlreadyExistsError (a volume that is not empty), DiskFullError and its like; then
    everything is as it was before.
    """
    paths = [real_place(path) for path in check_volumes_apart(resolve_paths(volumes))]
    is_remote = is_in_object_store(paths[0])
    backup = open_backup(directory, env)
    creation.check_count(paths)
    for path in () if is_remote else paths:
        check_apart(backup.directory, path)
    finished = None if is_remote else _finish_or_clear(paths, env)
    if finished is None:
        made = _make(paths, backup, progress, env)
    else:
        made = finished
    store = OpenStore(MetadataClient(env, made), env, False, LOCK_TIMEOUT_S)
    try:
        with store.session():  # whose maintenance writes the journals of placements
            pass
    except StorageError as error:
        logger.warning("%s: restored, but not written yet: %s", store.label, error)
    return Restored(store.metadata, _report(backup, store, finished is not None))


def _report(backup: Backup, store: OpenStore, finished: bool) -> dict[str, Any]:
    state = store.view().state
    streams = []
    for described in describe(backup)["streams"]:
        now = state.stream(described["name"])
        replicas = now.config.num_replicas if now is not None else 0
        streams.append({**described, "num_replicas": replicas, "num_replicas_before": described["num_replicas"]})
    volumes = [{"name": volume.name, "path": str(volume.path)} for volume in store.volumes()]
    return {**describe(backup), "streams": streams, "volumes": volumes, "finished": finished}


# --- checking


def check_files(backup: Backup, streams: Sequence[StreamState], progress: ProgressCounter, env: Environment) -> None:
    """Read every block of these streams to the last bit. Raises CorruptionError, which names the first that is bad."""
    for block, wrong in damage_of(backup, streams, env):
        progress.step()
        if wrong:
            first = wrong[0]
            raise CorruptionError(
                f"{first.file}: offset_bytes {first.offset_bytes}: {first.reason}; the backup is damaged (stream "
                f"{first.stream!r}, sequences {block.first} to {block.end - 1}), nothing was restored"
            )


# --- what an earlier attempt left


def _finish_or_clear(paths: Sequence[Path], env: Environment) -> list[Volume] | None:
    """Finish what was restored onto these directories but for their identities; else make sure that they are empty.

    Raises AlreadyExistsError.
    """
    with translated(", ".join(map(str, paths))):
        finished = interrupted_creation.resume(paths, RESTORING, _clear, env)
        if finished is None:
            _check_empty(paths, env)
        return finished


def _clear(begun: Sequence[PartialVolume], env: Environment) -> None:
    _check_empty([volume.path for volume in begun if not volume.is_marked], env)
    for volume in begun:
        if volume.is_marked:
            creation.empty(volume.path, env)


def _check_empty(paths: Sequence[Path], env: Environment) -> None:
    creation.check_outside(paths, env)
    for path in paths:
        if env.files.is_directory(path):
            creation.check_empty(path, env)


# --- making


def _make(paths: Sequence[Path], backup: Backup, progress: Progress | None, env: Environment) -> list[Volume]:
    """Check the backup, then make the volumes of it."""
    made_ns, store_id = env.now_ns(), backup.state.store_id
    identities = [VolumeIdentity(store_id, env.new_id(), env.new_id(), made_ns).among(path, paths) for path in paths]
    volumes = [
        Volume(identity.volume_id, path, identity, files=env.files)
        for identity, path in zip(identities, paths, strict=True)
    ]
    state = _state_on(volumes, backup, env)
    streams = list(backup.state.streams.values())
    copy_count = sum(len(stream.blocks) * len(stream.placement) for stream in state.streams.values())
    counter = ProgressCounter(progress, backup.block_count + copy_count)
    check_files(backup, streams, counter, env)
    content = _Content(backup, state, counter, env)
    first = creation.first_entry_of(state, env)
    if volumes[0].is_remote:
        creation.fill_prefixes(volumes, first, env, RESTORING, content.write)
    else:
        creation.fill(volumes, first, state.settings, env, content.write_with_marks)
    try:
        for volume in volumes:
            interrupted_creation.remove_mark(volume.path, RESTORING, env)
    except OSError as error:
        logger.warning("%s: the mark of the restore is left there, and means nothing: %s", error.filename, error)
    return volumes


@dataclass(frozen=True, slots=True)
class _Content:
    """What is on the volumes besides their logs and identities."""

    backup: Backup
    state: StoreState  # as restored
    progress: ProgressCounter
    env: Environment

    def write_with_marks(self, volumes: Sequence[Volume]) -> None:
        interrupted_creation.write_marks(volumes, RESTORING, self.env)
        self.write(volumes)

    def write(self, volumes: Sequence[Volume]) -> None:
        """Write it all, durably. Raises OSError, CorruptionError."""
        calls: list[Callable[[], None]] = [partial(self._write_one, volume) for volume in volumes]
        try:
            outcomes = self.env.parallel(calls)
        except BaseException:
            self.progress.is_stopped = True
            raise
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _write_one(self, volume: Volume) -> None:
        files, source = self.env.files, self.backup.blocks(self.env)
        files.make_directory(volume.path / STREAMS)
        streams = [stream for stream in self.state.streams.values() if volume.volume_id in stream.placement]
        volume.blocks.prepare(incarnation for stream in streams for incarnation in stream.incarnations)
        files.sync_directory(volume.path)
        for stream in streams:
            for block in live_blocks(self.backup.state, stream):
                if self.progress.is_stopped:
                    return
                made = copies.copy_block(block, [source], volume.blocks)
                wrong = copies.look(block, volume.blocks, stream) if made.written else []
                if wrong or not made.written:
                    reason = (
                        "; ".join([*(defect.reason for defect in wrong), *made.unread]) or "it is not whole any more"
                    )
                    raise CorruptionError(f"{block.path_in(source)} was changed meanwhile: {reason}")
                self.progress.step()


def _state_on(volumes: Sequence[Volume], backup: Backup, env: Environment) -> StoreState:
    """Return the state of a backup as that of a store on these volumes."""
    places, now_ns = recorded_paths(volumes), env.now_ns()
    voters = tuple(
        Voter(volume.volume_id, volume.identity.instance_id, places[volume.volume_id])
        for volume in volumes
        if volume.identity is not None
    )
    state = backup.state
    reason = f"from {backup.directory}, made at {rfc3339(backup.made_ns)} at index {backup.index}"
    event = Event("restored", after=f"{len(state.streams)} streams", reason=reason, time_ns=now_ns)
    old, kept = [voter.volume_id for voter in state.voters], dict.fromkeys((volume.volume_id for volume in volumes), 0)
    streams = {}
    for key, stream in state.streams.items():
        placed = _placement(stream, old, kept)
        rows = stream.blocks.rows.copy()
        rows["holders"] = (1 << len(placed)) - 1
        for volume_id in placed:
            kept[volume_id] += int(rows["file_size"].sum())
        config = msgspec.structs.replace(stream.config, num_replicas=len(placed))
        blocks, none = Table.of(rows), Table.of(rows[:0])  # a backup has no copies of what was lost
        streams[key] = replace(stream, config=config, placement=placed, blocks=blocks, lost_blocks=none)
    return replace(
        state,
        voters=voters,
        lock_domain=_lock_domain(volumes, env),
        host=socket.gethostname(),
        streams=Streams(streams),
        pending_deletes=Table.empty(PENDING_DELETE_DTYPE),
        replaced=Table.empty(PENDING_DELETE_DTYPE),
        archives=Table.empty(ARCHIVE_DTYPE),
        transactions=Table.of(np.empty(0, TRANSACTION_DTYPE)),
        transaction_floor_ns=max(now_ns, state.transaction_floor_ns),  # their blocks are not here
        volume_change=None,
        former=(),
        set_aside=(),
        events=event_history.with_events(state.events, (event,), now_ns),
    )


def _lock_domain(volumes: Sequence[Volume], env: Environment) -> str:
    """Return where locks on these volumes mean something: in object stores there are none."""
    if volumes[0].is_remote:
        return ""
    return lock_domain.of_volumes(env.lock_domain(), [volume.path for volume in volumes], env.file_system)


def _placement(stream: StreamState, old: Sequence[bytes], kept: Mapping[bytes, int]) -> tuple[bytes, ...]:
    """Return the volumes for a stream: those that stand where its old ones stood, then those that keep the least.

    `kept`: bytes by new volume, in their order.
    """
    new = list(kept)
    wanted = placement.possible_replicas(stream.config.num_replicas, len(new))
    same = [new[old.index(volume_id) % len(new)] for volume_id in stream.placement if volume_id in old]
    emptiest = sorted(new, key=lambda volume_id: kept[volume_id])
    chosen = list(dict.fromkeys([*same, *emptiest]))[:wanted]
    return tuple(volume_id for volume_id in new if volume_id in chosen)
