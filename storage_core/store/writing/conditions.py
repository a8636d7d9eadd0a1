"""Conditional appends: what a message, or a whole append, expects of its stream; it is refused where that is not so.

A message says it in headers, as for a nats-server: `Nats-Expected-Last-Sequence` and the others. The session of the
append looks, against all that is committed and all that its round has staged before, and the entry carries the last
sequence that it looked at. So a condition holds between threads, processes and hosts.

A message counts with those before it in its append. As in a nats-server 2.12 and later, a duplicate has to meet
conditions on sequences as well.

Source: nats-server 2.15.1, compared in tests/storage_core/store/writing/test_conditions.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core import buffers
from storage_core.block.hashing import msg_id_hashes
from storage_core.errors import ConditionFailedError
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.reading.latest import last_sequence
from storage_core.store.reading.plan import ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, ask_block, read_slices
from storage_core.store.reading.slices import BlockSlice
from storage_core.store.writing.duplicates import msg_ids
from storage_core.store.writing.instructions import LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE, Condition
from storage_core.store.writing.per_subject import SubjectIndex
from storage_core.store.writing.staging import StagedBlock
from storage_core.subject_columns import match_mask
from storage_core.subjects import is_literal


def of_blocks(blocks: Iterable[StagedBlock]) -> list[Condition]:
    """Return what the messages of these blocks expect, in their order, rows counted within the append."""
    conditions, first = [], 0
    for block in blocks:
        conditions += [replace(condition, row=first + condition.row) for condition in block.conditions]
        first += block.summary.span
    return conditions


def check(
    session: Session,
    stream: StreamState,
    conditions: Sequence[Condition],
    staged: Sequence[BlockSlice],
    duplicates: SequenceSet,
    overwrite: bool,
    subjects: SubjectIndex,
    env: Environment,
) -> None:
    """Raise ConditionFailedError for the first condition that does not hold.

    `staged`: the blocks of the append, and `duplicates` among their messages, which begin at sequence 0; `overwrite`:
    what the stream has so far is removed with the append. Raises DataLossError, UnavailableError if what was asked for
    cannot be read.
    """
    last = stream.next_sequence - 1
    by_subject = [condition for condition in conditions if condition.kind == LAST_SUBJECT_SEQUENCE]
    in_stream = {} if overwrite else _last_of_subjects(session, stream, by_subject, subjects, env)
    in_append = _Rows(staged, [condition.subject for condition in by_subject], duplicates, env)
    for condition in conditions:
        actual: int | None
        if condition.kind == LAST_SEQUENCE:
            actual = last + condition.row
        elif condition.kind == LAST_SUBJECT_SEQUENCE:
            row = in_append.last_before(condition.row, condition.subject)
            actual = in_stream.get(condition.subject, 0) if row is None else last + 1 + row
        elif condition.row in duplicates:
            continue
        else:
            blocks, before = staged, condition.row - 1
            if not condition.row:
                blocks, before = ([], 0) if overwrite else _newest_message(session, stream)
            if _has_msg_id(blocks, before, str(condition.expected), env):
                continue
            actual = None
        if actual != condition.expected:
            subject = condition.subject or None
            raise ConditionFailedError(stream.name, condition.kind, condition.expected, actual, subject)


class _Rows:
    """The subjects of an append's messages, as far as conditions ask for them."""

    def __init__(
        self, staged: Sequence[BlockSlice], filters: Sequence[str], duplicates: SequenceSet, env: Environment
    ) -> None:
        distinct = tuple(dict.fromkeys(filters))
        self._rows: dict[str, np.ndarray] = {}
        if not distinct or sum(block.row_count for block in staged) < 2:
            return
        batches = list(read_slices(staged, ReadOptions(("sequence", "subject"), distinct), env=env))
        sequences = np.concatenate([np.empty(0, np.int64), *(buffers.numbers(batch["sequence"]) for batch in batches)])
        names = pa.chunked_array([batch["subject"] for batch in batches], pa.string()).combine_chunks()
        is_new = ~duplicates.mask(sequences)
        for subject_filter in distinct:
            taken = buffers.mask(match_mask((subject_filter,), names))
            self._rows[subject_filter] = sequences[taken & is_new]

    def last_before(self, row: int, subject_filter: str) -> int | None:
        """Return the last message before `row` that the filter takes; None if there is none."""
        rows = self._rows.get(subject_filter)
        count = int(np.searchsorted(rows, row)) if rows is not None else 0
        return int(rows[count - 1]) if rows is not None and count else None


def _last_of_subjects(
    session: Session, stream: StreamState, conditions: Sequence[Condition], subjects: SubjectIndex, env: Environment
) -> dict[str, int]:
    """Return the last sequence of each filter that conditions name, where the stream shows a message of it."""
    filters = list(dict.fromkeys(condition.subject for condition in conditions))
    names = [name for name in filters if is_literal(name)]
    last_of: dict[str, int] = {}
    if names and stream.message_count:
        last = subjects.last(session, stream, msg_id_hashes(pa.array(names, pa.string())), names)
        last_of = {name: int(sequence) for name, sequence in zip(names, last, strict=True) if sequence}
    for subject_filter in filters:
        if not is_literal(subject_filter):
            request = ReadRequest((stream.name,), subject_filters=(subject_filter,))
            blocks, _ = plan_stream(session.state, stream, session.volumes, request)
            last_of[subject_filter] = last_sequence(blocks, subject_filter, env) or 0
    return last_of


def _newest_message(session: Session, stream: StreamState) -> tuple[Sequence[BlockSlice], int]:
    """Return the block of the newest message that the stream shows, and the message's sequence; none without."""
    shown = stream.shown(stream.low_watermark, stream.next_sequence)
    if not shown:
        return [], 0
    sequence = int(shown.ends[-1]) - 1
    request = ReadRequest((stream.name,), {stream.name: (sequence, sequence + 1)})
    return plan_stream(session.state, stream, session.volumes, request)[0], sequence


def _has_msg_id(blocks: Sequence[BlockSlice], sequence: int, msg_id: str, env: Environment) -> bool:
    """Return whether the message at `sequence`, in one of these blocks, has this msg_id."""
    wanted = msg_id_hashes(pa.array([msg_id], pa.string()))[0]
    for block in blocks:
        if block.first <= sequence < block.end:
            hashes = ask_block(block, msg_ids, env)
            rows = hashes[hashes[:, 2] == sequence - block.block_first, :2]
            return bool((rows == wanted).all(axis=1).any())
    return False
