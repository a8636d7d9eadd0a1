"""Adoption: metadata made anew from what is left, when too few volumes have theirs for a quorum.

The only way back from there, and never taken by itself: `plan` says what it would do, `execute` does it.

    streams      every stream of the best metadata that can be read, and of the journals of placements, goes on under a
                 new incarnation, which names the one that it continues: blocks stay where they are, under the old one
    sequences    as they were journaled; blocks that are whole nowhere are declared lost; the last sequence never falls
    merging      where blocks and what they were merged into are both there, one of the two is taken (cover.py)
    minorities   with fewer than a majority of the volumes that the store had, only with a word of consent: the
                 others may be alive
    conflicts    messages that are journaled and have their sequences taken by others are lost (conflicts.py); if a
                 majority of the volumes has them, only with a word of consent
    blocks       that no journal and no manifest speaks of are told, and left alone
    volumes      the directories that are given: those that were volumes keep their ids, all are new instances

What happened after the newest metadata that can be read, and is not in the journals, is lost with the rest: removals
and deletions (messages come back), consumers, batches of writers. Nothing is deleted: the old metadata files are set
aside. Ended anywhere, `plan` and `execute` may be done again.
"""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from storage_core.chunked_set import ChunkedSet
from storage_core.errors import NotAStoreError, RequirementError, StorageError
from storage_core.metadata import events as event_history
from storage_core.metadata.commands import Event, Voter, ids_of_voters
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.invariants import check_state
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StoreState, Streams, StreamState
from storage_core.paths import is_in_object_store
from storage_core.raft.entry import HISTORY_SIZE
from storage_core.raft.rules import majority
from storage_core.sequences import SequenceSet
from storage_core.store import lock_domain
from storage_core.store.ensemble import creation, decision, interrupted_creation
from storage_core.store.ensemble.creation import check_count
from storage_core.store.ensemble.decision import VolumeLogRead
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import REAL, Environment
from storage_core.store.recovery import rejoin, surviving
from storage_core.store.recovery.conflicts import BlockConflict, Comparison
from storage_core.store.recovery.cover import Cover
from storage_core.store.recovery.surviving import Copy, JournalClaims, VolumeScan
from storage_core.store.volume import identity, locks, log, placement_journal, volumes
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdoptedStream:
    """What becomes of one stream."""

    name: str
    continues: str  # incarnation, hex
    source: str  # where its configuration is from
    block_count: int
    message_count: int
    next_sequence: int
    lost: tuple[tuple[int, int], ...]  # ranges that are declared lost now
    conflicts: tuple[BlockConflict, ...]  # messages that are lost because others have their sequences


