"""Atomic batches, of which a crash may have left a half: messages that name a batch, and none that commits it.

The messages of a batch follow each other, each with the headers `Nats-Batch-Id` and `Nats-Batch-Sequence`; the last one
has `Nats-Batch-Commit`. Source: nats-server, server/stream.go (`processJetStreamBatchMsg`), as 2.15.1 writes them.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.foreign.nats.columns import raw_headers
from storage_core.foreign.nats.record import Records

_BATCH = rb"\r\nNats-Batch-Id:[ \t]*(?P<id>[^\r\n]*?)[ \t]*\r\n"
_COMMIT = "\r\nNats-Batch-Commit:"


def half_batches(block: pa.Buffer, messages: Records, end: int) -> list[tuple[int, int, str]]:
    """Return of each half batch its row in front of which it ends, how many of its messages are there, and its id.

    `messages` ascend by sequence; `end` is the sequence with which the stream ends. A message that is not there says
    nothing: it may have been removed later.
    """
    has_headers = messages.header_sizes >= 0
    raw = raw_headers(block, messages)
    if not len(raw):
        return []
    ids = pc.extract_regex(raw, _BATCH).field("id").dictionary_encode()
    names = ids.dictionary.to_pylist()
    if not names:
        return []
    codes = np.full(len(messages) + 1, -1, np.int64)
    codes[:-1][has_headers] = np.where(buffers.nulls(ids.indices), -1, buffers.numbers(ids.indices.fill_null(0)))
    committed = np.zeros(len(messages), bool)
    committed[has_headers] = buffers.mask(pc.match_substring(raw, _COMMIT))
    sequences = np.append(messages.sequences, end)
    follows = (sequences[1:] == sequences[:-1] + 1) & (codes[1:] != codes[:-1])
    rows = np.flatnonzero((codes[:-1] >= 0) & ~committed & follows)
    return [(row + 1, int((codes == codes[row]).sum()), _shown(names[codes[row]])) for row in rows.tolist()]


def _shown(batch_id: bytes) -> str:
    return batch_id.decode("utf-8", "backslashreplace")
