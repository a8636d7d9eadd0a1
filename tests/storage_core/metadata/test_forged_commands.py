"""Commands that no program of ours wrote, in entries whose checksums are right: each is refused, or is harmless.

Every kind of command is taken apart as msgpack, one value in it becomes another one, and it is applied: it does not
decode, it is corruption, it is refused, or the invariants of a state still hold, and the state passes through bytes.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from harness.fuzz.mutations import mutate_tree, packed, unpacked
from harness.metadata_history import INIT, ONE, OTHER, VOLUME, History, blocks, config, transaction

from storage_core.errors import CorruptionError, UnsupportedVersionError
from storage_core.metadata import machine
from storage_core.metadata.command_invariants import are_appends_good
from storage_core.metadata.commands import (
    Abort,
    Acknowledge,
    AddConsumer,
    AddStream,
    AdvanceConsumers,
    Append,
    ChangePlacement,
    ChangeVolumes,
    Command,
    ConsumerAdvance,
    DeclareLost,
    DeleteConsumer,
    DeleteStream,
    Deliver,
    DiscardLost,
    EditStore,
    EditStream,
    Envelope,
    Event,
    ForgetTransactions,
    FormerVolume,
    Init,
    MergeBlocks,
    MoveConsumer,
    NoOp,
    PauseConsumer,
    PrepareStreams,
    QueryStart,
    RecordConsumerEvents,
    RecordEvents,
    RecordHolders,
    Remove,
    RestoreStreams,
    SetAside,
    TakeBack,
    TakeConsumer,
    TakeOver,
    Unlinked,
    VolumeChange,
    Voter,
    decode_envelope,
    encode_envelope,
)
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.invariants import check_block_ids, check_state
from storage_core.metadata.machine import Place, Refused
from storage_core.metadata.manifest import BLOCK_DTYPE, decode_blocks, encode_blocks
from storage_core.metadata.state import StoreState, decode_state, encode_state, encode_stream
from storage_core.raft.entry import CHAIN_START, Entry, make_entry
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.view import all_applied, applied

MUTATIONS = 50  # of each command
OTHER_VOLUME, THIRD, NEW = b"W" * 16, b"3" * 16, b"4" * 16
EVENT = Event("repaired", "ORDERS", volume=VOLUME.hex(), reason="a frame was damaged", time_ns=5)


FORMER = FormerVolume(VOLUME, b"K" * 16, "/disk", 40)


def some(*sequences: int) -> bytes:
    return SequenceSet.from_sequences(sequences).encode()


SET_ASIDE = SetAside(VOLUME, "meta-1", "ORDERS", THIRD, some(7, 8))


def lived() -> History:
    """A store with streams, blocks, consumers, a writer, and things that wait."""
    history = History(INIT)
    history.apply(ChangeVolumes((*INIT.voters, Voter(OTHER_VOLUME, b"J" * 16, "w", learner=True))))
    history.apply(AddStream(ONE, config(), (VOLUME,)))
    history.apply(AddStream(OTHER, config("AUDIT"), (VOLUME,)))
    history.apply(Append(transaction(1), (blocks(5, 3, subjects=[("ORDERS.a",), ("ORDERS.b",)], seed=1),)))
    history.apply(Append(transaction(2), (blocks(4, hidden=[1], seed=2),), "w", "0", "q", "r", bytes(16)))
    history.apply(Remove(ONE, some(2, 3), 20))
    history.apply(AddConsumer(ONE, ConsumerConfig(name="reader", filter_subjects=("ORDERS.>",)), 1))
    history.apply(Deliver(ONE, "reader", 1, 5, some(1, 4), 20_000))
    history.apply(PrepareStreams((THIRD,), 30_000))
    history.apply(DeclareLost(ONE, some(11, 12), 20, "no copy is left"))
    history.apply(ChangeVolumes(history.state.voters, None, (), (FORMER,), (SET_ASIDE,)))
    return history


def merge(history: History) -> MergeBlocks:
    rows = history.stream().blocks.rows[:2]
    row = np.zeros(1, BLOCK_DTYPE)
    row[0] = rows[0]
    row["block_id"], row["span"], row["row_count"] = np.void(b"M" * 16), rows["span"].sum(), 6
    row["data_size"] = 60
    return MergeBlocks(transaction(9), ONE, rows["block_id"].tobytes(), encode_blocks(row), ("ORDERS.a",), some(2, 3))


def commands(history: History) -> list[Command]:
    """One or more of every kind, each of which the store carries out."""
    restored = msgspec.structs.replace
    backed_up = lived()
    backed_up.apply(AddStream(NEW, config("BACK"), (VOLUME,)))
    backed_up.apply(Append(transaction(5), (blocks(5, incarnation=NEW, seed=5),)))
    stream = msgspec.msgpack.decode(encode_stream(backed_up.stream(NEW)))
    encoded = msgspec.msgpack.encode(stream | {"incarnation": THIRD})
    added = Voter(b"X" * 16, b"K" * 16, "x", learner=True)
    change = VolumeChange("add", (b"X" * 16,), (), 7)
    routed = (blocks(3, 2, subjects=[("a", "b"), ("c",)], holes=[1], hidden=[4], seed=6), blocks(2, incarnation=OTHER))
    return [
        NoOp(),
        TakeOver("there", "other", "it was down"),
        ChangeVolumes((*history.state.voters, added), change, (EVENT,), (FORMER,), (SET_ASIDE,)),
        EditStore(StoreSettings(max_streams=50, stream_defaults={"L*": {"max_msgs": 5}})),
        AddStream(NEW, config("NEW", max_msgs=5), (VOLUME,)),
        EditStream(ONE, restored(history.stream().config, description="new", metadata={"a": "b"})),
        DeleteStream(ONE),
        PrepareStreams((NEW,), 40_000),
        RestoreStreams((encoded,), (EVENT,)),
        ChangePlacement(ONE, (OTHER_VOLUME, VOLUME), (EVENT,)),
        Append(transaction(3), routed, "w", "1", "q", "r", bytes(16), is_routed=True),
        Append(transaction(4), (blocks(2, overwrite=True, seed=7),), "w", "1", "q", "s", bytes(16)),
        Append(transaction(6), (blocks(2, seed=8, superseded=[1, 4, 13], superseded_size=30),)),
        Abort(transaction(8)),
        Remove(ONE, some(1, 6), 20, low_watermark=4, reason="purge"),
        DeclareLost(ONE, some(5), 10, "no copy is left"),
        TakeBack(ONE, some(11), 10),
        DiscardLost(),
        Unlinked((ONE + b"B" * 16, THIRD + bytes(16))),
        ForgetTransactions(900),
        merge(history),
        RecordHolders(ONE, VOLUME, history.stream().blocks.rows["block_id"].tobytes(), (EVENT,)),
        RecordEvents((EVENT, EVENT)),
        AddConsumer(ONE, ConsumerConfig(name="second"), 3, QueryStart(3, "startingOffsets=3")),
        DeleteConsumer(ONE, "reader"),
        PauseConsumer(ONE, "reader", 50_000),
        Deliver(ONE, "reader", 5, 9, some(4, 5, 6), 30_000, some(1), some(7), (EVENT,)),
        Acknowledge(ONE, "reader", "nak", some(1, 4), 40_000, (EVENT,)),
        Acknowledge(ONE, "reader", "withhold", some(1)),
        MoveConsumer(ONE, "reader", 9, 5, (EVENT,), QueryStart(9, "latest")),
        RecordConsumerEvents(ONE, "reader", (EVENT,)),
        AdvanceConsumers((ConsumerAdvance(ONE, "reader", 6, 0),)),
        TakeConsumer(ONE, "reader", 1, (EVENT,)),
    ]


def step(state: StoreState, payload: bytes, index: int = 50) -> str:
    """Apply an entry as a replay does; return what became of it, and assert what has to hold."""
    entry = make_entry(CHAIN_START, index, 1, b"history1", payload)
    encoded = encode_state(state)
    try:
        envelope = decode_envelope(payload)
        after = applied(state, entry)
        check_block_ids(after)
    except UnsupportedVersionError:
        return "newer"
    except CorruptionError:
        return "corrupt"
    finally:
        assert encode_state(state) == encoded, "the old state is left alone"
    check_state(after)
    assert encode_state(decode_state(encode_state(after))) == encode_state(after)
    result = machine.apply(state, Place(index, b"history1"), envelope)[1]
    return "refused" if isinstance(result, Refused) else "applied"


def test_there_is_one_of_every_kind_and_each_is_carried_out() -> None:
    history = lived()
    tried = commands(history)
    assert {type(one) for one in tried} | {Init} == set(get_args(Command))
    assert [step(history.state, encode_envelope(Envelope(20_000, one))) for one in tried] == ["applied"] * len(tried)


@pytest.mark.parametrize("place", range(33))
def test_a_forged_command_leaves_a_state_whose_invariants_hold(place: int) -> None:
    history = lived()
    state, command = (StoreState(), INIT) if place == 0 else (history.state, commands(history)[place - 1])
    document = unpacked(encode_envelope(Envelope(20_000, command, {VOLUME: 3})))
    came = Counter[str]()
    for seed in range(MUTATIONS):
        rng = random.Random(f"{type(command).__name__}-{place}-{seed}")
        changed = mutate_tree(document, rng)
        if rng.random() < 0.3:
            changed = mutate_tree(changed, rng)
        payload = packed(changed)
        if payload:
            came[step(state, payload)] += 1
    assert came["applied"] + came["refused"] + came["corrupt"] > MUTATIONS // 2, came


def append(**changes: Any) -> Append:
    """An append to a stream of which some values are other ones."""
    rows = decode_blocks(blocks(3, 2, seed=30).rows, "rows").copy()
    for name in list(changes):
        if name in rows.dtype.names:
            rows[name][-1] = changes.pop(name)
    whole = {"rows": encode_blocks(rows)} | {name: changes.pop(name) for name in list(changes) if name in PART_FIELDS}
    part = msgspec.structs.replace(blocks(3, 2, seed=30), **whole)
    return Append(**({"transaction": transaction(20), "streams": (part,)} | changes))


PART_FIELDS = blocks(1).__struct_fields__
BIG, SMALL = 1 << 62, -(1 << 62)


FORGED_APPENDS = [
    append(transaction=b""),
    append(transaction=b"x" * 15),
    append(content=b"x" * 8),
    append(rows=b"x"),
    append(rows=bytes(2)),
    append(rows=b"\x01\0" + b"x" * 100),
    append(subject_set_of=b""),
    append(subject_set_of=np.array([1, 0], "<i4").tobytes()),
    append(subject_set_of=np.array([-1, 0], "<i4").tobytes()),
    append(subject_sets=(("a",),) * 3),
    append(subject_sets=(("a" * 70_000,),)),
    append(first=2),
    append(first=4),
    append(first=-3),
    append(first=BIG),
    append(first=(1 << 63) - 1),
    append(span=0),
    append(span=BIG),
    append(span=(1 << 63) - 1),
    append(row_count=0),
    append(row_count=1),
    append(row_count=3),
    append(row_count=SMALL),
    append(data_size=-1),
    append(data_size=BIG),
    append(file_size=0),
    append(file_size=BIG),
    append(msg_id_count=-1),
    append(msg_id_count=3),
    append(time_min_ns=5),
    append(duplicates=b"\x01\x00\x00\x00"),
    append(duplicates=some(7), duplicate_count=1),
    append(duplicates=some(1), duplicate_count=2),
    append(duplicate_count=-1),
    append(duplicate_count=1),
    append(duplicate_size=-1),
    append(duplicate_size=51),
    append(superseded_size=-1),
    append(rows=b"", subject_set_of=b"", superseded_size=-1),  # without blocks, as a batch that has no messages
    append(streams=(blocks(1), blocks(1))),
    append(streams=(blocks(1, incarnation=b"1"),)),
]


@pytest.mark.parametrize(
    "command",
    [
        *FORGED_APPENDS,
        AddStream(ONE, config("AGAIN"), (VOLUME,)),
        AddStream(b"", config("AGAIN"), (VOLUME,)),
        AddStream(NEW, config("../x"), (VOLUME,)),
        AddStream(NEW, config("AGAIN", num_replicas=9), (VOLUME,)),
        AddStream(NEW, config("AGAIN"), (b"Z",)),
        AddStream(NEW, config("AGAIN"), (VOLUME, VOLUME)),
        EditStream(ONE, config(description="x" * 100_000)),
        PrepareStreams((b"x",), 1),
        PrepareStreams((NEW,), -1),
        PrepareStreams((NEW,), (1 << 64) - 1),
        ChangePlacement(ONE, (b"x",)),
        ChangePlacement(ONE, tuple(bytes([at]) * 16 for at in range(6))),
        ChangeVolumes((Voter(b"x", b"I" * 16, "."),)),
        ChangeVolumes((Voter(VOLUME, b"", "."),)),
        ChangeVolumes((Voter(VOLUME, b"I" * 16, "/" * 5000),)),
        ChangeVolumes(INIT.voters, VolumeChange("add", (b"x",), (), 1)),
        EditStore(StoreSettings(max_streams=-5)),
        EditStore(StoreSettings(stream_defaults={"*": {"colour": "red"}})),
        EditStore(StoreSettings(snapshot_every=0)),
        Abort(b""),
        Remove(ONE, b"\xff\xff\xff\xff", 0),
        Remove(ONE, some(1), -1),
        Remove(ONE, some(1), 0, low_watermark=-1),
        Remove(ONE, some(1), 0, low_watermark=(1 << 64) - 1),
        Remove(ONE, some(1), 0, reason="because"),
        DeclareLost(ONE, some(1), -(1 << 63)),
        Unlinked((b"x",)),
        Unlinked((b"x" * 64,)),
        ForgetTransactions(-1),
        ForgetTransactions((1 << 64) - 1),
        RecordHolders(ONE, b"", b""),
        RecordHolders(ONE, VOLUME, b"x"),
        RecordEvents((Event("x", time_ns=(1 << 64) - 1),)),
        AddConsumer(ONE, ConsumerConfig(name="a b"), 1),
        AddConsumer(ONE, ConsumerConfig(name="ab", ack_wait=-1), 1),
        AddConsumer(ONE, ConsumerConfig(name="ab"), 1, QueryStart((1 << 64) - 1)),
        PauseConsumer(ONE, "reader", (1 << 64) - 1),
        Deliver(ONE, "reader", 5, 9, some(5), (1 << 64) - 1),
        Deliver(ONE, "reader", 5, 9, some(5), 1, b"", some(5)),
        Acknowledge(ONE, "reader", "perhaps", some(1)),
        Acknowledge(ONE, "reader", "nak", some(1), (1 << 63)),
        MoveConsumer(ONE, "reader", 5, -(1 << 63)),
        TakeConsumer(ONE, "reader", -1),
        AdvanceConsumers((ConsumerAdvance(b"", "reader", 1),)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_command_that_nobody_writes_is_corruption(command: Command) -> None:
    with pytest.raises(CorruptionError, match="entry 50 of the metadata log"):
        applied(lived().state, make_entry(CHAIN_START, 50, 1, b"history1", encode_envelope(Envelope(20_000, command))))


@pytest.mark.parametrize("forged", FORGED_APPENDS)
def test_a_forged_append_among_others_of_a_log_is_named(forged: Append) -> None:
    """Appends that are replayed together are looked at in one go, as if each went on where the one before it ended."""
    parts = [
        blocks(3, 2, subjects=[("a", "b"), ("c",)], holes=[1], hidden=[4, 0], seed=60),
        blocks(),
        blocks(1, hidden=[0], seed=61),
        blocks(7, incarnation=OTHER, seed=62),
    ]
    good: list[Command] = [Append(transaction(60 + at), (part,)) for at, part in enumerate(parts)]
    state = lived().state
    one_by_one = state
    for entry in entries(good):
        one_by_one = applied(one_by_one, entry)
    assert encode_state(all_applied(state, entries(good))) == encode_state(one_by_one)
    assert are_appends_good([decode_envelope(entry.payload) for entry in entries(good)])
    for place in range(len(good) + 1):
        with pytest.raises(CorruptionError, match=f"entry {50 + place} of the metadata log"):
            all_applied(state, entries([*good[:place], forged, *good[place:]]))


def entries(commands: Sequence[Command]) -> list[Entry]:
    payloads = [encode_envelope(Envelope(20_000, command)) for command in commands]
    return [make_entry(CHAIN_START, 50 + at, 1, b"history1", payload) for at, payload in enumerate(payloads)]


@pytest.mark.parametrize("time_ns", [-1, 1 << 63])
def test_an_entry_of_a_time_that_no_column_takes_is_corruption(time_ns: int) -> None:
    assert step(lived().state, encode_envelope(Envelope(time_ns, NoOp()))) == "corrupt"


@pytest.mark.parametrize("batch", ["²", "9" * 5000, "٣", "", "-1"])
def test_a_streaming_batch_whose_name_is_no_number_is_only_a_name(batch: str) -> None:
    history = lived()
    first = Append(transaction(30), (blocks(2, seed=31),), "w", batch, "q", "r", bytes(16))
    assert step(history.state, encode_envelope(Envelope(20_000, first))) == "applied"
    history.apply(first)
    for number in range(20):
        batches = (blocks(1, seed=100 + number),)
        history.apply(Append(transaction(40 + number), batches, "w", str(number + 1), "q", "r", bytes(16)))


def test_a_merged_block_has_every_message_that_is_shown() -> None:
    """What it drops may name rows that the old blocks had not either, and still no shown message may go."""
    history = lived()
    row = decode_blocks(merge(history).row, "row").copy()
    row["row_count"] = 5
    forged = msgspec.structs.replace(merge(history), row=encode_blocks(row), dropped=some(2, 3, 1))
    assert step(history.state, encode_envelope(Envelope(20_000, forged))) == "refused"


def test_two_blocks_with_one_id_are_corruption_once_the_log_was_replayed() -> None:
    assert step(lived().state, encode_envelope(Envelope(20_000, append(block_id=(1).to_bytes(16, "big"))))) == "applied"
    again = bytes(lived().stream().blocks.rows["block_id"][0])
    forged = append(block_id=np.void(again))
    assert step(lived().state, encode_envelope(Envelope(20_000, forged))) == "corrupt"
