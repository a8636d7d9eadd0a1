"""Whether a running process has files of a foreign store open for writing, as far as this machine tells.

Linux shows the open files of processes of the same user, and of all to the superuser, below /proc. A server on another
machine, in another container or of another user is not seen: that nothing is found proves nothing.

Source: man 5 proc_pid_fd, proc_pid_fdinfo.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that may change a store while it is read."""

    process_id: int
    name: str
    file: str  # one of those that it has open

    def describe(self) -> str:
        return (
            f"process {self.process_id} ({self.name}) has {self.file} open for writing: the store is in use, and what "
            "is read of it may be torn; stop the server or read a copy"
        )


def writers(paths: Sequence[str | os.PathLike[str]], processes: Path = PROCESSES) -> list[Writer]:
    """Return the processes, other than this one, that have a file at or below the paths open for writing."""
    roots = tuple(os.path.join(os.path.realpath(path), "") for path in paths)
    try:
        names = sorted((name for name in os.listdir(processes) if name.isdecimal()), key=int)
    except OSError:
        return []
    open_writers = []
    for name in names:
        file = next(_written(processes / name, roots), None) if int(name) != os.getpid() else None
        if file is not None:
            open_writers.append(Writer(int(name), _name(processes / name), file))
    return open_writers


def _written(process: Path, roots: tuple[str, ...]) -> Iterator[str]:
    folder = str(process)  # of processes with many files: paths are made as text
    try:
        numbers = os.listdir(f"{folder}/fd")
    except OSError:
        return  # another user's, or gone
    for number in numbers:
        try:
            file = os.readlink(f"{folder}/fd/{number}")
            if file.startswith(roots) and _is_writing(process / "fdinfo" / number):
                yield file
        except OSError:
            continue


def _is_writing(info: Path) -> bool:
    flags = next((line.split()[1] for line in info.read_text().splitlines() if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & _WRITING)


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
