"""Paths as people write them: relative, with `~`, or as a `file:` URI, made absolute; other URIs are refused."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PosixPath, PurePath

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")  # of addresses in object stores
_SAME_SCHEMES = {"s3a": "s3", "abfs": "abfss"}  # of one place; Hadoop's spelling, and how it is kept
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE_PREFIX = re.compile(r"file:(?://(?=/))?", re.IGNORECASE)


class ObjectPath(PosixPath):
    """A place in an object store, `s3://bucket/prefix`: a path in everything but what it is written as."""

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":")
        return f"{scheme}://{rest.lstrip('/')}"

    def __fspath__(self) -> str:
        return str(self)

    @property
    def bucket(self) -> str:
        """The address of the bucket that it lies in."""
        return "//".join((self.parts[0], self.parts[1])) if len(self.parts) > 1 else str(self)

    @property
    def key(self) -> str:
        """The name within the bucket; empty for the bucket itself."""
        return "/".join(self.parts[2:])


def is_in_object_store(path: "str | os.PathLike[str]") -> bool:
    """Return whether a path is one in an object store."""
    scheme, separator, _ = str(path).partition("://")
    return isinstance(path, ObjectPath) or (separator != "" and scheme in OBJECT_SCHEMES)


def place(text: "str | os.PathLike[str]") -> Path:
    """Return the path that a text names, on disks or in an object store."""
    if isinstance(text, ObjectPath) or not is_in_object_store(text):
        return text if isinstance(text, Path) else Path(text)
    scheme, _, rest = str(text).partition("://")
    return ObjectPath(f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}")


def real_place(path: "str | os.PathLike[str]") -> Path:
    """Return the path without links in it; in an object store there are none."""
    return place(path) if is_in_object_store(path) else Path(os.path.realpath(path))


def place_key(path: "str | os.PathLike[str]") -> object:
    """Return what tells whether two paths lead to one place: as equal, whatever links lead there."""
    if not is_in_object_store(path):
        try:
            status = os.stat(path)
        except OSError:
            return real_place(path)
        return status.st_dev, status.st_ino
    return place(path)


def volume_path(path: str, label: str) -> str:
    """Return the absolute path of a volume, or its address in an object store.

    Raises ValueError as `local_path`, and for an address without a bucket or with what may be a secret. That is not
    shown: addresses are, and are kept in the store.
    """
    if not is_in_object_store(path):
        return local_path(path, label)
    scheme, _, rest = path.partition("://")
    bucket = rest.partition("/")[0]
    if not bucket:
        raise ValueError(f"{label}: {path!r} names no bucket; volumes are like s3://bucket/prefix")
    account = bucket.rpartition("@")[0]
    if ":" in bucket or "?" in rest or "\0" in rest or (account and not scheme.startswith("abfs")):
        raise ValueError(
            f"{label}: an address {scheme}://... has user, password, port or query in it; volumes are like "
            "s3://bucket/prefix, and what else it takes to reach them are storage options, best in the environment"
        )
    return str(place(path))


def local_path(path: str, label: str) -> str:
    """Return the absolute path; relative ones are resolved where this runs.

    Raises ValueError, which begins with `label`, for a NUL character and for a URI of anything but a local file.
    """
    if "\0" in path:
        raise ValueError(f"{label}: {path!r} holds a NUL character")
    scheme = _SCHEME.match(path)
    if scheme and scheme[1].lower() == "file":
        path = _FILE_PREFIX.sub("", path, count=1)
    elif scheme and scheme[1].lower() in ("nats", "tls"):
        raise ValueError(
            f"{label}: {path!r} is a running NATS server, and no volume: `jstream mirror` brings its streams into a "
            "store, and the data source of Spark reads and writes them"
        )
    elif scheme:
        raise ValueError(
            f"{label}: {path!r} is not a local path; a volume is a folder that the driver and every executor see at "
            "the same path, or a place in an object store: s3://bucket/prefix, gs://, az:// or abfss://; HDFS and DBFS "
            "hold no volumes"
        )
    return os.path.abspath(os.path.expanduser(path))


def resolve_paths(paths: Paths) -> list[Path]:
    """Return absolute paths; text may list several, separated by commas, an element of a list is one, commas and all.

    Raises ValueError for none, one twice, and what is no local path.
    """
    texts = _listed(paths)
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"path: {paths!r} names no volume")
    resolved = [place(volume_path(text, "path")) for text in texts]
    if len({is_in_object_store(path) for path in resolved}) > 1:
        raise ValueError(f"path: {', '.join(map(str, resolved))}: all volumes of a store are of one kind")
    keys = [place_key(path) for path in resolved]
    for position, key in enumerate(keys):
        if key in keys[:position]:
            raise ValueError(f"path: {texts[position]!r} is given twice")
    return resolved


def _listed(paths: object) -> list[str]:
    if isinstance(paths, str):
        return [part.strip() for part in paths.split(",")]
    listed = [paths] if isinstance(paths, os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    texts = [os.fspath(like) if isinstance(like, os.PathLike) else like for like in listed]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"path: {paths!r} is neither a path nor a list of paths")
    return [text for text in texts if isinstance(text, str)]


def check_apart(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the paths; raises ValueError if one lies within another, and would be lost with it."""
    for path in paths:
        for other in paths:
            if real_place(other) in real_place(path).parents:
                raise ValueError(
                    f"volumes: {path} lies within {other}; each is a directory, and best a disk, of its own"
                )
    return paths


def labels_of(paths: Sequence[str]) -> list[str]:
    """Return short names for paths: what is left of each without the parts that all begin or end with."""
    parts = [PurePath(path).parts for path in paths]
    if len(paths) < 2:
        return [names[-1] if names else "" for names in parts]
    shortest = min(map(len, parts))
    front = 0
    while front < shortest and len({names[front] for names in parts}) == 1:
        front += 1
    back = 0
    while back < shortest - front and len({names[len(names) - 1 - back] for names in parts}) == 1:
        back += 1
    return ["/".join(names[front : len(names) - back]) or names[-1] for names in parts]


def volume_labels(paths: Mapping[str, str]) -> dict[str, str]:
    """Return what people call volumes, by their ids: what of their paths sets them apart, such as `disk-2`.

    `paths`: by id. Two volumes have one path while one of them replaces the other; their labels have the id, too.
    """
    labels = labels_of(list(paths.values()))
    counts = Counter(labels)
    named = zip(paths, labels, strict=True)
    return {volume: label if counts[label] == 1 else f"{label} ({volume[:8]})" for volume, label in named}


def store_label(paths: Sequence[str]) -> str:
    """Return a short name for a store, by the paths of its volumes: how all end, else the last folder that all share.

    `shop` of /data/1/shop and /data/2/shop, and of /data/shop/disk-1 and /data/shop/disk-2. Volumes that share neither
    are named one by one.
    """
    parts = [PurePath(path).parts for path in paths]
    last = {names[-1] for names in parts if names}
    if len(last) == 1:
        return last.pop()
    columns = zip(*parts, strict=False)
    shared: list[str] = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, columns)]
    if shared and not shared[-1].endswith((":", "/")):  # more than the root, or the scheme of a bucket
        return shared[-1]
    return ",".join(labels_of(paths))
