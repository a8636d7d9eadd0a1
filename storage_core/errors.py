"""Errors that storage_core raises on purpose, all below StorageError.

A class is here because a caller acts differently on it. Each has a `code`, which never changes its meaning, and fields
for programs: the annotated attributes of the class. A field is None where whoever raises the error does not know it.
The text is for people, and carries the numbers (file, offset_bytes, what was expected, what was found); where it is the
same each time the class makes it of the fields. An error crosses the boundary between Spark's processes as it is.

Bad options and bad configuration are `ValueError`. docs/guide/errors.md has the table of all classes
(scripts/error_table.py).
"""

import os
from collections.abc import Iterable
from typing import Any, ClassVar

from storage_core.suggestions import instead, nearest

LISTED_COUNT_MAX = 8  # names in one sentence


def holding(first: int, end: int) -> str:
    """Return what a stream with messages of sequences [first, end) holds, in words."""
    return f"holds {first} to {end - 1}" if first < end else f"holds no messages, the next one gets sequence {end}"


def _listed(names: list[str]) -> str:
    """Return names for a sentence, not too many of them."""
    more = f" and {len(names) - LISTED_COUNT_MAX} more" if len(names) > LISTED_COUNT_MAX else ""
    return ", ".join(names[:LISTED_COUNT_MAX]) + more


class StorageError(Exception):
    """Anything that the store refuses or cannot do: all errors below."""

    code: ClassVar[str] = "JSTREAM_ERROR"
    field_names: ClassVar[tuple[str, ...]] = ()
    shows_code: bool = False  # set where the error leaves us as text: then nobody can ask for the code

    def __init_subclass__(cls) -> None:
        own = [name for name in vars(cls).get("__annotations__", {}) if name not in StorageError.__annotations__]
        inherited = [name for base in cls.__bases__ for name in getattr(base, "field_names", ())]
        cls.field_names = tuple(dict.fromkeys([*inherited, *own]))

    def __init__(self, *arguments: object, **fields: Any) -> None:
        """Make an error of a text, or of whatever the class makes its text of, and of fields that the class has."""
        super().__init__(*arguments)
        unknown = fields.keys() - set(self.field_names)
        assert not unknown, f"{type(self).__name__} has no fields {unknown}"
        self.__dict__.update(fields)  # which is pickled with it

    @property
    def fields(self) -> dict[str, Any]:
        """What the error is about, for programs; only what is known."""
        values = {name: getattr(self, name, None) for name in self.field_names}
        return {name: value for name, value in values.items() if value is not None}

    def sentence(self) -> str:
        """Return the text without the code."""
        return super().__str__()

    def __str__(self) -> str:
        return f"[{self.code}] {self.sentence()}" if self.shows_code else self.sentence()

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.sentence(), **self.fields}


# --- the bytes are not what they should be ----------------------------------------------------------------------


class CorruptionError(StorageError):
    """Bytes fail their checksum, digest or identity."""

    code = "JSTREAM_CORRUPTION"
    file: str | None = None
    offset_bytes: int | None = None
    what: str | None = None  # was looked at, such as a header checksum
    expected: str | None = None
    found: str | None = None

    def __init__(self, *arguments: object, **fields: Any) -> None:
        """Take a text, or a `Defect`, whose numbers become the fields."""
        super().__init__(*arguments, **fields)
        defect = arguments[0] if arguments else None
        if not isinstance(defect, str):
            for name in ("file", "offset_bytes", "what", "expected", "found"):
                if name not in fields:
                    setattr(self, name, getattr(defect, name, None))


class CorruptFrameError(CorruptionError):
    """A frame of a block is damaged; those around it may be whole."""

    code = "JSTREAM_CORRUPT_FRAME"


class CorruptRecordError(CorruptionError):
    """A record of a metadata log or journal is damaged."""

    code = "JSTREAM_CORRUPT_RECORD"

    def __init__(self, what: str, offset_bytes: int, reason: str, **fields: Any) -> None:
        super().__init__(what, offset_bytes, reason, what=what, offset_bytes=offset_bytes, **fields)
        self._reason = reason

    def sentence(self) -> str:
        return f"{self.what}: offset_bytes {self.offset_bytes}: {self._reason}"


class TruncatedRecordError(StorageError):
    """The file ends inside a record; recovery decides whether that is damage."""

    code = "JSTREAM_TRUNCATED_RECORD"


class UnsupportedVersionError(StorageError):
    """A newer writer was here: its file is left alone."""

    code = "JSTREAM_UNSUPPORTED_VERSION"


class NotAStoreError(StorageError):
    """The path holds no volume of a store, or one of another store."""

    code = "JSTREAM_NOT_A_STORE"


