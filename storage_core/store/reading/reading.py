"""Reading slices: what an executor does with a plan.

Each copy of a block is opened against what the manifest says of it (store, incarnation, block id, size, footer
digest); frames are checked by their CRC32C. What is damaged is never served. The rows of a copy that cannot be opened,
and the rows of a damaged frame, come from the next copy, in their place: copies with the same digest have the same
frames. What was found bad is reported with stream, sequences, file and offset, and left as a report on another volume,
so that it is repaired. Only rows that no copy has are lost; if the block is gone from every volume, the store is asked
where its messages are now (it was merged), or whether they were removed too long ago (the plan is stale).

What cannot be read is not always lost. A volume that is away may come back with what it has, as may a disk whose place
another one took (losses.py), and an error of the
process (os_errors.py) says nothing about any copy. Where another copy serves, neither matters; where none does, the
read fails, also one that goes on past losses: it would pass over messages that are there.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.damage import Defect, FrameDamage
from storage_core.block.format import BlockExpectation
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.block.sizing import message_sizes
from storage_core.errors import DataLossError, StorageError, UnavailableError, UnsupportedVersionError
from storage_core.files import File, ReadingAhead
from storage_core.metadata.reconcile import FAIL
from storage_core.os_errors import is_away, is_of_process, of_process
from storage_core.paths import is_in_object_store, place
from storage_core.sequences import SequenceSet
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.plan import BlockSlice, CopyPlace
from storage_core.store.reading.successors import Successors
from storage_core.store.volume import losses, reports, volumes
from storage_core.store.volume.block_store import BlockStore

logger = logging.getLogger(__name__)
T = TypeVar("T")
Rows = Generator[pa.RecordBatch, None, bool]  # returns whether every row that was asked for was there

REMEDY = (
    "to read the rest, say on_data_loss='continue' (in Spark failOnDataLoss=false, in a shell "
    "--on-data-loss continue); "
    "`jstream verify` lists all damage"
)
OPENED_AHEAD_REMOTE = 4  # blocks; the small ones of them are whole in memory, of at most 5 MiB each
REPORT = "report"  # a third policy for data loss, of our own: for callers who pass over nothing by what they read


@dataclass(frozen=True, slots=True)
class ReadDamage:
    """A copy that a read found damaged or missing, and the messages that it could not serve from there."""

    stream: str
    file: str
    offset_bytes: int
    first: int  # sequences [first, end) are affected; removed ones among them are not missed
    end: int
    reason: str
    served: bool = False  # another copy had all of them: nothing is lost
    is_away: bool = False  # what may have them could not be asked: nobody knows whether they are lost

    def __str__(self) -> str:
        outcome = "were read from another copy" if self.served else "cannot be read"
        return (
            f"stream {self.stream!r}: sequences {self.first} to {self.end - 1} {outcome}: {self.reason} "
            f"({self.file}, offset_bytes {self.offset_bytes})"
        )

    def fields(self) -> dict[str, str | int]:
        """Return the fields of an error about it."""
        names = ("stream", "file", "offset_bytes", "first", "end")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How slices are read."""

    columns: tuple[str, ...]  # of schema.READ_FIELDS, in the order in which they come out
    subject_filters: tuple[str, ...] = ()
    time_first_ns: int | None = None
    time_end_ns: int | None = None
    verify: bool = True  # check frame checksums
    # FAIL; CONTINUE: report losses, and read what is whole; REPORT: the same, also where a volume is away.
    on_data_loss: str = FAIL


