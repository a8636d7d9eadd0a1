"""Repair under faults: killed at any step, or with calls that fail, it harms nothing, and the next one ends it.

FAULTS scenarios 9, 10 and 14 for repair, and what becomes of a volume after its disk failed for a while.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness.block_places import block_files
from harness.cases import Cases
from harness.faults import Call, FaultyFiles, end_at
from harness.replicas import replica_states
from harness.simulated_disk import ProcessEnded
from harness.templates import Template

from storage_core.errors import StorageError
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment, one_after_another
from storage_core.store.store import Store

MESSAGES = 6
EXPECTED = [b"message %d " % number * 20 for number in range(MESSAGES)]


def make(root: Path, count: int = 3) -> list[Path]:
    root.mkdir(exist_ok=True)
    paths = [root / f"volume-{number}" for number in range(count)]
    with Store.create(paths, snapshot_every=5) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        for message in EXPECTED:
            stream.publish("s.a", message)
    return paths


def go_blank(volume: Path) -> None:
    shutil.rmtree(volume)
    volume.mkdir()


def hurt_blocks(volume: Path) -> None:
    for number, path in enumerate(block_files(volume)):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if number % 2 else content[: len(content) // 3])


def lose_log(volume: Path) -> None:
    shutil.rmtree(volume / "meta")


def environment(files: FaultyFiles) -> Environment:
    return replace(REAL, files=files, parallel=one_after_another)


def repair(paths: list[Path], files: FaultyFiles, left_out: int) -> None:
    with Store.open([path for at, path in enumerate(paths) if at != left_out], env=environment(files)) as store:
        store.repair()


def contents(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


def check_current(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        found = replica_states(store, store.stream_state("S"))
        assert [one.state for one in found] == ["current"] * len(paths), [one.reason for one in found]
        assert len({one.digest for one in found}) == 1
        assert contents(store)[:MESSAGES] == EXPECTED
        assert not list(paths[0].parent.glob("*/streams/*/*.repair"))


HARMS: list[Callable[[Path], None]] = [go_blank, hurt_blocks, lose_log]


@pytest.mark.parametrize("harm", HARMS, ids=lambda one: one.__name__)
def test_a_repair_that_is_killed_at_any_step_is_ended_by_the_next(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    counting = FaultyFiles(OS_FILES)
    paths = make(tmp_path / "store")
    harm(paths[1])
    harmed = Template(tmp_path / "store")
    repair(paths, counting, 1)
    cases = Cases(f"repairs of a volume after {harm.__name__}, killed at a call that changes something")
    for number in range(0, len(counting.calls), 4):
        with cases.case(str(counting.calls[number]), "killed"):
            harmed.put_back()
            with pytest.raises(ProcessEnded):
                repair(paths, FaultyFiles(OS_FILES, end_at(number, halfway=number % 8 == 0)), 1)
            with Store.open([paths[0], paths[2]]) as store:
                assert contents(store) == EXPECTED
                assert store.repair()["ok"]
            check_current(paths)
    cases.finish()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("harm", HARMS, ids=lambda one: one.__name__)
def test_a_repair_in_which_a_call_on_the_volume_fails_is_ended_by_the_next(
    tmp_path: Path, harm: Callable[[Path], None], error: int
) -> None:
    counting = FaultyFiles(OS_FILES)
    paths = make(tmp_path / "store")
    harm(paths[1])
    harmed = Template(tmp_path / "store")
    repair(paths, counting, 1)
    numbers = [call.number for call in counting.calls if "volume-1" in str(call.path)]
    cases = Cases(f"repairs of a volume after {harm.__name__}, with a call that fails with {errno.errorcode[error]}")
    for number in numbers[::5]:
        with cases.case(str(counting.calls[number]), "failed"):
            harmed.put_back()

            def judge(call: Call, at: int = number) -> int:
                return error if call.number == at and "volume-1" in str(call.path) else 0

            with contextlib.suppress(StorageError):
                repair(paths, FaultyFiles(OS_FILES, judge), 1)
            with Store.open([paths[0], paths[2]]) as store:
                assert contents(store) == EXPECTED
                assert store.repair()["ok"]
            check_current(paths)
    cases.finish()


def test_a_volume_whose_fsync_failed_is_retired_and_reinstated_by_a_repair(tmp_path: Path) -> None:
    paths = make(tmp_path)
    broken = [False]

    def judge(call: Call) -> int:
        return errno.EIO if broken[0] and "volume-1" in str(call.path) and call.operation == "sync" else 0

    with Store.open(paths, env=environment(FaultyFiles(OS_FILES, judge))) as store:
        broken[0] = True
        for number in range(3):
            store.stream("S").publish("s.a", b"while it fails %d" % number)
        replicas = replica_states(store, store.stream_state("S"))
        assert [one.state for one in replicas] == ["current", "retired", "current"]
        report = store.repair()
        assert not report["ok"], "it fails still"
        broken[0] = False
        report = store.repair()
        assert report["ok"], report
        [told] = report["volumes"]
        assert (told["before"], told["after"]) == ("retired", "current")
        kinds = [one["kind"] for one in store.events()]
        assert "retired" in kinds and "rejoined" in kinds
        store.stream("S").publish("s.a", b"after")
    check_current(paths)


def test_the_only_volume_is_written_again_after_a_repair_has_read_it_anew(tmp_path: Path) -> None:
    paths = make(tmp_path, 1)
    broken = [False]

    def judge(call: Call) -> int:
        return errno.EIO if broken[0] and call.operation == "sync" and call.file_kind == "segment" else 0

    with Store.open(paths, env=environment(FaultyFiles(OS_FILES, judge))) as store:
        broken[0] = True
        with pytest.raises(StorageError):
            store.stream("S").publish("s.a", b"maybe")
        broken[0] = False
        with pytest.raises(StorageError, match="no longer written"):
            store.stream("S").publish("s.a", b"no")
        assert contents(store)[:MESSAGES] == EXPECTED, "read-only meanwhile"
        assert store.repair()["ok"]
        assert store.stream("S").publish("s.a", b"again").sequence in (MESSAGES + 1, MESSAGES + 2)
    check_current(paths)


def test_a_full_volume_is_repaired_when_there_is_room_again(tmp_path: Path) -> None:
    paths = make(tmp_path)
    hurt_blocks(paths[1])
    full = [True]

    def judge(call: Call) -> int:
        is_copy = call.file_kind == "repaired copy" and call.operation == "write"
        return errno.ENOSPC if full[0] and is_copy and "volume-1" in str(call.path) else 0

    with Store.open(paths, env=environment(FaultyFiles(OS_FILES, judge))) as store:
        report = store.repair()
        assert not report["ok"] and os.strerror(errno.ENOSPC) in report["damage"][0]["reason"]
        assert "retired" not in [one["kind"] for one in store.events()]
        full[0] = False
        assert store.repair()["ok"]
    check_current(paths)
