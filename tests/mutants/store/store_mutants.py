"""Known mistakes of whole stores, each put into the real code for the time of a `with` block.

The simulation must find every one of them by its invariants alone: if it does not, it would not find the same mistake
made by accident. Where an implementation known to the public had the mistake, the line says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.mutants import Replacement, maker_of
from msgspec import structs

from storage_core.block.reader import BlockReader
from storage_core.chunked_set import ChunkedSet
from storage_core.files import File
from storage_core.metadata import appends, consumers, removals
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.state import StreamState, WriterState
from storage_core.raft import rules
from storage_core.raft.entry import CommitRecord, EntryId
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble import commit_reader, decision, log_recovery, metadata_client, session
from storage_core.store.ensemble.branches import BranchComparison
from storage_core.store.ensemble.commit_reader import CommitReader
from storage_core.store.ensemble.decision import LogDecision, VolumeLogRead, VolumeStatus
from storage_core.store.ensemble.session import Session
from storage_core.store.replicas import repair_tasks
from storage_core.store.replicas.copies import CopyResult
from storage_core.store.replicas.live_blocks import LiveBlock
from storage_core.store.replicas.replicas import Survey
from storage_core.store.volume import log
from storage_core.store.volume.block_store import BlockStore
from storage_core.store.volume.log import VolumeLog
from storage_core.store.writing import limits, orphans
from storage_core.store.writing.mirrored_file import MirroredFile

# --- the log ------------------------------------------------------------------------------------------------------


def acks_before_the_log_is_fsynced() -> list[Replacement]:
    """NATS #7564 flushes every two minutes."""
    return [(log, "_sync", lambda file: None)]


def swallows_a_failed_fsync_of_the_log() -> list[Replacement]:
    """NATS #7788: the error was logged, and the write counted."""

    def sync(file: File) -> None:
        try:
            file.sync()
        except OSError:
            return

    return [(log, "_sync", sync)]


def tries_a_failed_fsync_again() -> list[Replacement]:
    """The second one passes over the pages that the first one gave up, and says that all is well."""

    def sync(file: File) -> None:
        try:
            file.sync()
        except OSError:
            file.sync()

    return [(log, "_sync", sync)]


def moves_the_commit_record_before_the_fsync_of_the_quorum() -> list[Replacement]:
    def flush(self: Session) -> None:
        before, last = self._written.view, self._now.staged[-1]
        generation = before.commit.generation + 1 if before.commit is not None else 1
        for volume_id, position in before.positions.items():
            record = CommitRecord(generation, last.term, last.index, last.chain)
            self._logs[volume_id].write_commit_record(position, record)
        plain(self)

    plain = Session._flush
    return [(Session, "_flush", flush)]


def moves_the_commit_record_of_volumes_that_were_not_fsynced() -> list[Replacement]:
    """A volume whose fsync failed gets the record of the others, which its own log does not lead to."""

    def flush(self: Session) -> None:
        before = self._written.view
        plain(self)
        for volume_id, position in before.positions.items():
            if volume_id not in self.view.positions and self.view.commit is not None:
                try:
                    self._logs[volume_id].write_commit_record(position, self.view.commit)
                except OSError:
                    continue

    plain = Session._flush
    return [(Session, "_flush", flush)]


def counts_what_another_process_left_in_the_page_cache() -> list[Replacement]:
    """Visible is taken for durable: what stands above the commit record is gone on with as it is."""

    def status(one: Any, lead: Any, is_split: bool) -> VolumeStatus:
        made = plain(one, lead, is_split)
        if one.contents.tip == lead.tip and one.contents.tail_is_clean and not one.bad:
            return replace(made, up_to_date=True)
        return made

    plain = decision._status
    return [(decision, "_status", status)]