def read_slices(
    slices: Sequence[BlockSlice],
    options: ReadOptions,
    report: Callable[[ReadDamage], None] | None = None,
    env: Environment = REAL,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices in order, as batches of `schema.read_schema(options.columns)`.

    `report` hears of every bad copy that was met: with `served` after its rows came from another one, without for rows
    that no copy has. Raises DataLossError at the first of those (with FAIL), UnavailableError if nobody
    can say yet whether they are lost, ProcessError, and StalePlanError if the plan is older than the store keeps what
    it names.
    """
    successors = Successors(env)
    reading: _Reading | None = None
    upcoming: deque[_Reading] = deque()
    try:
        for number, slice_ in enumerate(slices):
            reading = upcoming.popleft() if upcoming else _Reading(slice_, options, report, env, successors)
            # Who came to the second will want the others; the first may be enough.
            last = min(number + _ahead_count(slice_), len(slices) - 1) if number else 0
            for at in range(number + len(upcoming) + 1, last + 1):
                upcoming.append(_Reading(slices[at], options, report, env, successors))
                upcoming[-1].begin()
            yield from reading.rows(slice_.first, slice_.end, 0, ())
            reading.close()
    finally:
        for opened in (reading, *upcoming):
            if opened is not None:
                opened.close()


def _ahead_count(slice_: BlockSlice) -> int:
    """Return how many blocks are opened ahead: more where each takes round trips."""
    is_remote = bool(slice_.copies) and is_in_object_store(slice_.copies[0].uri)
    return OPENED_AHEAD_REMOTE if is_remote else 1


@dataclass(frozen=True, slots=True)
class _Failure:
    """Something wrong with one copy."""

    copy: CopyPlace
    path: Path
    offset_bytes: int
    reason: str
    error: Exception | None
    is_bad: bool  # False: the copy is not there, and nobody said that it would be; or nothing is known of it
    is_away: bool = False  # its volume is: nothing is known of the copy

    def __str__(self) -> str:
        return f"{self.reason} ({self.path}, offset_bytes {self.offset_bytes})"


class _Reading:
    """One slice being read: its copies, opened when they are needed, and what was found wrong with them.

    A frame that is damaged in copy i is asked for from the copies behind i, so that each range meets each copy once.
    """

    def __init__(
        self,
        block_slice: BlockSlice,
        options: ReadOptions,
        report: Callable[[ReadDamage], None] | None,
        env: Environment,
        successors: Successors,
    ) -> None:
        self._slice, self._options, self._report, self._env = block_slice, options, report, env
        self._successors = successors
        self._opened: list[_Copy | _Failure] = []  # of its copies, as far as they were tried
        self._opening: Callable[[], _Copy | _Failure] | None = None  # waits for the first of them
        self._left_reports: set[bytes] = set()  # volumes
        self._why_missing = ""  # what the store says of a copy that is gone
        self._is_unsure = False  # it could not say

    def begin(self) -> None:
        """Have the first copy opened while something else is done, where its volume has a thread for that."""
        if self._slice.copies:
            self._opening = _begin_opening(self._slice, self._slice.copies[0], self._env)

    def close(self) -> None:
        if self._opening is not None:
            self._copy(0)
        for copy in self._opened:
            if isinstance(copy, _Copy):
                copy.close()

    def rows(self, first: int, end: int, start: int, before: tuple[_Failure, ...]) -> Rows:
        """Yield the rows of [first, end) from the first copy from `start` on that can be opened.

        `before`: what is wrong with the copies that were asked for this range already.
        """
        passed: list[_Failure] = []
        for at in range(start, len(self._slice.copies)):
            is_new = at == len(self._opened)
            copy = self._copy(at)
            if isinstance(copy, _Copy):
                for failure in passed:
                    self._leave_report(failure, self._slice.first, self._slice.end)
                whole = yield from self._rows_of(copy, at, first, end, before)
                break
            before = (*before, copy)
            if is_new:
                passed.append(copy)
        else:
            return (yield from self._from_successors(first, end, before))
        if whole:
            for failure in passed:
                self._tell(failure, first, end)
        return whole

    def _from_successors(self, first: int, end: int, before: tuple[_Failure, ...]) -> Rows:
        """Yield the rows of [first, end) from the blocks that the store has them in now; if there are none, say so."""
        if any(isinstance(failure.error, FileNotFoundError) for failure in before):
            successors = self._successors.of(self._slice)
            if not isinstance(successors, str):
                whole = True
                for slice_ in successors:
                    with closing(_Reading(slice_, self._options, self._report, self._env, self._successors)) as reading:
                        part = max(slice_.first, first), min(slice_.end, end)
                        if part[0] < part[1]:
                            whole = (yield from reading.rows(*part, 0, ())) and whole
                return whole
            self._why_missing = successors
            is_somewhere = any(
                failure.error is not None and not isinstance(failure.error, FileNotFoundError) for failure in before
            )
            self._is_unsure = not self._successors.was_asked and not is_somewhere
        self._lose(first, end, before)
        return False

    def _rows_of(self, copy: "_Copy", at: int, first: int, end: int, before: tuple[_Failure, ...]) -> Rows:
        """Yield the rows of [first, end) from one copy, those of its damaged frames from the ones behind it."""
        damaged: list[tuple[FrameDamage, _Failure]] = []
        whole = True

        def hear(damage: FrameDamage) -> None:
            if damage.row_count:
                damaged.append((damage, copy.failure(damage)))

        for batch in copy.reader.read(self._request(first, end, hear)):
            if damaged:  # frames that come before this one
                whole = (yield from self._elsewhere(at, first, end, damaged, before)) and whole
            yield batch
            del batch  # while the next frame is read, one is enough
        return (yield from self._elsewhere(at, first, end, damaged, before)) and whole

    def _elsewhere(
        self, at: int, first: int, end: int, damaged: list[tuple[FrameDamage, _Failure]], before: tuple[_Failure, ...]
    ) -> Rows:
        """Yield the rows of damaged frames of copy `at` from the copies behind it; empties `damaged`."""
        whole = True
        frames, damaged[:] = list(damaged), []
        for frame, failure in frames:
            self._leave_report(failure, frame.first, frame.end)
            part = max(frame.first, first), min(frame.end, end)
            if (yield from self.rows(*part, at + 1, (*before, failure))):
                self._tell(failure, *part)
            else:
                whole = False
        return whole

    def _request(self, first: int, end: int, hear: Callable[[FrameDamage], None]) -> FrameRequest:
        slice_, options = self._slice, self._options
        return FrameRequest(
            columns=options.columns,
            stream=slice_.stream,
            first_sequence=slice_.block_first,
            first=first,
            end=end,
            time_first_ns=options.time_first_ns,
            time_end_ns=options.time_end_ns,
            subject_filters=options.subject_filters,
            removed=SequenceSet.decode(slice_.removed) if slice_.removed else None,
            verify=options.verify,
            on_damage=hear,
        )

    def _copy(self, at: int) -> "_Copy | _Failure":
        """Return a copy, open, or what keeps it from being opened."""
        if at == len(self._opened):
            opening, self._opening = self._opening, None
            self._opened.append(opening() if opening else _open(self._slice, self._slice.copies[at], self._env))
        return self._opened[at]

    # --- telling

    def _tell(self, failure: _Failure, first: int, end: int) -> None:
        """Say of a bad copy that its rows came from another one."""
        if failure.is_bad and self._report is not None:
            self._report(self._damage(failure, first, end, served=True))

    def _lose(self, first: int, end: int, failures: tuple[_Failure, ...]) -> None:
        """Say that no copy has these rows. Raises DataLossError unless that is to be skipped, UnavailableError."""
        _raise_what_says_nothing(failures)
        away = [failure for failure in failures if failure.is_away]
        bad = [*away, *(failure for failure in failures if failure.is_bad)] or [*failures, _nowhere(self._slice)]
        damage = self._damage(bad[0], first, end, served=False)
        former = self._slice.former
        if bad[0].is_away or self._is_unsure or former:
            damage = replace(damage, is_away=True)
        if isinstance(bad[0].error, FileNotFoundError):
            damage = replace(damage, reason=damage.reason + self._why_missing)
        for failure in bad:
            self._leave_report(failure, first, end)
        others = [str(failure) for failure in bad[1:] if failure.is_bad or failure.is_away]
        if others:
            damage = replace(damage, reason=f"{damage.reason}; nor from other copies: {'; '.join(others)}")
        if former:
            damage = replace(damage, reason=f"{damage.reason}; they may be on {', '.join(former)}")
        if self._report is not None:
            self._report(damage)
        if damage.is_away and self._options.on_data_loss != REPORT:
            raise UnavailableError(f"{damage}; {losses.COME_BACK}", **damage.fields()) from bad[0].error
        if self._options.on_data_loss == FAIL:
            raise DataLossError(f"{damage}; {REMEDY}", **damage.fields()) from bad[0].error

    def _damage(self, failure: _Failure, first: int, end: int, served: bool) -> ReadDamage:
        return ReadDamage(
            self._slice.stream, str(failure.path), failure.offset_bytes, first, end, failure.reason, served
        )

    def _leave_report(self, failure: _Failure, first: int, end: int) -> None:
        """Leave word of a bad copy, once a slice and copy: one report is enough to have it repaired."""
        if failure.is_bad and failure.copy.volume_id not in self._left_reports:
            self._left_reports.add(failure.copy.volume_id)
            _leave_report(self._slice, failure, first, end, self._env)


class _Copy:
    """A copy of a block that was opened: header, footer and trailer are those that the manifest names."""

    def __init__(self, copy: CopyPlace, path: Path, file: "_Readable", reader: BlockReader) -> None:
        self.copy, self.path, self.file, self.reader = copy, path, file, reader
        self.close = file.close

    def failure(self, damage: FrameDamage) -> _Failure:
        error, self.file.error = self.file.error, None
        reason = damage.reason if error is None else f"{damage.reason}; {error.strerror or error}"
        return _wrong(self.copy, self.path, damage.offset_bytes, reason, error)


class _Readable:
    """A file in which a frame that the disk does not give back counts as cut off: those around it may be whole."""

    def __init__(self, file: File) -> None:
        self._file, self.path, self.opened_size, self.tag = file, file.path, file.opened_size, file.tag
        self.error: OSError | None = None  # of the last read that failed
        self.read_at, self.size, self.close = file.read_at, file.size, file.close
        self.write_at, self.truncate, self.sync = file.write_at, file.truncate, file.sync

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        if isinstance(self._file, ReadingAhead):
            self._file.expect(ranges)

    def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
        try:
            return self._file.read_into(offset_bytes, buffer)
        except OSError as error:
            logger.warning("%s: offset_bytes %s: %s", self.path, offset_bytes, error)
            self.error = error
            return 0


def _open(block_slice: BlockSlice, copy: CopyPlace, env: Environment) -> _Copy | _Failure:
    """Return a copy, open, or what keeps it from being opened; all of it is one call on its volume."""
    return _begin_opening(block_slice, copy, env)()


def _begin_opening(block_slice: BlockSlice, copy: CopyPlace, env: Environment) -> "Callable[[], _Copy | _Failure]":
    """Return what waits for `_open`, which the volume's thread has begun, if it has one."""
    blocks = copy.blocks(env.files)
    path = blocks.path(block_slice.written_as, block_slice.block_id)
    call = blocks.on_volume(partial(_open_here, block_slice, copy, blocks, path, env))

    def wait(outcome: "Callable[[], _Copy | _Failure]") -> _Copy | _Failure:
        try:
            return outcome()
        except OSError as error:  # no answer in time
            return _cannot_be_opened(copy, path, error)

    try:
        return partial(wait, call.begin() if call.has_thread else call)
    except OSError as error:
        return partial(_cannot_be_opened, copy, path, error)


def _open_here(
    block_slice: BlockSlice, copy: CopyPlace, blocks: BlockStore, path: Path, env: Environment
) -> _Copy | _Failure:
    try:
        file = blocks.open(block_slice.written_as, block_slice.block_id, size=block_slice.file_size)
    except (FileNotFoundError, NotADirectoryError) as error:
        return _missing(block_slice, copy, path, FileNotFoundError(*error.args), env)
    except OSError as error:
        return _cannot_be_opened(copy, path, error)
    readable = _Readable(file)
    try:
        return _Copy(copy, path, readable, BlockReader.open(readable, expectation(block_slice)))
    except (StorageError, OSError) as error:
        file.close()
        return _wrong(copy, path, *place_and_reason(error), error)
    except BaseException:
        file.close()
        raise


def _cannot_be_opened(copy: CopyPlace, path: Path, error: OSError) -> _Failure:
    return _wrong(copy, path, 0, f"the file cannot be opened: {error.strerror}", error)


def _wrong(copy: CopyPlace, path: Path, offset_bytes: int, reason: str, error: Exception | None) -> _Failure:
    """Return what an error says of a copy: that it is bad, unless the error is about something else."""
    says_nothing = error is not None and (is_of_process(error) or is_away(error))
    return _Failure(copy, path, offset_bytes, reason, error, not says_nothing, is_away(error))


def _missing(
    block_slice: BlockSlice, copy: CopyPlace, path: Path, error: FileNotFoundError, env: Environment
) -> _Failure:
    """Return what it says of a copy that there is no such file: nothing if the volume itself is not there."""
    try:
        volume = volumes.load_volume(env.files, place(copy.uri), copy.volume_id, block_slice.store_id)
    except StorageError as why:
        return _wrong(copy, path, 0, str(why), why)
    if volume.identity is None:
        return _Failure(copy, path, 0, f"the volume is away: {volume.reason}", None, False, is_away=True)
    return _Failure(copy, path, 0, reports.FILE_IS_MISSING, error, copy.expected)


def _raise_what_says_nothing(failures: Sequence[_Failure]) -> None:
    """Raise the error of a copy of which nothing is known by it, and nothing shall be made of that."""
    for failure in failures:
        if isinstance(failure.error, UnsupportedVersionError):
            raise failure.error
    for failure in failures:
        if failure.error is not None and is_of_process(failure.error):
            raise of_process(failure.error, failure.path) from failure.error


def _leave_report(block_slice: BlockSlice, failure: _Failure, first: int, end: int, env: Environment) -> None:
    """Leave word of a bad copy on another volume."""
    if not env.leaves_reports:
        return
    volume_id = failure.copy.volume_id
    others = [copy.reports(env.files) for copy in block_slice.copies if copy.volume_id != volume_id]
    if others:
        made = reports.Report(
            block_slice.written_as,
            block_slice.block_id,
            volume_id,
            first,
            end,
            failure.offset_bytes,
            failure.reason,
            env.now_ns(),
        )
        reports.leave(others, made)


def _nowhere(block_slice: BlockSlice) -> _Failure:
    """Return what is wrong where no volume of the stream could be seen when the read was planned."""
    nobody = CopyPlace(b"", "", False)
    return _Failure(
        nobody, Path(block_slice.block_id.hex()), 0, "no volume that has it can be seen", None, False, is_away=True
    )


def ask_block(block_slice: BlockSlice, question: Callable[[BlockReader], T], env: Environment = REAL) -> T:
    """Return what `question` makes of the slice's block, from the first copy on which it can be answered.

    Raises DataLossError if there is none, UnavailableError, ProcessError.
    """
    failures: list[_Failure] = []
    for copy in block_slice.copies:
        opened = _open(block_slice, copy, env)
        if isinstance(opened, _Failure):
            failures.append(opened)
            continue
        try:
            answer = question(opened.reader)
        except (StorageError, OSError) as error:
            failures.append(_wrong(copy, opened.path, *place_and_reason(error), error))
            continue
        finally:
            opened.close()
        for failure in failures:
            if failure.is_bad:
                _leave_report(block_slice, failure, block_slice.first, block_slice.end, env)
        return answer
    _raise_what_says_nothing(failures)
    away = [failure for failure in failures if failure.is_away]
    first, *others = [*away, *(failure for failure in failures if failure.is_bad)] or [*failures, _nowhere(block_slice)]
    also = "".join(f"; nor from another copy: {failure}" for failure in others if failure.is_bad or failure.is_away)
    damage = ReadDamage(
        block_slice.stream, str(first.path), first.offset_bytes, block_slice.first, block_slice.end, first.reason + also
    )
    if block_slice.former:
        damage = replace(damage, reason=f"{damage.reason}; they may be on {', '.join(block_slice.former)}")
    if first.is_away or block_slice.former:
        raise UnavailableError(f"{damage}; {losses.COME_BACK}", **damage.fields()) from first.error
    raise DataLossError(str(damage), **damage.fields()) from first.error


def place_and_reason(error: Exception) -> tuple[int, str]:
    """Return offset_bytes and reason of an error about a block, without the file's name."""
    defect = error.args[0] if error.args else None
    return (defect.offset_bytes, defect.reason) if isinstance(defect, Defect) else (0, str(error))


def expectation(block_slice: BlockSlice) -> BlockExpectation:
    return BlockExpectation(
        block_slice.store_id, block_slice.written_as, block_slice.block_id, block_slice.digest, block_slice.file_size
    )


def measured(
    slices: Sequence[BlockSlice], wanted: SequenceSet | None, env: Environment = REAL
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (sequences, message bytes) of the rows that the slices show, batch by batch; `wanted` narrows them."""
    options = ReadOptions(columns=("sequence", "subject", "headers", "data"))
    for batch in read_slices(slices, options, env=env):
        sequences = buffers.numbers(batch.column("sequence"))
        sizes = message_sizes(batch)
        if wanted is not None:
            chosen = wanted.mask(sequences)
            sequences, sizes = sequences[chosen], sizes[chosen]
        yield sequences, sizes
