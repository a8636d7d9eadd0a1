"""What JetStream says of streams and consumers, and which servers are asked: values, as plans carry them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from storage_core import quantities
from storage_core.errors import NotFoundError, ServerAwayError, ServerError, StreamNotFoundError
from storage_core.live.connection import NO_RESPONDERS, SILENCE_S, Connection
from storage_core.live.login import Address, Login

WORK_QUEUE, INTEREST = "workqueue", "interest"
RETRY_S = 30.0  # how long a server that went away, or a leader that is being elected, is waited for
_PAUSE_S, _PAUSE_MAX_S = 0.1, 1.0  # before the next attempt; each is twice as long as the one before
_DELETED_COUNT_MAX = 1_000_000  # that a server is asked to list
_TRANSIENT = (NO_RESPONDERS, 10008, 10009)  # no leader that answers; temporarily unavailable; no leader of the cluster
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one system, and how to log in."""

    addresses: tuple[Address, ...]
    login: Login = field(default_factory=Login)
    silence_s: float = SILENCE_S
    retry_s: float = RETRY_S

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))

    def connect(self) -> Connection:
        return Connection(self.addresses, self.login, self.silence_s)

    def check(self) -> None:
        """Raise at once if no server answers, or the login is refused: before work that would wait for one."""
        self.connect().close()

    def retrying(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns on a connection of its own; it is done again while no server or leader answers.

        Raises ServerAwayError when that took `retry_s`.
        """
        retries = Retries(self)
        while True:
            try:
                with retries.connect() as connection:
                    return work(connection)
            except ServerError as error:
                retries.failed(error)


class Retries:
    """Attempts at something that needs a connection: after a fault of the moment and a pause comes the next one.

    What goes on for `retry_s` without progress is raised, and so is every other error, at once.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._others: tuple[Address, ...] = ()
        self._since_s: float | None = None
        self._pause_s = _PAUSE_S

    def connect(self) -> Connection:
        addresses = tuple(dict.fromkeys((*self._servers.addresses, *self._others)))
        connection = Connection(addresses, self._servers.login, self._servers.silence_s)
        self._others = tuple(connection.others())
        return connection

    def progressed(self) -> None:
        self._since_s, self._pause_s = None, _PAUSE_S

    def failed(self, error: ServerError) -> None:
        """Wait before the next attempt; raises the error if there is to be none."""
        if not isinstance(error, ServerAwayError) and error.error_code not in _TRANSIENT:
            raise error
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s + self._pause_s > self._since_s + self._servers.retry_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as its leader describes it."""

    name: str
    created: str
    first_sequence: int  # next_sequence if there is no message
    next_sequence: int
    message_count: int
    byte_count: int
    deleted: tuple[int, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def created_ns(self) -> int:
        return quantities.parse_time_ns(self.created, "created")

    @property
    def is_for_consumers(self) -> bool:
        """Return whether a consumer of ours would take messages away, or keep them: they are read by direct get."""
        return self.config.get("retention") in (WORK_QUEUE, INTEREST)


def stream_info(connection: Connection, stream: str, with_deleted: bool = False) -> StreamInfo:
    """Raises StreamNotFoundError; `with_deleted`: sequences that were removed between the others, if not too many."""
    answer = connection.request("STREAM.INFO", stream)
    state = answer["state"]
    if with_deleted and 0 < state.get("num_deleted", 0) <= _DELETED_COUNT_MAX:
        answer = connection.request("STREAM.INFO", stream, body={"deleted_details": True})
        state = answer["state"]
    last = int(state["last_seq"])
    first = int(state["first_seq"]) if state["messages"] else last + 1
    deleted = tuple(state.get("deleted") or ())
    counts = int(state["messages"]), int(state["bytes"])
    return StreamInfo(
        stream, str(answer["created"]), first, last + 1, *counts, deleted, answer["config"], state, answer
    )


def message_time(connection: Connection, stream: str, sequence: int) -> int | None:
    """Return the time of a message, None if there is no such message."""
    message = _message(connection, stream, {"seq": sequence})
    return None if message is None else message[1]


def next_message(connection: Connection, stream: str, sequence: int) -> tuple[int, int] | None:
    """Return sequence and time of the first message from `sequence` on, None if there is none."""
    return _message(connection, stream, {"seq": sequence, "next_by_subj": ">"})


def _message(connection: Connection, stream: str, wanted: dict[str, Any]) -> tuple[int, int] | None:
    try:
        message = connection.request("STREAM.MSG.GET", stream, body=wanted)["message"]
    except StreamNotFoundError:
        raise
    except NotFoundError:
        return None
    return int(message["seq"]), quantities.parse_time_ns(message["time"], "time")


def consumers(connection: Connection, stream: str) -> list[dict[str, Any]]:
    return list(connection.pages("CONSUMER.LIST", stream, key="consumers"))


def same_time(text: str, other: str) -> bool:
    """Return whether two texts of RFC 3339 are the same moment, to the nanosecond."""
    try:
        return quantities.parse_time_ns(text, "time") == quantities.parse_time_ns(other, "time")
    except ValueError:
        return False
