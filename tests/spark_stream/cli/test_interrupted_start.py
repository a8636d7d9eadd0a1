"""Ctrl-C while the command line still imports: quiet, with the exit code of an interrupt, like any other time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PIPE = subprocess.PIPE
MODULES = ["typer", "spark_stream.cli.app", "numpy", "pyarrow.lib"]


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_while_modules_are_imported_is_quiet(jstream, orders, module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "spark_stream.cli", "stream", "view", "ORDERS"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(jstream.volume)}
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            for line in process.stderr:  # one for each module, as soon as it is there
                if line.rsplit("|", 1)[-1].strip() == module:
                    break
            else:
                pytest.fail(f"{module} is not imported any more")
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=30)
        finally:
            process.kill()
    # A shell says 130 of both: Python ends by the signal itself if that met an exec() of text, as of a dataclass.
    assert process.returncode in (130, -signal.SIGINT)
    assert [line for line in rest.splitlines() if not line.startswith("import time:")] == []


def test_an_interrupt_that_is_ignored_stays_ignored(jstream, orders) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import os; os.execv(sys.executable, [sys.executable, '-m', 'spark_stream.cli', *sys.argv[1:]])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JSTREAM_STORE": str(jstream.volume)}
    command = [sys.executable, "-c", script, "stream", "view", "ORDERS", "--follow", "--raw"]
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            orders.stream("ORDERS").publish("orders.new", b"after")
            assert any(line == b"after\n" for line in process.stdout)
        finally:
            process.kill()
