"""Scenarios of whole interactions, as text in tests/data/raft: what is sent, written and applied, line by line.

They follow the sections of the Raft paper and of Ongaro's thesis, and the scenarios that etcd/raft is known to be
tested with. After a change that is meant, JSTREAM_REWRITE_TRANSCRIPTS=1 writes them anew, to be reviewed as a diff.
"""

import os
from pathlib import Path

import pytest
from harness.raft.transcript import replay

TRANSCRIPTS = sorted((Path(__file__).resolve().parents[2] / "data" / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_written_down(path: Path) -> None:
    text = path.read_text()
    outcome = replay(text)
    if os.environ.get("JSTREAM_REWRITE_TRANSCRIPTS") == "1":
        path.write_text(outcome)
    assert outcome == text


def test_the_scenarios_are_there() -> None:
    assert len(TRANSCRIPTS) >= 39, TRANSCRIPTS
