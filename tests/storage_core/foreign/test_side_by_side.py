"""Several copies of one stream: what each holds, where they differ, and what is read of them together."""

import gzip
import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from harness.sequences import expand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.comparison import Drift, Rule, State
from storage_core.errors import DataLossError, NotAStoreError
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.nats.highwayhash import highwayhash64
from storage_core.foreign.nats.index import highwayhash_of
from storage_core.foreign.nats.record import TOMBSTONE_BIT, block_key
from storage_core.foreign.side_by_side import compare
from storage_core.foreign.union import UnionSlice

DATA = Path(__file__).parents[2] / "data"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
TIME = 1_795_224_345_535_450_870
Entry = tuple[int, bytes | None]  # sequence and data; no data: its tombstone
Row = tuple[int, bytes]


# --- stores made by hand


def record(stream: str, block: int, number: int, time_ns: int, subject: bytes, data: bytes) -> bytes:
    head = pack("<Qq", number, time_ns)
    hashed = np.frombuffer(head + subject + data, np.uint8)
    checksum = highwayhash64(hashed, np.zeros(1, np.int64), np.array([len(hashed)]), block_key(stream, block))[0]
    size = 4 + len(head) + 2 + len(subject) + len(data) + 8
    return pack("<I", size) + head + pack("<H", len(subject)) + subject + data + pack("<Q", int(checksum))


def write_copy(store: Path, blocks: dict[int, Sequence[Entry]], **config: Any) -> Path:
    """Lay out stream S as a node has it, without an index."""
    stream = store / "jetstream" / "$G" / "streams" / "S"
    (stream / "msgs").mkdir(parents=True)
    meta = json.dumps({"name": "S", "subjects": ["s.>"], **config}).encode()
    (stream / "meta.inf").write_bytes(meta)
    (stream / "meta.sum").write_text(highwayhash_of(meta, "S").to_bytes(8, "little").hex())
    for index, entries in blocks.items():
        found = [
            record("S", index, sequence | TOMBSTONE_BIT, TIME, b"", b"")
            if data is None
            else record("S", index, sequence, TIME + sequence, b"s.%d" % (sequence % 3), data)
            for sequence, data in entries
        ]
        (stream / "msgs" / f"{index}.blk").write_bytes(b"".join(found))
    return store


def entries(sequences: Iterable[int], data: bytes = b"data") -> list[Entry]:
    return [(sequence, data + b" %d" % sequence) for sequence in sequences]


def read(stores: Sequence[Path], layout: str = "nats", listen: bool = True, **options: Any) -> list[dict[str, Any]]:
    store = open_foreign(list(stores), layout, **options)
    (name,) = store.streams()
    heard: list[ForeignDamage] = []
    parts = store.plan(name, COLUMNS)
    return [
        row
        for part in parts
        for batch in read_foreign_slice(part, COLUMNS, heard.append if listen else None)
        for row in batch.to_pylist()
    ]


def told(stores: Sequence[Path], layout: str = "nats", **options: Any) -> list[ForeignDamage]:
    store = open_foreign(list(stores), layout, **options)
    (name,) = store.streams()
    found, parts = store.inspect(name)
    for part in parts:
        for _ in read_foreign_slice(part, (), found.append):
            pass
    return found


def drift(stores: Sequence[Path], layout: str = "nats") -> Drift:
    store = open_foreign(list(stores), layout)
    (name,) = store.streams()
    return compare(store, name)


def shown(rows: Iterable[dict[str, Any]]) -> list[Row]:
    return [(row["sequence"], row["data"]) for row in rows]


def block(store: Path, index: int) -> Path:
    return store / "jetstream" / "$G" / "streams" / "S" / "msgs" / f"{index}.blk"


def flip(path: Path, text: bytes) -> None:
    """Flip a bit of the only place that holds a text."""
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, bytes([text[0] ^ 1]) + text[1:]))


