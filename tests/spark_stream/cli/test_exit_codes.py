"""The table of exit codes in the guide: it lists all codes that there are, and commands end as it says."""

import re
from pathlib import Path

import pytest
from harness.block_places import flip

from spark_stream.cli import etl, failures, interrupts, mirror
from storage_core import Store

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (\d+(?:, \d+)*) \| ", re.M)


@pytest.fixture
def damage(trio):
    """Write a stream of one block on three volumes; return what damages the copies on so many of them."""
    with Store.open(trio.volume) as store:
        store.add_stream(name="S", subjects=["s"]).append([{"data": b"x"} for _ in range(5)])

    def flip_copies(first: int, end: int) -> None:
        for volume in list(trio.places)[first:end]:
            flip(next(volume.rglob("*.blk")))

    return flip_copies


def test_the_guide_lists_every_exit_code() -> None:
    page = (ROOT / "docs" / "guide" / "commands.md").read_text()
    table = page[page.index("| exit code |") : page.index("## Stores")]
    listed = {int(code) for codes in ROW.findall(table) for code in codes.split(", ")}
    known = {failures.EXIT_DONE, failures.EXIT_FAILED, failures.EXIT_USAGE, failures.EXIT_CLOSED_PIPE}
    assert listed == known | {mirror.EXIT_DIVERGED, interrupts.EXIT_INTERRUPTED, etl.EXIT_TERMINATED}


def test_what_was_done_ends_with_0_and_damage_that_is_found_with_1_until_it_is_repaired(trio, damage) -> None:
    damage(0, 1)
    steps = ["store info", "stream view S", "cluster info", "verify", "scrub", "repair", "verify", "scrub", "check"]
    assert [trio(*step.split()).code for step in steps] == [0, 0, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "words",
    [
        "stream info X", "consumer info S X", "stream get S 9", "verify", "scrub", "stream view S", "export S -",
        "backup saved", "repair", "drift stan nowhere", "block dump nowhere", "import nats nowhere", "apply nowhere",
        "stream add T --subjects s", "pub t x",
    ],
)  # fmt: skip
def test_what_fails_ends_with_1_and_an_error(trio, damage, tmp_path, monkeypatch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    damage(0, 3)
    outcome = trio(*words.split())
    assert (outcome.code, bool(outcome.err)) == (1, True)


@pytest.mark.parametrize("words", ["stream view S", "export S -"])
def test_damage_that_is_skipped_on_demand_is_no_failure(trio, damage, words: str) -> None:
    damage(0, 3)
    outcome = trio(*words.split(), "--on-data-loss", "continue")
    assert (outcome.code, outcome.err.startswith("skipped: stream 'S': sequences 1 to 5 ")) == (0, True)


@pytest.mark.parametrize(
    "words",
    [
        "stream rm S", "stream purge S", "stream rmm S 1", "cluster volume remove x", "stream view",
        "stream view S --nope", "nope", "stream edit S", "stream add T --max-age 5",
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_so_does_a_deletion_that_nobody_confirms(trio, damage, words: str) -> None:
    outcome = trio(*words.split())
    assert outcome.code == 2
    assert len(trio.done("stream", "view", "S", "--raw").split()) == 5


def test_check_ends_with_0_1_or_2(trio, damage) -> None:
    codes = [trio("check").code]
    damage(0, 1)
    trio("scrub")
    codes.append(trio("check").code)
    damage(1, 3)
    trio("repair")
    assert [*codes, trio("check").code] == [0, 1, 2]
