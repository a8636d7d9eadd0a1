"""The commit over registers is exhausted within budgets: as it is nothing is found, without any one rule something is.

What the names of violations mean is said in registers.py. The engine does not go by this model yet: it shows that one
procedure is enough for disks and buckets.
"""

import time
from dataclasses import replace

import pytest
from registers import Budget, Registers, Rules, search, weakened
from search import exhaust, walk

DISK, BUCKET = "disk", "bucket"
ENDURED = {
    "a disk, a kill and a power loss": Budget(DISK, 1, kills=1, power_losses=1, reads=1),
    "a disk, a failed fsync and a power loss": Budget(DISK, 1, failed_fsyncs=1, power_losses=1, reads=1),
    "a disk, damage and a power loss": Budget(DISK, 1, volume_faults=1, power_losses=1, kills=1, faults=("damaged",)),
    "disks, a kill": Budget(DISK, proposals=1, kills=1),
    "disks, a reader": Budget(DISK, proposals=1, reads=1),
    "disks, a power loss": Budget(DISK, proposals=1, power_losses=1),
    "disks, a faulty one": Budget(DISK, proposals=1, volume_faults=1),
    "disks, one away for a while": Budget(DISK, proposals=1, absences=1),
    "a bucket": Budget(BUCKET, 1, proposals=1, kills=1, deletions=1),
    "buckets, one coordinator": Budget(BUCKET, processes=1, sessions=2, kills=1),
    "buckets, two coordinators": Budget(BUCKET, proposals=1, late=False),
}


def partly(*volumes: int) -> list[str]:
    """What an append is on these disks."""
    return [f"{step} {volume}" for step in ("writes to", "fsyncs", "marks") for volume in volumes]


def session(who: str, volumes: tuple[int, ...], term: int, entry: int = 0, stored: tuple[int, ...] = ()) -> list[str]:
    """The steps of a session on disks: it votes on the volumes, and stores an entry on some of them, the first ones."""
    steps = ["begins", *(f"locks and reads {volume}" for volume in volumes), f"votes in term {term}", *partly(*volumes)]
    if entry:
        steps += [f"proposes {entry}", *partly(*stored)]
    return [f"{who} {step}" for step in steps]


FAULTS = ("killed", "power loss", "FAILS", "away", "lost", "put back", "damaged", "deleted", "late")
ALL, AWAY, BACK = (0, 1, 2), "volume {} is away", "volume {} is back"
# An entry of each of two leaders stands on one volume only, and a third leader copies the older one to a second volume.
OLDER_ENTRY_COPIED = [
    *session("P0", ALL, 2, 2, (0,)),
    "P0 killed",
    AWAY.format(0),
    *session("P1", (1, 2), 3, 2, (1,)),
    "P1 killed",
    BACK.format(0),
    AWAY.format(1),
    *session("P0", (0, 2), 4),
]
# Two candidates of one term, of which the first had a vote, and an entry, on one volume only.
BEGINS = ["P0 begins", *(f"P0 locks and reads {volume}" for volume in ALL)]
LEFT_ALONE = [*(f"P0 {step}" for step in partly(0)), "P0 killed", AWAY.format(0)]
VOTES_WITH_ENTRIES = [*BEGINS, "P0 votes in term 2", *LEFT_ALONE]
# Two leaders of one term, whose entries have one number.
ENTRIES_WITHOUT_VOTE = [*BEGINS, "P0 goes on in term 1", "P0 proposes 2", *LEFT_ALONE]
# Volume 1 has been written to, but is not durable.
TWO_OF_THREE = [*session("P0", ALL, 2), "P0 proposes 2", *(f"P0 writes to {volume}" for volume in ALL)]
TWO_OF_THREE += [f"P0 {step}" for step in partly(0, 2)[2:]]

# Each rule, what happens without it, a budget that shows it, and how that begins where it takes long.
NEEDED: dict[str, tuple[str, Budget, list[str]]] = {
    "read_all": ("LOST", Budget(DISK, proposals=1, volume_faults=1, power_losses=1, faults=("back",)), TWO_OF_THREE),
    "best_log": ("LOST", Budget(DISK, proposals=1, kills=1), []),
    "majority": ("LOST", Budget(DISK, proposals=1, kills=1, volume_faults=1, faults=("lost",)), []),
    "own_vote": ("LOST", Budget(DISK, sessions=3, kills=1, absences=2), ENTRIES_WITHOUT_VOTE),
    "vote_alone": ("FORK", Budget(DISK, sessions=3, proposals=0, kills=1, absences=2), VOTES_WITH_ENTRIES),
    "forget": ("TERM", Budget(DISK, sessions=3), []),
    "own_term": ("LOST", Budget(DISK, sessions=4, kills=2, absences=3, reads=1), OLDER_ENTRY_COPIED),
    "compare": ("FORK", Budget(BUCKET, 1, proposals=2), []),
    "look": ("LOST", Budget(BUCKET, 1, proposals=2, deletions=1), []),
    "own_put": ("FORK", Budget(BUCKET, 1, proposals=2), []),
    "heal": ("REFUSED", Budget(DISK, 1, kills=1, power_losses=1), []),
    "rewrite": ("REFUSED", Budget(DISK, 1, failed_fsyncs=1, power_losses=1), []),
    "mark_last": ("LOST", Budget(DISK, 1, power_losses=1, reads=1), []),
    "two_slots": ("MARK", Budget(DISK, 1, power_losses=1), []),
    "drop": ("REFUSED", Budget(DISK, 1, power_losses=1), []),
    "damage": ("LOST", Budget(DISK, 1, volume_faults=1, faults=("damaged",)), []),
    "doubt": ("READER", Budget(DISK, 1, power_losses=1, reads=1), []),
}


@pytest.mark.parametrize("name", ENDURED)
def test_the_protocol_endures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = search(Rules(), ENDURED[name])
    with capsys.disabled():
        print(f"\nspecification of registers: {name}: {outcome.states} states", end="")
    assert not outcome.violation, f"{outcome.violation}:\n  " + "\n  ".join(outcome.trace)


@pytest.mark.parametrize("rule", Rules.__dataclass_fields__)
def test_without_a_rule_something_is_lost(rule: str) -> None:
    expected, budget, beginning = NEEDED[rule]
    outcome = exhaust(Registers(weakened(**{rule: False}), budget), 1_000_000, beginning)
    assert outcome.violation == expected, outcome.trace


@pytest.mark.soak
@pytest.mark.parametrize("kind", [DISK, BUCKET])
def test_the_protocol_endures_long_histories_for_long(kind: str, soak_seconds: float) -> None:
    deadline, seed, steps = time.monotonic() + soak_seconds / 2, 0, 0
    budget = Budget(kind, 3, 3, 8, 8, 3, 3, 2, 2, 4, 1, 3)
    if kind == BUCKET:
        budget = replace(budget, power_losses=0, failed_fsyncs=0)
    while seed == 0 or time.monotonic() < deadline:
        seed += 1
        outcome = walk(Registers(Rules(), budget), seed, 20_000, 400, FAULTS)
        assert not outcome.violation, f"{outcome.violation}, seed {seed}:\n  " + "\n  ".join(outcome.trace)
        steps += outcome.states
    print(f"\nspecification of registers: {kind}: {steps} steps")
