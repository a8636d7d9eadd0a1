"""What the state machine's handlers take and give: where an entry stands, what a command came to, refusals."""

from dataclasses import dataclass
from typing import NoReturn

from storage_core import errors
from storage_core.metadata.state import BatchResult


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands in the log."""

    index: int
    history: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was not carried out. `error` is a class of storage_core.errors."""

    error: type[errors.StorageError]
    reason: str
    arguments: tuple[object, ...] = ()  # what the error is made of; empty: its reason

    @classmethod
    def of(cls, error: errors.StorageError) -> "Refused":
        return cls(type(error), error.sentence(), error.args)

    def raise_(self) -> NoReturn:
        raise self.error(*self.arguments or (self.reason,))


@dataclass(frozen=True, slots=True)
class Done:
    """The command was carried out and has nothing more to say."""


@dataclass(frozen=True, slots=True)
class AppendDone:
    """Result of an append, by stream name."""

    appended: dict[str, BatchResult]
    already: bool  # this (writer, batch) was stored before; nothing has changed


@dataclass(frozen=True, slots=True)
class RemoveDone:
    message_count: int  # messages that were shown before and are not now


@dataclass(frozen=True, slots=True)
class ConsumerDone:
    message_count: int  # messages that were handed out, or were waiting and that the acknowledgement was about


Outcome = Done | AppendDone | RemoveDone | ConsumerDone
Result = Refused | Outcome


class Refusal(Exception):
    """Leaves a handler early with what Refused takes; never leaves the state machine."""


def refuse(error: type[errors.StorageError], reason: str) -> NoReturn:
    raise Refusal(error, reason)


def refuse_with(error: errors.StorageError) -> NoReturn:
    """Refuse with an error that makes its text of fields."""
    raise Refusal(type(error), error.sentence(), error.args)