@dataclass(slots=True)
class AdoptPlan:
    """What an adoption will do. `str` and `to_json` tell it; `execute` does it."""

    volumes: list[Volume]  # as they will be
    state: StoreState
    streams: list[AdoptedStream]
    before: dict[bytes, VolumeIdentity | None]  # by volume: the identity that was found
    metadata_index: int  # of the newest metadata that can be read; 0: none can
    volume_count: int  # that the store had, as far as is known
    present_count: int  # of these directories, that have something of it
    unclaimed: list[Path] = field(default_factory=list)  # block files that nothing speaks of
    notes: list[str] = field(default_factory=list)

    @property
    def loses_of_majority(self) -> list[BlockConflict]:
        """Messages that a majority of the volumes has, and that would be lost."""
        return [conflict for stream in self.streams for conflict in stream.conflicts if conflict.is_majority]

    @property
    def gives_up(self) -> str:
        """Say what an adoption gives up since volumes of the store are not named; empty if it does not."""
        has = f"{self.present_count} of the store's {self.volume_count} volumes have something to adopt"
        if self.present_count < majority(self.volume_count):
            return (
                f"{has}: what the others alone have is given up; and if they are alive, there will be two stores that "
                "give the same sequences to different messages"
            )
        if self.present_count < self.volume_count and any(stream.lost for stream in self.streams):
            return f"{has}: the others may have messages that are declared lost"
        return ""

    def _names(self, conflict: BlockConflict) -> list[str]:
        return [self.volumes[at].name for at in conflict.holders]

    def _paths(self, conflict: BlockConflict) -> str:
        return ", ".join(str(self.volumes[at].path) for at in conflict.holders)

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.state.store_id.hex(),
            "metadata_index": self.metadata_index,
            "volumes": [
                {"name": volume.name, "path": str(volume.path), "new": self.before[volume.volume_id] is None}
                for volume in self.volumes
            ],
            "streams": [
                {
                    "name": stream.name,
                    "continues": stream.continues,
                    "source": stream.source,
                    "blocks": stream.block_count,
                    "messages": stream.message_count,
                    "last_seq": stream.next_sequence - 1,
                    "lost_ranges": [list(lost) for lost in stream.lost],
                    "conflicts": [
                        {
                            "ranges": [list(lost) for lost in conflict.sequences.ranges()],
                            "messages": len(conflict.sequences),
                            "volumes": self._names(conflict),
                            "majority": conflict.is_majority,
                        }
                        for conflict in stream.conflicts
                    ],
                }
                for stream in self.streams
            ],
            "needs_accept_loss": bool(self.loses_of_majority or self.gives_up),
            "gives_up": self.gives_up,
            "not_adopted": [str(path) for path in self.unclaimed],
            "notes": self.notes,
        }

    def __str__(self) -> str:
        known = f"entry {self.metadata_index}" if self.metadata_index else "none can be read"
        lines = [f"store {self.state.store_id.hex()}; newest metadata: {known}"]
        for volume in self.volumes:
            was = "a volume of the store" if self.before[volume.volume_id] is not None else "becomes a new volume"
            lines.append(f"volume {volume.name} at {volume.path}: {was}")
        for stream in self.streams:
            lost = sum(end - first for first, end in stream.lost)
            lost += sum(len(conflict.sequences) for conflict in stream.conflicts)
            lines.append(
                f"stream {stream.name}: {stream.message_count} messages in {stream.block_count} blocks, up to sequence "
                f"{stream.next_sequence - 1}; {lost} lost; configuration from {stream.source}"
            )
            lines += [f"    lost: sequences {first} to {end - 1}" for first, end in stream.lost]
            lines += [
                f"    lost: {len(conflict.sequences)} messages at sequences {_ranges(conflict.sequences)}, which "
                f"{self._paths(conflict)} {'has' if len(conflict.holders) == 1 else 'have'}"
                f"{', a majority of the volumes' if conflict.is_majority else ''}: others are shown there"
                for conflict in stream.conflicts
            ]
        if self.unclaimed:
            lines.append(f"{len(self.unclaimed)} block files are in no journal, and are left alone:")
            lines += [f"    {path}" for path in self.unclaimed]
        if self.gives_up:
            lines.append(self.gives_up)
        return "\n".join([*lines, *self.notes])


def plan(paths: Sequence[Path], env: Environment = REAL) -> AdoptPlan:
    """Return what an adoption would do with these directories: all that the store is to have as volumes from now on.

    Nothing is written. Raises ValueError (an even number), NotAStoreError (two stores, or nothing of one),
    RequirementError (the metadata has a quorum: `repair` does what is needed; or a volume of the store is not named).
    """
    check_count(paths)
    for path in paths:
        if is_in_object_store(path):
            raise RequirementError(
                f"{path} is in an object store, where no journal says which sequences a block had: a store is rebuilt "
                "from its blocks on local disks alone so far; restore a backup"
            )
    paths = [Path(os.path.realpath(path)) for path in paths]
    with translated(", ".join(map(str, paths))):
        remains = [surviving.look_at(path, env) for path in paths]
        store_id = surviving.store_of(remains, env)
        surviving.read_metadata(remains, store_id, env)
        best = surviving.best_state(remains)
        _check_named(remains, store_id, env)
        if best is not None:
            _check_need(remains, best[0], env)
        made = _volumes(remains, store_id, env)
        claims = surviving.read_claims(remains, env)
        builder = _Builder(remains, made, store_id, best, claims, env)
        streams, adopted = builder.streams()
        state = _state(store_id, best, made, streams, adopted, env)
        check_state(state)
        claimed = {block_id for claim in claims.values() for block_id in claim.rows}
        for known in best[0].streams.values() if best is not None else ():
            claimed.update(map(bytes, known.blocks.rows["block_id"]))
        for delete in best[0].deletes["block_id"] if best is not None else ():
            claimed.add(bytes(delete))
        before = {volume.volume_id: was.identity for volume, was in zip(made, remains, strict=True)}
        unclaimed = surviving.unclaimed(remains, claimed, env)
        index = best[1] if best is not None else 0
        notes = [*_left_out(made, best[0] if best is not None else None), *builder.notes]
        counts = [remnant.identity.volume_count for remnant in remains if remnant.identity is not None]
        count = max([*counts, len(ids_of_voters(best[0].voters)) if best is not None else 0]) or len(paths)
        present = sum(
            remnant.identity is not None or remnant.metadata is not None or bool(remnant.incarnations)
            for remnant in remains
        )
        return AdoptPlan(made, state, adopted, before, index, count, present, unclaimed, notes)


