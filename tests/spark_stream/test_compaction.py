"""Compaction as a Spark job: tasks write, the driver commits, and what comes second or fails changes nothing."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_stream import compaction
from storage_core import Store

NAMES = ["A", "B", "C"]


def make(root: Path) -> Store:
    store = Store.create([root / f"volume-{number}" for number in range(3)])
    for name in NAMES:
        stream = store.add_stream({"name": name, "subjects": [f"{name}.>"]})
        for number in range(9):
            first = 4 * number
            stream.append(pa.table({"subject": [f"{name}.x"] * 4, "data": [b"%d" % (first + at) for at in range(4)]}))
        stream.remove([3, 17])
    return store


def shown(store: Store) -> dict[str, pa.Table]:
    return {name: store.stream(name).read().read_all() for name in NAMES}


def test_tasks_of_a_spark_job_merge_and_nothing_else_changes(spark: SparkSession, tmp_path: Path) -> None:
    store = make(tmp_path)
    bad = sorted((tmp_path / "volume-1" / "streams").glob("*/*.blk"))[4]
    bad.write_bytes(bad.read_bytes()[:200])
    before, heard = shown(store), list[tuple[int, int]]()
    done = compaction.compact(spark, store, NAMES, lambda at, total: heard.append((at, total)))
    assert (done["runs"], done["blocks"], done["unreadable"]) == (3, 27, [])
    assert heard[-1] == (27, 27)
    assert [store.stream_state(name).blocks.rows["row_count"].tolist() for name in NAMES] == [[34]] * 3
    assert shown(store) == before
    assert store.repair()["ok"] and store.verify()["ok"]
    assert compaction.compact(spark, store, NAMES)["runs"] == 0
