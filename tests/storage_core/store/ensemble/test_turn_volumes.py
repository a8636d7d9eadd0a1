"""What a session says of volumes that fail while it writes: retired, or merely left out, and told once."""

import errno
import os
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.faults import CHANGING, Call, FaultyFiles, end_at
from harness.simulated_disk import ProcessEnded

from storage_core.errors import RequirementError, StorageError
from storage_core.files import OS_FILES
from storage_core.metadata.commands import Envelope, Event, NoOp, RecordEvents, encode_envelope
from storage_core.raft.entry import make_entry
from storage_core.raft.log_format import PAYLOAD_SIZE_MAX
from storage_core.store.ensemble import session as session_module
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.store import Store
from storage_core.store.writing.staging import Stager

CALLS_OF_AN_INSTALLATION = 20  # the changing calls of a session that installs a snapshot, and a few more


def make_store(root: Path, files: FaultyFiles) -> Store:
    env = Environment(files=files, parallel=one_after_another)
    store = Store.create([root / name for name in "abc"], env=env)
    store.add_stream({"name": "S"})
    return store


def fail_writes(files: FaultyFiles, volume: Path, error: int) -> None:
    """Let writes to the log of one volume fail from here on, until `files.is_armed` is taken back."""
    files.is_armed = True
    files.judge = lambda call: error if call.operation == "write" and volume / "meta" in call.path.parents else 0


def told(store: Store) -> list[tuple[str, str]]:
    return [(event["kind"], event["after"]) for event in store.events()]


