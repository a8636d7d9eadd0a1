"""Reading slices: what an executor does with a plan.

Each block is opened against what the manifest says of it (store, incarnation, block id, size, footer digest); frames
are checked by their CRC32C. Damage is told with stream, sequences, file and offset, and never served. A block whose
file is gone is looked up in the store: was it removed too long ago (the plan is stale), or is it lost?
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.block.damage import Defect, FrameDamage
from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import (
    CorruptionError,
    DataLossError,
    StalePlanError,
    StorageError,
    TruncatedRecordError,
    UnsupportedVersionError,
)
from storage_core.files import File
from storage_core.sequences import SequenceSet
from storage_core.store.environment import REAL, Environment
from storage_core.store.identity import read_identity
from storage_core.store.messages import message_sizes
from storage_core.store.plan import BlockSlice
from storage_core.store.turn import Metadata

logger = logging.getLogger(__name__)


REMEDY = "to read the rest, say on_loss='skip' (in Spark failOnDataLoss=false); `jstream verify` lists all damage"


@dataclass(frozen=True, slots=True)
class ReadDamage:
    """Messages that a read could not serve."""

    stream: str
    file: str
    offset_bytes: int
    first: int  # sequences [first, end) are affected; removed ones among them are not missed
    end: int
    reason: str

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r}: sequences {self.first} to {self.end - 1} cannot be read: {self.reason} "
            f"({self.file}, offset_bytes {self.offset_bytes})"
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How slices are read."""

    columns: tuple[str, ...]  # of schema.READ_FIELDS, in the order in which they come out
    subject_filters: tuple[str, ...] = ()
    time_first_ns: int | None = None
    time_end_ns: int | None = None
    verify: bool = True  # check frame checksums
    on_loss: str = "raise"  # or "skip": report, and go on with what is whole


def read_slices(
    slices: Sequence[BlockSlice],
    options: ReadOptions,
    report: Callable[[ReadDamage], None] | None = None,
    env: Environment = REAL,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices in order, as batches of `schema.read_schema(options.columns)`.

    Raises DataLossError at the first row that cannot be served (unless on_loss is "skip"; then `report` hears of it),
    StalePlanError if the plan is older than the store keeps what it names.
    """
    for one in slices:
        yield from _read_slice(one, options, report, env)


def _read_slice(
    one: BlockSlice, options: ReadOptions, report: Callable[[ReadDamage], None] | None, env: Environment
) -> Iterator[pa.RecordBatch]:
    path = Path(one.paths[0])

    def lost(
        offset_bytes: int, reason: str, cause: Exception | None = None, first: int = one.first, end: int = one.end
    ) -> None:
        damage = ReadDamage(one.stream, str(path), offset_bytes, first, end, reason)
        if report is not None:
            report(damage)
        if options.on_loss != "skip":
            raise DataLossError(f"{damage}; {REMEDY}") from cause

    def frame_lost(damage: FrameDamage) -> None:
        if damage.row_count:
            first, end = max(damage.first, one.first), min(damage.end, one.end)
            lost(damage.offset_bytes, damage.reason, first=first, end=end)

    try:
        file = env.files.open(path)
    except FileNotFoundError as error:
        reason = _why_missing(one, path, env)
        lost(0, reason, error)
        return
    except OSError as error:
        lost(0, f"the file cannot be opened: {error.strerror}", error)
        return
    try:
        try:
            reader = BlockReader.open(_Readable(file), expectation(one))
        except UnsupportedVersionError:
            raise
        except (CorruptionError, TruncatedRecordError, OSError) as error:
            lost(*place_and_reason(error), error)
            return
        request = FrameRequest(
            columns=options.columns,
            stream=one.stream,
            first_sequence=one.block_first,
            first=one.first,
            end=one.end,
            time_first_ns=options.time_first_ns,
            time_end_ns=options.time_end_ns,
            subject_filters=options.subject_filters,
            removed=SequenceSet.decode(one.removed) if one.removed else None,
            verify=options.verify,
            on_damage=frame_lost,
        )
        yield from reader.read(request)
    finally:
        file.close()


class _Readable:
    """A file in which a frame that the disk does not give back counts as cut off: those around it may be whole."""

    def __init__(self, file: File) -> None:
        self._file, self.path = file, file.path
        self.read_at, self.size, self.close = file.read_at, file.size, file.close
        self.write_at, self.truncate, self.sync = file.write_at, file.truncate, file.sync

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        try:
            return self._file.read_into(offset_bytes, buffer)
        except OSError as error:
            logger.warning("%s: offset_bytes %s: %s", self.path, offset_bytes, error)
            return 0


@contextmanager
def open_block(one: BlockSlice, env: Environment = REAL) -> Iterator[BlockReader]:
    """Open the slice's block against what the manifest says of it; raises DataLossError if that is not possible."""
    path = Path(one.paths[0])
    try:
        file = env.files.open(path)
    except OSError as error:
        raise DataLossError(str(ReadDamage(one.stream, str(path), 0, one.first, one.end, str(error)))) from error
    try:
        yield BlockReader.open(file, expectation(one))
    except (CorruptionError, TruncatedRecordError, OSError) as error:
        offset_bytes, reason = place_and_reason(error)
        raise DataLossError(str(ReadDamage(one.stream, str(path), offset_bytes, one.first, one.end, reason))) from error
    finally:
        file.close()


def place_and_reason(error: Exception) -> tuple[int, str]:
    """Return offset_bytes and reason of an error about a block, without the file's name."""
    defect = error.args[0] if error.args else None
    return (defect.offset_bytes, defect.reason) if isinstance(defect, Defect) else (0, str(error))


def expectation(one: BlockSlice) -> BlockExpectation:
    return BlockExpectation(one.store_id, one.incarnation, one.block_id, one.digest, one.file_size)


def measured(
    slices: Sequence[BlockSlice], wanted: SequenceSet | None, env: Environment = REAL
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (sequences, message bytes) of the rows that the slices show, batch by batch; `wanted` narrows them."""
    options = ReadOptions(columns=("sequence", "subject", "headers", "data"))
    for batch in read_slices(slices, options, env=env):
        sequences = batch.column("sequence").to_numpy()
        sizes = message_sizes(batch)
        if wanted is not None:
            chosen = wanted.mask(sequences)
            sequences, sizes = sequences[chosen], sizes[chosen]
        yield sequences, sizes


def _why_missing(one: BlockSlice, path: Path, env: Environment) -> str:
    """Return why the block's file may be missing though it should be there; raises StalePlanError if it should not."""
    volume = path.parents[2]
    try:
        metadata = Metadata(env, volume, read_identity(env.files, volume), read_only=True)
        state = metadata.view(0.0).state
    except (StorageError, OSError) as error:
        return f"the file is missing, and the store cannot be asked why: {error}"
    stream = state.by_incarnation(one.incarnation)
    alive = stream is not None and any(bytes(row) == one.block_id for row in stream.blocks.rows["block_id"])
    if not alive:
        raise StalePlanError(
            f"stream {one.stream!r}: this read was planned before sequences {one.first} to {one.end - 1} were removed, "
            "and they are no longer kept; read again"
        )
    return "the file is missing"
