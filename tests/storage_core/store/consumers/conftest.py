"""Tests of these modules run on volumes on disks and in object stores alike, but for those that cannot there."""

import pytest
from harness.processes import Machine

SHARED = ("test_consumer", "test_lag")
DAMAGE = (
    "it damages or loses files of the simulated disk; objects are damaged in test_object_log.py and test_volumes.py"
)
CANNOT = {
    "test_stuck_consumer_after_all_was_lost_new_messages_arrive_at_once_and_the_loss_is_told_once": DAMAGE,
    "test_stuck_consumer_with_policy_fail_says_what_is_gone_until_it_is_reset": DAMAGE,
    "test_messages_that_no_copy_has_wait_and_hold_nothing_up_until_declared_lost": DAMAGE,
    "test_with_policy_fail_a_consumer_stops_right_before_what_no_copy_has": DAMAGE,
    "test_what_cannot_be_looked_at_is_told_once_however_little_may_wait": DAMAGE,
    "test_a_reset_passes_over_what_waited_and_is_lost": DAMAGE,
    "test_without_a_quorum_a_consumer_with_news_is_still_shown": DAMAGE,
    "test_damage_costs_no_more_than_the_exact_time": DAMAGE,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_shared = metafunc.module.__name__.rpartition(".")[2] in SHARED
    if is_shared and metafunc.function.__name__ not in CANNOT:
        metafunc.parametrize("volumes", ["disks", "objects"], indirect=True)


@pytest.fixture(autouse=True)
def volumes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the volumes of simulated machines are."""
    monkeypatch.setattr(Machine, "makes_objects", getattr(request, "param", "disks") == "objects")
