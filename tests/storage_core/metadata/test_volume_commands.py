"""Commands about volumes, placements, lost messages, events and adopted states."""

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from harness.metadata_history import INIT, ONE, OTHER, History, blocks, config, refusal, transaction

from storage_core import errors
from storage_core.metadata.commands import (
    AddStream,
    Append,
    ChangePlacement,
    ChangeVolumes,
    Command,
    DeclareLost,
    DeleteStream,
    Envelope,
    Event,
    Init,
    RecordEvents,
    RecordHolders,
    Remove,
    VolumeChange,
    Voter,
)
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.events import EVENT_COUNT_MAX
from storage_core.metadata.machine import Done, Place, RemoveDone, apply
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.metadata.state import StoreState
from storage_core.sequences import SequenceSet

A, B, C, D = (letter * 16 for letter in (b"A", b"B", b"C", b"D"))
CHANGE = VolumeChange("replace", (D,), (A,), 5)


def voter(volume_id: bytes, learner: bool = False, retired: str = "") -> Voter:
    return Voter(volume_id, b"I" * 16, volume_id[:1].decode(), learner, retired)


def init(*voters: Voter) -> Init:
    return Init(b"S" * 16, StoreSettings(), voters, "here", "host")


def sequences(*listed: int) -> bytes:
    return SequenceSet.from_sequences(listed).encode()


@pytest.fixture
def three() -> History:
    """A store of three volumes with the stream ORDERS on all of them."""
    placed = AddStream(ONE, config(num_replicas=3), (A, B, C))
    return History(init(voter(A), voter(B), voter(C)), placed)


# --- volumes


def test_a_volume_is_replaced_step_by_step(three: History) -> None:
    """A learner, a fourth voter, the old one gone: an even number of voters only while the change is on."""
    steps = [
        ChangeVolumes((voter(A), voter(B), voter(C), voter(D, learner=True)), CHANGE),
        ChangeVolumes((voter(A), voter(B), voter(C), voter(D)), CHANGE),
        ChangePlacement(ONE, (D, B, C)),
        ChangeVolumes((voter(D), voter(B), voter(C)), None, (Event("volume_replaced", volume=D.hex()),)),
    ]
    seen = []
    for step in steps:
        assert three.apply(step) == Done()
        seen.append((len(three.state.voters), three.state.volume_change))
    assert seen == [(4, CHANGE), (4, CHANGE), (4, CHANGE), (3, None)]
    assert [one.volume_id for one in three.state.voters] == [D, B, C]
    assert [one.kind for one in three.state.events] == ["volume_replaced"]


STANDINGS = ("absent", "learner", "voter", "retired")


def made_of(standings: tuple[str, ...]) -> tuple[Voter, ...]:
    chosen = zip((A, B, C), standings, strict=True)
    return tuple(
        voter(one, standing == "learner", "why" if standing == "retired" else "")
        for one, standing in chosen
        if standing != "absent"
    )


def why_refused(before: tuple[str, ...], after: tuple[str, ...], in_progress: bool) -> str:
    """Say the rules once more, slowly: a retired volume is a voter, a learner is none."""
    voted = [one in ("voter", "retired") for one in before]
    votes = [one in ("voter", "retired") for one in after]
    if sum(one != other for one, other in zip(voted, votes, strict=True)) > 1:
        return "the voters change by one at a time"
    if not any(votes):
        return "a store has at least one voter"
    if sum(votes) == 2 and not in_progress:
        return "2 voters: a store has an odd number of them"
    return ""


def test_every_change_of_three_volumes_is_taken_or_refused_for_its_reason() -> None:
    refused = 0
    for before in itertools.product(STANDINGS, repeat=3):
        start, _ = apply(StoreState(), Place(1, b"history1"), _envelope(init(*made_of(before))))
        for after, change in itertools.product(itertools.product(STANDINGS, repeat=3), (None, CHANGE)):
            command = ChangeVolumes(made_of(after), change)
            state, result = apply(start, Place(2, b"history1"), _envelope(command))
            why = why_refused(before, after, change is not None)
            if why:
                assert refusal(result)[0] is errors.RequirementError
                assert refusal(result)[1].startswith(why), (before, after, change)
                assert state is start
                refused += 1
            else:
                assert result == Done(), (before, after, change)
                assert (state.voters, state.volume_change) == (command.voters, change)
    assert 0 < refused < 2 * 4**6


def _envelope(command: Command) -> Envelope:
    return Envelope(1_000, command)


def test_a_volume_stands_in_the_list_once(three: History) -> None:
    error, reason = refusal(three.apply(ChangeVolumes((voter(A), voter(B), voter(C), voter(A, learner=True)))))
    assert (error, reason) == (errors.RequirementError, "the list of volumes names a volume twice")


def test_a_volume_that_keeps_blocks_is_not_removed(three: History) -> None:
    error, reason = refusal(three.apply(ChangeVolumes((voter(A), voter(B)), CHANGE)))
    assert error is errors.RequirementError
    assert reason == "stream 'ORDERS' keeps blocks on a volume that would be removed"


