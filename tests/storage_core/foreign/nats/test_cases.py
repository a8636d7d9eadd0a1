"""Every store that a real server wrote: what is read of it, and the page docs/rescue.md that says so."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import rescue_table
from rescue_table import CASES, HAPPENED, Copy, info, messages, names, page, read, served, together

from storage_core.errors import CorruptionError
from storage_core.foreign.nats.block import read_block


def digests(path: Path) -> dict[str, str]:
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in path.rglob("*") if one.is_file()}


def by_sequence(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["sequence"]: row for row in rows}


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
        assert any(one.first <= lost < (one.end or lost + 1) for one in told) or name == "damaged-stuck-consumer"


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
            assert len(reasons) == 1 and "no index tells what became of [1, 88)" in reasons[0]
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
