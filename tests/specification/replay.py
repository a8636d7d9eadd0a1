"""Traces of the model of the ensemble, played with the real store on a simulated disk.

Each process of a trace is a thread that takes real turns; the I/O of a round runs in a thread for each volume, as in
reality. Gates at the file interface hold every call back until the trace says that it happens: before the first write
of a volume's round ("prepares", "writes the entry"), before the fsync of what it wrote ("fsyncs", "FAILS"), before a
commit record ("records"). Kills, power losses and faults of volumes are done to the disk.

A label that the real store has no call waiting for is passed over: a trace of a weakened rule may have steps that the
real one does not take. What was promised is what the real store stored on a quorum.
"""

import errno
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.simulated_disk import (
    ALL_KEPT,
    NOTHING_KEPT,
    ProcessEnded,
    SimulatedDirectory,
    SimulatedDisk,
    SimulatedFile,
    SimulatedFiles,
)

from storage_core.errors import CorruptionError, StorageError
from storage_core.metadata.commands import AddStream
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.raft import log_format
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE
from storage_core.store.ensemble.creation import create_volumes
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.volume import locks
from storage_core.store.volume.identity import read_identity
from storage_core.store.volume.log import VolumeLog

PATHS = [Path("/disk/v0"), Path("/disk/v1"), Path("/disk/v2")]
GATES = {
    "prepares": "prepare",
    "writes the entry on": "entry",
    "fsyncs": "sync",
    "fsync of": "sync",
    "records on": "record",
}  # what is told of a volume, and what its thread waits for
KIND_AT, CHAIN_AT = 8, 48  # of a record, in its header
WAIT_MAX_S = 30.0  # for threads that compute and never wait for a clock: reached only if one hangs


def volume_of(path: Path) -> int:
    return int(path.parts[2][1:])