def test_retiring_reinstating_and_moving_a_volume_leave_the_number_of_voters(three: History) -> None:
    retired = voter(B, retired="fsync failed: EIO")
    assert three.apply(ChangeVolumes((voter(A), retired, voter(C)))) == Done()
    assert three.state.voter(B) == retired
    back = Voter(B, b"J" * 16, "elsewhere")
    assert three.apply(ChangeVolumes((voter(A), back, voter(C)))) == Done()
    assert three.state.voter(B) == back
    assert three.state.voter(D) is None


# --- placements


def test_the_bits_of_holders_move_with_their_volumes(three: History) -> None:
    held = (0b001, 0b010, 0b100, 0b011, 0b101)
    rows = encode_blocks(np.concatenate([_row(first, holders) for first, holders in enumerate(held)]))
    part = blocks(1, 1, 1, 1, 1)
    three.apply(Append(transaction(1), (msgspec.structs.replace(part, rows=rows),)))
    three.apply(ChangeVolumes((voter(A), voter(B), voter(C), voter(D, learner=True)), CHANGE))

    assert three.apply(ChangePlacement(ONE, (C, D, A), (Event("moved"),))) == Done()

    stream = three.stream()
    assert (stream.placement, stream.config.num_replicas) == ((C, D, A), 3)
    assert stream.blocks.rows["holders"].tolist() == [0b100, 0b000, 0b001, 0b100, 0b101]
    assert stream.message_count == 5
    assert [one.kind for one in three.state.events] == ["moved"]


def _row(first: int, holders: int) -> np.ndarray:
    row = np.zeros(1, BLOCK_DTYPE)
    row["block_id"], row["first"], row["span"], row["row_count"] = np.void(bytes([first + 1]) * 16), first, 1, 1
    row["file_size"] = 1000
    row["holders"] = holders
    return row


@pytest.mark.parametrize(
    "order", list(itertools.permutations((A, B, C, D), 3)), ids=lambda one: bytes(x[0] for x in one).decode()
)
def test_a_block_is_held_by_the_same_volumes_under_every_placement(three: History, order: tuple[bytes, ...]) -> None:
    three.apply(ChangeVolumes((voter(A), voter(B), voter(C), voter(D, learner=True)), CHANGE))
    rows = encode_blocks(np.concatenate([_row(first, holders) for first, holders in enumerate(range(8))]))
    three.apply(Append(transaction(1), (msgspec.structs.replace(blocks(*[1] * 8), rows=rows),)))
    before = [_holders(three, at) for at in range(8)]
    three.apply(ChangePlacement(ONE, order))
    assert [_holders(three, at) for at in range(8)] == [held & set(order) for held in before]


def _holders(history: History, at: int) -> set[bytes]:
    stream = history.stream()
    mask = int(stream.blocks.rows["holders"][at])
    assert mask < 1 << len(stream.placement)
    return {one for position, one in enumerate(stream.placement) if mask >> position & 1}


@pytest.mark.parametrize("count", [3, 40], ids=["a few", "many"])
def test_a_volume_holds_what_was_verified_there(three: History, count: int) -> None:
    rows = encode_blocks(np.concatenate([_row(first, 0b011) for first in range(count)]))
    three.apply(Append(transaction(1), (msgspec.structs.replace(blocks(*[1] * count), rows=rows),)))
    chosen = b"".join(bytes([first + 1]) * 16 for first in range(1, count, 2))
    gone = b"\xff" * 16
    assert three.apply(RecordHolders(ONE, C, chosen + gone, (Event("repaired"),))) == Done()
    expected = [0b111 if first % 2 else 0b011 for first in range(count)]
    assert three.stream().blocks.rows["holders"].tolist() == expected
    assert [one.kind for one in three.state.events] == ["repaired"]
    _, reason = refusal(three.apply(RecordHolders(ONE, D, chosen)))
    assert "keeps no blocks on volume" in reason


def test_a_new_instance_of_a_volume_begins_with_no_blocks(three: History) -> None:
    """What the one before took proves nothing; a change of anything else of the volume takes nothing away."""
    rows = encode_blocks(np.concatenate([_row(first, holders) for first, holders in enumerate((0b111, 0b010, 0b101))]))
    three.apply(Append(transaction(1), (msgspec.structs.replace(blocks(1, 1, 1), rows=rows),)))
    for same in (voter(B, retired="why"), voter(B)):
        three.apply(ChangeVolumes((voter(A), same, voter(C))))
        assert three.stream().blocks.rows["holders"].tolist() == [0b111, 0b010, 0b101]
    three.apply(ChangeVolumes((voter(A), Voter(B, b"J" * 16, "B"), voter(C))))
    assert three.stream().blocks.rows["holders"].tolist() == [0b101, 0b000, 0b101]


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        ((), "its blocks are kept on at least one volume"),
        ((A, B, D), f"{[D.hex()]} is no placement"),
        ((A, B, A), "a volume given twice is no placement"),
    ],
    ids=["none", "a stranger", "one twice"],
)
def test_what_is_no_placement(three: History, placement: tuple[bytes, ...], why: str) -> None:
    assert refusal(three.apply(ChangePlacement(ONE, placement))) == (errors.RequirementError, f"stream 'ORDERS': {why}")


