"""What a pipeline keeps beside its checkpoint, in CHECKPOINT.etl: who runs it, where it began, what it did last.

    lock           an OS lock for as long as a run lasts; holds who has it, as JSON
    owners/        the same in an object store, where there are no locks: a lease (leases.py)
    state.json     the pipeline, its query, and at which sequence of each stream it began
    runs.json      the summaries of the newest RUNS_KEPT runs, the last one at the end
    backfills.json the ranges that backfills have begun or finished
    replay.json    the dead letters that a replay is at, or that the last one was
    dead-letters/  the checkpoint of the query for dead letters, where the sink leaves no room for them in its own

Spark's checkpoint says how far the pipeline has come. None of this replaces it: if it is lost, runs go on as before,
and a backfill that needs to know where the pipeline began is refused.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from datasource.settings import LOCK_TIMEOUT_S
from spark_stream.pipelines.errors import CheckpointError, CheckpointHeldError, CheckpointLostError
from storage_core.paths import is_in_object_store, place, real_place
from storage_core.store.consumers import leases
from storage_core.store.consumers.claims import OtherOwner, alone
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.environment import REAL

SUFFIX = ".etl"
LOCK, STATE, RUNS, BACKFILLS, REPLAY = "lock", "state.json", "runs.json", "backfills.json", "replay.json"
DEAD_LETTERS = "dead-letters"
LEASE = "etl"
RUNS_KEPT = 50
FILE_SIZE_MAX = 16 * 1024 * 1024  # bytes; bounds what a damaged checkpoint can make us read


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """How far the checkpoint's query has come."""

    query_id: str
    batch_planned: int  # the newest batch; -1: none yet
    batch_done: int
    done: dict[str, int]  # for each stream the next sequence, behind the last batch that is done
    incarnations: dict[str, str]  # of these streams, as hex
    is_of_topics: bool = False  # the query reads topics of Kafka


def now_text() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


