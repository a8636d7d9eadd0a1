"""The N-th call of the file interface fails, for every fourth N of the scripted life, and the others in `make soak`.

After it: the error is one of the hierarchy, a step that was not acked is there whole or not at all, what was acked is
there byte for byte, also after a power loss, and a new process can do what could not be done.
"""

import errno

import pytest
from harness.cases import Cases
from harness.faults import Call, fail_at
from harness.scenes import QUARTERS, check_shown_and_whole, go_on, moments, play, seen_after

from storage_core.errors import DiskFullError

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


@QUARTERS
@pytest.mark.parametrize("error", ERRORS)
def test_a_step_is_whole_or_not_there_when_any_call_in_it_fails(error: str, quarter: int) -> None:
    cases = Cases(f"every fourth call of the life fails with {error}")
    for start, call in moments(offset=list(ERRORS).index(error), stride=4, first=quarter):
        with cases.case(f"{error}, scene {start}, {call}", f"{call.operation} of {call.file_kind}"):
            check_failed_call(start, call, ERRORS[error])
    cases.finish()


def check_failed_call(start: int, call: Call, error: int) -> None:
    played = play(start, fail_at(call.number, error))
    assert len(played.files.calls) > call.number, "the call was not made this time"
    expected = played.expected()
    if isinstance(played.error, DiskFullError):
        expected = expected[:1]  # it says that nothing was stored
    seen = seen_after(played.machine, expected)
    done = go_on(played.machine, seen, played, 2)
    played.machine.disk.lose_power()
    check_shown_and_whole(played.machine, done)
