"""Membership: volumes added, removed and replaced, one step at a time, each of which may be the last before a kill.

    recorded     an entry says what is to be done; new volumes are learners from here on, and an even number of voters
                 is allowed while it stands
    joined       the learners get their metadata as a volume that rejoins does (rejoin.py)
    promoted     one by one, each when its log is in step
    moved        streams get their new placement, each in the entry after which all copies that can be made are there
    removed      one by one; the last step of all takes the record away and says what was done

What has been done shows in the state, so whoever comes next goes on from there: the same command, `repair`, `maintain`.
A removed volume keeps its files. Its identity is that of no volume of the store any more, so it is passed over.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from storage_core.errors import (
    AlreadyExistsError,
    OutcomeUnknownError,
    RequirementError,
    StorageError,
    VolumeFailedError,
)
from storage_core.metadata.commands import (
    ChangePlacement,
    ChangeVolumes,
    Command,
    Event,
    FormerVolume,
    NoOp,
    RecordHolders,
    VolumeChange,
    Voter,
    ids_of_voters,
)
from storage_core.metadata.state import StoreState, StreamState
from storage_core.paths import is_in_object_store, real_place
from storage_core.raft.rules import Step, StepKind, next_step
from storage_core.store.ensemble import creation
from storage_core.store.ensemble.metadata_client import MetadataClient, translated
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.recovery import rejoin
from storage_core.store.replicas.copies import copy_block, look
from storage_core.store.replicas.live_blocks import LiveBlock, live_blocks
from storage_core.store.replicas.repair_tasks import HELD_PER_ENTRY_MAX
from storage_core.store.volume import identity, locks, losses, object_probe, placement, probe
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume, recorded_paths

logger = logging.getLogger(__name__)
VOLUME_COUNT_MAX = 5
COPIED_PER_SESSION_MAX = 64 << 20  # bytes of blocks that are looked at or copied before others get their turn
ADD, REMOVE, REPLACE = "add", "remove", "replace"
_EVENTS = {ADD: "volume_added", REMOVE: "volume_removed", REPLACE: "volume_replaced"}


class Membership:
    """Changes of the volumes of one store, and of one of its streams."""

    def __init__(self, metadata: MetadataClient, env: Environment, lock_timeout_s: float) -> None:
        self._metadata, self._env, self._lock_timeout_s = metadata, env, lock_timeout_s

    # --- what is asked for

    def add(self, paths: Sequence[Path]) -> None:
        """Add volumes at these paths, two or four: their number stays odd. Streams keep their replicas where they are.

        Raises ValueError (number of volumes, one of the store's own), AlreadyExistsError (a directory with something in
        it), RequirementError (another change is under way, a volume takes no part), and what a session raises.
        """
        state = self._state()
        if self._is_under_way(state, ADD, paths=paths):
            self.resume()
            return
        voters = ids_of_voters(state.voters)
        if len(paths) % 2:
            raise ValueError(
                f"volumes: {len(paths)} of them would make {len(voters) + len(paths)}; a store has 1, 3 or 5, so add "
                "two at a time"
            )
        if len(voters) + len(paths) > VOLUME_COUNT_MAX:
            raise ValueError(
                f"volumes: {len(voters) + len(paths)} are too many; a store has {VOLUME_COUNT_MAX} at most"
            )
        self._record(ADD, paths, ())
        self.resume()

    def remove(self, names: Sequence[str]) -> None:
        """Remove volumes, two or four; what streams keep there is moved to others first.

        A change that adds or replaces is taken back if the volumes it would add are named before they vote. Raises
        ValueError (unknown name, number of volumes), RequirementError (a stream has more replicas than volumes would be
        left, another change is under way), and what a session raises.
        """
        state = self._state()
        removed = tuple(_volume_id(state, name) for name in names)
        if len(set(removed)) < len(removed):
            raise ValueError(f"volumes: one is named twice: {', '.join(names)}")
        if self._take_back(state, removed) or self._is_under_way(state, REMOVE, removed=removed):
            self.resume()
            return
        count = len(ids_of_voters(state.voters))
        left = count - len(removed)
        if len(removed) % 2 or not removed or left < 1:
            raise ValueError(
                f"volumes: without {len(removed)} of {count} the store would have {left}; it has 1, 3 or "
                "5: remove two at a time, or replace one"
            )
        for stream in state.streams.values():
            if len(stream.placement) > left:
                raise RequirementError(
                    f"stream {stream.name!r} has num_replicas {len(stream.placement)}, and {left} volumes would be "
                    "left; give it fewer replicas first"
                )
        self._record(REMOVE, (), removed)
        self.resume()

    def replace(self, name: str, path: Path) -> None:
        """Put a new volume at `path` in the place of another one, which may be lost.

        Raises ValueError (unknown name, a path of the store's own), AlreadyExistsError, RequirementError.
        """
        state = self._state()
        removed = (_volume_id(state, name),)
        if self._is_under_way(state, REPLACE, paths=[path], removed=removed):
            self.resume()
            return
        self._record(REPLACE, [path], removed)
        self.resume()

    def change_replicas(self, incarnation: bytes, count: int, edit: Callable[[Session], None]) -> None:
        """Keep a stream on this many volumes from now on: copies are made before they are counted.

        `edit` proposes what else is changed, in the round that counts them; what it raises is raised before any copy is
        made. Raises ValueError if the store has fewer volumes, or for an even number; StaleIncarnationError.
        """

        def placed(state: StoreState, stream: StreamState) -> tuple[bytes, ...]:
            voters = ids_of_voters(state.voters)
            if count % 2 == 0 or not 0 < count <= len(voters):
                raise ValueError(
                    f"num_replicas: {count} replicas need as many volumes, an odd number; the store has {len(voters)}"
                )
            usable = {volume.volume_id for volume in self._metadata.volumes() if placement.is_recorded(state, volume)}
            best = sorted(stream.placement, key=lambda volume_id: volume_id not in usable)[:count]  # a stable sort
            kept = [volume_id for volume_id in stream.placement if volume_id in best]
            others = [voter for voter in voters if voter not in kept]
            spare = sorted(others, key=lambda volume_id: volume_id not in usable)
            return (*kept, *spare[: count - len(kept)])

        Move(self._metadata, self._env, self._lock_timeout_s, incarnation, edit).run(placed)

    def step_down(self) -> None:
        """Give up the term, and open a new one at once: whoever led before has to look at everything anew."""
        with self._metadata.session(self._lock_timeout_s) as session:
            self._metadata.cache.forget()
            session.propose(NoOp())

    # --- the record

    def _state(self) -> StoreState:
        return self._metadata.view(self._lock_timeout_s).state

    def _is_under_way(
        self, state: StoreState, kind: str, paths: Sequence[Path] = (), removed: tuple[bytes, ...] = ()
    ) -> bool:
        """Return whether this very change is recorded; raises RequirementError if it is another one."""
        change = state.volume_change
        if change is None:
            return False
        at = {volume.volume_id: str(real_place(volume.path)) for volume in self._metadata.volumes()}
        added = {at.get(volume_id) for volume_id in change.added}
        if (change.kind, change.removed, added) == (kind, removed, {str(real_place(path)) for path in paths}):
            return True
        raise RequirementError(
            f"a change of the store's volumes is under way ({_description(change, at)}); `jstream repair` brings it to "
            "its end; to take it back, remove the volumes that it adds"
        )

    def _record(self, kind: str, paths: Sequence[Path], removed: tuple[bytes, ...]) -> None:
        """Make the directories of new volumes, and write down what is to be done; if that is refused, neither."""
        paths = [real_place(path) for path in paths]
        for path in paths:
            self._check(path)
        new = [path for path in paths if not is_in_object_store(path) and not self._env.files.is_directory(path)]
        try:
            self._make_directories(paths)
            self._propose(kind, paths, removed)
        except OutcomeUnknownError:
            raise
        except BaseException:
            for path in new:
                with suppress(OSError):
                    self._env.files.remove_directory(path)
            raise

    def _make_directories(self, paths: Sequence[Path]) -> None:
        with translated(", ".join(map(str, paths)) or self._metadata.label):
            for path in paths:
                self._env.files.make_directory(path)
                self._env.files.share_directory(path, self._state().settings.is_shared)
                self._env.files.sync_directory(path.parent)
                probe.check(path, self._env)
            if any(is_in_object_store(path) for path in paths):
                present = [volume.path for volume in self._metadata.volumes() if volume.identity is not None]
                object_probe.check_distinct([*present, *paths], self._env)

    def _propose(self, kind: str, paths: Sequence[Path], removed: tuple[bytes, ...]) -> None:
        with self._metadata.session(self._lock_timeout_s, patience_s=self._lock_timeout_s) as session:
            state = session.state
            if state.volume_change is not None:
                raise RequirementError("a change of the store's volumes was begun meanwhile; ask again")
            away = [absent for absent in rejoin.absent(session) if absent.volume.volume_id not in removed]
            if away:
                reasons = "; ".join(f"{absent.volume.path} is {absent.state}" for absent in away)
                raise RequirementError(f"{reasons}: repair it first, then change the volumes")
            new = [Volume(self._env.new_id(), path, None, files=self._env.files) for path in paths]
            added = tuple(volume.volume_id for volume in new)
            places = recorded_paths([*session.volumes, *new])
            voters = [msgspec.structs.replace(voter, path=places[voter.volume_id]) for voter in state.voters]
            voters += [Voter(volume_id, bytes(16), places[volume_id], learner=True) for volume_id in added]
            change = VolumeChange(kind, added, removed, self._env.now_ns())
            session.propose(ChangeVolumes(tuple(voters), change))

    def _check(self, path: Path) -> None:
        """Raise ValueError or AlreadyExistsError if the path is none for a new volume."""
        for volume in self._metadata.volumes():
            known = real_place(volume.path)
            if is_in_object_store(known) != is_in_object_store(path):
                raise ValueError(f"volumes: {path} and {known}: all volumes of a store are of one kind")
            if known == path:
                raise ValueError(f"volumes: {path} is a volume of the store already")
            if known in path.parents or path in known.parents:
                raise ValueError(f"volumes: {path} and {known} lie within each other; each is a directory of its own")
        names = self._listed(path)
        if not is_in_object_store(path):
            creation.check_outside([path], self._env)
        if identity.FILE_NAME in names:
            raise AlreadyExistsError(f"{path} holds a volume already, of this store before or of another one")
        if names:
            raise AlreadyExistsError(f"{path} is not empty: {', '.join(names[:5])}")

    def _listed(self, path: Path) -> list[str]:
        """Return what lies where a new volume is to be. Raises ValueError, NotAStoreError if it cannot be there."""
        files = self._env.files
        if is_in_object_store(path):
            with translated(path):
                return creation.listed(path, self._env)
        if not files.is_directory(path):
            if not files.is_directory(path.parent):
                raise ValueError(f"volumes: {path} cannot be made, {path.parent} is not a directory")
            return []
        try:
            return sorted(set(files.list_directory(path)) - {locks.FILE_NAME, "lost+found", *probe.NAMES})
        except OSError as error:
            raise VolumeFailedError(f"{path} cannot be read: {error}") from error

    def _take_back(self, state: StoreState, named: tuple[bytes, ...]) -> bool:
        """Cancel the change under way if it adds exactly these volumes, and none of them votes yet.

        Return whether it was cancelled.
        """
        change = state.volume_change
        learners = {voter.volume_id for voter in state.voters if voter.learner}
        if change is None or not change.added or set(named) != set(change.added) or set(named) - learners:
            return False
        with self._metadata.session(self._lock_timeout_s) as session:
            voters = tuple(voter for voter in session.state.voters if voter.volume_id not in named)
            events = tuple(
                Event("volume_removed", volume=volume_id.hex(), reason=f"the change ({change.kind}) was taken back")
                for volume_id in named
            )
            session.propose(ChangeVolumes(voters, None, events))
        return True

    # --- the steps

    def resume(self) -> bool:
        """Bring a change that is under way to its end; return whether there was one.

        Raises what keeps it from going on; the next one goes on from there.
        """
        change = self._state().volume_change
        if change is None:
            return False
        self._join()
        while (step := _next(self._state())) is not None:
            if step.kind is StepKind.REMOVE:
                self._move_all(change)
            self._take(step)
        self._tell_places()
        return True

    def _tell_places(self) -> None:
        """Let each volume's identity name the volumes that there are now: a hint, for the day its metadata is lost."""
        with self._metadata.session(self._lock_timeout_s) as session:
            places = [volume.path for volume in session.volumes if session.state.voter(volume.volume_id) is not None]
            for volume in session.writable:
                try:
                    if not volume.is_remote:
                        creation.rename_places(volume, places, self._env)
                except OSError as error:
                    logger.warning("%s: its identity still names other volumes: %s", volume.path, error)

    def _session_with_change(self, step: Callable[[Session, VolumeChange], None]) -> None:
        with self._metadata.session(self._lock_timeout_s, patience_s=self._lock_timeout_s) as session:
            if session.state.volume_change is not None:  # else another process has ended it
                step(session, session.state.volume_change)

    def _join(self) -> None:
        """Let the new volumes have the metadata."""

        def join(session: Session, change: VolumeChange) -> None:
            for absent in rejoin.absent(session):
                if absent.volume.volume_id in change.added:
                    rejoin.rejoin(session, absent, self._env)

        for volume in self._metadata.volumes():
            change = self._state().volume_change
            is_gone = volume.state is VolumeState.MISSING and not volume.is_blank
            if change is not None and volume.volume_id in change.added and is_gone:
                absent = rejoin.VolumeToRejoin(volume, volume.state, volume.reason)
                rejoin.make_directory(absent, self._state().settings, self._env)
        self._session_with_change(join)

    def _take(self, planned: Step) -> None:
        """Let a learner that is in step vote, or a volume go."""

        def take(session: Session, change: VolumeChange) -> None:
            step = _next(session.state)
            if step is None or step != planned:
                return  # another process has taken it
            if step.kind is StepKind.REMOVE:
                voters = tuple(voter for voter in session.state.voters if voter.volume_id != step.member)
            else:
                if step.member not in {volume.volume_id for volume in session.writable}:
                    name = step.member.hex()
                    raise RequirementError(f"volume {name} cannot be written now, so it does not get to vote")
                voters = tuple(
                    msgspec.structs.replace(voter, learner=False) if voter.volume_id == step.member else voter
                    for voter in session.state.voters
                )
            recorded, events = (None, _done(change)) if step.is_last else (change, ())
            former = _former(session, step.member) if step.kind is StepKind.REMOVE else None
            session.propose(ChangeVolumes(voters, recorded, events, former))

        self._session_with_change(take)

    # --- moving streams

    def _move_all(self, change: VolumeChange) -> None:
        for stream in list(self._state().streams.values()):
            if set(stream.placement).intersection(change.removed):
                Move(self._metadata, self._env, self._lock_timeout_s, stream.incarnation).run(
                    lambda state, moved: _without(state, moved, change)
                )


class Move:
    """A stream on its way to another placement."""

    def __init__(
        self,
        metadata: MetadataClient,
        env: Environment,
        lock_timeout_s: float,
        incarnation: bytes,
        edit: Callable[[Session], None] | None = None,
    ) -> None:
        """`edit`: what else is proposed in the round in which the placement changes."""
        self._metadata, self._env, self._lock_timeout_s = metadata, env, lock_timeout_s
        self._incarnation, self._edit = incarnation, edit
        self._copied: dict[bytes, set[bytes]] = {}  # by volume: blocks that are whole there
        self._nowhere: set[tuple[bytes, bytes]] = set()  # (volume, block): no copy is whole, so none could be made

    def run(self, placed: Callable[[StoreState, StreamState], tuple[bytes, ...]]) -> None:
        """Copy what the new placement needs, session by session, and change it in the session that finds everything
        there.

        `placed` works the new placement out of the state of that session. Raises VolumeFailedError, DiskFullError if a
        copy cannot be written, and what `edit` raises: before anything is copied.
        """
        is_checked = False
        while True:
            with self._metadata.session(self._lock_timeout_s, patience_s=self._lock_timeout_s) as session:
                stream = session.state.by_incarnation(self._incarnation)
                if stream is None:
                    if self._edit is not None:  # which is refused
                        session.try_out(partial(self._edit, session))
                    return
                target = placed(session.state, stream)
                commands = self._commands(stream, target)
                if not is_checked:
                    session.try_out(partial(self._propose, session, commands))
                    is_checked = True
                if target == stream.placement or self._copy_some(session, stream, target):
                    with session.group():
                        self._propose(session, self._commands(stream, target))
                    return

    def _propose(self, session: Session, commands: Sequence[Command]) -> None:
        for command in commands:
            session.propose(command)
        if self._edit is not None:
            self._edit(session)

    def _copy_some(self, session: Session, stream: StreamState, target: tuple[bytes, ...]) -> bool:
        """Make copies on the volumes that are new to the stream; return whether all are there now.

        If the stream gets fewer volumes, those that stay are looked at as well: a copy that goes may be the only one.
        """
        writable = {volume.volume_id: volume for volume in session.writable}
        sources = list(placement.read_volumes(session.state, stream, session.volumes))
        blocks = live_blocks(session.state, stream)
        left = COPIED_PER_SESSION_MAX
        for volume_id in target:
            if volume_id in stream.placement and len(target) >= len(stream.placement):
                continue
            if volume_id not in writable:
                raise RequirementError(f"volume {volume_id.hex()} cannot be written now, and gets no blocks")
            with translated(writable[volume_id].path):
                writable[volume_id].blocks.prepare(stream.incarnations)
            copied = self._copied.setdefault(volume_id, set())
            for block in blocks:
                if block.block_id in copied or (volume_id, block.block_id) in self._nowhere:
                    continue
                if left <= 0:
                    return False
                left -= max(block.file_size, 4096)
                if self._copy(stream, block, sources, writable[volume_id]):
                    copied.add(block.block_id)
                elif volume_id in stream.placement:
                    raise RequirementError(
                        f"stream {stream.name!r}: sequences {block.first} to {block.end - 1} are whole on no volume "
                        "that can be read; repair it first, then give it fewer replicas"
                    )
                else:
                    self._nowhere.add((volume_id, block.block_id))
        return True

    def _copy(self, stream: StreamState, block: LiveBlock, sources: Sequence[Volume], volume: Volume) -> bool:
        """Make one copy; return whether it is whole, False if no source is.

        Only the manifest says of a copy that it is durable. One that merely reads whole, from an attempt that was
        killed, may be in the page cache alone, and no fsync of today helps one that failed: it is written anew.
        """
        wrong = look(block, volume.blocks, stream)
        if not wrong and volume.volume_id in block.held_by:
            return True
        if not wrong and all(source.path != volume.path for source in sources):
            sources = [*sources, volume]
        own = wrong if wrong and not wrong[0].is_missing else ()
        with translated(block.path_in(volume.blocks)):
            made = copy_block(block, [source.blocks for source in sources], volume.blocks, own)
        if made.lost:
            logger.warning("stream %s: block %s is whole nowhere", stream.name, block.block_id.hex())
        return made.written and not made.lost

    def _commands(self, stream: StreamState, target: tuple[bytes, ...]) -> list[Command]:
        """Return what changes the placement, and says what was copied so far."""
        commands: list[Command] = [ChangePlacement(stream.incarnation, target)] if target != stream.placement else []
        for volume_id, blocks in self._copied.items():
            held = sorted(blocks) if volume_id in target else []
            for start in range(0, len(held), HELD_PER_ENTRY_MAX):
                part = b"".join(held[start : start + HELD_PER_ENTRY_MAX])
                commands.append(RecordHolders(stream.incarnation, volume_id, part))
        return commands


def _without(state: StoreState, stream: StreamState, change: VolumeChange) -> tuple[bytes, ...]:
    """Return the placement of a stream without the volumes that go: others take their places in the list."""
    spare = [
        volume_id
        for volume_id in change.added or ids_of_voters(state.voters)
        if volume_id not in (*stream.placement, *change.removed)
    ]
    return tuple(spare.pop(0) if volume_id in change.removed else volume_id for volume_id in stream.placement)


def _next(state: StoreState) -> Step | None:
    """Return the next step of the change that is under way, None if there is none."""
    change = state.volume_change
    if change is None:
        return None
    return next_step({voter.volume_id: voter.learner for voter in state.voters}, change.added, change.removed)


def _volume_id(state: StoreState, name: str) -> bytes:
    """Return the volume of that name: its id in hex."""
    for voter in state.voters:
        if voter.volume_id.hex() == name.lower():
            return voter.volume_id
    volume_ids = ", ".join(voter.volume_id.hex() for voter in state.voters)
    raise ValueError(f"volumes: {name!r} is none of the store's: {volume_ids}")


def _former(session: Session, volume_id: bytes) -> tuple[FormerVolume, ...] | None:
    """Return the disks that may come back when a volume goes, which keeps its files; None: as before."""
    voter = session.state.voter(volume_id)
    if voter is None or voter.learner:
        return None
    path = next((str(volume.path) for volume in session.volumes if volume.volume_id == volume_id), voter.path)
    return losses.with_former(session.state.former, session.state, volume_id, path)


def _done(change: VolumeChange) -> tuple[Event, ...]:
    kind = _EVENTS[change.kind]
    if change.kind == REPLACE:
        ((new,), (old,)) = change.added, change.removed
        return (Event(kind, volume=new.hex(), after="current", reason=f"in the place of volume {old.hex()}"),)
    return tuple(Event(kind, volume=volume_id.hex()) for volume_id in (*change.added, *change.removed))


def _description(change: VolumeChange, paths: dict[bytes, str]) -> str:
    parts = [f"{change.kind}:"]
    parts += [
        f"volume {volume_id.hex()} at {paths.get(volume_id, 'an unknown place')} comes" for volume_id in change.added
    ]
    parts += [f"volume {volume_id.hex()} goes" for volume_id in change.removed]
    return " ".join([parts[0], ", ".join(parts[1:])])


def resume_quietly(metadata: MetadataClient, env: Environment, lock_timeout_s: float) -> str:
    """Bring a change that is under way to its end if that is possible now; return why not, empty if it was or is."""
    try:
        Membership(metadata, env, lock_timeout_s).resume()
    except (StorageError, OSError) as error:
        logger.warning("the change of the store's volumes cannot continue: %s", error)
        return str(error)
    return ""
