"""States as bytes: what comes back is the same, and equal states give equal bytes."""

import zlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from storage_core.chunked_set import ChunkedSet
from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.metadata import state as state_module
from storage_core.metadata.commands import Event, FormerVolume, QueryStart, SetAside, VolumeChange, Voter
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.manifest import ARCHIVE_DTYPE, BLOCK_DTYPE, EXPIRY_DTYPE, PENDING_DELETE_DTYPE, Table
from storage_core.metadata.pending import PendingMessages, pending_rows
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import (
    COMMITTED,
    TRANSACTION_DTYPE,
    BatchResult,
    StoreState,
    Streams,
    StreamState,
    WriterState,
    decode_state,
    encode_state,
)
from storage_core.sequences import SequenceSet


def table(dtype: np.dtype, count: int) -> Table:
    """Return rows in which every byte says something."""
    return Table.of(np.frombuffer(bytes(n % 251 for n in range(count * dtype.itemsize)), dtype))


def full_state() -> StoreState:
    """Return a state in which no field has its default."""
    writers = {
        "b": WriterState("", "", (), SharedMap({"x": BatchResult(1, 2, 0)})),
        "a": WriterState("query", "run 2", ("run 1",), SharedMap({"9": BatchResult(3, 9, 1)}), 9),
    }
    consumers = {
        name.casefold(): ConsumerState(
            config=ConsumerConfig(name=name, filter_subjects=("a.>",), metadata={"owner": "they"}),
            created_ns=6,
            incarnation=b"I" * 16,
            next_sequence=60,
            history=((b"history2", 50),),
            pending=PendingMessages.of(pending_rows(SequenceSet.from_ranges([(3, 5), (8, 10)]), 77, 2)),
            reported=SequenceSet.from_ranges([(7, 8)]),
            paused_until_ns=9,
            events=(Event("consumer_reset", "aa", name, "", "1", "2", "why", 78),),
            query_start=QueryStart(7, "startingOffsets=latest"),
            generation=3,
            done=SequenceSet.from_ranges([(5, 7)]),
            missed=SequenceSet.from_ranges([(7, 8)]),
        )
        for name in ("Reader", "another")
    }
    streams = {}
    for name in ("ZZ", "aa"):
        streams[name.casefold()] = StreamState(
            config=StreamConfig(name=name, subjects=("a.>", "b"), metadata={"owner": "we"}, compression="zstd"),
            incarnation=name.encode() * 8,
            created_ns=5,
            placement=(b"V" * 16,),
            low_watermark=3,
            next_sequence=100,
            blocks=table(BLOCK_DTYPE, 3),
            removed=ChunkedSet.of(SequenceSet.from_ranges([(4, 6), (9, 10)])),
            lost=SequenceSet.from_ranges([(7, 8)]),
            message_count=90,
            data_size=900,
            histories=((b"history1", 1), (b"history2", 50)),
            subject_sets=(("a.b",), ("b", "a.c")),
            origins=((b"O" * 16, 5), (b"P" * 16, 50)),
            writers=writers,
            consumers=SharedMap(consumers),
            expiries=table(EXPIRY_DTYPE, 1),
            missed_end=4,
            lost_blocks=table(BLOCK_DTYPE, 1),
        )
    return StoreState(
        store_id=b"S" * 16,
        created_ns=1,
        settings=StoreSettings(deleted_block_retention=7, snapshot_every=8),
        voters=(Voter(b"V" * 16, b"I" * 16, "../v", True, "its fsync failed"),),
        lock_domain="here",
        host="host",
        streams=Streams(streams),
        pending_deletes=table(PENDING_DELETE_DTYPE, 2),
        replaced=table(PENDING_DELETE_DTYPE, 3),
        archives=table(ARCHIVE_DTYPE, 2),
        transactions=table(TRANSACTION_DTYPE, 4),
        transaction_floor_ns=12,
        time_ns=13,
        clock_ns=11,
        writers={"job": WriterState("", "", (), SharedMap({"x": BatchResult(5, 5, 0, b"c" * 16)}))},
        volume_change=VolumeChange("replace", (b"W" * 16,), (b"V" * 16,), 77),
        former=(FormerVolume(b"V" * 16, b"J" * 16, "/v", 76),),
        set_aside=(SetAside(b"V" * 16, "meta-1", "aa", b"Q" * 16, SequenceSet.from_ranges([(6, 9)]).encode()),),
        events=(Event("retired", "S", "C", "5656", "before", "after", "why", 78), Event("repaired", time_ns=79)),
    )


def plain(value: Any) -> Any:
    """Return a state as values that compare by content."""
    if isinstance(value, (Table, PendingMessages)):
        return value.encode()
    if isinstance(value, (StoreState, StreamState, ConsumerState)):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return value


def test_every_field_comes_back() -> None:
    state = full_state()
    for field in fields(state):
        assert plain(getattr(state, field.name)) != plain(getattr(StoreState(), field.name)), field.name
    assert plain(decode_state(encode_state(state))) == plain(state)


def test_an_empty_state_comes_back() -> None:
    assert plain(decode_state(encode_state(StoreState()))) == plain(StoreState())


