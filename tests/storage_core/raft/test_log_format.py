"""Log segments as bytes: what is written is what is read, and whatever is not whole is said to be bad."""

from dataclasses import replace
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError, TruncatedRecordError, UnsupportedVersionError
from storage_core.raft import log_format
from storage_core.raft.entry import CHAIN_START, POSITION_MAX, CommitRecord, Entry, Seal, Vote, make_entry
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, BadRecord, Record, SegmentHeader

positions = st.integers(0, POSITION_MAX)
ids = st.binary(min_size=16, max_size=16)
# Sizes around the boundaries of a page are where batches may go wrong.
payloads = st.one_of(
    st.binary(max_size=40),
    st.tuples(st.sampled_from([1, 2]), st.integers(-140, 20)).map(lambda it: b"\x01" * (it[0] * PAGE_SIZE + it[1])),
)
entries = st.builds(
    make_entry, ids, st.integers(1, POSITION_MAX), positions, st.binary(min_size=8, max_size=8), payloads
)
votes = st.builds(Vote, positions, ids)
seals = st.builds(Seal, positions, positions)
batches = st.lists(st.lists(st.one_of(entries, votes, seals), min_size=1, max_size=4), min_size=1, max_size=4)
headers = st.builds(SegmentHeader, ids, ids, ids, positions, positions, positions, ids)
fsynced = st.lists(ids, max_size=log_format.FSYNCED_COUNT_MAX).map(tuple)
commit_records = st.builds(CommitRecord, positions, positions, positions, ids, fsynced)


def encode(written: list[list[Record]]) -> bytes:
    data = b""
    for batch in written:
        data += log_format.encode_batch(batch, BATCHES_OFFSET + len(data))
    return data


def scan(data: bytes | bytearray) -> list[tuple[Record | BadRecord, int]]:
    return list(log_format.scan(memoryview(data), BATCHES_OFFSET))


def whole(found: list[tuple[Record | BadRecord, int]]) -> list[Record]:
    return [record for record, _ in found if not isinstance(record, BadRecord)]


def with_version(page: bytes, version: int) -> bytes:
    """Return a whole page of another version."""
    changed = bytearray(page)
    pack_into("<H", changed, 8, version)
    pack_into("<I", changed, PAGE_SIZE - 4, crc32c(changed[: PAGE_SIZE - 4]))
    return bytes(changed)


# --- batches


@given(batches)
def test_records_come_back_in_order_with_the_end_of_their_batch(written: list[list[Record]]) -> None:
    expected, end = [], BATCHES_OFFSET
    for batch in written:
        end += len(log_format.encode_batch(batch, end))
        expected.append((batch[-1], end))
    found = scan(encode(written))
    assert whole(found) == [record for batch in written for record in batch]
    assert not any(isinstance(record, BadRecord) for record, _ in found)
    ends = [end for _, end in found]
    assert ends == sorted(ends)
    lasts = [found[at] for at in (sum(len(one) for one in written[: n + 1]) - 1 for n in range(len(written)))]
    assert lasts == expected


@pytest.mark.parametrize("left_over", range(0, 2 * 64 + 1, 8))
def test_a_batch_may_end_anywhere_in_its_page(left_over: int) -> None:
    """Zeros end a batch, also where fewer of them are left in the page than a record's header has."""
    first = make_entry(CHAIN_START, 1, 1, b"history.", bytes([1]) * (PAGE_SIZE - 64 - left_over))
    second = make_entry(first.chain, 2, 1, b"history.", b"second")
    assert scan(encode([[first], [second]])) == [
        (first, BATCHES_OFFSET + PAGE_SIZE),
        (second, BATCHES_OFFSET + 2 * PAGE_SIZE),
    ]


def test_a_batch_that_fills_its_page_goes_on_in_the_next_one() -> None:
    """Records of one batch on both sides of a page boundary, and of two batches, are told apart by their number."""
    full = make_entry(CHAIN_START, 1, 1, b"history.", bytes([1]) * (PAGE_SIZE - 64))
    second = make_entry(full.chain, 2, 1, b"history.", b"second")
    assert len(encode([[full, second]])) == len(encode([[full], [second]])) == 2 * PAGE_SIZE
    assert whole(scan(encode([[full, second]]))) == whole(scan(encode([[full], [second]]))) == [full, second]


