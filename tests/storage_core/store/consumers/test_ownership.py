"""One live query a consumer: real processes, one of them killed, and the same on a simulated disk."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from harness.faults import LOCKING, Call, FaultyFiles, Judge
from harness.life import to_table
from harness.model import Row
from harness.processes import Machine

from storage_core.errors import FencedError, ReadOnlyError, StoreBusyError
from storage_core.metadata.reconcile import FAIL
from storage_core.store.consumers.claims import PAUSE_S
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.environment import REAL
from storage_core.store.store import Store
from storage_core.store.volume.identity import OWNERS

ROOT = Path(__file__).resolve().parents[4]
STARTS = {"orders": QueryStart(1)}

# Begins as consumer `etl`, reads a message at each line that it gets, and says how far it is.
QUERY = """
import sys
from storage_core.store.consumers.query import QueryReader, QueryStart, onward
from storage_core.store.store import Store
store = Store.open(sys.argv[1].split(","))
reader = QueryReader(store, "etl", take_over=sys.argv[2:] == ["take_over"])
at = reader.begin({"orders": QueryStart(1)})["orders"]
print(at.position.next_sequence, flush=True)
for line in sys.stdin:
    at = onward(store.stream_state("orders"), at, at.position.next_sequence + 1)
    try:
        reader.acknowledge({"orders": at.position})
        reader.reconcile({"orders": at}, "fail", "")
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        break
    print(at.position.next_sequence, flush=True)
