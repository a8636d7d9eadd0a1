"""Reading: the asked-for rows and columns, in order, against a list that is filtered message by message."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.schema import FRAME_SCHEMA, READ_FIELDS, READ_SCHEMA, read_schema
from storage_core.sequences import SequenceSet
from storage_core.subjects import matches

message = st.fixed_dictionaries(
    {
        "subject": st.sampled_from(["a", "a.b", "a.c", "b.c"]),
        "timestamp_ns": st.integers(-3_000, 3_000),
        "headers": st.none() | st.just([]) | st.just([{"key": "k", "value": None}, {"key": "k", "value": b"v"}]),
        "data": st.none() | st.binary(max_size=3),
    }
)
bound = st.none() | st.integers(-5, 60)
time_bound = st.none() | st.integers(-3_500, 3_500)
requests = st.fixed_dictionaries(
    {
        "columns": st.lists(st.sampled_from(list(READ_FIELDS)), min_size=1, max_size=5, unique=True).map(tuple),
        "first_sequence": st.sampled_from([1, 7]),
        "first": bound,
        "end": bound,
        "time_first_ns": time_bound,
        "time_end_ns": time_bound,
        "subject_filters": st.lists(st.sampled_from(["a", "a.*", "*.c", ">", "b.>", "z"]), max_size=2).map(tuple),
        "removed": st.none() | st.lists(st.integers(0, 60), max_size=40).map(SequenceSet.from_sequences),
        "verify": st.booleans(),
    }
)


def slow_read(messages: list[dict[str, Any]], sequences: list[int], request: FrameRequest) -> list[dict[str, Any]]:
    rows = []
    for one, relative in zip(messages, sequences, strict=True):
        sequence, time = relative + request.first_sequence, one["timestamp_ns"]
        if request.first is not None and sequence < request.first:
            continue
        if request.end is not None and sequence >= request.end:
            continue
        if request.time_first_ns is not None and time < request.time_first_ns:
            continue
        if request.time_end_ns is not None and time >= request.time_end_ns:
            continue
        if request.removed is not None and sequence in request.removed:
            continue
        if request.subject_filters and not any(matches(each, one["subject"]) for each in request.subject_filters):
            continue
        whole = one | {"stream": request.stream, "sequence": sequence, "timestamp": time // 1000}
        rows.append({name: whole[name] for name in request.columns})
    return rows


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows, timestamps as microseconds."""
    for position, field in enumerate(table.schema):
        if field.name == "timestamp":
            table = table.set_column(position, "timestamp", table.column(position).cast(pa.int64()))
    columns = [(name, column.to_pylist()) for name, column in zip(table.column_names, table.columns, strict=True)]
    return [{name: values[row] for name, values in columns} for row in range(table.num_rows)]


@given(
    st.lists(message, min_size=1, max_size=30),
    st.data(),
    st.sampled_from(["none", "lz4", "zstd"]),
    st.integers(1, 9),
    requests,
)
def test_read_equals_a_list_filtered_message_by_message(
    blocks: Any, messages: list[dict[str, Any]], data: st.DataObject, codec: str, frame_rows: int, asked: dict[str, Any]
) -> None:
    batch = pa.RecordBatch.from_pylist(messages, schema=FRAME_SCHEMA)
    gaps = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 9]), min_size=len(messages), max_size=len(messages)))
    sequences = (np.cumsum(gaps) - 1).tolist()
    dense = data.draw(st.booleans())
    if dense:
        sequences = list(range(len(messages)))
    given_sequences = None if dense else [np.array(sequences)]
    sealed = blocks.seal(batch, codec=codec, sequences=given_sequences, frame_row_count=frame_rows)
    request = FrameRequest(stream="S", **asked)
    batches = list(sealed.reader().read(request))
    assert all(one.schema.equals(read_schema(request.columns)) for one in batches)
    assert all(one.num_rows for one in batches)
    for one in batches:
        one.validate(full=True)
    assert plain(pa.Table.from_batches(batches, read_schema(request.columns))) == slow_read(
        messages, sequences, request
    )


def test_default_request_gives_the_read_schema(blocks: Any) -> None:
    sealed = blocks.seal(blocks.batch(3))
    (batch,) = sealed.reader().read(FrameRequest(stream="ORDERS"))
    assert batch.schema.equals(READ_SCHEMA)
    assert batch.column("stream").to_pylist() == ["ORDERS"] * 3
    assert batch.column("sequence").to_pylist() == [1, 2, 3]


def test_summary_is_that_of_the_writer(blocks: Any) -> None:
    for codec in ("none", "lz4", "zstd"):
        sealed = blocks.with_everything(codec)
        reader = sealed.reader()
        assert reader.summary() == sealed.summary
        assert (reader.identity, reader.codec, reader.file_size) == (blocks.identity, codec, len(sealed.data))


