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

    def raise_(self) -> NoReturn:
        raise self.error(self.reason)


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
    """Leaves a handler early; never leaves this module."""


def refuse(error: type[errors.StorageError], reason: str) -> NoReturn:
    raise Refusal(error, reason)