"""


class Query:
    """A process that reads as consumer `etl`."""

    def __init__(self, paths: list[str], *arguments: str) -> None:
        command = [sys.executable, "-c", QUERY, ",".join(paths), *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def read_one(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def at_once(paths: "list[str] | list[Path]") -> Store:
    """Open the store for a query that does not wait for dying owners."""
    return Store.open(paths, env=replace(REAL, sleep=lambda seconds: None))


@pytest.mark.parametrize("volume_count", [1, 3])
def test_real_queries_are_refused_fenced_and_followed(tmp_path: Path, volume_count: int) -> None:
    paths = [str(tmp_path / f"volume-{number}") for number in range(volume_count)]
    store = Store.create(paths)
    store.add_stream({"name": "orders"}).append(pa.table({"data": pa.array([b"x"] * 10)}))
    first = Query(paths)
    assert (first.first, first.read_one()) == ("1", "2")
    with pytest.raises(StoreBusyError, match=f"consumer 'etl' of stream 'orders'.* process {first.process.pid} on "):
        QueryReader(at_once(paths), "etl").begin(STARTS)
    second = Query(paths, "take_over")
    assert second.first == "2"
    fenced = first.read_one()
    assert fenced.startswith("FencedError: consumer 'etl' of stream 'orders' was taken over by another query")
    assert f"process {second.process.pid} on " in fenced
    assert second.read_one() == "3"
    second.kill()  # nobody is asked to take over: a restart is no second query
    third = Query(paths)
    assert (third.first, third.read_one()) == ("3", "4")
    third.kill()
    first.kill()
    (event,) = store.events(kind="consumer_taken_over")
    assert f"process {first.process.pid} on " in event["before"] and "consumerTakeover" in event["reason"]
    assert store.stream("orders").consumer("etl").info()["delivered"] == {"stream_seq": 3}


def test_a_forked_child_neither_keeps_nor_has_what_its_parent_owns(tmp_path: Path) -> None:
    Store.create([tmp_path / "volume"]).add_stream({"name": "orders"})
    store = at_once([tmp_path / "volume"])
    reader = QueryReader(store, "etl")
    at = reader.begin(STARTS)
    hear, say = os.pipe()
    child = os.fork()
    if not child:
        try:
            reader.reconcile(at, FAIL, "")
        except StoreBusyError:
            os.write(say, b"refused")
        while True:  # it outlives what its parent owns
            signal.pause()
    try:
        assert os.read(hear, 7) == b"refused"
        reader.close()
        QueryReader(at_once([tmp_path / "volume"]), "etl").begin(STARTS)
    finally:
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL


# --- on a simulated disk


@pytest.fixture(params=[1, 3])
def machine(request: pytest.FixtureRequest) -> Machine:
    made = Machine(7, request.param)
    stream = made.create().add_stream({"name": "orders", "subjects": ["orders.>"]})
    stream.append(to_table([Row("orders.eu", b"x")] * 10))
    return made


def counting_locks(machine: Machine, judge: Judge) -> FaultyFiles:
    """Return the files of a new process, with a judge over every call on a lock."""
    files = machine.files(judge)
    files.counted = LOCKING
    return files


def lock_files(machine: Machine) -> list[str]:
    return [name for path in machine.paths for name in machine.files().list_directory(path / OWNERS)]


def acknowledge(reader: QueryReader, store: Store, sequence: int) -> None:
    reader.acknowledge({"orders": onward(store.stream_state("orders"), reader.at("orders", 1), sequence).position})


def test_what_a_query_that_was_taken_over_still_says_is_refused(machine: Machine) -> None:
    store = machine.open()
    former = QueryReader(store, "etl")
    at = former.begin(STARTS)
    QueryReader(machine.open(), "etl", take_over=True).begin(STARTS)
    for call in (
        lambda: acknowledge(former, store, 5),
        lambda: former.reconcile(at, FAIL, ""),
        lambda: former.begin(STARTS),
    ):
        with pytest.raises(FencedError, match="consumer 'etl' of stream 'orders' was taken over by another query"):
            call()
    assert machine.open().stream("orders").consumer("etl").info()["delivered"] == {"stream_seq": 0}
    with pytest.raises(StoreBusyError, match="consumerTakeover=true"):
        QueryReader(machine.open(), "etl").begin(STARTS)


def test_nobody_is_taken_over_from_who_has_gone(machine: Machine) -> None:
    files = machine.files()
    QueryReader(machine.open(files), "etl").begin(STARTS)
    files.end()
    QueryReader(machine.open(), "etl", take_over=True).begin(STARTS)
    assert machine.open().events(kind="consumer_taken_over") == []


def test_a_query_that_is_just_dying_is_waited_for(machine: Machine) -> None:
    files = machine.files()
    QueryReader(machine.open(files), "etl").begin(STARTS)
    looks: list[Path] = []

    def die_at_the_third_look(call: Call) -> int:
        if call.operation == "acquire" and call.path.parent.name == OWNERS:
            looks.append(call.path)
            if len(looks) == 3:
                files.end()
        return 0

    store = machine.open(counting_locks(machine, die_at_the_third_look))
    store.lock_timeout_s = 60.0
    QueryReader(store, "etl").begin(STARTS)
    assert len(looks) >= 3


def test_a_query_that_is_dying_is_waited_for_no_longer_than_the_lock_timeout(machine: Machine) -> None:
    QueryReader(machine.open(machine.files()), "etl").begin(STARTS)
    looks: list[Path] = []

    def look(call: Call) -> int:
        looks.extend([call.path] if call.operation == "acquire" and call.path.parent.name == OWNERS else [])
        return 0

    store = machine.open(counting_locks(machine, look))
    store.lock_timeout_s = 3 * PAUSE_S
    with pytest.raises(StoreBusyError):
        QueryReader(store, "etl").begin(STARTS)
    assert len(looks) == 4


def test_other_consumers_and_other_readers_of_one_are_not_in_the_way(machine: Machine) -> None:
    QueryReader(machine.open(), "etl").begin(STARTS)
    QueryReader(machine.open(), "other").begin(STARTS)
    assert QueryReader(machine.open(), "etl", own=False).begin(STARTS)["orders"].position.next_sequence == 1
    assert machine.open().stream("orders").consumer("etl").fetch(2, 0).num_rows == 2


def test_one_bad_volume_of_three_is_no_reason_to_refuse_and_two_are() -> None:
    machine = Machine(7, 3)
    machine.create().add_stream({"name": "orders"})

    def closed(count: int) -> QueryReader:
        bad = [path / OWNERS for path in machine.paths[:count]]
        files = counting_locks(machine, lambda call: errno.EROFS if call.path.parent in bad else 0)
        return QueryReader(machine.open(files), "etl")

    with pytest.raises(ReadOnlyError):
        closed(2).begin(STARTS)
    first = closed(1)
    first.begin(STARTS)
    with pytest.raises(StoreBusyError):
        closed(0).begin(STARTS)


def test_a_consumer_that_is_deleted_and_made_again_is_owned_anew(machine: Machine) -> None:
    store = machine.open()
    reader = QueryReader(store, "etl")
    reader.begin(STARTS)
    machine.open().stream("orders").consumer("etl").delete()
    at = {"orders": onward(store.stream_state("orders"), reader.at("orders", 1), 5)}
    assert reader.reconcile(at, FAIL, "") == at
    assert machine.open().stream("orders").consumer("etl").info()["delivered"] == {"stream_seq": 4}
    with pytest.raises(StoreBusyError):
        QueryReader(machine.open(), "etl").begin(STARTS)


def test_a_consumer_that_was_taken_over_is_its_new_owners_alone(machine: Machine) -> None:
    former = QueryReader(machine.open(), "etl")
    former.begin(STARTS)
    owner = QueryReader(machine.open(), "etl", take_over=True)
    owner.begin(STARTS)
    former.close()
    with pytest.raises(StoreBusyError):
        QueryReader(machine.open(), "etl").begin(STARTS)
    owner.close()
    QueryReader(machine.open(), "etl").begin(STARTS)


def test_a_query_whose_lock_is_gone_is_fenced_by_the_next_one(machine: Machine) -> None:
    store = machine.open()
    former = QueryReader(store, "etl")
    former.begin(STARTS)
    for path in machine.paths:
        (name,) = machine.files().list_directory(path / OWNERS)
        machine.files().unlink(path / OWNERS / name)
    owner = QueryReader(machine.open(), "etl")
    owner.begin(STARTS)
    with pytest.raises(FencedError):
        acknowledge(former, store, 5)
    acknowledge(owner, machine.open(), 3)
    assert machine.open().stream("orders").consumer("etl").info()["delivered"] == {"stream_seq": 2}


def test_a_query_that_is_taken_over_before_it_has_begun_ends(machine: Machine) -> None:
    QueryReader(machine.open(), "etl", own=False).begin(STARTS)
    owner = QueryReader(machine.open(), "etl", take_over=True)
    is_taken = False

    def take_over_before_the_generation_is_written(call: Call) -> int:
        nonlocal is_taken
        if call.operation == "acquire" and call.path.parent in machine.paths and not is_taken:
            is_taken = True
            owner.begin(STARTS)
        return 0

    late = QueryReader(machine.open(counting_locks(machine, take_over_before_the_generation_is_written)), "etl")
    for _ in range(2):
        with pytest.raises(FencedError):
            late.begin(STARTS)
    acknowledge(owner, machine.open(), 3)


def test_lock_files_of_consumers_that_are_gone_are_swept_when_nobody_has_them(machine: Machine) -> None:
    owner = QueryReader(machine.open(), "etl")
    owner.begin(STARTS)
    machine.open().stream("orders").consumer("etl").delete()
    machine.open().maintain()
    assert len(lock_files(machine)) == len(machine.paths)
    owner.close()
    machine.open().maintain()
    assert lock_files(machine) == []
