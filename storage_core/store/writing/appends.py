"""The commit of an append: staged blocks become part of their streams, in one entry of the metadata log.

A transaction (transactions.py) says where blocks go; tasks write and fsync them through a Stager, each on a majority of
its stream's placement. The commit asks whether this (writer, batch) is there already, checks the copies of the blocks,
and names them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from storage_core.errors import NoQuorumError, RequirementError
from storage_core.metadata import machine
from storage_core.metadata.commands import Append, AppendedBlocks, Event, RecordEvents
from storage_core.raft.rules import majority
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.volume.volumes import Volume
from storage_core.store.writing import rollups
from storage_core.store.writing.batch_content import combined
from storage_core.store.writing.duplicates import MsgIdWindow
from storage_core.store.writing.enforcement import enforce
from storage_core.store.writing.instructions import Condition
from storage_core.store.writing.limits import Limits
from storage_core.store.writing.mirrored_file import is_disk_failure, primary_error
from storage_core.store.writing.per_subject import AppendedSubjects, SubjectIndex
from storage_core.store.writing.retention import release
from storage_core.store.writing.staged_blocks import describe_append, retire, tell_missed
from storage_core.store.writing.staging import StagedBlock, Transaction
from storage_core.store.writing.transactions import abort, check_staged, check_target


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """Identity of an append for exactly-once: a writer stores each batch once."""

    writer: str
    batch: str
    query: str = ""  # Spark's query id; empty for batch jobs
    run: str = ""  # Spark's run id: a newer run fences older ones
    any_content: bool = False  # sent again with other messages, what was stored first counts; else it is refused


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append got in one stream: sequences [first, end)."""

    first: int
    end: int
    duplicate_count: int  # rows among them that are not shown: their msg_id was seen within the window


@dataclass(frozen=True, slots=True)
class CommitResult:
    appended: dict[str, Appended]
    already: bool  # this (writer, batch) was stored before; this time nothing was