def digests(path: Path) -> dict[str, str]:
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in path.rglob("*") if one.is_file()}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Three nodes with the same twelve messages in two blocks; 5 was removed."""
    blocks = {1: [*entries(range(1, 7)), (5, None)], 2: entries(range(7, 13))}
    return [write_copy(tmp_path / name, blocks, num_replicas=3) for name in ("n1", "n2", "n3")]


EXPECTED = [(one, b"data %d" % one) for one in range(1, 13) if one != 5]


# --- stores of real clusters


@pytest.mark.parametrize(
    ("case", "counts"),
    [
        ("r3-clean", {"n1": (68, 0, 0, 0), "n2": (68, 0, 0, 0), "n3": (68, 0, 0, 0)}),
        ("r3-lagging-follower", {"n1": (70, 0, 0, 0), "n2": (70, 0, 0, 0), "n3": (58, 12, 0, 10)}),
        ("r3-drift-old-messages-gone", {"n1": (108, 0, 0, 0), "n2": (23, 85, 0, 0), "n3": (108, 0, 0, 0)}),
        ("r3-drift-stream-dir-gone", {"n1": (68, 0, 0, 0), "n2": (68, 0, 0, 0)}),
    ],
)
def test_copies_of_a_real_cluster_are_what_a_client_got(case: str, counts: dict[str, tuple[int, ...]]) -> None:
    place = DATA / "nats" / case
    lines = gzip.decompress((place / "expected.jsonl.gz").read_bytes()).decode().splitlines()
    expected = [(one["seq"], one["subject"], one["time_ns"]) for one in map(json.loads, lines)]
    before = digests(place)
    stores = [place / "store" / name for name in counts]
    for places in (stores, [place / "store"]):
        rows = read(places, listen=False)
        assert [(row["sequence"], row["subject"], row["timestamp_ns"]) for row in rows] == expected
        found = drift(places)
        assert {copy.label: tuple(copy.counts.values()) for copy in found.copies} == counts
        assert found.agrees == all(sum(one[1:]) == 0 for one in counts.values())
        assert (found.message_count, len(found.lost)) == (len(expected), 0)
    assert digests(place) == before


def test_a_node_that_lost_the_stream_counts_as_a_copy_without_anything(tmp_path: Path) -> None:
    store = DATA / "nats" / "r3-drift-stream-dir-gone" / "store"
    (tmp_path / "n3" / "jetstream" / "$G" / "streams").mkdir(parents=True)
    stores = [store / "n1", store / "n2", tmp_path / "n3"]
    assert len(read(stores, listen=False)) == 68
    found = drift(stores)
    assert [copy.whole for copy in found.copies] == [True, True, False]
    assert found.copies[2].counts == {"there": 0, "missing": 68, "damaged": 0, "different": 0}
    assert found.copies[2].problem == f"there is no copy of R3 in {tmp_path / 'n3'}"
    assert "replicas" in drift(stores[:2]).notes[0]
    with pytest.raises(NotAStoreError, match=r"n4 does not exist"):
        open_foreign([store / "n1", tmp_path / "n4"])


# --- copies that were changed


def test_copies_in_any_order_and_cut_into_other_blocks_are_the_same(nodes: list[Path], tmp_path: Path) -> None:
    other = {1: entries(range(1, 4)), 3: [*entries(range(4, 11)), (5, None)], 4: entries(range(11, 13))}
    nodes.append(write_copy(tmp_path / "n4", other))
    found = drift(nodes)
    assert found.agrees
    assert len({copy.digest for copy in found.copies}) == 1
    for order in itertools.permutations(nodes):
        assert shown(read(order, listen=False)) == EXPECTED


def test_one_damaged_message_is_read_from_another_copy(nodes: list[Path]) -> None:
    flip(block(nodes[1], 1), b"data 3")
    assert shown(read(nodes, listen=False)) == EXPECTED
    found = drift(nodes)
    assert [list(copy.runs.sequences(State.DAMAGED).ranges()) for copy in found.copies] == [[], [(3, 4)], []]
    (damage,) = told(nodes)
    assert (damage.costs, damage.elsewhere, damage.first, damage.end) == (False, True, 3, 4)
    assert "sequence 3 damaged in n2" in damage.describe()
    assert "n2/jetstream" in damage.describe()
    assert damage.row()["served"]


def test_a_message_that_no_copy_has_whole_is_lost_and_told(nodes: list[Path]) -> None:
    for node in nodes:
        flip(block(node, 1), b"data 3")
    flip(block(nodes[0], 2), b"data 9")
    with pytest.raises(DataLossError, match=r"stream 'S': .*sequence 3 is lost: .*n1.*1\.blk at offset_bytes"):
        read(nodes, listen=False)
    assert shown(read(nodes)) == [row for row in EXPECTED if row[0] != 3]
    found = drift(nodes)
    assert list(found.lost.ranges()) == [(3, 4)]
    assert found.verdict() == "0 of 3 copies are whole, 1 message lost"
    assert [(damage.first, damage.costs) for damage in told(nodes)] == [(3, True), (3, True), (3, True), (9, False)]


def test_every_copy_may_lack_something_else(nodes: list[Path]) -> None:
    block(nodes[0], 1).unlink()
    block(nodes[1], 2).unlink()
    flip(block(nodes[2], 2), b"data 9")
    assert shown(read(nodes, listen=False)) == EXPECTED
    found = drift(nodes)
    assert not any(copy.whole for copy in found.copies)
    assert found.verdict() == "0 of 3 copies are whole, nothing lost"
    missing = [list(copy.runs.sequences(State.MISSING).ranges()) for copy in found.copies]
    assert missing == [[(1, 5), (6, 7)], [(7, 13)], []]
    assert list(found.copies[2].runs.sequences(State.DAMAGED).ranges()) == [(9, 10)]


@pytest.mark.parametrize(
    ("gone", "lost"),
    [
        ({"n1": 1}, []),
        ({"n1": 2}, []),
        ({"n1": 1, "n2": 2}, []),
        ({"n1": 1, "n2": 1}, []),
        ({"n1": 1, "n2": 1, "n3": 1}, [(1, 5)]),
        ({"n1": 2, "n2": 2, "n3": 2}, [(5, 9)]),
    ],
)
def test_what_a_copy_cannot_tell_without_an_index_another_one_may(
    tmp_path: Path, gone: dict[str, int], lost: list[tuple[int, int]]
) -> None:
    blocks = {1: [*entries(range(1, 5)), (2, None)], 2: entries(range(5, 9)), 3: entries(range(9, 13))}
    nodes = [write_copy(tmp_path / name, blocks, num_replicas=3) for name in ("n1", "n2", "n3")]
    for name, index in gone.items():
        block(tmp_path / name, index).unlink()
    assert list(drift(nodes).lost.ranges()) == lost
    costly = [damage for damage in told(nodes) if damage.costs]
    assert {(damage.first, damage.end) for damage in costly} == set(lost)
    assert all("not there, and no index tells" in damage.reason for damage in costly)
    missing = {sequence for first, end in lost for sequence in range(first, end)}
    assert {row["sequence"] for row in read(nodes)} == set(range(1, 13)) - {2} - missing
    if lost:
        with pytest.raises(DataLossError):
            read(nodes, listen=False)


def test_a_torn_end_loses_what_the_other_copies_have_not_and_no_more(nodes: list[Path]) -> None:
    for node in nodes:
        path = block(node, 2)
        path.write_bytes(path.read_bytes()[:-20])
    found = drift(nodes)
    assert list(found.lost.ranges()) == [(12, 13)]
    assert shown(read(nodes)) == EXPECTED[:-1]
    with pytest.raises(DataLossError, match="from sequence 12 on are lost"):
        read(nodes, listen=False)


def test_a_torn_end_behind_which_most_copies_have_nothing_loses_nothing(nodes: list[Path]) -> None:
    path = block(nodes[0], 2)
    path.write_bytes(path.read_bytes() + b"torn")
    assert shown(read(nodes, listen=False)) == EXPECTED
    found = drift(nodes)
    assert found.verdict() == "the copies agree"
    (note,) = found.notes
    assert note.startswith("damage that touches no message: ")
    assert note.endswith("n1/jetstream/$G/streams/S/msgs/2.blk: the block ends 4 bytes into a record")
    with pytest.raises(DataLossError, match="from sequence 13 on are lost"):
        read(nodes[:2], listen=False)
    with pytest.raises(DataLossError, match="from sequence 13 on are lost"):
        read(nodes[:1], listen=False)


@pytest.mark.parametrize("torn", [12, 8])
def test_two_torn_ends_of_three_may_have_gone_behind_the_third(nodes: list[Path], torn: int) -> None:
    """The third node may have stopped before the others, which then acknowledged more messages."""
    for node in nodes[:2]:
        path = block(node, 2)
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"data %d" % torn)])
    assert shown(read(nodes)) == EXPECTED
    assert list(drift(nodes).lost.ranges()) == [(13, 14)]
    store = open_foreign(nodes, "nats")
    assert store.bounds("S") == (1, 14)
    with pytest.raises(DataLossError, match="from sequence 13 on are lost"):
        read(nodes, listen=False)
    shutil.copy(block(nodes[2], 2), block(nodes[1], 2))
    assert shown(read(nodes, listen=False)) == EXPECTED
    assert (drift(nodes).lost.run_count, open_foreign(nodes, "nats").bounds("S")) == (0, (1, 13))


def test_a_copy_that_cannot_be_read_is_left_out_and_told(nodes: list[Path]) -> None:
    shutil.rmtree(block(nodes[0], 1).parent)
    assert shown(read(nodes, listen=False)) == EXPECTED
    found = drift(nodes)
    assert "has no directory msgs" in found.copies[0].problem
    assert found.copies[0].count(State.DAMAGED) == 11
    assert (found.lost.run_count, [copy.whole for copy in found.copies]) == (0, [False, True, True])
    for node in nodes[1:]:
        shutil.rmtree(block(node, 1).parent)
    with pytest.raises(Exception, match="has no directory msgs"):
        read(nodes)


@pytest.mark.parametrize(
    ("contents", "late", "expected", "rule"),
    [
        ("aab", 0, "a", Rule.MAJORITY),
        ("baa", 9, "a", Rule.MAJORITY),
        ("a.b", 9, "b", Rule.LATEST),
        ("b.a", 9, "b", Rule.LATEST),
        ("aabbc", 9, "b", Rule.LATEST),
        ("aabc.", 9, "a", Rule.MOST),
        ("-aa", 0, "a", Rule.KEPT),
        ("-a", 0, "a", Rule.KEPT),
        ("--a", 0, "", Rule.REMOVED),
        ("--aab", 0, "a", Rule.KEPT),
        ("---ab", 0, "", Rule.REMOVED),
        ("--ab", 9, "b", Rule.LATEST),
    ],
)
def test_what_is_served_follows_the_vote(tmp_path: Path, contents: str, late: int, expected: str, rule: str) -> None:
    """Each letter is a copy with that content at sequence 2, later ones of the alphabet stored `late` ns later; `-` has
    removed it, `.` ends before it.
    """
    stores = [write_copy(tmp_path / f"n{at}", {1: []}) for at in range(len(contents))]
    for store, content in zip(stores, contents, strict=True):
        written = [record("S", 1, 1, TIME + 1, b"s.x", b"one")]
        if content == "-":
            written.append(record("S", 1, 2 | TOMBSTONE_BIT, TIME, b"", b""))
        elif content != ".":
            written.append(record("S", 1, 2, TIME + 2 + late * ord(content), b"s.x", content.encode()))
        if content != ".":
            written.append(record("S", 1, 3, TIME + 3, b"s.x", b"three"))
        block(store, 1).write_bytes(b"".join(written))
    served = [(1, b"one"), *([(2, expected.encode())] if expected else []), (3, b"three")]
    for order in itertools.islice(itertools.permutations(stores), 24):
        assert shown(read(order)) == served
    found = drift(stores)
    (conflict,) = found.conflicts
    assert (conflict.first, conflict.end, conflict.rule) == (2, 3, rule)
    assert conflict.is_decided == (rule not in (Rule.MOST, Rule.LATEST))
    assert not found.agrees
    for copy, letter in zip(found.copies, contents, strict=True):
        states = [state for state in State if copy.runs.sequences(state).count_in(2, 3)]
        if letter in "-.":
            assert states == ([State.MISSING] if expected else [])
        else:
            assert states == [State.THERE if letter == expected and conflict.is_decided else State.DIFFERENT]
    if conflict.is_decided:
        assert shown(read(stores, listen=False)) == served
    else:
        with pytest.raises(DataLossError, match=rf"sequence 2: one content in n\d.* \({rule}\)"):
            read(stores, listen=False)
        assert found.together.count(State.DIFFERENT) == 1
        assert any(damage.disputed and damage.costs for damage in told(stores))


def test_content_differs_also_by_where_the_subject_ends(nodes: list[Path]) -> None:
    """The size of a subject is not covered by the record's checksum; other copies tell that it was changed."""
    path = block(nodes[0], 2)
    data = path.read_bytes()
    at = data.index(b"s.2data 8") - 2
    path.write_bytes(data[:at] + pack("<H", 5) + data[at + 2 :])
    found = drift(nodes)
    assert list(found.copies[0].runs.sequences(State.DIFFERENT).ranges()) == [(8, 9)]
    assert [row["subject"] for row in read(nodes, listen=False) if row["sequence"] == 8] == ["s.2"]


