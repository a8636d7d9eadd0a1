"""Errors of the process: limits and rights. They say nothing about the store, and nothing is made of them."""

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.faults import Call, FaultyFiles

from storage_core.errors import ProcessError
from storage_core.files import OS_FILES
from storage_core.os_errors import OF_PROCESS
from storage_core.store.environment import REAL
from storage_core.store.store import Store

CODES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EACCES, errno.EPERM, errno.ESTALE]
READS = ("open", "read", "size")


class Limits:
    """What a process runs into: calls on files that end like this fail."""

    def __init__(self) -> None:
        self.code, self.suffix = 0, ".blk"
        self.files = FaultyFiles(OS_FILES, judge=self._judge, counted=READS)

    def _judge(self, call: Call) -> int:
        return self.code if call.path.name.endswith(self.suffix) else 0


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path, limits: Limits) -> Iterator[Store]:
    paths = [tmp_path / f"v{number}" for number in range(request.param)]
    made = Store.create(paths, env=replace(REAL, files=limits.files))
    stream = made.add_stream({"name": "orders", "subjects": ["orders.>"], "duplicate_window": "1h"})
    stream.append(pa.table({"subject": ["orders.eu"] * 3, "data": [b"a", b"b", b"c"], "msg_id": ["1", "2", "3"]}))
    with made:
        yield made


def fetched(consumer: Any) -> list[int]:
    return consumer.fetch(10, 0).column("sequence").to_pylist()  # type: ignore[no-any-return]


def untouched(store: Store) -> None:
    """Check that nothing was made of the error: no damage, no report, no volume retired, no event."""
    assert store.verify()["ok"]
    assert [one["kind"] for one in store.events()] == []
    assert {one.retired for one in store.view().state.voters} == {""}
    assert not [path for volume in store.volumes() for path in (volume.path / "reports").glob("*")]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("keys", [{}, {"on_data_loss": "fail"}, {"filter_subjects": ["*.eu"]}, {"ack_policy": "none"}])
def test_a_fetch_raises_and_hands_out_nothing(keys: dict[str, Any], code: int, store: Store, limits: Limits) -> None:
    consumer = store.stream("orders").add_consumer({"name": "reader", "max_deliver": 1, **keys})
    limits.code = code
    for _ in range(2):
        with pytest.raises(ProcessError) as raised:
            consumer.fetch(3, 0)
        assert raised.value.errno == code
    limits.code = 0
    assert fetched(consumer) == [1, 2, 3]
    assert consumer.info()["events"] == []
    untouched(store)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("on_data_loss", ["fail", "continue"])
def test_a_read_raises_whatever_it_does_about_losses(
    code: int, on_data_loss: str, store: Store, limits: Limits
) -> None:
    stream = store.stream("orders")
    limits.code = code
    for read in (
        lambda: stream.read(on_data_loss=on_data_loss).read_all(),
        lambda: stream.get(2),
        lambda: stream.last("orders.eu"),
        lambda: stream.subjects(),
    ):
        with pytest.raises(ProcessError):
            read()
    limits.code = 0
    assert stream.read(on_data_loss=on_data_loss).read_all().num_rows == 3
    untouched(store)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("call", [Store.verify, Store.scrub, Store.repair], ids=lambda one: one.__name__)
def test_copies_are_not_called_damaged(call: Callable[[Store], Any], code: int, store: Store, limits: Limits) -> None:
    limits.code = code
    with pytest.raises(ProcessError):
        call(store)
    limits.code = 0
    assert store.stream("orders").read().read_all().num_rows == 3
    untouched(store)


@pytest.mark.parametrize("removed", [False, True])
def test_duplicates_are_known_again_afterwards(removed: bool, store: Store, limits: Limits) -> None:
    stream = store.stream("orders")
    if removed:
        stream.purge()
    limits.code = errno.EMFILE
    with pytest.raises(ProcessError):
        Store.open(store.paths, env=store.environment).stream("orders").publish("orders.eu", b"a", msg_id="1")
    limits.code = 0
    assert stream.publish("orders.eu", b"a", msg_id="1").duplicate
    untouched(store)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("suffix", [".log", "jstream.volume"])
def test_no_volume_is_left_out_for_a_limit(suffix: str, code: int, store: Store, limits: Limits) -> None:
    paths = [one.path for one in store.volumes()]
    limits.code, limits.suffix = code, suffix
    with pytest.raises(ProcessError):
        Store.open(paths, env=store.environment).stream("orders").publish("orders.eu", b"d")
    limits.code = 0
    Store.open(paths).stream("orders").publish("orders.eu", b"e")
    untouched(store)


def test_another_copy_serves_where_one_may_not_be_read(tmp_path: Path) -> None:
    def judge(call: Call) -> int:
        return errno.EACCES if tmp_path / "v0" in call.path.parents and call.path.suffix == ".blk" else 0

    env = replace(REAL, files=FaultyFiles(OS_FILES, judge=judge, counted=READS))
    store = Store.create([tmp_path / f"v{number}" for number in range(3)])
    store.add_stream({"name": "orders"}).append(pa.table({"data": [b"a"] * 5}))
    assert Store.open(tmp_path / "v1", env=env).stream("orders").read().read_all().num_rows == 5
    untouched(store)


def test_too_many_open_files_by_the_kernel_s_own_limit(tmp_path: Path) -> None:
    program = """
        import os, resource, sys
        import pyarrow as pa
        from storage_core import Store
        from storage_core.errors import ProcessError

        store = Store.create(sys.argv[1])
        stream = store.add_stream({"name": "orders"})
        stream.append(pa.table({"data": [b"a", b"b"]}))
        consumer = stream.add_consumer({"name": "reader"})
        assert store.verify()["ok"]  # everything that it takes is imported by now
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        taken = []
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for call in (
            lambda: consumer.fetch(2, 0),
            lambda: stream.read(on_data_loss="continue").read_all(),
            lambda: stream.append(pa.table({"data": [b"c"]})),
            lambda: store.verify(),
            lambda: Store.open(sys.argv[1]),
        ):
            try:
                call()
            except ProcessError as error:
                assert "64 open files" in str(error), error
            else:
                raise SystemExit("no error")
        for one in taken:
            os.close(one)
        assert consumer.fetch(10, 0).num_rows == 2
        assert stream.read().read_all().num_rows == 2
        assert store.verify()["ok"] and store.events() == []
    """
    run = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "store")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_classes_of_errors_do_not_overlap_where_they_must_not() -> None:
    assert not set(OF_PROCESS) & {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT}
    assert str(ProcessError("/a", errno.EMFILE, "raise it")) == f"/a: {os.strerror(errno.EMFILE)}: this process " + (
        "cannot continue: raise it"
    )
