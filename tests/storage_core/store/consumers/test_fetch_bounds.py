"""A fetch is bounded in time and bytes, says what capped it, and looking at a consumer does not read its stream."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from harness.faults import Call, FaultyFiles

from storage_core.files import OS_FILES
from storage_core.store.consumers.consumer import LOOKS_MIN
from storage_core.store.consumers.lag import consumer_report
from storage_core.store.environment import REAL
from storage_core.store.store import Store


def capped_by(table: pa.Table) -> str:
    return str((table.schema.metadata or {}).get(b"jstream.capped", b"").decode())


@pytest.mark.parametrize(
    "keys", [{}, {"on_data_loss": "fail"}, {"filter_subjects": ["orders"]}, {"ack_policy": "none"}]
)
def test_bytes_bound_a_fetch_that_says_so(keys: dict[str, object], tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "store").add_stream({"name": "orders"})
    stream.append(pa.table({"data": [b"x" * 1000] * 50 + [b"y" * 9000] + [b"z" * 10] * 9}))
    consumer = stream.add_consumer({"name": "reader", **keys})
    sizes = []
    while (table := consumer.fetch(100, 0, max_bytes=5_000)).num_rows:
        sizes.append(sum(len(one) for one in table.column("data").to_pylist()))
        assert (capped_by(table) == "max_bytes") == (table.column("sequence")[-1].as_py() < 60)
    assert max(sizes) == 9000 and sorted(sizes)[-2] <= 5_000
    assert sum(sizes) == 50_000 + 9_000 + 90


def test_a_fetch_that_max_ack_pending_caps_says_so(tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "store").add_stream({"name": "orders"})
    stream.append(pa.table({"data": [b"x"] * 5}))
    consumer = stream.add_consumer({"name": "reader", "max_ack_pending": 3})
    assert capped_by(consumer.fetch(2, 0)) == ""
    assert capped_by(consumer.fetch(2, 0)) == "max_ack_pending"


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, "1k", True])
def test_bytes_that_are_none_are_refused(max_bytes: object, tmp_path: Path) -> None:
    consumer = Store.create(tmp_path / "store").add_stream({"name": "orders"}).add_consumer({"name": "reader"})
    with pytest.raises(ValueError, match="max_bytes"):
        consumer.fetch(1, 0, max_bytes)  # type: ignore[arg-type]


def test_a_filtered_consumer_is_counted_without_reading_its_blocks_again(tmp_path: Path) -> None:
    opened: list[str] = []

    def judge(call: Call) -> int:
        opened.append(call.path.suffix)
        return 0

    files = FaultyFiles(OS_FILES, judge=judge, counted=("open",))
    store = Store.create(tmp_path / "store", env=replace(REAL, files=files))
    stream = store.add_stream({"name": "orders", "subjects": ["a", "b"]})
    for _ in range(4):
        stream.append(pa.table({"subject": ["a", "b"] * 5, "data": [b"x"] * 10}))
    consumer = stream.add_consumer({"name": "reader", "filter_subjects": ["b"]})
    assert consumer.info()["num_pending"] == 20
    assert opened.count(".blk") >= 4
    opened.clear()
    assert consumer.info()["num_pending"] == 20
    assert ".blk" not in opened
    (report,) = consumer_report(store)
    assert report["lag"]["oldest_seq"] == 2
    opened.clear()
    assert consumer_report(store)[0]["lag"]["oldest_ts"] == report["lag"]["oldest_ts"] is not None
    assert ".blk" not in opened
    consumer.ack(consumer.fetch(7, 0).column("sequence"))
    stream.remove([40])
    assert consumer.info()["num_pending"] == 12


def test_fetches_that_get_in_each_other_s_way_end_in_time(tmp_path: Path) -> None:
    stream = Store.create(tmp_path / "store").add_stream({"name": "orders"})
    stream.append(pa.table({"data": [b"x"] * 3000}))
    stream.add_consumer({"name": "reader", "on_data_loss": "fail", "max_ack_pending": -1})
    worst: list[float] = []
    until = time.monotonic() + 3

    def work() -> None:
        consumer = Store.open(tmp_path / "store").stream("orders").consumer("reader")
        looks = 0
        while time.monotonic() < until:
            find = consumer._look_ahead

            def counted(*arguments: object, find: object = find) -> object:
                nonlocal looks
                looks += 1
                return find(*arguments)  # type: ignore[operator]

            consumer._look_ahead, looks = counted, 0  # type: ignore[method-assign, assignment]
            consumer.fetch(1, 0)
            consumer._look_ahead = find  # type: ignore[method-assign]
            worst.append(looks)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert max(worst) <= LOOKS_MIN