def _check_named(remains: Sequence[VolumeScan], store_id: bytes, env: Environment) -> None:
    """Raise RequirementError if a volume of the store that an identity speaks of is there, and was not named."""
    named = {os.path.realpath(remnant.path) for remnant in remains}
    for remnant in remains:
        for place in remnant.identity.places(remnant.path) if remnant.identity is not None else ():
            if os.path.realpath(place) in named:
                continue
            try:
                other_identity = identity.read_identity(env.files, place)
            except StorageError:
                continue
            if other_identity.store_id == store_id and other_identity.volume_id not in {
                other.identity.volume_id for other in remains if other.identity is not None
            }:
                raise _not_named(place)


def _not_named(place: Path) -> RequirementError:
    return RequirementError(
        f"{place} is a volume of the store as well: name it, too, or take it away if it is not to be part of it any "
        "more. If it is whole, no metadata has to be rebuilt: `jstream repair` with all volumes named is enough"
    )


def _check_need(remains: Sequence[VolumeScan], state: StoreState, env: Environment) -> None:
    """Raise RequirementError if the store can go on without an adoption, or if one of its volumes was not named."""
    named = {os.path.realpath(remnant.path) for remnant in remains}
    known = [
        Volume(remnant.identity.volume_id, remnant.path, remnant.identity, files=env.files)
        for remnant in remains
        if remnant.identity is not None
    ]
    if any(state.voter(volume.volume_id) is not None for volume in known):
        for member in volumes.resolve_volumes(env.files, known, state.voters, []):
            if member.identity is not None and os.path.realpath(member.path) not in named:
                raise _not_named(member.path)
    known_logs = []
    for remnant in remains:
        if remnant.identity is None:
            continue
        damaged = VolumeLogRead(
            remnant.identity.volume_id, str(remnant.path), remnant.identity.instance_id, state=VolumeState.DAMAGED
        )
        known_logs.append(remnant.metadata if remnant.metadata is not None and remnant.is_readable else damaged)
    try:
        decision.decide(known_logs, state.voters)
    except (StorageError, decision.LockContention):
        return
    raise RequirementError(
        "the metadata has its quorum, nothing has to be adopted: `jstream repair` brings back what is damaged"
    )


def _left_out(made: Sequence[Volume], state: StoreState | None) -> list[str]:
    """Return a line for each volume of the store, as the metadata knows it, that is not among those to be."""
    stay = {volume.volume_id for volume in made}
    return [
        f"volume {voter.volume_id.hex()} (recorded at {voter.path}) is not among them: what it alone has is not "
        "adopted, and it leaves the store; if it can be brought back, do that first"
        for voter in (state.voters if state is not None else ())
        if voter.volume_id not in stay
    ]


