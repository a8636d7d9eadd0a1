"""Messages of a stream for commands that print them; what is lost or damaged on the way is reported."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from spark_stream.look.messages import PRINTED_COLUMNS
from spark_stream.look.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core import Store
    from storage_core.store.reading.plan import ReadPlan


def plan_messages(
    store: "Store", stream: str, first: int | None, subject: str | Sequence[str] | None, end: int | None = None
) -> "ReadPlan":
    """Return a plan over sequences `[first, end)` of the stream as it is now; its one range says whose and how far."""
    from storage_core.store.arguments import check_filters
    from storage_core.store.reading.plan import ReadRequest

    return store.plan(ReadRequest((stream,), {stream: (first, end)}, subject_filters=check_filters(subject)))


def read_messages(
    store: "Store",
    plan: "ReadPlan",
    subject: str | Sequence[str] | None,
    on_data_loss: str,
    report: Callable[[str], None] = say,
    columns: tuple[str, ...] = PRINTED_COLUMNS,
) -> "Iterator[pa.RecordBatch]":
    """Yield what the plan covers, in these columns.

    Raises DataLossError at what no copy has; with `on_data_loss` "continue", `report` gets its text and the rest is
    read. It also gets texts on bad copies that others stood in for.
    """
    from storage_core.store.arguments import check_filters
    from storage_core.store.reading.reading import ReadDamage, ReadOptions, read_slices

    options = ReadOptions(columns, subject_filters=check_filters(subject), on_data_loss=on_data_loss)

    def report_damage(damage: ReadDamage) -> None:
        if damage.served:
            report(str(damage))
        elif on_data_loss == "continue":  # otherwise the error says it all; nobody needs to read it twice
            report(f"skipped: {damage}")

    yield from read_slices(plan.slices, options, report_damage, env=store.environment)
