"""Messages of other copies of the store, which repairs set aside: the logs of those copies, and the blocks that are
kept for them, still have them.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from storage_core import buffers
from storage_core.errors import CorruptionError, NotFoundError, VolumeFailedError
from storage_core.metadata.commands import SetAside
from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.raft.log_format import PAGE_SIZE, decode_segment_header
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.decision import VolumeLogRead, best_chain
from storage_core.store.ensemble.view import replay
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import BlockSlice, ReadRequest, plan_stream
from storage_core.store.reading.reading import ReadOptions, read_slices
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log import VolumeLog
from storage_core.store.volume.volumes import Volume


def set_aside_of(state: StoreState, stream: str) -> list[SetAside]:
    """Return what was set aside of a stream. Raises NotFoundError if nothing was."""
    held = [messages for messages in state.set_aside if messages.stream == stream]
    if not held:
        names = ", ".join(sorted({messages.stream for messages in state.set_aside}))
        raise NotFoundError(f"nothing was set aside of stream {stream!r}; of {names or 'no stream'} something was")
    return held


def read_set_aside(
    held: Sequence[SetAside], volumes: Sequence[Volume], options: ReadOptions, env: Environment
) -> Iterator[pa.RecordBatch]:
    """Yield the messages, each once although several volumes may have it, volume by volume; ascending within each.

    Raises DataLossError for a message whose only copy is damaged (with FAIL), CorruptionError if a log cannot be read,
    NotFoundError if its volume is not in the store any more, VolumeFailedError if it cannot be read now.
    """
    done: set[bytes] = set()  # blocks
    columns = options.columns
    asked = columns if "sequence" in columns else (*columns, "sequence")
    for messages in held:
        slices = [block for block in _slices(messages, volumes, env) if block.block_id not in done]
        done.update(block.block_id for block in slices)
        wanted = SequenceSet.decode(messages.sequences)
        for batch in read_slices(slices, replace(options, columns=asked), env=env):
            is_wanted = wanted.mask(buffers.numbers(batch.column("sequence")))
            chosen = batch if is_wanted.all() else batch.filter(buffers.of_bits(is_wanted))
            yield chosen if asked is columns else chosen.select(list(columns))


def _slices(messages: SetAside, volumes: Sequence[Volume], env: Environment) -> Sequence[BlockSlice]:
    volume = next((volume for volume in volumes if volume.volume_id == messages.volume_id), None)
    if volume is None:
        raise NotFoundError(
            f"stream {messages.stream!r}: volume {messages.volume_id.hex()}, on which its messages were set aside, is "
            "not part of the store any more"
        )
    try:
        state = _state(volume, messages.directory, env)
    except OSError as error:
        raise_if_of_process(error)
        raise VolumeFailedError(f"{volume.path / messages.directory} cannot be read: {error}") from error
    stream = next((each for each in state.streams.values() if each.incarnation == messages.incarnation), None)
    if stream is None:
        raise CorruptionError(f"{volume.path / messages.directory} does not have stream {messages.stream!r}")
    return _planned(state, stream, volume, SequenceSet.decode(messages.sequences))


def _planned(state: StoreState, stream: StreamState, volume: Volume, sequences: SequenceSet) -> Sequence[BlockSlice]:
    request = ReadRequest((stream.name,), {stream.name: sequences.bounds})
    slices, _ = plan_stream(state, stream, [volume], request)
    return [block for block in slices if sequences.count_in(block.first, block.end)]


def _state(volume: Volume, directory: str, env: Environment) -> StoreState:
    """Return the state of the other copy of the store. Raises CorruptionError, OSError."""
    place = volume.path / directory
    log = VolumeLog(env.files, volume.path, _identity(volume, place, env))
    log.directory = place
    lead = best_chain([VolumeLogRead(volume.volume_id, str(volume.path), bytes(16), log.read())])
    if lead is None:
        raise CorruptionError(f"{place} has no metadata log any more")
    return replay(lead)


def _identity(volume: Volume, place: Path, env: Environment) -> VolumeIdentity:
    """Return which instance of the volume wrote the log, as its segments say."""
    files = env.files
    names = sorted(name for name in files.list_directory(place) if name.endswith(".log"))
    if not names:
        raise CorruptionError(f"{place} has no metadata log any more")
    with closing(files.open(place / names[-1])) as file:
        header = decode_segment_header(file.read_at(0, PAGE_SIZE))
    return VolumeIdentity(header.store_id, volume.volume_id, header.instance_id, 0)
