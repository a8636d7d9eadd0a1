"""The Raft core in virtual time: no seed breaks an invariant, and known mistakes do.

A seed that fails is repeated by `python tests/simulation/raft/replay.py SEED`.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.raft.world import World
from mutants.raft.core_mutants import made

SEEDS = range(60)
# Those that so few seeds are sure to meet; the others in tests/mutants need thousands, which is for soak.
FOUND_BY_FEW_SEEDS = (
    "votes_twice_in_a_term",
    "votes_without_looking_at_the_log",
    "elects_with_half_of_the_voters",
    "counts_learners",
    "acks_before_it_persists",
    "never_waits_for_the_disk",
    "counts_its_own_entries_before_they_are_persisted",
    "counts_a_node_that_came_back_blank",
    "changes_members_before_the_last_change_is_applied",
)


def test_invariants_hold_in_every_seed() -> None:
    events = 0
    for seed in SEEDS:
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.args = (f"python tests/simulation/raft/replay.py {seed}: {error}",)
            raise
        events += world.event_count
    print(f"Raft core: {len(SEEDS)} seeds, {events} events")
    assert events > 1_000 * len(SEEDS)


@pytest.mark.parametrize("mistake", FOUND_BY_FEW_SEEDS)
def test_simulation_finds_a_known_mistake(mistake: str) -> None:
    with made(mistake):
        for seed in SEEDS:
            try:
                World(seed).run()
            except Exception:
                return
    pytest.fail(f"{len(SEEDS)} seeds did not notice that the core {mistake.replace('_', ' ')}")
