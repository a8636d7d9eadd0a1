"""Blocks that were written when format 1 was new still read as they did. See tests/data/blocks/generate.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core.block.format import BlockExpectation
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.files import OS_FILES

GOLDEN = Path(__file__).parents[2] / "data" / "blocks"
DIGESTS = {
    "example": "07d014c6b7155116f53873ec2c17fd30",
    "none": "7143043beae636cb9c906ed1030e8062",
    "lz4": "897d57be7e80d022187082d9207186d2",
    "zstd": "dda8b13fae614450573c5d6864079d7d",
    "many-subjects": "294a2767ec72b08381c8e5c075304130",
}


def open_golden(name: str) -> BlockReader:
    path = GOLDEN / f"{name}.blk"
    ids = (bytes(range(first, first + 16)) for first in (0x10, 0x20, 0x30))
    return BlockReader.open(
        OS_FILES.open(path), BlockExpectation(*ids, bytes.fromhex(DIGESTS[name]), path.stat().st_size)
    )


def in_json(row: dict[str, Any]) -> dict[str, Any]:
    headers = row["headers"]
    pairs = headers and [[one["key"], None if one["value"] is None else one["value"].hex()] for one in headers]
    return row | {"headers": pairs, "data": None if row["data"] is None else row["data"].hex()}


@pytest.mark.parametrize(
    ("name", "codec", "messages"),
    [
        ("example", "none", "example"),
        ("none", "none", "assortment"),
        ("lz4", "lz4", "assortment"),
        ("zstd", "zstd", "assortment"),
    ],
)
def test_golden_block_reads_as_it_was_written(name: str, codec: str, messages: str) -> None:
    expected = json.loads((GOLDEN / f"{messages}.json").read_text())
    reader = open_golden(name)
    assert reader.codec == codec
    assert reader.identity.transaction_id == bytes(range(0x40, 0x50))
    columns = ("sequence", "subject", "timestamp_ns", "headers", "data")
    rows = [row for batch in reader.read(FrameRequest(columns, first_sequence=0)) for row in batch.to_pylist()]
    without_ids = [{key: value for key, value in one.items() if key != "msg_id"} for one in expected]
    assert [in_json(row) for row in rows] == without_ids
    ids = [one for one in expected if one["msg_id"]]
    found = list(reader.message_ids())
    assert [at for part in found for at in part.sequences.tolist()] == [one["sequence"] for one in ids]
    hashes = msg_id_hashes(pa.array([one["msg_id"] for one in ids]))
    assert np.array_equal(np.concatenate([part.hashes for part in found]), hashes)
    assert not list(reader.verify())


def test_golden_block_with_a_bloom_filter() -> None:
    reader = open_golden("many-subjects")
    assert not reader.footer.subjects.is_exact
    assert not list(reader.read(FrameRequest(subject_filters=("s.9000",))))
    (batch,) = reader.read(FrameRequest(("sequence", "subject"), subject_filters=("s.8999",)))
    assert batch.to_pylist() == [{"sequence": 9000, "subject": "s.8999"}]
    assert sum(batch.num_rows for batch in reader.read(FrameRequest(("data",)))) == 9000
    assert not list(reader.verify())
