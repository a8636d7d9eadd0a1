"""The orchestrators that `jstream init --for` writes files for: `make test-orchestrators`.

    .venv/bin/python scripts/orchestrators.py [ARGUMENTS]   run their tests, with these arguments of pytest

They have an environment of their own, build/orchestrators, as their packages and those of jstream do not go together.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "orchestrators"
PACKAGES = ("apache-airflow==3.3.2", "dagster==1.13.29")
TESTS = "tests/spark_stream/cli/test_orchestrators.py"


def main(arguments: list[str]) -> None:
    make()
    command = [sys.executable, "-m", "pytest", "-n", "0", *(arguments or [TESTS])]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def make() -> None:
    """Make the environment, unless that was done for these packages."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "packages.stamp"
    wanted = " ".join(PACKAGES) + "\n"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"Installing {', '.join(PACKAGES)} into {FOLDER.relative_to(ROOT)}", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *PACKAGES], check=True)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
