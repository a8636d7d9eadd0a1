"""A look at whether an object store does what a store builds on, before one is made there.

One thing is asked of it beyond reading what was written: of several that create an object at once, one succeeds, and
its content stays. Some servers accept the condition and ignore it, or let several win, some of them once in a while
only. So many are let race for one name, again and again, and the object is looked at by every kind of call. And where
objects have tags, another content has another one.
"""

import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np

from storage_core.errors import OBJECT_STORE, UnsuitableFileSystemError
from storage_core.files import Files
from storage_core.os_errors import UnreachableError
from storage_core.store.environment import Environment

NAME_PREFIX = "probe-"  # of all objects that a look makes
RACER_COUNT = 16
# A server that looks first and stores then lets two win in a quarter of the rounds (S3Proxy 2.9.0), or in more of them.
# One that makes the racers wait for each other is slow at this, and tried less often.
ROUND_COUNT_MIN, ROUND_COUNT_MAX = 2, 48
PATIENCE_S = 3.0  # after which there are no more rounds than have to be
RANGED_SIZE = 512 << 10  # bytes of an object of which a range is read: more than come with opening it
CONTENT_SIZE = 64 << 10  # bytes of each racer's object: what takes a while to store is overtaken more often


def check(path: Path, env: Environment) -> None:
    """Raise UnsuitableFileSystemError naming what a store below this prefix could not rely on. Leaves nothing there."""
    probe = path / f"{NAME_PREFIX}{env.new_id().hex()}"
    ends, tags = env.monotonic() + PATIENCE_S, list[str]()
    for number in range(ROUND_COUNT_MAX):
        if len(tags) >= ROUND_COUNT_MIN and env.monotonic() >= ends:
            break
        tag = _try_race(path, env.files, probe, number)
        if tag is not None:
            tags.append(tag)
    if len(tags) < ROUND_COUNT_MIN:
        raise _refusal(path, f"of {RACER_COUNT} that created one object at once, none succeeded")
    if len(set(tags)) < len(tags) and any(tags):
        raise _refusal(path, "two contents of one object had the same tag", "telling contents apart by ETags")
    _try_range(path, env.files, probe)


def check_each(paths: Sequence[Path], env: Environment) -> None:
    """Do the same for all of these at once."""
    for outcome in env.parallel([partial(check, path, env) for path in paths]):
        if isinstance(outcome, BaseException):
            raise outcome


def check_distinct(paths: Sequence[Path], env: Environment) -> None:
    """Raise ValueError if two of the prefixes are one, by two names: volumes would be lost together."""
    marks = {path: path / f"{NAME_PREFIX}{env.new_id().hex()}" for path in paths}
    made: list[Path] = []
    try:
        for mark in marks.values():
            made.append(mark)
            with closing(env.files.create(mark)) as file:
                file.write_at(0, b"whose?")
                file.sync()
        for path in paths:
            names = env.files.list_directory(path)
            for marked, mark in marks.items():
                if marked != path and mark.name in names:
                    raise ValueError(f"volumes: {path} and {marked} are two names of one place")
    finally:
        for mark in made:
            env.files.unlink(mark)


def _try_race(prefix: Path, files: Files, path: Path, round_number: int) -> str | None:
    """Let many create one object, with the bytes of their numbers and of the round's; return its tag.

    None: nobody succeeded. A server may ask all of them to try again (409), as SeaweedFS does.
    """
    barrier = threading.Barrier(RACER_COUNT)
    won: list[int] = []
    errors: list[OSError] = []

    def content(number: int) -> bytes:
        return bytes([number, round_number]) * (CONTENT_SIZE // 2)

    def race(number: int) -> None:
        try:
            with closing(files.create(path)) as file:
                file.write_at(0, content(number))
                barrier.wait(30.0)
                file.sync()
            won.append(number)
        except FileExistsError:
            return
        except OSError as error:
            errors.append(error)

    racers = [threading.Thread(target=race, args=(number,)) for number in range(RACER_COUNT)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    try:
        tag = _outcome_of(prefix, files, path, [content(number) for number in won], errors)
    except BaseException:
        with suppress(OSError):  # what came before it says more
            files.unlink(path)
        raise
    files.unlink(path)
    if path.name in files.list_directory(prefix):
        raise _refusal(prefix, "an object that was deleted is listed")
    try:
        files.file_size(path)
    except FileNotFoundError:
        return tag
    raise _refusal(prefix, "an object that was deleted is there")


def _try_range(prefix: Path, files: Files, path: Path) -> None:
    """Read the end of an object of which the beginning alone comes with opening it."""
    content = np.arange(RANGED_SIZE // 4, dtype=">u4").tobytes()
    try:
        with closing(files.create(path)) as file:
            file.write_at(0, content)
            file.sync()
        with closing(files.open(path)) as file:
            if file.read_at(RANGED_SIZE - 100, 50) != content[-100:-50]:
                raise _refusal(prefix, "another one was served", "reading a range of an object")
    finally:
        with suppress(OSError):  # the races have shown whether it can be done
            files.unlink(path)


def _outcome_of(prefix: Path, files: Files, path: Path, won: Sequence[bytes], errors: Sequence[OSError]) -> str | None:
    """Return the tag of the object that one of the racers created; None if nobody did."""
    unexpected = next((error for error in errors if not isinstance(error, UnreachableError)), None)
    if unexpected is not None:
        raise unexpected
    if not won:
        if errors:  # who won may have got no answer
            raise errors[0]
        return None
    if len(won) > 1:
        raise _refusal(prefix, f"of {RACER_COUNT} that created one object at once {len(won)} succeeded")
    content = won[0]
    with closing(files.open(path)) as file:
        tag = file.tag
        if file.read_at(0, CONTENT_SIZE) != content:
            raise _refusal(prefix, "an object that was created is another one's")
    if path.name not in files.list_directory(prefix) or files.file_size(path) != CONTENT_SIZE:
        raise _refusal(prefix, "an object that was created is not listed")
    return tag


def _refusal(
    prefix: Path, outcome: str, tried: str = "creating an object that is not there"
) -> UnsuitableFileSystemError:
    return UnsuitableFileSystemError(str(prefix), OBJECT_STORE, tried, outcome)
