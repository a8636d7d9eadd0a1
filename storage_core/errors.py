"""Errors that storage_core raises on purpose, all below StorageError.

A class is here because a caller acts differently on it; the message carries the numbers (file, offset_bytes,
what was expected, what was found). Every argument goes to `super().__init__` unchanged, so that an error crosses
the boundary between Spark's processes as it is. Bad options and bad configuration are `ValueError`.
"""

import os


class StorageError(Exception):
    """Whatever jstream's storage refuses or cannot do."""


# --- the bytes are not what they should be ----------------------------------------------------------------------


class CorruptionError(StorageError):
    """Bytes fail their checksum, digest or identity. The caller repairs from another replica or reports."""


class CorruptFrameError(CorruptionError):
    """One frame of a block is damaged; the frames around it may be whole."""


class CorruptRecordError(CorruptionError):
    """One record of a metadata log or journal is damaged."""


class TruncatedRecordError(StorageError):
    """The file ends inside a record. Recovery decides whether that is a torn tail or damage."""


class UnsupportedVersionError(StorageError):
    """A newer writer was here: its file is left alone, not guessed at."""


class NotAStoreError(StorageError):
    """The path holds no volume of a jstream store, or one that belongs to another store."""


# --- the state is not what the caller believed --------------------------------------------------------------------


class NotFoundError(StorageError):
    """No stream, consumer, message or block of that name or number."""


class AlreadyExistsError(StorageError):
    """The name is taken (names are unique without regard to case)."""


class StaleIncarnationError(StorageError):
    """The stream was deleted, or deleted and made again, since the caller looked."""


class RequirementError(StorageError):
    """A precondition of the command does not hold (sealed stream, denied delete, unexpected last sequence)."""


class InvalidMessageError(StorageError):
    """A message that the stream does not take: subject, size, type or column."""


class DataLossError(StorageError):
    """Messages that should be there are lost or damaged; the text names stream, sequences, file and offset."""


class UnavailableError(StorageError):
    """Messages cannot be read now: what they lie on is away. That is no loss; the same call works when it is back."""


class StalePlanError(StorageError):
    """A plan so old that its blocks are gone: read again. Never answered with fewer rows."""


# --- the caller may not, or not now -----------------------------------------------------------------------------


class FencedError(StorageError):
    """A newer run of the same writer has taken over."""


class TransactionAbortedError(StorageError):
    """The transaction was aborted, or is older than the store remembers; its blocks may be gone."""


class StoreBusyError(StorageError):
    """Another process (or, without --take-over, another host) holds the store."""


class OtherHostError(StoreBusyError):
    """Another host writes the store. No waiting helps: somebody decides that this one does from now on."""

    def __init__(self, store: str, host: str, here: str) -> None:
        super().__init__(store, host, here)
        self.store, self.host, self.here = store, host, here

    def __str__(self) -> str:
        return (
            f"{self.store}: the store is written from host {self.host!r}, this is {self.here!r}. If nothing on that "
            "host writes it any more (it is down, or this is its successor), or if this is a copy, take it over: "
            "--take-over, or the option takeOver of the data source, which does it when a read, a write or a query "
            "begins, and not later. While that host still writes, do not: locks do not reach from host to host "
            '("Which host writes" in the guide\'s page on operations)'
        )


class NoQuorumError(StorageError):
    """Too few volumes to decide anything."""


class VolumeFailedError(StorageError):
    """A volume gave an I/O error and is retired until it was verified again."""


class UnsuitableFileSystemError(StorageError):
    """A file system that does not do what a store builds on: the store is made, or used, elsewhere."""

    def __init__(self, path: str, file_system: str, what: str, outcome: str) -> None:
        super().__init__(path, file_system, what, outcome)
        self.path, self.file_system, self.what, self.outcome = path, file_system, what, outcome

    def __str__(self) -> str:
        return (
            f"{self.path}: no store can be on this file system ({self.file_system or 'of unknown kind'}). "
            f"Tried: {self.what}. Outcome: {self.outcome}. Take a local disk, or a mount that has file locks and fsync"
        )


class DiskFullError(StorageError):
    """No space or quota left: nothing was stored, and the volume is as good as before."""


class ProcessError(StorageError):
    """This process has run into a limit, or lacks a right: nothing is wrong with the store, and nothing was changed."""

    def __init__(self, file: str, errno: int, advice: str) -> None:
        super().__init__(file, errno, advice)
        self.file, self.errno, self.advice = file, errno, advice

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}{os.strerror(self.errno)}: this process cannot go on: {self.advice}"


class ReadOnlyError(StorageError):
    """The store was opened for reading only, or lies on a medium that cannot be written."""


class OutcomeUnknownError(StorageError):
    """The commit may or may not have happened. Send the same (writer, batch) again; never another one."""