# --- lost messages


def test_lost_messages_are_not_shown_and_their_numbers_not_used_again(three: History) -> None:
    three.apply(Append(transaction(1), (blocks(3, 3),)))
    three.apply(Remove(ONE, sequences(2), 10))
    three.time_ns = 77_000

    assert three.apply(DeclareLost(ONE, sequences(0, 1, 2, 3, 6, 7, 99), 30, "no copy left")) == RemoveDone(3)

    stream = three.stream()
    assert list(stream.lost.ranges()) == [(1, 2), (3, 4), (6, 7)], "2 was removed, the others never given"
    assert (stream.message_count, stream.data_size, stream.next_sequence) == (2, 20, 7)
    assert list(stream.shown().ranges()) == [(4, 6)]
    assert stream.blocks.rows["first"].tolist() == [4], "a block with nothing left is dropped"
    assert three.state.events[-1] == Event(
        "lost", "ORDERS", after="3 messages: 1 to 1, 3 to 3, 6 to 6", reason="no copy left", time_ns=77_001
    )
    assert three.apply(Append(transaction(2), (blocks(2, seed=2),))).appended["ORDERS"].first == 7
    assert three.apply(DeclareLost(ONE, sequences(1, 3), 0)) == RemoveDone(0), "once"
    assert len(three.state.events) == 1


def test_the_end_of_a_stream_may_be_lost_and_its_last_sequence_stays(three: History) -> None:
    three.apply(Append(transaction(1), (blocks(2),)))
    three.apply(DeclareLost(ONE, sequences(1, 2), 20))
    stream = three.stream()
    assert (stream.message_count, stream.next_sequence, stream.first_sequence) == (0, 3, 3)


@pytest.mark.parametrize("flag", ["sealed", "deny_delete", "deny_purge"])
def test_a_stream_that_denies_removal_loses_messages_all_the_same(flag: str) -> None:
    history = History(INIT, AddStream(ONE, config(), (A,)), Append(transaction(1), (blocks(2),)))
    history.state = history.state.with_stream(replace(history.stream(), config=config(**{flag: True})))
    assert history.apply(DeclareLost(ONE, sequences(1), 10)) == RemoveDone(1)


def test_what_was_lost_below_a_floor_is_forgotten_with_it(three: History) -> None:
    three.apply(Append(transaction(1), (blocks(6),)))
    three.apply(DeclareLost(ONE, sequences(2, 5), 20))
    three.apply(Remove(ONE, sequences(), 20, low_watermark=4, reason="purge"))
    assert list(three.stream().lost.ranges()) == [(5, 6)]


# --- streams that continue others


def test_blocks_of_earlier_incarnations_are_buried_where_they_lie(three: History) -> None:
    three.apply(Append(transaction(1), (blocks(2, 2, 2),)))
    older, old = b"0" * 16, b"9" * 16
    continued = replace(three.stream(), origins=((older, 3), (old, 5)))
    three.state = three.state.with_stream(continued)
    three.apply(Append(transaction(2), (blocks(1, seed=2),)))
    three.apply(DeleteStream(ONE))
    deletes = [(bytes(row["incarnation"]), any(bytes(row["block_id"]))) for row in three.state.pending_deletes.rows]
    assert [incarnation for incarnation, _ in deletes] == [older, old, ONE, ONE, older, old, ONE]
    assert [is_block for _, is_block in deletes[4:]] == [False, False, False], "their directories, at the end"


# --- events


def test_events_take_the_time_of_their_entry_unless_they_have_one(three: History) -> None:
    three.time_ns = 500
    assert three.apply(RecordEvents((Event("damaged"), Event("repaired", time_ns=3)))) == Done()
    assert [(one.kind, one.time_ns) for one in three.state.events] == [("damaged", 501), ("repaired", 3)]


def test_the_newest_events_are_kept(three: History) -> None:
    for start in range(0, EVENT_COUNT_MAX + 100, 1000):
        three.apply(RecordEvents(tuple(Event(str(number)) for number in range(start, start + 1000))))
    kept = [one.kind for one in three.state.events]
    assert len(kept) == EVENT_COUNT_MAX
    assert (kept[0], kept[-1]) == (str(5_000 - EVENT_COUNT_MAX), "4999")


def test_a_store_begins_once(three: History) -> None:
    assert refusal(three.apply(INIT)) == (errors.AlreadyExistsError, "the store has been initialised")


@pytest.mark.parametrize(
    "command", [ChangePlacement(OTHER, (A,)), DeclareLost(OTHER, sequences(1), 0)], ids=["placement", "lost"]
)
def test_another_lifetime_of_a_name_is_refused(three: History, command: Command) -> None:
    assert refusal(three.apply(command))[0] is errors.StaleIncarnationError