class Gates:
    """Where the threads of one process stop, and what lets them go on."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._waiting: dict[int, str] = {}  # volume: what its thread, or the session, is about to do
        self._granted: dict[int, str] = {}
        self.is_open = False  # everything goes on
        self.end: type[BaseException] | None = None  # what every thread meets at its gate

    def thread(self, change: int) -> None:
        with self._condition:
            self._running += change
            self._condition.notify_all()

    def pass_(self, volume: int, what: str) -> str:
        """Wait until the trace lets `what` happen; return how."""
        with self._condition:
            self._waiting[volume] = what
            self._running -= 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: volume in self._granted or self.is_open or self.end is not None)
            self._running += 1
            del self._waiting[volume]
            if self.end is not None:
                raise self.end
            return self._granted.pop(volume, "")

    def waits_for(self, volume: int, what: str) -> bool:
        self.rest()
        return self._waiting.get(volume) == what

    def grant(self, volume: int, how: str = "") -> None:
        with self._condition:
            self._granted[volume] = how
            self._condition.notify_all()
            self._condition.wait_for(lambda: volume not in self._granted, WAIT_MAX_S)
        self.rest()

    def release(self, end: type[BaseException] | None = None) -> None:
        """Let everything go on, or end."""
        with self._condition:
            self.is_open, self.end = end is None, end
            self._condition.notify_all()
        self.rest()

    def rest(self) -> None:
        """Wait until every thread waits at a gate or has ended."""
        with self._condition:
            assert self._condition.wait_for(lambda: self._running == 0, WAIT_MAX_S), self._waiting


class GatedFile:
    """A file of which writes and syncs wait at the gates."""

    def __init__(self, file: SimulatedFile, process: "Process") -> None:
        self._file, self._process = file, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, offset_bytes: int, data: bytes | memoryview) -> None:
        self._process.before_write(volume_of(self._file.path), offset_bytes, bytes(data[: 4 * PAGE_SIZE]))
        self._file.write_at(offset_bytes, data)

    def sync(self) -> None:
        if self._process.before_sync(volume_of(self._file.path)) == "fails":
            self._file.strand()
            raise OSError(errno.EIO, "a failed fsync", str(self._file.path))
        self._file.sync()


class GatedFiles:
    """`Files` of a process in a replay."""

    def __init__(self, files: SimulatedFiles, process: "Process") -> None:
        self._files, self._process = files, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def create(self, path: Path) -> GatedFile:
        return GatedFile(self._files.create(path), self._process)

    def open(self, path: Path, writable: bool = False, size: int | None = None) -> GatedFile:
        return GatedFile(self._files.open(path, writable, size), self._process)


class Process:
    """A process that takes turns; each session is a thread."""

    def __init__(self, number: int, replay: "Replay") -> None:
        self.number, self.replay = number, replay
        self.files = replay.disk.process()
        self.env = replay.environment(GatedFiles(self.files, self), self.in_round)
        self.gates = Gates()
        self.metadata: MetadataClient | None = None
        self.session: threading.Thread | None = None
        self.outcome: str | BaseException = "no session yet"
        self._round = threading.local()
        self._proposing = ""
        self.writes_entry = False

    def begin(self, name: str) -> None:
        """Begin a session that makes a stream; it stops at its first gate."""
        self.gates = Gates()
        self.gates.thread(+1)
        self.session = threading.Thread(target=self._take, args=(name,), daemon=True)
        self.session.start()
        self.gates.rest()

    def _take(self, name: str) -> None:
        try:
            if self.metadata is None:
                self.metadata = MetadataClient.at(self.env, PATHS)
            self._proposing = ""
            with self.metadata.session(0.0) as session:
                self._proposing = name
                session.propose(AddStream(name.encode().ljust(16), StreamConfig(name=name, subjects=(name,)), ()))
                self._proposing = ""
            self.outcome = "done"
        except (StorageError, ProcessEnded, KeyboardInterrupt) as error:
            self.outcome = error
        finally:
            self.gates.thread(-1)

    def in_round(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the calls of one round, each in its thread, as `Environment.parallel` does."""
        outcomes: list[Any] = [None] * len(calls)
        left = threading.Semaphore(len(calls) - 1)

        def run(at: int) -> None:
            self._round.stage = "not begun"
            try:
                outcomes[at] = calls[at]()
            except BaseException as error:
                outcomes[at] = error
            finally:
                if left.acquire(blocking=False):
                    self.gates.thread(-1)  # the last one to end hands over to the session, which goes on at once

        threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(calls))]
        self.gates.thread(len(calls) - 1)  # the session itself waits
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        ended = next((one for one in outcomes if isinstance(one, (ProcessEnded, KeyboardInterrupt))), None)
        stored = sum(not isinstance(one, BaseException) for one in outcomes)
        if self._proposing and self.writes_entry and stored >= 2:
            self.replay.promised.add(self._proposing)
        if ended is not None:
            raise ended
        return outcomes

    def before_write(self, volume: int, offset_bytes: int, data: bytes) -> None:
        """Wait with the first write of a round, and with commit records."""
        if getattr(self._round, "stage", "not begun") != "not begun" or not any(data):  # zeros take a record away
            return
        if PAGE_SIZE <= offset_bytes < BATCHES_OFFSET:
            self.gates.pass_(volume, "record")
        elif hasattr(self._round, "stage"):
            is_entry = offset_bytes >= BATCHES_OFFSET and data[KIND_AT] == log_format.KIND_ENTRY
            self.writes_entry = is_entry
            self.gates.pass_(volume, "entry" if is_entry else "prepare")
            self._round.stage = "written"

    def before_sync(self, volume: int) -> str:
        """Wait with the sync of what the round has written; return whether it fails."""
        if getattr(self._round, "stage", "") != "written":
            return ""
        how = self.gates.pass_(volume, "sync")
        self._round.stage = "synced"
        if how == "succeeds" and self.writes_entry:
            self.replay.keep_image(volume)
        return how

    def stop(self, end: type[BaseException] | None) -> None:
        """Let the session run to its end, or end it."""
        self.gates.release(end)
        if self.session is not None:
            self.session.join(WAIT_MAX_S)
            self.session = None

    def kill(self) -> None:
        self.files.kill()
        self.stop(ProcessEnded)


