"""Copying a stream from one store into another: with its sequences, times, holes and consumers, exactly once.

The two may be of different kinds, on disks and in object stores. The same command, run again, writes what is missing;
messages that the source got meanwhile come along. What a copy was made from is in its metadata.
"""

from functools import partial
from typing import Any

from storage_core.errors import AlreadyExistsError, DataLossError, NotFoundError
from storage_core.files import File
from storage_core.metadata.config import check_name
from storage_core.metadata.state import StreamState
from storage_core.store.ingest import preparation
from storage_core.store.ingest.assembly import Assembler
from storage_core.store.ingest.backup import stream_summary
from storage_core.store.ingest.block_streams import BlockStream, write_blocks
from storage_core.store.ingest.progress import Progress, ProgressCounter
from storage_core.store.opened import OpenStore
from storage_core.store.replicas import copies
from storage_core.store.replicas.live_blocks import LiveBlock
from storage_core.suggestions import instead

ORIGIN_KEY = "jstream.copy_of"  # of a stream's metadata: the store and the incarnation that it was copied from


def copy_stream(
    source: OpenStore, target: OpenStore, name: str, as_name: str = "", progress: Progress | None = None
) -> dict[str, Any]:
    """Copy a stream into another store; run again, resume, or say that it was done. Returns a report.

    `progress` gets (blocks done, blocks in all). Raises NotFoundError, AlreadyExistsError (the target has another
    stream of that name), DataLossError (a block of which no copy is whole: repair the source first), ValueError (a
    name), and what writing to a store raises; what was written until then is kept for a week, for the same copy.
    """
    state = source.view().state
    stream = state.stream(name)
    if stream is None:
        known = sorted(stream.name for stream in state.streams.values())
        raise NotFoundError(f"no stream {name!r} in {source.label}{instead(name, known)}")
    copied = BlockStream(
        state,
        stream,
        check_name(as_name or name, "as"),
        partial(_open_whole, source, stream),
        "copied",
        f"from {source.label}",
        {ORIGIN_KEY: f"{state.store_id.hex()}/{stream.incarnation.hex()}"},
    )
    existing = target.view().state.stream(copied.name)
    if existing is not None:
        _check_copied(copied, existing, source, target)
        preparation.sweep_records(target, existing)
        return _report(copied, existing, 0, True)
    write = partial(write_blocks, env=target.environment, leaves_records=True)
    counter = ProgressCounter(progress, len(stream.blocks))
    (made,) = Assembler(target, write, counter, rereads=True).assemble([copied])
    return _report(copied, made.stream, made.written_count, False)


def _check_copied(copied: BlockStream, existing: StreamState, source: OpenStore, target: OpenStore) -> None:
    """Raise AlreadyExistsError unless the target has the whole copy."""
    if existing.config.metadata.get(ORIGIN_KEY) != copied.labels[ORIGIN_KEY]:
        raise AlreadyExistsError(
            f"stream {existing.name!r} exists in {target.label}, and is no copy of {copied.original.name!r} of "
            f"{source.label}: copy under another name (--as), or delete that one first"
        )
    if existing.next_sequence < copied.original.next_sequence:
        raise AlreadyExistsError(
            f"stream {existing.name!r} of {target.label} is a copy up to sequence {existing.next_sequence - 1}, and "
            f"the source has {copied.original.next_sequence - 1} by now: delete the copy, and copy again"
        )


def _report(copied: BlockStream, made: StreamState, count: int, already: bool) -> dict[str, Any]:
    consumers = sorted(consumer.name for consumer in made.consumers.values())
    origin = copied.original.name
    return {
        **stream_summary(made), "copy_of": origin, "copied": count, "already": already, "consumers": consumers
    }  # fmt: skip


def _open_whole(source: OpenStore, stream: StreamState, block: LiveBlock) -> File:
    """Open a copy of a block that is whole. Raises DataLossError."""
    wrong = []
    for volume in source.volumes():
        if volume.volume_id not in block.held_by or volume.identity is None:
            continue
        problems = copies.look(block, volume.blocks, stream)
        if not problems:
            return volume.blocks.open(block.written_as, block.block_id)
        wrong.append(f"{block.path_in(volume.blocks)}: {problems[0].reason}")
    raise DataLossError(
        f"stream {block.stream!r}: no copy of sequences {block.first} to {block.end - 1} is whole"
        f"{''.join(f'; {reason}' for reason in wrong)}. Repair the source (jstream repair), then copy again"
    )
