"""Consumers of messages whose volume is away for a while: they wait and are told, and nothing is passed over."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import DataLossError, UnavailableError
from storage_core.store.consumers.consumer import Consumer
from storage_core.store.store import Store
from storage_core.store.stream import Stream

Moving = Callable[[], None]


class Disk:
    """A volume's directory that is mounted and unmounted."""

    def __init__(self, path: Path) -> None:
        self.path, self.elsewhere = path, path.with_name(path.name + ".unmounted")

    def unmount(self) -> None:
        self.path.rename(self.elsewhere)

    def leave_a_mount_point(self) -> None:
        self.unmount()
        self.path.mkdir()

    def mount(self) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)
        self.elsewhere.rename(self.path)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "abc"]


@pytest.fixture
def stream(paths: list[Path]) -> Stream:
    """A stream with one replica, of 20 messages in two blocks."""
    made = Store.create(paths).add_stream({"name": "orders", "subjects": ["orders.>"], "num_replicas": 1})
    for _ in range(2):
        made.append(pa.table({"subject": ["orders.eu"] * 10, "data": [b"x"] * 10}))
    return made


@pytest.fixture
def disk(paths: list[Path], stream: Stream) -> Disk:
    return Disk(next(path for path in paths if any(path.rglob("*.blk"))))


def opened(paths: list[Path]) -> Consumer:
    """Return the consumer as another process opens it."""
    return Store.open(paths).stream("orders").consumer("reader")


def fetched(consumer: Consumer, count: int = 100) -> list[int]:
    return consumer.fetch(count, 0).column("sequence").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("keys", [{}, {"filter_subjects": ["orders.eu"]}, {"ack_policy": "none"}, {"max_deliver": 1}])
@pytest.mark.parametrize("leave", [Disk.unmount, Disk.leave_a_mount_point])
def test_a_consumer_waits_for_a_volume_that_is_away_and_misses_nothing(
    keys: dict[str, Any], leave: Callable[[Disk], None], stream: Stream, disk: Disk, paths: list[Path]
) -> None:
    consumer = stream.add_consumer({"name": "reader", **keys})
    assert fetched(consumer, 4) == [1, 2, 3, 4]
    leave(disk)
    for _ in range(3):
        assert fetched(consumer) == []
    info = consumer.info()
    assert (info["num_unreadable"], info["num_pending"]) == (16, 16)
    (event,) = info["events"]
    assert (event["kind"], event["before"]) == ("consumer_unreadable", "5 to 20")
    assert str(disk.path) in event["reason"]
    disk.mount()
    assert fetched(consumer) == list(range(5, 21))
    assert fetched(opened(paths)) == []
    assert consumer.info()["num_unreadable"] == 0
    assert Store.open(paths).stream("orders").state().lost.run_count == 0


def test_messages_that_can_be_read_are_handed_out_meanwhile(stream: Stream, disk: Disk, paths: list[Path]) -> None:
    rows = stream.state().blocks.rows
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": 5})
    disk.unmount()
    assert fetched(consumer) == []
    disk.mount()
    (path,) = [one for one in disk.path.rglob("*.blk") if one.stem == bytes(rows["block_id"][0]).hex()]
    path.rename(path.with_suffix(".hidden"))
    for expected in ([11, 12, 13, 14, 15], [16, 17, 18, 19, 20], []):
        assert fetched(consumer) == expected
        consumer.ack(expected)
    path.with_suffix(".hidden").rename(path)
    assert fetched(consumer) == [1, 2, 3, 4, 5]
    consumer.ack(range(1, 6))
    assert fetched(opened(paths)) == [6, 7, 8, 9, 10]


def test_redelivery_counts_only_what_was_handed_out(stream: Stream, disk: Disk) -> None:
    consumer = stream.add_consumer({"name": "reader"})
    assert fetched(consumer, 2) == [1, 2]
    consumer.nak([1, 2])
    disk.unmount()
    for _ in range(3):
        assert fetched(consumer, 3) == []
    disk.mount()
    table = consumer.fetch(3, 0)
    assert table.column("sequence").to_pylist() == [1, 2, 3]
    assert table.column("delivery_count").to_pylist() == [2, 2, 1]


def test_ack_all_does_not_reach_what_was_never_handed_out(stream: Stream, paths: list[Path]) -> None:
    consumer = stream.add_consumer({"name": "reader", "ack_policy": "all"})
    block = sorted(path for path in paths[0].parent.rglob("*.blk"))
    rows = stream.state().blocks.rows
    first = next(path for path in block if path.stem == bytes(rows["block_id"][0]).hex())
    first.rename(first.with_suffix(".hidden"))
    assert fetched(consumer) == list(range(11, 21))
    assert consumer.ack(20) == 10
    first.with_suffix(".hidden").rename(first)
    assert fetched(consumer) == list(range(1, 11))


def test_a_consumer_that_fails_on_loss_says_that_the_volume_is_away(stream: Stream, disk: Disk) -> None:
    consumer = stream.add_consumer({"name": "reader", "on_data_loss": "fail"})
    disk.unmount()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=str(disk.path)) as raised:
            consumer.fetch(5, 0)
        assert (raised.value.stream, raised.value.consumer, raised.value.first) == ("orders", "reader", 1)
    assert [one["kind"] for one in consumer.info()["events"]] == ["consumer_failed"]
    disk.mount()
    assert fetched(consumer) == list(range(1, 21))


def test_what_repair_declares_lost_is_passed_over(stream: Stream, disk: Disk, paths: list[Path]) -> None:
    consumer = stream.add_consumer({"name": "reader"})
    disk.unmount()
    assert fetched(consumer) == []
    disk.path.mkdir()
    assert Store.open(paths).repair()["lost"] == [], "the disk may be mounted again"
    assert fetched(consumer) == [] and consumer.info()["num_unreadable"] == 20
    Store.open(paths).repair(accept_loss=True)
    assert fetched(consumer) == []
    Store.open(paths).stream("orders").append(pa.table({"subject": ["orders.eu"], "data": [b"y"]}))
    assert fetched(consumer) == [21]
    info = consumer.info()
    assert (info["num_unreadable"], info["num_pending"]) == (0, 0)


@pytest.mark.parametrize("on_data_loss", ["fail", "continue"])
def test_a_read_never_takes_a_volume_that_is_away_for_a_loss(on_data_loss: str, stream: Stream, disk: Disk) -> None:
    disk.unmount()
    with pytest.raises(UnavailableError, match="no loss"):
        stream.read(on_data_loss=on_data_loss).read_all()
    with pytest.raises(UnavailableError):
        stream.get(3)
    disk.mount()
    assert stream.read(on_data_loss=on_data_loss).read_all().num_rows == 20


def test_a_loss_on_a_volume_that_is_there_is_skipped_if_asked_for(stream: Stream, disk: Disk) -> None:
    for path in disk.path.rglob("*.blk"):
        path.unlink()
    with pytest.raises(DataLossError):
        stream.read().read_all()
    assert stream.read(on_data_loss="continue").read_all().num_rows == 0
