"""Register: the metadata log of one volume, wherever it lies. What is above goes by this, and by no kind of volume."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from storage_core.raft.entry import CommitRecord, EntryId
from storage_core.raft.log_format import Record
from storage_core.raft.snapshot_format import SnapshotBody
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.log_contents import CommitMark, Fetched, LogContents, LogPosition, Tail, TailRead


class Register(Protocol):
    """A log of votes and entries that begins with a snapshot. What was appended is durable when the call returns.

    A position is where a log ended for who read or wrote it; who appends goes on from there.
    """

    directory: Path

    def is_of(self, directory: Path, identity: VolumeIdentity) -> bool:
        """Return whether this is the log of that instance of a volume."""
        ...

    def keep_open(self) -> Self:
        """Let files stay open until `close`: for a session, nobody else writes them meanwhile."""
        ...

    def rest(self) -> None:
        """Let others write until the next session: what stays open is looked at before it is used again."""
        ...

    def close(self) -> None: ...

    # --- reading, by anybody

    def read(
        self, for_state: bool = ..., listing: Mapping[str, str] | None = ..., before: Fetched = ...
    ) -> LogContents:
        """Return everything that the log says. Raises CorruptionError if there is none, UnsupportedVersionError."""
        ...

    def read_snapshot(self) -> LogContents | None:
        """Return what the newest whole snapshot says, whatever the records are like; None if there is none."""
        ...

    def read_entries(self, after: int) -> LogContents:
        """Return the entries above index `after`, and some below, without a look at whether they are a chain."""
        ...

    def read_mark(self, before: CommitMark | None = ..., position: LogPosition | None = ...) -> CommitMark:
        """Return what the log says of what is committed.

        `before`: what it said last; `position`: up to where it is known. Both save reading it again.
        """
        ...

    def read_tail(self, position: LogPosition) -> Tail | None:
        """Return the records after `position`; None if a full reading is called for."""
        ...

    def ends_at(self, position: LogPosition) -> bool:
        """Return whether nothing was written after `position`, by one small request."""
        ...

    def files(self) -> list[Path]:
        """Return what the machine may have cached of the log."""
        ...

    def damaged_snapshots(self, passed_over: Collection[str]) -> list[tuple[str, str]]:
        """Return (file, reason) for snapshots that are not whole."""
        ...

    def unfinished_snapshots(self) -> set[str]:
        """Return the snapshots that may be cut: who wrote one was killed, and the log goes on without it."""
        ...

    # --- writing, in a session

    def look(self, position: LogPosition, commit: CommitRecord | None = ...) -> TailRead | None:
        """Return what has changed since the log ended at `position`; None if a full reading is called for.

        `commit`: what is known to be committed, where nobody has written since.
        """
        ...

    def begin(
        self,
        records: Sequence[Record],
        snapshot: tuple[EntryId, bytes, SnapshotBody] | None,
        commit: CommitRecord | None = ...,
    ) -> LogPosition:
        """Write the beginning of a log where there is none; return where it goes on.

        `snapshot`: last entry, history and content of the one that it begins with.
        """
        ...

    def append(
        self, position: LogPosition, records: Sequence[Record], after: EntryId = ..., commit: CommitRecord | None = ...
    ) -> LogPosition:
        """Append records at `position`, durably; return the position after them.

        `after`: the last entry before them; `commit`: what is known to be committed. Raises SupersededError if somebody
        else has written there, OSError.
        """
        ...

    def rewrite(
        self,
        position: LogPosition,
        base: EntryId,
        records: Sequence[Record],
        commit: CommitRecord | None,
        snapshot: tuple[bytes, SnapshotBody] | None = ...,
        drops_record: bool = ...,
    ) -> LogPosition:
        """Go on after `base` with these records, whatever stands behind it; return where the log goes on.

        `position`: where the log ended when it was read. `snapshot`: history and content of the one that takes the
        place of everything up to `base`, where that is not here. `drops_record`: what the log says of what is committed
        vouches for what is about to be repaired, so it goes first.
        """
        ...

    def write_commit_record(self, position: LogPosition, record: CommitRecord) -> None:
        """Say what is committed, once the log up to there is durable on a quorum."""
        ...

    def take_snapshot(
        self, position: LogPosition, tip: EntryId, history: bytes, body: SnapshotBody, commit: CommitRecord | None
    ) -> LogPosition:
        """Put a snapshot of the state after entry `tip`, with which the log ends at `position`, beside it.

        Return where the log goes on. What the snapshot takes the place of goes with `compact`.
        """
        ...

    def compact(self) -> None:
        """Remove snapshots but the two newest, and the records before the older of these."""
        ...
