"""The search for the directories of foreign streams below a path, within bounds."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from storage_core.errors import NotAStoreError
from storage_core.files import Files
from storage_core.os_errors import raise_if_of_process

DEPTH_MAX = 7  # below the given path: enough for a folder of nodes with their store directories
DIRECTORY_COUNT_MAX = 200_000  # visited below one path; more means that it is not a store
GLANCE_DEPTH_MAX = 4  # from a server's store directory to its streams
GLANCE_COUNT_MAX = 500  # directories visited where somebody only wonders whether there is a store


def directories(
    top: Path,
    files: Files,
    enters: Callable[[Path, list[str]], bool],
    skips: Callable[[str], bool] = lambda _: False,
    depth_max: int = DEPTH_MAX,
    count_max: int = DIRECTORY_COUNT_MAX,
) -> Iterator[tuple[Path, list[str]]]:
    """Yield directories with the names in them, from `top` down to `depth_max` below it; links are followed, to each
    directory once.

    `enters` says of a directory and its names whether to look below, `skips` of a name whether to leave it. Raises
    NotAStoreError after `count_max` directories, and for one that cannot be listed.
    """
    waiting, seen = [(top, 0)], {str(top)}
    while waiting:
        place, depth = waiting.pop()
        if len(seen) > count_max:
            raise NotAStoreError(f"{top}: more than {count_max} directories; give one nearer to the streams")
        try:
            names = files.list_directory(place.resolve())
        except OSError as error:
            raise_if_of_process(error)
            raise NotAStoreError(f"{place} cannot be listed: {error.strerror}") from error
        yield place, names
        if depth == depth_max or not enters(place, names):
            continue
        for name in names:
            below = place / name
            if skips(name):
                continue
            true_path = os.path.realpath(below)
            if true_path not in seen and files.is_directory(below):
                seen.add(true_path)
                waiting.append((below, depth + 1))


def size_of(path: Path, files: Files) -> int:
    """Return the size of a block file; 0 for what cannot be read as one: it is reported as damaged or missing."""
    try:
        return files.file_size(Path(os.path.realpath(path)))
    except OSError as error:
        raise_if_of_process(error)
        return 0
