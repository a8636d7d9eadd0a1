"""What a weakened rule loses in the model the real store does not lose: traces, played on a simulated disk."""

import random
import time

import pytest
from ensemble import Ensemble
from ensemble_rules import Rules, weakened
from ensemble_state import Budget, N
from replay import Replay
from search import exhaust, follow
from test_ensemble import FAULTS, NEEDED

BEYOND_F = ("statements", "marks", "blank_waits")  # two volumes fail: a session may refuse, and nothing is lost
ABOUT_BLOCKS = ("abort_first",)


def trace_of(rule: str) -> list[str]:
    """Return the whole way to what is lost without the rule, told in full."""
    need = NEEDED[rule]
    beginning = list(need.beginning if need.without is None else need.without)
    model = Ensemble(weakened(rule), need.budget)
    states, labels = follow(model, beginning), []
    for state, wanted in zip(states, beginning, strict=False):
        possible = [label for label, _ in model.steps(state)]
        labels.append(wanted if wanted in possible else next(one for one in possible if one.startswith(wanted)))
    return [*labels, *exhaust(model, 100_000, beginning).trace]


@pytest.mark.parametrize("rule", [rule for rule in NEEDED if rule not in ABOUT_BLOCKS])
def test_the_real_store_keeps_what_a_weakened_rule_loses(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    labels, replay = trace_of(rule), Replay()
    passed_over = replay.play(labels)
    standings = replay.heal()
    with capsys.disabled():
        told = f"{len(labels)} steps, {len(passed_over)} of them not taken by the real store"
        print(f"\nreplay of a trace without {rule}: {told}, {len(replay.promised)} promises", end="")
    assert len(passed_over) <= len(labels) / 4, passed_over
    check_promises(replay, standings)
    if rule not in BEYOND_F:
        assert set(replay.outcomes) <= {"done"}, "one faulty volume is no outage"


def check_promises(replay: Replay, standings: dict[str, str]) -> None:
    """What was promised is there, and on every pair of volumes if all three are said to be current."""
    assert replay.promised <= replay.streams()
    if set(standings.values()) == {"current"}:
        for without in range(N):
            assert replay.promised <= replay.streams(without), f"without volume {without}"


def a_walk(seed: int, budget: Budget) -> list[str]:
    """Return what happens in the model when it goes at random."""
    choose, model = random.Random(seed), Ensemble(Rules(), budget)
    state, labels = model.check(model.initial()), []
    while possible := list(model.steps(state)):
        wild = [one for one in possible if any(word in one[0] for word in FAULTS)]
        calm = [one for one in possible if one not in wild]
        label, reached = choose.choice(wild if wild and (not calm or choose.random() < 0.1) else calm)
        labels.append(label)
        state = model.check(reached)
    return labels


WALKED = (
    Budget(("a,b", "c,d"), 6, kills=2, interrupts=1, power_losses=1, failed_fsyncs=1),
    Budget(("a,b", "c,d"), 6, kills=2, interrupts=1, power_losses=1, volume_faults=1),
    Budget(("a,b", "c,d"), 6, kills=1, power_losses=2, absences=2),
    Budget(("a,b", "c,d"), 6, kills=2, interrupts=1, power_losses=1, volume_faults=1, one_by_one=True),
)


def walk_the_real_store(seed: int, budget: Budget) -> Replay:
    labels, replay = a_walk(seed, budget), Replay()
    try:
        replay.play(labels, look=("records on", *FAULTS))
        check_promises(replay, replay.heal())
    except Exception as error:
        raise AssertionError(f"seed={seed}: {error}:\n  " + "\n  ".join(labels)) from error
    finally:
        replay.end()
    return replay


@pytest.mark.parametrize("which", range(len(WALKED)))
def test_the_real_store_keeps_its_promises_on_walks_of_the_model(which: int) -> None:
    promises = sum(len(walk_the_real_store(seed, WALKED[which]).promised) for seed in range(25))
    assert promises >= 25


@pytest.mark.soak
def test_the_real_store_keeps_its_promises_for_long(soak_seconds: float) -> None:
    deadline, seed, promises = time.monotonic() + soak_seconds, 1_000, 0
    while time.monotonic() < deadline:
        seed += 1
        promises += sum(len(walk_the_real_store(seed, budget).promised) for budget in WALKED)
    print(f"\nreplays: {(seed - 1_000) * len(WALKED)} walks of the model, {promises} promises")