# --- ranges and filters


def test_parts_of_several_copies_follow_the_blocks_of_the_fullest(nodes: list[Path]) -> None:
    block(nodes[0], 1).unlink()
    parts = open_foreign(nodes).plan("S", COLUMNS)
    assert [(part.first, part.end) for part in parts] == [(1, 7), (7, 13)]
    assert all(isinstance(part, UnionSlice) for part in parts)
    assert [part.path for part in parts] == [str(block(nodes[1], 1)), str(block(nodes[1], 2))]


def test_ranges_subjects_and_times_are_asked_of_all_copies_together(nodes: list[Path]) -> None:
    flip(block(nodes[0], 1), b"data 3")
    store = open_foreign(nodes)
    assert store.bounds("S") == (1, 13)

    def ask(**limits: Any) -> list[int]:
        parts = store.plan("S", ("sequence",), **limits)
        return [
            row["sequence"]
            for part in parts
            for one in read_foreign_slice(part, ("sequence",))
            for row in one.to_pylist()
        ]

    for first, end in [(1, 4), (3, 4), (6, 8), (12, None), (None, 3), (13, None), (4, 4)]:
        assert ask(first=first, end=end) == [s for s, _ in EXPECTED if (first or 0) <= s < (end or 99)]
    assert ask(subject_filters=["s.0"]) == [3, 6, 9, 12]
    assert ask(time_first_ns=TIME + 3, time_end_ns=TIME + 9) == [3, 4, 6, 7, 8]


