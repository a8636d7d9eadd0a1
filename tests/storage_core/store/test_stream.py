"""The face of a stream: a handle means one incarnation, and what makes no sense is named."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.faults import CHANGING, LOCKING, READING, FaultyFiles

from storage_core import Store
from storage_core.deadlines import DeadlineFiles
from storage_core.errors import InvalidMessageError, StaleIncarnationError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.store.environment import REAL, Environment
from storage_core.store.stream import Stream

ROW = pa.table({"subject": ["orders.new"], "data": ["a bell"]})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "shop") as made:
        yield made


@pytest.fixture
def orders(store: Store) -> Stream:
    return store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})


WRITES: dict[str, Callable[[Stream], Any]] = {
    "append": lambda stream: stream.append(ROW),
    "publish": lambda stream: stream.publish("orders.new", b"a bell"),
    "publish with msg_id": lambda stream: stream.publish("orders.new", b"a bell", msg_id="1"),
    "remove": lambda stream: stream.remove(1),
    "purge": lambda stream: stream.purge(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_a_handle_never_writes_to_the_stream_that_has_its_name_now(
    store: Store, orders: Stream, write: Callable[[Stream], Any], again: bool
) -> None:
    store.delete_stream("ORDERS")
    new = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}) if again else None
    if new is not None:
        new.publish("orders.new", b"of the new one")
    with pytest.raises(StaleIncarnationError, match="stream 'ORDERS' was deleted, or deleted and made again"):
        write(orders)
    assert new is None or [new.get(1).data, new.last_sequence] == [b"of the new one", 1]


@pytest.mark.parametrize(
    "headers", ["ab", ["ab"], [("a", b"1", b"2")], [b"ab"], {"a": ["1", "2"]}, {"a": 5}, {5: b"1"}, {("a", "b"): "1"}]
)
def test_headers_that_are_neither_a_dict_nor_pairs_are_refused(orders: Stream, headers: Any) -> None:
    with pytest.raises(InvalidMessageError, match=r"headers: .* (a dict or a list of pairs|Expected bytes|str)"):
        orders.publish("orders.new", b"", headers=headers)
    assert orders.last_sequence == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda stream: stream.get("1"), "sequence: '1' is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.get(-1), "sequence: -1 is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.get(None), "sequence: None is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.read(first=-10), "first: -10 is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.read(end=1.5), "end: 1.5 is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.read(first=3, end=2), r"sequences \[3, 2\): the end lies before the first"),
        (lambda stream: stream.read(columns="data"), "columns: 'data' is not a list of names"),
        (lambda stream: stream.read(columns=5), "columns: 5 is not a list of names"),
        (lambda stream: stream.read(columns=["data", "data"]), "column 'data' is asked for twice"),
        (lambda stream: stream.read(subject=5), "subject: 5 is not a filter"),
        (lambda stream: stream.read(subject=["orders.>", None]), "subject: None is not a filter"),
        (lambda stream: stream.last(None), "subject: None is not a filter; one subject or filter is needed"),
        (
            lambda stream: stream.purge(subject=["a", "b"]),
            r"subject: \['a', 'b'\] is not a filter; one subject or filter",
        ),
        (lambda stream: stream.purge(subject=[]), r"subject: \[\] is not a filter; one subject or filter is needed"),
        (lambda stream: stream.purge(keep="3"), "keep: '3' is not a whole number from 0 on"),
        (lambda stream: stream.purge(end=1.5), "end: 1.5 is not a sequence"),
        (lambda stream: stream.purge(before_ns="1h"), "before_ns: '1h' is not a whole number from 0 on"),
        (lambda stream: stream.purge(keep=True), "keep: True is not a whole number from 0 on"),
        (lambda stream: stream.remove(None), "sequences: NoneType is not a sequence, a range, a list of sequences"),
        (lambda stream: stream.remove(True), "sequences: True is not a sequence; sequences are whole numbers from 1"),
        (lambda stream: stream.remove(1.5), "sequences: 1.5 is not a sequence; sequences are whole numbers from 1"),
        (
            lambda stream: stream.remove([2**63]),
            "sequences: 9223372036854775808 is not a sequence; sequences are",
        ),
    ],
)
def test_what_makes_no_sense_is_named(orders: Stream, call: Callable[[Stream], Any], says: str) -> None:
    orders.append(ROW)
    with pytest.raises(ValueError, match=says):
        call(orders)
    assert orders.info()["state"]["messages"] == 1


def test_publish_returns_a_pair_with_names(orders: Stream) -> None:
    sequence, is_duplicate = orders.publish("orders.new", b"a bell", msg_id="1")
    again = orders.publish("orders.new", b"a bell", msg_id="1")
    assert (sequence, is_duplicate) == (1, False)
    assert (again.sequence, again.duplicate) == (1, True)


@pytest.mark.parametrize(
    ("part", "value"), [("data", 5), ("data", "\udcff"), ("msg_id", 5), ("headers", 5), ("headers", [(5, b"")])]
)
def test_the_part_of_a_message_that_cannot_be_stored_is_named(orders: Stream, part: str, value: Any) -> None:
    message: dict[str, Any] = {"subject": "orders.new", "data": b"", part: value}
    with pytest.raises(InvalidMessageError, match=f"stream 'ORDERS': message 0 cannot be stored: {part}: "):
        orders.publish(**message)


@pytest.mark.parametrize(
    "columns", [pa.array([1, 3]), pa.chunked_array([[1], [3]]), {1, 3}], ids=["array", "chunks", "set"]
)
def test_what_was_read_can_be_removed_by_its_column(orders: Stream, columns: Any) -> None:
    orders.append(pa.concat_tables([ROW] * 3))
    assert orders.remove(columns) == 2
    assert orders.read().read_all()["sequence"].to_pylist() == [2]


@pytest.mark.parametrize("name", [None, 5, b"ORDERS"])
def test_a_name_that_is_not_text_is_named(store: Store, name: Any) -> None:
    with pytest.raises(ValueError, match="name of a stream: .* is not text"):
        store.stream(name)


def test_an_append_that_the_lock_was_not_given_to_leaves_nothing_and_does_not_wait_again(
    store: Store, orders: Stream, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*.blk"))
    other = Store.open(store.paths, lock_timeout_s=0.0)
    with store.session(), ThreadPoolExecutor(1) as threads:
        failed = threads.submit(other.stream("ORDERS").append, pa.table({"subject": ["orders.a"], "data": ["x"]}))
        assert isinstance(failed.exception(timeout=60), StoreBusyError)
        assert set(tmp_path.rglob("*.blk")) == before, "taken back while somebody else holds the lock"


@pytest.mark.parametrize(("volumes", "calls_max"), [(1, 15), (3, 45)])
def test_an_append_makes_few_calls_of_the_file_system(tmp_path: Path, volumes: int, calls_max: int) -> None:
    """Once the process has written: what was looked at is not looked at again, and each file is opened once."""
    files = FaultyFiles(OS_FILES, counted=(*CHANGING, *READING, *LOCKING))
    paths = [tmp_path / f"v{number}" for number in range(volumes)]
    stream = Store.create(paths, env=Environment(files=files)).add_stream({"name": "S", "num_replicas": volumes})
    for _ in range(2):
        stream.append(pa.table({"data": [b"x"] * 100}))
    files.calls.clear()
    stream.append(pa.table({"data": [b"x"] * 100}))
    assert len(files.calls) <= calls_max, "\n".join(map(str, files.calls))


class CountedHandOvers(DeadlineFiles):
    """Files with deadlines that count what is handed over to threads of volumes."""

    count = 0

    def volume(self, path: Path) -> Any:
        if "jstream-io" not in threading.current_thread().name:
            self.count += 1
        return super().volume(path)


@pytest.mark.parametrize("volumes", [1, 3])
def test_an_append_is_handed_to_threads_of_a_volume_a_few_times(tmp_path: Path, volumes: int) -> None:
    files = CountedHandOvers(OS_FILES)
    paths = [tmp_path / f"v{number}" for number in range(volumes)]
    store = Store.create(paths, env=replace(REAL, files=files))
    stream = store.add_stream({"name": "S", "num_replicas": volumes})
    for _ in range(2):
        stream.append(pa.table({"data": [b"x"] * 100}))
    files.count = 0
    stream.append(pa.table({"data": [b"x"] * 100}))
    assert files.count <= 10 * volumes


def test_an_append_heeds_what_another_process_made_of_the_stream(store: Store, orders: Stream) -> None:
    """It begins by what this process knows, and the commit finds out that this is not so any more."""
    orders.append(ROW)
    other = Store.open(store.paths)
    other.edit_stream({"name": "ORDERS", "subjects": ["bills.>"]})
    with pytest.raises(InvalidMessageError, match=r"subject 'orders.new' is not taken"):
        orders.append(ROW)
    assert orders.publish("bills.new", b"a bill").sequence == 2
    other.edit_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    assert orders.append(ROW) == range(3, 4)
    other.delete_stream("ORDERS")
    other.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    with pytest.raises(StaleIncarnationError):
        orders.append(ROW)
    assert other.stream("ORDERS").last_sequence == 0


def test_an_append_goes_where_another_process_moved_the_stream(tmp_path: Path) -> None:
    store = Store.create([tmp_path / f"v{number}" for number in range(3)])
    stream = store.add_stream({"name": "S", "num_replicas": 1})
    stream.publish("S", b"first")
    Store.open(store.paths).edit_stream({"name": "S", "num_replicas": 3})
    stream.publish("S", b"second")
    holders = stream.state().blocks.rows["holders"]
    assert [int(mask).bit_count() for mask in holders] == [3, 3]


def test_an_append_notices_a_volume_that_is_exchanged(tmp_path: Path) -> None:
    """The volumes are not looked at anew by each session: their logs say whose they are."""
    paths = [tmp_path / f"v{number}" for number in range(3)]
    stream = Store.create(paths).add_stream({"name": "S", "num_replicas": 3})
    stream.publish("S", b"first")
    Store.create([tmp_path / "other"]).add_stream({"name": "S"}).publish("S", b"of another store")
    paths[1].rename(tmp_path / "away")
    (tmp_path / "other").rename(paths[1])
    before = sorted((paths[1] / "meta").iterdir()), (paths[1] / "meta" / "0000000000000001.log").read_bytes()
    assert stream.publish("S", b"second").sequence == 2
    assert before == (sorted((paths[1] / "meta").iterdir()), (paths[1] / "meta" / "0000000000000001.log").read_bytes())
    shutil.rmtree(paths[1])
    (tmp_path / "away").rename(paths[1])
    assert stream.publish("S", b"third").sequence == 3
    assert stream.read(columns=["data"]).read_all()["data"].to_pylist() == [b"first", b"second", b"third"]
