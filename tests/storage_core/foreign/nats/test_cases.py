"""Every store that a real server wrote: what is read of it, and the page docs/rescue.md that says so."""

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import rescue_table
from rescue_table import CASES, HAPPENED, KEY, Copy, info, messages, names, page, read, served, together

from storage_core.errors import CorruptionError
from storage_core.foreign import open_foreign, read_foreign_slice
from storage_core.foreign.nats.block import read_block


def digests(path: Path) -> dict[str, str]:
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in path.rglob("*") if one.is_file()}


def by_sequence(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["sequence"]: row for row in rows}


def shown_and_told(place: Path) -> tuple[set[int], set[tuple[Any, ...]], str]:
    """Return the sequences that are read of the only stream of a store, what is told, and what nobody could tell."""
    store = open_foreign(place, "nats", encryption_key=KEY)
    (name,) = store.streams()
    damage, parts = store.inspect(name)
    batches = [read_foreign_slice(part, ("sequence",), damage.append) for part in parts]
    shown = {sequence for each in batches for batch in each for sequence in batch.column(0).to_pylist()}
    return shown, {(one.reason, one.first, one.end) for one in damage}, store.caveat(name)


def nodes_of(name: str) -> list[Path]:
    """Return the stores of a case, of a cluster each by itself, whose blocks can be taken away."""
    store = CASES / name / "store"
    nodes = sorted(store.iterdir()) if name.startswith("r3-") else [store]
    return [node for node in nodes if any(node.rglob("*.blk"))]


def whole_on_disk(records: Any, copy: Copy, stream: str, rows: Sequence[dict[str, Any]]) -> set[int]:
    """Return the messages whose record, as the server writes it, is in a block to the last byte."""
    found = set()
    for path in Path(copy.path).glob("msgs/*.blk"):
        writer = records(stream, int(path.stem))
        try:
            block = read_block(path).data.to_pybytes()
        except CorruptionError:
            continue
        for row in rows:
            headers = None
            if row["headers"] is not None:
                pairs = b"".join(pair["key"].encode() + b": " + pair["value"] + b"\r\n" for pair in row["headers"])
                headers = b"NATS/1.0\r\n" + pairs + b"\r\n"
            record = writer.record(row["sequence"], row["timestamp_ns"], row["subject"].encode(), row["data"], headers)
            if record in block:
                found.add(row["sequence"])
    return found


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("r3-")])
def test_everything_that_can_be_proven_is_read_and_nothing_else(records: Any, name: str) -> None:
    before = digests(CASES / name)
    rescue_table.read.cache_clear()
    (copy,) = read(name)
    assert digests(CASES / name) == before
    got = by_sequence(copy.rows)
    assert [row["sequence"] for row in copy.rows] == sorted(got)
    expected, truth = by_sequence(messages(name, "expected")), by_sequence(messages(name, "before"))
    if not truth:
        assert got == expected
        assert not copy.damage
        return
    assert expected.items() <= truth.items()
    assert got.items() <= truth.items()  # nothing invented
    assert expected.items() <= got.items()
    for version, sequences in served(name).items():
        assert sequences <= set(got), version
    assert whole_on_disk(records, copy, info(name)["stream"], list(truth.values())) <= set(got)
    told = [one for one in copy.damage if one.first is not None]
    for lost in set(truth) - set(got):  # each is named
        untold = name == "damaged-stuck-consumer" and lost > 30  # its consumer was sent 30, and nothing else is left
        assert untold or any(one.first <= lost < (one.end or lost + 1) for one in told)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("indexes", ["kept", "gone"])
def test_no_block_goes_without_a_word_and_its_removals_with_it(tmp_path: Path, name: str, indexes: str) -> None:
    """One after the other is taken away, and the first and the last together."""
    for node in nodes_of(name):
        before, told_before, _ = shown_and_told(node)
        blocks = sorted(path.relative_to(node) for path in node.rglob("*.blk"))
        for number, gone in enumerate([*([one] for one in blocks), [blocks[0], blocks[-1]]]):
            place = shutil.copytree(node, tmp_path / f"{node.name}-{number}")
            for path in gone:
                (place / path).unlink(missing_ok=True)
            if indexes == "gone":
                for path in [*place.rglob("index.db"), *place.rglob("msgs/*.idx")]:
                    path.unlink()
            shown, told, caveat = shown_and_told(place)
            where = f"without {[path.name for path in gone]}: {len(before - shown)} lost, {len(shown - before)} back"
            assert shown == before or told - told_before or caveat, where
            may_be_back = caveat or any("may show again" in reason for reason, *_ in told)  # an index of 2.10
            assert shown <= before or may_be_back, where
            assert caveat or indexes == "kept", where


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("r3-")])
def test_each_node_of_a_cluster_is_read_as_the_copy_that_it_is(name: str) -> None:
    copies = read(name)
    assert len(copies) == (2 if name == "r3-drift-stream-dir-gone" else 3)
    expected = by_sequence(messages(name, "expected"))
    nodes = info(name)["nodes"]
    for copy in copies:
        got = by_sequence(copy.rows)
        reasons = [one.reason for one in copy.damage]
        if (name, copy.node) == ("r3-drift-old-messages-gone", "n2"):
            assert got == {sequence: row for sequence, row in expected.items() if sequence >= 88}
            lost = [(one.first, one.end) for one in copy.damage if one.costs]
            assert lost == [(1, 7), (9, 88)]  # tombstones in later blocks tell of 7 and 8
            assert all("1.blk not there, and no index tells what became of" in reason for reason in reasons)
            continue
        assert not reasons
        if (name, copy.node) == ("r3-lagging-follower", "n3"):
            common = got.keys() & expected.keys()
            assert {sequence: got[sequence] for sequence in common} == {
                sequence: expected[sequence] for sequence in common
            }
            assert len(got) == 68
        else:
            assert got == expected
            assert len(got) == nodes[copy.node]["messages"]


@pytest.mark.parametrize("case", [name for name in names() if name.startswith("r3-")])
def test_copies_together_are_what_a_client_got(case: str) -> None:
    assert together(case) == messages(case, "expected")


def test_the_page_says_what_is_read() -> None:
    assert set(HAPPENED) <= set(names())
    assert {name for name in names() if name.startswith("damaged-")} <= set(HAPPENED)
    assert (Path(rescue_table.ROOT) / "docs" / "rescue.md").read_text() == page()
    assert not re.search(r"/\w+/\w+/tests", page())  # no path of this machine