def make_directories(session: Session, incarnation: bytes, chosen: Sequence[bytes], env: Environment) -> None:
    """Make the directories of a new stream on those of its volumes that can be written, durably, before it exists.

    Raises NoQuorumError if less than a majority can be written, OSError if that was possible on less than one; the
    others get theirs when they are repaired.
    """
    volumes = [volume for volume in session.writable if volume.volume_id in chosen]
    if len(volumes) < majority(len(chosen)):
        raise NoQuorumError(
            f"{len(volumes)} of the {len(chosen)} volumes for incarnation {incarnation.hex()} can be written, "
            f"{majority(len(chosen))} are needed",
            available=len(volumes),
            needed=majority(len(chosen)),
        )

    def make(volume: Volume) -> None:
        volume.blocks.prepare([incarnation])

    outcomes = env.parallel([partial(make, volume) for volume in volumes])
    failures = []
    for volume, outcome in zip(volumes, outcomes, strict=True):
        if isinstance(outcome, OSError):
            failures.append(outcome)
            if is_disk_failure(outcome):
                session.failed(volume.volume_id, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
    if len(volumes) - len(failures) < majority(len(chosen)):
        raise primary_error(failures)


def commit(
    session: Session,
    transaction: Transaction,
    staged: Sequence[StagedBlock],
    writer: WriterBatch | None,
    overwrite: Sequence[str],
    query: str,
    window: MsgIdWindow,
    limits: Limits,
    subjects: SubjectIndex,
    env: Environment,
    expected: Sequence[Condition] = (),
) -> CommitResult:
    """Name the staged blocks; see Store.commit."""
    if transaction.is_from_cache:
        for target in transaction.targets.values():
            check_target(session, target)
    check_staged(transaction, staged)
    by_stream: dict[str, list[StagedBlock]] = {name: [] for name in transaction.targets}
    for block in sorted(staged, key=lambda block: (block.partition, block.position)):
        by_stream[block.stream].append(block)
    chosen = {
        name: blocks
        for name, blocks in by_stream.items()
        if blocks or name in overwrite or expected or (writer is not None and len(by_stream) == 1)
    }
    if not chosen and (writer is None or not transaction.is_routed):
        return CommitResult({}, False)
    # Asked before the blocks are looked at: those of a batch that is stored, or of an aborted transaction, may be gone.
    nothing = [
        AppendedBlocks(transaction.targets[name].incarnation, b"", (), b"", overwrite=name in overwrite)
        for name in chosen
    ]
    content = _content(staged) if writer is not None else b""
    result = session.check(_append(transaction, nothing, writer, content, query))
    assert isinstance(result, machine.AppendDone)
    failures = [failure for blocks in chosen.values() for block in blocks for failure in block.failures]
    if result.already:  # durably told: this run fences the one before it
        session.propose(_append(transaction, nothing, writer, content, query))
    else:
        retire(session, failures)
        for name in chosen:  # what is too old makes room, where there is none for anything new
            enforce(session, transaction.targets[name].incarnation, limits, subjects)
        parts = [
            describe_append(
                session, transaction.targets[name], blocks, name in overwrite, window, subjects, env,
                transaction.is_from_cache, expected,
            )
            for name, blocks in chosen.items()
        ]  # fmt: skip
        result = session.propose(_append(transaction, [part for part, _ in parts], writer, content, query))
        assert isinstance(result, machine.AppendDone)
        for name, (_, superseded) in zip(chosen, parts, strict=True):
            incarnation, got = transaction.targets[name].incarnation, result.appended[name]
            session.when_committed(partial(limits.remember, session.state, incarnation, chosen[name], got.first))
            if superseded is not None:
                session.when_committed(AppendedSubjects(subjects, incarnation, got.first, got.end, superseded.new))
    assert isinstance(result, machine.AppendDone)
    for name in {block.stream for block in staged if block.has_rollup} & result.appended.keys():
        got = result.appended[name]
        _roll_up(session, transaction.targets[name].incarnation, range(got.first, got.end), limits, env)
    for name, got in result.appended.items() if not result.already else ():
        new = SequenceSet.from_ranges([(got.first, got.end)])
        release(session, transaction.targets[name].incarnation, limits, env, new)
    for name in chosen:
        enforce(session, transaction.targets[name].incarnation, limits, subjects)
    if result.already:
        assert writer is not None
        session.follow_up(partial(_tell_again, session, writer, content, result))
        session.follow_up(partial(abort, session, transaction))  # what was staged this time
    else:
        session.follow_up(partial(tell_missed, session, failures))
    appended = {
        name: Appended(numbered.first, numbered.end, numbered.duplicate_count)
        for name, numbered in result.appended.items()
    }
    return CommitResult(appended, result.already)


def _roll_up(session: Session, incarnation: bytes, new: range, limits: Limits, env: Environment) -> None:
    """Remove what new messages take the place of; raises if what is there cannot be read: the append is refused."""
    stream = session.state.by_incarnation(incarnation)
    assert stream is not None, incarnation  # appended to just now
    command = rollups.command(session.state, stream, new, session.volumes, limits, env)
    if command is not None:
        session.propose(command)


def _append(
    transaction: Transaction, parts: Sequence[AppendedBlocks], writer: WriterBatch | None, content: bytes, query: str
) -> Append:
    batch = writer or WriterBatch("", "", query)
    is_routed = transaction.is_routed and bool(batch.writer)
    return Append(
        transaction.id,
        tuple(parts),
        batch.writer,
        batch.batch,
        batch.query,
        batch.run,
        content,
        batch.any_content,
        is_routed,
    )


def _content(staged: Sequence[StagedBlock]) -> bytes:
    """Return what the whole batch holds; raises RequirementError if a task did not hash its messages."""
    for block in staged:
        if block.hash_sum is None:
            raise RequirementError(
                f"stream {block.stream!r}: block {block.summary.block_id.hex()} was staged for no writer, so its "
                "content is not known; stage the batch of a writer with hashes"
            )
    return combined((block.summary.row_count, block.hash_sum or 0) for block in staged)


def _tell_again(session: Session, writer: WriterBatch, content: bytes, result: machine.AppendDone) -> None:
    """Record that a batch was sent again and not stored: whoever sent it may have meant another one."""
    stored = [
        session.state.streams[name.casefold()].writers[writer.writer].find(writer.batch) for name in result.appended
    ]
    is_same = all(batch is None or batch.content in (b"", content) for batch in stored)
    outcome = "nothing was stored this time" if is_same else "with other content; what was stored first counts"
    reason = f"batch {writer.batch!r} of writer {writer.writer!r} came again: {outcome}"
    stream = next(iter(result.appended)) if len(result.appended) == 1 else ""
    session.propose(RecordEvents((Event("batch_again", stream, reason=reason),)))
