"""One holder at a time, among threads and among processes; a holder that dies lets go; waiting ends with a name."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.deadlines import DeadlineFiles
from storage_core.errors import StoreBusyError
from storage_core.files import OS_FILES, Lock, OsFiles, OsLock
from storage_core.store.environment import REAL
from storage_core.store.store import Store
from storage_core.store.volume import locks

HOLD = """
import sys
from pathlib import Path
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL
from storage_core.store.store import Store
from storage_core.store.volume import locks
with locks.hold(OS_FILES, [Path(sys.argv[1])], 1, 5.0):
    {then}
    print("held", flush=True)
    sys.stdin.readline()
"""
FORK = """
    import os
    if not os.fork():
        sys.stdin.readline()  # lives on when its parent is killed
        os._exit(0)"""


@contextmanager
def holder(volume: Path, then: str = "pass") -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the volume's lock until it is told to stop, or killed."""
    root = str(Path(__file__).resolve().parents[4])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=then), str(volume)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def can_hold(volume: Path, timeout_s: float = 0.0) -> bool:
    try:
        with locks.hold(OS_FILES, [volume], 1, timeout_s):
            return True
    except StoreBusyError:
        return False


def test_another_process_is_kept_out_and_told_who_holds(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(StoreBusyError) as raised, locks.hold(OS_FILES, [tmp_path], 1, 0.02):
            pass
    text = str(raised.value)
    assert re.search(rf"process {process.pid} on \S+ \(since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)", text), text
    assert "longer than 0.02 s" in text


def test_a_holder_that_is_killed_lets_go(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert not can_hold(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert can_hold(tmp_path)


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    with holder(tmp_path, FORK.strip()) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert can_hold(tmp_path, 5.0)


def test_whoever_waits_gets_it_when_the_holder_is_done(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert can_hold(tmp_path, 10.0)


def test_threads_hold_one_after_another(tmp_path: Path) -> None:
    inside, most, order = 0, 0, []

    def work(number: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with locks.hold(OS_FILES, [tmp_path], 1, 30.0):
                inside += 1
                most = max(most, inside)
                order.append(number)
                inside -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(order)) == (1, 80)


def test_a_thread_that_waits_too_long_is_told_that_it_was_this_process(tmp_path: Path) -> None:
    def wait() -> None:
        with locks.hold(OS_FILES, [tmp_path], 1, 0.01):
            pass

    with locks.hold(OS_FILES, [tmp_path], 1, 0.0), ThreadPoolExecutor(1) as thread:
        with pytest.raises(StoreBusyError, match="another thread of this process"):
            thread.submit(wait).result()


def test_a_session_within_a_session_waits_for_itself_no_longer_than_it_may(tmp_path: Path) -> None:
    with locks.hold(OS_FILES, [tmp_path], 1, 0.0):
        with pytest.raises(StoreBusyError, match=str(os.getpid())), locks.hold(OS_FILES, [tmp_path], 1, 0.01):
            pass
        assert not can_hold(tmp_path)
    assert can_hold(tmp_path)


class InterruptedLock:
    """A lock of which one call ends in Ctrl-C, after it was carried out or before."""

    def __init__(self, inner: Lock, name: str, is_done: bool, left: list[int]) -> None:
        self._inner, self._name, self._is_done, self._left = inner, name, is_done, left

    def __getattr__(self, name: str) -> Any:
        if name != self._name or not self._left:
            return getattr(self._inner, name)

        def interrupted(*arguments: object) -> object:
            self._left.pop()
            if self._is_done:
                getattr(self._inner, name)(*arguments)
            raise KeyboardInterrupt

        return interrupted


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("call", ["try_acquire", "write_note", "close"])
def test_an_interruption_while_locks_are_taken_or_let_go_of_leaves_none(
    tmp_path: Path, call: str, is_done: bool
) -> None:
    """Ctrl-C in a notebook must not lock everybody out until the notebook ends."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()

    class Interrupting(OsFiles):
        def lock(self, path: Path) -> Any:
            return InterruptedLock(super().lock(path), call, is_done, left if path.parent.name == "b" else [])

    left = [1]
    with pytest.raises(KeyboardInterrupt), locks.hold(Interrupting(), paths, 3, 0.0):
        pass
    assert not left
    with ThreadPoolExecutor(1) as thread:
        for path in paths:
            assert thread.submit(can_hold, path).result()


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locks.hold(OS_FILES, [tmp_path], 1, 0.0):
        raise KeyError("inside")
    assert can_hold(tmp_path)


@pytest.mark.parametrize("note", [b"", b"garbage", b"[]", b'{"pid": 1}', b"\xff" * 100])
def test_a_note_that_says_nothing_is_not_believed(tmp_path: Path, note: bytes) -> None:
    with holder(tmp_path):
        (tmp_path / "lock").write_bytes(note)
        with (
            pytest.raises(StoreBusyError, match="another process has held the store"),
            locks.hold(OS_FILES, [tmp_path], 1, 0.0),
        ):
            pass


def test_locks_of_two_volumes_are_two_locks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with locks.hold(OS_FILES, [tmp_path / "one"], 1, 0.0):
        assert can_hold(tmp_path / "two")


def test_a_fork_while_a_lock_is_taken_leaves_no_copy_of_it(tmp_path: Path) -> None:
    """Another thread forks at the worst moment: the file is open, the lock not yet taken."""
    reached, forked = threading.Event(), threading.Event()
    read_end, write_end = os.pipe()
    children = []

    class Slow(OsFiles):
        def lock(self, path: Path) -> OsLock:
            made = super().lock(path)
            reached.set()
            forked.wait(0.2)  # the fork waits for us, so this ends by itself
            return made

    def fork() -> None:
        reached.wait()
        child = os.fork()
        if child == 0:
            os.read(read_end, 1)
            os._exit(0)
        children.append(child)
        forked.set()

    thread = threading.Thread(target=fork)
    thread.start()
    with locks.hold(Slow(), [tmp_path], 1, 0.0):
        thread.join()
    with holder(tmp_path):
        pass
    os.write(write_end, b"x")
    os.waitpid(children[0], 0)


def test_a_child_that_is_forked_while_locks_are_held_holds_none_and_leads_sessions_of_its_own(tmp_path: Path) -> None:
    """A thread is in the midst of a call on the volume when another forks: the child cannot wait for it."""
    volume = tmp_path / "volume"
    files = DeadlineFiles(OS_FILES)
    stream = Store.create([volume], env=replace(REAL, files=files)).add_stream({"name": "S"})
    hear, say = os.pipe()
    held, forked = threading.Event(), threading.Event()

    def call() -> None:
        with files.volume(volume).mutex:
            held.set()
            forked.wait()

    thread = threading.Thread(target=call)
    with locks.hold(files, [volume], 1, 0.0):
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            try:
                os.write(say, b"x")
                stream.publish("S", b"child")
                os.write(say, b"x")
                signal.pause()
            finally:
                os._exit(1)
        forked.set()
        thread.join()
        has_begun = select.select([hear], [], [], 20.0)[0] and os.read(hear, 1)
    try:
        assert has_begun and select.select([hear], [], [], 20.0)[0]
        with holder(volume):  # the child is alive, and keeps nothing of what its parent held
            assert [row["data"] for row in stream.read().read_all().to_pylist()] == [b"child"]
    finally:
        os.close(hear)
        os.close(say)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
