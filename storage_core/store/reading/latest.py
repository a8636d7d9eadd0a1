"""The last message of each subject: which messages those are, found from the newest block backwards.

A plan is narrowed to them: everything else counts as removed in its slices, so that reading them, on whatever host,
with all copies and errors, is the same as for any other plan. Memory follows the number of subjects.

A block is not read further where its footer lists only subjects of which newer messages were seen already.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.block.format import FRAME_ROW_COUNT_MAX
from storage_core.block.reader import BlockReader
from storage_core.errors import DataLossError, UnavailableError
from storage_core.metadata.reconcile import FAIL
from storage_core.sequences import SequenceSet
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.reading import ReadDamage, ReadOptions, ask_block, read_slices
from storage_core.store.reading.slices import BlockSlice, BlockSlices, shown_counts
from storage_core.subject_columns import match_mask

PROBE_ROW_COUNT = 4096  # sequences a backward search takes at a time, so that it need not read a block to its start
COMPARED_COUNT_MAX = 1 << 17  # subjects; to look for a block's among more takes longer than to read a piece of it
_LAST_OF = pa.schema([pa.field("subject", pa.string()), pa.field("sequence", pa.int64())])


def latest_only(
    slices: BlockSlices,
    subject_filters: tuple[str, ...] = (),
    on_data_loss: str = FAIL,
    report: Callable[[ReadDamage], None] | None = None,
    env: Environment = REAL,
) -> BlockSlices:
    """Return the slices narrowed to the last message of each subject in each stream, of those that a filter takes.

    Reads subjects. `on_data_loss` and `report` as for `read_slices`, which see: what is lost is passed over or raised.
    """
    rows, streams = slices.rows.copy(), list(slices.streams)
    for at, stream in enumerate(streams):
        (ours,) = np.nonzero(rows["stream"] == at)
        if not len(ours):
            continue
        part = slices[int(ours[0]) : int(ours[-1]) + 1]
        shown = _Search(
            ReadOptions(("subject", "sequence"), subject_filters, on_data_loss=on_data_loss), report, env
        ).of(part)
        everything = SequenceSet.from_ranges([(int(part.rows["first"].min()), int(part.rows["end"].max()))])
        hidden = everything.difference(shown)
        streams[at] = replace(stream, removed=hidden)
        rows["row_count"][ours] = shown_counts(rows["first"][ours], rows["end"][ours], hidden)
    return BlockSlices(rows, tuple(streams)).with_rows()


def last_sequence(slices: BlockSlices, subject_filter: str, env: Environment = REAL) -> int | None:
    """Return the sequence of the newest message that the filter takes, searching backwards; None if there is none."""
    options = ReadOptions(("sequence",), subject_filters=(subject_filter,))
    for block in reversed(slices):
        for part in reversed(block.split(PROBE_ROW_COUNT)):
            columns = [batch.column("sequence") for batch in read_slices([part], options, env=env) if batch.num_rows]
            if columns:
                return int(columns[-1][-1].as_py())
    return None


class _Search:
    """The newest messages of one stream's subjects, gathered piece by piece, newest first."""

    def __init__(self, options: ReadOptions, report: Callable[[ReadDamage], None] | None, env: Environment) -> None:
        self._options, self._report, self._env = options, report, env
        self._last = pa.Table.from_batches([], _LAST_OF)  # one row a subject
        self._new: list[pa.RecordBatch] = []  # rows that came since
        self._new_row_count = 0

    def of(self, slices: BlockSlices) -> SequenceSet:
        for block in reversed(slices):
            listed = self._listed(block)
            for piece in reversed(block.split(FRAME_ROW_COUNT_MAX)):
                if listed is not None and self._has_all(listed):
                    break
                self._add(piece)
        self._merge()
        column = self._last.column("sequence").combine_chunks()
        return SequenceSet.from_sequences(buffers.numbers(column))

    def _listed(self, block: BlockSlice) -> pa.StringArray | None:
        """Return all subjects of the block that are asked for; None if its footer does not list them."""

        def subjects(reader: BlockReader) -> pa.StringArray | None:
            summary = reader.footer.subjects
            return summary.names if summary.is_exact else None

        try:
            names = ask_block(block, subjects, self._env)
        except (DataLossError, UnavailableError):
            return None  # perhaps it was merged just now: reading it follows, or says what is wrong
        if names is None or not self._options.subject_filters:
            return names
        return names.filter(match_mask(self._options.subject_filters, names))

    def _has_all(self, subjects: pa.StringArray) -> bool:
        if self._last.num_rows > COMPARED_COUNT_MAX:
            return False
        self._merge()
        if len(subjects) > self._last.num_rows:
            return False
        known = pc.is_in(subjects, value_set=self._last.column("subject"))
        return not len(known) or bool(pc.all(known).as_py())

    def _add(self, piece: BlockSlice) -> None:
        for batch in read_slices([piece], self._options, self._report, self._env):
            self._new.append(batch)
            self._new_row_count += batch.num_rows
        if self._new_row_count > FRAME_ROW_COUNT_MAX + self._last.num_rows:  # each row is looked at twice on the whole
            self._merge()

    def _merge(self) -> None:
        if not self._new:
            return
        rows = pa.concat_tables([self._last, pa.Table.from_batches(self._new, _LAST_OF)])
        last = rows.group_by("subject", use_threads=False).aggregate([("sequence", "max")])
        self._last = last.select(["subject", "sequence_max"]).rename_columns(_LAST_OF.names).cast(_LAST_OF)
        self._new, self._new_row_count = [], 0
