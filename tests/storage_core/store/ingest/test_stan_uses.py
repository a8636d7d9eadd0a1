"""The rule that a store is not read past an unexpected end twice in a row."""

from dataclasses import replace

import pytest

from storage_core.errors import RequirementError
from storage_core.store.ingest.stan_uses import StoreUse, check_use

PLAIN = StoreUse("fix", "/data/stan", "one", truncate_bad_eof=False)
CUT = replace(PLAIN, truncate_bad_eof=True)
NEXT_PLAIN, NEXT_CUT = replace(PLAIN, import_id="two"), replace(CUT, import_id="two")


@pytest.mark.parametrize(
    ("last", "now", "allowed"),
    [
        (None, PLAIN, True),
        (None, CUT, True),
        (PLAIN, NEXT_PLAIN, True),
        (PLAIN, NEXT_CUT, True),
        (CUT, NEXT_PLAIN, True),
        (CUT, NEXT_CUT, False),
        (CUT, CUT, True),  # the same import, resumed
        (CUT, PLAIN, True),
    ],
)
def test_only_two_cuts_in_a_row_are_refused(last: StoreUse | None, now: StoreUse, allowed: bool) -> None:
    if allowed:
        check_use(last, now)
    else:
        with pytest.raises(RequirementError, match=r"--truncate-bad-eof .*/data/stan .*'fix'.*'one'.*refused twice"):
            check_use(last, now)