def _volumes(remains: Sequence[VolumeScan], store_id: bytes, env: Environment) -> list[Volume]:
    """Return the volumes as they will be: known ones keep their ids, all are new instances."""
    made = []
    for remnant in remains:
        known = (
            remnant.identity.volume_id
            if remnant.identity is not None
            else remnant.metadata.volume_id
            if remnant.metadata
            else None
        )
        volume_id = known or env.new_id()
        made.append(
            Volume(
                volume_id,
                remnant.path,
                VolumeIdentity(store_id, volume_id, env.new_id(), env.now_ns()).among(
                    remnant.path, [other.path for other in remains]
                ),
                files=env.files,
            )
        )
    if len({volume.volume_id for volume in made}) < len(made):
        raise NotAStoreError(
            f"two of {', '.join(str(volume.path) for volume in made)} are the same volume: one is a copy"
        )
    return made


def _state(
    store_id: bytes,
    best: tuple[StoreState, int] | None,
    made: Sequence[Volume],
    streams: Sequence[StreamState],
    adopted: Sequence[AdoptedStream],
    env: Environment,
) -> StoreState:
    base = best[0] if best is not None else StoreState(store_id=store_id, created_ns=env.now_ns())
    places = volumes.recorded_paths(made)
    voters = []
    for volume in made:
        assert volume.identity is not None
        voters.append(Voter(volume.volume_id, volume.identity.instance_id, places[volume.volume_id]))
    lost = sum(len(stream.lost) for stream in streams)
    reason = f"metadata rebuilt from entry {best[1] if best is not None else 0} and the journals of placements"
    lost += sum(len(conflict.sequences) for stream in adopted for conflict in stream.conflicts)
    after = f"{len(streams)} streams, {sum(stream.message_count for stream in streams)} messages, {lost} lost"
    now = env.now_ns()
    events = [Event("adopted", after=after, reason=reason, time_ns=now)]
    for stream in adopted:
        lost_sequences = SequenceSet.from_ranges(stream.lost)
        if lost_sequences:
            events.append(_lost(stream.name, lost_sequences, "", "no volume has them: metadata rebuilt", now))
        for conflict in stream.conflicts:
            why = "metadata rebuilt: other messages have their sequences"
            for at in conflict.holders:
                events.append(_lost(stream.name, conflict.sequences, made[at].name, why, now))
    return replace(
        base,
        voters=tuple(voters),
        lock_domain=lock_domain.of_volumes(env.lock_domain(), [volume.path for volume in made], env.file_system),
        host=socket.gethostname(),
        streams=Streams({stream.name.casefold(): stream for stream in streams}),
        volume_change=None,
        events=event_history.with_events(base.events, events, now),
    )


def _lost(stream: str, sequences: SequenceSet, volume: str, reason: str, now_ns: int) -> Event:
    after = f"{len(sequences)} messages: {_ranges(sequences)}"
    return Event("lost", stream, volume=volume, after=after, reason=reason, time_ns=now_ns)


def _ranges(sequences: SequenceSet) -> str:
    more = f" and {sequences.run_count - 5} more ranges" if sequences.run_count > 5 else ""
    return ", ".join(f"{first} to {end - 1}" for first, end in sequences.ranges_head(5)) + more