# --- the state is not what the caller believed --------------------------------------------------------------------


class NotFoundError(StorageError):
    """No stream, consumer, message or block of that name or number."""

    code = "JSTREAM_NOT_FOUND"


class StreamNotFoundError(NotFoundError):
    """No stream has that name; the text suggests one."""

    code = "JSTREAM_STREAM_NOT_FOUND"
    stream: str | None = None
    nearest: str | None = None  # a name that there is

    def __init__(self, stream: str, where: str, names: Iterable[str] = ()) -> None:
        known = sorted(names)
        super().__init__(stream, where, known)
        self.stream, self.nearest, self._where, self._known = stream, nearest(stream, known), where, known

    def sentence(self) -> str:
        return f"no stream {self.stream!r} in {self._where}{instead(self.stream or '', self._known)}"


class KeyNotFoundError(NotFoundError):
    """The bucket has no value of that key, or of that revision of it."""

    code = "JSTREAM_KEY_NOT_FOUND"
    bucket: str | None = None
    key: str | None = None
    revision: int | None = None

    def __init__(self, bucket: str, key: str, revision: int | None = None) -> None:
        super().__init__(bucket, key, revision)
        self.bucket, self.key, self.revision = bucket, key, revision

    def sentence(self) -> str:
        of = "" if self.revision is None else f" of revision {self.revision}"
        return f"bucket {self.bucket!r} has no value{of} for key {self.key!r}"


class ConsumerNotFoundError(NotFoundError):
    """The stream has no consumer of that name; the text suggests one."""

    code = "JSTREAM_CONSUMER_NOT_FOUND"
    stream: str | None = None
    consumer: str | None = None
    nearest: str | None = None  # a name that there is

    def __init__(self, stream: str, consumer: str, names: Iterable[str] = ()) -> None:
        known = sorted(names)
        super().__init__(stream, consumer, known)
        self.stream, self.consumer, self.nearest, self._known = stream, consumer, nearest(consumer, known), known

    def sentence(self) -> str:
        return f"no consumer {self.consumer!r} of stream {self.stream!r}{instead(self.consumer or '', self._known)}"


class MessageNotFoundError(NotFoundError):
    """No message has that sequence: it was removed, or never stored."""

    code = "JSTREAM_MESSAGE_NOT_FOUND"
    stream: str | None = None
    sequence: int | None = None
    was_removed: bool | None = None
    first: int | None = None  # the stream holds sequences [first, end)
    end: int | None = None

    def __init__(self, stream: str, sequence: int, was_removed: bool, first: int, end: int) -> None:
        super().__init__(stream, sequence, was_removed, first, end)
        self.stream, self.sequence, self.was_removed, self.first, self.end = stream, sequence, was_removed, first, end

    def sentence(self) -> str:
        assert self.first is not None and self.end is not None
        why = "was removed" if self.was_removed else "was never stored"
        return f"stream {self.stream!r}: message {self.sequence} {why}; the stream {holding(self.first, self.end)}"


class AlreadyExistsError(StorageError):
    """The name is taken (names are unique without regard to case)."""

    code = "JSTREAM_ALREADY_EXISTS"


class SubjectsOverlapError(StorageError):
    """Another stream takes some of the stream's subjects: choose others, or allow the overlap."""

    code = "JSTREAM_SUBJECTS_OVERLAP"
    stream: str | None = None
    subjects: list[str] | None = None  # of the stream, those that overlap
    other: str | None = None  # a stream that has them, the first by name
    other_subjects: list[str] | None = None  # of the other, those that overlap

    def __init__(self, stream: str, subjects: Iterable[str], other: str, other_subjects: Iterable[str]) -> None:
        own, others = list(subjects), list(other_subjects)
        super().__init__(stream, own, other, others)
        self.stream, self.subjects, self.other, self.other_subjects = stream, own, other, others

    def finding(self) -> str:
        own, others = (_listed(subjects or []) for subjects in (self.subjects, self.other_subjects))
        return f"stream {self.stream!r}: {own} overlaps with {others} of stream {self.other!r}"

    def sentence(self) -> str:
        return f"{self.finding()}. Choose other subjects, or allow the overlap (--allow-overlap, allow_overlap=True)"


class StaleIncarnationError(StorageError):
    """The stream was deleted, or deleted and made again, since the caller looked."""

    code = "JSTREAM_STALE_INCARNATION"
    stream: str | None = None


class RequirementError(StorageError):
    """A precondition does not hold (sealed stream, denied delete)."""

    code = "JSTREAM_REQUIREMENT"


