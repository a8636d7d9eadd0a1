"""Parts of an import as a Spark job.

A task is one part: it reads block files of the source, which every executor must see at the same path, and writes
blocks on the volumes. It sends back plain values. A task that fails for a reason of the store or the source sends that
back as well, for to try it again would end the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from storage_core.errors import StorageError
from storage_core.store.ingest.records import PartRecord
from storage_core.store.ingest.server_parts import PartTask, write_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE = 4  # tasks of one job, a core: progress is reported, and records of finished parts come in, between jobs


@contextmanager
def session() -> "Iterator[SparkSession]":
    """Give the session that exists, else one made for the import. Raises RuntimeError if Spark does not start here."""
    from pyspark.errors import PySparkException

    from spark_stream.session import borrowed_or_made

    with ExitStack() as stack:
        try:
            made = stack.enter_context(borrowed_or_made("jstream import", delta=False))
        except (PySparkException, OSError, RuntimeError) as error:
            raise RuntimeError(f"Spark does not start: {error}") from error
        yield made


def run_parts(
    session: "SparkSession", tasks: Sequence[PartTask], step: Callable[[int], None]
) -> Iterator[PartRecord]:  # fmt: skip
    """Yield what became of each part; `step` hears how many block files are done. Raises what a task failed with."""
    context = session.sparkContext
    size = WAVE * max(1, context.defaultParallelism)
    for at in range(0, len(tasks), size):
        wave = list(tasks[at : at + size])
        for task, outcome in zip(wave, context.parallelize(wave, len(wave)).map(attempt).collect(), strict=True):
            if isinstance(outcome, StorageError):
                raise outcome
            step(len(task.slices))
            yield outcome


def attempt(task: PartTask) -> PartRecord | StorageError:
    """Return what became of a part, or why it could not be done; called on an executor."""
    try:
        return write_part(task)
    except StorageError as error:
        return error
