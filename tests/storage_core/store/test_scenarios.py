"""Scenarios of the fault list that need a few steps each: lost replies, caches, clocks, versions, copies, pickles.

Each test's name says the scenario; the numbers are those of the list of faults to survive.
"""

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from harness.faults import Call, FaultyFiles
from harness.life import to_table
from harness.model import Row, seen_in_stream
from harness.processes import SECOND_NS, VOLUME, Machine

from storage_core.errors import (
    CorruptionError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedVersionError,
    VolumeFailedError,
)
from storage_core.files import OS_FILES
from storage_core.metadata.commands import ForgetTransactions
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch

ROWS = [Row("orders", b"one"), Row("orders", b"two")]


def put(stream: Stream, *data: bytes, writer: WriterBatch | None = None) -> range:
    return stream.append([to_table([Row(stream.name, one) for one in data])], writer)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "volume", snapshot_every=4)
    put(made.add_stream({"name": "orders"}), b"one", b"two")
    return made


# --- 13: the reply is lost after the commit --------------------------------------------------------------------------


def _fail_entry_sync(call: Call) -> int:
    return errno.EIO if call.operation == "sync" and call.file_kind == "segment" else 0


def test_13_a_batch_of_unknown_outcome_is_sent_again_and_stored_once() -> None:
    machine = Machine(5)
    Store.create(VOLUME, env=machine.environment()).add_stream({"name": "orders"})
    files = machine.files()
    stream = machine.open(files).stream("orders")
    put(stream, b"zero")
    files.judge = _fail_entry_sync
    batch = WriterBatch("loader", "1")
    with pytest.raises(OutcomeUnknownError):
        put(stream, b"one", b"two", writer=batch)
    with pytest.raises(VolumeFailedError, match="no longer written"):
        put(stream, b"one", b"two", writer=batch)
    assert seen_in_stream(stream).last_sequence in (1, 3)  # it goes on reading
    again = machine.open().stream("orders")
    assert put(again, b"one", b"two", writer=batch) == range(2, 4)
    assert put(again, b"one", b"two", writer=batch) == range(2, 4)
    assert [row.data for _, row in seen_in_stream(again).messages] == [b"zero", b"one", b"two"]
    machine.disk.lose_power()
    messages = seen_in_stream(machine.open().stream("orders")).messages
    assert [row.data for _, row in messages] == [b"zero", b"one", b"two"]


def test_13_blocks_of_an_append_of_unknown_outcome_are_not_cleaned() -> None:
    machine = Machine(6)
    Store.create(VOLUME, env=machine.environment()).add_stream({"name": "orders"})
    files = machine.files()
    stream = machine.open(files).stream("orders")
    put(stream, b"zero")  # from here on it leads, and an append is one fsync
    files.judge = _fail_entry_sync
    with pytest.raises(OutcomeUnknownError):
        put(stream, b"one")
    store = machine.open()
    store.maintain()
    assert [row.data for _, row in seen_in_stream(store.stream("orders")).messages] == [b"zero", b"one"]
    assert store.verify()["ok"]


# --- 19: index.db ----------------------------------------------------------------------------------------------------


def _stale(store: Store, index: Path) -> None:
    content = index.read_bytes()
    put(store.stream("orders"), b"later")
    store.verify()
    index.write_bytes(content)


def _ahead(store: Store, index: Path) -> None:
    stream = store.stream("orders")
    put(stream, b"gone")
    store.verify()
    stream.remove(stream.last_sequence)


INDEXES: dict[str, Callable[[Store, Path], Any]] = {
    "missing": lambda _, index: index.unlink(),
    "empty": lambda _, index: index.write_bytes(b""),
    "cut": lambda _, index: index.write_bytes(index.read_bytes()[:-3]),
    "damaged": lambda _, index: index.write_bytes(index.read_bytes()[:30] + b"\xff" + index.read_bytes()[31:]),
    "of another version": lambda _, index: index.write_bytes(b"JSTRMIDX\x09" + index.read_bytes()[9:]),
    "full of nonsense": lambda _, index: index.write_bytes(os.urandom(500)),
    "a directory": lambda _, index: (index.unlink(), index.mkdir()),
    "stale": _stale,
    "ahead": _ahead,
}


