"""Verification: every block of a stream read and checked from end to end, and the metadata files with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.errors import StorageError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.ensemble import Metadata
from storage_core.store.environment import Environment
from storage_core.store.index import VolumeIndex
from storage_core.store.log import VolumeLog
from storage_core.store.placement import block_directory
from storage_core.store.placements import PlacementJournal
from storage_core.store.reading import place_and_reason
from storage_core.store.staging import block_path


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that verification found. Sequences [first, end) are touched; 0, 0 for metadata."""

    stream: str
    volume: str
    file: str
    offset_bytes: int
    first: int
    end: int
    reason: str
    repaired: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def verify(
    state: StoreState,
    streams: Sequence[StreamState],
    metadata: Metadata,
    env: Environment,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Any], dict[bytes, VolumeIndex]]:
    """Return {ok, checked_blocks, damage}, and the indexes of the volumes with what was found, to be saved.

    Every byte of every copy of every block and of the metadata that counts was read; nothing was written.
    """
    at_hand = [one for one in metadata.volumes() if one.identity is not None]
    damage: list[Damage] = []
    for one in at_hand:
        journal = PlacementJournal(env.files, one.path)
        found = _metadata_damage(metadata.log_of(one), journal)
        damage.extend(Damage("", one.name, where, 0, 0, 0, reason) for where, reason in found)
    copies = [(one, stream) for one in at_hand for stream in streams if one.volume_id in stream.placement]
    total, done = sum(len(stream.blocks) for _, stream in copies), 0
    indexes = {one.volume_id: VolumeIndex(env.files, one.path) for one in at_hand}
    for one, stream in copies:
        index = indexes[one.volume_id]
        held = index.stream(stream.incarnation).blocks
        directory = block_directory(one.path, stream.incarnation)
        for row in stream.blocks.rows:
            bad = _block_damage(state.store_id, stream, row, directory, one.name, env)
            damage.extend(bad)
            block_id = bytes(row["block_id"])
            if block_id in held:
                index.verified(stream.incarnation, block_id, held[block_id][0], env.now_ns(), not bad)
            done += 1
            if progress is not None:
                progress(done, total)
    report = {"ok": not damage, "checked_blocks": done, "damage": [one.to_json() for one in damage]}
    return report, indexes


def _metadata_damage(log: VolumeLog, journal: PlacementJournal) -> list[tuple[str, str]]:
    """Return (file, reason) for what is wrong with the metadata's own files."""
    journaled, found = _journaled(journal)  # before the log is read, which has all that was journaled by then
    try:
        evidence = log.read()
        found.extend((where, reason) for where, _, reason in (text.partition(": ") for text in evidence.damage))
        found.extend(_damaged_snapshots(log, {where for where, _ in found}))
    except (StorageError, OSError) as error:
        return [*found, (str(log.directory), str(error))]
    if journaled > evidence.tip[0]:
        ends = f"it ends at entry {evidence.tip[0]}, and the journal of placements has blocks of entry {journaled}"
        found.append((str(log.directory), f"the metadata was rolled back: {ends}"))
    return found


def _journaled(journal: PlacementJournal) -> tuple[int, list[tuple[str, str]]]:
    """Return the newest entry that the journal of placements speaks of, and what is wrong with the journal.

    It is written after the log is durable, and never before: metadata that ends sooner is older than the volume.
    """
    try:
        return max((one.index for one in journal.read()), default=0), []
    except (StorageError, OSError) as error:
        return 0, [(str(journal.path), str(error))]


def _damaged_snapshots(log: VolumeLog, told: set[str]) -> list[tuple[str, str]]:
    """Return the snapshots that are not whole: also the older one, which is there in case the newest is damaged."""
    found = []
    for index in log.snapshots():
        path = str(log.snapshot_path(index))
        try:
            if path not in told and not log.snapshot_is_whole(index):
                found.append((path, "the snapshot is damaged"))
        except FileNotFoundError:
            continue  # a newer one has taken its place meanwhile
    return found


def _block_damage(
    store_id: bytes, stream: StreamState, row: np.void, directory: Path, volume: str, env: Environment
) -> list[Damage]:
    path = block_path(str(directory), bytes(row["block_id"]))
    first, end = int(row["first"]), int(row["first"] + row["span"])

    def whole(reason: str, offset_bytes: int = 0) -> list[Damage]:
        return [Damage(stream.name, volume, str(path), offset_bytes, first, end, reason)]

    try:
        file = env.files.open(path)
    except FileNotFoundError:
        return whole("the file is missing")
    except OSError as error:
        return whole(f"the file cannot be opened: {error}")
    try:
        expected = BlockExpectation(
            store_id, stream.incarnation, bytes(row["block_id"]), bytes(row["digest"]), int(row["file_size"])
        )
        reader = BlockReader.open(file, expected)
        return [
            Damage(stream.name, volume, str(path), one.offset_bytes, first + one.first, first + one.end, one.reason)
            for one in reader.verify()
        ]
    except (StorageError, OSError) as error:
        offset_bytes, reason = place_and_reason(error)
        return whole(reason, offset_bytes)
    finally:
        file.close()
