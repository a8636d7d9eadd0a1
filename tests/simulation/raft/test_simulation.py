"""The Raft core in virtual time: no seed breaks an invariant, and known mistakes do.

A seed that fails is repeated by `python tests/simulation/raft/replay.py SEED`. When what it found is mended, the seed
joins KEPT, and the mistake joins tests/mutants.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from harness.cases import REPORTS, Cases
from harness.raft.checker import Violation
from harness.raft.world import World
from mutants.raft.core_mutants import MUTANTS, made

from storage_core.errors import StorageError

SEED_COUNT = 400
REPLAY = Path(__file__).with_name("replay.py")

# Seeds with what they found, by the mistake that they find when it is put into the core.
KEPT = {
    "commits_entries_of_old_terms": (21, "the leader of term 16 lacks an entry that was committed before: figure 8"),
    "votes_twice_in_a_term": (0, "two leaders in term 12"),
    "forgets_its_vote_in_a_restart": (17, "two leaders in term 15: the voter crashed between two requests"),
    "votes_without_looking_at_the_log": (2, "the leader of term 7 lacks a committed entry"),
    "elects_with_half_of_the_voters": (0, "two leaders in term 1"),
    "counts_learners": (2, "an entry is committed that two of four voters have"),
    "acks_before_it_persists": (0, "an entry is committed that only its leader has on disk"),
    "votes_before_it_persists": (82, "two leaders in term 25: a crash took the vote that was already sent"),
    "leads_before_its_own_vote_is_persisted": (175, "two leaders in term 45: the first forgot that it had won"),
    "never_waits_for_the_disk": (0, "an entry is committed that only its leader has on disk"),
    "counts_its_own_entries_before_they_are_persisted": (1, "an entry is committed that its leader has not on disk"),
    "goes_on_after_a_failed_write": (112, "an entry is committed though the disks of three of five lost it"),
    "counts_a_node_that_came_back_blank": (2, "an entry is committed with the word of a blank disk"),
    "changes_members_before_the_last_change_is_applied": (1, "two open changes in one log"),
    "changes_members_before_it_has_committed_in_its_term": (11, "two majorities of four, of different changes"),
    "keeps_the_members_of_a_replaced_entry": (2, "a learner is counted whose entry is gone"),
    "reads_without_a_quorum": (2, "a leader that was cut off shows less than its successor did"),
    "reads_before_it_has_committed_in_its_term": (5, "a new leader shows less than the one before did"),
    "confirms_reads_by_answers_to_older_heartbeats": (97, "an answer that was late confirms a read of an old leader"),
    "takes_a_snapshot_beside_the_applier": (1, "two states at one index: an entry is applied twice"),
    "installs_a_snapshot_one_entry_too_low": (0, "the entry that the snapshot ends with is asked for again"),
    "believes_a_heartbeat_about_entries_it_never_compared": (2, "two nodes commit different entries at one index"),
    "cuts_its_log_at_an_old_message": (28, "a late message takes entries away that were acked"),
    "counts_what_a_follower_was_sent": (0, "an entry is committed that only its leader has"),
    "applies_what_is_not_committed": (0, "an entry is applied that is not committed"),
    "never_sends_again_what_was_lost": (2, "a healed group does not agree: a follower waits for ever"),
    "never_gives_up_a_hand_over": (188, "a healed group does not agree: its leader refuses all proposals"),
}


def run(seeds: range, cases: Cases, covered: Counter[str]) -> None:
    for seed in seeds:
        with cases.case(f"python tests/simulation/raft/replay.py {seed}", "seeds"):
            world = World(seed)
            world.run()
            covered.update(world.covered)
            covered["events"] += world.event_count


def report(covered: Counter[str]) -> None:
    REPORTS.append("Raft core: " + ", ".join(f"{count} {what}" for what, count in sorted(covered.items())))
    print(REPORTS[-1])


def test_invariants_hold_in_every_seed() -> None:
    cases, covered = Cases("Raft core in virtual time"), Counter[str]()
    run(range(SEED_COUNT), cases, covered)
    report(covered)
    cases.finish()
    assert covered["events"] > 1_000 * SEED_COUNT


@pytest.mark.soak
def test_invariants_hold_in_seeds_that_nobody_has_seen(soak_seconds: float) -> None:
    cases, covered = Cases("Raft core, soak"), Counter[str]()
    seed, end = time.time_ns(), time.monotonic() + soak_seconds
    print(f"Raft core: seeds from {seed} on")
    while time.monotonic() < end:
        run(range(seed, seed + 1), cases, covered)
        seed += 1
    report(covered)
    cases.finish()


def finds(mistake: str, seed: int) -> bool:
    with made(mistake):
        try:
            World(seed).run()
        except (AssertionError, StorageError):  # an invariant, or the core itself, has noticed
            return True
    return False


@pytest.mark.parametrize("mistake", MUTANTS)
def test_simulation_finds_a_known_mistake(mistake: str) -> None:
    """By the seed that is kept for it, or else, when the simulation has changed since, by any of the others."""
    assert mistake in KEPT
    (kept, _), what = KEPT[mistake], mistake.replace("_", " ")
    if not finds(mistake, kept):
        others = (seed for seed in range(SEED_COUNT) if finds(mistake, seed))
        found = next(others, None)
        assert found is not None, f"{SEED_COUNT} seeds did not notice that the core {what}"
        REPORTS.append(f"Raft core: it is seed {found} now, not {kept}, that notices that it {what}")


def test_seeds_that_found_something_hold() -> None:
    cases = Cases("Raft core, seeds that were kept")
    for seed in sorted({seed for seed, _ in KEPT.values()}):
        run(range(seed, seed + 1), cases, Counter())
    cases.finish()


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_seed_is_the_same_run_every_time(seed: int) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(seed, trace.append).run()
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Sets of bytes are in another order in each: none may decide anything."""
    outputs = [
        subprocess.run(
            [sys.executable, str(REPLAY), "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert b"seed 3 holds after" in outputs[0]


def test_a_broken_invariant_says_how_to_see_it_again() -> None:
    cases = Cases("Raft core, broken on purpose")
    with made("elects_with_half_of_the_voters"):
        run(range(3), cases, Counter())
    with pytest.raises(pytest.fail.Exception, match=r"python tests/simulation/raft/replay.py [012]\b[\s\S]*Violation"):
        cases.finish()
    REPORTS.pop()
    assert issubclass(Violation, AssertionError)