@pytest.mark.parametrize("how", INDEXES)
def test_19_counts_are_the_same_whatever_index_db_says(store: Store, how: str) -> None:
    store.verify()
    INDEXES[how](store, Path(store.paths[0]) / "index.db")
    fresh = Store.open(store.paths[0])
    stream = fresh.stream("orders")
    shown = stream.read().read_all().num_rows
    info = stream.info()
    assert info["state"]["messages"] == shown == len(stream.read().read_all())
    assert info["cluster"]["replicas"][0]["current"] and info["cluster"]["replicas"][0]["damaged_blocks"] == 0
    verified = fresh.verify()
    assert verified["ok"] and verified["checked_blocks"] == len(stream.state().blocks)
    assert Store.open(store.paths[0]).stream("orders").info()["cluster"]["replicas"][0]["current"]


# --- 20: the clock jumps ---------------------------------------------------------------------------------------------


def test_20_a_clock_that_jumps_both_ways_loses_and_doubles_nothing() -> None:
    machine = Machine(7)
    store = Store.create(VOLUME, env=machine.environment(), snapshot_every=3, deleted_block_retention="1h")
    stream = store.add_stream({"name": "orders", "duplicate_window": "10m"})
    expected: list[bytes] = []
    for number, jump_s in enumerate([0, 86_400 * 365, -86_400 * 400, -3_600, 7_200, -1, 86_400 * 3650, -86_400 * 3650]):
        machine.clock.now += jump_s * SECOND_NS
        first = stream.publish("orders", b"%d" % number, msg_id=f"id-{number}")
        again = stream.publish("orders", b"%d" % number, msg_id=f"id-{number}")
        assert (again.sequence, first.duplicate, again.duplicate) == (first.sequence, False, True)
        expected.append(b"%d" % number)
        machine.open().maintain()
    messages = seen_in_stream(machine.open().stream("orders")).messages
    assert [row.data for _, row in messages] == expected
    assert [sequence for sequence, _ in messages] == list(range(1, 2 * len(expected), 2))
    assert machine.open().verify()["ok"]


def test_20_removed_messages_are_not_unlinked_early_by_a_plan_s_clock() -> None:
    """A clock that went back keeps deletes for longer; the reads that were planned go on."""
    machine = Machine(8)
    store = Store.create(VOLUME, env=machine.environment(), deleted_block_retention="1h")
    stream = store.add_stream({"name": "orders"})
    put(stream, b"one")
    planned = stream.read()
    stream.purge()
    machine.clock.now -= 86_400 * SECOND_NS
    machine.open().maintain()
    assert planned.read_all().num_rows == 1


def test_20_appends_go_on_when_transactions_were_forgotten_by_a_clock_that_was_ahead() -> None:
    machine = Machine(9)
    store = Store.create(VOLUME, env=machine.environment())
    stream = store.add_stream({"name": "orders"})
    ahead = machine.clock.now + 86_400 * SECOND_NS
    with store.session() as session:
        session.propose(ForgetTransactions(ahead))
    assert put(stream, b"one") == range(1, 2)
    assert put(machine.open().stream("orders"), b"two") == range(2, 3)


# --- 22: files of newer versions -------------------------------------------------------------------------------------


def _page_of_version_2(page: bytes) -> bytes:
    """Return a 4 KiB page with magic, u16 version 2 and its checksum, as a newer program would write it."""
    changed = page[:8] + (2).to_bytes(2, "little") + page[10:4092]
    return changed + crc32c(changed).to_bytes(4, "little")


@pytest.mark.parametrize("pattern", ["jstream.volume", "meta/*.log", "meta/*.snap", "meta/*.log commit record"])
def test_22_metadata_of_a_newer_version_is_refused_and_left_alone(store: Store, pattern: str) -> None:
    for _ in range(5):
        put(store.stream("orders"), b"more")
    volume = Path(store.paths[0])
    glob, _, part = pattern.partition(" ")
    path = sorted(volume.glob(glob))[-1]
    content = path.read_bytes()
    if part:
        slots = [at for at in (4096, 8192) if any(content[at : at + 8])]
        changed = content
        for at in slots:
            changed = changed[:at] + _page_of_version_2(changed[at : at + 4096]) + changed[at + 4096 :]
    else:
        changed = _page_of_version_2(content[:4096]) + content[4096:]
    path.write_bytes(changed)
    before = {one: one.read_bytes() for one in volume.rglob("*") if one.is_file() and one.name != "lock"}
    for read_only in (True, False):
        with pytest.raises(UnsupportedVersionError, match="version 2"):
            Store.open(volume, read_only=read_only)
    assert {one: one.read_bytes() for one in volume.rglob("*") if one.is_file() and one.name != "lock"} == before


