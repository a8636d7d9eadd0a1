from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError, TruncatedRecordError, UnsupportedVersionError
from storage_core.raft.entry import POSITION_MAX, START, CommitRecord, EntryId, Vote, make_entry
from storage_core.raft.object_log_format import NO_ID, LogRecord, decode

ID = bytes(range(16))
EXAMPLE = LogRecord(
    b"S" * 16, b"V" * 16, b"I" * 16, 1, ID, Vote(1, b"candidate-one..."), START, NO_ID, None,
    (make_entry(START.chain, 1, 1, b"HISTORY1", b"payload"),), 1,
)  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> LogRecord:
    ids = st.binary(min_size=16, max_size=16)
    numbers = st.integers(0, POSITION_MAX)
    base = EntryId(draw(st.integers(0, POSITION_MAX - 4)), draw(numbers), draw(ids))
    entries, index, chain = [], base.index, base.chain
    for payload in draw(st.lists(st.binary(max_size=5000), max_size=4)):
        index += 1
        entry = make_entry(chain, index, draw(numbers), draw(st.binary(min_size=8, max_size=8)), payload)
        entries.append(entry)
        chain = entry.chain
    at, number = draw(numbers), draw(st.integers(1, POSITION_MAX))
    commit = CommitRecord(at, draw(numbers), at, draw(ids)) if at else None
    return LogRecord(
        draw(ids), draw(ids), draw(ids), number, draw(ids), Vote(draw(numbers), draw(ids)), base, draw(ids),
        commit, tuple(entries), draw(st.integers(1, number)),
    )  # fmt: skip


@given(records())
def test_record_is_read_as_it_was_written(record: LogRecord) -> None:
    assert decode(record.encode(), "there") == record


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    encoded = EXAMPLE.encode()
    for position in range(len(encoded)):
        for bit in range(8):
            flipped = bytearray(encoded)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                decode(bytes(flipped), "there")
        with pytest.raises((CorruptRecordError, TruncatedRecordError)):
            decode(encoded[:position], "there")


@pytest.mark.parametrize("field", ["number", "vote", "base", "commit", "first_number"])
def test_record_with_an_impossible_position_is_damage(field: str) -> None:
    beyond = POSITION_MAX + 1
    values = {
        "number": beyond,
        "vote": Vote(beyond, NO_ID),
        "base": EntryId(beyond, 1, START.chain),
        "commit": CommitRecord(beyond, 1, beyond, START.chain),
        "first_number": EXAMPLE.number + 1,
    }
    record = replace(EXAMPLE, entries=(), **{field: values[field]})  # type: ignore[arg-type]
    with pytest.raises(CorruptRecordError):
        decode(record.encode(), "there")


def test_record_of_a_newer_version_is_left_alone() -> None:
    from crc32c import crc32c

    content = bytearray(EXAMPLE.encode()[:-4])
    content[8] += 1
    with pytest.raises(UnsupportedVersionError):
        decode(bytes(content) + crc32c(bytes(content)).to_bytes(4, "little"), "there")


def test_entries_that_do_not_follow_each_other_are_no_record() -> None:
    first = EXAMPLE.entries[0]
    stray = make_entry(b"another chain...", 2, 1, b"HISTORY1", b"payload")
    bad = LogRecord(
        EXAMPLE.store_id, EXAMPLE.volume_id, EXAMPLE.instance_id, 1, ID, EXAMPLE.vote, START, NO_ID, None,
        (first, stray), 1,
    )  # fmt: skip
    with pytest.raises(CorruptRecordError):
        decode(bad.encode(), "there")
