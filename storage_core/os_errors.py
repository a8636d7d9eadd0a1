"""What an error of the operating system speaks of. One classification for everything that reads or writes.

    FULL            the disk has no room: nothing was stored, and the volume is as good as before
    CLOSED          this process may not write there
    OF_PROCESS      this process: its limits, its memory, its rights, an old handle. It says nothing about what lies on
                    the disk: never damage, never a loss, no reason to retire a volume, nothing to be remembered
    GONE            what was there is not: the volume went away, or a file was taken. What it means is for the one to
                    tell who looks at the whole volume
    AWAY            what the file lies on cannot be reached: never damage and never a loss either
    everything else what the disk does not give back, or does not take

An error that is of the process comes out of storage_core as ProcessError, whoever met it. Where another copy can serve,
it serves; only then there is nothing to raise.
"""

import errno
import os
import resource
from collections.abc import Iterable
from pathlib import Path

from storage_core import access
from storage_core.errors import NoQuorumError, ProcessError, VolumeAwayError, VolumeFailedError
from storage_core.paths import is_in_object_store

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EFBIG)
GONE = (errno.ENOENT, errno.ENOTDIR)
RIGHTS = (errno.EACCES, errno.EPERM)
OF_PROCESS = (*LIMITS, *RIGHTS, errno.ESTALE)
AWAY = (
    errno.ENODEV,
    errno.ENXIO,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
)


class UnreachableError(OSError):
    """An object store gave no answer: whether it did what was asked is not known, and it may still do it.

    An error of the moment: no damage, no loss, no reason to retire a volume.
    """


def is_of_process(error: object) -> bool:
    """Return whether an error is about this process, and says nothing about what lies on the disk."""
    if isinstance(error, OSError):
        return error.errno in OF_PROCESS
    return isinstance(error, (ProcessError, MemoryError))


def is_limit(error: object) -> bool:
    """Return whether it is one that every volume would give: this process has run into a limit."""
    if isinstance(error, ProcessError):
        return error.errno in LIMITS
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in LIMITS)


def is_away(error: object) -> bool:
    """Return whether an error says that what the file lies on cannot be reached."""
    return isinstance(error, OSError) and error.errno in AWAY


def raise_if_of_process(error: BaseException, where: object = "") -> None:
    """Raise ProcessError if an error is of the process, whatever the caller makes of other errors.

    `where`: the file or the store, unless the error names a file.
    """
    if is_of_process(error):
        raise of_process(error, where) from error


def raise_if_limit(error: BaseException, where: object = "") -> None:
    """Raise ProcessError if this process has run into a limit; what it may not do on one volume, others may allow."""
    if is_limit(error):
        raise of_process(error, where) from error


def of_process(error: BaseException, where: object = "") -> ProcessError:
    """Return an error of the process as ours: which limit it is, and what somebody can do about it."""
    if isinstance(error, ProcessError):
        return error
    code = (error.errno or 0) if isinstance(error, OSError) else errno.ENOMEM
    file = error.filename if isinstance(error, OSError) and error.filename else where
    if isinstance(file, bytes):
        file = os.fsdecode(file)
    if code in RIGHTS and is_in_object_store(str(file)):
        return ProcessError(str(file), code, str(getattr(error, "strerror", error)))
    return ProcessError(str(file), code, _advice(code, str(file)))


def of_volume(error: OSError, text: str) -> VolumeFailedError:
    """Return what to raise where a volume does not give or take something: it is away for now, or it failed."""
    return VolumeAwayError(text) if isinstance(error, UnreachableError) else VolumeFailedError(text)


def too_few(error: NoQuorumError, refusals: Iterable[ProcessError | None]) -> NoQuorumError | ProcessError:
    """Return what to raise where volumes are missing for a majority: `error`, which says how many, or a refusal.

    `refusals`: why this process may not use a volume that is missing; None where that is not the reason. If without
    them there would be a majority, as when credentials have expired, nothing is lost: one of them says what to do.
    """
    assert error.available is not None and error.needed is not None
    refused = [refusal for refusal in refusals if refusal is not None]
    if not refused or error.available + len(refused) < error.needed:
        return error
    return ProcessError(*refused[0].args)


def _advice(code: int, file: str) -> str:
    if code == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"its limit is {soft} open files; raise it with `ulimit -n`, or let it do less at once"
    if code == errno.ENFILE:
        return "the machine has as many files open as it may; raise it with `sysctl fs.file-max`"
    if code == errno.ENOMEM:
        return "give it more memory, or let it read less at once"
    if code == errno.EFBIG:
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return f"its limit for the size of a file is {soft} bytes; raise it with `ulimit -f`"
    if code in RIGHTS:
        advice = access.refusal(Path(file)) if file else ""
        return advice or f"it runs as user {os.geteuid()}; give that user the right to, or run it as the store's owner"
    if code == errno.ESTALE:
        return "the network mount was changed under it: try again, or mount it again"
    return "try again"