def test_any_columns_come_in_order_also_from_several_copies(tmp_path: Path) -> None:
    odd, even = [one for one in range(1, 41) if one % 2], [one for one in range(1, 41) if not one % 2]
    stores = [write_copy(tmp_path / "n1", {1: entries(odd)}), write_copy(tmp_path / "n2", {1: entries(even)})]
    for part in open_foreign(stores).plan("S"):
        for columns in (("data",), ("sequence", "data"), ()):
            batches = list(read_foreign_slice(part, columns, lambda _: None))
            assert all(batch.schema.names == list(columns) for batch in batches)
            assert sum(batch.num_rows for batch in batches) == 40
    # Neither has a tombstone for what the other has, but a whole block without a record says that it was removed.
    assert shown(read(stores)) == [(one, b"data %d" % one) for one in range(1, 41)]
    assert {conflict.rule for conflict in drift(stores).conflicts} == {Rule.KEPT}


def test_large_parts_of_one_copy_are_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.foreign.union.RANGE_SIZE_MAX", 4096)
    few: dict[int, Sequence[Entry]] = {1: [*entries([1]), *entries(range(1000, 2000))]}
    many: dict[int, Sequence[Entry]] = {1 + at: entries(range(1 + at * 50, 51 + at * 50)) for at in range(19)}
    stores = [write_copy(tmp_path / "n1", few), write_copy(tmp_path / "n2", many)]
    parts = open_foreign(stores).plan("S", COLUMNS)
    unions = [part for part in parts if isinstance(part, UnionSlice)]
    sizes = [sum(one.file_size for one in copy.slices[1:]) for part in unions for copy in part.copies]
    assert len(parts) > 8
    assert max(sizes) <= 2 * 4096
    assert [row["sequence"] for row in read(stores)] == [*range(1, 951), *range(1000, 2000)]


