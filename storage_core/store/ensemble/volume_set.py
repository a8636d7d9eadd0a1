"""Which volumes a store has and where they lie, as far as one process knows."""

from collections.abc import Sequence
from pathlib import Path

from storage_core.errors import (
    NoQuorumError,
    NotAStoreError,
    ProcessError,
    StorageError,
)
from storage_core.metadata.commands import Voter
from storage_core.os_errors import UnreachableError, too_few
from storage_core.paths import place
from storage_core.raft.rules import majority
from storage_core.store.ensemble.process_cache import on_each, unless_raised
from storage_core.store.environment import Environment
from storage_core.store.volume import volumes
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume


class VolumeSet:
    """The volumes of a store as this process last saw them."""

    def __init__(self, env: Environment, known: Sequence[Volume], paths: Sequence[Path]) -> None:
        """`known`: volumes of the store, those that were found at `paths`, which the user gave."""
        self._env, self._paths = env, tuple(paths) or tuple(volume.path for volume in known)
        self.known = tuple(known)  # as they were when this process last looked
        self.store_id = next(volume.identity.store_id for volume in known if volume.identity is not None)
        self.voters: tuple[Voter, ...] = ()  # that `known` is complete for

    @property
    def label(self) -> str:
        """The store, for messages."""
        return volumes.label(self.known)

    def look(self) -> tuple[Volume, ...]:
        """Return every volume of the store in the order of its voters, looked at just now."""
        self.known = self._looked()
        if any(volume.state is VolumeState.FOREIGN for volume in self.known) and self.voters:
            self._look_elsewhere()
        return self.known

    def _looked(self) -> tuple[Volume, ...]:
        files, store_id = self._env.files, self.store_id

        def look(volume: Volume) -> Volume:
            return volumes.load_volume(files, volume.path, volume.volume_id, store_id)

        looks = on_each(self._env, self.known, look, majority_suffices=True)
        for at, (volume, answer) in enumerate(zip(self.known, looks, strict=True)):
            if isinstance(answer, UnreachableError):
                looks[at] = volumes.unreachable_volume(files, volume.path, volume.volume_id, store_id, answer)
        return tuple(unless_raised(looks))

    def _look_elsewhere(self) -> None:
        """Look for volumes that are not where they are expected at the paths that the user gave."""
        files = self._env.files
        places = {volume.path: volume for volume in self.known if volume.identity is not None}
        elsewhere = [path for path in self._paths if path not in places]
        try:
            others = volumes.volumes_at(files, elsewhere) if elsewhere else []
        except (StorageError, ValueError):
            return
        ours = [
            volume for volume in others if volume.identity is not None and volume.identity.store_id == self.store_id
        ]
        known = {place.volume_id for place in places.values()}
        more = [volume for volume in ours if volume.volume_id not in known]
        known |= {volume.volume_id for volume in more}
        if more and known.isdisjoint(voter.volume_id for voter in self.voters):
            raise NotAStoreError(
                f"{', '.join(str(volume.path) for volume in more)}: the store there has other volumes than the one "
                "that this process opened. It was restored or created again: open it again, or restart the query or job"
            )
        if more:
            self.known = tuple(volumes.resolve_volumes(files, [*places.values(), *more], self.voters, self._paths))

    def complete(self, voters: Sequence[Voter], afresh: bool = True) -> bool:
        """Take in the volumes that the log speaks of; return whether there are any that were not known.

        `afresh`: those that are known are looked at anew: another one may lie by now where one was found before.
        """
        before = {volume.volume_id for volume in self.known}
        if afresh:
            self.known = self._looked()
        known = [volume for volume in self.known if volume.identity is not None]
        if not known:
            raise self._nothing_left(self.known)
        known += self._found_beside(known, voters)
        self.known = tuple(volumes.resolve_volumes(self._env.files, known, voters, self._paths))
        self.voters = tuple(voters)
        return not {volume.volume_id for volume in self.known} <= before

    def _found_beside(self, known: Sequence[Volume], voters: Sequence[Voter]) -> list[Volume]:
        """Return the volumes in object stores that are not known yet, but those that are much slower than most."""
        files, store_id = self._env.files, self.store_id
        ids = {volume.volume_id for volume in known}
        places = [(voter.volume_id, place(voter.path)) for voter in voters if voter.volume_id not in ids]
        if not self.is_remote or not places:
            return []
        expected = [Volume(volume_id, path, None, VolumeState.MISSING, files=files) for volume_id, path in places]

        def look(volume: Volume) -> Volume:
            if volume.identity is not None:
                return volume
            return volumes.load_volume(files, volume.path, volume.volume_id, store_id)

        looks = on_each(self._env, [*known, *expected], look, majority_suffices=True)[len(known) :]
        seen = unless_raised([answer for answer in looks if not isinstance(answer, UnreachableError)])
        return [volume for volume in seen if volume.identity is not None]

    def lockable(self, at_hand: Sequence[Volume]) -> list[Path]:
        """Return the volumes that can be locked, in the order of their ids.

        Raises NoQuorumError if none is there, ProcessError if they refuse this process.
        """
        present = [volume for volume in at_hand if volume.is_present]
        if not present:
            raise self._nothing_left(at_hand)
        return [volume.path for volume in sorted(present, key=lambda volume: volume.volume_id)]

    def _nothing_left(self, at_hand: Sequence[Volume]) -> NoQuorumError | ProcessError:
        reasons = "; ".join(volume.reason for volume in at_hand)
        error = NoQuorumError(
            f"none of the store's volumes is there, or gives an answer ({reasons}). Bring them back",
            available=0,
            needed=majority(len(at_hand)),
        )
        return too_few(error, [volume.refusal for volume in at_hand])

    @property
    def is_remote(self) -> bool:
        return any(volume.is_remote for volume in self.known)

    def for_reading(self) -> tuple[Volume, ...]:
        """Return every volume for who has just asked for the newest state, and goes on to the next if one is away.

        In an object store they are as they were at the last look: the metadata was read by their identities.
        """
        is_known = self.is_remote and all(volume.identity is not None for volume in self.known)
        return self.known if is_known else self.look()
