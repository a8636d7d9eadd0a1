"""Streams of a backup restored into a store that there is: another incarnation, with everything where it was."""

import errno
from pathlib import Path
from typing import Any

import pytest
from harness.backups import BACKUP, files_below, lived, small
from harness.cases import Cases
from harness.faults import Call, end_at, fail_at, share_of
from harness.life import LOADED, WRITER, to_table
from harness.model import Content, Row, seen_in_store, seen_in_stream
from harness.processes import Machine
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    DiskFullError,
    NotFoundError,
    RequirementError,
    StorageError,
)
from storage_core.store.ingest.backup import backup
from storage_core.store.ingest.from_backup import restore_streams
from storage_core.store.ingest.preparation import PREPARED_NS
from storage_core.store.recovery import adopt
from storage_core.store.store import Store

OTHER = tuple(Path(f"/disk/other-{letter}") for letter in "abcde")
SECOND_NS = 10**9


@pytest.fixture(scope="module")
def saved(volumes: None) -> Machine:
    """A machine with a store of three volumes and a backup of it."""
    machine = lived(3)
    backup(machine.open(), BACKUP)
    return machine


def shape(store: Store, name: str) -> tuple[Any, ...]:
    """Return what a restored stream must have of the one before."""
    one = store.stream_state(name)
    return (
        one.low_watermark, one.next_sequence, one.first_sequence, one.message_count, one.data_size,
        one.removed.encode(), one.lost.encode(), one.config.subjects, one.config.duplicate_window,
        one.blocks.rows["committed_ns"].tolist(),
    )  # fmt: skip


@pytest.mark.buckets
@pytest.mark.parametrize("count", [1, 3])
def test_a_deleted_stream_comes_back_as_it_was_under_another_incarnation(saved: Machine, count: int) -> None:
    machine = saved.copy()
    store = machine.open()
    if count == 1:
        store = Store.create(OTHER[0], env=machine.environment())
        before = machine.open()
    else:
        before = machine.open()
    seen = {name: seen_in_stream(before.stream(name), with_times=True) for name in before.streams()}
    shapes, old = {name: shape(before, name) for name in seen}, before.stream("orders").incarnation
    for name in store.streams():
        store.delete_stream(name)
    report = restore_streams(store, BACKUP)
    assert seen_in_store(store, with_times=True) == seen
    assert {name: shape(store, name) for name in seen} == shapes
    assert store.stream("orders").incarnation != old
    assert store.verify()["ok"]
    assert [(one["name"], one["num_replicas"], one["num_replicas_before"]) for one in report["streams"]] == [
        ("notes", count, 3), ("orders", count, 3),
    ]  # fmt: skip
    assert [(one.kind, one.stream) for one in store.view().state.events[-2:]] == [
        ("restored", "notes"), ("restored", "orders"),
    ]  # fmt: skip
    end = seen["orders"].last_sequence + 1
    assert store.stream("orders").append(to_table(LOADED)) == range(end, end + len(LOADED))
    assert len(store.stream("orders").append(to_table(LOADED), WRITER)) == len(LOADED)
    assert store.stream("orders").last_sequence == end + len(LOADED) - 1, "the writer had stored that before"


