"""The rule that a store of STAN is not read past an unexpected end twice in a row.

The option cuts off what may be the end of a longer damage, so the server refuses it at two starts after each other,
and so does an import: after one that used it, the next one has to do without, or be the same import, resumed. The
server keeps that in a file of the store. A source is never written here, so the importing side remembers it: in a
file of the user's state folder, by cluster id and real path of the store.

`check_use` is the rule; `UseMemory` is what remembers. Whoever imports calls `begin_import` before the first byte is
read, also when nothing has to be cut.

Source: nats-streaming-server, stores/filestore.go (`NewFileStore`); the folder is that of the XDG Base Directory
Specification 0.8.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from storage_core.errors import CorruptionError, RequirementError
from storage_core.files import OS_FILES, Files

MEMORY_SIZE_MAX = 64 << 10  # bytes
FOLDER = Path("jstream") / "stan-imports"


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The last import from one store."""

    cluster_id: str  # "" if the store's server.dat does not tell
    path: str  # real path of the store
    import_id: str  # names one import, the same when it is resumed
    truncate_bad_eof: bool


def check_use(last: StoreUse | None, now: StoreUse) -> None:
    """Raise RequirementError if the import before `now` from the same store has read past an unexpected end, too."""
    if last is None or not (last.truncate_bad_eof and now.truncate_bad_eof) or last.import_id == now.import_id:
        return
    raise RequirementError(
        f"--truncate-bad-eof was used for the last import from {now.path} (cluster {now.cluster_id!r}, import "
        f"{last.import_id!r}), and is refused twice in a row: look at what that import reported, then import without "
        "it; or resume that import"
    )


def begin_import(now: StoreUse, memory: "UseMemory") -> None:
    """Check an import against the last one from the same store, and remember it. Raises as the two do."""
    check_use(memory.load(now.cluster_id, now.path), now)
    memory.save(now)


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for the state of this user's programs: $XDG_STATE_HOME, else ~/.local/state."""
    given = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    return Path(environment.get("HOME") or os.path.expanduser("~")) / ".local" / "state"


class UseMemory:
    """The last use of each store, a small file each below `folder`."""

    def __init__(self, folder: Path | None = None, files: Files = OS_FILES) -> None:
        self._folder = Path(os.path.realpath((folder or state_folder()) / FOLDER))
        self._files = files

    def load(self, cluster_id: str, path: str) -> StoreUse | None:
        """Return the last use, None if there was none. Raises CorruptionError if it cannot be told any more."""
        place = self._place(cluster_id, path)
        try:
            file = self._files.open(place)
        except FileNotFoundError:
            return None
        try:
            content = file.read_at(0, MEMORY_SIZE_MAX)
        finally:
            file.close()
        try:
            use = StoreUse(**json.loads(content))
            if (use.cluster_id, use.path) != (cluster_id, path) or not isinstance(use.truncate_bad_eof, bool):
                raise ValueError("of another store")
        except (ValueError, TypeError) as error:
            raise CorruptionError(
                f"{place}: what was imported last from {path} cannot be told ({error}); remove the file if that was "
                "not with --truncate-bad-eof"
            ) from error
        return use

    def save(self, use: StoreUse) -> None:
        """Remember a use, durably."""
        missing = []
        folder = self._folder
        while not self._files.is_directory(folder):
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            self._files.make_directory(one)
            self._files.sync_directory(one.parent)
        place = self._place(use.cluster_id, use.path)
        content = json.dumps(asdict(use)).encode()
        try:
            file = self._files.create(place)
        except FileExistsError:
            file = self._files.open(place, writable=True)
        try:
            file.write_at(0, content)
            file.truncate(len(content))
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self._folder)

    def _place(self, cluster_id: str, path: str) -> Path:
        name = hashlib.sha256(f"{cluster_id}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self._folder / f"{name}.json"