@pytest.mark.parametrize(
    ("request_", "frames"),
    [
        ({}, [0, 1, 2, 3]),
        ({"first": 5}, [1, 2, 3]),
        ({"first": 5, "end": 8}, [1]),
        ({"first": 11, "end": 11}, []),
        ({"first": 100}, []),
        ({"end": 1}, []),
        ({"first": 10**30}, []),
        ({"end": -(10**30)}, []),
        ({"time_first_ns": 1_000_000_000_000_008_000}, [2, 3]),
        ({"time_end_ns": 1_000_000_000_000_004_000}, [0]),
        ({"subject_filters": ("s.0",)}, [0]),
        ({"subject_filters": ("s.0", "s.3")}, [0, 3]),
        ({"subject_filters": ("t.>",)}, []),
        ({"removed": SequenceSet.from_ranges([(1, 5), (8, 13)])}, [1, 3]),
        ({"first": 3, "removed": SequenceSet.from_ranges([(3, 5)])}, [1, 2, 3]),
    ],
    ids=str,
)
def test_frames_that_cannot_match_are_not_read(
    blocks: Any, memory_file: Any, request_: dict[str, Any], frames: list[int]
) -> None:
    batch = blocks.batch(16)
    names = pa.array([f"s.{row // 4}" for row in range(16)])  # each frame has one subject
    sealed = blocks.seal(batch.set_column(0, FRAME_SCHEMA.field(0), names), frame_row_count=4)
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, sealed.expected)
    offsets = reader.footer.frames.offsets.tolist()
    file.reads.clear()
    list(reader.read(FrameRequest(**request_)))
    assert [offsets.index(offset) for offset, _ in file.reads] == frames


def test_each_frame_is_one_read_without_its_padding(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(9), frame_row_count=3)
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, sealed.expected)
    assert file.reads == [(0, len(sealed.data))], "a small file is read whole"
    file.reads.clear()
    list(reader.read(FrameRequest(columns=("data",))))
    frames = reader.footer.frames
    assert file.reads == list(zip(frames.offsets.tolist(), (frames.payload_sizes + 64).tolist(), strict=False))


def test_a_block_is_opened_by_its_header_and_the_end_of_the_file(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.plain(3_000))
    file = memory_file(sealed.data)
    BlockReader.open(file, sealed.expected)
    (header_at, _), (end_at, end_size) = file.reads
    assert (header_at, end_at + end_size) == (0, len(sealed.data)) and end_at > 0


def test_footer_longer_than_the_first_read_is_read_whole(blocks: Any, memory_file: Any) -> None:
    count = 3_000
    names = pa.array([f"subject.number.{number}" for number in range(count)])
    batch = blocks.plain(count).set_column(0, FRAME_SCHEMA.field(0), names)
    sealed = blocks.seal(batch)
    assert len(sealed.data) - sealed.reader().footer.frames.end_offset > 30_000
    file = memory_file(sealed.data)
    assert BlockReader.open(file, sealed.expected).footer.subjects.count_by_subject() == dict.fromkeys(
        sorted(names.to_pylist()), 1
    )
    assert len(file.reads) == 3


def test_range_over_one_frame_is_a_slice_of_the_bytes_that_were_read(blocks: Any) -> None:
    reader = blocks.seal(blocks.batch(10)).reader()
    (whole,) = reader.read(FrameRequest(columns=("data",)))
    (part,) = reader.read(FrameRequest(columns=("data",), first=4, end=6))
    assert part.column(0).to_pylist() == whole.column(0).to_pylist()[3:5]
    assert part.column(0).offset == 3


def test_times_before_1970_are_rounded_towards_the_past(blocks: Any) -> None:
    batch = blocks.batch(3).set_column(1, FRAME_SCHEMA.field(1), pa.array([-1, -1000, 1999]))
    (found,) = blocks.seal(batch).reader().read(FrameRequest(columns=("timestamp", "timestamp_ns")))
    assert found.column(0).cast(pa.int64()).to_pylist() == [-1, -1, 1]
    assert found.column(1).to_pylist() == [-1, -1000, 1999]


def test_message_ids_come_back_with_their_sequences(blocks: Any) -> None:
    sealed = blocks.with_everything("zstd")
    found = list(sealed.reader().message_ids())
    assert [one.sequences.tolist() for one in found] == [[1], [7], [8]]
    expected = msg_id_hashes(pa.array(["a", "b", "c"]))
    assert np.array_equal(np.concatenate([one.hashes for one in found]), expected)
    assert sealed.summary.msg_id_count == 3
    assert not list(blocks.seal(blocks.batch(3)).reader().message_ids())


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"columns": ()}, "columns: at least one"),
        ({"columns": ("data", "datum")}, "column 'datum'"),
        ({"subject_filters": ("a..b",)}, "subject filter 'a..b'"),
        ({"subject_filters": (">.a",)}, "subject filter '>.a'"),
    ],
)
def test_impossible_request_is_refused_before_anything_is_read(blocks: Any, asked: dict[str, Any], text: str) -> None:
    reader = blocks.seal(blocks.batch(1)).reader()
    with pytest.raises(ValueError, match=text):
        reader.read(FrameRequest(**asked))


def test_bloom_filter_rules_a_block_out_without_reading_it(blocks: Any, memory_file: Any) -> None:
    count = 9_000
    names = pa.array([f"s.{number}" for number in range(count)])
    sealed = blocks.seal(blocks.plain(count, size=1).set_column(0, FRAME_SCHEMA.field(0), names))
    assert sealed.summary.subjects is None
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, sealed.expected)
    file.reads.clear()
    assert not list(reader.read(FrameRequest(subject_filters=("other",))))
    assert not file.reads
    (batch,) = reader.read(FrameRequest(columns=("sequence",), subject_filters=("s.8999",)))
    assert batch.column(0).to_pylist() == [9_000]
