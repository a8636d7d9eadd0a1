"""Files of volumes wherever these are: on disks of this machine, or in object stores.

The client of a bucket is made where it is used first, and again in a forked child; what it is made of, the options,
stays in this process: nothing here is pickled. Without options a client takes what the environment says.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from storage_core.deadlines import DeadlineFiles
from storage_core.errors import RequirementError
from storage_core.files import OS_FILES, File, Files, Lock
from storage_core.objects.client import ObjectStore
from storage_core.objects.files import ObjectFiles
from storage_core.paths import ObjectPath


class AnyFiles:
    """`Files` of two kinds, told apart by their paths (`paths.place`)."""

    def __init__(self, local: Files, remote: Files) -> None:
        self._local, self._remote = local, remote

    def _of(self, path: Path) -> Files:
        return self._remote if isinstance(path, ObjectPath) else self._local

    def create(self, path: Path) -> File:
        return self._of(path).create(path)

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> File:
        return self._of(path).open(path, writable, size)

    def unlink(self, path: Path) -> None:
        self._of(path).unlink(path)

    def replace(self, old: Path, new: Path) -> None:
        self._of(old).replace(old, new)

    def make_directory(self, path: Path) -> None:
        self._of(path).make_directory(path)

    def share_directory(self, path: Path, with_group: bool) -> None:
        self._of(path).share_directory(path, with_group)

    def remove_directory(self, path: Path) -> None:
        self._of(path).remove_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        return self._of(path).list_directory(path)

    def list_tags(self, path: Path) -> dict[str, str]:
        return self._of(path).list_tags(path)

    def sync_directory(self, path: Path) -> None:
        self._of(path).sync_directory(path)

    def file_size(self, path: Path) -> int:
        return self._of(path).file_size(path)

    def file_sizes(self, path: Path) -> dict[str, int]:
        return self._of(path).file_sizes(path)

    def is_directory(self, path: Path) -> bool:
        return self._of(path).is_directory(path)

    def drop_cache(self, path: Path) -> None:
        self._of(path).drop_cache(path)

    def lock(self, path: Path) -> Lock:
        return self._of(path).lock(path)


def files_of(options: Mapping[str, Any]) -> DeadlineFiles:
    """Return files by which volumes are reached, those in object stores with these options: the same for the same.

    Raises ValueError naming an option that is no text, number or flag, and never its value, which may be a secret.
    """
    if not isinstance(options, Mapping):
        raise ValueError(f"storage_options: a mapping of options is needed, not {type(options).__name__}")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise ValueError(f"storage_options: {key!r} is {type(value).__name__}; valid are text, numbers and flags")
    return _files_of(frozenset((key.lower(), str(value)) for key, value in options.items()))


@cache
def _files_of(options: frozenset[tuple[str, str]]) -> DeadlineFiles:
    def connect(bucket: str) -> ObjectStore:
        # Stores on local disks never need the client. Only here is it imported, by one module and as a whole: threads
        # that import parts of it side by side may wait for each other.
        try:
            from storage_core.objects.remote import RemoteObjectStore
        except ImportError as error:
            raise RequirementError(
                f"{bucket}: object stores need the package obstore: pip install 'pyspark-jstream[objectstore]'"
            ) from error
        return RemoteObjectStore(bucket, dict(options))

    return DeadlineFiles(AnyFiles(OS_FILES, ObjectFiles(connect)))