def test_a_volume_that_was_retired_is_told_of_once(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    fail_writes(files, tmp_path / "c", errno.EIO)
    for _ in range(3):
        store.stream("S").publish("S", b"1")
    assert told(store) == [("retired", "retired")]
    other = Store.open(tmp_path / "a")
    other.stream("S").publish("S", b"2")
    assert told(other) == [("retired", "retired")]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_an_error_that_is_no_volumes_fault_retires_nobody(tmp_path: Path, error: int) -> None:
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    fail_writes(files, tmp_path / "c", error)
    store.stream("S").publish("S", b"1")
    assert told(store) == []
    files.is_armed = False
    store.stream("S").publish("S", b"2")
    assert told(store) == []
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3


@pytest.mark.parametrize("where", ["", "reserve", "placements.journal"])
def test_a_volume_that_goes_away_while_it_is_written_is_retired_by_nobody(tmp_path: Path, where: str) -> None:
    """It comes back, and whoever missed it goes on with it, also a process of which no repair knows."""
    files = FaultyFiles(OS_FILES, counted=(*CHANGING, "open", "size"))
    store = make_store(tmp_path, files)
    (tmp_path / "c" / "reserve").unlink(missing_ok=True)
    by_name = ("create", "open", "replace", "make_directory", "sync_directory", "list", "unlink")
    files.judge = lambda call: errno.ENOENT if call.operation in by_name and f"/c/{where}" in str(call.path) else 0
    store.stream("S").publish("S", b"1")
    store.maintain()
    assert any(f"/c/{where}" in str(call.path) for call in files.calls)
    files.is_armed = False
    with Store.open(tmp_path / "a") as other:
        assert other.repair()["ok"]
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3
    store.stream("S").publish("S", b"2")
    assert store.verify()["ok"] and ("retired", "retired") not in told(store)


def test_a_failed_volume_is_retired_as_soon_as_a_majority_can_write_it_down(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    errors = {"/b/meta": errno.ENOSPC, "/c/meta": errno.EIO}
    files.judge = lambda call: (
        next((errors[one] for one in errors if one in str(call.path)), 0) * (call.operation == "write")
    )
    with pytest.raises(StorageError):
        store.stream("S").publish("S", b"1")
    files.is_armed = False
    assert told(store) == []
    store.stream("S").publish("S", b"2")
    assert told(store) == [("retired", "retired")]
    with Store.open(tmp_path / "a") as other:
        assert [one["state"] for one in other.cluster_info()["volumes"]] == ["current", "current", "retired"]
        assert other.repair()["ok"]
    store.stream("S").publish("S", b"3")
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3


def strand_entries(store: Store) -> None:
    """Write entries to the last volume alone, as a holder does that is killed before it reaches the others."""
    volume = store.volumes()[-1]
    log = volume.log
    seen = log.read()
    (index, term, chain), position = seen.tip, seen.position
    for _ in range(3):
        entry = make_entry(chain, index + 1, term, seen.entries[-1].history, encode_envelope(Envelope(1, NoOp())))
        position, index, chain = log.append(position, [entry]), entry.index, entry.chain


def test_a_holder_killed_while_it_installs_a_snapshot_over_stray_entries_leaves_nothing_to_repair(
    tmp_path: Path,
) -> None:
    """The volume was away while the others took a snapshot; its own last entries were never committed."""
    paths = [tmp_path / name for name in "abc"]
    store = make_store(tmp_path, FaultyFiles(OS_FILES))
    strand_entries(store)
    paths[2].rename(tmp_path / "away")
    with Store.open(paths[:2]) as store:
        store.stream("S").publish("S", b"0")
        with store.metadata.session(5.0) as session:
            session.ensure_leadership()
            assert session.snapshot()
    (tmp_path / "away").rename(paths[2])
    for path in paths:
        path.rename(tmp_path / f"{path.name}-before")
    for number in range(CALLS_OF_AN_INSTALLATION):
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tmp_path / f"{path.name}-before", path)
        killed = Environment(files=FaultyFiles(OS_FILES, end_at(number)), parallel=one_after_another)
        with pytest.raises(ProcessEnded):
            Store.open(paths, env=killed).stream("S").publish("S", b"1")
        with Store.open(paths) as store:
            store.stream("S").publish("S", b"2")
            states = {one["state"]: one["reason"] for one in store.cluster_info()["volumes"]}
            assert list(states) == ["current"], (number, states)


def test_a_forked_child_writes_with_the_store_of_its_parent_whose_threads_are_writing(tmp_path: Path) -> None:
    """It inherits locks that threads hold which it does not have, and commits that are theirs."""
    store = Store.create([tmp_path / name for name in "abc"])
    stream = store.add_stream({"name": "S"})
    forked = threading.Event()
    writing = threading.Event()

    def write() -> None:
        while not forked.is_set():
            stream.publish("S", b"parent")
            writing.set()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    writing.wait()
    codes = []
    for _ in range(5):
        child = os.fork()
        if not child:
            signal.alarm(20)  # instead of waiting for ever
            stream.publish("S", b"child")
            os._exit(0)
        codes.append(os.waitpid(child, 0)[1])
    forked.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 5
    data = stream.read(columns=["data"]).read_all().column("data").to_pylist()
    assert data.count(b"child") == 5


def test_a_segment_of_the_highest_number_costs_its_volume_only(tmp_path: Path) -> None:
    store = make_store(tmp_path, FaultyFiles(OS_FILES))
    (tmp_path / "b" / "meta" / f"{'f' * 16}.log").touch()
    assert store.stream("S").publish("S", b"1").sequence == 1
    assert store.repair()["ok"]
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3


def test_a_copy_on_a_volume_whose_disk_failed_meanwhile_does_not_count(tmp_path: Path) -> None:
    """One block misses b, which was full; c took that one, and failed when it synced the next."""
    files = FaultyFiles(OS_FILES)
    store = make_store(tmp_path, files)
    transaction = store.begin(["S"])
    blocks = []
    for number, (name, operation, error) in enumerate([("b", "write", errno.ENOSPC), ("c", "sync", errno.EIO)]):
        volume = tmp_path / name
        files.judge = partial(_fails, volume / "streams", operation, error)
        stager = Stager(transaction, transaction.targets["S"], number, env=store.environment)
        stager.write(pa.record_batch({"data": pa.array([b"1"], pa.binary())}), "S")
        blocks += stager.finish()
    files.is_armed = False
    with pytest.raises(RequirementError, match="is on 1 of 3 volumes"):
        store.commit(transaction, blocks)
    store.abort(transaction)
    assert store.stream("S").publish("S", b"2").sequence == 1


def _fails(below: Path, operation: str, error: int, call: Call) -> int:
    return error if call.operation == operation and below in call.path.parents else 0


def test_a_change_too_large_for_an_entry_is_refused_and_the_store_goes_on(tmp_path: Path) -> None:
    store = make_store(tmp_path, FaultyFiles(OS_FILES))
    huge = RecordEvents((Event("repaired", reason="x" * (PAYLOAD_SIZE_MAX + 1)),))
    with store.metadata.session(5.0) as session, pytest.raises(RequirementError, match="too large for one entry"):
        session.propose(huge)
    assert store.stream("S").publish("S", b"1").sequence == 1
    assert [one["state"] for one in store.cluster_info()["volumes"]] == ["current"] * 3


def test_without_snapshots_the_log_grows_to_its_bound_and_takes_removals_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, FaultyFiles(OS_FILES))
    monkeypatch.setattr(session_module, "STATE_SIZE_MAX", 100)
    monkeypatch.setattr(session_module, "LOG_SIZE_MAX", 256 << 10)
    with store.metadata.session(5.0) as session:
        assert not session.snapshot()
    acked: list[int] = []
    with pytest.raises(RequirementError, match="the metadata log would grow to"):
        acked.extend(store.stream("S").publish("S", b"x").sequence for _ in range(100))
    assert 0 < len(acked) < 100
    store.stream("S").remove([1])
    store.close()
    again = Store.open([tmp_path / name for name in "abc"], read_only=True)
    assert again.stream("S").read(columns=["sequence"]).read_all()["sequence"].to_pylist() == acked[1:]


def test_a_learner_whose_promotion_failed_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry that makes voters of learners fails on the only voter: the session does not go on with the learners."""
    files, turns = FaultyFiles(OS_FILES), []
    store = Store.create([tmp_path / "a"], env=Environment(files=files, parallel=one_after_another))
    stage = Session._stage

    def staged(session: Session, change: Any, *others: Any) -> None:
        stage(session, change, *others)
        if any(not one.learner for one in change.state.voters[1:]):
            turns.append(session)

    monkeypatch.setattr(Session, "_stage", staged)  # to know when, and whose turn it is
    files.judge = lambda call: errno.EIO if turns and call.operation == "sync" and "/a/" in str(call.path) else 0
    with pytest.raises(StorageError):
        store.add_volumes([tmp_path / "b", tmp_path / "c"])
    files.judge = lambda call: 0
    assert [one.learner for one in turns[0].state.voters] == [False, True, True]
    with pytest.raises(StorageError):
        turns[0].propose(NoOp())
