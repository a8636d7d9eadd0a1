"""`archive_command`: real commands on real files, good and bad ones, each for a block that goes."""

import os
import resource
import sys
import threading
import time
from ast import literal_eval
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.files import OS_FILES
from storage_core.store.consumers import ownership
from storage_core.store.consumers.claims import alone
from storage_core.store.maintenance import archives
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.staging import Stager

NOTE = "import sys; open(sys.argv[1], 'a').write(repr(sys.argv[2:]) + '\\n')"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "PAUSE_S", 0.0)


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def made(tmp_path: Path, command: list[str], volumes: int = 1, **config: Any) -> tuple[Store, Stream]:
    """Return a stream with blocks of sequences 1 to 2, 3 to 4 and 5 to 6, each a file on every volume."""
    store = Store.create([tmp_path / f"disk-{number}" for number in range(volumes)], deleted_block_retention="0s")
    stream = store.add_stream({"name": "S", "subjects": ["s"], "archive_command": command, **config})
    for start in (1, 3, 5):
        stream.append([{"subject": "s", "data": b"%d" % number} for number in (start, start + 1)])
    return store, stream


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("disk-*/streams/*/*.blk"))


def events(store: Store, kind: str) -> list[str]:
    return [event["reason"] for event in store.events(kind=kind)]


def test_a_block_is_archived_before_its_files_are_unlinked(tmp_path: Path) -> None:
    copies, log = tmp_path / "archive", tmp_path / "log"
    copies.mkdir()
    code = f"import shutil; {NOTE}; shutil.copy(sys.argv[3], {str(copies)!r}); print('kept')"
    store, stream = made(tmp_path, python(code, log), volumes=3)
    store.maintain()
    assert not log.exists()
    stream.purge(keep=1)
    stream.publish("s", b"7")
    assert len(files(tmp_path)) == 12  # bounded maintenance archives nothing, and unlinks nothing that waits for it
    store.maintain()
    words = sorted(map(literal_eval, log.read_text().splitlines()), key=lambda words: words[2])
    assert [(name, first, last) for name, _, first, last in words] == [("S", "1", "2"), ("S", "3", "4")]
    assert len(files(tmp_path)) == 6 and not any(Path(file).exists() for _, file, _, _ in words)
    assert events(store, "archived") == ["sequences 1 to 2: kept", "sequences 3 to 4: kept"]
    for kept, data in zip(
        (copies / Path(file).name for _, file, _, _ in words), ([b"1", b"2"], [b"3", b"4"]), strict=True
    ):
        with kept.open("rb"):
            batch = next(BlockReader.open(OS_FILES.open(kept)).read(FrameRequest(("data",), "", 1)))
        assert batch.column("data").to_pylist() == data
    assert len(store.view().state.archives) == 0