# --- consumers, channels of STAN


def test_of_a_consumer_the_copy_that_got_furthest_counts() -> None:
    place = DATA / "nats" / "r3-lagging-follower" / "store"
    (consumer,) = open_foreign([place / "n1", place / "n2", place / "n3"]).consumers("R3")
    assert (consumer.name, consumer.delivered, consumer.ack_floor) == ("d1", 12, 4)


@pytest.fixture
def channels(tmp_path: Path) -> list[Path]:
    stores = [tmp_path / name for name in ("n1", "n2", "n3")]
    for store in stores:
        shutil.copytree(DATA / "stan" / "basic" / "store" / "foo", store / "foo")
    return stores


def test_copies_of_a_channel_are_read_as_one(channels: list[Path]) -> None:
    alone = read(channels[:1], "stan")
    assert read(channels, "stan", listen=False) == alone
    found = drift(channels, "stan")
    assert found.agrees
    assert {copy.count(State.THERE) for copy in found.copies} == {len(alone)}


def test_a_channel_damaged_in_every_copy_at_another_place_is_read_whole(channels: list[Path]) -> None:
    alone = read(channels[:1], "stan")
    for at, store in enumerate(channels):
        path = sorted((store / "foo").glob("msgs.*.dat"))[0]
        data = bytearray(path.read_bytes())
        data[len(data) * (at + 1) // 5] ^= 1
        path.write_bytes(data)
    assert read(channels, "stan", listen=False) == alone
    found = drift(channels, "stan")
    assert found.verdict() == "0 of 3 copies are whole, nothing lost"
    assert all(copy.count(State.DAMAGED) == 1 for copy in found.copies)
    assert read(channels, "stan", listen=False, no_crc=True) == alone


def test_a_suspect_of_a_channel_is_served_only_where_no_copy_has_better(channels: list[Path]) -> None:
    alone = read(channels[:1], "stan")
    victim = alone[len(alone) // 2]
    for store in channels:
        for path in (store / "foo").glob("msgs.*.dat"):
            if victim["data"] in path.read_bytes() and victim["data"]:
                data = path.read_bytes()
                path.write_bytes(data.replace(victim["data"], bytes([victim["data"][0] ^ 1]) + victim["data"][1:], 1))
    assert len(drift(channels, "stan").lost) == 1
    with pytest.raises(DataLossError, match="noCrc"):
        read(channels, "stan", listen=False)
    rows = read(channels, "stan", no_crc=True)
    assert [row["sequence"] for row in rows] == [row["sequence"] for row in alone]
    assert sum(mine != theirs for mine, theirs in zip(rows, alone, strict=True)) == 1
    assert any(damage.served for damage in told(channels, "stan", no_crc=True))


# --- any damage at all


COUNT = 24
ACTIONS = st.one_of(
    st.tuples(st.just("alter"), st.integers(1, COUNT), st.sampled_from([b"x", b"y"])),
    st.tuples(st.just("remove"), st.integers(1, COUNT)),
    st.tuples(st.just("cut"), st.integers(0, COUNT)),
    st.tuples(st.just("flip"), st.integers(0, 10_000)),
    st.tuples(st.just("unlink"), st.integers(1, 3)),
)


def damaged_copy(path: Path, actions: Sequence[tuple[Any, ...]]) -> None:
    """Write a copy of messages 1 to COUNT in three blocks, changed as the actions say."""
    content: dict[int, bytes] = {sequence: b"data %d" % sequence for sequence in range(1, COUNT + 1)}
    removed: list[int] = []
    for name, *values in actions:
        if name == "alter":
            content[values[0]] = values[1] * 8
        elif name == "remove":
            removed.append(values[0])
        elif name == "cut":
            content = {sequence: data for sequence, data in content.items() if sequence <= values[0]}
    blocks: dict[int, list[Entry]] = {1: [], 2: [], 3: []}
    for sequence, data in content.items():
        blocks[1 + (sequence - 1) * 3 // COUNT].append((sequence, data))
    last = max(index for index, one in blocks.items() if one or index == 1)
    blocks[last] += [(sequence, None) for sequence in removed if sequence in content]
    write_copy(path, {index: one for index, one in blocks.items() if one})
    for name, *values in actions:
        found = sorted(path.rglob("*.blk"))
        if name == "flip" and found:
            file = found[values[0] % len(found)]
            data = bytearray(file.read_bytes())
            data[values[0] % len(data)] ^= 1 << values[0] % 8
            file.write_bytes(data)
        elif name == "unlink":
            block(path, values[0]).unlink(missing_ok=True)


def said(store: Path) -> tuple[dict[int, bytes], set[int], int]:
    """Return what one copy shows when it is read alone, the sequences it says were removed, and from which sequence on
    it has lost no removal.
    """
    opened = open_foreign(store)
    if not opened.streams():
        return {}, set(), 0
    state = opened.state("S")  # type: ignore[attr-defined]
    rows = dict(shown(read([store])))
    return rows, {sequence for sequence in range(1, COUNT + 1) if sequence in state.removed}, state.forgets_below


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(copies=st.lists(st.lists(ACTIONS, max_size=4), min_size=2, max_size=5))
def test_no_minority_is_ever_served_and_nothing_invented(
    tmp_path_factory: pytest.TempPathFactory, copies: list[list[tuple[Any, ...]]]
) -> None:
    top = tmp_path_factory.mktemp("copies")
    try:
        stores = [top / f"n{at}" for at in range(len(copies))]
        for store, actions in zip(stores, copies, strict=True):
            damaged_copy(store, actions)
        alone = [said(store) for store in stores]
        together = dict(shown(read(stores)))
        found = drift(stores)
        unsettled = set(expand(found.together.sequences(State.DIFFERENT)))
        for sequence in range(1, COUNT + 1):
            votes = Counter(rows[sequence] for rows, *_ in alone if sequence in rows)
            removers = sum(sequence in removed and sequence not in rows for rows, removed, _ in alone)
            sure = sum(sequence in rows and sequence >= sure_from for rows, _, sure_from in alone)
            holders = sum(votes.values())
            served = together.get(sequence)
            if not holders or removers > sure:
                assert served is None
                continue
            assert served is not None
            best = max(votes.values())
            assert votes[served] == best
            silent = len(alone) - removers - holders  # damaged copies among them may have known of a removal
            if removers and removers + silent > sure:
                assert sequence in unsettled or 2 * best > holders
            else:
                assert (sequence in unsettled) == (2 * best <= holders)
        assert set(together) == set(expand(found.together.sequences(State.THERE))) | unsettled
        assert found.lost.count_in(1, COUNT + 1) + len(together) <= COUNT
        # A torn end may have held one message more, unless most copies end whole in front of it.
        assert all(sum(copy.counts.values()) <= COUNT + 1 for copy in found.copies)
    finally:
        shutil.rmtree(top)
