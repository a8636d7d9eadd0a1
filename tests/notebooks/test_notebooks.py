"""Each notebook runs from top to bottom, and is stored as people would keep it: without outputs, in order."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
NEEDS_DELTA = {"02_etl_to_delta.ipynb"}
CELL_TIMEOUT_S = 300  # for a busy machine; nothing takes a tenth of it


def load(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def code_cells(name: str) -> list[Any]:
    return [cell for cell in load(name).cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelManager]:
    """One kernel for all notebooks, started far from this repository: each makes a session of its own, but starting the
    JVM again would take longer.

    That JVM compiles quickly rather than well, since whatever runs here runs once.
    """
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(
        cwd=str(tmp_path_factory.mktemp("elsewhere")),
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
    )
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.delta] if name in NEEDS_DELTA else []) for name in NAMES]
)
def test_notebook_runs_from_top_to_bottom_and_leaves_nothing(name: str, kernel: KernelManager, tmp_path: Path) -> None:
    notebook = load(name)
    clean = nbformat.v4.new_code_cell(f"%reset -f\nimport tempfile; tempfile.tempdir = {str(tmp_path)!r}")
    notebook.cells.insert(0, clean)
    NotebookClient(notebook, km=kernel, timeout=CELL_TIMEOUT_S).execute()
    assert list(tmp_path.glob("jstream-*")) == []
    shown = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = load(name)
    nbformat.validate(notebook)
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(name))
    assert (FOLDER / name).read_text() == nbformat.writes(notebook) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_begins_with_its_session_takes_parameters_and_ends_by_stopping_it(name: str) -> None:
    first, second, *_, last = code_cells(name)
    assert "spark = session(" in first.source
    assert second.metadata.get("tags") == ["parameters"]
    assert "spark.stop()" in last.source and "shutil.rmtree(place)" in last.source