BAD = {
    "fails": (python("import sys; print('disk quota'); sys.exit(3)"), "exited with code 3", "disk quota"),
    "does not exist": (["/nowhere/archive"], "cannot be run: No such file or directory", ""),
    "is no program": (["/dev/null"], "cannot be run: Permission denied", ""),
    "hangs": (["/bin/sh", "-c", "echo begun; exec sleep 600"], "took longer than 2 s", "begun"),
    "kills itself": (python("import os; os.kill(os.getpid(), 9)"), "was killed by signal 9", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_command_that_fails_keeps_the_files_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, problem, printed = BAD[name]
    monkeypatch.setenv(archives.TIMEOUT_VARIABLE, "2s" if name == "hangs" else "5m")
    monkeypatch.setattr(archives, "ATTEMPTS", 2)
    store, stream = made(tmp_path, command)
    stream.purge()
    for _ in range(2):
        store.maintain()
        assert len(files(tmp_path)) == 3
    (said,) = events(store, "archive_failed")  # an event an hour for each stream
    assert said.startswith("sequences 1 to 2: ") and problem in said and printed in said and "attempt 2 of 2" in said
    store.edit_stream({"name": "S", "archive_command": ["/bin/true"]})
    store.maintain()
    assert files(tmp_path) == [] and len(store.view().state.archives) == 0


def test_a_command_is_tried_again(tmp_path: Path) -> None:
    code = "import sys, os; n = sys.argv[1]; os.path.exists(n) or (open(n, 'w').close(), sys.exit(1))"
    store, stream = made(tmp_path, python(code, tmp_path / "tried"))
    stream.purge()
    store.maintain()
    assert files(tmp_path) == [] and events(store, "archive_failed") == []


def test_what_a_command_prints_is_bounded(tmp_path: Path) -> None:
    code = "import os; data = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, data)\nos.write(2, b' the end')"
    store, stream = made(tmp_path, python(code))
    stream.purge(keep=4)
    store.maintain()
    (said,) = events(store, "archived")
    assert said.endswith("xxx the end") and len(said) < 2 * archives.OUTPUT_SIZE_MAX


def test_a_command_may_move_the_file_away_and_may_leave_a_child_behind(tmp_path: Path) -> None:
    target = tmp_path / "moved.blk"
    code = f"import os, subprocess, sys; os.rename(sys.argv[2], {str(target)!r}); subprocess.Popen(['sleep', '100'])"
    store, stream = made(tmp_path, python(code), volumes=3)
    stream.purge(keep=4)
    began_s = time.monotonic()
    store.maintain()
    assert time.monotonic() - began_s < 90, "who holds its output open is not waited for"
    assert target.exists() and len(files(tmp_path)) == 6
    assert store.verify()["ok"]


def test_a_command_that_takes_the_file_and_fails_costs_one_copy_each_time(tmp_path: Path) -> None:
    store, stream = made(tmp_path, python("import os, sys; os.unlink(sys.argv[2]); sys.exit(1)"), volumes=3)
    stream.purge(keep=4)
    store.maintain()
    assert len(files(tmp_path)) == 6
    store.maintain()
    assert events(store, "archived") == ["sequences 1 to 2: no copy is left that could be archived"]


def test_a_bounded_number_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, running, most = archives.run, threading.Semaphore(archives.AT_ONCE), threading.Barrier(archives.AT_ONCE)

    def counted(*arguments: Any) -> tuple[str, str]:
        assert running.acquire(blocking=False), "more at once"
        try:
            most.wait(60)  # so many, too
            return plain(*arguments)
        finally:
            running.release()
            most.wait(60)

    monkeypatch.setattr(archives, "run", counted)
    store, stream = made(tmp_path, ["/bin/true"], block_max_msgs=1)
    stream.append([{"subject": "s", "data": b"x"} for _ in range(6)])
    stream.purge()
    store.maintain()
    assert files(tmp_path) == [] and events(store, "archive_failed") == []


def test_merged_blocks_are_not_archived_and_deleted_streams_neither(tmp_path: Path) -> None:
    log = tmp_path / "log"
    store, stream = made(tmp_path, python(NOTE, log))
    store.compact()
    store.maintain()
    assert len(files(tmp_path)) == 1 and not log.exists()
    stream.publish("s", b"7")
    stream.purge()
    store.delete_stream("S")
    store.maintain()
    assert files(tmp_path) == [] and not log.exists() and len(store.view().state.archives) == 0


def test_what_waits_to_be_archived_is_known_after_a_restart_and_from_a_snapshot(tmp_path: Path) -> None:
    log = tmp_path / "log"
    store, stream = made(tmp_path, python(NOTE, log))
    stream.purge()
    for number in range(150):  # a snapshot is due after 128 entries
        store.add_stream({"name": f"T{number}"})
    with Store.open(tmp_path / "disk-0") as again:
        again.maintain()
    assert len(log.read_text().splitlines()) == 3 and files(tmp_path) == []


def test_overwritten_blocks_are_archived_and_unlinked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    store, _ = made(tmp_path, python(NOTE, log))
    transaction = store.begin(["S"])
    stager = Stager(transaction, transaction.targets["S"], 0)
    stager.write(pa.record_batch({"data": [b"new"]}))
    store.commit(transaction, stager.finish(), overwrite=["S"])
    store.maintain()
    assert len(log.read_text().splitlines()) == 3 and len(files(tmp_path)) == 1


def test_one_process_at_a_time_runs_commands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    store, stream = made(tmp_path, python(NOTE, log))
    stream.purge()
    with alone(ownership.claims_of(Store.open(tmp_path / "disk-0")), ownership.ARCHIVE) as holder:
        assert holder() == ""
        store.maintain()
        assert not log.exists() and len(files(tmp_path)) == 3
    store.maintain()
    assert len(log.read_text().splitlines()) == 3 and files(tmp_path) == []


def test_a_command_runs_in_a_process_with_more_open_files_than_select_takes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert archives.run(["/bin/echo", "done"], 60.0, lambda: False) == ("", "done")
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
