"""Stores to back up, and the directories that they are backed up to and restored onto, on a simulated disk."""

from pathlib import Path

from harness.faults import FaultyFiles
from harness.life import STEPS, to_table
from harness.model import Row
from harness.processes import Machine

from storage_core.errors import NotAStoreError
from storage_core.store.ingest.backup import open_backup
from storage_core.store.store import Store

BACKUP = Path("/disk/backup")
NEW = tuple(Path(f"/disk/new-{letter}") for letter in "abcde")
LIVED = 17  # steps of the life: two streams, messages removed and purged, a writer, an overwrite


def lived(volume_count: int = 1, steps: int = LIVED) -> Machine:
    """A store that has lived so many steps of the scripted life."""
    machine = Machine(3, volume_count)
    store = machine.create(snapshot_every=3, deleted_block_retention="1h")
    for step in STEPS[:steps]:
        step.act(store)
    return machine


def small(volume_count: int = 1) -> Machine:
    """A store with two blocks, for what is tried at every call."""
    machine = Machine(5, volume_count)
    store = machine.create()
    store.add_stream({"name": "notes", "block_max_msgs": 2})
    store.stream("notes").append(to_table([Row("notes", b"n%d" % number) for number in range(3)]))
    return machine


def restored(machine: Machine, count: int = 1, files: FaultyFiles | None = None) -> Store:
    return Store.restore(BACKUP, list(NEW[:count]), env=machine.environment(files))


def reopened(machine: Machine, count: int = 1) -> Store:
    return Store.open(list(NEW[:count]), lock_timeout_s=0.0, env=machine.environment())


def files_below(machine: Machine, root: Path) -> dict[Path, bytes]:
    """Return what is in the files below a directory."""
    files = machine.files()
    found = {}
    for path, _ in machine.disk.files(root):
        file = files.open(path)
        found[path] = file.read_at(0, file.size())
    return found


def is_backup(machine: Machine) -> bool:
    """Return whether there is a finished backup."""
    try:
        open_backup(BACKUP, machine.environment())
    except NotAStoreError:
        return False
    return True
