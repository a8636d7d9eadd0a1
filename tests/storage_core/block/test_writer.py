"""Writing: what the summary says, what is refused, and a writer that failed stays failed."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.format import (
    FRAME_ROW_COUNT_MAX,
    FRAME_SIZE_TARGET,
    MESSAGE_SIZE_MAX,
    PAYLOAD_SIZE_MAX,
    ROW_COUNT_MAX,
    BlockSummary,
)
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.block.writer import BlockWriter
from storage_core.errors import InvalidMessageError
from storage_core.schema import FRAME_SCHEMA, HEADERS_TYPE


def test_summary_of_a_block_with_everything(blocks: Any) -> None:
    sealed = blocks.with_everything()
    summary = sealed.summary
    assert summary == BlockSummary(
        block_id=blocks.identity.block_id,
        digest=summary.digest,
        file_size=len(sealed.data),
        row_count=8,
        span=21,
        data_size=8 * 3 + 7 * 6 + 4 * 2,  # subjects; data, one of them null; a header on every second message
        time_min_ns=1_000_000_000_000_000_000,
        time_max_ns=1_000_000_000_000_007_000,
        subjects=("s.0", "s.1", "s.2"),
        msg_id_count=3,
    )
    assert len(summary.digest) == 16
    assert pickle.loads(pickle.dumps(summary)) == summary


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_same_rows_give_the_same_bytes_however_they_are_cut(blocks: Any, codec: str) -> None:
    batch = blocks.batch(1_000)
    whole = blocks.seal(batch, codec=codec)
    in_parts = blocks.seal(*(batch.slice(at, 7) for at in range(0, 1_000, 7)), codec=codec)
    one_by_one = blocks.seal(*(batch.slice(at, 1) for at in range(1_000)), codec=codec)
    assert whole == in_parts == one_by_one


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.booleans(), st.lists(st.sampled_from([None, "", "x", "y"]), min_size=4, max_size=4)
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
)
def test_message_ids_stay_with_their_rows(blocks: Any, parts: list[Any], frame_rows: int) -> None:
    batches, hashes, sequences, expected, at = [], [], [], [], 0
    for position, (count, with_hole, ids) in enumerate(parts):
        first = at + 5 * (position + 1) if with_hole else at
        batches.append(blocks.batch(count))
        hashes.append(msg_id_hashes(pa.array(ids[:count], pa.string())))
        sequences.append(np.arange(first, first + count))
        expected += [first + row for row in range(count) if ids[row]]
        at = first + count
    sealed = blocks.seal(*batches, hashes=hashes, sequences=sequences, frame_row_count=frame_rows)
    found = list(sealed.reader().message_ids())
    assert [one for part in found for one in part.sequences.tolist()] == expected
    flat = np.concatenate([np.empty((0, 2), np.uint64), *(part.hashes for part in found)])
    assert np.array_equal(flat, np.concatenate(hashes)[np.concatenate(hashes).any(axis=1)])


def test_frames_of_a_large_block_keep_to_their_bounds(blocks: Any) -> None:
    reader = blocks.seal(*(blocks.plain(10_000, at, size=110) for at in range(0, 100_000, 10_000))).reader()
    sizes = reader.footer.frames.payload_sizes
    assert (sizes <= FRAME_SIZE_TARGET).all()
    assert (sizes[:-1] > FRAME_SIZE_TARGET // 2).all()
    tiny = blocks.seal(blocks.plain(2 * FRAME_ROW_COUNT_MAX + 1, size=1)).reader()
    assert tiny.footer.frames.row_counts.tolist() == [FRAME_ROW_COUNT_MAX, FRAME_ROW_COUNT_MAX, 1]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_largest_message_goes_through_and_a_larger_one_does_not(blocks: Any, memory_file: Any, codec: str) -> None:
    noise = np.random.default_rng(1).bytes(MESSAGE_SIZE_MAX - 2)
    row = {"subject": "s", "timestamp_ns": 1, "headers": [{"key": "k", "value": None}], "data": noise}
    largest = pa.RecordBatch.from_pylist([row], schema=FRAME_SCHEMA)
    sealed = blocks.seal(largest, codec=codec)
    assert sealed.summary.data_size == MESSAGE_SIZE_MAX
    assert int(sealed.reader().footer.frames.payload_sizes[0]) < PAYLOAD_SIZE_MAX
    (batch,) = sealed.reader().read(FrameRequest(columns=("data",)))
    assert batch.column(0)[0].as_buffer().equals(pa.py_buffer(noise))
    larger = pa.RecordBatch.from_pylist([row | {"data": noise + b"x"}], schema=FRAME_SCHEMA)
    writer = BlockWriter(memory_file(), blocks.identity, codec)
    writer.write(blocks.batch(1))
    with pytest.raises(InvalidMessageError, match=f"row 0 of the batch: {MESSAGE_SIZE_MAX + 1} bytes"):
        writer.write(larger)
    writer.write(blocks.batch(1))
    assert writer.finish().row_count == 2


def test_message_with_millions_of_headers_is_refused(blocks: Any, memory_file: Any) -> None:
    count = 9_000_000
    keys = pa.StringArray.from_buffers(
        count, pa.py_buffer(np.arange(count + 1, dtype=np.int32)), pa.py_buffer(b"k" * count)
    )
    pairs = pa.StructArray.from_arrays([keys, pa.nulls(count, pa.binary())], fields=list(HEADERS_TYPE.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pairs, HEADERS_TYPE)
    columns = [pa.array(["s"]), pa.array([1]), headers, pa.array([b""])]
    batch = pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)
    with pytest.raises(InvalidMessageError, match="with the overhead of its headers"):
        BlockWriter(memory_file(), blocks.identity).write(batch)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda batch: (batch.select([0, 1, 3]),), "columns"),
        (lambda batch: (batch.rename_columns(["a", "b", "c", "d"]),), "columns"),
        (lambda batch: (batch.set_column(0, FRAME_SCHEMA.field(0), pa.array(["a", None, "b"])),), "1 nulls in subject"),
        (
            lambda batch: (batch.set_column(1, FRAME_SCHEMA.field(1), pa.array([1, None, 2])),),
            "1 nulls in timestamp_ns",
        ),
        (lambda batch: (batch, np.zeros((2, 2), np.uint64)), "msg_id_hashes: shape"),
        (lambda batch: (batch, np.zeros(3, np.uint64)), "msg_id_hashes: shape"),
        (lambda batch: (batch, None, np.arange(2)), "sequences: shape"),
        (lambda batch: (batch, None, np.array([5, 5, 6])), "sequences: not ascending"),
        (lambda batch: (batch, None, np.array([1, 5, 6])), "sequences: 1 comes after 1"),
    ],
    ids=[
        "column missing",
        "other names",
        "null subject",
        "null time",
        "few hashes",
        "flat hashes",
        "few",
        "same",
        "below",
    ],
)
def test_wrong_arguments_are_refused_and_nothing_of_them_is_kept(
    blocks: Any, memory_file: Any, change: Any, text: str
) -> None:
    file = memory_file()
    writer = BlockWriter(file, blocks.identity)
    writer.write(blocks.batch(2))
    with pytest.raises(ValueError, match=text):
        writer.write(*change(blocks.batch(3)))
    writer.write(blocks.batch(1, 2))
    writer.finish()
    assert bytes(file.data) == blocks.seal(blocks.batch(3)).data


def test_block_takes_so_many_rows_and_no_more(blocks: Any, memory_file: Any) -> None:
    writer = BlockWriter(memory_file(), blocks.identity)
    writer._row_count = ROW_COUNT_MAX - 2  # as if these had been written
    with pytest.raises(ValueError, match="it takes 4194304"):
        writer.write(blocks.batch(3))


def test_unknown_codec_is_refused_before_anything_is_written(blocks: Any, memory_file: Any) -> None:
    file = memory_file()
    with pytest.raises(ValueError, match="codec 'gzip': blocks are written with none, lz4, zstd"):
        BlockWriter(file, blocks.identity, "gzip")
    assert not file.data


def test_block_without_rows_is_no_block(blocks: Any, memory_file: Any) -> None:
    writer = BlockWriter(memory_file(), blocks.identity)
    writer.write(blocks.batch(0))
    with pytest.raises(ValueError, match="without rows"):
        writer.finish()


def test_size_grows_with_what_is_taken(blocks: Any, memory_file: Any) -> None:
    file = memory_file()
    writer = BlockWriter(file, blocks.identity)
    assert writer.size == 128
    seen = [writer.size]
    for at in range(20):
        writer.write(blocks.plain(5_000, at * 5_000))
        seen.append(writer.size)
        assert writer.row_count == (at + 1) * 5_000
    assert seen == sorted(seen)
    final = writer.finish().file_size
    assert writer.size == final == len(file.data)
    assert abs(seen[-1] - final) < 0.02 * final


@pytest.mark.parametrize("failing", range(10))
def test_writer_that_failed_stays_failed(blocks: Any, memory_file: Any, failing: int) -> None:
    class Failing(memory_file):  # type: ignore[misc]
        calls = 0

        def count(self) -> None:
            self.calls += 1
            if self.calls == failing + 1:
                raise OSError(28, "No space left on device")

        def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
            self.count()
            super().write_at(offset_bytes, data)

        def sync(self) -> None:
            self.count()
            super().sync()

    file = Failing()
    writers: list[BlockWriter] = []

    def write() -> None:
        writers.append(BlockWriter(file, blocks.identity, frame_row_count=2))
        writers[0].write(blocks.batch(4))
        writers[0].write(blocks.batch(1))
        writers[0].finish()

    with pytest.raises(OSError, match="No space left"):
        write()
    for writer in writers:
        with pytest.raises(ValueError, match="the writer is failed"):
            writer.write(blocks.batch(1))
        with pytest.raises(ValueError, match="the writer is failed"):
            writer.finish()
    assert file.synced == -1


def test_sealed_writer_takes_nothing_more(blocks: Any, memory_file: Any) -> None:
    writer = BlockWriter(memory_file(), blocks.identity)
    writer.write(blocks.batch(1))
    writer.finish()
    with pytest.raises(ValueError, match="the writer is sealed"):
        writer.write(blocks.batch(1))
    with pytest.raises(ValueError, match="the writer is sealed"):
        writer.finish()


def test_real_file(blocks: Any, tmp_path: Any) -> None:
    from storage_core.files import OS_FILES

    batches = [blocks.plain(10_000, at) for at in range(0, 50_000, 10_000)]
    with OS_FILES.create(tmp_path / "b.blk") as file:
        writer = BlockWriter(file, blocks.identity, "lz4")
        for batch in batches:
            writer.write(batch)
        summary = writer.finish()
    assert (tmp_path / "b.blk").stat().st_size == summary.file_size
    with OS_FILES.open(tmp_path / "b.blk") as file:
        reader = BlockReader.open(file)
        found = pa.Table.from_batches(reader.read(FrameRequest(columns=("timestamp_ns", "data"))))
        assert found.equals(pa.Table.from_batches(batches).select(["timestamp_ns", "data"]))
        assert not list(reader.verify())


def test_metadata_of_the_schema_and_names_inside_lists_do_not_matter(blocks: Any) -> None:
    batch = blocks.batch(4)
    other_names = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    schema = batch.schema.set(2, pa.field("headers", other_names)).with_metadata({"written by": "somebody"})
    foreign = pa.RecordBatch.from_arrays(
        [batch.column(0), batch.column(1), batch.column(2).cast(other_names), batch.column(3)], schema=schema
    )
    for codec in ("none", "lz4"):
        assert blocks.seal(batch, foreign, codec=codec).data == blocks.seal(batch, batch, codec=codec).data
