"""The values of a comparison: runs of sequences by state, names of copies, what is said of it all."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.comparison import Conflict, CopyDrift, Drift, Rule, Runs, RunsBuilder, State, drifts_json
from storage_core.sequences import SequenceSet


def runs(*spans: tuple[int, int, State]) -> Runs:
    builder = RunsBuilder()
    for first, end, state in spans:
        builder.add_set(SequenceSet.from_ranges([(first, end)]), state)
    return builder.build()


def copy(label: str, *spans: tuple[int, int, State], problem: str = "") -> CopyDrift:
    return CopyDrift(label, f"/{label}", runs(*spans), 1, 9, "00", problem)


@given(st.lists(st.sampled_from([0, *State]), max_size=60), st.integers(1, 1 << 60), st.randoms())
def test_runs_are_what_was_added_whatever_the_order(states: list[int], start: int, random: object) -> None:
    sequences = np.arange(start, start + len(states), dtype=np.int64)
    column = np.array(states, np.uint8)
    cuts = sorted({0, len(states) // 3, len(states) // 2, len(states)})
    parts = list(zip(cuts, cuts[1:], strict=False))
    random.shuffle(parts)  # type: ignore[attr-defined]
    builder = RunsBuilder()
    for low, high in parts:
        builder.add(sequences[low:high], column[low:high])
    built = builder.build()
    expanded = {at: state for first, end, state in built for at in range(first, end)}
    assert expanded == {int(at): state for at, state in zip(sequences, states, strict=True) if state}
    assert all(ends != firsts or states != following for (_, ends, states), (firsts, _, following) in
               zip(list(built), list(built)[1:], strict=False))  # fmt: skip
    for state in State:
        assert built.count(state) == states.count(state) == len(built.sequences(state))


def test_a_sequence_cannot_be_in_two_states() -> None:
    with pytest.raises(AssertionError, match="given twice"):
        runs((1, 5, State.THERE), (4, 6, State.DAMAGED))


def test_copies_agree_if_each_has_everything() -> None:
    whole, lacking = copy("n1", (1, 10, State.THERE)), copy("n2", (1, 5, State.THERE), (5, 10, State.MISSING))
    together = whole.runs
    assert Drift("S", "nats", (whole, whole), together).agrees
    assert Drift("S", "nats", (whole, whole), together).verdict() == "the copies agree"
    assert Drift("S", "nats", (whole,), together).verdict() == "the only copy is whole"
    assert not Drift("S", "nats", (whole, lacking), together).agrees
    assert Drift("S", "nats", (whole, lacking), together).verdict() == "1 of 2 copies is whole, nothing lost"
    assert not Drift("S", "nats", (whole, copy("n2", problem="gone")), together).agrees
    assert Drift("S", "nats", (copy("n1", problem="gone"),), runs()).verdict() == "no copy can be read"
    lost = Drift(
        "S", "nats", (lacking, lacking), runs((1, 5, State.THERE), (5, 9, State.MISSING), (9, 10, State.DIFFERENT))
    )
    assert lost.verdict() == "0 of 2 copies are whole, no majority for 1 message, 4 messages lost"
    assert (lost.message_count, list(lost.lost.ranges()), lost.bounds) == (5, [(5, 9)], (1, 10))


def test_an_empty_stream_has_no_bounds() -> None:
    empty = Drift("S", "nats", (copy("n1"), copy("n2")), runs())
    assert (empty.agrees, empty.bounds, empty.message_count) == (True, (1, 1), 0)
    assert json.loads(json.dumps(drifts_json([empty])))["ok"] is True


@pytest.mark.parametrize(
    ("conflict", "text"),
    [
        (
            Conflict(3, 4, (("n1", "n2"), ("n3",)), (), 0, Rule.MAJORITY),
            "sequence 3: one content in n1 and n2, another in n3; that of n1 and n2 is served (majority)",
        ),
        (
            Conflict(3, 9, (("n4",),), ("n1", "n2", "n3"), None, Rule.REMOVED),
            "sequences 3 to 8: in n4, removed in n1, n2 and n3; nothing is served (removed)",
        ),
        (
            Conflict(3, 4, (("n1",), ("n2",)), ("n3",), 1, Rule.LATEST),
            "sequence 3: one content in n1, another in n2, removed in n3; that of n2 is served (latest)",
        ),
    ],
)
def test_conflicts_are_said_in_a_sentence(conflict: Conflict, text: str) -> None:
    assert conflict.describe() == text
    assert conflict.is_decided == (conflict.rule != Rule.LATEST)
