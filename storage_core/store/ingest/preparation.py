"""Directories of streams to come: made, found again by a later run, and swept.

A directory is known before anything is in it, as a pending delete of a week later, so that what is never finished goes
by itself. Its head says which import fills it; the same import, run again, finds it by that.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.metadata.state import StoreState, StreamState
from storage_core.os_errors import raise_if_of_process
from storage_core.store.environment import Environment
from storage_core.store.ingest.records import HEAD_FILE, ImportHead, read_record
from storage_core.store.opened import OpenStore
from storage_core.store.volume.block_store import BlockStore, VolumeHandle
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
PREPARED_NS = 7 * 24 * 3_600 * 1_000_000_000  # for so long an import may take; what it left is unlinked after it
TIME_LEFT_MIN_NS = 24 * 3_600 * 1_000_000_000  # a directory that is due sooner is not resumed


@dataclass(frozen=True, slots=True)
class PreparedDirectory:
    """A directory that is being filled, and what for."""

    head: ImportHead
    incarnation: bytes


def find_prepared(store: OpenStore, state: StoreState, names: Mapping[bytes, str]) -> dict[bytes, PreparedDirectory]:
    """Return, by digest of their source, directories that an import like this one has begun to fill.

    `names`: what the streams are called here, by the same digests. Directories that are due soon are left out.
    """
    deletes, volumes = state.pending_deletes.rows, store.volumes()
    alive = (deletes["block_id"] == np.void(bytes(16))) & (
        deletes["dropped_ns"] > state.time_at(store.environment.now_ns()) + TIME_LEFT_MIN_NS
    )
    prepared = {}
    for incarnation in map(bytes, deletes["incarnation"][alive]):
        heads = (read_record(volume.blocks, incarnation, HEAD_FILE) for volume in volumes)
        head = next((head for head in heads if isinstance(head, ImportHead)), None)
        if head is not None and names.get(head.source) == head.name and all(map(state.voter, head.placement)):
            prepared[head.source] = PreparedDirectory(head, incarnation)
    return prepared


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What lies under a stream's incarnation on one volume and is nobody's."""

    blocks: BlockStore
    incarnation: bytes
    block_ids: Sequence[bytes]
    records: Sequence[str]  # names


def leftovers(volumes: Iterable[Volume], stream: StreamState, records_only: bool = False) -> list[Leftovers]:
    """Return what lies under the incarnation of a stream to be and will be nobody's: records, and unnamed blocks.

    Asked before the stream is there: afterwards others may have staged blocks that nothing names yet, and only the
    records are known to be nobody's. What cannot be read is left out.
    """
    named = {bytes(row) for row in stream.blocks.rows["block_id"]}
    listed = []
    for volume in volumes:
        blocks, incarnation = volume.blocks, stream.incarnation
        try:
            records = blocks.records(incarnation)
            block_ids = (
                [] if records_only else [block_id for block_id in blocks.ids(incarnation) if block_id not in named]
            )
        except OSError as error:
            raise_if_of_process(error)
            logger.info("%s: %s", blocks.directory(incarnation), error)
            continue
        if records or block_ids:
            listed.append(Leftovers(blocks, incarnation, block_ids, records))
    return listed


def sweep(listed: Sequence[Leftovers]) -> None:
    """Remove leftovers; what fails is swept by maintenance later."""
    for left in listed:
        for block_id in left.block_ids:
            left.blocks.discard(left.incarnation, block_id)
        for name in left.records:
            left.blocks.discard_record(left.incarnation, name)
        try:
            left.blocks.sync(left.incarnation)
        except OSError as error:
            logger.warning("%s: %s", left.blocks.directory(left.incarnation), error)


def sweep_records(store: OpenStore, stream: StreamState) -> None:
    """Remove the records of a run that was killed after its stream had come."""
    left = leftovers(store.volumes(), stream, records_only=True)
    if left:
        with store.session():
            sweep(left)


def remove_directory(volumes: Iterable[VolumeHandle], incarnation: bytes, env: Environment) -> None:
    """Remove a directory with all that is in it, for which no stream will come and which no other run fills."""
    for volume in volumes:
        try:
            volume.blocks(env.files).remove(incarnation)
        except OSError as error:
            logger.info("%s: %s", volume.uri, error)