def test_a_snapshot_from_before_volumes_could_change_says_that_nothing_has() -> None:
    older = msgspec.msgpack.decode(encode_state(full_state()))
    del older["volume_change"], older["events"], older["voters"][0]["retired"]
    for stream in older["streams"]:
        del stream["origins"], stream["consumers"]
    state = decode_state(msgspec.msgpack.encode(older))
    assert (state.volume_change, state.events, state.voters[0].retired) == (None, (), "")
    assert state.streams["aa"].origins == ()
    assert state.streams["aa"].consumers == {}
    assert state.streams["aa"].incarnations == (b"aa" * 8,)


def test_equal_states_give_equal_bytes_whatever_the_order_in_which_they_were_made() -> None:
    state = full_state()
    turned = replace(
        state,
        streams=Streams(
            {
                key: replace(
                    one,
                    writers=dict(reversed(list(one.writers.items()))),
                    consumers=SharedMap(reversed(list(one.consumers.items()))),
                )
                for key, one in reversed(list(state.streams.items()))
            }
        ),
    )
    assert encode_state(turned) == encode_state(state)
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)


def test_tables_that_came_from_bytes_can_be_appended_to() -> None:
    decoded = decode_state(encode_state(full_state()))
    before = decoded.pending_deletes.encode()
    grown = decoded.pending_deletes.append(np.zeros(1, PENDING_DELETE_DTYPE))
    assert grown.encode() == before + bytes(PENDING_DELETE_DTYPE.itemsize)
    assert decoded.pending_deletes.encode() == before


def test_a_state_of_another_version_is_refused_as_such() -> None:
    newer = msgspec.msgpack.decode(encode_state(StoreState()))
    newer["version"] = 2
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        decode_state(msgspec.msgpack.encode(newer))


@pytest.mark.parametrize("key", ["pending_deletes", "replaced", "transactions"])
def test_tables_that_are_no_whole_rows_are_refused(key: str) -> None:
    broken = msgspec.msgpack.decode(encode_state(StoreState()))
    broken[key] = b"x"
    with pytest.raises(CorruptionError, match=key):
        decode_state(msgspec.msgpack.encode(broken))


@pytest.mark.parametrize("key", ["removed", "lost"])
def test_sequence_sets_that_are_none_are_refused(key: str) -> None:
    broken = msgspec.msgpack.decode(encode_state(full_state()))
    broken["streams"][0][key] = b"\xff"
    with pytest.raises(CorruptionError):
        decode_state(msgspec.msgpack.encode(broken))


@pytest.mark.parametrize("pending", [b"x", bytes(28), b"\x01\0\0\0" + zlib.compress(bytes(28))])
def test_pending_messages_that_are_no_rows_in_order_are_refused(pending: bytes) -> None:
    broken = msgspec.msgpack.decode(encode_state(full_state()))
    broken["streams"][0]["consumers"][0]["pending"] = pending
    with pytest.raises(CorruptionError, match="pending"):
        decode_state(msgspec.msgpack.encode(broken))


@pytest.mark.parametrize("content", [b"", b"\xc0", b"\x80", b"not msgpack", b"\xdd\xff\xff\xff\xff"])
def test_bytes_that_are_no_state_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_state(content)


def test_a_state_cut_anywhere_is_refused() -> None:
    encoded = encode_state(full_state())
    for size in range(len(encoded)):
        with pytest.raises((CorruptionError, UnsupportedVersionError)):
            decode_state(encoded[:size])


def test_first_sequence_is_that_of_the_first_message_that_is_shown() -> None:
    stream = full_state().streams["aa"]
    assert stream.first_sequence == 3
    assert replace(stream, removed=ChunkedSet.of(SequenceSet.from_ranges([(3, 6)]))).first_sequence == 6
    empty = replace(stream, removed=ChunkedSet.of(SequenceSet.from_ranges([(3, 100)])))
    assert empty.first_sequence == empty.next_sequence == 100
    assert not empty.shown()


def test_a_block_lies_where_the_incarnation_that_wrote_it_put_it() -> None:
    stream = full_state().streams["aa"]
    written = {sequence: stream.written_as(sequence) for sequence in (1, 4, 5, 49, 50, 99)}
    first, second, own = b"O" * 16, b"P" * 16, b"aa" * 8
    assert written == {1: first, 4: first, 5: second, 49: second, 50: own, 99: own}
    assert stream.incarnations == (first, second, own)
    assert replace(stream, origins=()).written_as(1) == own


def test_volumes_are_looked_up_by_id() -> None:
    state = full_state()
    assert state.voter(b"V" * 16) is state.voters[0]
    assert state.voter(b"-" * 16) is None


def test_names_are_looked_up_as_they_are_written() -> None:
    state = full_state()
    assert state.stream("ZZ") is state.streams["zz"]
    assert state.stream("zz") is None
    assert state.by_incarnation(b"ZZ" * 8) is state.streams["zz"]
    assert state.by_incarnation(b"-" * 16) is None


def test_the_newest_outcome_of_a_transaction_counts() -> None:
    rows = np.zeros(2, TRANSACTION_DTYPE)
    rows["id"], rows["outcome"] = np.void(b"T" * 16), [2, COMMITTED]
    state = replace(StoreState(), transactions=Table.of(rows))
    assert (state.outcome(b"T" * 16), state.outcome(b"-" * 16)) == (COMMITTED, 0)


def test_layouts_are_frozen() -> None:
    assert TRANSACTION_DTYPE.itemsize == 25
    assert [TRANSACTION_DTYPE[name].str for name in TRANSACTION_DTYPE.names or ()] == ["|V16", "|u1", "<i8"]
    assert state_module.STATE_VERSION == 1
