"""What happens once in a process that Spark forked, and never in one of the user's."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from datasource.workers import settle

ROOT = Path(__file__).resolve().parents[2]
SETTLE = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
from datasource.workers import settle
settle()
first = gc.get_freeze_count()
kept = [[one] for one in range(1000)]
settle()
print(first, gc.get_freeze_count())
"""


def frozen(name: str) -> tuple[int, int]:
    """Return how much the collector leaves out after the first and the second call, where `name` is the main module."""
    told = subprocess.run([sys.executable, "-c", SETTLE.format(name=name)], cwd=ROOT, capture_output=True, check=True)
    first, second = map(int, told.stdout.split())
    return first, second


def test_a_process_that_spark_forked_is_settled_once() -> None:
    first, second = frozen("pyspark.daemon")
    assert first > 1000
    assert second <= first


@pytest.mark.parametrize("name", ["__main__", "pyspark.worker"])
def test_other_processes_are_left_alone(name: str) -> None:
    assert frozen(name) == (0, 0)
    count = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == count