def test_22_a_block_of_a_newer_version_is_refused_also_where_losses_are_skipped(store: Store) -> None:
    (block,) = Path(store.paths[0]).glob("streams/*/*.blk")
    content = block.read_bytes()
    prologue = content[:8] + (2).to_bytes(4, "little")  # what a newer version would begin with
    block.write_bytes(prologue + crc32c(prologue).to_bytes(4, "little") + content[16:])
    for on_data_loss in ("fail", "continue"):
        with pytest.raises(UnsupportedVersionError, match="version"):
            store.stream("orders").read(on_data_loss=on_data_loss).read_all()


# --- 11: a snapshot that is not aligned with its index ---------------------------------------------------------------


def test_11_a_renamed_snapshot_is_never_taken_for_another_index(store: Store) -> None:
    for number in range(12):
        put(store.stream("orders"), b"%d" % number)
    expected = store.stream("orders").read().read_all()
    meta = Path(store.paths[0]) / "meta"
    newest = sorted(meta.glob("*.snap"))[-1]
    newest.rename(meta / f"{int(newest.stem, 16) + 1:016x}.snap")
    opened = Store.open(store.paths[0])
    assert opened.stream("orders").read().read_all().equals(expected)
    assert not opened.verify()["ok"]


@pytest.mark.parametrize("pattern", ["*.snap", "*.log"])
def test_11_a_gap_between_snapshot_and_log_is_refused(store: Store, pattern: str) -> None:
    for number in range(12):
        put(store.stream("orders"), b"%d" % number)
    meta = Path(store.paths[0]) / "meta"
    for path in meta.glob("*.snap") if pattern == "*.snap" else sorted(meta.glob("*.log"))[:-1]:
        path.unlink()
    if pattern == "*.log":
        sorted(meta.glob("*.snap"))[-1].unlink()
    for read_only in (True, False):
        with pytest.raises(CorruptionError):
            Store.open(store.paths[0], read_only=read_only)


