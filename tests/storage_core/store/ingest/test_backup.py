"""Backups and stores restored from them: equal to the last message, and refused when a byte of them is not as it was.

The stores live the scripted life on a simulated disk. test_backup_interrupted.py has what happens when they are cut
short.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness.backups import BACKUP, NEW, files_below, lived, reopened, restored, small
from harness.block_places import block_directory
from harness.cases import Cases, quiet
from harness.faults import end_at
from harness.life import LOADED, WRITER, stage, to_table
from harness.model import Row, seen_in_store, seen_in_stream
from harness.processes import Machine
from harness.simulated_disk import ProcessEnded

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    DataLossError,
    NotAStoreError,
    NotFoundError,
    RequirementError,
    StorageError,
    StoreBusyError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from storage_core.metadata.commands import Event
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StoreState, encode_state, encode_stream
from storage_core.raft import log_format
from storage_core.raft.entry import EntryId
from storage_core.raft.log_format import PAGE_SIZE
from storage_core.store.ensemble import creation
from storage_core.store.environment import REAL
from storage_core.store.ingest import assembly
from storage_core.store.ingest import backup as backups
from storage_core.store.ingest.backup import backup, open_backup, verify_backup
from storage_core.store.ingest.restore import restore_store
from storage_core.store.reading.plan import ReadRequest
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
from storage_core.store.volume.identity import BACKUP_FILE

# How a manifest began in version 1: magic, version, checksum of both, size and digest.
VERSION_1 = bytes.fromhex("4a5354524d424b500100000017dbaa4eff040000000000009e8143d193f54febba71ca760ca0741575d023c9")


@pytest.fixture(scope="module")
def saved(volumes: None) -> Machine:
    """A machine with a store of three volumes and a backup of it."""
    machine = lived(3)
    backup(machine.open(), BACKUP)
    return machine


def without_volumes(state: StoreState) -> dict[str, Any]:
    """Return what a restored state must have of the one before."""
    streams = {}
    for name, one in state.streams.items():
        rows = one.blocks.rows.copy()
        rows["holders"] = 0
        config = msgspec.structs.replace(one.config, num_replicas=1)
        streams[name] = encode_stream(replace(one, placement=(), config=config, blocks=Table.of(rows)))
    return {"store_id": state.store_id, "created": state.created_ns, "settings": state.settings, **streams}


# --- a whole store


@pytest.mark.parametrize("to", [1, 3, 5])
@pytest.mark.parametrize("of", [1, 3, 5])
def test_a_restored_store_is_the_store_on_as_many_volumes_as_are_given(of: int, to: int) -> None:
    machine = lived(of)
    before = machine.open()
    seen, state = seen_in_store(before, with_times=True), before.view().state
    report = backup(before, BACKUP)
    assert (report["whole_store"], report["index"]) == (True, before.view().index)
    made = restore_store(BACKUP, list(NEW[:to]), env=machine.environment())
    store = Store(made.metadata, machine.environment(), False, 60)
    assert seen_in_store(store, with_times=True) == seen
    assert without_volumes(store.view().state) == without_volumes(state)
    assert store.verify()["ok"]
    listed = sorted(store.view().state.streams.values(), key=lambda one: one.name)
    for stream, told in zip(listed, made.report["streams"], strict=True):
        assert len(stream.placement) == stream.config.num_replicas == min(of, to)
        assert (told["num_replicas"], told["num_replicas_before"]) == (min(of, to), of)
        assert set(stream.blocks.rows["holders"].tolist()) <= {(1 << min(of, to)) - 1}
    assert not {one.volume_id for one in state.voters} & {one.volume_id for one in store.view().state.voters}
    assert [one.kind for one in store.view().state.events[-1:]] == ["restored"]
    assert seen_in_store(reopened(machine, to), with_times=True) == seen
    assert reopened(machine, to).stream("orders").append(to_table(LOADED)).start == seen["orders"].last_sequence + 1


def test_what_a_writer_stored_is_not_stored_again_by_the_restored_store(saved: Machine) -> None:
    machine = saved.copy()
    store = restored(machine)
    last = store.stream("orders").last_sequence
    again = store.stream("orders").append(to_table(LOADED), WRITER)
    assert (len(again), store.stream("orders").last_sequence) == (len(LOADED), last)


@pytest.mark.buckets
def test_an_append_begun_before_the_restore_is_refused(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    transaction = store.begin(["notes"])
    staged = stage(store, transaction, {"notes": [Row("notes", b"late")]})
    with pytest.raises(TransactionAbortedError):
        restored(machine).commit(transaction, staged)


def test_positions_behind_the_end_of_an_older_backup_are_of_another_history(saved: Machine) -> None:
    """FAULTS: a store restored from an older copy that grew past the old position again is still recognised."""
    machine = saved.copy()
    original = machine.open()
    original.stream("orders").append(to_table([Row("orders.eu", b"after the backup")]))
    position = original.stream("orders").last_sequence
    store = restored(machine, 3)
    store.stream("orders").append(to_table([Row("orders.eu", b"%d" % number) for number in range(9)]))

    def history_at(found: Store) -> bytes:
        histories = found.view().state.streams["orders"].histories
        return [history for history, first in histories if first <= position][-1]

    assert store.stream("orders").last_sequence > position
    assert history_at(store) != history_at(original)
    assert store.stream("orders").incarnation == original.stream("orders").incarnation
    earlier = [state.streams["orders"].histories[0] for state in (store.view().state, original.view().state)]
    assert earlier[0] == earlier[1]


def test_a_backup_of_some_streams_has_no_others(saved: Machine) -> None:
    machine = saved.copy()
    report = backup(machine.open(), "/disk/some", streams=["notes"])
    assert (report["whole_store"], [one["name"] for one in report["streams"]]) == (False, ["notes"])
    store = Store.restore("/disk/some", NEW[0], env=machine.environment())
    assert store.streams() == ["notes"]
    assert seen_in_store(store)["notes"] == seen_in_store(machine.open())["notes"]


def test_a_store_without_streams_and_a_stream_without_messages_are_restored() -> None:
    for steps in (0, 1):
        machine = lived(1, steps)
        backup(machine.open(), BACKUP)
        assert seen_in_store(restored(machine, 3)) == seen_in_store(machine.open())


@pytest.mark.buckets
def test_a_backup_of_a_restored_store_is_equal_to_the_one_before(saved: Machine) -> None:
    machine = saved.copy()
    backup(restored(machine), "/disk/again")
    assert seen_in_store(Store.restore("/disk/again", NEW[1], env=machine.environment())) == seen_in_store(
        machine.open()
    )


# --- damage of the store that is backed up


def copies_of(store: Store, stream: str, first: int) -> list[Path]:
    (found,) = store.plan(ReadRequest((stream,), {stream: (first, first + 1)})).slices
    return [Path(one) for one in found.paths]


def test_each_block_is_taken_from_whichever_copies_are_whole(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    first, second, third = copies_of(store, "orders", 1)
    machine.disk.flip_bit(first, 8 * 300)
    machine.disk.remove(second)
    seen = seen_in_store(store)
    backup(store, "/disk/other")
    assert seen_in_store(Store.restore("/disk/other", NEW[0], env=machine.environment())) == seen


def test_a_message_without_a_whole_copy_keeps_a_backup_from_being_finished(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    for path in copies_of(store, "orders", 1):
        machine.disk.flip_bit(path, 8 * 300)
    with pytest.raises(DataLossError, match=r"stream 'orders': sequences 1 to 2 cannot be backed up.*jstream repair"):
        backup(store, "/disk/other")
    with pytest.raises(NotAStoreError, match="unfinished"):
        open_backup("/disk/other", machine.environment())


def test_a_process_that_had_the_store_open_is_told_that_another_one_is_there(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "volume")
    store.add_stream({"name": "S"}).publish("S", b"1")
    backup(store, tmp_path / "backup")
    shutil.rmtree(tmp_path / "volume")
    Store.restore(tmp_path / "backup", [tmp_path / "volume"])
    for _ in range(2):
        with pytest.raises(NotAStoreError, match="restored or created again: open it again"):
            store.stream("S").publish("S", b"2")
    assert Store.open(tmp_path / "volume").stream("S").last_sequence == 1


def test_what_was_declared_lost_is_lost_in_the_restored_store_as_well(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    for path in copies_of(store, "orders", 1):
        machine.disk.flip_bit(path, 8 * 300)
    store.repair()
    lost = store.view().state.streams["orders"].lost
    assert lost
    seen = seen_in_stream(store.stream("orders"))
    backup(store, "/disk/other")
    again = Store.restore("/disk/other", NEW[0], env=machine.environment())
    assert again.view().state.streams["orders"].lost.encode() == lost.encode()
    assert seen_in_stream(again.stream("orders")) == seen


# --- where a backup may be made


def test_what_is_no_place_for_a_backup_is_refused_and_left_alone(saved: Machine) -> None:
    machine = saved.copy()
    store, files = machine.open(), machine.files()
    files.make_directory(Path("/disk/mine"))
    files.create(Path("/disk/mine/letter.txt"))
    files.create(Path("/disk/file"))
    refused: list[tuple[str, type[Exception], str]] = [
        ("/disk/mine", AlreadyExistsError, "is not empty and holds no backup: letter.txt"),
        ("/disk/file", AlreadyExistsError, "is not a directory"),
        ("/disk/none/backup", ValueError, "/disk/none is not a directory"),
        (str(BACKUP), AlreadyExistsError, "holds a backup already"),
        (str(machine.paths[0]), ValueError, "must not lie in the other"),
        (str(machine.paths[0] / "backup"), ValueError, "must not lie in the other"),
        ("/disk", ValueError, "must not lie in the other"),
        ("", ValueError, "is no path"),
        ("s3://bucket/backup", ValueError, "is in an object store; a backup is a directory of a disk"),
    ]
    before = files_below(machine, Path("/disk"))
    for directory, error, reason in refused:
        with pytest.raises(error, match=reason):
            backup(store, directory)
    assert files_below(machine, Path("/disk")) == before
    for streams, error, reason in (
        ([], ValueError, "none is named"),
        (["order"], NotFoundError, "did you mean 'orders'"),
    ):
        with pytest.raises(error, match=reason):
            backup(store, "/disk/other", streams)
    assert not files.is_directory(Path("/disk/other"))


def test_an_unfinished_backup_of_another_store_is_not_gone_on_with(saved: Machine) -> None:
    machine = saved.copy()
    interrupt_backup(machine, "/disk/other")
    other = Store.create(NEW[0], env=machine.environment())
    with pytest.raises(AlreadyExistsError, match="unfinished backup of another store"):
        backup(other, "/disk/other")
    machine.files().create(Path("/disk/other/letter.txt"))
    with pytest.raises(AlreadyExistsError, match=r"what is none of it: letter\.txt"):
        backup(machine.open(), "/disk/other")


def interrupt_backup(machine: Machine, directory: str, call_number: int = 20) -> None:
    files = machine.files()
    store = machine.open(files)
    files.calls, files.judge = [], end_at(call_number)
    with pytest.raises(ProcessEnded):
        backup(store, directory)


@pytest.mark.buckets
def test_a_backup_goes_on_with_the_blocks_that_are_there(saved: Machine) -> None:
    machine = saved.copy()
    interrupt_backup(machine, "/disk/other")
    store = machine.open()
    store.stream("orders").append(to_table([Row("orders.eu", b"in between")]))
    report = backup(store, "/disk/other")
    assert 0 < report["copied"] < report["blocks"]
    assert seen_in_store(Store.restore("/disk/other", NEW[0], env=machine.environment())) == seen_in_store(store)


# --- damaged and foreign backups


def test_every_byte_of_a_backup_counts(saved: Machine) -> None:
    machine = small()
    backup(machine.open(), BACKUP)
    cases = Cases("backup: a flip of each byte, a cut at each place, and files that are missing")
    whole = files_below(machine, BACKUP)
    assert sorted(path.suffix for path in whole) == [".backup", ".blk", ".blk", ".snap"]
    env = machine.environment()

    def refused(path: Path, content: bytes | None) -> None:
        with cases.case(path.name):
            if content is None:
                machine.disk.remove(path)
            else:
                machine.disk.overwrite(path, content)
            with pytest.raises((CorruptionError, NotAStoreError), match=path.name if content else "backup"):
                Store.restore(BACKUP, NEW[0], env=env)
            assert not env.files.is_directory(NEW[0])

    for path, content in whole.items():
        for at in range(len(content)):
            if path.suffix == ".snap" and 200 <= at < PAGE_SIZE - 4 and at % 97:
                continue  # of the padding of its header some are enough
            refused(path, content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        for size in range(1, len(content), 7):
            refused(path, content[:size])
        refused(path, content + b"\0")
        machine.disk.overwrite(path, content)
    for path in whole:
        spoilt = machine
        machine = spoilt.copy()
        env = machine.environment()
        refused(path, None)
        machine = spoilt
    cases.finish()


def test_a_block_under_the_name_of_another_is_refused() -> None:
    machine = small()
    backup(machine.open(), BACKUP)
    content = files_below(machine, BACKUP)
    first, second = (path for path in content if path.suffix == ".blk")
    machine.disk.overwrite(first, content[second])
    with pytest.raises(CorruptionError, match=first.name):
        restored(machine)


def test_what_is_no_backup_says_what_it_is(saved: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = saved.copy()
    env = machine.environment()
    env.files.make_directory(Path("/disk/mine"))
    for directory, error, reason in (
        ("/disk/none", NotAStoreError, "does not exist or is not a directory"),
        ("/disk/mine", NotAStoreError, r"holds no backup: it has no jstream\.backup"),
        (machine.paths[0], NotAStoreError, "it is a volume of a store"),
        ("s3://bucket/backup", ValueError, "is in an object store"),
    ):
        with pytest.raises(error, match=reason):
            Store.restore(directory, NEW[0], env=env)
    with monkeypatch.context() as patched:
        patched.setattr(backups, "FORMAT_VERSION", 3)
        newer = backups.encode_backup_mark(b"s" * 16)
    for content, version in ((newer, 3), (VERSION_1, 1)):
        machine.disk.overwrite(BACKUP / BACKUP_FILE, content)
        with pytest.raises(UnsupportedVersionError, match=f"version {version}; this program reads version 2"):
            restored(machine)
    assert not env.files.is_directory(NEW[0])


def test_a_backup_is_no_volume_and_says_so(saved: Machine) -> None:
    env = saved.copy().environment()
    with pytest.raises(NotAStoreError, match="holds a backup, not a volume: `jstream restore`"):
        Store.open(BACKUP, env=env)
    with pytest.raises(NotAStoreError, match="holds a backup, not a volume: `jstream restore`"):
        adopt.plan([BACKUP], env)
    with pytest.raises(AlreadyExistsError):
        Store.create(BACKUP, env=env)


def test_verification_names_every_bad_block_of_a_backup(saved: Machine) -> None:
    machine = saved.copy()
    env = machine.environment()
    whole = verify_backup(BACKUP, env)
    assert whole == {"ok": True, "checked_blocks": open_backup(BACKUP, env).block_count, "damage": []}
    first, second, *_ = (path for path in files_below(machine, BACKUP) if path.suffix == ".blk")
    machine.disk.flip_bit(first, 8 * 300)
    machine.disk.remove(second)
    report = verify_backup(BACKUP, env)
    assert (report["ok"], report["checked_blocks"]) == (False, whole["checked_blocks"])
    assert {damage["file"] for damage in report["damage"]} == {str(first), str(second)}
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        verify_backup(BACKUP, env, streams=["order"])


def test_a_mark_is_whole_or_none() -> None:
    mark, path = backups.encode_backup_mark(b"S" * 16), Path("/backup/jstream.backup")
    assert backups.decode_backup_mark(mark, path) == b"S" * 16
    for bit in range(8 * len(mark)):
        damaged = bytearray(mark)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match=r"jstream\.backup"):
            backups.decode_backup_mark(bytes(damaged), path)
    for size in range(len(mark)):
        with pytest.raises(CorruptionError, match="bytes"):
            backups.decode_backup_mark(mark[:size], path)


def test_volumes_that_are_not_empty_or_too_many_are_refused_and_left_alone(saved: Machine) -> None:
    machine = saved.copy()
    env = machine.environment()
    env.files.make_directory(NEW[1])
    env.files.create(NEW[1] / "letter.txt")
    before = files_below(machine, Path("/disk"))
    for volumes, error, reason in (
        ([NEW[0], machine.paths[1], NEW[2]], AlreadyExistsError, "holds a jstream store already"),
        ([NEW[0], NEW[1], NEW[2]], AlreadyExistsError, r"is not empty: letter\.txt"),
        ([NEW[0], NEW[2]], ValueError, "an even number"),
        ([NEW[0], NEW[0], NEW[2]], ValueError, "given twice"),
        ([NEW[0], Path("/disk/none/volume"), NEW[2]], ValueError, "/disk/none is not a directory"),
        ([BACKUP], ValueError, "must not lie in the other"),
        ([BACKUP / "volume"], ValueError, "must not lie in the other"),
    ):
        with pytest.raises(error, match=reason):
            Store.restore(BACKUP, volumes, env=env)
    assert set(files_below(machine, Path("/disk"))) == set(before)


def test_blocks_removed_for_longer_than_they_are_kept_are_told_of(saved: Machine) -> None:
    """The plan of a backup is older than deleted_block_retention: it is made again, and goes on."""
    machine = saved.copy()
    store, other = machine.open(), machine.open()
    removed: list[bool] = []

    def purge(done: int, total: int) -> None:
        if done == 1 and not removed:
            removed.append(True)
            other.stream("notes").purge()
            other.stream("orders").purge()
            machine.clock.sleep(2 * 3600)
            other.maintain()

    with pytest.raises(StorageError, match="repeat the command"), quiet():
        backup(store, "/disk/other", progress=purge)
    backup(store, "/disk/other")
    assert seen_in_store(Store.restore("/disk/other", NEW[0], env=machine.environment())) == seen_in_store(store)


def test_progress_counts_up_to_what_there_is(saved: Machine) -> None:
    machine = saved.copy()
    for act, total in (
        (lambda hear: backup(machine.open(), "/disk/other", progress=hear), 1),
        (lambda hear: Store.restore("/disk/other", list(NEW[:3]), progress=hear, env=machine.environment()), 4),
    ):
        heard: list[tuple[int, int]] = []
        act(lambda done, of, heard=heard: heard.append((done, of)))
        assert heard[-1][0] == heard[-1][1] == total * open_backup("/disk/other", machine.environment()).block_count
        assert [done for done, _ in heard] == sorted(done for done, _ in heard)


@pytest.mark.buckets
def test_stray_blocks_of_a_volume_are_in_no_backup(saved: Machine) -> None:
    machine = saved.copy()
    store = machine.open()
    transaction = store.begin(["notes"])
    stage(store, transaction, {"notes": [Row("notes", b"staged")]})
    backup(store, "/disk/other")
    again = Store.restore("/disk/other", NEW[0], env=machine.environment())
    directory = block_directory(NEW[0], again.stream("notes").incarnation)
    assert len(machine.files().list_directory(directory)) == len(again.view().state.streams["notes"].blocks)
    assert replace(again.view(), index=0)


def test_two_backups_into_one_directory_do_not_meet(saved: Machine) -> None:
    machine = saved.copy()
    machine.files().make_directory(Path("/disk/other"))
    met: list[Exception] = []

    def begin_another(done: int, total: int) -> None:
        with pytest.raises(StoreBusyError) as refused:
            backup(machine.open(), "/disk/other")
        met.append(refused.value)

    backup(machine.open(), "/disk/other", progress=begin_another)
    assert met
    assert seen_in_store(Store.restore("/disk/other", NEW[0], env=machine.environment())) == seen_in_store(
        machine.open()
    )


def test_a_store_opened_for_reading_can_be_backed_up(saved: Machine) -> None:
    machine = saved.copy()
    backup(machine.open(read_only=True), "/disk/other")
    assert seen_in_store(Store.restore("/disk/other", NEW[0], env=machine.environment())) == seen_in_store(
        machine.open()
    )


def test_a_backup_of_another_host_is_written_from_where_it_is_restored(saved: Machine) -> None:
    machine = saved.copy()
    here = replace(machine.environment(), lock_domain=lambda: "another host")
    with Store.open(list(machine.paths), lock_timeout_s=0.0, env=here) as original, pytest.raises(StoreBusyError):
        original.stream("notes").append(to_table([Row("notes", b"x")]))
    store = Store.restore(BACKUP, NEW[0], env=here)
    assert store.stream("notes").append(to_table([Row("notes", b"x")]))
    with pytest.raises(StoreBusyError):
        reopened(machine).stream("notes").append(to_table([Row("notes", b"x")]))


def test_what_is_on_the_volumes_of_a_restored_store_is_the_same_byte_for_byte(saved: Machine) -> None:
    machine = saved.copy()
    restored(machine, 3)
    for old, new in zip(machine.paths, NEW, strict=False):
        before, after = (
            {path.relative_to(root): data for path, data in files_below(machine, root / "streams").items()}
            for root in (old, new)
        )
        live = {path: data for path, data in before.items() if path in after}
        assert after == live
        assert after


def test_a_backup_takes_the_metadata_of_a_store_that_no_entry_would_take(tmp_path: Path) -> None:
    with Store.create(tmp_path / "volume") as store:
        store.add_stream({"name": "S"})
        state = store.view().state
    count = 640_000
    rows = np.zeros(count, BLOCK_DTYPE)
    rows["block_id"] = np.arange(1, 1 + count).astype("<u8").repeat(2).view("V16")
    rows["first"], rows["span"], rows["row_count"] = np.arange(count) + 1, 1, 1
    rows["file_size"] = 1000
    stream = replace(state.streams["s"], blocks=Table.of(rows), next_sequence=count + 1, message_count=count)
    state = replace(state.with_stream(stream), events=(Event("backed_up", time_ns=1),))
    encoded = encode_state(state)
    assert len(encoded) > log_format.PAYLOAD_SIZE_MAX
    (tmp_path / "saved" / "meta").mkdir(parents=True)
    (tmp_path / "saved" / BACKUP_FILE).write_bytes(backups.encode_backup_mark(state.store_id))
    backups.write_state(tmp_path / "saved", state.store_id, EntryId(2, 1, bytes(16)), encoded, REAL)
    made = open_backup(tmp_path / "saved", REAL)
    assert made.state.streams["s"].message_count == count
    assert creation.first_entry_of(made.state, REAL).body is not None, "and a restored log begins with it"


def test_streams_that_no_entry_takes_are_not_restored_into_a_store(
    saved: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = saved.copy()
    store = machine.open()
    monkeypatch.setattr(assembly, "STREAMS_SIZE_MAX", 256)
    with pytest.raises(RequirementError, match=r"bytes of metadata, one entry takes 256; name some"):
        store.restore_streams(BACKUP, None, {"orders": "copy-1", "notes": "copy-2"})
    assert store.streams() == ["notes", "orders"]
    assert store.verify()["ok"]


def test_links_in_a_backup_are_not_followed(tmp_path: Path) -> None:
    with Store.create(tmp_path / "volume") as store:
        store.add_stream({"name": "S"}).publish("S", b"x")
        store.backup(tmp_path / "saved")
    for path in [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="symbolic link"):
            Store.restore(tmp_path / "saved", tmp_path / "new")
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
    with Store.restore(tmp_path / "saved", tmp_path / "new") as restored_again:
        assert restored_again.streams() == ["S"]


def test_a_merged_block_whose_last_messages_were_removed_before_is_restored(tmp_path: Path) -> None:
    with Store.create(tmp_path / "volume") as store:
        stream = store.add_stream({"name": "S"})
        for first in (1, 4):
            stream.append([{"subject": "S", "data": b"%d" % one} for one in range(first, first + 3)])
        stream.remove([5, 6])
        assert store.compact()["runs"] == 1
        store.backup(tmp_path / "saved")
        store.restore_streams(tmp_path / "saved", None, {"S": "copy"})
        assert store.stream("copy").read(columns=["sequence"]).read_all()["sequence"].to_pylist() == [1, 2, 3, 4]
    with Store.restore(tmp_path / "saved", tmp_path / "new") as restored:
        assert restored.stream("S").read(columns=["data"]).read_all()["data"].to_pylist() == [b"1", b"2", b"3", b"4"]
        assert restored.stream("S").publish("S", b"next").sequence == 7
        assert restored.verify()["ok"]
