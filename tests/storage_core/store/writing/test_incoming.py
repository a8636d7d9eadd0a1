"""What an append takes: tables of any library by Arrow's C stream interface, rows, and iterables of either."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import Store
from storage_core.errors import InvalidMessageError
from storage_core.store.stream import Stream
from storage_core.store.writing.incoming import ROWS_MAX

TABLE = pa.table({"subject": ["orders.new", "orders.paid"], "data": ["a bell", None]})
ROWS = [{"subject": "orders.new", "data": b"a bell"}, {"subject": "orders.paid", "data": None}]


class Relation:
    """A table of a library that we do not know: it exports the capsule, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Frame(Relation):
    """One that is an iterable of something else as well, as data frames are of their columns."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Stream]:
    with Store.create(tmp_path / "shop") as store:
        yield store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})


def of_views(table: pa.Table) -> pa.Table:
    """Return the table with the types that polars exports."""
    return table.cast(pa.schema([("subject", pa.string_view()), ("data", pa.string_view())]))


def of_categories(table: pa.Table) -> pa.Table:
    """Return the table with the types of pandas' categories and DuckDB's enums."""
    return pa.table({name: table[name].dictionary_encode() for name in table.column_names})


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "relation": lambda: Relation(TABLE),
    "frame": lambda: Frame(TABLE),
    "views": lambda: Relation(of_views(TABLE)),
    "categories": lambda: of_categories(TABLE),
    "batch of categories": lambda: of_categories(TABLE).to_batches()[0],
    "pandas": lambda: TABLE.to_pandas(),
    "pandas, filtered": lambda: pa.concat_tables([TABLE, TABLE]).to_pandas()[2:].sort_values("subject"),
    "dicts": lambda: ROWS,
    "dicts, one after another": lambda: iter(ROWS),
    "tables": lambda: [Relation(TABLE.slice(0, 1)), TABLE.slice(1)],
    "batches, one after another": lambda: iter(TABLE.to_batches(max_chunksize=1)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_messages_are_appended_in_whatever_form_they_come(orders: Stream, form: Callable[[], Any]) -> None:
    if "pandas" in str(form):
        pytest.importorskip("pandas")
    assert orders.append(form()) == range(1, 3)
    table = orders.read(columns=["subject", "data"]).read_all()
    assert table.to_pydict() == {"subject": ["orders.new", "orders.paid"], "data": [b"a bell", None]}


def test_what_was_read_of_one_stream_can_be_written_to_another_in_either_form(tmp_path: Path, orders: Stream) -> None:
    orders.publish("orders.new", b"a bell", headers=[("customer", b"42"), ("customer", None)])
    with Store.open(tmp_path / "shop") as store:
        for name, form in (("TABLES", lambda table: table), ("ROWS", lambda table: table.to_pylist())):
            other = store.add_stream({"name": name, "subjects": [f"{name}.>"]})
            table = orders.read().read_all()
            column = pa.array([f"{name}.new"] * table.num_rows)
            other.append(form(table.set_column(table.schema.get_field_index("subject"), "subject", column)))
            assert other.get(1).headers == orders.get(1).headers
            columns = ["timestamp", "data"]
            assert other.read(columns=columns).read_all() == orders.read(columns=columns).read_all()


def test_rows_may_carry_headers_msg_id_and_time(orders: Stream) -> None:
    when = datetime(2026, 11, 21, 12, 0, 0, 5, timezone.utc)
    row = {"subject": "orders.new", "data": "a bell", "headers": [("a", b"1")], "msg_id": "1", "timestamp": when}
    assert orders.append([row, {**row, "headers": None, "msg_id": None, "timestamp": None}]) == range(1, 3)
    assert orders.append([row]) == range(3, 4)  # a duplicate: it uses up a sequence
    table = orders.read(columns=["timestamp", "headers"]).read_all()
    assert table["headers"].to_pylist() == [[{"key": "a", "value": b"1"}], None]
    assert table["timestamp"][0].as_py() == when


def test_many_rows_are_one_append(orders: Stream) -> None:
    count = 2 * ROWS_MAX + 3
    rows = ({"subject": "orders.new", "data": str(number)} for number in range(count))
    assert orders.append(rows) == range(1, count + 1)
    data = orders.read(columns=["data"]).read_all()["data"].to_pylist()
    assert data == [str(number).encode() for number in range(count)]


def test_nothing_is_appended_of_nothing(orders: Stream) -> None:
    for nothing in ([], iter(()), TABLE.slice(0, 0), TABLE.slice(0, 0).to_pandas()):
        assert orders.append(nothing) == range(1, 1)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*ROWS, {"subject": "orders.new"}], "message 2 cannot be stored: data: the row has none"),
        (
            [*ROWS, {"subject": "orders.new", "data": {"a": 1}}],
            "message 2 cannot be stored: data: {'a': 1} is not bytes or text; json.dumps",
        ),
        ([{**ROWS[0], "subject": 5}], "message 0 cannot be stored: subject: 5 is not text"),
        ([{**ROWS[0], "timestamp": "soon"}], "message 0 cannot be stored: timestamp: 'soon' is not a datetime"),
        (
            [{**ROWS[0], "timestamp_ns": 2**63}],
            "timestamp_ns: 9223372036854775808 is not a whole number of nanoseconds",
        ),
        ([{**ROWS[0], "headers": [("a", b"1", b"2")]}], "headers: headers are a dict or a list of pairs"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named_and_none_is(orders: Stream, rows: Any, said: str) -> None:
    with pytest.raises(InvalidMessageError, match="^stream 'ORDERS': message [0-9] cannot be stored: ") as refused:
        orders.append(rows)
    assert said in str(refused.value)
    assert orders.last_sequence == 0


@pytest.mark.parametrize(
    "given", ["orders", b"orders", {"data": ["a"]}, 5, None, ["data"], [5], [*ROWS, 5], [*ROWS, TABLE], [TABLE, "data"]]
)
def test_what_is_no_table_is_refused(orders: Stream, given: Any) -> None:
    with pytest.raises(ValueError, match="^append: "):
        orders.append(given)
    assert orders.last_sequence == 0


@pytest.mark.parametrize("given", [[{"data": "a", "colour": 1}], Relation(pa.table({"data": ["a"], "colour": [1]}))])
def test_a_column_that_messages_do_not_have_is_named(orders: Stream, given: Any) -> None:
    with pytest.raises(ValueError, match="column 'colour' cannot be written"):
        orders.append(given)


def test_a_stream_of_arrow_that_is_no_table_is_refused(orders: Stream) -> None:
    with pytest.raises(ValueError, match="^append: ChunkedArray gives no table"):
        orders.append(pa.chunked_array([["a"]]))
