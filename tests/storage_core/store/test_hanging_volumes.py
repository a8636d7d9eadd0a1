"""A volume that hangs is an event of that volume, and no outage (P9): calls have deadlines, the quorum goes on."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.hanging import Hanging

from storage_core.deadlines import THREAD_COUNT_MAX, TIMEOUT_S, timeout_of, volume_of
from storage_core.errors import StorageError, VolumeFailedError
from storage_core.files import OS_FILES
from storage_core.store.store import Store

MESSAGES = [b"message %d" % number for number in range(3)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        for message in MESSAGES:
            stream.publish("s.a", message)
    return paths


@pytest.fixture(params=[0, 2])
def hanging(request: pytest.FixtureRequest, paths: list[Path]) -> Iterator[Hanging]:
    made = Hanging(paths[request.param])
    yield made
    made.let_return()


def contents(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


def kinds(store: Store, volume: Path) -> list[str]:
    name = next(one.name for one in store.volumes() if one.path == volume)
    return [one["kind"] for one in store.events() if one["volume"] == name]


def test_the_others_go_on_and_the_volume_comes_back_when_it_is_repaired(paths: list[Path], hanging: Hanging) -> None:
    store = Store.open(paths, env=hanging.environment())
    hung = hanging.volume
    hanging.hang()
    assert store.stream("S").publish("s.a", b"more").sequence == 4
    assert contents(store) == [*MESSAGES, b"more"]
    assert hanging.stuck, "the volume was asked"
    states = {one["path"]: one["state"] for one in store.cluster_info()["volumes"]}
    assert {path for path, state in states.items() if state == "current"} == {str(p) for p in paths if p != hung}
    report = store.verify()
    assert {one["volume"] for one in report["damage"]} == {one.name for one in store.volumes() if one.path == hung}, (
        report["damage"]
    )
    assert len(hanging.stuck) <= THREAD_COUNT_MAX
    with Store.open([path for path in paths if path != hung], env=hanging.environment()) as another:
        assert contents(another) == [*MESSAGES, b"more"]
        another.stream("S").publish("s.a", b"again")
    assert [kind for kind in kinds(store, hung) if kind != "behind"], "people are told"
    hanging.let_return()
    with Store.open(paths) as later:
        assert later.repair()["ok"] or later.repair()["ok"]
        assert {one["state"] for one in later.cluster_info()["volumes"]} == {"current"}
        assert contents(later) == [*MESSAGES, b"more", b"again"]


def test_a_commit_that_hangs_on_one_volume_retires_it_and_keeps_its_lock(paths: list[Path], hanging: Hanging) -> None:
    store = Store.open(paths, env=hanging.environment())
    store.stream("S").publish("s.a", b"before")
    hung = hanging.volume
    hanging.operations, hanging.kinds = ("sync",), ("segment",)
    hanging.hang()
    assert store.stream("S").publish("s.a", b"more").sequence == 5
    assert [call.operation for call in hanging.stuck] == ["sync"]
    assert kinds(store, hung)[-1] == "retired"
    lock = OS_FILES.lock(hung / "lock")
    assert not lock.try_acquire(), "its last call has not returned"
    with Store.open(paths) as another:
        another.stream("S").publish("s.a", b"again")
    hanging.let_return()
    with Store.open(paths) as later:
        deadline = threading.Event()
        while not lock.try_acquire():
            deadline.wait(0.01)
        lock.close()
        assert later.repair()["ok"]
        assert contents(later) == [*MESSAGES, b"before", b"more", b"again"]


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_read_that_hangs_goes_on_with_the_next_copy(paths: list[Path], operation: str) -> None:
    with Store.open(paths) as store:
        nearest = Path(store.volumes()[0].path)
    hanging = Hanging(nearest, (operation,))
    hanging.kinds = ("block",)
    store = Store.open(paths, env=hanging.environment())
    hanging.hang()
    try:
        assert contents(store) == MESSAGES
        assert contents(store) == MESSAGES
        blocks = [call.path for call in hanging.stuck]
        assert len(blocks) == len(set(blocks)) <= 2, "a block that is read, and the one that is opened meanwhile"
    finally:
        hanging.let_return()


def test_a_block_is_written_without_the_volume_that_hangs(paths: list[Path], hanging: Hanging) -> None:
    store = Store.open(paths, env=hanging.environment())
    hanging.operations, hanging.kinds = ("sync", "write"), ("block",)
    hanging.hang()
    assert store.stream("S").publish("s.a", b"more").sequence == 4
    assert kinds(store, hanging.volume)[-1] == "retired"


def test_the_only_volume_that_hangs_is_an_error_and_works_again_when_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    Store.create(path).add_stream({"name": "S"}).publish("S", b"first")
    hanging = Hanging(path)
    store = Store.open(path, env=hanging.environment())
    hanging.hang()
    calls: list[Callable[[], object]] = [
        lambda: store.stream("S").publish("S", b"more"), store.streams, store.verify, store.cluster_info,
        lambda: Store.open(path, env=hanging.environment()),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError):
            call()
    hanging.let_return()
    with Store.open(path) as later:
        assert contents(later) == [b"first"]
        assert later.stream("S").publish("S", b"more").sequence == 2


def test_threads_that_hang_do_not_keep_the_process_from_ending(paths: list[Path]) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from harness.hanging import Hanging
        from storage_core.store.store import Store
        hanging = Hanging(Path({str(paths[2])!r}))
        store = Store.open({[str(path) for path in paths]!r}, env=hanging.environment())
        hanging.hang()
        print(store.stream("S").publish("s.a", b"more").sequence, len(hanging.stuck) > 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "4 True\n"), done.stderr


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="JSTREAM_VOLUME_TIMEOUT_S"):
        timeout_of({"JSTREAM_VOLUME_TIMEOUT_S": text})
    assert timeout_of({}) == TIMEOUT_S
    assert timeout_of({"JSTREAM_VOLUME_TIMEOUT_S": "2.5"}) == 2.5


@pytest.mark.parametrize("root", ["/data/v0", "/data/streams/v0", "/data/lock/v", "/data/v.0"])
def test_all_files_of_a_volume_hang_together(root: str) -> None:
    volume = Path(root)
    incarnation = volume / "streams" / ("0" * 32)
    inside = [volume / name for name in ("lock", "jstream.volume", "index.db", "meta", "streams", "reports", "owners")]
    inside += [volume, incarnation, incarnation / f"{'1' * 32}.blk", volume / "owners" / ("2" * 32)]
    inside += [volume / "meta" / "0000000000000001.log", volume / "reports" / "0123456789abcdef.report"]
    assert {volume_of(path) for path in inside} == {volume}


def test_a_failed_volume_is_told_as_one(tmp_path: Path) -> None:
    hanging = Hanging(tmp_path)
    hanging.hang()
    try:
        with pytest.raises(VolumeFailedError, match="no answer for"):
            Store.open(tmp_path / "volume", env=hanging.environment())
    finally:
        hanging.let_return()
