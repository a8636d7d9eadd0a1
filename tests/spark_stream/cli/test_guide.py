"""docs/guide shows what the commands print: every example in a page's console blocks is run again, in its order.

`JSTREAM_WRITE_GOLDEN=1 pytest tests/spark_stream/cli/test_guide.py` writes the outputs anew; read the diff.
"""

import glob
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_stream.cli.app import app

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide"
PAGES = [page for page in sorted(GUIDE.glob("*.md")) if "```console\n" in page.read_text()]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOME = "/home/you"
DATA = Path(__file__).resolve().parents[2] / "data"
# Stores of other servers that the guide's examples find in their directory.
SERVERS = {
    "nats-data": DATA / "nats" / "consumers",
    "cluster": DATA / "nats" / "r3-lagging-follower",
    "stan-data": DATA / "stan" / "damaged-truncated-msgs",
}


class Shell:
    """The little of a shell that the guide's examples need."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.variables = directory, {"COLUMNS": "100"}

    def run(self, line: str) -> str:
        """Return what the command prints on both outputs."""
        if line.startswith("export "):
            name, value = line.removeprefix("export ").split("=")
            self.variables[name] = value
            return ""
        if line.startswith("rm "):
            (found,) = self.directory.glob(line.split()[-1])
            (shutil.rmtree if line.startswith("rm -r ") else os.unlink)(found)
            return ""
        before, _, command = line.rpartition(" | ")
        stdin = shlex.split(before)[1].encode().decode("unicode_escape") if before.startswith("printf ") else ""
        command, _, file = command.partition(" > ")
        program, *words = shlex.split(command)
        assert program == "jstream", line
        words = [path for word in words for path in (sorted(glob.glob(word))[:1] if "/" in word else [word])]
        found = CliRunner().invoke(app, words, input=stdin, env=self.variables)
        shown = (found.stderr if file else found.output).strip("\n").replace(str(self.directory), HOME)
        shown = re.sub(r'(written from: |"host": ")[^"\n]*', r"\1desk", shown)
        return "\n".join(part.rstrip() for part in shown.split("\n"))


def rerun(console: str, shell: Shell) -> str:
    """Return a console block with its commands, and the outputs that they have now."""
    lines: list[str] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            output = shell.run(line.removeprefix("$ "))
            lines += [line, *([output] if output else [])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_guide_shows_what_the_commands_print(
    page: Path, jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, case in SERVERS.items():
        shutil.copytree(case / "store", tmp_path / name)
    text, shell = page.read_text(), Shell(tmp_path)
    found = BLOCK.sub(lambda block: f"```console\n{rerun(block[1], shell)}```", text)
    if os.environ.get("JSTREAM_WRITE_GOLDEN"):
        page.write_text(found)
    assert jstream.normalised(found) == jstream.normalised(page.read_text())
