"""The protocol of three volumes is tried within budgets: as it is nothing is found, without any one rule something is.

The properties stand in ensemble.py. A beginning is a transcript of what has happened before the search sets in.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from ensemble import Ensemble
from ensemble_rules import Rules, weakened
from ensemble_state import Budget
from search import exhaust, follow, walk

ALL = (0, 1, 2)
FAULTS = ("KILLED", "INTERRUPTED", "POWER", "FAILS", "volume")


def locking(process: int, free: tuple[int, ...] = ALL, one_by_one: bool = False) -> list[str]:
    if not one_by_one:
        return [f"P{process} locks {list(free)}"]
    asked = [f"P{process} {'locks' if at in free else 'cannot lock'} {at}" for at in ALL]
    return [*asked, f"P{process} has a majority"]


def prepared(process: int, on: tuple[int, ...] = ALL, fsynced: tuple[int, ...] = ALL) -> list[str]:
    """The first round of a session: repaired, caught up, voted on."""
    return [
        f"P{process} leads",
        *(f"P{process} prepares {at}" for at in on),
        *(f"P{process} fsyncs {at}" for at in on if at in fsynced),
    ]


def stored(process: int, on: tuple[int, ...] = ALL, lost: tuple[int, ...] = ()) -> list[str]:
    """The second round: the entry. `lost`: volumes whose fsync fails."""
    writes = [f"P{process} writes the entry on {at}" for at in on]
    fsyncs = [f"P{process} fsync of {at} FAILS" if at in lost else f"P{process} fsyncs {at}" for at in on]
    return [f"P{process} proposes", *writes, *fsyncs, f"P{process} acknowledges"]


def recorded(process: int, on: tuple[int, ...] = ALL) -> list[str]:
    return [*(f"P{process} records on {at}" for at in on), f"P{process} lets go"]


def session(process: int, on: tuple[int, ...] = ALL) -> list[str]:
    """A whole session in which nothing goes wrong."""
    return [*locking(process, on), *prepared(process, on), *stored(process, on), *recorded(process, on)]


@dataclass(frozen=True)
class Need:
    """Why a rule is needed."""

    violation: str  # what happens without it
    budget: Budget
    beginning: Sequence[str] = ()
    without: Sequence[str] | None = None  # how it begins without the rule, if only so it can


# An entry that was acknowledged stands on a volume that another process has locked, and on one that is rolled back.
SEEN_ONLY = Need(
    "LOST",
    Budget(("a", "b,c"), turns=4, kills=1, power_losses=1, volume_faults=1, one_by_one=True),
    [
        *(*locking(0, one_by_one=True), *prepared(0)),
        *("P0 proposes", "P0 writes the entry on 0", "P0 fsyncs 0", "P0 KILLED"),
        *("P0 locks 0", *locking(1, (1, 2), one_by_one=True), *prepared(1, (1, 2), (1, 2)), *stored(1, (1, 2))),
        *("POWER LOSS keeps nothing", "volume 1 is rolled back by 1"),
    ],
)

# Each rule, what happens without it, a budget that shows it, and how it begins.
# (Two leaders of one term show as REFUSE-HEALTHY: entries of one place and term that differ are two copies' work.)
AWAY_2 = ["volume 2 is out of sight", *locking(0, (0, 1))]
NEEDED = {
    "rewrite": Need("FALSE-CURRENT", Budget(("a,b",), turns=2, failed_fsyncs=1)),
    "own_record": Need("FALSE-CURRENT", Budget(("a,b",), turns=2, kills=1, failed_fsyncs=1)),
    "keep_old": Need(
        "LOST",
        Budget(("a", "b"), turns=3, kills=1, power_losses=1),
        [*locking(0), *prepared(0), *stored(0), "P0 KILLED"],
    ),
    "record_after_fsync": Need("READER-ERR", Budget(("a",), turns=2, power_losses=1)),
    "record_where_fsynced": Need("FALSE-CURRENT", Budget(("a,b",), turns=2, kills=1, failed_fsyncs=1)),
    "two_slots": Need("READER-BLIND", Budget(("a,b",), turns=2, power_losses=1), session(0)),
    "set_aside": Need(
        "REFUSE-F1",
        Budget(("a,b",), turns=2, power_losses=1, absences=1),
        [*locking(0), *prepared(0, (0, 1), ()), "volume 2 is out of sight"],
    ),
    "repair_votes": Need(
        "REFUSE-F1",
        Budget(("a,b,c",), turns=4, power_losses=1, absences=2),
        [
            *locking(0),
            *prepared(0, (0, 1), ()),
            "POWER LOSS k | l torn |",
            "volume 1 is out of sight",
            *session(0, (0, 2)),
        ],
    ),
    "peek": SEEN_ONLY,
    "all_contents": SEEN_ONLY,
    "read_all": Need(
        "LOST",
        Budget(("a,b",), turns=2, absences=1, volume_faults=1),
        ["volume 0 is out of sight", *session(0, (1, 2)), "volume 0 is back"],
    ),
    "drop_record": Need(
        "FALSE-CURRENT",
        Budget(("a,b", "c"), turns=3, kills=2, failed_fsyncs=1, volume_faults=1),
        [*session(0), "P0 KILLED", "the last record of volume 0 is damaged"],
    ),
    "vote_first": Need(
        "REFUSE-HEALTHY",
        Budget(("a,b",), turns=3, kills=1, power_losses=1, absences=2),
        [*AWAY_2, *prepared(0, (0, 1), (0,)), "POWER LOSS keeps nothing", "volume 2 is back"],
        [
            *(*AWAY_2, *prepared(0, (0, 1), (0,)), "P0 proposes", "P0 writes the entry on 0", "P0 fsyncs 0"),
            *("POWER LOSS keeps nothing", "volume 2 is back"),
        ],
    ),
    "forget": Need(
        "FALSE-CURRENT",
        Budget(("a,b", "c"), turns=3, kills=1, failed_fsyncs=1, volume_faults=1),
        [*session(0), "volume 0 is rolled back by 1"],
    ),
    "give_up": Need(
        "REFUSE-HEALTHY",
        Budget(("a,b",), turns=3, kills=1, interrupts=1, absences=1),
        [
            *(*locking(0), *prepared(0), "P0 proposes", "P0 writes the entry on 0", "P0 fsyncs 0"),
            *("P0 INTERRUPTED", "volume 0 is out of sight"),
        ],
    ),
    "majority": Need(
        "REFUSE-F1",
        Budget(("a,b,c",), turns=4, volume_faults=1),
        [*session(0), *session(0), "volume 2 is that of a copy from 2 ago, 2 on"],
    ),
    "names": Need(
        "FALSE-CURRENT",
        Budget(("a,b,c",), turns=4, volume_faults=1),
        [*session(0), *session(0), "volume 2 is that of a copy from 0 ago, 1 on"],
    ),
    "whole_log": Need("DUPLICATE", Budget(("a",), turns=2, kills=1)),
    "abort_first": Need(
        "BLOCK-LOST",
        Budget(("a", "-a"), turns=3, kills=1, interrupts=1, blocks=True),
        [
            "P0's task writes block a on [0, 1]",
            *locking(0),
            *prepared(0),
            *("P0 proposes", "P0 writes the entry on 0", "P0 KILLED"),
        ],
    ),
    # Beyond f: two volumes fail at once, and what is left must refuse rather than lose.
    "statements": Need(
        "LOST",
        Budget(("a,b,c,d,e",), turns=5, volume_faults=1, absences=2, images=3),
        [
            *(*session(0), *session(0), *session(0), "volume 2 is out of sight", *session(0, (0, 1))),
            *("volume 2 is back", "volume 0 is rolled back by 3"),
        ],
    ),
    "marks": Need(
        "LOST",
        Budget(("a,b",), turns=2, volume_faults=1, absences=2),
        ["volume 2 is out of sight", *session(0, (0, 1)), "volume 2 is back", "the last record of volume 0 is damaged"],
    ),
    "blank_waits": Need(
        "LOST",
        Budget(("a,b",), turns=2, volume_faults=1, absences=2),
        ["volume 2 is out of sight", *session(0, (0, 1)), "volume 2 is back", "volume 1 comes back blank"],
    ),
}


ENDURED = {
    "a kill and a power loss": Budget(("a",), turns=2, kills=1, power_losses=1),
    "two processes, one lock after another, and a kill": Budget(("a", "b"), turns=2, kills=1, one_by_one=True),
    "a failed fsync and a power loss": Budget(("a",), turns=2, failed_fsyncs=1, power_losses=1),
    "a failed fsync, a kill and an interrupt": Budget(("a,b",), turns=2, failed_fsyncs=1, kills=1, interrupts=1),
    "a faulty volume and a kill": Budget(("a",), turns=3, volume_faults=1, kills=1),
    "a faulty volume, and another one after repair": Budget(("a,b",), turns=3, volume_faults=2),
    "a volume out of sight for a while and a kill": Budget(("a,b",), turns=3, absences=1, kills=1),
    "blocks, an abort and a kill": Budget(("a", "-a"), turns=2, kills=1, blocks=True),
}
WALKS = {
    "locks one after another": Budget(
        ("a,b", "c,d"), 9, kills=2, interrupts=1, power_losses=1, failed_fsyncs=1, volume_faults=2, one_by_one=True
    ),
    "blocks and aborts": Budget(
        ("a,b", "-a,c"), 9, kills=2, interrupts=1, power_losses=1, failed_fsyncs=1, volume_faults=2, blocks=True
    ),
    "everything heals": Budget(
        ("a,b,c", "d,e"), 9, kills=2, interrupts=1, power_losses=2, failed_fsyncs=1, volume_faults=2, heal_every=40
    ),
}


@pytest.mark.parametrize("name", ENDURED)
def test_the_protocol_endures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = exhaust(Ensemble(Rules(), ENDURED[name]), 400_000)
    with capsys.disabled():
        print(f"\nspecification of three volumes: {name}: {outcome.states} states", end="")
    assert not outcome.violation, f"{outcome.violation}:\n  " + "\n  ".join(outcome.trace)


@pytest.mark.parametrize("name", WALKS)
def test_the_protocol_endures_long_histories(name: str) -> None:
    go_at_random(name, seed=1, step_count=8_000)


@pytest.mark.soak
@pytest.mark.parametrize("name", WALKS)
def test_the_protocol_endures_long_histories_for_long(name: str, soak_seconds: float) -> None:
    deadline, seed = time.monotonic() + soak_seconds / len(WALKS), 1
    while time.monotonic() < deadline:
        seed += 1
        go_at_random(name, seed, step_count=20_000)
    print(f"\nspecification of three volumes: {name}: {seed - 1} walks of 20,000 steps")


def go_at_random(name: str, seed: int, step_count: int) -> None:
    outcome = walk(Ensemble(Rules(), WALKS[name]), seed, step_count, 150, FAULTS)
    assert not outcome.violation, f"seed={seed}: {outcome.violation}:\n  " + "\n  ".join(outcome.trace)


@pytest.mark.parametrize("rule", NEEDED)
def test_without_a_rule_something_is_lost(rule: str) -> None:
    need = NEEDED[rule]
    assert not exhaust(Ensemble(Rules(), need.budget), 100_000, need.beginning).violation, "with the rule nothing is"
    beginning = need.beginning if need.without is None else need.without
    outcome = exhaust(Ensemble(weakened(rule), need.budget), 100_000, beginning)
    assert outcome.violation == need.violation, outcome.trace


def test_every_rule_is_needed_but_one_that_a_quorum_implies() -> None:
    """Whoever has the votes of a quorum has asked all volumes but f; a store of which nobody votes has none."""
    assert set(Rules.__dataclass_fields__) == {*NEEDED, "doubt"}


def test_a_shortest_trace_reads_like_a_transcript() -> None:
    """An entry that another process had written is counted, though its fsync had failed."""
    need = NEEDED["rewrite"]
    trace = exhaust(Ensemble(weakened("rewrite"), need.budget), 100_000).trace
    assert trace[0] == "P0 locks [0, 1, 2]"
    assert sum(label.endswith("FAILS") for label in trace) == 1
    assert follow(Ensemble(Rules(), need.budget), trace[:-1]), "every step but the last is possible with the rule, too"
