"""Where a benchmark leaves what it measured: benchmarks/results/<part>.json, with the commit that it belongs to."""

import json
import subprocess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def write_figures(part: str, command: str, figures: dict[str, Any]) -> Path:
    """Write the figures of one part, and how they were made; return the file."""
    path = RESULTS / f"{part}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"command": command, "commit": commit(), **figures}, indent=2) + "\n")
    return path


def commit() -> str:
    """Return the commit that is measured, with a mark if files differ from it; "" outside of a clone."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    described = subprocess.run(command, cwd=RESULTS.parent.parent, capture_output=True, text=True, check=False)
    return described.stdout.strip()
