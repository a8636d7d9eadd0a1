"""Which stores this user's streaming queries read: where a listener in another process finds them by their ids.

A query's progress tells a listener its offsets, which name stores by id. The process that runs the source knows the
paths and leaves them in `<temporary folder>/jstream-<uid>/stores/<store id>.json`; the listener's process reads them.
Only this user may write there, and what is found is checked: the folder is private and our own, and whoever opens the
store compares its id. It is a convenience of one machine: without it the query itself acknowledges, a batch later.
"""

import json
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from storage_core.files import OS_FILES, File
from storage_core.paths import is_in_object_store

log = logging.getLogger("jstream")
FILE_SIZE_MAX = 1 << 20  # bytes; a store has at most a dozen paths
_remembered: dict[bytes, tuple[str, ...]] = {}


def remember(store_id: bytes, paths: Sequence[str]) -> None:
    """Note where the volumes of a store are, for other processes of this user. Never raises: it is a convenience.

    Settings of object stores are not noted: other processes take those of their own environment.
    """
    noted = tuple(str(path) for path in paths)
    if _remembered.get(store_id) == noted:
        return
    try:
        _write(_folder() / _name(store_id), noted)
    except OSError as error:
        log.warning("listeners will not find the store at %s: %s", ", ".join(noted), error)
    _remembered[store_id] = noted


def find(store_id: bytes) -> tuple[str, ...]:
    """Return the paths of the store's volumes; () if no query of this user on this machine has noted them."""
    try:
        with OS_FILES.open(_folder() / _name(store_id)) as file:
            noted = json.loads(file.read_at(0, FILE_SIZE_MAX))
    except (OSError, ValueError):
        return ()
    paths = noted.get("paths") if isinstance(noted, dict) else None
    if not isinstance(paths, list) or not all(isinstance(path, str) and _is_place(path) for path in paths):
        return ()
    return tuple(paths)


def _is_place(path: str) -> bool:
    return os.path.isabs(path) or is_in_object_store(path)


def _name(store_id: bytes) -> str:
    return f"{store_id.hex()}.json"


def _folder() -> Path:
    """Return the folder of the notes, made if it is missing; raises OSError if it is not private, or not our own."""
    path = Path(tempfile.gettempdir()) / f"jstream-{os.getuid()}"
    for folder in (path, path / "stores"):
        OS_FILES.make_directory(folder)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder that this user alone can use; remove it")
    return path / "stores"


def _write(path: Path, paths: tuple[str, ...]) -> None:
    """Write the note under a name of its own, then give it the right one: nobody reads half of it."""
    text = json.dumps({"paths": list(paths), "version": 1}, sort_keys=True).encode()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        file: File = OS_FILES.create(new)
    except FileExistsError:  # of a process that was killed here, and whose number is used again
        OS_FILES.unlink(new)
        file = OS_FILES.create(new)
    with closing(file):
        file.write_at(0, text)
    OS_FILES.replace(new, path)