class _Builder:
    """Puts the streams together."""

    def __init__(
        self,
        remains: Sequence[VolumeScan],
        made: Sequence[Volume],
        store_id: bytes,
        best: tuple[StoreState, int] | None,
        claims: dict[bytes, JournalClaims],
        env: Environment,
    ) -> None:
        self._remains, self._made, self._store_id, self._env = remains, made, store_id, env
        self._best, self._claims = best, claims
        known = best[0].streams.values() if best is not None else ()
        self._sealed = {bytes(row) for stream in known for row in stream.blocks.rows["digest"]}  # by the metadata
        self._directories = list(dict.fromkeys(inc for remnant in remains for inc in remnant.incarnations))
        self._comparison = Comparison(store_id, remains, env)
        self._conflicts: dict[bytes, list[BlockConflict]] = {}  # by incarnation
        self.notes: list[str] = []

    def streams(self) -> tuple[list[StreamState], list[AdoptedStream]]:
        """Return the streams as they will be, and what there is to say about each."""
        made, descriptions = [], []
        known = list(self._best[0].streams.values()) if self._best is not None else []
        for stream in known:
            claims = self._claims.get(stream.incarnation, JournalClaims(stream.incarnation, stream.name))
            built = self._continue(stream, claims)
            made.append(built)
            descriptions.append(self._described(stream, built, "the metadata"))
        taken = {stream.name.casefold() for stream in made}
        superseded = {inc for stream in made for inc in stream.incarnations}
        for claims in sorted(self._claims.values(), key=lambda claim: -claim.age):
            if claims.incarnation in superseded:
                continue
            if claims.stream.casefold() in taken:
                self.notes.append(
                    f"stream {claims.stream}: an older incarnation, {claims.incarnation.hex()}, is left alone"
                )
                continue
            if self._best is not None and claims.index <= self._best[1]:
                self.notes.append(f"stream {claims.stream}: was deleted, and is left alone")
                continue
            bare = StreamState(self._config(claims), claims.incarnation, self._env.now_ns(), ())
            built = self._continue(bare, claims)
            made.append(built)
            descriptions.append(
                self._described(bare, built, "what is in its blocks: check it with `jstream stream edit`")
            )
            taken.add(claims.stream.casefold())
            superseded.update(built.incarnations)
        return made, descriptions

    def _described(self, before: StreamState, built: StreamState, source: str) -> AdoptedStream:
        lost = tuple(built.lost.difference(before.lost).ranges())
        return AdoptedStream(
            built.name, before.incarnation.hex(), source, len(built.blocks), built.message_count,
            built.next_sequence, lost, tuple(self._conflicts.get(before.incarnation, ())),
        )  # fmt: skip

    def _config(self, claims: JournalClaims) -> StreamConfig:
        """Return a configuration that takes the subjects that are in the blocks."""
        subjects = {claims.stream}
        for row in list(claims.rows.values())[:64]:
            copy = self._find(row, claims.incarnation, claims.incarnation)
            if copy is not None:
                subjects.update(self._subjects(copy))
        return StreamConfig.from_mapping({"name": claims.stream, "subjects": sorted(subjects), "num_replicas": 1})

    def _subjects(self, copy: Copy) -> set[str]:
        names = surviving.subjects_of(self._remains[copy.holders[0]], copy, self._store_id, self._env)
        return {f"{name.split('.')[0]}.>" if "." in name else name for name in names}

    def _find(self, row: np.void, first_guess: bytes, second_guess: bytes) -> Copy | None:
        places = list(dict.fromkeys((first_guess, second_guess, *self._directories)))
        return surviving.find_copies(
            row, places, self._store_id, self._remains, self._env, content=bytes(row["digest"]) not in self._sealed
        )

    def _continue(self, stream: StreamState, claims: JournalClaims) -> StreamState:
        """Return a stream that goes on where this one and its journals end."""
        known, others = self._rows_of(stream, claims)
        self.notes += claims.conflicts
        next_sequence = max(stream.next_sequence, claims.end)
        everything = SequenceSet.from_ranges([(stream.low_watermark, next_sequence)])
        cover = Cover(stream.removed.absent_among(everything))
        cover.take(
            known.values(),
            others.values(),
            lambda row: self._find_one(row, stream),
        )
        copies = cover.taken
        claims.rows = {**known, **others}
        left = [self._find_one(row, stream) for row in (*cover.spared, *cover.conflicts)]
        conflicts = self._comparison.conflicts(
            stream.name, [copy for copy in left if copy is not None], copies, cover.wanted
        )
        self._conflicts[stream.incarnation] = conflicts
        self._tell(stream, cover, conflicts)
        placed = self._placement(stream)
        rows = self._rows(copies, placed)
        removed, lost = self._removed_and_lost(stream, copies, next_sequence)
        shown = removed.absent_among(SequenceSet.from_ranges([(stream.low_watermark, next_sequence)]))
        histories = stream.histories
        if not histories and next_sequence > 1:
            histories = ((self._env.random_bytes(HISTORY_SIZE), 1),)
        return replace(
            stream,
            config=msgspec.structs.replace(stream.config, num_replicas=len(placed)),
            incarnation=self._env.new_id(),
            placement=placed,
            next_sequence=next_sequence,
            blocks=Table.of(rows),
            removed=removed,
            lost=lost,
            lost_blocks=_still_remembered(stream, rows),
            message_count=len(shown),
            data_size=_data_size(rows, shown),
            histories=histories,
            origins=_origins(copies, next_sequence, stream.incarnation),
        )

    def _find_one(self, row: np.void, stream: StreamState) -> Copy | None:
        return self._find(row, stream.written_as(int(row["first"])), stream.incarnation)

    def _rows_of(self, stream: StreamState, claims: JournalClaims) -> tuple[dict[bytes, np.void], dict[bytes, np.void]]:
        """Return the rows of the manifest, and of those in the journals that say something of what is not removed."""
        known = {bytes(row["block_id"]): row for row in stream.blocks.rows}
        shown, others = stream.shown(), {}
        for block_id, row in claims.rows.items():
            first, end = int(row["first"]), int(row["first"] + row["span"])
            if block_id not in known and (end > stream.next_sequence or shown.count_in(first, end)):
                later = row.copy()
                later["subject_set"] = 0  # of sets that are not known
                others[block_id] = later
        return known, others

    def _tell(self, stream: StreamState, cover: Cover, conflicts: Sequence[BlockConflict]) -> None:
        """Note which blocks are left alone though something speaks of them."""
        for row in cover.conflicts:
            self.notes.append(
                f"stream {stream.name}: block {bytes(row['block_id']).hex()} claims sequences of another block from "
                f"{int(row['first'])} on, and is left alone"
            )
        if cover.spared:
            others = "their messages are in others" if not conflicts else "others have their sequences"
            self.notes.append(f"stream {stream.name}: {len(cover.spared)} blocks are left alone, since {others}")

    def _placement(self, stream: StreamState) -> tuple[bytes, ...]:
        here = [volume.volume_id for volume in self._made]
        kept = [volume_id for volume_id in stream.placement if volume_id in here]
        count = min(len(stream.placement) or len(here), len(here))
        return (*kept, *[volume_id for volume_id in here if volume_id not in kept])[:count]

    def _rows(self, copies: Sequence[Copy], placed: tuple[bytes, ...]) -> np.ndarray:
        rows = np.zeros(len(copies), BLOCK_DTYPE)
        for at, copy in enumerate(copies):
            rows[at] = copy.row
            held = [self._made[holder].volume_id for holder in copy.holders]
            rows[at]["holders"] = sum(1 << position for position, volume_id in enumerate(placed) if volume_id in held)
        return rows

    def _removed_and_lost(
        self, stream: StreamState, copies: Sequence[Copy], next_sequence: int
    ) -> tuple[ChunkedSet, SequenceSet]:
        """Return (removed, lost): what was removed before and holes of blocks; and what no block is left of."""
        covered = SequenceSet.from_ranges(
            [(int(copy.row["first"]), int(copy.row["first"] + copy.row["span"])) for copy in copies]
        )
        everything = SequenceSet.from_ranges([(stream.low_watermark, next_sequence)])
        missing = stream.removed.absent_among(everything.difference(covered))
        holes = [(copy.holes, int(copy.row["first"])) for copy in copies if copy.holes]
        removed = stream.removed.union(missing)
        if holes:
            starts = np.concatenate([hole.starts + first for hole, first in holes])
            ends = np.concatenate([hole.ends + first for hole, first in holes])
            removed = removed.union(SequenceSet.from_columns(starts, ends).clip(stream.low_watermark, next_sequence))
        return removed, stream.lost.union(missing)


