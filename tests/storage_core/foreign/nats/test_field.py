"""Stores from the field (tests/data/nats-field): what every reader shows of them, and what all say is lost or open."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from harness.rescues import Kept, compared, imported, kept, listed, paged, strict, try_one

from storage_core.errors import CorruptionError, DataLossError, UnsupportedVersionError
from storage_core.foreign import open_foreign
from storage_core.foreign.side_by_side import compare
from storage_core.sequences import SequenceSet

STORES = Path(__file__).parents[3] / "data" / "nats-field"
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Right:
    """What is right for one stream."""

    stream: str
    shown: Ranges
    last: int
    lost: Ranges = ()
    open: Ranges = ()
    is_strict: bool = True  # a read with failOnDataLoss=true gives it all
    says: Sequence[str] = ()  # of the table of damage


RIGHT = {
    "atomic-batch-torn": Right("BATCH", [(1, 8)], 7, says=["half of the atomic batch 'whole': 2 of its messages"]),
    "created-per-node": Right("R3", [(1, 11)], 10),
    "encryption-half": Right("MIX", [(1, 131)], 130),
    "encryption-rotated": Right("MIX", [(1, 141)], 140),
    "encryption-rotated-no-index": Right("MIX", [(1, 141)], 140),
    "encryption-zeroed": Right("MIX", [(73, 141)], 140, [(1, 73)], is_strict=False, says=["the file is empty"]),
    "encryption-zeroed-no-index": Right("MIX", [(73, 141)], 140, [(1, 73)], is_strict=False, says=["file is empty"]),
    "first-block-zeroed": Right("ORDERS", [(106, 261)], 260, [(1, 106)], is_strict=False, says=["31932 zero bytes"]),
    "flip-last-record": Right("BAD", [(1, 3), (4, 6)], 5, [(3, 4)], is_strict=False, says=["checksum mismatch"]),
    "foreign-meta-inf": Right("ORDERS", [(1, 261)], 260, says=["meta.inf is that of stream 'KV_config'"]),
    "interest-acked": Right(
        "WQ",
        [(1501, 1504)],
        1503,
        open=[(1, 220), (844, 845), (1500, 1501)],
        is_strict=False,
        says=["[1, 220)", "[844, 845)", "[1500, 1501)"],
    ),
    "kv-purge-marker-expired": Right("KV_TEST", [(8, 9)], 9),
    "only-block-damaged": Right("BAD", [(5, 6)], 5, [(1, 5)], is_strict=False, says=["checksum mismatch"]),
    "purge-killed-key-only": Right("PURGE", [(1, 61)], 60, says=["a purge was begun and not finished: 3.blk"]),
    "purge-killed-no-msgs": Right(
        "PURGE", [(1, 61)], 60, is_strict=False, says=["__msgs__ holds 1 to 60 of a purge that was not finished"]
    ),
    "scaled-down": Right("SC", [(21, 71)], 70, says=["is of before a scale-down", "1 to 20: in n3"]),
}


@pytest.fixture(scope="module")
def stores() -> dict[str, Kept]:
    return {name.removeprefix("nats-field/"): store for name, store in kept("nats", ("nats-field",)).items()}


def test_every_store_has_its_row(stores: dict[str, Kept]) -> None:
    assert set(stores) == set(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_every_reader_says_the_same(stores: dict[str, Kept], tmp_path: Path, name: str) -> None:
    store, right = stores[name], RIGHT[name]
    shown = [(right.stream, sequence) for first, end in right.shown for sequence in range(first, end)]
    said = SequenceSet.from_ranges(right.lost), SequenceSet.from_ranges(right.open)
    opened = store.open(store.place)
    assert opened.bounds(right.stream)[1] == right.last + 1
    table = listed(opened)
    assert sorted(at for at in table.rows if at[0] == right.stream) == shown
    reasons = [damage.reason for damage in table.damage if damage.stream == right.stream]
    assert all(any(text in reason for reason in reasons) for text in right.says), reasons
    assert bool(reasons) == bool(right.says), reasons
    assert any(damage.costs for damage in table.damage) == (not right.is_strict)
    assert compared(opened)[right.stream] == said
    assert imported(opened, tmp_path / "imported")[right.stream] == said
    if store.key is None:
        assert paged(store.place)[right.stream] == said
    if right.is_strict:
        assert store.truth is not None and sorted(at for at in store.truth if at[0] == right.stream) == shown
    else:
        with pytest.raises(DataLossError, match=right.stream):
            strict(store, store.place)


@pytest.mark.parametrize("name", [name for name in RIGHT if (STORES / name / "expected.jsonl.gz").exists()])
def test_what_a_client_got_is_shown(stores: dict[str, Kept], name: str) -> None:
    store, right = stores[name], RIGHT[name]
    lines = gzip.decompress((STORES / name / "expected.jsonl.gz").read_bytes()).decode().splitlines()
    got = {line["seq"]: line["time_ns"] for line in map(json.loads, lines)}
    rows = listed(store.open(store.place)).rows
    assert {sequence: row[0] for (stream, sequence), row in rows.items() if stream == right.stream} == got


def test_a_consumer_under_a_former_key_is_read_with_it_or_said_to_be_under_another() -> None:
    place = STORES / "encryption-rotated"
    (consumer,) = open_foreign(place, encryption_key="field-key-2\nfield-key-1").consumers("MIX")
    assert (consumer.delivered, consumer.ack_floor) == (5, 5)
    told: list[str] = []
    (consumer,) = open_foreign(place, encryption_key=["field-key-2"]).consumers(
        "MIX", lambda one: told.append(one.reason)
    )
    assert consumer.delivered is None
    assert len(told) == 1 and "it is under another key" in told[0] and "give both" in told[0]
    with pytest.raises(CorruptionError, match="no encryption key opens it"):
        open_foreign(place, encryption_key="field-key-1").plan("MIX")


def test_plain_blocks_beside_key_files_need_no_key() -> None:
    assert len(listed(open_foreign(STORES / "encryption-half")).rows) == 130
    with pytest.raises(UnsupportedVersionError, match="is encrypted"):
        open_foreign(STORES / "encryption-rotated").plan("MIX")


def test_nodes_of_a_healthy_cluster_raise_no_alarm() -> None:
    drift = compare(open_foreign(STORES / "created-per-node"), "R3")
    assert drift.agrees and not drift.notes


def test_a_node_of_before_a_scale_down_gives_what_the_stream_has_lost(tmp_path: Path, stores: dict[str, Kept]) -> None:
    """It has no say in what was removed; of what is damaged since, it still has a copy."""
    for path, content in stores["scaled-down"].whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    block = tmp_path / "n2/jetstream/$G/streams/SC/msgs/1.blk"
    data = bytearray(block.read_bytes())
    data[data.index(b"sc.", len(data) // 2)] ^= 1  # some message between 21 and 60
    block.write_bytes(data)
    drift = compare(open_foreign(tmp_path), "SC")
    assert drift.message_count == 50
    assert not drift.lost


@pytest.mark.parametrize("node", ["n2", "n3"])
def test_a_node_of_before_a_scale_down_is_not_believed_where_a_configuration_is_unknown(
    tmp_path: Path, stores: dict[str, Kept], node: str
) -> None:
    for path, content in stores["scaled-down"].whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"" if path.parts[0] == node and path.name == "meta.sum" else content)
    rows = listed(open_foreign(tmp_path)).rows
    assert sorted(sequence for _, sequence in rows) == list(range(21, 71))


def test_an_index_that_begins_in_front_of_all_blocks_tells_of_a_loss(tmp_path: Path, stores: dict[str, Kept]) -> None:
    """The emptied block is gone altogether, as after another start of the server."""
    store = stores["encryption-zeroed"]
    for path, content in store.whole.items():
        if path.name not in ("1.blk", "1.key"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    assert list(compare(store.open(tmp_path), "MIX").lost.ranges()) == [(1, 73)]
    with pytest.raises(DataLossError, match=r"begins with 1, and has \[1, 73\) in no block"):
        strict(store, tmp_path)


def test_a_removal_that_only_the_last_node_had_fails_a_strict_read(tmp_path: Path, stores: dict[str, Kept]) -> None:
    """The node of before the scale-down has the message, and does not tell whether it was removed."""
    store = stores["scaled-down"]
    for path, content in store.whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if path.name == "1.blk" and path.parts[0] == "n2":
            at = 2421 + 10  # in the tombstone of 2
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        if path.name != "index.db":
            (tmp_path / path).write_bytes(content)
    with pytest.raises(DataLossError, match="removed messages may show again"):
        strict(store, tmp_path)


def test_a_node_of_before_a_scale_down_does_not_lead_where_the_one_of_now_is_damaged(
    tmp_path: Path, stores: dict[str, Kept]
) -> None:
    store = stores["scaled-down"]
    for path, content in store.whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if path.name != "index.db":
            (tmp_path / path).write_bytes(bytes(100) if path.parts[0] == "n2" and path.name == "1.blk" else content)
    with pytest.raises(DataLossError, match="sequence 61 is lost"):  # it alone may have gone on
        strict(store, tmp_path)
    unclear = [damage.reason for damage in listed(store.open(tmp_path)).damage if damage.unclear]
    assert any("only a copy that no longer belongs to the stream has them" in reason for reason in unclear)


def test_a_node_that_lost_its_bytes_may_have_known_of_a_removal(tmp_path: Path) -> None:
    """Two of three nodes have removed messages that the third one has; one of the two is emptied."""
    place = STORES.parent / "nats" / "r3-lagging-follower" / "store"
    whole = {path.relative_to(place): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    store = Kept("nats", "r3-lagging-follower", place, None, None, whole, {})
    for path, content in whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if path.name != "index.db":
            emptied = path.name == "1.blk" and path.parts[0] == "n2"
            (tmp_path / path).write_bytes(bytes(len(content)) if emptied else content)
    with pytest.raises(DataLossError, match="in n3, removed in n1; that of n3 is served \\(unsure\\)"):
        strict(store, tmp_path)
    assert not listed(store.open(tmp_path)).refused


def test_what_is_lost_is_not_open_as_well(tmp_path: Path, stores: dict[str, Kept]) -> None:
    """Damage claims all from its place on, and what a consumer was sent claims a part of it again."""
    store = stores["interest-acked"]
    for path, content in store.whole.items():
        (tmp_path / "damaged" / path).parent.mkdir(parents=True, exist_ok=True)
        if path.name != "index.db":
            content = bytes(len(content)) if path.name == "4.blk" else content
            (tmp_path / "damaged" / path).write_bytes(content)
    opened = store.open(tmp_path / "damaged")
    said = compared(opened)
    assert said["WQ"][0] and not said["WQ"][1]
    assert imported(opened, tmp_path / "volume") == said


@pytest.mark.parametrize("cut", [1, 29])
def test_a_damaged_tombstone_at_the_end_fails_a_strict_read(tmp_path: Path, stores: dict[str, Kept], cut: int) -> None:
    """A removed marker would come back."""
    store = stores["kv-purge-marker-expired"]
    for path, content in store.whole.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        at = len(content) - cut
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if cut <= len(content) else content
        (tmp_path / path).write_bytes(flipped if path.name == "1.blk" else content)
    with pytest.raises(DataLossError):
        strict(store, tmp_path)


def test_random_damage_to_the_stores_from_the_field(stores: dict[str, Kept], tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    seed = Random(1).randrange(100)
    found = [try_one(store, seed, tmp_path, counts) for store in stores.values()]
    assert not any(found), [one for one in found if one]
