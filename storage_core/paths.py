"""Paths as people write them: relative, with `~`, or as a `file:` URI, made absolute; other URIs are refused."""

import os
import re

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
