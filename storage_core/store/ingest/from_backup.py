"""Restoring streams of a backup into a store that there is, beside what it has."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from storage_core.files import File
from storage_core.metadata.config import check_name
from storage_core.metadata.state import StreamState
from storage_core.quantities import rfc3339
from storage_core.store.ingest.assembly import Assembler, check_free
from storage_core.store.ingest.backup import Backup, PathLike, open_backup, selected, stream_summary
from storage_core.store.ingest.block_streams import BlockStream, write_blocks
from storage_core.store.ingest.progress import Progress, ProgressCounter
from storage_core.store.ingest.restore import check_files
from storage_core.store.opened import OpenStore
from storage_core.store.replicas.live_blocks import LiveBlock


def restore_streams(
    store: OpenStore,
    directory: PathLike,
    streams: Sequence[str] | None = None,
    as_names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Restore streams of a backup, None for all, into the store: all of them, or none.

    `as_names`: what to call them, by the name in the backup. `progress` gets (blocks done, blocks in all). Returns
    what was restored. Raises NotFoundError, AlreadyExistsError, ValueError (a name), CorruptionError (the backup is
    damaged), NoQuorumError, DiskFullError, OutcomeUnknownError; unless it is the last, the store is as before.
    """
    env, backup = store.environment, open_backup(directory, store.environment)
    every = sorted(stream.name for stream in backup.state.streams.values())
    chosen = selected(backup, every if streams is None else streams)
    names = _names(chosen, as_names or {})
    state = store.view().state
    for name in names:
        check_free(state, name)
    counter = ProgressCounter(progress, 2 * sum(len(stream.blocks) for stream in chosen))
    check_files(backup, chosen, counter, env)
    blocks, made_at = backup.blocks(env), rfc3339(backup.made_ns)

    def open_block(block: LiveBlock) -> File:
        return blocks.open(block.written_as, block.block_id)

    reason = f"from {backup.directory}, made at {made_at} at index {backup.index}"
    sources = [
        BlockStream(backup.state, stream, name, open_block, "restored", reason)
        for stream, name in zip(chosen, names, strict=True)
    ]
    write = partial(write_blocks, env=env, leaves_records=False)
    Assembler(store, write, counter, resumes=False, rereads=True).assemble(sources)
    return _report(store, backup, chosen, names)


def _names(chosen: Sequence[StreamState], as_names: Mapping[str, str]) -> list[str]:
    """Return what each stream is to be called. Raises ValueError."""
    strange = sorted(set(as_names) - {stream.name for stream in chosen})
    if strange:
        raise ValueError(f"as_names: {strange[0]!r} is not among the streams that are restored")
    names = [check_name(as_names.get(stream.name, stream.name), "as_names") for stream in chosen]
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"as_names: two streams cannot have one name: {', '.join(names)}")
    return names


def _report(store: OpenStore, backup: Backup, chosen: Sequence[StreamState], names: Sequence[str]) -> dict[str, Any]:
    state = store.view().state
    streams = []
    for before, name in zip(chosen, names, strict=True):
        stream = state.stream(name)
        if stream is None:  # deleted again since
            continue
        streams.append(
            {
                "name": stream.name,
                "restored_from": before.name,
                **stream_summary(stream),
                "num_replicas_before": before.config.num_replicas,
            }
        )
    return {
        "directory": str(backup.directory),
        "store_id": state.store_id.hex(),
        "time": rfc3339(backup.made_ns),
        "index": backup.index,
        "streams": streams,
    }
