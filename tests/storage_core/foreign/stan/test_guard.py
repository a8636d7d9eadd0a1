"""The rule that a store is not read past an unexpected end twice in a row."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, RequirementError
from storage_core.foreign.stan.guard import StoreUse, UseMemory, begin_import, check_use, state_folder

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


def test_uses_are_remembered_by_cluster_and_path(tmp_path: Path) -> None:
    begin_import(CUT, UseMemory(tmp_path))
    assert UseMemory(tmp_path).load("fix", "/data/stan") == CUT
    with pytest.raises(RequirementError):
        begin_import(NEXT_CUT, UseMemory(tmp_path))
    begin_import(CUT, UseMemory(tmp_path))
    begin_import(replace(NEXT_CUT, path="/data/copy"), UseMemory(tmp_path))
    begin_import(replace(NEXT_CUT, cluster_id="other"), UseMemory(tmp_path))
    begin_import(NEXT_PLAIN, UseMemory(tmp_path))
    begin_import(replace(CUT, import_id="a longer name than before, and then a short one"), UseMemory(tmp_path))
    begin_import(replace(PLAIN, import_id="s"), UseMemory(tmp_path))
    assert UseMemory(tmp_path).load("fix", "/data/stan") == replace(PLAIN, import_id="s")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cluster_id": "fix"}', b"\xff\xfe", b"null"])
def test_memory_that_cannot_be_read_refuses_by_name(tmp_path: Path, content: bytes) -> None:
    memory = UseMemory(tmp_path)
    memory.save(CUT)
    (place,) = (one for one in tmp_path.rglob("*") if one.is_file())
    place.write_bytes(content)
    with pytest.raises(CorruptionError, match=place.name):
        begin_import(NEXT_PLAIN, memory)


def test_memory_of_another_store_is_not_taken_for_this_one(tmp_path: Path) -> None:
    memory = UseMemory(tmp_path)
    memory.save(CUT)
    (place,) = (one for one in tmp_path.rglob("*") if one.is_file())
    place.write_text(place.read_text().replace("/data/stan", "/data/else"))
    with pytest.raises(CorruptionError, match="of another store"):
        memory.load("fix", "/data/stan")


def test_state_folder_is_the_users() -> None:
    assert state_folder({"HOME": "/home/ada"}) == Path("/home/ada/.local/state")
    assert state_folder({"HOME": "/home/ada", "XDG_STATE_HOME": "/var/state"}) == Path("/var/state")
    assert state_folder({"HOME": "/home/ada", "XDG_STATE_HOME": "relative"}) == Path("/home/ada/.local/state")
