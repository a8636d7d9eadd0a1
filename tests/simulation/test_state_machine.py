"""The store, as two processes use it, against a model: 10,000 steps, crashes and power losses among them."""

import time

import pytest
from harness.cases import REPORTS, quiet
from harness.store_machine import StoreMachine
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

STEP_COUNT = 10_000
RUNS, STEPS_PER_RUN = 260, 50  # 42 to 46 steps a run: Hypothesis ends some early


def test_store_does_what_the_model_does_in_10_000_steps() -> None:
    assert drive(RUNS, STEPS_PER_RUN) >= STEP_COUNT


@pytest.mark.soak
def test_store_does_what_the_model_does_in_long_lives(soak_seconds: float) -> None:
    end, taken = time.monotonic() + soak_seconds, 0
    while time.monotonic() < end:
        taken += drive(50, 200)
    assert taken


def drive(run_count: int, step_count: int) -> int:
    """Drive stores in so many runs; return how many steps were taken in all."""
    before = StoreMachine.steps_taken
    with quiet():
        chosen = settings(max_examples=run_count, stateful_step_count=step_count)
        run_state_machine_as_test(StoreMachine, settings=chosen)
    taken = StoreMachine.steps_taken - before
    REPORTS.append(f"state machine: {taken} steps in {run_count} runs")
    return taken
