"""Makes tests/lives and tests/harness importable, and shows at the end of the run what the lives came to."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness.cases import REPORTS  # noqa: E402


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORTS:
        terminalreporter.section("lives")
        for line in REPORTS:
            terminalreporter.write_line(line)
        REPORTS.clear()