class ConditionFailedError(StorageError):
    """The stream is not what the append expected: nothing was stored."""

    code = "JSTREAM_CONDITION_FAILED"
    stream: str | None = None
    condition: str | None = None  # last_sequence, last_subject_sequence, last_msg_id, stream
    expected: int | str | None = None
    actual: int | str | None = None  # None: not kept (of a msg_id, a hash is)
    subject: str | None = None  # whose last sequence counts; may be a filter

    def __init__(
        self, stream: str, condition: str, expected: int | str, actual: int | str | None, subject: str | None = None
    ) -> None:
        super().__init__(stream, condition, expected, actual, subject)
        self.stream, self.condition, self.expected, self.actual = stream, condition, expected, actual
        self.subject = subject

    def sentence(self) -> str:
        if self.condition == "stream":
            text = f"the message expects stream {self.expected!r}"
        elif self.condition == "last_msg_id":
            text = f"the last message does not have the msg_id {self.expected!r} that was expected"
        else:
            of = "" if self.subject is None else f" of subject {self.subject!r}"
            text = f"the last sequence{of} is {self.actual}, and {self.expected} was expected"
        return f"stream {self.stream!r}: {text}. Nothing was stored"


class LimitExceededError(StorageError):
    """More than a limit of the stream or store allows: nothing was stored."""

    code = "JSTREAM_LIMIT_EXCEEDED"
    stream: str | None = None  # empty: the limit is the store's
    limit: str | None = None  # key of the configuration, or of the store's settings
    value: int | None = None  # of the limit
    present: int | None = None  # what the stream has of it
    given: int | None = None  # what came in addition
    subject: str | None = None  # whose limit it is

    def __init__(
        self, stream: str, limit: str, value: int, present: int, given: int, subject: str | None = None
    ) -> None:
        super().__init__(stream, limit, value, present, given, subject)
        self.stream, self.limit, self.value, self.present, self.given = stream, limit, value, present, given
        self.subject = subject

    def sentence(self) -> str:
        where = f"stream {self.stream!r}" if self.stream else "the whole store"
        has = "it has" if self.subject is None else f"subject {self.subject!r} has"
        came = f"{has} {self.present}, and {self.given} more came"
        return f"{where}: {self.limit} is {self.value}; {came}. Nothing was stored"


class InvalidMessageError(StorageError):
    """A message that the stream does not take (subject, size, type, column), or not what a reader declared."""

    code = "JSTREAM_INVALID_MESSAGE"
    stream: str | None = None
    sequence: int | None = None
    row: int | None = None  # of the batch, from 0 on


class OptionError(StorageError, ValueError):
    """An option or a column of a Spark job that jstream does not take. The text says what is valid."""

    code = "JSTREAM_OPTION"


class DataLossError(StorageError):
    """Messages that should be there are lost or damaged."""

    code = "JSTREAM_DATA_LOSS"
    stream: str | None = None
    first: int | None = None  # sequences [first, end)
    end: int | None = None
    file: str | None = None
    offset_bytes: int | None = None
    consumer: str | None = None


class UnavailableError(StorageError):
    """Messages cannot be read now, since a volume is away. They are not lost: try again when it is back."""

    code = "JSTREAM_UNAVAILABLE"
    stream: str | None = None
    first: int | None = None  # sequences [first, end)
    end: int | None = None
    file: str | None = None
    offset_bytes: int | None = None
    consumer: str | None = None


class StalePlanError(StorageError):
    """A read was planned so long ago that its blocks are gone: plan it again, as the error says for each place."""

    code = "JSTREAM_STALE_PLAN"
    stream: str | None = None
    first: int | None = None  # sequences [first, end)
    end: int | None = None


# --- the caller may not, or not now -----------------------------------------------------------------------------


class FencedError(StorageError):
    """A newer run of the same writer has taken over."""

    code = "JSTREAM_FENCED"
    stream: str | None = None
    consumer: str | None = None


class TransactionAbortedError(StorageError):
    """The transaction was aborted, or is too old; its blocks may be gone."""

    code = "JSTREAM_TRANSACTION_ABORTED"


class StoreBusyError(StorageError):
    """Another process (or, without --take-over, another host) holds the store."""

    code = "JSTREAM_STORE_BUSY"
    store: str | None = None
    stream: str | None = None
    consumer: str | None = None


class StoreClosedError(StorageError):
    """The Store object was closed, by `close` or at the end of its `with` block: open the store again."""

    code = "JSTREAM_STORE_CLOSED"
    store: str | None = None

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def sentence(self) -> str:
        return f"{self.store}: this Store was closed; open it again with Store.open"


