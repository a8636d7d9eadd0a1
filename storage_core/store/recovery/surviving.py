"""What is left of a store whose metadata has no quorum: identities, metadata that can still be read, journals, blocks.

Nothing is decided here and nothing written. A *claim* is what a journal of placements, or a surviving manifest, says of
a block: these sequences, this digest. Journals that an earlier adoption set aside are read as well, the oldest first.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.errors import CorruptionError, NotAStoreError, StorageError, UnsupportedVersionError
from storage_core.metadata.invariants import STREAM_SEQUENCE_MAX
from storage_core.metadata.state import StoreState
from storage_core.os_errors import raise_if_of_process
from storage_core.raft.log_format import PAGE_SIZE, decode_segment_header
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.decision import VolumeLogRead, best_chain
from storage_core.store.ensemble.view import replay
from storage_core.store.environment import Environment
from storage_core.store.recovery.rejoin import FOREIGN_NAME, SET_ASIDE_PREFIX
from storage_core.store.replicas.copies import check_row
from storage_core.store.replicas.live_blocks import expected_of
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.identity import VolumeIdentity, check_no_backup, read_identity
from storage_core.store.volume.log import DIRECTORY, VolumeLog
from storage_core.store.volume.log_contents import LogContents
from storage_core.store.volume.placement_journal import PlacementJournal

logger = logging.getLogger(__name__)
ADOPTED_NAME = "adopted"  # file in a directory of metadata files that were set aside: the adoption was done


@dataclass(slots=True)
class VolumeScan:
    """What one directory has left."""

    path: Path
    identity: VolumeIdentity | None = None
    problem: str = ""  # why there is no identity
    metadata: VolumeLogRead | None = None  # as far as it can be read
    is_readable: bool = False  # all of it can: a session would go by it
    incarnations: list[bytes] = field(default_factory=list)  # directories of blocks
    validated: dict[bytes, str] = field(default_factory=dict)  # by digest of a block: what is wrong with it

    def blocks(self, env: Environment) -> BlockStore:
        return BlockStore(env.files, self.path)


@dataclass(slots=True)
class JournalClaims:
    """What is claimed for one incarnation of a stream."""

    incarnation: bytes
    stream: str
    rows: dict[bytes, np.void] = field(default_factory=dict)  # by block id; BLOCK_DTYPE
    age: int = 0  # of the newest record, in the order of the journals: of two incarnations the later one is newer
    index: int = 0  # of the metadata log when the newest record was written
    conflicts: list[str] = field(default_factory=list)  # for people

    @property
    def end(self) -> int:
        return max((int(row["first"] + row["span"]) for row in self.rows.values()), default=1)

    def add(self, row: np.void, where: str) -> None:
        """Take what a record of a journal says of a block, unless there is no such block."""
        if not (row["first"] >= 1 and 1 <= row["span"] <= STREAM_SEQUENCE_MAX - row["first"]):
            self.conflicts.append(
                f"{where}: block {bytes(row['block_id']).hex()} claims {int(row['span'])} sequences from "
                f"{int(row['first'])} on, and there are none such"
            )
            return
        block_id = bytes(row["block_id"])
        known = self.rows.setdefault(block_id, row)
        if any(known[name] != row[name] for name in ("digest", "first", "span", "file_size")):
            self.conflicts.append(
                f"{where}: block {block_id.hex()} at sequence {int(row['first'])}; elsewhere it is at "
                f"{int(known['first'])}, and that is taken"
            )


def look_at(path: Path, env: Environment) -> VolumeScan:
    """Return what a directory has left. Raises UnsupportedVersionError, NotAStoreError (a backup), OSError."""
    remains = VolumeScan(path)
    if not env.files.is_directory(path):
        remains.problem = f"{path} does not exist"
        return remains
    check_no_backup(env.files, path)
    try:
        remains.identity = read_identity(env.files, path)
    except UnsupportedVersionError:
        raise
    except StorageError as error:
        remains.problem = str(error)
    remains.incarnations = sorted(remains.blocks(env).incarnations())
    return remains


def read_metadata(remains: Sequence[VolumeScan], store_id: bytes, env: Environment) -> None:
    """Read the logs of the volumes, as far as they can be read.

    Those that an adoption set aside count only if there is no other: it was killed before it had written the first.
    """
    for remnant in remains:
        identity = remnant.identity or _identity_in_log(remnant, store_id, env)
        if identity is not None:
            remnant.metadata, remnant.is_readable = _read_log(remnant.path / DIRECTORY, identity, env)
    if any(remnant.metadata is not None for remnant in remains):
        return
    for remnant in remains:
        for directory in reversed(set_aside(remnant, env)):
            try:
                if ADOPTED_NAME in env.files.list_directory(directory):
                    break  # a later log took its place
                identity = read_identity(env.files, directory)
            except StorageError:
                continue
            remnant.metadata, _ = _read_log(directory, identity, env)
            if remnant.metadata is not None:
                remnant.identity = remnant.identity or identity
                break


def _read_log(directory: Path, identity: VolumeIdentity, env: Environment) -> tuple[VolumeLogRead | None, bool]:
    """Return what a log says, None if nothing, and whether it can be read as a session would."""
    log = VolumeLog(env.files, directory.parent, identity)
    log.directory = directory
    contents: LogContents | None
    is_readable = False
    try:
        contents, is_readable = log.read(), True
    except UnsupportedVersionError:
        raise
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        logger.warning("%s: the metadata log cannot be read: %s", directory, error)
        contents = log.read_snapshot()
    if contents is None or (contents.snapshot is None and not contents.entries_by_index):
        return None, False
    return VolumeLogRead(identity.volume_id, str(directory.parent), identity.instance_id, contents), is_readable


def set_aside(remains: VolumeScan, env: Environment) -> list[Path]:
    """Return the directories of metadata files of this store that were set aside on a volume, oldest first."""
    try:
        names = env.files.list_directory(remains.path)
    except OSError as error:
        raise_if_of_process(error)
        return []
    aside = [name for name in names if name.startswith(SET_ASIDE_PREFIX)]
    directories = [remains.path / name for name in sorted(aside, key=lambda name: (len(name), name))]
    return [path for path in directories if FOREIGN_NAME not in env.files.list_directory(path)]


def _identity_in_log(remains: VolumeScan, store_id: bytes, env: Environment) -> VolumeIdentity | None:
    """Return whose volume this is by the header of a log segment, None if no segment says so."""
    log = VolumeLog(env.files, remains.path, VolumeIdentity(store_id, bytes(16), bytes(16), 0))
    try:
        numbers = log.segments()
    except OSError as error:
        raise_if_of_process(error)
        return None
    for number in reversed(numbers):
        try:
            with closing(env.files.open(log.segment_path(number))) as file:
                header = decode_segment_header(file.read_at(0, PAGE_SIZE))
        except (StorageError, OSError) as error:
            raise_if_of_process(error)
            continue
        if header.store_id == store_id:
            return VolumeIdentity(header.store_id, header.volume_id, header.instance_id, 0)
    return None


def best_state(remains: Sequence[VolumeScan]) -> tuple[StoreState, int] | None:
    """Return the newest state that the logs lead to, and its index; None if no log leads anywhere."""
    lead = best_chain([remnant.metadata for remnant in remains if remnant.metadata is not None])
    if lead is None or (lead.snapshot_body is None and not lead.entries):
        return None
    state = replay(lead)
    return (state, lead.tip.index) if state.store_id else None


def store_of(remains: Sequence[VolumeScan], env: Environment) -> bytes:
    """Return the id of the store; raises NotAStoreError if nothing says which, or if there are two."""
    ids = {remnant.identity.store_id: str(remnant.path) for remnant in remains if remnant.identity is not None}
    if not ids:
        for remnant in remains:
            for incarnation, block_id in _blocks(remnant, env):
                store_id = _store_of_block(remnant.blocks(env), incarnation, block_id)
                if store_id is not None:
                    ids.setdefault(store_id, str(remnant.path))
                    break
    if len(ids) > 1:
        text = ", ".join(f"{path} to store {store_id.hex()}" for store_id, path in ids.items())
        raise NotAStoreError(f"the volumes are of several stores: {text}")
    if not ids:
        text = "; ".join(remnant.problem for remnant in remains if remnant.problem)
        raise NotAStoreError(f"nothing of a store is left: {text}")
    return next(iter(ids))


def _blocks(remains: VolumeScan, env: Environment) -> Iterator[tuple[bytes, bytes]]:
    """Yield each block there is: the incarnation that it lies under, and its id."""
    blocks = remains.blocks(env)
    for incarnation in remains.incarnations:
        yield from ((incarnation, block_id) for block_id in sorted(blocks.ids(incarnation)))


def _store_of_block(blocks: BlockStore, incarnation: bytes, block_id: bytes) -> bytes | None:
    """Return the store that a block's header names, None if it has no whole one."""
    try:
        return blocks.identity(incarnation, block_id).store_id
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        return None


