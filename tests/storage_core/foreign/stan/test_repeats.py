"""Numbers that begin again, in a slice and across slices: one run is served, the others are compared by content."""

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from storage_core.errors import DataLossError
from storage_core.files import OS_FILES
from storage_core.foreign import ForeignDamage, open_foreign, open_foreign_slices, read_foreign_slice
from storage_core.foreign.side_by_side import compare
from storage_core.foreign.stan.directory import find_channels
from storage_core.foreign.stan.repeats import Numbered, read_numbers
from storage_core.sequences import SequenceSet

FIELD = Path(__file__).parents[3] / "data" / "stan-field"
Read = Callable[..., list[dict[str, Any]]]


def run(writer: Any, first: int, end: int, name: str = "a") -> list[bytes]:
    return [writer.message(number, data=f"{name} {number}".encode()) for number in range(first, end)]


def everything(store: Path, read: Read, stream: str = "foo", **options: Any) -> tuple[list[str], list[ForeignDamage]]:
    """Return the data of all messages, and all that is told."""
    told, _ = open_foreign(store, "stan").inspect(stream)
    return [row["data"].decode() for row in read(store, stream, on_damage=told.append, **options)], told


def names(*runs: tuple[str, int, int]) -> list[str]:
    return [f"{name} {number}" for name, first, end in runs for number in range(first, end)]


def of_others(told: Sequence[ForeignDamage]) -> list[tuple[int | None, int | None]]:
    return [(place.first, place.end) for place in told if "other content" in place.reason]


def test_three_runs_of_a_real_server_in_a_file(read: Read) -> None:
    store = FIELD / "numbers-restart" / "store"
    got, told = everything(store, read, "logs")
    assert got == names(("second run", 1, 62))
    other, copies = told
    assert (other.first, other.end, other.costs, other.offset_bytes, other.end_bytes) == (1, 25, True, 4, 955)
    assert other.reason.startswith("24 records with sequences 1 to 24 and other content")
    assert (copies.first, copies.costs, copies.offset_bytes, copies.end_bytes) == (None, False, 955, 1906)
    with pytest.raises(DataLossError, match="24 records with sequences 1 to 24 and other content"):
        read(store, "logs")
    (copy,) = compare(open_foreign(store, "stan"), "logs").copies
    assert (copy.first, copy.last, copy.whole) == (1, 61, True)


def test_a_file_of_several_runs_that_is_cut_lost_what_its_index_lists(read: Read, tmp_path: Path) -> None:
    store = shutil.copytree(FIELD / "numbers-restart" / "store", tmp_path / "store")
    path = store / "logs" / "msgs.1.dat"
    whole = path.read_bytes()
    numbered = read_numbers("logs", find_channels([store]).channels[0].slices[0], OS_FILES)
    for count, end in enumerate(numbered.ends.tolist()[:-1], 1):
        path.write_bytes(whole[:end])
        lost = SequenceSet.from_ranges([(int(numbered.sequences[:count].max()) + 1, 62)])
        assert compare(open_foreign(store, "stan"), "logs").lost == lost, count
        with pytest.raises(DataLossError):
            read(store, "logs")


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("runs", "served", "other"),
    [
        ([("a", 1, 11), ("b", 1, 31)], [("b", 1, 31)], [(1, 11)]),
        ([("a", 1, 31), ("b", 1, 11)], [("a", 1, 31)], [(1, 11)]),
        ([("a", 1, 31), ("b", 31, 41), ("c", 1, 6)], [("a", 1, 31), ("b", 31, 41)], [(1, 6)]),
        ([("a", 1, 21), ("b", 1, 6), ("a", 21, 31)], [("a", 1, 31)], [(1, 6)]),
        ([("a", 1, 11), ("a", 1, 11)], [("a", 1, 11)], []),
        ([("a", 1, 11), ("a", 1, 31)], [("a", 1, 31)], []),
    ],
)
def test_the_longest_run_is_served_and_what_others_say_is_told(
    writer: Any,
    read: Read,
    make_channel: Any,
    runs: list[tuple[str, int, int]],
    served: list[tuple[str, int, int]],
    other: list[tuple[int, int]],
    across: bool,
    with_index: bool,
) -> None:
    contents = [run(writer, first, end, name) for name, first, end in runs]
    if not across:
        contents = [list(itertools.chain.from_iterable(contents))]
    files = {f"msgs_{at}_dat": [writer.version, *content] for at, content in enumerate(contents, 1)}
    if with_index and across:
        files |= {f"msgs_{at}_idx": index_of(writer, run(writer, *which[1:], which[0]), which[1]) for at, which in
                  enumerate(runs, 1)}  # fmt: skip
    store = make_channel(**files)
    got, told = everything(store, read)
    assert got == names(*served)
    assert of_others(told) == other
    if other:
        with pytest.raises(DataLossError, match="other content"):
            read(store)
    else:
        assert any("the same content" in place.reason for place in told)
        _, first, end = served[-1]
        assert [(place.first, place.end) for place in told if place.costs] == [(end, None)]
        with pytest.raises(DataLossError, match=f"from sequence {end} on"):
            read(store)