def _still_remembered(stream: StreamState, rows: np.ndarray) -> Table:
    """Return the blocks of lost messages, but for those whose sequences other blocks have now."""
    kept = [
        row["block_id"] in rows["block_id"] or not (
            (rows["first"] < row["first"] + row["span"]) & (rows["first"] + rows["span"] > row["first"])
        ).any()
        for row in stream.lost_blocks.rows
    ]  # fmt: skip
    return stream.lost_blocks.keep(np.array(kept, bool))


def _origins(copies: Sequence[Copy], next_sequence: int, before: bytes) -> tuple[tuple[bytes, int], ...]:
    """Return the incarnations under which the blocks were written, each with the end of its sequences."""
    origins: list[tuple[bytes, int]] = []
    for copy in copies:
        first = int(copy.row["first"])
        if origins and origins[-1][0] == copy.written_as:
            continue
        if origins:
            origins[-1] = (origins[-1][0], first)
        origins.append((copy.written_as, next_sequence))
    return tuple(origins) or (((before, next_sequence),) if next_sequence > 1 else ())


def _data_size(rows: np.ndarray, shown: SequenceSet) -> int:
    """Return the message bytes that are shown, in proportion where a block is not shown as a whole."""
    total = 0
    for row in rows:
        count = shown.count_in(int(row["first"]), int(row["first"] + row["span"]))
        total += int(row["data_size"]) * count // max(1, int(row["row_count"]))
    return total


