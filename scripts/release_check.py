"""What has to hold before a version is released: `make release-check`, with `ARGS=--quick` without the long tests.

Every check is tried, also after one has failed; the exit code is the number of checks that failed. The packages that
were checked are in build/release.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import spark_matrix
import tomllib

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "release"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROGRAM = ROOT / "scripts" / "typed_program.py"


class Failed(Exception):
    """What a check says of a release that is not ready."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the tests out, which take hours")
    checks = QUICK if parser.parse_args().quick else [*QUICK, *LONG]
    failed = 0
    for check in checks:
        print(f"{check.__doc__} ...", flush=True)
        try:
            check()
            print("  ok", flush=True)
        except (Failed, OSError, subprocess.CalledProcessError) as error:
            failed += 1
            output = getattr(error, "stdout", None) or ""
            print(f"  FAILED: {error}\n{output[-3000:]}".rstrip(), flush=True)
    print(f"{VERSION}: {len(checks) - failed} of {len(checks)} checks hold")
    sys.exit(failed)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def check_tree() -> None:
    """The working tree is committed, and this version has no tag yet"""
    if changes := run("git", "status", "--porcelain"):
        raise Failed(f"not committed:\n{changes}")
    if run("git", "tag", "--list", f"v{VERSION}"):
        raise Failed(f"tag v{VERSION} exists: raise the version in pyproject.toml")


def check_changelog() -> None:
    """CHANGELOG.md has a section of this version with its date, and docs/index.md names the version"""
    text = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(VERSION)}, \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        raise Failed(f"CHANGELOG.md has no line '## {VERSION}, YYYY-MM-DD'")
    if f"Version {VERSION} " not in (ROOT / "docs" / "index.md").read_text():
        raise Failed(f"docs/index.md does not name version {VERSION}")


def check_packages() -> None:
    """wheel, sdist and SBOM are the same bytes when two clones build them, and twine accepts them"""
    shutil.rmtree(BUILT, ignore_errors=True)
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        for place in (BUILT, Path(folder, "other", "dist")):
            clone = Path(folder, place.parent.name)
            run("git", "clone", "--quiet", ROOT, clone)
            run(sys.executable, clone / "scripts" / "distribution.py", place, cwd=clone)
            digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()})
    if digests[0] != digests[1]:
        raise Failed(f"the builds differ: {digests}")


def check_installation() -> None:
    """The wheel runs where the repository is not: version, demo, and a program that mypy and pyright check"""
    (wheel,) = BUILT.glob("*.whl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "env")
        python = folder / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", wheel)
        jstream = folder / "env" / "bin" / "jstream"
        if f"jstream {VERSION}" not in " ".join(run(jstream, "--version", cwd=folder).split()):
            raise Failed(f"jstream --version does not say {VERSION}")
        run(jstream, "demo", "play", cwd=folder)
        run(jstream, "stream", "report", "--store", "play/store", cwd=folder)
        shutil.copy(PROGRAM, folder / "program.py")
        run(python, "program.py", cwd=folder)
        run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=folder)
        run(sys.executable, "-m", "pyright", "--pythonpath", python, "program.py", cwd=folder)


def check_lint() -> None:
    """make lint"""
    run("make", "lint")


def check_tests() -> None:
    """make test"""
    run("make", "test")


def check_oldest() -> None:
    """make test-oldest"""
    run("make", "test-oldest")


def check_versions() -> None:
    """make test-spark, for every version of Spark"""
    for version in spark_matrix.PAIRS:
        run("make", "test-spark", f"VERSION={version}")


def check_soak() -> None:
    """make soak SECONDS=1800"""
    run("make", "soak", "SECONDS=1800")


QUICK: list[Callable[[], None]] = [check_tree, check_changelog, check_packages, check_installation, check_lint]
LONG: list[Callable[[], None]] = [check_tests, check_oldest, check_versions, check_soak]

if __name__ == "__main__":
    main()