def test_11_a_snapshot_of_another_store_is_not_used(store: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other", snapshot_every=4)
    put(other.add_stream({"name": "orders"}), b"foreign")
    for number in range(12):
        put(store.stream("orders"), b"%d" % number)
        put(other.stream("orders"), b"foreign %d" % number)
    expected = store.stream("orders").read().read_all()
    for theirs, ours in zip(*(sorted(Path(one.paths[0]).glob("meta/*.snap")) for one in (other, store)), strict=True):
        shutil.copy(theirs, ours)
        break
    assert Store.open(store.paths[0]).stream("orders").read().read_all().equals(expected)


# --- 25: pickles -----------------------------------------------------------------------------------------------------


class _Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {os.environ['JSTREAM_TEST_EXECUTED']}",)


def test_25_pickles_in_any_file_are_never_executed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = tmp_path / "executed"
    monkeypatch.setenv("JSTREAM_TEST_EXECUTED", str(executed))
    bomb = pickle.dumps(_Bomb())
    store.verify()
    for _ in range(5):
        put(store.stream("orders"), bomb)
    template = Path(store.paths[0])
    names = [path.relative_to(template) for path in template.rglob("*") if path.is_file()]
    assert {path.suffix for path in names} >= {".log", ".snap", ".blk", ".volume", ".db", ".journal"}
    for number, name in enumerate(names):
        for whole in (False, True):
            copy = tmp_path / f"copy-{number}-{whole}"
            shutil.copytree(template, copy)
            content = (copy / name).read_bytes()
            (copy / name).write_bytes(bomb if whole else content[:-64] + bomb)
            try:
                opened = Store.open(copy)
                opened.stream("orders").read(on_data_loss="continue").read_all()
                opened.verify()
                opened.maintain()
            except StorageError:
                pass
            assert not executed.exists(), name
    assert len(store.stream("orders").read().read_all()) == 7


# --- a copied store, a volume given twice ----------------------------------------------------------------------------


def test_a_copied_store_is_read_and_written_and_the_original_is_not(store: Store, tmp_path: Path) -> None:
    original = Path(store.paths[0])
    shutil.copytree(original, tmp_path / "copy")
    before = {one: one.read_bytes() for one in original.rglob("*") if one.is_file()}
    copy = Store.open(tmp_path / "copy")
    stream = copy.stream("orders")
    assert copy.paths == [str(tmp_path / "copy")] and copy.info()["volumes"][0]["path"] == str(tmp_path / "copy")
    assert stream.read().read_all().num_rows == 2
    assert put(stream, b"three") == range(3, 4)
    stream.remove(1)
    copy.maintain()
    copy.verify()
    assert {one: one.read_bytes() for one in original.rglob("*") if one.is_file()} == before
    shutil.rmtree(original)
    assert [row.data for _, row in seen_in_stream(Store.open(tmp_path / "copy").stream("orders")).messages] == [
        b"two",
        b"three",
    ]


def test_a_volume_given_twice_is_refused_however_it_is_spelt(store: Store, tmp_path: Path) -> None:
    volume = Path(store.paths[0])
    shutil.copytree(volume, tmp_path / "copy")
    (tmp_path / "link").symlink_to(volume)
    for twice in ([volume, volume], f"{volume},{volume}/.", [volume, tmp_path / "link"], [volume, tmp_path / "copy"]):
        with pytest.raises(ValueError, match="twice"):
            Store.open(twice)


def test_a_volume_may_lie_under_a_link_and_in_a_path_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a folder")
    store = Store.create(tmp_path / "link" / "the volume")
    put(store.add_stream({"name": "orders"}), b"one")
    (tmp_path / "a folder" / "empty").mkdir()
    (tmp_path / "linked volume").symlink_to(tmp_path / "a folder" / "empty")
    Store.create(tmp_path / "linked volume").add_stream({"name": "orders"})
    for path in ("link/the volume", "a folder/the volume", "linked volume"):
        opened = Store.open(tmp_path / path)
        assert put(opened.stream("orders"), b"more")
        opened.maintain()
        assert opened.verify()["ok"]


# --- readers take no lock --------------------------------------------------------------------------------------------


def test_two_hundred_readers_beside_a_writer_take_no_lock_and_write_nothing(store: Store) -> None:
    """What they call is counted at the file interface: no lock, no write, no sync, by any of their opens and reads."""
    everything = (
        "create", "write", "truncate", "sync", "unlink", "make_directory", "remove_directory", "sync_directory",
        "lock", "acquire", "note",
    )  # fmt: skip
    stream = store.stream("orders")
    for number in range(200):
        if number % 20 == 0:
            put(stream, b"%d" % number)
        counting = FaultyFiles(OS_FILES, counted=everything)
        reader = Store.open(store.paths[0], env=Environment(files=counting)).stream("orders")
        assert reader.read().read_all().num_rows == stream.last_sequence
        assert reader.info()["state"]["last_seq"] == stream.last_sequence
        assert counting.calls == []


def test_readers_in_the_middle_of_every_step_of_a_writer_take_no_lock() -> None:
    """At each call of an append another process opens and reads; it sees what is committed and asks for no lock."""
    machine = Machine(10)
    Store.create(VOLUME, env=machine.environment(), snapshot_every=3).add_stream({"name": "orders"})
    files, looks, locks = machine.files(), [0], [0]
    stream = machine.open(files).stream("orders")
    known = machine.files()
    known.counted = ("lock", "acquire", "note", "write", "create", "sync", "unlink")
    reader = machine.open(known)

    def look(call: Call) -> int:
        looks[0] += 1
        seen = seen_in_stream(reader.stream("orders"))
        assert [row.data for _, row in seen.messages] == [b"%d" % one for one in range(seen.last_sequence)]
        locks[0] += len(known.calls)
        return 0

    files.judge = look
    for number in range(8):
        put(stream, b"%d" % number)
    assert looks[0] > 100 and locks[0] == 0