def journals(remains: VolumeScan, env: Environment) -> list[PlacementJournal]:
    """Return the journals on a volume, those that were set aside first, oldest first."""
    return [PlacementJournal(env.files, directory) for directory in (*set_aside(remains, env), remains.path)]


def read_claims(remains: Sequence[VolumeScan], env: Environment) -> dict[bytes, JournalClaims]:
    """Return what the journals of all volumes claim, by incarnation."""
    claims: dict[bytes, JournalClaims] = {}
    for remnant in remains:
        age = 0
        for journal in journals(remnant, env):
            try:
                for record in journal.read():
                    age += 1
                    known = claims.setdefault(record.incarnation, JournalClaims(record.incarnation, record.stream))
                    known.age, known.index = max(known.age, age), max(known.index, record.index)
                    for row in record.rows:
                        known.add(row, str(journal.path))
            except (StorageError, OSError) as error:
                raise_if_of_process(error)
                logger.warning("%s: the journal of placements cannot be read: %s", journal.path, error)
    return claims


@dataclass(frozen=True, slots=True)
class Copy:
    """A block as it was found."""

    row: np.void
    written_as: bytes
    holders: tuple[int, ...]  # positions of the volumes on which it opens, and is what was claimed
    holes: SequenceSet  # relative sequences below its span that it has no message of


