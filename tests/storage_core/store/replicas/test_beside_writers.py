"""What others do meanwhile is no damage, to `verify`, `scrub`, `repair` and `cluster info`."""

import errno
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from harness.faults import LOCKING, READING, Call, FaultyFiles

from storage_core.errors import StorageError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment, one_after_another
from storage_core.store.store import Store


def make(root: Path, count: int = 3) -> list[Path]:
    paths = [root / f"volume-{number}" for number in range(count)]
    with Store.create(paths, snapshot_every=2) as store:
        store.add_stream({"name": "S", "subjects": ["s.>"]}).publish("s.a", b"first")
    return paths


def watching(files: FaultyFiles) -> Environment:
    files.counted = (*READING, *LOCKING)
    return replace(REAL, files=files, parallel=one_after_another)


@pytest.mark.parametrize("call", ["verify", "scrub", "repair"])
def test_a_segment_that_is_rolled_while_it_is_read_is_no_damage(tmp_path: Path, call: str) -> None:
    paths = make(tmp_path)
    files = FaultyFiles(OS_FILES)
    files.is_armed = False
    writer = Store.open(paths, lock_timeout_s=0.0)
    written = 0

    def write(at: Call) -> int:
        nonlocal written
        if at.operation == "open" and at.file_kind == "segment" and at.path.is_relative_to(paths[2]):
            try:
                writer.stream("S").publish("s.a", b"more")
                written += 1
            except StoreBusyError:
                pass  # whoever reads has the lock
        return 0

    with Store.open(paths, env=watching(files)) as store:
        files.judge, files.is_armed = write, True
        report = getattr(store, call)()
    assert report["ok"], report["damage"]
    assert written > 2


def test_a_block_that_is_merged_and_unlinked_while_others_are_read_is_not_missing(tmp_path: Path) -> None:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths, deleted_block_retention=0) as writer:
        stream = writer.add_stream({"name": "S", "subjects": ["s.>"]})
        for number in range(8):
            stream.publish("s.a", b"message %d" % number)
        files = FaultyFiles(OS_FILES)
        files.is_armed = False

        def compact(at: Call) -> int:
            if at.operation == "open" and at.file_kind == "block":
                files.is_armed = False
                writer.compact()
                writer.maintain()
            return 0

        with Store.open(paths, env=watching(files)) as store:
            files.judge, files.is_armed = compact, True
            report = store.verify()
            assert len(list(paths[0].rglob("*.blk"))) == 1
            assert report["ok"], report["damage"]


def test_a_repair_waits_for_the_lock_as_long_as_it_may(tmp_path: Path) -> None:
    paths = make(tmp_path)
    files = FaultyFiles(OS_FILES)
    files.is_armed = False
    is_held, may_end = threading.Event(), threading.Event()

    def hold_on() -> None:
        with Store.open(paths) as other, other.session():
            is_held.set()
            may_end.wait(60)

    def judge(at: Call) -> int:
        if at.operation == "acquire":
            may_end.set()
        # Nothing can be read of the metadata without the lock.
        return errno.EIO if at.operation == "list" and at.path.name == "meta" and not may_end.is_set() else 0

    with Store.open(paths, env=watching(files)) as store:
        holder = threading.Thread(target=hold_on)
        holder.start()
        assert is_held.wait(60)
        files.judge, files.is_armed = judge, True
        threading.Timer(0.05, may_end.set).start()  # the mutex of this process comes before any lock file
        report = store.repair()
        holder.join()
    assert report["ok"], report["damage"]


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_volume_that_another_process_has_just_locked_is_not_damaged(tmp_path: Path, lets_go: bool) -> None:
    paths = make(tmp_path)
    files = FaultyFiles(OS_FILES)
    files.is_armed = False
    lock = OS_FILES.lock(paths[0] / "lock")
    tries = 0

    def let_go(at: Call) -> int:
        nonlocal tries
        if at.operation == "acquire" and at.path.is_relative_to(paths[0]):
            tries += 1
            if lets_go and tries == 2:
                lock.close()
        return 0

    with Store.open(paths, env=watching(files), lock_timeout_s=60.0 if lets_go else 0.1) as store:
        assert lock.try_acquire()
        files.judge, files.is_armed = let_go, True
        report = store.repair()
        store.maintain()
    lock.close()
    assert tries >= 2
    assert report["ok"], report["damage"]
    assert report["volumes"] == []


@pytest.mark.parametrize("count", [1, 3])
def test_all_volumes_gone_under_an_open_store_is_an_error_of_the_store(tmp_path: Path, count: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    paths = make(root, count)
    with Store.open(paths) as store:
        stream = store.stream("S")
        consumer = stream.add_consumer({"name": "c"})
        root.rename(tmp_path / "away")
        calls = {
            "publish": lambda: stream.publish("s.a", b"more"),
            "get": lambda: stream.get(1),
            "read": lambda: stream.read().read_all(),
            "fetch": lambda: consumer.fetch(1, timeout_s=0),
            "info": store.info,
            "cluster_info": store.cluster_info,
            "verify": store.verify,
            "scrub": store.scrub,
            "repair": store.repair,
            "maintain": store.maintain,
            "compact": store.compact,
            "streams": store.streams,
        }
        for name, call in calls.items():
            with pytest.raises(StorageError):
                pytest.fail(f"{name}: {call()}")
        (tmp_path / "away").rename(root)
        assert stream.publish("s.a", b"more").sequence == 2
        assert store.verify()["ok"]


@pytest.mark.parametrize("when", ["before the last look at the state", "before the lock"])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
@pytest.mark.parametrize("call", ["verify", "scrub"])
def test_a_copy_that_is_repaired_after_it_was_read_leaves_no_report(
    tmp_path: Path, call: str, harm: str, when: str
) -> None:
    paths = make(tmp_path)
    files = FaultyFiles(OS_FILES)
    files.is_armed = False
    repaired: list[int] = []

    def repair() -> None:
        if not repaired:  # by another process: the locks of this one would be in its way
            command = [sys.executable, "-m", "spark_stream.cli", "repair", "--store", ",".join(map(str, paths))]
            repaired.append(subprocess.run(command, check=True, capture_output=True).returncode)

    def judge(at: Call) -> int:
        if at.operation == "acquire":
            repair()
        return 0

    def progress(done: int, total: int) -> None:
        if done == total and when == "before the last look at the state":
            repair()

    with Store.open(paths, env=watching(files)) as store:
        hurt = next(paths[1].rglob("*.blk"))
        whole = hurt.read_bytes()
        if harm == "missing":
            hurt.unlink()
        else:
            hurt.write_bytes(whole[:-100] + bytes(100))
        files.judge, files.is_armed = judge, True
        getattr(store, call)(progress=progress)
        files.is_armed = False
        assert repaired and hurt.read_bytes() == whole
        assert not list(tmp_path.glob("*/reports/*.report"))
        replicas = store.stream("S").info()["cluster"]["replicas"]
        assert [replica["state"] for replica in replicas] == ["current"] * 3
        assert store.events()[-1]["kind"] != "damaged", store.events()
