"""Commands that bring streams out of a backup: prepared first, then there as a whole, under another incarnation."""

from dataclasses import replace

import msgspec
import pytest
from harness.metadata_history import INIT, ONE, OTHER, VOLUME, History, blocks, config, refusal, transaction

from storage_core import errors
from storage_core.metadata.commands import (
    AddStream,
    Append,
    DeleteStream,
    Event,
    PrepareStreams,
    Remove,
    RestoreStreams,
    Unlinked,
)
from storage_core.metadata.machine import Done
from storage_core.metadata.state import StreamState, decode_stream, encode_stream
from storage_core.sequences import SequenceSet

NEW = b"3" * 16
LATER_NS = 10**9


@pytest.fixture
def saved() -> StreamState:
    """A stream as a backup has it: five messages were written, 1 and 3 are gone, and so is the newest."""
    history = History(INIT, AddStream(ONE, config(), (VOLUME,)), Append(transaction(1), (blocks(2, 3),)))
    history.apply(Remove(ONE, SequenceSet.from_sequences([1, 3, 5]).encode(), 30, low_watermark=2))
    return history.state.streams["orders"]


@pytest.fixture
def other() -> History:
    """Another store, with another stream."""
    return History(INIT, AddStream(OTHER, config("NOTES"), (VOLUME,)))


def renewed(saved: StreamState, **changes: object) -> bytes:
    return encode_stream(replace(saved, **{"incarnation": NEW, **changes}))


def test_a_stream_is_encoded_and_decoded(saved: StreamState) -> None:
    assert encode_stream(decode_stream(encode_stream(saved))) == encode_stream(saved)
    with pytest.raises(errors.CorruptionError, match="a stream of"):
        decode_stream(encode_stream(saved)[:-1])


def test_a_restored_stream_is_what_it_was_in_a_history_of_its_own(other: History, saved: StreamState) -> None:
    assert other.apply(PrepareStreams((NEW,), LATER_NS)) == Done()
    assert len(other.state.pending_deletes) == 1
    assert other.apply(RestoreStreams((renewed(saved),), (Event("restored", "ORDERS"),))) == Done()
    found = other.state.streams["orders"]
    assert (found.low_watermark, found.next_sequence, found.first_sequence) == (2, 6, 2)
    assert (found.message_count, found.shown().ranges_head(9)) == (2, [(2, 3), (4, 5)])
    assert found.histories == ((other.history, 1),)
    assert found.created_ns == other.time_ns
    assert len(other.state.pending_deletes) == 0
    assert [one.kind for one in other.state.events] == ["restored"]
    assert other.apply(Append(transaction(2), (blocks(1, incarnation=NEW),))).appended["ORDERS"].first == 6


def test_streams_are_restored_together_or_not_at_all(other: History, saved: StreamState) -> None:
    other.apply(PrepareStreams((NEW, ONE), LATER_NS))
    taken = renewed(saved, incarnation=ONE, config=msgspec.structs.replace(saved.config, name="notes"))
    error, reason = refusal(other.apply(RestoreStreams((renewed(saved), taken))))
    assert (error, reason) == (
        errors.AlreadyExistsError, "stream 'notes' differs from stream 'NOTES' only in case",
    )  # fmt: skip
    assert list(other.state.streams) == ["notes"]
    assert len(other.state.pending_deletes) == 2


def test_what_was_not_prepared_or_was_buried_since_is_refused(other: History, saved: StreamState) -> None:
    assert refusal(other.apply(RestoreStreams((renewed(saved),))))[0] is errors.RequirementError
    other.apply(PrepareStreams((NEW,), LATER_NS))
    other.apply(Unlinked((NEW + bytes(16),)))
    assert "unlinked" in refusal(other.apply(RestoreStreams((renewed(saved),))))[1]


def test_incarnations_that_there_are_and_volumes_that_there_are_not_are_refused(
    other: History, saved: StreamState
) -> None:
    assert refusal(other.apply(PrepareStreams((OTHER,), LATER_NS)))[0] is errors.AlreadyExistsError
    other.apply(PrepareStreams((NEW,), LATER_NS))
    strange = renewed(saved, placement=(b"X" * 16,))
    assert "volumes that there are not" in refusal(other.apply(RestoreStreams((strange,))))[1]
    assert other.apply(RestoreStreams((renewed(saved),))) == Done()
    assert other.apply(DeleteStream(NEW)) == Done()
