"""`jstream completion`: what a shell gets that asks how a line may go on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def complete(jstream, *words: str) -> list[str]:
    """Return what bash is offered for the last of the words."""
    question = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    outcome = jstream.process(_JSTREAM_COMPLETE="complete_bash", **question)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.split()


def test_commands_and_options_are_completed(jstream) -> None:
    assert complete(jstream, "jstream", "st") == ["store", "stream"]
    assert complete(jstream, "jstream", "stream", "rep") == ["report"]
    assert complete(jstream, "jstream", "stream", "list", "--js") == ["--json"]


def test_streams_are_completed_from_the_store_that_the_line_names(jstream, orders, tmp_path: Path) -> None:
    orders.add_stream({"name": "PAYMENTS"})
    assert complete(jstream, "jstream", "stream", "info", "OR") == ["ORDERS"]
    words = ("stream", "info", "PA")
    assert complete(jstream, "jstream", *words) == ["PAYMENTS"]
    assert complete(jstream, "jstream", "--store", str(tmp_path / "nowhere"), *words) == []


def test_contexts_are_completed(jstream) -> None:
    jstream.done("context", "add", "shop", jstream.volume)
    assert complete(jstream, "jstream", "context", "select", "s") == ["shop"]


def test_what_is_no_command_is_completed_without_an_error(jstream) -> None:
    assert complete(jstream, "jstream", "stream", "nonsense", "--x") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script_that_is_printed(jstream, orders, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "jstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m spark_stream.cli "$@"\n')
    program.chmod(0o755)
    script = (
        f'PATH="{program.parent}:$PATH"\n'
        'eval "$(jstream completion bash)"\n'
        "COMP_WORDS=(jstream stream info OR) COMP_CWORD=3\n"
        f'export JSTREAM_STORE="{jstream.volume}"\n'
        '_jstream_completion jstream; echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("ORDERS\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(jstream, shell: str) -> None:
    assert "_JSTREAM_COMPLETE" in jstream("completion", shell, with_store=False).out


def test_another_shell_is_wrong_usage(jstream) -> None:
    outcome = jstream("completion", "tcsh")
    assert outcome.code == 2
    assert "bash" in outcome.err
