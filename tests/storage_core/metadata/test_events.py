"""Events are told once: a condition until it ends, a fact each time, and causes that come back are counted."""

import ast
from pathlib import Path

import pytest

from storage_core.metadata.commands import Event
from storage_core.metadata.events import EVENT_COUNT_MAX, KINDS, new_events, open_conditions, with_events

ROOT = Path(__file__).resolve().parents[3]
V, W = "aa" * 16, "bb" * 16

DRIFT = Event("drift", "S", "", V, "current", "damaged", "of 6 blocks compared 1 missing, 0 of another size")
DAMAGED = Event("damaged", "S", "", V, "current", "damaged", f"block {'ab' * 16}: the file is missing")
FLAKY = Event("damaged", "S", "", V, reason=f"block {'1b' * 16}: crc32c 0x12ab; it reads whole now", count=1)
FAILED = Event("consumer_failed", "S", "billing", "", "4", "4", "stream 'S': gone; it holds 5 to 9. reset it")
REPAIRED = Event("repaired", "S", "", V, "damaged", "current", "replaced")
MISSING = Event("missing", "", "", V, "current", "missing", "not there")


def history(*events: Event) -> list[tuple[str, str, int]]:
    """Return (kind, volume, count) of what is kept of events that came one by one."""
    kept: tuple[Event, ...] = ()
    for time_ns, event in enumerate(events, 1):
        kept = with_events(kept, (event,), time_ns)
    return [(event.kind, event.volume, event.count) for event in kept]


def test_conditions_that_two_readers_meet_in_turns_are_told_once_each() -> None:
    assert history(*[DRIFT, DAMAGED] * 1000) == [("drift", V, 0), ("damaged", V, 0)]


def test_a_history_that_hears_nothing_new_is_the_same_object() -> None:
    known = with_events((), (DRIFT, DAMAGED), 1)
    assert with_events(known, (DAMAGED, DRIFT), 2) is known
    assert new_events(known, (DAMAGED, REPAIRED)) == (REPAIRED,)


@pytest.mark.parametrize(
    "end",
    [
        REPAIRED,
        Event("rejoined", "", "", V, "missing", "current"),
        Event("lost", "S", after="1 message"),
        Event("adopted", after="1 stream"),
    ],
    ids=lambda event: event.kind,
)
def test_a_condition_is_told_again_after_it_has_ended(end: Event) -> None:
    assert history(DAMAGED, DAMAGED, end, DAMAGED, DAMAGED) == [
        ("damaged", V, 0), (end.kind, end.volume, 0), ("damaged", V, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        Event("repaired", "S", "", W, "damaged", "current"),
        Event("repaired", "T", "", V, "damaged", "current"),
        Event("consumer_reset", "S", "billing", "", "1", "2"),
        Event("scrub", reason="all copies were read"),
    ],
    ids=lambda event: f"{event.kind} {event.stream} {event.volume[:2]}",
)
def test_what_is_about_something_else_ends_nothing(other: Event) -> None:
    assert len(history(DAMAGED, other, DAMAGED)) == 2


def test_other_damage_of_the_same_copy_is_told() -> None:
    more = Event("damaged", "S", "", V, "current", "damaged", f"block {'cd' * 16}: crc32c differs")
    assert len(history(DAMAGED, more, DAMAGED, more)) == 2


def test_what_readers_report_again_and_again_is_counted_in_one_event() -> None:
    again = Event("damaged", "S", "", V, reason=f"block {'2f' * 16}: crc32c 0x9f; it reads whole now", count=3)
    kept = with_events(with_events((), (FLAKY,), 10), (again,), 20)
    assert [(event.time_ns, event.count, event.last_ns) for event in kept] == [(10, 4, 20)]


def test_a_volume_that_goes_from_one_bad_state_to_another_and_back_is_told_each_time() -> None:
    damaged = Event("damaged", "", "", V, "missing", "damaged", "log: crc32c")
    assert [kind for kind, *_ in history(MISSING, damaged, MISSING, MISSING, damaged)] == [
        "missing", "damaged", "missing", "damaged",
    ]  # fmt: skip


def test_a_volume_that_stays_full_is_behind_once_whichever_file_it_refuses() -> None:
    full = [Event("behind", volume=V, reason=f"block {number}: no space left") for number in range(3)]
    assert len(history(*full)) == 1
    assert len(history(*full, Event("repaired", "S", "", V, "behind", "current"), *full)) == 3


def test_a_failure_is_the_same_while_its_stream_grows_and_another_after_the_consumer_was_reset() -> None:
    later = Event("consumer_failed", "S", "billing", "", "4", "4", "stream 'S': gone; it holds 5 to 12. reset it")
    reset = Event("consumer_reset", "S", "billing", "", "4", "4")
    assert len(history(FAILED, later)) == 1
    assert len(history(FAILED, reset, later)) == 3


def test_facts_are_told_each_time_and_the_oldest_are_forgotten() -> None:
    kept = with_events((), (Event("scrub", reason=str(number)) for number in range(EVENT_COUNT_MAX + 5)), 1)
    assert (len(kept), kept[0].reason) == (EVENT_COUNT_MAX, "5")


def test_conditions_that_have_not_ended_are_found() -> None:
    failed = Event("archive_failed", "S", reason="block 1", count=1)
    kept = with_events((), (failed, Event("archive_failed", "T", reason="block 1", count=1)), 1)
    assert [event.stream for event in open_conditions(kept, "archive_failed")] == ["S", "T"]
    kept = with_events(kept, (Event("archived", "S", reason="done"),), 2)
    assert [event.stream for event in open_conditions(kept, "archive_failed")] == ["T"]


def test_every_kind_that_the_code_makes_is_described() -> None:
    made = set()
    for path in (*(ROOT / "storage_core").rglob("*.py"), *(ROOT / "spark_stream").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Event" and node.args:
                made.update(
                    constant.value
                    for constant in ast.walk(node.args[0])
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
                )
    assert made
    assert {kind for kind in made if kind not in KINDS} <= {"_failed", "_reconciled"}  # behind consumer or query
