"""Conflicts: messages that an adoption cannot show, because other ones have their sequences.

Blocks that were merged stand in the journals beside those that they were made of, and say the same of a sequence. Those
of two copies of the store that were both written on do not: each message of a block that is left alone is compared with
what is shown in its place. It was acked and journaled, so one that differs is lost by the adoption, and is reported.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.recovery.surviving import Copy, VolumeScan
from storage_core.store.replicas.live_blocks import expected_of

COLUMNS = ("sequence", "subject", "headers", "data", "timestamp_ns")


@dataclass(frozen=True, slots=True)
class BlockConflict:
    """Messages that lose their sequences to others."""

    stream: str
    sequences: SequenceSet
    holders: tuple[int, ...]  # positions of the volumes that have them
    is_majority: bool  # these are more than half of the volumes


class Comparison:
    """Compares blocks that are left alone with those that are taken."""

    def __init__(self, store_id: bytes, remains: Sequence[VolumeScan], env: Environment) -> None:
        self._store_id, self._remains, self._env = store_id, remains, env

    def conflicts(
        self, stream: str, left: Iterable[Copy], taken: Sequence[Copy], wanted: SequenceSet
    ) -> list[BlockConflict]:
        """Return which of the `wanted` messages of the blocks that are left alone differ from those that are taken."""
        lost: dict[tuple[int, ...], SequenceSet] = {}
        for copy in left:
            ours = self._messages(copy, *_range(copy))
            for rival in taken:
                first, end = max(_range(copy)[0], _range(rival)[0]), min(_range(copy)[1], _range(rival)[1])
                if ours and first < end and wanted.count_in(first, end):
                    theirs = self._messages(rival, first, end)
                    # What a block has no message of was removed before it was merged.
                    different = [at for at, message in theirs.items() if ours.get(at, message) != message]
                    known = lost.get(copy.holders, SequenceSet.empty())
                    lost[copy.holders] = known.union(
                        wanted.intersection(SequenceSet.from_sequences(np.array(sorted(different), np.int64)))
                    )
        half = len(self._remains) // 2
        return [
            BlockConflict(stream, sequences, where, len(where) > half)
            for where, sequences in lost.items()
            if len(sequences)
        ]

    def _messages(self, copy: Copy, first: int, end: int) -> dict[int, bytes]:
        """Return digests of the messages of a range that can be read, by sequence; only of blocks in doubt."""
        row = copy.row
        expected = expected_of(self._store_id, copy.written_as, row)
        messages: dict[int, bytes] = {}
        for at in copy.holders:
            with closing(self._remains[at].blocks(self._env).open(copy.written_as, expected.block_id)) as file:
                request = FrameRequest(
                    COLUMNS, first_sequence=int(row["first"]), first=first, end=end, on_damage=lambda _: None
                )
                for batch in BlockReader.open(file, expected).read(request):
                    messages.update(_by_sequence(batch))
        return messages


def _by_sequence(batch: pa.RecordBatch) -> dict[int, bytes]:
    sequences, *columns = (batch.column(name).to_pylist() for name in COLUMNS)
    digests = (blake2b(repr(message).encode(), digest_size=16).digest() for message in zip(*columns, strict=True))
    return dict(zip(sequences, digests, strict=True))


def _range(copy: Copy) -> tuple[int, int]:
    return int(copy.row["first"]), int(copy.row["first"] + copy.row["span"])