def index_of(writer: Any, records: list[bytes], first: int) -> bytes:
    out, place = writer.version, 4
    for sequence, record in enumerate(records, first):
        entry = pack("<QQqI", sequence, place, 0, len(record) - 8)
        out, place = out + entry + pack("<I", writer.checksum(entry)), place + len(record)
    return bytes(out)


def test_a_record_that_comes_twice_between_others_hides_none_of_them(
    writer: Any, read: Read, make_channel: Any
) -> None:
    for name, costs in (("a", False), ("b", True)):
        content = [*run(writer, 1, 11), *run(writer, 5, 6, name), *run(writer, 11, 21)]
        store = make_channel(root=name, msgs_1_dat=[writer.version, *content])
        got, told = everything(store, read)
        assert got == names(("a", 1, 21))
        assert [place.costs for place in told] == [costs]
        if not costs:
            assert [row["data"].decode() for row in read(store)] == got


def test_a_run_that_overlaps_is_served_where_nothing_else_has_its_numbers(
    writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(msgs_1_dat=[writer.version, *run(writer, 1, 21), *run(writer, 15, 61, "b")])
    got, told = everything(store, read)
    assert got == names(("a", 1, 15), ("b", 15, 61))
    assert of_others(told) == [(15, 21)]


@pytest.mark.parametrize(("name", "reason"), [("a", "the same content"), ("b", "other content")])
def test_slices_that_overlap_are_compared(writer: Any, read: Read, make_channel: Any, name: str, reason: str) -> None:
    store = make_channel(
        msgs_1_dat=[writer.version, *run(writer, 1, 26)], msgs_2_dat=[writer.version, *run(writer, 21, 41, name)]
    )
    got, told = everything(store, read)
    assert got == names(("a", 1, 21), (name, 21, 41))
    overlap, *doubt = told
    assert reason in overlap.reason and "the next one begins with 21" in overlap.reason
    assert [(place.first, place.end) for place in doubt] == ([(41, None)] if name == "a" else [])
    with pytest.raises(DataLossError, match="the file continues to sequence 25"):
        read(store)


def test_a_part_of_a_channel_tells_what_is_in_it_alone(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(msgs_1_dat=[writer.version, *run(writer, 1, 11), *run(writer, 1, 61, "b")])
    told: list[ForeignDamage] = []
    assert len(read(store, on_damage=told.append, first=1, end=21)) == 20
    assert of_others(told) == [(1, 11)]
    with pytest.raises(DataLossError):
        read(store, end=21)


def test_damage_beside_a_repeated_run_is_told_as_ever(writer: Any, read: Read, make_channel: Any) -> None:
    last = bytearray(writer.message(61, data=b"b 61"))
    last[-1] ^= 1
    content = [*run(writer, 1, 25), *run(writer, 1, 61, "b"), bytes(last)]
    store = make_channel(msgs_1_dat=[writer.version, *content])
    got, told = everything(store, read)
    assert got == names(("b", 1, 61))
    assert of_others(told) == [(1, 25)]
    assert [place.first for place in told if place.costs] == [1, 61]
    got, told = everything(store, read, no_crc=True)
    assert len(got) == 61 and any(place.served and place.first == 61 for place in told)


def test_records_of_another_run_in_damaged_bytes_fail_a_read_that_lacks_no_sequence(
    writer: Any, read: Read, make_channel: Any
) -> None:
    damaged = bytearray(writer.message(6, data=b"a 6"))
    damaged[-1] ^= 1
    content = [*run(writer, 1, 6), bytes(damaged)[:20], b"?" * 9, bytes(damaged)[20:], *run(writer, 4, 7, "b")]
    store = make_channel(msgs_1_dat=[writer.version, *content])
    got, told = everything(store, read)
    assert got == names(("a", 1, 6), ("b", 6, 7))  # nothing tells of which run the sixth was
    assert [place.costs for place in told] == [True] and "numbers are those of others" in told[0].reason
    with pytest.raises(DataLossError, match="numbers are those of others"):
        read(store)


def test_a_damaged_first_record_in_front_of_copies_is_lost(writer: Any, read: Read, make_channel: Any) -> None:
    damaged = bytearray(writer.message(1, data=b"a 1"))
    damaged[-1] ^= 1
    content = [bytes(damaged), *run(writer, 2, 14), *run(writer, 11, 14)]
    store = make_channel(msgs_1_dat=[writer.version, *content])
    got, told = everything(store, read)
    assert got == names(("a", 2, 14))
    assert [(place.first, place.end) for place in told if place.costs] == [(14, None), (1, 2)]
    with pytest.raises(DataLossError):
        read(store)


def test_a_run_that_begins_below_a_shorter_one_in_front_is_served_whole(
    writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(msgs_1_dat=[writer.version, *run(writer, 5, 9), *run(writer, 1, 31, "b")])
    got, told = everything(store, read)
    assert got == names(("b", 1, 31))
    assert of_others(told) == [(5, 9)]


def test_nodes_of_which_one_began_again_are_told_apart(writer: Any, read: Read, make_channel: Any) -> None:
    for root in ("n1", "n2"):
        make_channel(root=root, msgs_1_dat=[writer.version, *run(writer, 1, 31)])
    store = make_channel(root="n3", msgs_1_dat=[writer.version, *run(writer, 1, 31), *run(writer, 1, 11, "b")])
    nodes = [store.parent / root for root in ("n1", "n2", "n3")]
    opened = open_foreign(nodes, "stan")
    drift = compare(opened, "foo")
    assert [(copy.first, copy.last, copy.whole) for copy in drift.copies] == [(1, 30, True)] * 3
    told, _ = opened.inspect("foo")
    for part in open_foreign_slices(opened.plan("foo")):
        rows = [row["data"].decode() for batch in part.read(("data",), told.append) for row in batch.to_pylist()]
    assert rows == names(("a", 1, 31))
    assert any("other content" in place.reason for place in told)


def test_a_slice_that_changes_after_it_was_planned_shows_no_second_run(
    writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(msgs_1_dat=[writer.version, *run(writer, 1, 31)])
    parts = open_foreign(store, "stan").plan("foo")
    (store / "foo" / "msgs.1.dat").write_bytes(writer.version + b"".join([*run(writer, 1, 21), *run(writer, 1, 11)]))
    with pytest.raises(DataLossError):
        [list(read_foreign_slice(part, ("sequence",))) for part in parts]


def test_the_chosen_records_are_the_most_that_rise() -> None:
    random = np.random.default_rng(3)
    for _ in range(400):
        sequences = random.integers(1, 9, int(random.integers(1, 9)))
        none = np.empty(0, np.int64)
        chosen = Numbered(None, sequences, none, none, none, 0).chosen()  # type: ignore[arg-type]
        own = sequences[chosen].tolist()
        assert own == sorted(set(own))
        # One that is left out has no place between those that are not.
        for at in np.flatnonzero(~chosen).tolist():
            before, after = sequences[:at][chosen[:at]], sequences[at:][chosen[at:]]
            assert not (before < sequences[at]).all() or not (after > sequences[at]).all()


# --- slices that lie where others were


def channel_of(writer: Any, *spans: tuple[int, int], numbers: Sequence[int] = ()) -> dict[str, Any]:
    return {
        f"msgs_{number}_dat": [writer.version, *run(writer, first, end)]
        for number, (first, end) in zip(numbers or range(1, len(spans) + 1), spans, strict=True)
    }


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize(
    ("spans", "numbers", "served", "lost"),
    [
        ([(1, 21), (1, 21)], (1, 2), [(1, 21)], (21, None)),
        ([(1, 21), (21, 41), (21, 41)], (1, 2, 3), [(1, 41)], (41, None)),
        ([(1, 21), (21, 41), (21, 41)], (1, 2, 4), [(1, 41)], (41, None)),
        ([(1, 21), (21, 41)], (1, 3), [(1, 41)], (41, None)),  # the second one is gone, the third is a copy of it
        ([(1, 21), (1, 1), (1, 1)], (1, 2, 3), [(1, 21)], (21, None)),  # the server began a third one
        ([(1, 1), (1, 1)], (1, 2), [], (1, None)),
        ([(1, 1)], (7,), [], (1, None)),
        ([(1, 21), (1, 21), (21, 41)], (1, 2, 3), [(1, 41)], (41, None)),  # two slices are the ones in front of them
        ([(1, 21), (21, 41), (21, 41), (41, 61)], (1, 2, 3, 4), [(1, 61)], (61, None)),
        ([(1, 21), (1, 1)], (1, 2), [(1, 21)], None),
        ([(1, 1)], (1,), [], None),
    ],
)
def test_a_slice_with_the_messages_of_another_or_with_none_lost_its_own(
    writer: Any,
    read: Read,
    make_channel: Any,
    spans: list[tuple[int, int]],
    numbers: tuple[int, ...],
    served: list[tuple[int, int]],
    lost: tuple[int, int | None] | None,
    with_index: bool,
) -> None:
    contents = channel_of(writer, *spans, numbers=numbers)
    if with_index:
        contents |= {
            f"msgs_{number}_idx": index_of(writer, run(writer, first, end), first)
            for number, (first, end) in zip(numbers, spans, strict=True)
        }
    store = make_channel(**contents)
    got, told = everything(store, read)
    assert got == names(*(("a", first, end) for first, end in served))
    assert {(place.first, place.end) for place in told if place.costs} == ({lost} if lost else set())
    drift = compare(open_foreign(store, "stan"), "foo")
    assert [*drift.lost.ranges()] == ([] if lost is None else [(lost[0], lost[1] or lost[0] + 1)])
    if lost:
        with pytest.raises(DataLossError):
            read(store)
    else:
        assert len(read(store)) == len(got)


def test_a_slice_in_the_place_of_the_first_one_hides_no_message_in_front(
    writer: Any, read: Read, make_channel: Any
) -> None:
    """The second slice has true messages in front of those of the first."""
    store = make_channel(**channel_of(writer, (41, 61), (21, 41), (1, 1)))
    got, told = everything(store, read)
    assert got == names(("a", 21, 41))
    assert any(place.costs and (place.first, place.end) == (1, 21) for place in told)
    assert compare(open_foreign(store, "stan"), "foo").lost.count_in(1, 21) == 20


def test_a_first_slice_with_the_messages_of_the_second_lost_its_own(writer: Any, read: Read, make_channel: Any) -> None:
    store = make_channel(**channel_of(writer, (21, 41), (21, 41), (41, 61)))
    got, told = everything(store, read)
    assert got == names(("a", 21, 61))
    assert (1, 21) in {(place.first, place.end) for place in told if place.costs}
    with pytest.raises(DataLossError):
        read(store)


def test_of_two_slices_that_leave_no_room_for_a_third_either_may_be_its_copy(
    writer: Any, read: Read, make_channel: Any
) -> None:
    store = make_channel(**channel_of(writer, (21, 41), (41, 61), numbers=(1, 3)))
    got, told = everything(store, read)
    assert got == names(("a", 21, 61))
    assert {(place.first, place.end) for place in told if place.costs} == {(1, 21), (61, None)}


@pytest.mark.parametrize("zeros", [0, 60])
def test_a_first_slice_without_a_record_lost_what_lay_in_front_of_the_second(
    writer: Any, read: Read, make_channel: Any, zeros: int
) -> None:
    store = make_channel(msgs_1_dat=[writer.version, bytes(zeros)], msgs_2_dat=writer.slice(21, 36))
    with pytest.raises(DataLossError, match="sequences 1 to 20 are lost"):
        read(store)


def test_an_index_that_ends_within_an_entry_lists_one_message_more_than_it_tells(
    writer: Any, read: Read, make_channel: Any
) -> None:
    """The data ends between two records, so that nothing else tells of the others."""
    data = writer.slice(1, 21)
    for index_size, is_lost in ((4 + 20 * 32 + 9, True), (4 + 20 * 32, False), (4 + 15 * 32 + 9, False)):
        index = writer.index(1, 61)[:index_size]
        store = make_channel(msgs_1_dat=data + bytes(40), msgs_1_idx=index)
        told = everything(store, read)[1]
        assert {(place.first, place.end) for place in told if place.costs} == ({(21, None)} if is_lost else set())


def test_an_index_tells_what_a_first_slice_held_that_another_one_took_the_place_of(
    writer: Any, read: Read, make_channel: Any
) -> None:
    """What the other slice holds is shown from there: its own place is empty."""
    contents = {"msgs_1_dat": writer.slice(21, 36), "msgs_2_dat": b"", "msgs_1_idx": writer.index(1, 21)}
    store = make_channel(**contents, msgs_2_idx=writer.index(21, 36))
    got, told = everything(store, read)
    assert len(got) == 15
    assert (1, 21) in {(place.first, place.end) for place in told if place.costs}
    assert open_foreign(store, "stan").bounds("foo")[0] == 1
    assert compare(open_foreign(store, "stan"), "foo").lost.count_in(1, 21) == 20
    with pytest.raises(DataLossError, match="1 to 20 are lost"):
        read(store)


@pytest.mark.parametrize("index_size", [4 + 30 * 32 + 8, 4 + 30 * 32 - 20])
@pytest.mark.parametrize("is_blank", [False, True])
@pytest.mark.parametrize("data_size", [0, 9])
def test_an_index_that_is_cut_within_an_entry_does_not_bound_the_channel(
    writer: Any, read: Read, make_channel: Any, index_size: int, is_blank: bool, data_size: int
) -> None:
    """Data and index lost their ends: messages that neither of them tells of were there as well."""
    data, index = writer.slice(1, 61), writer.index(1, 61)
    data_size += len(writer.slice(1, 21))
    padding = [bytes(len(data) - data_size), bytes(len(index) - index_size)] if is_blank else [b"", b""]
    store = make_channel(msgs_1_dat=data[:data_size] + padding[0], msgs_1_idx=index[:index_size] + padding[1])
    got, told = everything(store, read)
    assert len(got) == 20
    assert {(place.first, place.end) for place in told if place.costs} == {(21, None)}
    with pytest.raises(DataLossError):
        read(store)
    listed = (index_size - 4) // 32
    assert list(compare(open_foreign(store, "stan"), "foo").lost.ranges()) == [(21, listed + 2)]


@pytest.mark.parametrize(
    ("front", "first"),
    [
        ([b"", b""], 21),  # payloads that cannot be read: the sizes lead up to the first message that can
        ([bytes(60)], 21),  # as many as there may have been
    ],
)
def test_damage_in_front_of_a_channel_counts_all_its_messages(
    writer: Any, read: Read, make_channel: Any, front: list[bytes], first: int
) -> None:
    """The slice in front is gone."""
    damaged = [content or writer.record(b"\xff" * 25) for content in front]
    store = make_channel(msgs_2_dat=[writer.version, *damaged, *run(writer, 23, 36)])
    got, told = everything(store, read)
    assert got == names(("a", 23, 36))
    assert {(place.first, place.end) for place in told if place.costs} == {(first, 23)}
    assert open_foreign(store, "stan").bounds("foo") == (first, 36)


def test_a_copy_whose_last_record_is_damaged_leaves_the_channel_without_a_known_end(
    writer: Any, read: Read, make_channel: Any
) -> None:
    contents = channel_of(writer, (1, 21), (1, 21))
    last = writer.message(20, data=b"a 20")
    contents["msgs_2_dat"] = b"".join(contents["msgs_2_dat"])[: -len(last)] + last[:-1] + bytes([last[-1] ^ 1])
    got, told = everything(make_channel(**contents), read)
    assert got == names(("a", 1, 20))
    assert {(place.first, place.end) for place in told if place.costs} == {(20, None), (20, 21)}


def test_an_index_bounds_what_a_copy_of_another_slice_took_the_place_of(
    writer: Any, read: Read, make_channel: Any
) -> None:
    contents = channel_of(writer, (1, 21), (1, 21))
    store = make_channel(**contents, msgs_2_idx=index_of(writer, run(writer, 21, 36), 21))
    got, told = everything(store, read)
    assert got == names(("a", 1, 21))
    assert {(place.first, place.end) for place in told if place.costs} == {(21, 36)}
    with pytest.raises(DataLossError, match="sequences 21 to 35 are lost"):
        read(store)


@pytest.mark.parametrize("version", [b"\x01\x00\x00\x01", b"\xff\xff\xff\xff", bytes(4)])
@pytest.mark.parametrize("zeros", [0, 4, 700])
def test_a_slice_with_neither_its_version_nor_a_record_is_a_loss(
    writer: Any, read: Read, make_channel: Any, version: bytes, zeros: int
) -> None:
    store = make_channel(msgs_1_dat=version + bytes(zeros))
    got, told = everything(store, read)
    assert not got and [(place.first, place.end) for place in told if place.costs] == [(1, None)]
    with pytest.raises(DataLossError):
        read(store)


# --- files of no bytes


@pytest.mark.parametrize("name", ["logs/subs.dat", "server.dat", "clients.dat"])
def test_an_empty_file_beside_the_messages_is_a_row_and_costs_none(read: Read, tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(FIELD / "subs-empty" / "store", store)
    (store / "logs" / "subs.dat").write_bytes(b"\x01\x00\x00\x00")
    (store / name).write_bytes(b"")
    got, told = everything(store, read, "logs")
    assert got == names(("first run", 1, 25))
    assert [(place.file, place.costs) for place in told] == [(str(store / name), False)]
    assert "the file is empty" in told[0].reason
    assert len(read(store, "logs")) == 24


def test_an_empty_subs_dat_of_a_real_server_is_a_row(read: Read) -> None:
    told = everything(FIELD / "subs-empty" / "store", read, "logs")[1]
    assert ["subscriptions of the channel are gone" in place.reason for place in told] == [True]


def test_a_subscription_that_is_ahead_of_its_channel_is_a_row(writer: Any, read: Read, make_channel: Any) -> None:
    new = writer.record(writer.proto(f1=1, f2="me", f4="in", f5="ack", f6=1, f7=30, f8="dur", f9=7, f10=1), 1)
    store = make_channel(msgs_1_dat=writer.slice(1, 6), subs_dat=[writer.version, new])
    got, told = everything(store, read)
    assert len(got) == 5
    assert ["was sent sequence 7, the channel ends with 5" in place.reason for place in told] == [True]


@pytest.mark.parametrize("kind", ["empty", "gone", "index empty", "index gone", "both empty"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_empty_and_missing_files_of_a_slice_cost_what_it_held(
    writer: Any, read: Read, make_channel: Any, number: int, kind: str
) -> None:
    contents: dict[str, bytes] = {"subs_dat": writer.version}
    for at in (1, 2, 3):
        contents[f"msgs_{at}_dat"] = writer.slice(10 * at - 9, 10 * at + 1)
        contents[f"msgs_{at}_idx"] = writer.index(10 * at - 9, 10 * at + 1)
    store = make_channel(**contents)
    data, index = store / "foo" / f"msgs.{number}.dat", store / "foo" / f"msgs.{number}.idx"
    if kind in ("empty", "both empty"):
        data.write_bytes(b"")
    if kind in ("index empty", "both empty"):
        index.write_bytes(b"")
    if kind == "gone":
        data.unlink()
    if kind == "index gone":
        index.unlink()
    costs = kind in ("empty", "gone") or (kind == "both empty" and number < 3)
    got, told = everything(store, read)
    held = range(10 * number - 9, 10 * number + 1) if not kind.startswith("index") else range(0)
    assert got == [f"data {at}" for at in range(1, 31) if at not in held]
    assert any(place.costs for place in told) == costs, [place.reason for place in told]
    if costs:
        with pytest.raises(DataLossError):
            read(store)