@given(batches, st.data())
def test_a_file_that_ends_anywhere_keeps_the_records_before(written: list[list[Record]], data: st.DataObject) -> None:
    encoded = encode(written)
    size = data.draw(st.integers(0, len(encoded)))
    records = [record for batch in written for record in batch]
    found = whole(scan(encoded[:size]))
    assert found == records[: len(found)]


def test_a_batch_cut_at_every_length() -> None:
    one = make_entry(CHAIN_START, 1, 1, b"history.", b"first entry")
    records: list[Record] = [Vote(1, b"candidate 123456"), one]
    encoded = encode([records])
    end_bytes = [64, 64 + 64 + len(one.payload)]
    for size in range(len(encoded) + 1):
        found = scan(encoded[:size])
        assert whole(found) == records[: sum(size >= end for end in end_bytes)], size
        is_partial = 0 < size < 64 or 64 < size < end_bytes[1]
        assert len(found) - len(whole(found)) == is_partial, f"{size}: a record that is cut is said to be bad"


def test_every_flipped_bit_costs_its_own_record_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Two batches of one record each: the other one is always found, a wrong one never."""
    first = make_entry(CHAIN_START, 1, 1, b"history.", b"first entry")
    second = make_entry(first.chain, 2, 1, b"history.", b"second")
    encoded = bytearray(encode([[first], [second]]))
    used = [range(64 + len(first.payload)), range(PAGE_SIZE, PAGE_SIZE + 64 + len(second.payload))]
    for bit in range(len(encoded) * 8):
        encoded[bit // 8] ^= 1 << bit % 8
        found = scan(encoded)
        encoded[bit // 8] ^= 1 << bit % 8
        expected = [record for record, place in zip((first, second), used, strict=True) if bit // 8 not in place]
        assert whole(found) == expected, f"bit {bit}"
        if len(expected) < 2:
            assert any(isinstance(record, BadRecord) for record, _ in found), f"bit {bit}"
    with capsys.disabled():
        print(f"\nlog batches: {len(encoded) * 8} flipped bits", end="")


def test_a_record_copied_to_another_place_is_none() -> None:
    first = make_entry(CHAIN_START, 1, 1, b"history.", b"first")
    page = encode([[first]])
    found = scan(page + page)
    assert whole(found) == [first]
    assert [type(record) for record, _ in found] == [Entry, BadRecord]


def test_a_bad_batch_is_passed_over_up_to_the_next_one() -> None:
    first = make_entry(CHAIN_START, 1, 1, b"history.", b"x" * 3 * PAGE_SIZE)
    second = make_entry(first.chain, 2, 1, b"history.", b"second")
    encoded = bytearray(encode([[first], [second]]))
    encoded[0:4096] = b"\xff" * 4096
    found = scan(bytes(encoded))
    assert [type(record) for record, _ in found] == [BadRecord, Entry]
    assert whole(found) == [second]


@pytest.mark.parametrize("kind", [0, 4, 2**32 - 1])
def test_an_unknown_kind_of_record_is_bad(kind: int) -> None:
    encoded = bytearray(encode([[Vote(1, b"candidate 123456")]]))
    pack_into("<I", encoded, 8, kind)
    pack_into("<I", encoded, 0, crc32c(encoded[4:64]))
    assert [type(record) for record, _ in scan(bytes(encoded))] == [BadRecord]


def test_a_declared_length_beyond_the_maximum_is_not_read() -> None:
    encoded = bytearray(encode([[make_entry(CHAIN_START, 1, 1, b"history.", b"first")]]))
    for size in (log_format.PAYLOAD_SIZE_MAX + 1, 2**32 - 1):
        pack_into("<I", encoded, 4, size)
        ((bad, _),) = scan(bytes(encoded))
        assert isinstance(bad, BadRecord)
        assert bad.reason == "no record header"


# --- segment header


@given(headers)
def test_a_segment_header_comes_back(header: SegmentHeader) -> None:
    page = header.encode()
    assert len(page) == PAGE_SIZE
    assert log_format.decode_segment_header(page) == header


def test_no_flipped_bit_and_no_cut_of_a_segment_header_passes() -> None:
    page = bytearray(SegmentHeader(b"S" * 16, b"V" * 16, b"I" * 16, 1, 0, 0, CHAIN_START).encode())
    for bit in range(len(page) * 8):
        page[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            log_format.decode_segment_header(bytes(page))
        page[bit // 8] ^= 1 << bit % 8
    for size in range(PAGE_SIZE):
        with pytest.raises(TruncatedRecordError):
            log_format.decode_segment_header(bytes(page[:size]))


def test_a_segment_of_another_version_is_refused_as_such() -> None:
    page = SegmentHeader(b"S" * 16, b"V" * 16, b"I" * 16, 1, 0, 0, CHAIN_START).encode()
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        log_format.decode_segment_header(with_version(page, 2))


# --- commit record


@given(commit_records)
def test_a_commit_record_comes_back(record: CommitRecord) -> None:
    assert log_format.decode_commit_record(log_format.encode_commit_record(record)) == record


def test_a_page_of_zeros_was_never_written() -> None:
    assert log_format.decode_commit_record(bytes(PAGE_SIZE)) is None


def test_no_flipped_bit_and_no_cut_of_a_commit_record_passes() -> None:
    page = bytearray(log_format.encode_commit_record(CommitRecord(7, 3, 9, b"c" * 16, (b"v" * 16, b"w" * 16))))
    for bit in range(len(page) * 8):
        page[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            log_format.decode_commit_record(bytes(page))
        page[bit // 8] ^= 1 << bit % 8
    for content in (bytes(page), bytes(PAGE_SIZE)):
        for size in range(PAGE_SIZE):
            with pytest.raises(CorruptRecordError):
                log_format.decode_commit_record(content[:size])


def test_a_commit_record_of_another_version_is_refused_as_such() -> None:
    page = log_format.encode_commit_record(CommitRecord(7, 3, 9, b"c" * 16))
    with pytest.raises(UnsupportedVersionError, match="version 9"):
        log_format.decode_commit_record(with_version(page, 9))


def test_a_commit_record_that_names_more_volumes_than_it_has_room_for_is_bad() -> None:
    page = bytearray(log_format.encode_commit_record(CommitRecord(7, 3, 9, b"c" * 16)))
    for count in (log_format.FSYNCED_COUNT_MAX + 1, 2**32 - 1):
        pack_into("<I", page, 12, count)
        pack_into("<I", page, PAGE_SIZE - 4, crc32c(page[: PAGE_SIZE - 4]))
        with pytest.raises(CorruptRecordError):
            log_format.decode_commit_record(bytes(page))


BEYOND = [POSITION_MAX + 1, 2**64 - 1]


@pytest.mark.parametrize("position", BEYOND)
@pytest.mark.parametrize("field", ["number", "base_index", "base_term"])
def test_a_segment_header_whose_numbers_leave_no_room_is_refused(field: str, position: int) -> None:
    header = SegmentHeader(b"s" * 16, b"v" * 16, b"i" * 16, 1, 0, 0, CHAIN_START)
    with pytest.raises(CorruptRecordError, match=str(position)):
        log_format.decode_segment_header(replace(header, **{field: position}).encode())


@pytest.mark.parametrize("position", BEYOND)
@pytest.mark.parametrize("field", ["generation", "term", "index"])
def test_a_commit_record_whose_numbers_leave_no_room_is_refused(field: str, position: int) -> None:
    record = replace(CommitRecord(7, 3, 9, b"c" * 16), **{field: position})
    with pytest.raises(CorruptRecordError, match=str(position)):
        log_format.decode_commit_record(log_format.encode_commit_record(record))


@pytest.mark.parametrize("position", BEYOND)
def test_a_record_whose_numbers_leave_no_room_is_none(position: int) -> None:
    """The next leader counts on from the highest term, and the next entry from the last index."""
    for record in (
        make_entry(CHAIN_START, position, 1, b"history1", b""),
        make_entry(CHAIN_START, 1, position, b"history1", b""),
        Vote(position, b"c" * 16),
        Seal(1, position),
    ):
        batch = log_format.encode_batch([record], BATCHES_OFFSET)
        ((bad, _),) = log_format.scan(memoryview(batch), BATCHES_OFFSET)
        assert isinstance(bad, BadRecord) and str(position) in bad.reason


@given(st.integers(1, POSITION_MAX))
def test_a_commit_record_never_goes_over_the_one_before(generation: int) -> None:
    places = {log_format.slot_offset(generation), log_format.slot_offset(generation + 1)}
    assert places == {PAGE_SIZE, 2 * PAGE_SIZE}