def goes_on_with_fewer_than_a_majority() -> list[Replacement]:
    fewer = lambda count: max(1, count // 2)  # noqa: E731
    return [(module, "majority", fewer) for module in (rules, decision, metadata_client, commit_reader)]


def locks_a_majority_and_does_not_look_at_the_rest() -> list[Replacement]:
    """The decision rests on the first volumes that make a majority, whatever the others say."""

    def decide(found: Sequence[VolumeLogRead], voters: Any) -> LogDecision:
        enough = len(found) // 2 + 1
        rest = [VolumeLogRead(one.volume_id, one.name, one.instance_id) for one in found[enough:]]
        return plain([*found[:enough], *rest], voters)

    plain = decision.decide
    return [(log_recovery, "decide", decide)]


def lets_the_best_log_outvote_the_majority() -> list[Replacement]:
    """Whatever volume has the highest term and index leads, also one of a copy of the store that was written on."""
    return [(decision.branches, "compare", lambda *arguments: BranchComparison())]


def reads_by_the_highest_commit_record_of_any_volume() -> list[Replacement]:
    """A reader without locks does not ask on which branch the majority stands."""
    return [
        (CommitReader, "_ours", lambda self, logs, commit: (logs, commit)),
        (CommitReader, "_is_of_majority", lambda self, lead, evidences: True),
    ]


def does_not_ask_which_volumes_a_commit_record_names() -> list[Replacement]:
    """Of the last entry of a log nobody says where it was fsynced: a copy that went a single one further leads."""
    return [(decision, "_stated", lambda contents: decision.MergedLog([contents]).statements)]


def takes_the_snapshot_beside_the_applier() -> list[Replacement]:
    """NATS #6153: the state of now under the applied index of a moment ago, so that replay shifts everything."""

    def write(self: VolumeLog, tip: EntryId, history: bytes, body: Any) -> None:
        contents = self.read()
        entries = [one for one in contents.entries if one.index == tip[0] - 1]
        plain(self, entries[0].id if entries else tip, history, body)

    plain = VolumeLog.write_snapshot
    return [(VolumeLog, "write_snapshot", write)]


def drops_the_old_log_before_the_snapshot_is_durable() -> list[Replacement]:
    """NATS #7690: old removed before new is durable."""

    def write(self: VolumeLog, *arguments: Any) -> None:
        files, self._files = self._files, _Passing(self._files, sync_directory=lambda path: None, unsynced=True)
        try:
            plain(self, *arguments)
        finally:
            self._files = files

    plain = VolumeLog.write_snapshot
    return [(VolumeLog, "write_snapshot", write)]


def cuts_the_log_at_its_first_bad_record() -> list[Replacement]:
    """NATS #7549, in the metadata: what follows a bad record is given up, whatever was committed."""

    def read(self: VolumeLog, *arguments: Any, **named: Any) -> Any:
        contents = plain(self, *arguments, **named)
        if contents.bad is not None:
            contents.bad = contents.commit = None
        return contents

    plain = VolumeLog.read
    return [(VolumeLog, "read", read)]


def a_blank_volume_votes() -> list[Replacement]:
    """NATS #7038: a disk that came back blank counts as one that agrees."""

    def check(decided: LogDecision, voting_ids: Sequence[bytes], found: Sequence[VolumeLogRead]) -> None:
        blank = sum(one.contents is None for one in found)
        if len(decided.voting) + blank < len(voting_ids) // 2 + 1:
            plain(decided, voting_ids, found)

    def any_end(voters: Any, ends: Mapping[bytes, EntryId], term: int, commit: int) -> int:
        return max(commit, *(end.index for end in ends.values()))

    plain, one = decision._check_votes, lambda voters, present: bool(present)
    return [(decision, "_check_votes", check), (session, "is_quorum", one), (session, "committed_index", any_end)]


def does_not_hear_what_was_said_of_a_volume() -> list[Replacement]:
    """A disk that was rolled back is taken for one that is a little behind."""
    return [(decision.MergedLog, "_add_statements", lambda self, durable: None)]


# --- blocks -------------------------------------------------------------------------------------------------------


def acks_before_blocks_are_fsynced() -> list[Replacement]:
    def sync(self: MirroredFile) -> None:
        start, gathered = self._start, bytes(self._gathered)
        self._everywhere(lambda file: file.write_at(start, gathered))
        self._start += len(gathered)
        self._gathered.clear()
        for blocks in self._blocks.values():
            blocks.sync(self._incarnation)

    return [(MirroredFile, "sync", sync)]


def acks_before_the_names_of_blocks_are_durable() -> list[Replacement]:
    def sync(self: MirroredFile) -> None:
        start, gathered = self._start, bytes(self._gathered)
        self._everywhere(lambda file: file.write_at(start, gathered))
        self._start += len(gathered)
        self._gathered.clear()
        self._everywhere(lambda file: file.sync())

    return [(MirroredFile, "sync", sync)]


def sweeps_staged_blocks_by_their_age() -> list[Replacement]:
    """Half an hour is long enough, it is thought, and no entry says that the transaction is over."""

    def is_orphan(session: Session, transaction: bytes | None, merges_only: bool, env: Any) -> bool:
        old = transaction is not None and int.from_bytes(transaction[:8], "big") < env.now_ns() - 1_200 * 10**9
        return old or plain(session, transaction, merges_only, env)

    plain = orphans._is_orphan
    return [(orphans, "_is_orphan", is_orphan)]


def serves_frames_without_looking_at_their_checksums() -> list[Replacement]:
    def load(self: BlockReader, position: int, verify: bool) -> Any:
        return plain(self, position, False)

    plain = BlockReader._load
    return [(BlockReader, "_load", load)]


def takes_the_last_sequence_as_proof_of_currency() -> list[Replacement]:
    """NATS #5576: replicas report current while their messages differ."""

    def held(self: Survey, stream: StreamState, volume_id: bytes) -> Any:
        rows = stream.blocks.rows
        return rows["file_size"].astype(np.int64), np.ones(len(rows), np.int64)

    return [(Survey, "_held", held)]


def repairs_with_a_copy_that_nobody_looked_at() -> list[Replacement]:
    """What the source gave back, which was half of it, takes the name of the bad copy."""

    def copy(block: LiveBlock, sources: Sequence[BlockStore], target: BlockStore, own: Any = ()) -> CopyResult:
        source = sources[0].open(block.written_as, block.block_id)
        content = source.read_at(0, source.size() // 2).ljust(source.size(), b"\0")
        replacement = target.replacement(block.written_as, block.block_id)
        made = replacement.create()
        made.write_at(0, content)
        made.sync()
        replacement.put()
        target.sync(block.written_as)
        return CopyResult(True, SequenceSet.empty(), ())

    return [(repair_tasks, "copy_block", copy)]


# --- numbers and batches ------------------------------------------------------------------------------------------


def uses_the_numbers_of_removed_messages_again() -> list[Replacement]:
    """NATS #7693: after what was last is gone, numbering goes on from what is left."""

    def drop(state: Any, stream: StreamState, *arguments: Any) -> Any:
        state, stream = plain(state, stream, *arguments)
        rows = stream.blocks.rows
        end = int(rows["first"][-1] + rows["span"][-1]) if len(rows) else stream.low_watermark
        removed = ChunkedSet.of(stream.removed.clip(stream.low_watermark, end))
        return state, replace(stream, next_sequence=max(end, stream.low_watermark), removed=removed)

    plain = removals.drop_below
    return [(removals, "drop_below", drop), (appends, "drop_below", drop)]


def removes_one_message_more_than_a_limit_asks_for() -> list[Replacement]:
    plain = limits._start_of_newest
    return [(limits, "_start_of_newest", lambda stream, count: plain(stream, max(0, count - 1)))]


def stores_a_batch_that_came_again() -> list[Replacement]:
    return [(WriterState, "find", lambda self, batch: None)]


def forgets_duplicates_among_messages_of_earlier_appends() -> list[Replacement]:
    from storage_core.store.writing.duplicates import MsgIdWindow

    return [(MsgIdWindow, "seen", lambda self, state, stream, volumes, hashes, env: np.zeros(len(hashes), bool))]


# --- consumers, and errors of the process -------------------------------------------------------------------------


def acknowledges_what_it_hands_out() -> list[Replacement]:
    """What a killed process was handed is then never handed out again."""

    def deliver(stream: StreamState, consumer: ConsumerState, command: Any) -> tuple[ConsumerState, int]:
        moved, count = plain(stream, consumer, command)
        return replace(moved, pending=consumer.pending), count

    plain = consumers._deliver
    return [(consumers, "_deliver", deliver)]


def takes_what_is_asked_for_again_as_done() -> list[Replacement]:
    def acknowledge(stream: StreamState, consumer: ConsumerState, command: Any) -> tuple[ConsumerState, int]:
        return plain(stream, consumer, structs.replace(command, kind=consumers.ACK))

    plain = consumers._acknowledge
    return [(consumers, "_acknowledge", acknowledge)]


def blames_the_disk_for_an_error_of_the_process() -> list[Replacement]:
    """A volume is retired since the process had no file descriptor left."""
    return [(session, "is_failure", lambda error: isinstance(error, OSError))]


class _Passing:
    """The files of a process, some calls replaced; new files are never synced."""

    def __init__(self, inner: Any, unsynced: bool = False, **replaced: Any) -> None:
        self.inner, self._replaced, self._unsynced = inner, replaced, unsynced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self.inner, name)

    def create(self, path: Path) -> Any:
        file = self.inner.create(path)
        if self._unsynced:
            file.sync = lambda: None
        return file


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    mutant.__name__: mutant
    for mutant in (
        acks_before_the_log_is_fsynced,
        swallows_a_failed_fsync_of_the_log,
        tries_a_failed_fsync_again,
        moves_the_commit_record_before_the_fsync_of_the_quorum,
        moves_the_commit_record_of_volumes_that_were_not_fsynced,
        counts_what_another_process_left_in_the_page_cache,
        goes_on_with_fewer_than_a_majority,
        locks_a_majority_and_does_not_look_at_the_rest,
        lets_the_best_log_outvote_the_majority,
        reads_by_the_highest_commit_record_of_any_volume,
        does_not_ask_which_volumes_a_commit_record_names,
        takes_the_snapshot_beside_the_applier,
        drops_the_old_log_before_the_snapshot_is_durable,
        cuts_the_log_at_its_first_bad_record,
        a_blank_volume_votes,
        does_not_hear_what_was_said_of_a_volume,
        acks_before_blocks_are_fsynced,
        acks_before_the_names_of_blocks_are_durable,
        sweeps_staged_blocks_by_their_age,
        serves_frames_without_looking_at_their_checksums,
        takes_the_last_sequence_as_proof_of_currency,
        repairs_with_a_copy_that_nobody_looked_at,
        uses_the_numbers_of_removed_messages_again,
        removes_one_message_more_than_a_limit_asks_for,
        stores_a_batch_that_came_again,
        forgets_duplicates_among_messages_of_earlier_appends,
        acknowledges_what_it_hands_out,
        takes_what_is_asked_for_again_as_done,
        blames_the_disk_for_an_error_of_the_process,
    )
}

made = maker_of(MUTANTS)
