"""The N-th call that only reads fails with EIO, for every N: in questions to a store, and under its changes.

A question is answered right or with an error of the hierarchy, never with fewer messages; a change is done or not.
"""

import errno
from collections.abc import Callable
from contextlib import suppress

from harness.cases import Cases
from harness.faults import LOCKING, READING, FaultyFiles, fail_at
from harness.life import STEPS
from harness.model import seen_in_store
from harness.scenes import go_on, machine_before, play, scene_starts, seen_after, shown_before

from storage_core.errors import StorageError
from storage_core.store.store import Store

STRIDE = 3  # every third call, and another third in the next scene
BEFORE = 16  # steps; there are two streams, with removed messages and blocks that are partly shown
QUESTIONS: dict[str, Callable[[Store], object]] = {
    "read": seen_in_store,
    "get": lambda store: store.stream("orders").get(3),
    "last": lambda store: store.stream("orders").last("orders.eu"),
    "subjects": lambda store: store.stream("orders").subjects(),
    "time": lambda store: store.stream("notes").first_at_time(0),
    "streams": lambda store: (store.streams(), store.view().index, store.stream("orders").gaps()),
    "read skipping": lambda store: store.stream("notes").read(on_data_loss="fail").read_all().num_rows,
}


def test_a_question_is_answered_right_or_not_at_all() -> None:
    cases = Cases("a reading call fails under a question")
    for name, ask in QUESTIONS.items():
        right = ask(machine_before(BEFORE).open())
        for number in range(10_000):
            machine = machine_before(BEFORE)
            files = machine.files(fail_at(number, errno.EIO))
            files.counted = READING + LOCKING
            with cases.case(f"{name}, reading call {number}", name), suppress(StorageError):
                assert ask(machine.open(files)) == right
            if len(files.calls) <= number:
                break
    cases.finish()


def test_what_is_told_of_a_store_survives_a_failed_call() -> None:
    """info and verify are for finding out what is wrong: once the store is open, they answer."""
    cases = Cases("a reading call fails under info and verify")
    for number in range(10_000):
        store, files = _open_and_count(number)
        with cases.case(f"reading call {number}"):
            assert store.stream("orders").info()["state"]["last_seq"] == 9
            verified = store.verify()
            assert verified["checked_blocks"] > 0 or not verified["ok"]
            assert verified["damage"] or verified["ok"]
        if len(files.calls) <= number:
            break
    cases.finish()


def _open_and_count(number: int) -> tuple[Store, FaultyFiles]:
    """Return an open store in whose process the reading call of that number, counted from now, fails."""
    machine = machine_before(BEFORE)
    files = machine.files()
    store = machine.open(files)
    files.counted, files.judge, files.calls = READING, fail_at(number, errno.EIO), []
    return store, files


def test_a_change_is_done_or_not_when_a_reading_call_in_it_fails() -> None:
    cases = Cases("a reading call fails under a change")
    for position, start in enumerate(scene_starts()):
        for number in range(position % STRIDE, 10_000, STRIDE):
            with cases.case(f"scene {start}, reading call {number}"):
                played = play(start, fail_at(number, errno.EIO), counted=READING)
                seen = seen_after(played.machine, played.expected())
                done = go_on(played.machine, seen, played, 1)
                played.machine.disk.lose_power()
                assert seen_in_store(played.machine.open()) == shown_before(done), STEPS[start].name
            if len(played.files.calls) <= number:
                break
    cases.finish()