def find_copies(
    row: np.void,
    written_as: Sequence[bytes],
    store_id: bytes,
    remains: Sequence[VolumeScan],
    env: Environment,
    content: bool,
) -> Copy | None:
    """Return where the block of a claim is whole, as far as header, footer and digest tell; None if nowhere.

    Its footer has to say what the claim says. A claim that only a journal makes is vouched for by nobody (`content`):
    its messages are validated, too.
    """
    block_id = bytes(row["block_id"])
    for incarnation in written_as:
        expected = expected_of(store_id, incarnation, row)
        holders, holes = [], SequenceSet.empty()
        for at, remnant in enumerate(remains):
            try:
                file = remnant.blocks(env).open(incarnation, block_id)
            except OSError as error:
                raise_if_of_process(error)
                continue
            try:
                reader = BlockReader.open(file, expected)
                check_row(row, reader)
                if content:
                    _check_content(reader, remnant)
                runs = reader.footer.runs
                holes = SequenceSet.from_ranges([(0, int(row["span"]))]).difference(SequenceSet(runs.starts, runs.ends))
                holders.append(at)
            except UnsupportedVersionError:
                raise
            except (StorageError, OSError) as error:
                raise_if_of_process(error)
                logger.warning("%s is not what is claimed of it: %s", file.path, error)
                continue
            finally:
                file.close()
        if holders:
            return Copy(row, incarnation, tuple(holders), holes)
    return None


def _check_content(reader: BlockReader, remains: VolumeScan) -> None:
    """Raise CorruptionError if messages of a block are none though its checksums hold.

    A frame whose checksum fails is damaged, which is for repair to deal with. Each block of a volume is looked at once.
    """
    digest = reader.summary().digest
    if digest not in remains.validated:
        wrong = list(reader.verify(content=True))
        damaged = set(reader.verify()) if wrong else set()
        remains.validated[digest] = next((str(damage) for damage in wrong if damage not in damaged), "")
    if remains.validated[digest]:
        raise CorruptionError(remains.validated[digest])


def unclaimed(remains: Sequence[VolumeScan], claimed: set[bytes], env: Environment) -> list[Path]:
    """Return the block files that no claim speaks of."""
    return [
        remnant.blocks(env).path(incarnation, block_id)
        for remnant in remains
        for incarnation, block_id in _blocks(remnant, env)
        if block_id not in claimed
    ]


def subjects_of(remains: VolumeScan, copy: Copy, store_id: bytes, env: Environment) -> list[str]:
    """Return the subjects in a block, as far as its footer lists them."""
    row = copy.row
    expected = expected_of(store_id, copy.written_as, row)
    with closing(remains.blocks(env).open(copy.written_as, expected.block_id)) as file:
        subjects = BlockReader.open(file, expected).footer.subjects
    names: list[str] = subjects.names.to_pylist() if subjects.is_exact else []
    return names