def execute(plan: AdoptPlan, env: Environment = REAL, accept_loss: bool = False) -> None:
    """Make the store what the plan says. Raises RequirementError if it is not as it was when the plan was made; also if
    messages that a majority of the volumes has would be lost, or too few volumes are named, unless `accept_loss`.

    StoreBusyError if a process has it open for writing, DiskFullError, ReadOnlyError, VolumeFailedError: then a new
    plan goes on from there.
    """
    if plan.loses_of_majority and not accept_loss:
        losses = "; ".join(
            f"stream {conflict.stream}: {_ranges(conflict.sequences)}, on {plan._paths(conflict)}"
            for conflict in plan.loses_of_majority
        )
        raise RequirementError(
            f"a majority of the volumes has messages that would be lost ({losses}), because other ones have their "
            "sequences. Leave out the volume that those are on: name an empty directory in its place. To lose them, "
            "say --accept-loss"
        )
    if plan.gives_up and not accept_loss:
        raise RequirementError(
            f"{plan.gives_up}. Bring the others back and name them, too; if they are gone for good, say --accept-loss"
        )
    first = creation.first_entry_of(plan.state, env)
    by_id = sorted(plan.volumes, key=lambda volume: volume.volume_id)
    with translated(", ".join(str(volume.path) for volume in plan.volumes)):
        for volume in plan.volumes:
            if not env.files.is_directory(volume.path):
                env.files.make_directory(volume.path)
                env.files.share_directory(volume.path, plan.state.settings.is_shared)
                env.files.sync_directory(volume.path.parent)
        with locks.hold(env.files, [volume.path for volume in by_id], len(by_id), 0.0):
            for volume in plan.volumes:
                now = surviving.look_at(volume.path, env).identity
                if now != plan.before[volume.volume_id] and now is not None:
                    raise RequirementError(f"{volume.path} is not as it was when the plan was made; make a new one")
            for volume in plan.volumes:  # what is there stays until the new metadata is whole and durable everywhere
                interrupted_creation.remove_files(volume.path / rejoin.NEW_METADATA, env)  # of one that was killed
                creation.write_metadata(volume, first, env, rejoin.NEW_METADATA)
                rejoin.prepare_streams(plan.state, volume)
            aside = [
                rejoin.put_aside(volume.path, env, also=(placement_journal.FILE_NAME, identity.FILE_NAME))
                for volume in plan.volumes
            ]
            for volume in plan.volumes:
                _put_in_place(volume.path, env)
            for volume in plan.volumes:
                creation.write_identity(volume, env)
            for directory in aside:
                if directory is not None:
                    logger.info("the metadata files that were there are in %s now", directory)
                    env.files.create(directory / surviving.ADOPTED_NAME).close()
                    env.files.sync_directory(directory)


def _put_in_place(path: Path, env: Environment) -> None:
    """Give the new metadata files of a volume their names."""
    env.files.make_directory(path / log.DIRECTORY)
    for name in sorted(env.files.list_directory(path / rejoin.NEW_METADATA)):
        env.files.replace(path / rejoin.NEW_METADATA / name, path / log.DIRECTORY / name)
    for directory in (path / log.DIRECTORY, path / rejoin.NEW_METADATA):
        env.files.sync_directory(directory)
    env.files.remove_directory(path / rejoin.NEW_METADATA)
    env.files.sync_directory(path)
