"""Makes tests/harness importable, and shows at the end of the run how many cases were tried."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from harness.cases import REPORTS  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of provoked failures are logged as warnings; nobody wants to read them."""
    logger = logging.getLogger("storage_core")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORTS:
        terminalreporter.section("cases tried")
        for line in REPORTS:
            terminalreporter.write_line(line)
        REPORTS.clear()
