"""Snapshot files as bytes: a snapshot that is not whole, or not the one that it says it is, does not pass."""

from dataclasses import replace
from struct import pack_into

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.raft import snapshot_format
from storage_core.raft.entry import POSITION_MAX, Vote
from storage_core.raft.log_format import PAGE_SIZE
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader

positions = st.integers(0, POSITION_MAX)
ids = st.binary(min_size=16, max_size=16)
headers = st.builds(
    SnapshotHeader,
    *(ids, ids, ids, positions, positions, ids, st.binary(min_size=8, max_size=8)),
    st.integers(0, snapshot_format.PAYLOAD_SIZE_MAX),
    ids,
)
HEADER = SnapshotHeader(b"S" * 16, b"V" * 16, b"I" * 16, 9, 3, b"C" * 16, b"history.", 5, b"D" * 16)


@given(headers)
def test_a_header_comes_back(header: SnapshotHeader) -> None:
    page = snapshot_format.encode(header)
    assert len(page) == PAGE_SIZE
    assert snapshot_format.decode(page) == header


def test_no_flipped_bit_and_no_cut_of_a_header_passes() -> None:
    page = bytearray(snapshot_format.encode(HEADER))
    for bit in range(len(page) * 8):
        page[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            snapshot_format.decode(bytes(page))
        page[bit // 8] ^= 1 << bit % 8
    for size in range(PAGE_SIZE):
        with pytest.raises(CorruptionError, match=f"{size} bytes"):
            snapshot_format.decode(bytes(page[:size]))


def resealed(page: bytes, offset: int, layout: str, value: int) -> bytes:
    """Return the page with one field changed and a checksum that holds."""
    changed = bytearray(page)
    pack_into(layout, changed, offset, value)
    pack_into("<I", changed, PAGE_SIZE - 4, crc32c(changed[: PAGE_SIZE - 4]))
    return bytes(changed)


def test_a_snapshot_of_another_version_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        snapshot_format.decode(resealed(snapshot_format.encode(HEADER), 8, "<H", 2))


@pytest.mark.parametrize("size", [snapshot_format.PAYLOAD_SIZE_MAX + 1, 2**64 - 1])
def test_a_declared_length_beyond_the_maximum_is_refused(size: int) -> None:
    with pytest.raises(CorruptionError, match=str(size)):
        snapshot_format.decode(resealed(snapshot_format.encode(HEADER), 104, "<Q", size))


@given(st.dictionaries(st.text(), st.integers()), positions, ids, st.dictionaries(ids, positions))
def test_a_body_comes_back(state: dict[str, int], term: int, candidate: bytes, durable: dict[bytes, int]) -> None:
    encoded = msgspec.msgpack.encode({key: value % 2**60 for key, value in state.items()})
    body = snapshot_format.decode_body(
        snapshot_format.encode_body(SnapshotBody(msgspec.Raw(encoded), term, candidate, durable))
    )
    assert bytes(body.state) == encoded
    assert (body.vote, body.durable) == (Vote(term, candidate), durable)


@pytest.mark.parametrize("position", [POSITION_MAX + 1, 2**64 - 1])
def test_numbers_that_leave_no_room_are_refused(position: int) -> None:
    for header in (replace(HEADER, index=position), replace(HEADER, term=position)):
        with pytest.raises(CorruptionError, match=str(position)):
            snapshot_format.decode(snapshot_format.encode(header))


@pytest.mark.parametrize(
    "changes", [{"vote_term": -1}, {"vote_term": POSITION_MAX + 1}, {"candidate": b"x"}, {"trail": b"x" * 17}]
)
def test_a_body_whose_vote_or_trail_is_none_is_refused(changes: dict[str, object]) -> None:
    body = {"state": 1, "vote_term": 1, "candidate": b"c" * 16, "durable": {}, "trail": b""} | changes
    with pytest.raises(CorruptionError, match="the payload of a snapshot has a vote"):
        snapshot_format.decode_body(msgspec.msgpack.encode(body))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_body_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptionError):
        snapshot_format.decode_body(payload)
