"""Drivers on copies of one checkpoint: lives that hold, and that notice every known mistake of the data source."""

from pathlib import Path

import pytest
from harness.cases import REPORTS
from harness.copied_checkpoints import (
    Life,
    replaces_one_stream_or_says_why,
    replays_by_the_filters_of_its_plan,
    replays_the_range_of_its_plan,
)
from mutants.datasource.datasource_mutants import MUTANTS, made

SEEDS = range(12)


def live(seed: int, folder: Path) -> None:
    folder.mkdir()
    replaces_one_stream_or_says_why(folder)
    replays_by_the_filters_of_its_plan(folder)
    replays_the_range_of_its_plan(folder)
    Life(seed, folder).live()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_stored_twice_by_drivers_on_copies_of_a_checkpoint(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path / "life")


@pytest.mark.parametrize("mistake", sorted(MUTANTS))
def test_lives_notice_a_known_mistake(mistake: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        try:
            with made(mistake):
                live(seed, tmp_path / str(seed))
        except (Exception, pytest.fail.Exception) as error:
            REPORTS.append(f"the data source {mistake.replace('_', ' ')}: seed {seed}: {str(error)[:120]!r}")
            return
    pytest.fail(f"{len(SEEDS)} lives did not notice that the data source {mistake.replace('_', ' ')}")
