"""Rejoin: a volume that does not take part any more gets its metadata anew, from the log that the others lead with.

It is one that is blank, missing, retired after a failed I/O, has a damaged identity, is another instance than the
recorded one, or has a log that is damaged beyond what a session recovers. What it holds is proven by nothing but its
bytes: blocks stay where they are, and count again as each is read and found whole.

    identity unlinked      from here on the directory is no volume, whatever happens
    metadata files         the old ones go; a snapshot of the committed state and a segment behind it, read back
    identity               of a new instance; of no consequence yet
    entry                  on the volumes that take part: from here on it counts again

Ended anywhere before the entry it counts for nothing, and the next attempt begins anew. All of it happens in a session,
under the lock of the volume's own directory.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from storage_core.errors import CorruptionError, RequirementError, StorageError, VolumeFailedError
from storage_core.metadata.commands import ChangeVolumes, Event, FormerVolume, SetAside, Voter
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.state import StoreState, encode_state
from storage_core.os_errors import of_volume, raise_if_of_process
from storage_core.raft.entry import EntryId
from storage_core.raft.snapshot_format import SnapshotBody, trail_chain
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble import creation
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.recovery import foreign
from storage_core.store.volume import identity, locks, log, losses, placement_journal, probe, reports, reserve, volumes
from storage_core.store.volume.identity import OWNERS, STREAMS, VolumeIdentity
from storage_core.store.volume.index import FILE_NAME as INDEX_NAME
from storage_core.store.volume.log_contents import LogPosition
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
NEW_METADATA = f"{log.DIRECTORY}.new"  # where an adoption writes it, until all of it is whole
_OURS = (
    NEW_METADATA,
    identity.FILE_NAME, identity.CREATING, locks.FILE_NAME, log.DIRECTORY, STREAMS, OWNERS, reports.DIRECTORY,
    INDEX_NAME, placement_journal.FILE_NAME, placement_journal.NEW_FILE_NAME, reserve.FILE_NAME, "lost+found",
    *probe.NAMES,
)  # fmt: skip
SET_ASIDE_PREFIX = f"{log.DIRECTORY}-"
FOREIGN_NAME = "foreign"  # file in a directory of files that were set aside: they are of another copy of the store


@dataclass(frozen=True, slots=True)
class VolumeToRejoin:
    """A volume that does not take part."""

    volume: Volume
    state: VolumeState
    reason: str

    @property
    def has_identity(self) -> bool:
        """Return whether it is known to be this volume: then its metadata may be made anew without being asked for."""
        return self.volume.identity is not None

    def is_only_busy(self, session: Session) -> bool:
        """Return whether nothing is wrong with it: another process had just locked it when this session began."""
        is_sound = self.has_identity and self.state in (VolumeState.CURRENT, VolumeState.BEHIND)
        return is_sound and self.volume.path in session.busy


def absent(session: Session) -> list[VolumeToRejoin]:
    """Return the volumes of the store that do not take part in this session, in the order of its voters."""
    at_hand = {volume.volume_id: volume for volume in session.volumes}
    taking_part = {volume.volume_id for volume in session.writable}
    result = []
    for voter in session.state.voters:
        if voter.volume_id in taking_part:
            continue
        volume, status = at_hand[voter.volume_id], session.status(voter.volume_id)
        if (
            voter.retired and status.state != VolumeState.FOREIGN and (volume.identity is not None or volume.is_blank)
        ):  # blank: an attempt to rejoin came no further
            result.append(VolumeToRejoin(volume, VolumeState.RETIRED, voter.retired))
        elif volume.identity is None:
            reason = f"{volume.path} holds no volume" if volume.is_blank else volume.reason
            result.append(VolumeToRejoin(volume, volume.state, reason))
        elif volume.identity.instance_id != voter.instance_id:  # also where this process has not read its log
            ours, theirs = voter.instance_id.hex()[:8], volume.identity.instance_id.hex()[:8]
            reason = f"{volume.path} is instance {theirs} of the volume, not {ours}"
            result.append(VolumeToRejoin(volume, VolumeState.FOREIGN, reason))
        else:
            result.append(VolumeToRejoin(volume, status.state, status.reason))
    return result


def make_directory(absent_volume: VolumeToRejoin, settings: StoreSettings, env: Environment) -> None:
    """Make the directory of a volume that is gone, so that the next session can lock it.

    Raises RequirementError if what it should lie in is gone as well: that looks like a disk that is not mounted;
    ProcessError, VolumeFailedError.
    """
    path = absent_volume.volume.path
    try:
        if not env.files.is_directory(path.parent):
            raise RequirementError(
                f"{path} is gone, and so is {path.parent}: {losses.bring_back(path)}, or give the "
                "volume another place with `jstream cluster volume replace`"
            )
        env.files.make_directory(path)
        env.files.share_directory(path, settings.is_shared)
        env.files.sync_directory(path.parent)
    except OSError as error:
        raise_if_of_process(error)
        raise VolumeFailedError(f"{path} cannot be made: {error}") from error


def rejoin(session: Session, absent_volume: VolumeToRejoin, env: Environment) -> Volume:
    """Make the volume's metadata anew and let it take part from here on; return it as it is then.

    Raises RequirementError if it must not be touched, or is used by another process, VolumeFailedError if it failed
    again, DiskFullError and what else a session raises.
    """
    volume = absent_volume.volume
    _check(session, absent_volume, env)
    probe.check(volume.path, env)
    made = Volume(
        volume.volume_id,
        volume.path,
        VolumeIdentity(session.state.store_id, volume.volume_id, env.new_id(), env.now_ns()).among(
            volume.path, [other.path for other in session.volumes]
        ),
        files=env.files,
    )
    is_other_copy = _is_of_another_copy(session, absent_volume)
    more = foreign.messages_of(session.state, volume) if is_other_copy else []
    waits_for = _former(session, volume)
    try:
        position, aside = prepare(session, made, env, set_aside=is_other_copy)
    except OSError as error:
        raise_if_of_process(error)
        raise of_volume(error, f"{volume.path} could not be rebuilt: {error}") from error
    voter = session.state.voter(volume.volume_id)
    events: tuple[Event, ...] = ()
    if voter is not None and not voter.learner:  # of a learner the end of the change will tell
        reason = (
            f"it was {absent_volume.state}: {absent_volume.reason}" if absent_volume.reason else absent_volume.state
        )
        events = (Event("rejoined", "", "", volume.name, absent_volume.state, VolumeState.CURRENT, reason),)
    set_aside = tuple(msgspec.structs.replace(messages, directory=aside) for messages in more)
    events += tuple(_lost(messages, volume) for messages in set_aside)
    voters = _with_instance(session.state, made, session.volumes)
    command = ChangeVolumes(voters, session.state.volume_change, events, waits_for, set_aside)
    session.admit(made, position, command)
    return made


def _former(session: Session, volume: Volume) -> tuple[FormerVolume, ...]:
    """Return the disks that may come back when this one takes part from here on.

    Its former instance is another disk if the directory lacks blocks that it had: an empty directory is where a disk
    may not be mounted. One that comes back with all that it may have had is not waited for any more.
    """
    state, voter = session.state, session.state.voter(volume.volume_id)
    instance_id = volume.identity.instance_id if volume.identity is not None else b""
    disks = state.former
    if voter is None or instance_id != voter.instance_id:  # else it has taken part, and got blocks from the others
        disks = tuple(
            disk
            for disk in disks
            if disk.instance_id != instance_id or losses.lacks_blocks(state, volume, disk.gone_ns)
        )
    if voter is None or voter.learner or not losses.lacks_blocks(state, volume):
        return disks
    return losses.with_former(disks, state, volume.volume_id, str(volume.path))


def _lost(messages: SetAside, volume: Volume) -> Event:
    sequences = SequenceSet.decode(messages.sequences)
    after = f"{len(sequences)} messages: {losses.ranges_text(sequences)}"
    reason = (
        f"another copy of the store had them; its log is in {messages.directory}, their blocks are kept for `jstream "
        "export --set-aside` until `jstream repair --discard-lost`"
    )
    return Event("lost", messages.stream, volume=volume.name, after=after, reason=reason)


def _is_of_another_copy(session: Session, absent_volume: VolumeToRejoin) -> bool:
    """Return whether what the volume records as committed is not on the log of this session, whatever it was taken
    for."""
    try:
        commit = absent_volume.volume.log.read_mark().commit
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return False
    if commit is None:
        return False
    chain = trail_chain(session.view.trail, session.view.index, commit.index)
    if chain is None:
        return commit.index > session.view.index or absent_volume.state == VolumeState.FOREIGN
    return chain != commit.chain


def _check(session: Session, absent_volume: VolumeToRejoin, env: Environment) -> None:
    """Raise RequirementError for a directory that is somebody else's, or that cannot be told to be this volume's."""
    volume, path = absent_volume.volume, absent_volume.volume.path
    if volume.state is VolumeState.FOREIGN:
        raise RequirementError(
            f"{absent_volume.reason}: it is left alone. Put the right disk there, or give volume {volume.name} another "
            f"place with `jstream cluster volume replace {volume.name} PATH`"
        )
    if path not in session.locked:
        raise RequirementError(f"{path} is used by another process, or could not be locked; repair it again later")
    try:
        names = set(env.files.list_directory(path))
    except OSError as error:
        raise_if_of_process(error)
        raise of_volume(error, f"{path} cannot be read: {error}") from error
    strange = sorted(name for name in names.difference(_OURS) if not name.startswith(SET_ASIDE_PREFIX))
    if volume.identity is None and strange:
        raise RequirementError(
            f"{path} holds things that are no part of a volume ({', '.join(strange[:5])}): it is left alone; if it is "
            f"not that of the volume, {losses.bring_back(path)}"
        )


def prepare(session: Session, made: Volume, env: Environment, set_aside: bool = False) -> tuple[LogPosition, str]:
    """Write all metadata files of a volume, its identity last; return where its log goes on, and where old files are.

    `set_aside`: the old files hold a history of their own, and are kept, the journal of placements with them. Raises
    OSError, CorruptionError.
    """
    assert made.identity is not None
    files, path, leadership = env.files, made.path, session.ensure_leadership()
    view = session.view
    meta = path / log.DIRECTORY
    aside = None
    if set_aside:  # while it is still known for what it is
        aside = put_aside(path, env, also=(placement_journal.FILE_NAME,), mark=FOREIGN_NAME)
    _remove_identity(path, env)
    files.share_directory(path, view.state.settings.is_shared)
    for directory in (meta, path / STREAMS):
        files.make_directory(directory)
    if not set_aside:
        for name in files.list_directory(meta):
            files.unlink(meta / name)
        files.sync_directory(meta)
    prepare_streams(session.state, made)
    volume_log = made.log
    tip = EntryId(view.index, view.term, view.chain)
    durable = {**view.durable, made.volume_id: view.index}
    vote = leadership.vote
    body = SnapshotBody(msgspec.Raw(encode_state(view.state)), vote.term, vote.candidate, durable, view.trail)
    commit = view.commit if view.commit is not None and view.commit.index == view.index else None
    position = volume_log.begin([vote], (tip, leadership.history, body), commit)
    contents = volume_log.read()
    if contents.tip != tip or contents.damage or contents.bad is not None or contents.position != position:
        raise CorruptionError(f"{meta} does not read as it was just written: {contents.damage or contents.bad}")
    files.sync_directory(path)
    creation.write_identity(made, env)
    return position, aside.name if aside is not None else ""


def _remove_identity(path: Path, env: Environment) -> None:
    """Unlink the identity, durably: while the metadata is made anew there is no volume."""
    if identity.FILE_NAME in env.files.list_directory(path):
        env.files.unlink(path / identity.FILE_NAME)
        env.files.sync_directory(path)


def put_aside(path: Path, env: Environment, also: Sequence[str] = (), mark: str = "") -> Path | None:
    """Move the metadata files of a volume into a directory of their own beside; return it, None if there are none.

    `also`: names of files of the volume that go with them, if they are there. `mark`: of a file that says why.
    """
    files, meta = env.files, path / log.DIRECTORY
    present = set(files.list_directory(path))
    names = sorted(files.list_directory(meta)) if log.DIRECTORY in present else []
    more = [name for name in also if name in present]
    if not names and not more:
        return None
    number = next(number for number in range(1, len(present) + 2) if f"{SET_ASIDE_PREFIX}{number}" not in present)
    aside = path / f"{SET_ASIDE_PREFIX}{number}"
    files.make_directory(aside)
    if mark:
        files.create(aside / mark).close()
    for name in more:
        files.replace(path / name, aside / name)
    for directory in (aside, path):  # a journal of another copy must not outlive the metadata that says so
        files.sync_directory(directory)
    for name in names:
        files.replace(meta / name, aside / name)
    for directory in (aside, meta, path) if names else (aside, path):
        files.sync_directory(directory)
    return aside


def prepare_streams(state: StoreState, volume: Volume) -> None:
    """Make it possible that the volume gets blocks of all streams that keep some there. Raises OSError."""
    streams = [stream for stream in state.streams.values() if volume.volume_id in stream.placement]
    volume.blocks.prepare(incarnation for stream in streams for incarnation in stream.incarnations)


def _with_instance(state: StoreState, made: Volume, at_hand: Sequence[Volume]) -> tuple[Voter, ...]:
    """Return the voters with the new instance of one of them, and with where they all are now."""
    assert made.identity is not None
    places = volumes.recorded_paths(at_hand)
    voters = []
    for voter in state.voters:
        voter = msgspec.structs.replace(voter, path=places[voter.volume_id])
        if voter.volume_id == made.volume_id:
            voter = msgspec.structs.replace(voter, instance_id=made.identity.instance_id, retired="")
        voters.append(voter)
    return tuple(voters)


def describe(absent_volume: VolumeToRejoin, outcome: Volume | StorageError) -> dict[str, object]:
    """Return what became of a volume, as JSON has it."""
    done = isinstance(outcome, Volume)
    return {
        "volume": absent_volume.volume.name,
        "path": str(absent_volume.volume.path),
        "before": absent_volume.state,
        "after": VolumeState.CURRENT if done else absent_volume.state,
        "reason": absent_volume.reason if done else str(outcome),
        "repaired": done,
    }
