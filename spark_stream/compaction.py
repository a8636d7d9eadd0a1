"""Compaction as a Spark job: tasks read runs of small blocks and write one block for each, the driver commits them.

A task needs no lock and no store, only the volumes at the paths at which the driver sees them. What a task wrote that
failed, was repeated or came second is an orphan, which maintenance sweeps; only what the driver commits takes a run's
place.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from storage_core.store.maintenance.compaction import Attempt, attempt
from storage_core.store.maintenance.merging import COMPACTING, MergeTask
from storage_core.store.store import Store

TASKS_PER_CORE = 4  # in one job: so much is written before the first of it is committed


def compact(
    spark: SparkSession, store: Store, streams: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Merge the blocks of these streams by tasks of `spark`; return what `Store.compact` does. Raises the same."""
    for name in streams:
        store.stream_state(name)

    def through(tasks: Sequence[MergeTask]) -> Iterator[Attempt]:
        context = spark.sparkContext
        at_once = TASKS_PER_CORE * max(1, context.defaultParallelism)
        largest_first = sorted(tasks, key=lambda task: -task.size)
        for start in range(0, len(largest_first), at_once):
            part = largest_first[start : start + at_once]
            yield from context.parallelize(part, len(part)).map(attempt).collect()

    return store.compaction(COMPACTING).run(streams, progress, through)
