"""The protocol of sessions is exhausted within budgets: as it is nothing is found, without any one rule something is.

READER   who begins to read while nobody writes does not see all that was promised, and cannot know
LOST     a session is about to lead with a log that lacks an entry that was promised
HISTORY  an entry that was promised, or could be read, is replaced
REFUSED  a volume on which nothing was damaged is refused
TERM     terms fall along the log, or two candidates are voted for in one
MARK     a power loss takes away a commit record that was durable
"""

import pytest
from turns import Budget, Rules, search, weakened

ENDURED = {
    "a kill and a power loss": Budget(("a", "a"), kills=1, power_losses=1),
    "two kills": Budget(("aa", "a"), kills=2),
    "a failed fsync and a power loss": Budget(("a", "a"), failed_fsyncs=1, power_losses=1),
    "a failed fsync and a kill": Budget(("aa", "a"), failed_fsyncs=1, kills=1),
    "two power losses": Budget(("aa",), power_losses=2),
    "interrupts between reads": Budget(("aa", "a"), interrupts=1, reads=2),
    "an interrupt and a power loss": Budget(("aa",), interrupts=1, power_losses=1),
    "a kill between reads": Budget(("aa", "a"), kills=1, reads=2),
    "damage to any entry": Budget(("aa", "a"), kills=1, damages=1),
    "a new segment, a kill and a power loss": Budget(("r", "a"), kills=1, power_losses=1),
    "a new segment and a power loss": Budget(("ra", "a"), power_losses=1),
}

# Each rule, what happens without it, and a budget that shows it.
NEEDED = {
    "rewrite": ("REFUSED", Budget(("a", "a"), failed_fsyncs=1, power_losses=1)),
    "record_after_fsync": ("READER", Budget(("a",), power_losses=1)),
    "two_slots": ("MARK", Budget(("aa",), power_losses=1)),
    "forget": ("TERM", Budget(("aa", "a"), reads=2)),
    "terms_seen": ("TERM", Budget(("a", "a"), kills=1, reads=1)),
    "proven": ("READER", Budget(("r", "a"), kills=1, power_losses=1)),
    "name_durable": ("REFUSED", Budget(("r", "a"), power_losses=1)),
    "keep_old": ("READER", Budget(("a", "a"), kills=1, power_losses=1)),
    "no_second_fsync": ("READER", Budget(("a",), failed_fsyncs=1, power_losses=1)),
    "set_aside": ("REFUSED", Budget(("a", "a"), power_losses=1)),
    "marks": ("LOST", Budget(("aa", "a"), damages=1)),
    "doubt": ("READER", Budget(("a",), power_losses=1)),
}


@pytest.mark.parametrize("name", ENDURED)
def test_the_protocol_endures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = search(Rules(), ENDURED[name])
    with capsys.disabled():
        print(f"\nspecification: {name}: {outcome.states} states", end="")
    assert not outcome.violation, f"{outcome.violation}:\n  " + "\n  ".join(outcome.trace)


@pytest.mark.parametrize("rule", NEEDED)
def test_without_a_rule_something_is_lost(rule: str) -> None:
    expected, budget = NEEDED[rule]
    assert not search(Rules(), budget).violation, "with the rule nothing is"
    outcome = search(weakened(**{rule: False}), budget)
    assert outcome.violation == expected, outcome.trace


def test_every_rule_but_the_vote_before_the_entry_is_needed_on_one_volume() -> None:
    """With one voter a vote that is lost together with its entry was seen by nobody who lives on; with three it is."""
    assert set(Rules.__dataclass_fields__) == {*NEEDED, "vote_first"}
    assert not search(weakened(vote_first=False), Budget(("a", "a"), power_losses=1)).violation


def test_a_shortest_trace_reads_like_a_transcript() -> None:
    """The way in which a process that only read what others wrote went on in its old term."""
    outcome = search(weakened(forget=False), NEEDED["forget"][1])
    append = ["append", "fsync entry", "record", "release"]
    assert list(outcome.trace) == [
        "P0 locks, reads all",
        *(f"P0 {step}" for step in ("vote", "fsync vote", *append)),
        "P1 locks, reads all",
        *(f"P1 {step}" for step in ("vote", "fsync vote", *append)),
        "P0 locks, goes on",
        "P0 append",
    ]