class PipelineState:
    """The files beside one checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = place(checkpoint)
        self.folder = place(f"{real_place(checkpoint)}{SUFFIX}")  # one lock, by whatever link it is reached
        self._is_remote = is_in_object_store(self.folder)
        # Spark knows some places by other names than we do, as s3a:// for s3://.
        self._folder_for_spark = f"{checkpoint.rstrip('/')}{SUFFIX}" if self._is_remote else str(self.folder)
        self._other_owner: OtherOwner = lambda: ""

    @contextmanager
    def lock(self, work: str) -> Iterator[None]:
        """Keep other runs away until the block ends, however it ends; raises CheckpointHeldError.

        `work` is what the lock owner does, for the error that others get.
        """
        if self._is_remote:
            claims = leases.Leases([leases.place_beside(self.folder, REAL)], REAL, LOCK_TIMEOUT_S)
            with alone(claims, LEASE) as other_owner:
                owner = other_owner()
                if owner:
                    raise CheckpointHeldError(self.checkpoint, owner)
                self._other_owner = other_owner
                yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointHeldError(self.checkpoint, self._owner_text()) from None
            note = {"host": socket.gethostname(), "pid": os.getpid(), "since": now_text(), "what": work}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Raise CheckpointLostError if the run that has locked the checkpoint has lost it: called before each step."""
        owner = self._other_owner()
        if owner:
            raise CheckpointLostError(self.checkpoint, owner)

    def owner(self) -> str:
        """Return who runs the pipeline now, empty if nobody does."""
        if self._is_remote:
            with translated(self.folder):
                return leases.last_owner(leases.place_beside(self.folder, REAL), REAL, LEASE)
        try:
            descriptor = os.open(self.folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._owner_text()
        finally:
            os.close(descriptor)
        return ""

    def _owner_text(self) -> str:
        try:
            note = json.loads((self.folder / LOCK).read_bytes()[:4096])
            return f"{note['what']}, process {note['pid']} on {note['host']}, since {note['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another run, which has only just begun"

    def read(self, name: str) -> Any:
        """Return what the file of that name holds, None if it is not there; raises CheckpointError."""
        path = self.folder / name
        try:
            return json.loads(read_whole(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            reason = f"{path} is damaged, and nothing but a record: remove it to continue: {error}"
            raise CheckpointError(reason, checkpoint=str(self.checkpoint), file=str(path)) from error

    def runs(self) -> list[dict[str, Any]]:
        """Return the summaries of the newest runs, the last one at the end; raises CheckpointError."""
        return self.read(RUNS) or []

    def add_run(self, summary: dict[str, Any]) -> None:
        """Keep the summary of a run that has ended; a record that is damaged begins anew."""
        try:
            before = self.runs()
        except CheckpointError:
            before = []
        self.write(RUNS, [*before[1 - RUNS_KEPT :], summary])

    def write(self, name: str, value: Any) -> None:
        """Put the value there, durably: the file is the old one or the new one, whenever the power fails.

        Raises CheckpointLostError.
        """
        self.check()
        path, made = self.folder / name, self.folder / f".{name}.{os.getpid()}"
        if self._is_remote:
            _put(path, json.dumps(value, indent=2, sort_keys=True).encode())
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with made.open("w") as file:
            json.dump(value, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def dead_letter_checkpoint(self) -> str:
        return f"{self._folder_for_spark}/{DEAD_LETTERS}"

    def offsets(self) -> QueryOffsets | None:
        """Return how far Spark's checkpoint says the query has come, None if there is no checkpoint."""
        return read_checkpoint(self.checkpoint)


def read_checkpoint(checkpoint: Path) -> QueryOffsets | None:
    """Return how far the query of a checkpoint has come, None where none is; raises CheckpointError.

    Spark keeps `metadata` (the query's id), `offsets/N` (planned before batch N) and `commits/N` (after it).
    """
    try:
        query_id = json.loads(read_whole(checkpoint / "metadata"))["id"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        file = checkpoint / "metadata"
        reason = f"{file} is no checkpoint's: {error}"
        raise CheckpointError(reason, checkpoint=str(checkpoint), file=str(file)) from error
    planned, done = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    offset = _offset(checkpoint / "offsets" / str(done)) if 0 <= done <= planned else {}
    incarnations = {stream: str(position.get("incarnation", "")) for stream, position in offset.items()}
    is_of_topics = any("sequence" not in position for position in offset.values())
    return QueryOffsets(query_id, planned, done, sequences_of(offset), incarnations, is_of_topics)


def _newest(folder: Path) -> int:
    return max((int(name) for name in names_in(folder) if name.isdigit()), default=-1)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, on disks or in an object store; none if it is not there."""
    try:
        if not is_in_object_store(folder):
            return os.listdir(folder)
        with translated(folder):
            return REAL.files.list_directory(folder)
    except FileNotFoundError:
        return []


def _offset(path: Path) -> dict[str, Any]:
    """Return the offset of the source in one file of a checkpoint's offsets."""
    try:
        lines = read_whole(path).decode().splitlines()  # version, metadata, then one line for each source
        offset = json.loads(lines[2])
        sequences_of(offset)
    except (OSError, ValueError, IndexError) as error:
        reason = f"{path} holds no offsets of a jstream source: {error}"
        raise CheckpointError(reason, checkpoint=str(path.parent.parent), file=str(path)) from error
    return offset or {}


def sequences_of(offset: object) -> dict[str, int]:
    """Return the next sequence of each stream in an offset of the source; raises ValueError."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if offset is None:
        return {}
    if not isinstance(offset, Mapping):
        raise ValueError(f"{offset!r} is no offset")
    try:
        sequences: dict[str, int] = {}
        for stream, position in offset.items():
            if "sequence" in position:
                sequences[str(stream)] = int(position["sequence"])
            else:  # a topic of Kafka: the next offset of each partition
                sequences |= {f"{stream}/{int(partition)}": int(end) for partition, end in position.items()}
        return sequences
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{offset!r} is no offset") from error


def first_offsets(checkpoint: Path) -> dict[str, int]:
    """Return where a query over Kafka began, as its checkpoint has it; nothing of other queries."""
    try:
        return sequences_of(read_whole(checkpoint / "sources" / "0" / "0").rpartition(b"\n")[2].decode())
    except (OSError, ValueError):
        return {}


def read_whole(path: Path) -> bytes:
    """Return a file's bytes, on disks or in an object store. Raises FileNotFoundError, ValueError for too many."""
    if is_in_object_store(path):
        data = _get(path)
    else:
        with path.open("rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
    if len(data) > FILE_SIZE_MAX:
        raise ValueError(f"more than {FILE_SIZE_MAX} bytes")
    return data


def _get(path: Path) -> bytes:
    with translated(path):
        try:
            with closing(REAL.files.open(path)) as file:
                return file.read_at(0, FILE_SIZE_MAX + 1)
        except FileNotFoundError as error:
            missing = error
    raise missing


def _put(path: Path, data: bytes) -> None:
    """Put an object: it is the old one or the new one, whenever this process ends."""
    made = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    with translated(path):
        with closing(REAL.files.create(made)) as file:
            file.write_at(0, data)
            file.sync()
        REAL.files.replace(made, path)
