"""Paths as people write them: relative, with `~`, or as a `file:` URI, made absolute; other URIs are refused."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE_PREFIX = re.compile(r"file:(?://(?=/))?", re.IGNORECASE)


def local_path(path: str, what: str) -> str:
    """Return the absolute path; relative ones are resolved where this runs.

    Raises ValueError, which begins with `what`, for a NUL character and for a URI of anything but a local file.
    """
    if "\0" in path:
        raise ValueError(f"{what}: {path!r} holds a NUL character")
    scheme = _SCHEME.match(path)
    if scheme and scheme[1].lower() == "file":
        path = _FILE_PREFIX.sub("", path, count=1)
    elif scheme:
        raise ValueError(
            f"{what}: {path!r} is not a local path; a volume is a folder that the driver and every executor see at "
            "the same path"
        )
    return os.path.abspath(os.path.expanduser(path))


def resolve_paths(paths: Paths) -> list[Path]:
    """Return absolute paths; text may list several, separated by commas, an element of a list is one, commas and all.

    Raises ValueError for none, one twice, and what is no local path.
    """
    given = _listed(paths)
    if not given or not all(one.strip() for one in given):
        raise ValueError(f"path: {paths!r} names no volume")
    resolved = [Path(local_path(one, "path")) for one in given]
    for position, path in enumerate(resolved):
        for earlier in resolved[:position]:
            if os.path.realpath(earlier) == os.path.realpath(path):
                raise ValueError(f"path: {given[position]!r} is given twice")
    return resolved


def _listed(paths: object) -> list[str]:
    if isinstance(paths, str):
        return [part.strip() for part in paths.split(",")]
    listed = [paths] if isinstance(paths, os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    texts = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in listed]
    for one in texts:
        if not isinstance(one, str):
            raise ValueError(f"path: {paths!r} is neither a path nor a list of paths")
    return [one for one in texts if isinstance(one, str)]


def check_apart(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the paths; raises ValueError if one lies within another, and would be lost with it."""
    for one in paths:
        for other in paths:
            if Path(os.path.realpath(other)) in Path(os.path.realpath(one)).parents:
                raise ValueError(
                    f"volumes: {one} lies within {other}; each is a directory, and best a disk, of its own"
                )
    return paths
