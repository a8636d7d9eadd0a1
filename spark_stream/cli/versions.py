"""Versions of jstream and of what it runs with: `jstream --version`."""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version

DISTRIBUTION = "pyspark-jstream"
_EXTRA = re.compile(r"([A-Za-z0-9._-]+)[^;]*;.*\bextra == ['\"](\w+)['\"]")


def versions() -> Iterator[tuple[str, str]]:
    """Yield name and version of jstream, Python, Spark and Java, and of each extra whose packages are installed."""
    from spark_stream.launching import find_java

    yield "jstream", _installed(DISTRIBUTION) or "(not installed: run from its source)"
    yield "Python", platform.python_version()
    yield "Spark", _installed("pyspark") or "none"
    java = find_java()
    yield "Java", (java.version or f"none: {java.path} does not run") if java is not None else "none"
    for extra, packages in _extras().items():
        numbers = {package: _installed(package) for package in packages}
        if all(numbers.values()):
            yield f"extra {extra}:", ", ".join(f"{package} {number}" for package, number in numbers.items())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra that users install."""
    try:
        required = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in required:
        if (of_extra := _EXTRA.match(requirement)) and of_extra[2] != "dev":
            extras.setdefault(of_extra[2], []).append(of_extra[1])
    return extras
