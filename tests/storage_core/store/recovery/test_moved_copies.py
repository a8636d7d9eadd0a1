"""Copies that a change of volumes or of replicas makes count when they are durable, whoever made them.

FAULTS scenarios 1, 2 and 16: killed, or a failed fsync, anywhere while blocks are copied; run again; then power loss.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.faults import END, Call, FaultyFiles
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded, SimulatedDisk

from storage_core.errors import StorageError
from storage_core.files import Files
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.store import Store

PATHS = [f"/disk/v{number}" for number in range(3)]
EXPECTED = [b"message %d" % number for number in range(3)]
Change = Callable[[Store, str], None]


def environment(files: Files) -> Environment:
    return Environment(files=files, lock_domain=lambda: "x", sleep=lambda _: None, parallel=one_after_another)


def replace_the_only_holder(store: Store, holder: str) -> None:
    store.replace_volume(holder, "/disk/new")


def raise_num_replicas(store: Store, holder: str) -> None:
    store.edit_stream({"name": "S", "num_replicas": 3})


def stop_at(number: int, verdict: int, apart_from: str, seen: list[Call]) -> Callable[[Call], int]:
    """Return a judge who stops the change at the `number`-th step towards a durable copy, on any volume but one."""

    def judge(call: Call) -> int:
        path = str(call.path)
        if call.operation in ("replace", "sync_directory", "sync") and "/streams/" in path and apart_from not in path:
            seen.append(call)
            return verdict if len(seen) == number else 0
        return 0

    return judge


@pytest.mark.parametrize("change", [replace_the_only_holder, raise_num_replicas])
@pytest.mark.parametrize("verdict", [END, errno.EIO])
def test_a_copy_of_an_attempt_that_was_stopped_counts_once_it_is_durable(change: Change, verdict: int) -> None:
    tried = number = 0
    while tried == number:
        number += 1
        disk = SimulatedDisk(number)
        store = Store.create(PATHS, env=environment(disk.process()))
        stream = store.add_stream({"name": "S", "num_replicas": 1})
        for message in EXPECTED:
            stream.publish("S", message)
        holder = stream.state().placement[0].hex()
        holder_path = next(str(one.path) for one in store.volumes() if one.volume_id.hex() == holder)
        seen: list[Call] = []
        faulty = FaultyFiles(disk.process())
        faulty.judge = stop_at(number, verdict, holder_path, seen)
        try:
            change(Store.open(PATHS, env=environment(faulty)), holder)
        except (ProcessEnded, StorageError):
            tried += 1
        faulty.end()
        again = Store.open(PATHS, env=environment(disk.process()))
        again.repair()
        if holder in {one.volume_id.hex() for one in again.view().state.voters}:
            change(again, holder)
        disk.lose_power(NOTHING_KEPT)
        paths = [*PATHS, "/disk/new"] if change is replace_the_only_holder else PATHS
        left = [one for one in paths if change is raise_num_replicas or one != holder_path]
        after = Store.open(left, env=environment(disk.process()))
        read = after.stream("S").read(columns=["data"]).read_all()
        assert read.column("data").to_pylist() == EXPECTED, (number, seen[-1])
        for one in left if change is raise_num_replicas else []:
            copies = [inode for path, inode in disk.files(Path(one)) if path.suffix == ".blk"]
            assert len(copies) == len(EXPECTED), (number, one)
        assert after.verify()["ok"], (number, after.verify()["damage"])
    print(f"{change.__name__}: stopped at {tried} calls by {verdict}, run again, then power loss")
    assert tried >= 9
