"""Tables of blocks are values: whatever is done with one, those made before stay what they were."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptionError
from storage_core.metadata import manifest
from storage_core.metadata.manifest import BLOCK_DTYPE, PENDING_DELETE_DTYPE, Table, decode_table

DTYPE = np.dtype([("key", "V4"), ("value", "<i8")])


def rows(*values: int) -> np.ndarray:
    made = np.zeros(len(values), DTYPE)
    made["value"] = values
    return made


def values(table: Table) -> list[int]:
    found: list[int] = table.rows["value"].tolist()
    return found


@given(st.data())
def test_tables_behave_like_lists_that_are_never_changed(data: st.DataObject) -> None:
    """Any table made so far is appended to, cut or filtered; all of them are compared with lists each time."""
    made: list[tuple[Table, list[int]]] = [(Table.empty(DTYPE), [])]
    for step in range(data.draw(st.integers(1, 25))):
        table, expected = made[data.draw(st.integers(0, len(made) - 1))]
        match data.draw(st.sampled_from(["append", "append", "append", "drop_head", "keep", "decode"])):
            case "append":
                more = [step * 100 + n for n in range(data.draw(st.integers(0, 20)))]
                made.append((table.append(rows(*more)), [*expected, *more]))
            case "drop_head":
                count = data.draw(st.integers(0, len(expected)))
                made.append((table.drop_head(count), expected[count:]))
            case "keep":
                mask = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
                kept = [value for value, keep in zip(expected, mask, strict=True) if keep]
                made.append((table.keep(np.array(mask, bool)), kept))
            case _:
                made.append((decode_table(table.encode(), DTYPE, "table"), expected))
        for one, wanted in made:
            assert values(one) == wanted
            assert len(one) == len(wanted)


def test_views_that_readers_hold_are_not_changed_by_appends() -> None:
    table = Table.empty(DTYPE).append(rows(1, 2, 3))
    held = table.rows
    grown = table
    for value in range(4, 200):
        grown = grown.append(rows(value))
    assert held["value"].tolist() == [1, 2, 3]
    assert values(grown) == list(range(1, 200))


def test_two_appends_to_one_table_do_not_see_each_other() -> None:
    """What a holder tries before it proposes, and what it then applies, grow from the same table."""
    table = Table.empty(DTYPE).append(rows(1))
    tried, applied = table.append(rows(2)), table.append(rows(3))
    assert (values(table), values(tried), values(applied)) == ([1], [1, 2], [1, 3])


def test_rows_cannot_be_written_through_a_view() -> None:
    with pytest.raises(ValueError):
        Table.of(rows(1)).rows["value"] = 5


def test_a_life_of_appends_copies_each_row_a_few_times_at_most() -> None:
    """Appends to the newest table share its buffer, which doubles: copied bytes stay in proportion to the rows."""
    table, copies, buffer = Table.empty(DTYPE), 0, None
    for value in range(5_000):
        table = table.append(rows(value))
        if table._buffer is not buffer:
            copies, buffer = copies + len(table), table._buffer
    assert copies < 4 * 5_000


@pytest.mark.parametrize("dtype", [BLOCK_DTYPE, PENDING_DELETE_DTYPE], ids=["blocks", "deletes"])
def test_bytes_that_are_no_whole_number_of_rows_are_refused(dtype: np.dtype) -> None:
    assert len(decode_table(b"", dtype, "manifest")) == 0
    for size in (1, dtype.itemsize - 1, dtype.itemsize + 1, 3 * dtype.itemsize + 7):
        with pytest.raises(CorruptionError, match=f"manifest has {size} bytes"):
            decode_table(bytes(size), dtype, "manifest")


def test_layouts_are_frozen() -> None:
    """Rows are stored as they are: a changed layout is a new format version."""
    assert (BLOCK_DTYPE.itemsize, PENDING_DELETE_DTYPE.itemsize) == (108, 40)
    assert [BLOCK_DTYPE[name].str for name in BLOCK_DTYPE.names or ()] == (
        ["|V16", "|V16"] + ["<i8"] * 8 + ["<i4", "<i4", "<u4"]
    )
    assert [PENDING_DELETE_DTYPE[name].str for name in PENDING_DELETE_DTYPE.names or ()] == ["|V16", "|V16", "<i8"]


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=4))
def test_ids_become_a_column(listed: list[bytes]) -> None:
    assert [bytes(one) for one in manifest.ids(listed)] == listed
