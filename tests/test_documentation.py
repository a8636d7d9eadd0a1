"""What README and guide show is run: every Python example of a page, in order, in an empty directory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_python_examples_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "examples.py"
    script.write_text("\n".join(examples(page)))
    place = tmp_path / "empty"
    place.mkdir()
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


def test_the_option_tables_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "option_tables.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "guide" / "options.md").read_text() == made.stdout
