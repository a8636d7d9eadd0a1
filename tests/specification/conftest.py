"""Makes the models beside the tests importable, and tests/harness."""

import sys
from pathlib import Path

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parents[1]):
    sys.path.append(str(folder))