class Replay:
    """Three volumes on a simulated disk, and what has happened to them."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.promised: set[str] = set()
        self._images: dict[int, list[Any]] = {}  # by volume: what was durable before each entry of the trace
        self._away: dict[int, Any] = {}
        self._count = 0
        self._locks: dict[int, list[Any]] = {}
        create_volumes(PATHS, StoreSettings(), self.environment(self.disk.process(), one_after_another))
        self.disk.lose_power(ALL_KEPT)  # the first commit record is durable, as in the model
        self._images = {volume: [self.disk.image_below(path)] for volume, path in enumerate(PATHS)}
        self.processes = [Process(number, self) for number in (0, 1)]
        self.outcomes: list[str | BaseException] = []  # of sessions that ran to their end

    def environment(self, files: Any, parallel: Callable[[Sequence[Callable[[], Any]]], list[Any]]) -> Environment:
        return Environment(
            files=files,
            now_ns=self._next,
            random_bytes=lambda size: self._next().to_bytes(size, "big"),  # ids grow: volumes are locked in this order
            lock_domain=lambda: "here",
            sleep=lambda _: None,
            parallel=parallel,
        )

    def _next(self) -> int:
        self._count += 1
        return self._count

    def keep_image(self, volume: int) -> None:
        self._images[volume].append(self.disk.image_below(PATHS[volume]))

    # --- labels

    def play(self, labels: Sequence[str], look: Sequence[str] = ()) -> list[str]:
        """Let it all happen; return the labels that there was no call for. After those with a word of `look`, look."""
        passed_over = []
        for label in labels:
            if not self._happens(label):
                passed_over.append(label)
            elif any(word in label for word in look):
                self.look()
        return passed_over

    def _happens(self, label: str) -> bool:
        if label.startswith("POWER LOSS"):
            self._lose_power(label.removeprefix("POWER LOSS ").split(" | "))
            return True
        if found := re.fullmatch(r"(?:the last record of )?volume (\d) (.*)", label):
            return self._fault(int(found[1]), found[2])
        short = re.sub(
            r"(leads|locks together|proposes|acknowledges).*", r"\1", label.replace("locks [", "locks together")
        )
        found = re.fullmatch(r"P(\d) (\D*?)(?: (\d))?( FAILS)?", short)
        assert found is not None, label
        process, what, volume = self.processes[int(found[1])], found[2], int(found[3] or 0)
        if what in GATES:
            return self._pass(process, volume, GATES[what], "fails" if found[4] else "succeeds")
        if what == "locks" and found[3]:
            lock = process.files.lock(PATHS[volume] / "lock")
            self._locks.setdefault(process.number, []).append(lock)
            return lock.try_acquire()
        if what in ("leads", "reads", "refuses", "backs off", "has a majority"):
            for lock in self._locks.pop(process.number, []):
                lock.close()
            if what in ("leads", "reads"):
                process.begin(f"stream-{self._next()}")
            return True
        if what in ("lets go", "gives up", "KILLED", "INTERRUPTED"):
            self._end(process, what)
        return True

    def _pass(self, process: Process, volume: int, what: str, how: str) -> bool:
        if process.session is None or not process.gates.waits_for(volume, what):
            return False
        process.gates.grant(volume, how)
        return True

    def _end(self, process: Process, what: str) -> None:
        if what == "KILLED":
            self._locks.pop(process.number, None)
            process.kill()
            self.processes[process.number] = Process(process.number, self)
            return
        process.stop(KeyboardInterrupt if what == "INTERRUPTED" else None)
        if what != "INTERRUPTED":
            self.outcomes.append(process.outcome)

    def _lose_power(self, fates: Sequence[str]) -> None:
        for process in self.processes:
            process.kill()
        self._locks.clear()
        for volume, path in enumerate(PATHS):
            told = fates[volume] if len(fates) == len(PATHS) else ""
            is_kept = "k" in told and "l" not in told.split(" ")[0]
            node = self._away[volume] if volume in self._away else self.disk.directory(path)
            node.lose_power(ALL_KEPT if is_kept else NOTHING_KEPT, self.disk.random)
        self.disk.evict_clean_pages()
        self.processes = [Process(number, self) for number in (0, 1)]

    def _fault(self, volume: int, how: str) -> bool:
        path = PATHS[volume]
        if how in ("is out of sight", "cannot be reached"):
            self._away[volume] = self.disk.take_away(path)
        elif how == "is back":
            self.disk.put_back(path, self._away.pop(volume))
        elif how in ("comes back blank", "is made anew"):
            self.disk.put_back(path, SimulatedDirectory())
        elif how.startswith("is rolled back"):
            images = self._images[volume][-int(how.split()[-1]) :]
            self.disk.put_back(path, images[0].copy_platter())
        elif how == "is damaged":
            self._damage_last_record(path)
        elif how.startswith("is that of a copy"):
            return self._exchange(volume, *map(int, re.findall(r"\d", how)))
        else:
            raise AssertionError(how)
        return True

    def _exchange(self, volume: int, age: int, length: int) -> bool:
        """Put a volume in the place of one that is of a copy of the store, made so many images ago and written on."""
        whole = self.disk.copy()
        whole.lose_power(ALL_KEPT)
        images = {PATHS[volume]: self._images[volume][-age:][0] if age else whole.image_below(PATHS[volume])}
        base = self._end_of(volume, images[PATHS[volume]])
        for other, path in enumerate(PATHS):
            if other in self._away:
                return False
            if other != volume:
                every = [*self._images[other], whole.image_below(path)]
                older = [one for one in every if self._end_of(other, one) <= base]
                if not older or self._end_of(other, self.disk.image_below(path)) < base:
                    return False
                images[path] = older[-1]
        copy = SimulatedDisk()
        for path, image in images.items():
            copy.put_back(path, image.copy_platter())
        for name in ("copied", "copied-too")[:length]:
            with patch.object(locks, "_mutexes", {}), self._alone(copy).session(0.0) as session:  # on another host
                session.propose(AddStream(name.encode().ljust(16), StreamConfig(name=name, subjects=(name,)), ()))
        copy.lose_power(ALL_KEPT)  # its last commit record is on the disk, too
        self.disk.put_back(PATHS[volume], copy.image_below(PATHS[volume]))
        return True

    def _end_of(self, volume: int, image: SimulatedDirectory) -> int:
        disk, path = SimulatedDisk(), PATHS[volume]
        disk.put_back(path, image.copy_platter())
        files = disk.process()
        index: int = VolumeLog(files, path, read_identity(files, path)).read().tip[0]
        return index

    def _damage_last_record(self, volume: Path) -> None:
        segments = sorted((one for one, _ in self.disk.files(volume / "meta") if one.suffix == ".log"), reverse=True)
        for segment in segments:  # the newest may be empty: it was not begun yet
            records = memoryview(bytes(self.disk.inode(segment).content))[BATCHES_OFFSET:]
            ends = [end for _, end in log_format.scan(records, BATCHES_OFFSET)]
            if ends:
                self.disk.flip_bit(segment, 8 * (ends[-1] - PAGE_SIZE + CHAIN_AT))
                return

    def look(self) -> None:
        """Read as a process does that has just begun and takes no lock: what it sees is promised."""
        metadata = MetadataClient.at(self.environment(self.disk.process(), one_after_another), PATHS, read_only=True)
        try:
            self.promised |= {one.name for one in metadata.view(0.0).state.streams.values()}
        except CorruptionError as error:
            if "opening the store for writing decides" not in str(error):  # it may say that it cannot tell
                raise

    # --- the end

    def end(self) -> None:
        """Leave no thread behind."""
        for process in self.processes:
            process.kill()

    def heal(self) -> dict[str, str]:
        """End everything, bring volumes back, and begin a session; return how each volume stands then."""
        for process in self.processes:
            if process.session is not None:
                process.stop(None)
                self.outcomes.append(process.outcome)
            process.kill()
        for volume in list(self._away):
            self.disk.put_back(PATHS[volume], self._away.pop(volume))
        with self._alone(self.disk).session(0.0) as session:
            session.propose(AddStream(b"healed".ljust(16), StreamConfig(name="healed", subjects=("healed",)), ()))
            return {str(one.path): session.status(one.volume_id).state for one in session.volumes}

    def streams(self, without: int | None = None) -> set[str]:
        """Return what is there after a power loss that keeps nothing, on all volumes or without one of them."""
        disk = self.disk.copy()
        if without is not None:
            disk.take_away(PATHS[without])
        disk.evict_clean_pages()
        disk.lose_power(NOTHING_KEPT)
        with self._alone(disk).session(0.0) as session:
            return {one.name for one in session.state.streams.values()}

    def _alone(self, disk: SimulatedDisk) -> MetadataClient:
        return MetadataClient.at(self.environment(disk.process(), one_after_another), PATHS)
