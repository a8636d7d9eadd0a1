"""Archiving: what a stream's `archive_command` does with each block that goes, before its files are unlinked.

    COMMAND... STREAM FILE FIRST LAST      no shell; stdin is empty; FILE is a copy on one of the volumes

`maintain` runs it, without any lock, once the block has waited for `deleted_block_retention`. Exit code 0 means that
the block is archived, whether the command has copied FILE or moved it away; then all copies are unlinked. Anything else
keeps the files: the command is tried ATTEMPTS times, then the rest of the stream's blocks wait for the next round, and
an event has the end of what the command printed. Between the command and the unlinking the process may die: so a
command may be run again for a block that it has archived.
"""

import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from storage_core.block.reader import BlockReader
from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.manifest import id_numbers, ids
from storage_core.metadata.state import StoreState, StreamState
from storage_core.quantities import parse_duration_ns
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment
from storage_core.store.volume.volumes import Volume

logger = logging.getLogger(__name__)
AT_ONCE = 4  # commands
ATTEMPTS = 3
PAUSE_S = 0.5  # before the second attempt, and twice as long before each further one
TIMEOUT_VARIABLE, TIMEOUT_S = "JSTREAM_ARCHIVE_TIMEOUT", 300.0  # of one attempt
OUTPUT_SIZE_MAX = 1024  # bytes, the last ones, of what a command prints
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that goes."""

    stream: str
    command: tuple[str, ...]
    incarnation: bytes  # that it was written as
    block_id: bytes
    first: int
    end: int

    @property
    def label(self) -> str:
        return f"sequences {self.first} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class _Outcome:
    is_archived: bool
    said: str  # why it is not, and what the command printed; empty: nothing is worth an event


class Archiving:
    """Runs the commands of the blocks of one store."""

    def __init__(self, metadata: MetadataClient, env: Environment, lock_timeout_s: float, archived: set[bytes]) -> None:
        """`archived` gets the ids of the blocks that maintenance may unlink from then on."""
        self._metadata, self._env, self._lock_timeout_s, self._archived = metadata, env, lock_timeout_s, archived

    def run(self, is_stopped: Callable[[], bool], other_owner: Callable[[], str] = lambda: "") -> None:
        """Run the commands of all blocks whose time has come, as long as no other process does.

        `other_owner` says which one that is; it is asked before the commands of some blocks are run.
        """
        state = self._metadata.view(self._lock_timeout_s).state
        for stream, blocks in _due(state, self._env.now_ns(), self._archived):
            for start in range(0, len(blocks), AT_ONCE):
                if is_stopped():
                    return
                owner = other_owner()
                if owner:
                    logger.info("%s: archive commands are run by %s", self._metadata.label, owner)
                    return
                if not self._run_at_once(stream, blocks[start : start + AT_ONCE], is_stopped):
                    break  # what comes behind would fail likewise, and has time

    def _run_at_once(self, stream: StreamState, blocks: Sequence[_Block], is_stopped: Callable[[], bool]) -> bool:
        """Run the commands of some blocks; return whether all of these are archived now."""
        outcomes = self._env.parallel([partial(self._archive, block, is_stopped) for block in blocks])
        events = []
        for block, outcome in zip(blocks, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome.is_archived:
                self._archived.add(block.block_id)
            if outcome.said:
                kind = "archived" if outcome.is_archived else "archive_failed"
                count = 0 if outcome.is_archived else 1
                events.append(Event(kind, stream.name, reason=f"{block.label}: {outcome.said}", count=count))
        self._tell(events)
        return all(outcome.is_archived for outcome in outcomes)

    def _archive(self, block: _Block, is_stopped: Callable[[], bool]) -> _Outcome:
        """Run the command for one block until it succeeds, at most ATTEMPTS times."""
        said, pause_s = "", PAUSE_S
        for attempt in range(1, ATTEMPTS + 1):
            if attempt > 1:
                if is_stopped():
                    break
                self._env.sleep(pause_s)
                pause_s *= 2
            try:
                file = _copy(self._metadata.volumes(), block)
            except OSError as error:
                return _Outcome(False, f"no copy can be looked at, the block stays: {error}")
            if file is None:
                return _Outcome(True, "no copy is left that could be archived")
            words = [*block.command, block.stream, str(file), str(block.first), str(block.end - 1)]
            problem, output = run(words, _timeout_s(), is_stopped)
            tail = f"; it printed: {output}" if output else ""
            if not problem:
                return _Outcome(True, output)
            said = f"{block.command[0]} {problem}, attempt {attempt} of {ATTEMPTS}; {file} stays{tail}"
            logger.warning("stream %r, %s: %s", block.stream, block.label, said)
        return _Outcome(False, said)

    def _tell(self, events: list[Event]) -> None:
        """Record what became of blocks; a command that goes on failing is counted."""
        if not events:
            return
        try:
            with self._metadata.session(self._lock_timeout_s) as session:
                session.propose(RecordEvents(tuple(events)))
        except StorageError as error:
            logger.warning("%s: what became of blocks that go was not written down: %s", self._metadata.label, error)


def must_wait(state: StoreState, deletes: np.ndarray, archived: Collection[bytes]) -> np.ndarray:
    """Return which of these deletes must not be unlinked before they are archived. `archived`: ids of those that are.

    Asked at every maintenance, of as many as a command that fails has left: no Python a block.
    """
    rows = _to_archive(state)
    waiting = np.setdiff1d(id_numbers(rows["block_id"]), id_numbers(ids(tuple(archived))))
    return np.isin(id_numbers(deletes["block_id"]), waiting)


def _to_archive(state: StoreState) -> np.ndarray:
    """Return the blocks, ARCHIVE_DTYPE, of streams that are there and still have a command."""
    rows = state.archives.rows
    keys = id_numbers(rows["stream"])
    _, at = np.unique(keys, return_index=True)
    streams = [state.by_incarnation(bytes(incarnation)) for incarnation in rows["stream"][at]]
    has_command = [stream is not None and bool(stream.config.archive_command) for stream in streams]
    return rows if all(has_command) else rows[np.isin(keys, keys[at[has_command]])]


def _due(state: StoreState, now_ns: int, archived: Collection[bytes]) -> Iterator[tuple[StreamState, list[_Block]]]:
    """Yield, by stream, the blocks whose retention is over and that were not archived yet, oldest first."""
    rows = _to_archive(state)
    if not len(rows):
        return
    # What an overwrite dropped is among the replaced ones.
    deletes, retention_ns = state.deletes, state.settings.deleted_block_retention
    # One that is exactly so old is due.
    deletes = deletes[~state.within(deletes["dropped_ns"] - 1, retention_ns, now_ns)]
    rows = rows[np.isin(id_numbers(rows["block_id"]), id_numbers(deletes["block_id"]))]
    for incarnation in dict.fromkeys(map(bytes, rows["stream"])):
        stream = state.by_incarnation(incarnation)
        assert stream is not None
        blocks = [
            _Block(stream.name, stream.config.archive_command, bytes(row["incarnation"]), bytes(row["block_id"]),
                   int(row["first"]), int(row["end"]))
            for row in rows[rows["stream"] == np.void(incarnation)]
        ]  # fmt: skip
        yield stream, [block for block in blocks if block.block_id not in archived]


def _copy(volumes: Sequence[Volume], block: _Block) -> Path | None:
    """Return a copy of the block, a whole one if there is one; None if no volume has any. Raises OSError."""
    damaged, errors = [], []
    for volume in volumes:
        path = volume.blocks.path(block.incarnation, block.block_id)
        try:
            with closing(volume.blocks.open(block.incarnation, block.block_id)) as file:
                BlockReader.open(file)
            return path
        except (FileNotFoundError, NotADirectoryError):
            if volume.identity is None:
                errors.append(OSError(f"{volume.path} is not there"))
        except CorruptionError:
            damaged.append(path)
        except OSError as error:
            errors.append(error)
    if damaged:
        return damaged[0]  # better than nothing: `block dump` shows what can be read of it
    if errors:
        raise errors[0]
    return None


def run(words: Sequence[str], timeout_s: float, is_stopped: Callable[[], bool]) -> tuple[str, str]:
    """Run a command to its end; return what was wrong, empty if nothing was, and the end of what it printed.

    After `timeout_s`, or when `is_stopped`, it is killed, with all that it has started in its process group.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )  # fmt: skip
    except OSError as error:
        return f"cannot be run: {error.strerror}", ""
    assert process.stdout is not None
    output = bytearray()
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        ready = select.poll()  # not select(): a driver may have more than 1,024 files open
        ready.register(pipe, select.POLLIN)
        is_open = True
        while True:
            has_ended = process.poll() is not None  # before the last look at what it printed
            is_open = is_open and _drain(pipe.fileno(), output)
            if has_ended or time.monotonic() >= deadline_s or is_stopped():
                break
            if is_open:
                ready.poll(1000 * POLL_S)
            else:
                time.sleep(POLL_S)
        if not has_ended:
            _kill(process)
    text = bytes(output).decode(errors="replace").strip()
    if not has_ended:
        return ("was" if is_stopped() else f"took longer than {timeout_s:g} s and was") + " killed", text
    if process.returncode:
        code = process.returncode
        return (f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"), text
    return "", text


def _drain(descriptor: int, output: bytearray) -> bool:
    """Take what a command has printed by now, and keep its end; return whether more may come."""
    for _ in range(64):  # then it is looked at whether its time is over
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        output += data
        del output[:-OUTPUT_SIZE_MAX]
        if not data:
            return False
    return True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _timeout_s() -> float:
    """Return how long an attempt may take. Raises ValueError."""
    timeout = os.environ.get(TIMEOUT_VARIABLE)
    return parse_duration_ns(timeout, TIMEOUT_VARIABLE) / 1e9 if timeout else TIMEOUT_S