def test_a_copy_under_another_name_is_a_stream_of_its_own(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    seen = seen_in_stream(store.stream("orders"), with_times=True)
    report = restore_streams(store, BACKUP, ["orders"], {"orders": "orders-2"})
    assert [(one["name"], one["restored_from"]) for one in report["streams"]] == [("orders-2", "orders")]
    assert seen_in_stream(store.stream("orders-2"), with_times=True) == seen
    assert seen_in_stream(store.stream("orders"), with_times=True) == seen
    last = store.stream("orders-2").last_sequence
    store.stream("orders-2").append(to_table(LOADED), WRITER)
    assert store.stream("orders-2").last_sequence == last + len(LOADED), "nobody had written to the copy"
    store.delete_stream("orders-2")
    machine.clock.sleep(2 * 3600)
    store.maintain()
    assert seen_in_stream(store.stream("orders"), with_times=True) == seen
    assert store.verify()["ok"]


def test_removed_messages_stay_removed_and_their_msg_ids_count(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    store.add_stream({"name": "S", "duplicate_window": "1h"})
    store.stream("S").append(to_table([Row("S", b"%d" % number, msg_id=str(number)) for number in range(4)]))
    store.stream("S").remove([2])
    backup(store, "/disk/other")
    restore_streams(store, "/disk/other", ["S"], {"S": "copy"})
    original, copy = (store.stream_state(name).blocks.rows for name in ("S", "copy"))
    assert original["row_count"].tolist() == copy["row_count"].tolist() == [4]
    assert not set(original["block_id"].tolist()) & set(copy["block_id"].tolist())
    assert store.stream("copy").publish("S", b"again", msg_id="1").duplicate
    assert [sequence for sequence, _ in seen_in_stream(store.stream("copy")).messages] == [1, 3, 4]


def test_history_of_a_restored_stream_is_its_own(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    restore_streams(store, BACKUP, ["orders"], {"orders": "copy"})
    ((history, first),) = store.stream_state("copy").histories
    assert first == 1
    assert history not in {one for one, _ in store.stream_state("orders").histories}


def test_what_cannot_be_restored_is_refused_before_anything_is_made(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    before, index = files_below(machine, machine.paths[0]), store.view().index
    refused: list[tuple[list[str] | None, dict[str, str] | None, type[Exception], str]] = [
        (None, None, AlreadyExistsError, "stream 'notes' exists: choose another name"),
        (["orders"], {"orders": "Notes"}, AlreadyExistsError, "stream 'notes' exists"),
        (["order"], None, NotFoundError, "no stream 'order' in the backup /disk/backup; did you mean 'orders'"),
        (["orders"], {"notes": "copy"}, ValueError, "'notes' is not among the streams"),
        (["orders"], {"orders": "../copy"}, ValueError, r"as_names: '\.\./copy' is not 1 to 128"),
        (["orders", "notes"], {"orders": "copy", "notes": "COPY"}, ValueError, "two streams cannot have one name"),
    ]
    for streams, as_names, error, reason in refused:
        with pytest.raises(error, match=reason):
            restore_streams(store, BACKUP, streams, as_names)
    assert store.view().index == index
    assert set(files_below(machine, machine.paths[0])) == set(before)
    damaged = next(path for path in files_below(machine, BACKUP) if path.suffix == ".blk")
    machine.disk.flip_bit(damaged, 8 * 200)
    with pytest.raises(CorruptionError, match=f"{damaged.name}: offset_bytes .*nothing was restored"):
        restore_streams(store, BACKUP, None, {"orders": "copy-1", "notes": "copy-2"})
    assert store.view().index == index


@pytest.mark.buckets
def test_a_restore_that_took_longer_than_it_was_prepared_for_is_refused(saved: Machine) -> None:
    machine = saved.copy()
    store, other = machine.open(), machine.open()

    def take_very_long(done: int, total: int) -> None:
        if done == total:
            machine.clock.sleep((PREPARED_NS + store.view().state.settings.deleted_block_retention) / SECOND_NS + 1)
            other.maintain()

    with pytest.raises((RequirementError, StorageError)):
        restore_streams(store, BACKUP, ["orders"], {"orders": "copy"}, take_very_long)
    assert store.streams() == ["notes", "orders"]
    assert store.verify()["ok"]


# --- volumes that fail, and ends


def target(count: int) -> Machine:
    """A machine with a small backup, and a store to restore it into."""
    machine = small(count)
    backup(machine.open(), BACKUP)
    made = Store.create(list(OTHER[:count]), deleted_block_retention="1h", env=machine.environment())
    made.add_stream({"name": "mine"})
    made.stream("mine").append(to_table([Row("mine", b"m")]))
    return machine


def opened(machine: Machine, count: int, files: Any = None) -> Store:
    return Store.open(list(OTHER[:count]), lock_timeout_s=0.0, env=machine.environment(files))


def calls_of(machine: Machine, count: int) -> list[Call]:
    files = machine.files()
    store = opened(machine, count, files)
    files.calls = []
    restore_streams(store, BACKUP)
    return files.calls


def seen_of(store: Store) -> dict[str, tuple[tuple[int, Row], ...]]:
    return {name: content.messages for name, content in seen_in_store(store).items()}


NOTES = tuple((number + 1, Row("notes", b"n%d" % number)) for number in range(3))
MINE = ((1, Row("mine", b"m")),)


ENDS = ("killed", "killed halfway", "power lost", "nothing kept")


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_restore_that_ends_at_any_call_is_there_whole_or_not_at_all(what: str, count: int) -> None:
    machine = target(count)
    cases = Cases(f"restore of a stream onto {count} volumes: {what} at each call")
    calls = calls_of(machine.copy(), count)
    for call in share_of(calls, what, ENDS):
        if what == "killed halfway" and call.operation != "write":
            continue  # is the same as killed
        with cases.case(str(call), call.operation):
            one = machine.copy()
            files = one.files()
            store = opened(one, count, files)
            files.calls, files.judge = [], end_at(call.number, halfway=what == "killed halfway")
            with pytest.raises(ProcessEnded):
                restore_streams(store, BACKUP)
            if what in ("power lost", "nothing kept"):
                one.disk.lose_power(NOTHING_KEPT if what == "nothing kept" else None)
            again = opened(one, count)
            assert seen_of(again) in ({"mine": MINE}, {"mine": MINE, "notes": NOTES})
            if "notes" not in again.streams():
                restore_streams(again, BACKUP)
            assert seen_of(again) == {"mine": MINE, "notes": NOTES}
            one.clock.sleep(PREPARED_NS / SECOND_NS + 7200)
            again.maintain()
            assert again.verify()["ok"]
            kept = {
                incarnation.hex()
                for stream in again.view().state.streams.values()
                for incarnation in stream.incarnations
            }
            for volume in OTHER[:count]:
                assert set(one.files().list_directory(volume / "streams")) == kept, "what was left is gone"
    cases.finish()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_call_that_fails_leaves_the_store_as_it_was_or_is_survived(error: int, count: int) -> None:
    machine = target(count)
    cases = Cases(f"restore of a stream onto {count} volumes: {errno.errorcode[error]} at each call")
    survived = 0
    for call in calls_of(machine.copy(), count):
        with cases.case(str(call), call.operation):
            one = machine.copy()
            files = one.files()
            store = opened(one, count, files)
            files.calls, files.judge = [], fail_at(call.number, error)
            try:
                restore_streams(store, BACKUP)
            except StorageError:
                expected: tuple[Any, ...] = ({"mine": MINE}, {"mine": MINE, "notes": NOTES})
            else:
                survived += 1
                expected = ({"mine": MINE, "notes": NOTES},)
            assert seen_of(opened(one, count)) in expected
    assert survived == 0 or count == 3 or survived < cases.count
    cases.finish()


def test_a_full_disk_is_told_as_such_and_leaves_nothing_behind() -> None:
    machine = target(1)
    files = machine.files()
    store = opened(machine, 1, files)
    before = set(files_below(machine, OTHER[0]))
    files.judge = lambda call: errno.ENOSPC if call.file_kind == "block" and call.operation == "write" else 0
    with pytest.raises(DiskFullError):
        restore_streams(store, BACKUP)
    assert set(files_below(machine, OTHER[0])) - before == set()
    assert store.streams() == ["mine"]


@pytest.mark.buckets
def test_a_stream_goes_onto_two_of_three_volumes_and_the_third_is_mended_later() -> None:
    machine = target(3)
    files = machine.files()
    store = opened(machine, 3, files)
    made = backup_of_three(machine)

    def second_is_full(call: Call) -> int:
        is_block = call.file_kind in ("block", "repaired copy") and call.operation == "write"
        return errno.ENOSPC if is_block and call.path.is_relative_to(OTHER[1]) else 0

    files.judge = second_is_full
    restore_streams(store, made)
    rows = store.stream_state("notes").blocks.rows
    assert {bin(mask).count("1") for mask in rows["holders"].tolist()} == {2}
    files.judge = lambda call: 0
    assert store.repair()["ok"]
    assert {bin(mask).count("1") for mask in store.stream_state("notes").blocks.rows["holders"].tolist()} == {3}


def backup_of_three(machine: Machine) -> Path:
    """Return a backup of a stream with three replicas."""
    paths = [Path(f"/disk/three-{letter}") for letter in "abc"]
    with Store.create(paths, env=machine.environment()) as store:
        store.add_stream({"name": "notes", "block_max_msgs": 2})
        store.stream("notes").append(to_table([row for _, row in NOTES]))
        backup(store, "/disk/backup-of-three")
    return Path("/disk/backup-of-three")


def test_holes_and_codecs_and_many_frames_come_through(tmp_path: Path) -> None:
    """On real files: lz4 and zstd blocks of several frames, msg_ids here and there, and scattered removals."""
    for codec in ("lz4", "zstd"):
        with Store.create(tmp_path / codec) as store:
            store.add_stream({"name": "S", "compression": codec, "duplicate_window": "1h", "block_max_msgs": 50_000})
            rows = [
                Row("S", b"%d" % number * 20, msg_id=f"id-{number}" if number % 3 else None)
                for number in range(120_000)
            ]
            store.stream("S").append(to_table(rows))
            store.stream("S").remove(list(range(10, 100_000, 7)))
            store.stream("S").purge(end=5)
            store.stream("S").remove([120_000])
            seen: Content = seen_in_stream(store.stream("S"), with_times=True)
            backup(store, tmp_path / f"backup-{codec}")
            restore_streams(store, tmp_path / f"backup-{codec}", ["S"], {"S": "T"})
            assert seen_in_stream(store.stream("T"), with_times=True) == seen
            assert store.verify()["ok"]
            taken = store.stream("T").append(
                to_table([Row("S", b"again", msg_id="id-4"), Row("S", b"new", msg_id="new")])
            )
            assert store.stream("T").info()["state"]["messages"] == len(seen.messages) + 1
            assert taken == range(seen.last_sequence + 1, seen.last_sequence + 3)


def test_a_store_that_continues_other_incarnations_is_backed_up_with_all_its_blocks(tmp_path: Path) -> None:
    """After an adoption blocks lie in two directories and carry two incarnations."""
    volume = tmp_path / "volume"
    with Store.create(volume) as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]})
        store.stream("S").append(to_table([Row("s.a", b"%d" % number) for number in range(3)]))
        store.maintain()
    for path in (volume / "meta").iterdir():
        path.unlink()
    adopt.execute(adopt.plan([volume]))
    with Store.open(volume) as store:
        store.stream("S").append(to_table([Row("s.b", b"after")]))
        assert store.stream_state("S").origins
        seen = seen_in_stream(store.stream("S"), with_times=True)
        store.backup(tmp_path / "saved")
        store.restore_streams(tmp_path / "saved", ["S"], {"S": "copy"})
        assert seen_in_stream(store.stream("copy"), with_times=True) == seen
        assert not store.stream_state("copy").origins
    with Store.restore(tmp_path / "saved", [tmp_path / f"new-{number}" for number in range(3)]) as again:
        assert seen_in_stream(again.stream("S"), with_times=True) == seen
        assert again.verify()["ok"]
