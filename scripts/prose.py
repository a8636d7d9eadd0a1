"""A linter of English for what users read: pages, and the help of commands. `make lint` runs it.

One word for one thing, the common word before the rare one, and paragraphs that fit on a screen.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from spark_stream.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / "docs" / name for name in ("index.md", "limitations.md", "compare.md", "scheduling.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
PARAGRAPH_MAX = 620  # letters: six lines of a page
# What not to write, and what to write instead.
WORDS = {
    r"(is|are|was|were) told": "is reported; or say who says it",
    r"told in": "shown in",
    r"tells? (position|of|them|it)\b": "shows, reports",
    r"gone? on with": "resumed, resumes",
    r"goes on with": "resumes",
    r"passed? over": "skipped",
    r"taken are": "valid values are",
    r"shall": "must, is to",
    r"one an? (volume|line|row|stream|message|block)": "one per ...",
    r"a (line|row) each": "one line per ...",
    r"mend(s|ed|ing)?": "repair",
    r"heal(s|ed|ing)?": "repair",
    r"upkeep": "maintenance",
    r"graves?|graveyard": "pending delete",
    r"heirs?": "lock owner",
    r"stands still": "stops, is idle",
    r"for ever": "for good",
    r"by name of": "called",
    r"here is what": "this is what",
    r"has none of": "refuses",
    r"of which address": "address to bind",
    r"as it says": "say what to do",
}
PATTERN = re.compile("|".join(rf"(?P<w{number}>\b(?:{words})\b)" for number, words in enumerate(WORDS)), re.IGNORECASE)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def findings() -> Iterator[str]:
    for page in PAGES:
        text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
        yield from check(str(page.relative_to(ROOT)), re.sub(r"`[^`\n]*`", _blank, text))
    for name, text in _helps(typer.main.get_command(app), "jstream"):
        yield from check(name, text)


def check(name: str, text: str) -> Iterator[str]:
    """Yield what is to be written otherwise: `name:line: ...`."""
    for match in PATTERN.finditer(text):
        advice = list(WORDS.values())[int(str(match.lastgroup)[1:])]
        yield f"{name}:{_line(text, match.start())}: {match[0]!r}: {advice}"
    for match in re.finditer(r"(?:^|\n\n)([^\s|`<\-#1*][^\n]*(?:\n[^\n]+)*)", text):
        if len(match[1]) > PARAGRAPH_MAX:
            line = _line(text, match.start(1))
            yield f"{name}:{line}: a paragraph of {len(match[1])} letters: {PARAGRAPH_MAX} at most"


def _helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the help of a command, of its options, and of all commands below it."""
    yield (
        f"{name} --help",
        "\n\n".join([command.help or "", *(getattr(param, "help", "") or "" for param in command.params)]),
    )
    for inner in command.list_commands(None) if hasattr(command, "commands") else ():
        yield from _helps(command.get_command(None, inner), f"{name} {inner}")


def _blank(match: re.Match[str]) -> str:
    """Return as many lines, and letters of none of our words, as there were."""
    return re.sub(r"[^\n]", "_", match[0])


def _line(text: str, start: int) -> int:
    return text.count("\n", 0, start) + 1


if __name__ == "__main__":
    lines = list(findings())
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