class OtherHostError(StoreBusyError):
    """Another host writes the store. Waiting does not help, a take-over does."""

    code = "JSTREAM_OTHER_HOST"
    host: str | None = None  # that writes the store
    here: str | None = None  # this one

    def __init__(self, store: str, host: str, here: str) -> None:
        super().__init__(store, host, here)
        self.store, self.host, self.here = store, host, here  # also when it is unpickled

    def sentence(self) -> str:
        return (
            f"{self.store}: the store is written from host {self.host!r}, this is {self.here!r}. If nothing on that "
            "host writes it any more (it is down, or this is its successor), or if this is a copy, take it over: "
            "--take-over, or the option takeOver of the data source, which does it when a read, a write or a query "
            "begins, and not later. While that host still writes, do not: locks do not reach from host to host "
            '("Which host writes" in the guide\'s page on operations)'
        )


class LeaseLostError(StoreBusyError):
    """Another process does this work by now: this one was stopped for longer than its lease lasts, and has to end."""

    code = "JSTREAM_LEASE_LOST"


class SupersededError(StoreBusyError):
    """Another process has led since, and nothing was stored: start again."""

    code = "JSTREAM_SUPERSEDED"


class NoQuorumError(StorageError):
    """Too few volumes to decide anything."""

    code = "JSTREAM_NO_QUORUM"
    stream: str | None = None
    available: int | None = None  # volumes
    needed: int | None = None


class VolumeFailedError(StorageError):
    """A volume gave an I/O error, and is retired until it is verified."""

    code = "JSTREAM_VOLUME_FAILED"


class VolumeAwayError(VolumeFailedError):
    """A volume in an object store gives no answer now: neither damaged nor lost."""

    code = "JSTREAM_VOLUME_AWAY"


OBJECT_STORE = "object store"  # in place of a file system


class ServerError(StorageError):
    """A NATS server refused a request, or cannot do what was asked."""

    code = "JSTREAM_SERVER"
    server: str | None = None
    stream: str | None = None
    error_code: int | None = None  # of the JetStream API


class LoginError(ServerError):
    """A NATS server refused the login, or a permission."""

    code = "JSTREAM_LOGIN"


class ServerAwayError(ServerError):
    """No NATS server answers: neither lost nor refused. Try again when one does."""

    code = "JSTREAM_SERVER_AWAY"


class MirrorDivergedError(StorageError):
    """The source of a mirror was made again, went back, or has other messages: the mirror is left as it is."""

    code = "JSTREAM_MIRROR_DIVERGED"
    stream: str | None = None
    first: int | None = None  # sequences [first, end) that the mirror has and the source has not, or has others for
    end: int | None = None


class ProtocolError(ServerError):
    """What a server sent is not the NATS protocol, or is not a message that was asked for."""

    code = "JSTREAM_PROTOCOL"


class UnsuitableFileSystemError(StorageError):
    """The file system does not do what a store needs: use another one."""

    code = "JSTREAM_UNSUITABLE_FILE_SYSTEM"
    path: str | None = None
    file_system: str | None = None
    what: str | None = None  # was tried
    outcome: str | None = None

    def __init__(self, path: str, file_system: str, what: str, outcome: str) -> None:
        super().__init__(path, file_system, what, outcome)
        self.path, self.file_system, self.what, self.outcome = path, file_system, what, outcome

    def sentence(self) -> str:
        tried = f"Tried: {self.what}. Outcome: {self.outcome}."
        if self.file_system == OBJECT_STORE:
            return (
                f"{self.path}: no store can be in this object store. {tried} Take one in which of many conditional "
                "puts (If-None-Match) one succeeds"
            )
        return (
            f"{self.path}: no store can be on this file system ({self.file_system or 'of unknown kind'}). {tried} "
            "Take a local disk, or a mount that has file locks and fsync"
        )


class DiskFullError(StorageError):
    """No space or quota left: nothing was stored."""

    code = "JSTREAM_DISK_FULL"


class ProcessError(StorageError):
    """This process has run into a limit, or lacks a right. The store is fine, and unchanged."""

    code = "JSTREAM_PROCESS_LIMIT"
    file: str | None = None
    errno: int | None = None
    advice: str | None = None

    def __init__(self, file: str, errno: int, advice: str) -> None:
        super().__init__(file, errno, advice)
        self.file, self.errno, self.advice = file, errno, advice

    def sentence(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}{os.strerror(self.errno or 0)}: this process cannot continue: {self.advice}"


class ReadOnlyError(StorageError):
    """The store was opened for reading, or its medium cannot be written."""

    code = "JSTREAM_READ_ONLY"
    store: str | None = None


class OutcomeUnknownError(StorageError):
    """The commit may have happened. Send the same (writer, batch) again, never another one."""

    code = "JSTREAM_OUTCOME_UNKNOWN"
