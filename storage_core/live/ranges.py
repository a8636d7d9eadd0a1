"""A range of a stream's sequences, read from running servers; what is read survives reconnects and changes of leaders.

How a stream can be read without harm depends on its retention:
- limits: an ephemeral pull consumer without acknowledgements, which is deleted at the end of the range;
- work queue and interest: a consumer would take messages away, or keep them, so that they are read by direct gets in
  batches; larger ones would hold up publishers. Where direct gets are not allowed, or the server is older than 2.11,
  message by message from the leader.
"""

import base64
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from storage_core import buffers, quantities
from storage_core.errors import (
    DataLossError,
    NotFoundError,
    ServerAwayError,
    ServerError,
    StaleIncarnationError,
    holding,
)
from storage_core.foreign.arrays import to_strings
from storage_core.foreign.nats.headers import parse_headers
from storage_core.live.columns import Deliveries, Messages, Status, direct_messages
from storage_core.live.connection import Connection
from storage_core.live.server import Retries, Servers, StreamInfo, stream_info
from storage_core.subject_columns import match_mask

log = logging.getLogger("jstream")

PULL_COUNT, PULL_SIZE = 50_000, 16 << 20  # messages and, about, bytes of one pull; two are under way
DIRECT_COUNT = 1_000  # messages of one direct get: the stream takes no writes while it is served
SINGLE_COUNT = 250  # messages that are asked for at once, each by a request of its own
EXPIRES_S, HEARTBEAT_S = 30, 2
_DIRECT_BATCHES_SINCE = (2, 11)
_TOO_MANY_CONSUMERS = 10026
_MESSAGES_END, _NO_MESSAGES, _PULL_ENDED, _CONFLICT, _HEARTBEAT = 204, 404, 408, 409, 100
_LOOKED_AT_MAX = 10_000_000  # sequences between two messages that are looked for one by one

OnLoss = Callable[[DataLossError], None]  # raises it, or lets the read go on


@dataclass(frozen=True, slots=True)
class Range:
    """The sequences `[first, end)` of one incarnation of a stream, as they were planned."""

    stream: str
    created: str
    first: int
    end: int
    subjects: tuple[str, ...] = ()  # filters; none: all
    deleted: tuple[tuple[int, int], ...] = ()  # sequences without messages when it was planned, as `[first, end)`
    with_payload: bool = True  # or nothing but places, times and subjects is wanted

    def __len__(self) -> int:
        return self.end - self.first


def read_range(servers: Servers, part: Range, on_loss: OnLoss) -> Iterator[Messages]:
    """Yield the messages of a range in order, as they come.

    `on_loss` is called with the sequences that retention or a purge took before they were read.
    Raises StaleIncarnationError if the stream was made again since the range was planned, ServerAwayError if no server
    answers for `servers.retry_s`.
    """
    position, retries, gaps = part.first, Retries(servers), _Gaps(part)
    while position < part.end:
        try:
            with retries.connect() as connection:
                info = stream_info(connection, part.stream)
                _check_created(info, part)
                for messages in _attempt(connection, info, part, position):
                    if len(messages):
                        gaps.add(messages.sequences)
                        position = int(messages.sequences[-1]) + 1
                        retries.progressed()
                        yield _matching(messages, part.subjects)
                position = part.end
                if gaps.finish() and not info.is_for_consumers:
                    info = stream_info(connection, part.stream)
                    _check_created(info, part)
                    gaps.settle(info, on_loss)
        except ServerError as error:
            retries.failed(error)
            log.warning("stream %s: reading resumes at sequence %d after: %s", part.stream, position, error)


def _check_created(info: StreamInfo, part: Range) -> None:
    if info.created != part.created:
        raise StaleIncarnationError(
            f"stream {part.stream!r} was made again at {info.created} since the read was planned, when it was that of "
            f"{part.created}: read again",
            stream=part.stream,
        )


def _matching(messages: Messages, subjects: tuple[str, ...]) -> Messages:
    if not subjects or not len(messages):
        return messages
    return messages.where(buffers.mask(match_mask(subjects, to_strings(messages.subjects))))


class _Gaps:
    """Sequences of a range that no message came for. With a filter, only those before the first message are looked at:
    which of the others had a subject that was asked for, nobody can say.
    """

    def __init__(self, part: Range) -> None:
        self._part, self._position = part, part.first
        self._runs: list[np.ndarray] = []

    def add(self, sequences: np.ndarray) -> None:
        if not self._part.subjects:
            before = np.concatenate(([self._position - 1], sequences[:-1]))
            gaps = sequences - before > 1
            self._runs.append(np.column_stack((before[gaps] + 1, sequences[gaps])))
        self._position = int(sequences[-1]) + 1

    def finish(self) -> bool:
        """Return whether anything is missing that was there when the range was planned."""
        if not self._part.subjects and self._position < self._part.end:
            self._runs.append(np.array([[self._position, self._part.end]]))
        return bool(self._part.subjects) or any(len(run) for run in self._runs)

    def settle(self, info: StreamInfo, on_loss: OnLoss) -> None:
        """Report what is missing below the stream's first message now, and was there: deletes in between are none."""
        part = self._part
        end = min(info.first_sequence, part.end)
        if part.subjects:
            if end > part.first and self._position <= part.first:
                on_loss(loss(part.stream, part.first, end, info))
            return
        planned = np.array(part.deleted, np.int64).reshape(-1, 2)
        for first, run_end in np.concatenate(self._runs).tolist():
            last = min(run_end, end)
            inside = np.minimum(planned[:, 1], last) - np.maximum(planned[:, 0], first)
            if last - first > int(inside.clip(0).sum()):
                on_loss(loss(part.stream, first, last, info))


def loss(stream: str, first: int, end: int, info: StreamInfo) -> DataLossError:
    """Return the error for sequences that went before they were read."""
    holds = f"it {holding(info.first_sequence, info.next_sequence)}"
    return DataLossError(
        f"stream {stream!r}: sequences {first} to {end - 1} were removed (by the stream's limits or a purge) before "
        f"they were read; {holds}",
        stream=stream,
        first=first,
        end=end,
    )


def _attempt(connection: Connection, info: StreamInfo, part: Range, position: int) -> Iterator[Messages]:
    if info.first_sequence >= part.end:
        return
    position = max(position, info.first_sequence)
    ways = [] if info.is_for_consumers else [_by_consumer]
    if info.config.get("allow_direct") and connection.version >= _DIRECT_BATCHES_SINCE:
        ways.append(_by_direct_get)
    for way in (*ways, _one_by_one):
        try:
            for messages in way(connection, info, part, position):
                position = int(messages.sequences[-1]) + 1 if len(messages) else position
                yield messages
            return
        except ServerError as error:
            if error.error_code != _TOO_MANY_CONSUMERS and not isinstance(error, _CutShortError):
                raise
            log.warning("stream %s is read in another way, which is slower: %s", part.stream, error)


class _CutShortError(ServerError):
    """Messages that the servers sent do not come: what lies between lets a request have fewer answers.

    An account that exports the API of JetStream lets one answer through (response_type: singleton, the default), or all
    up to the first that is empty (stream). A request that has one answer, which is never empty, passes either.
    """


# --- limits: a pull consumer


def _by_consumer(connection: Connection, info: StreamInfo, part: Range, position: int) -> Iterator[Messages]:
    name = f"jstream_{secrets.token_hex(8)}"
    limits = info.config.get("consumer_limits") or {}
    config = {
        "name": name,
        "description": "a read of jstream; it goes by itself",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": position,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": min(limits.get("inactive_threshold") or 30_000_000_000, 30_000_000_000),
        "headers_only": not part.with_payload,
    }
    if len(part.subjects) == 1:
        config["filter_subject"] = part.subjects[0]
    made = connection.request(
        "CONSUMER.CREATE", part.stream, name, body={"stream_name": part.stream, "config": config, "action": "create"}
    )
    reply = f"{connection.inbox}.pull"
    pulls = _Pulls(connection, f"{connection.api}.CONSUMER.MSG.NEXT.{part.stream}.{name}", reply, info)
    deliveries = Deliveries(reply, connection.inbox_sid, part.stream, name)
    waiting = int(made.get("num_pending", 0))
    try:
        while waiting and position < part.end:
            pulls.ask(part.end - position)
            received = connection.receive(2 * HEARTBEAT_S + 1)
            if received is None:
                sent = int(connection.request("CONSUMER.INFO", part.stream, name)["delivered"]["stream_seq"])
                if sent >= position:
                    raise _CutShortError(f"a consumer sent messages up to {sent}, and {position} does not come")
                raise ServerAwayError(f"consumer {name} of stream {part.stream} is silent", stream=part.stream)
            messages, statuses = deliveries.take(*received)
            del received  # a long message is in memory as few times as can be
            if len(messages):
                pulls.came(len(messages))
                position, waiting = int(messages.sequences[-1]) + 1, messages.pending
                yield messages.slice(0, part.end)
            del messages
            for status in statuses:
                pulls.heard(status, part.stream)
    finally:
        _delete_consumer(connection, part.stream, name)


class _Pulls:
    """The requests for messages that are under way: two, so that the server never waits for one."""

    def __init__(self, connection: Connection, subject: str, reply: str, info: StreamInfo) -> None:
        self._connection, self._subject, self._reply = connection, subject, reply
        size = max(1, info.byte_count // max(1, info.message_count))
        self._count = max(1, min(PULL_COUNT, PULL_SIZE // size))
        self._awaited = 0

    def ask(self, left: int) -> None:
        """Ask for more, if need be, of the `left` messages that are wanted at most."""
        while self._awaited <= self._count and self._awaited < left:
            count = min(self._count, left - self._awaited)
            times = {"expires": EXPIRES_S * 10**9, "idle_heartbeat": HEARTBEAT_S * 10**9}
            self._connection.publish(self._subject, json.dumps({"batch": count, **times}).encode(), self._reply)
            self._awaited += count

    def came(self, count: int) -> None:
        self._awaited -= count

    def heard(self, status: Status, stream: str) -> None:
        """Go by a status; raises ServerAwayError for one after which the consumer is gone."""
        if status.code == _HEARTBEAT:
            return
        if status.code in (_NO_MESSAGES, _PULL_ENDED):
            self._awaited -= int(status.headers.get("Nats-Pending-Messages", self._awaited))
            return
        raise ServerAwayError(f"stream {stream}: a consumer ended: {status.code} {status.text}", stream=stream)


def _delete_consumer(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer that nobody needs; one that stays goes by itself half a minute later."""
    with suppress(ServerError, NotFoundError):
        connection.request("CONSUMER.DELETE", stream, name, timeout_s=HEARTBEAT_S)


# --- work queues and interest: direct gets


def _by_direct_get(connection: Connection, info: StreamInfo, part: Range, position: int) -> Iterator[Messages]:
    subject = f"{connection.api}.DIRECT.GET.{part.stream}"
    filters = {"next_by_subj": part.subjects[0]} if len(part.subjects) == 1 else {}
    end = min(part.end, info.next_sequence)
    known = info
    while position < end:
        count = min(DIRECT_COUNT, end - position)
        reply = f"{connection.inbox}.direct{position}"
        connection.publish(subject, json.dumps({"seq": position, "batch": count, **filters}).encode(), reply)
        batches, status = _until_end(connection, reply, part, count)
        sequences = np.concatenate([messages.sequences for messages in batches] or [np.empty(0, np.int64)])
        until = int(sequences[-1]) + 1 if len(sequences) and status.code != _NO_MESSAGES else end
        if not filters:
            known = _check_replica(connection, known, position, min(until, end), sequences)
        for messages in batches:
            yield messages.slice(0, part.end)
        position = until


def _until_end(connection: Connection, reply: str, part: Range, count: int) -> tuple[list[Messages], Status]:
    """Return the messages that answer a direct get of so many, and the status behind them."""
    batches: list[Messages] = []
    while True:
        received = connection.receive(connection.silence_s)
        if received is None:
            if sum(map(len, batches)) == 1 < count:
                raise _CutShortError(f"a direct get of {count} messages was answered with one")
            raise ServerAwayError(f"stream {part.stream}: a direct get was not answered to its end", stream=part.stream)
        block, frames = received
        last = len(frames) - 1
        (answer,) = list(connection.replies(block, frames.rows(np.array([last]))))
        subject, status, _ = answer
        if subject != reply:
            raise ServerAwayError(f"stream {part.stream}: an answer on {subject} instead of {reply}")
        rows = np.arange(last + 1 if status.code == 0 else last)
        if len(rows):
            batches.append(direct_messages(block, frames.rows(rows), part.stream))
        if status.code in (_MESSAGES_END, _NO_MESSAGES):
            return batches, status
        if status.code:
            raise ServerAwayError(f"stream {part.stream}: a direct get ended: {status.code} {status.text}")


def _check_replica(
    connection: Connection, known: StreamInfo, first: int, end: int, sequences: np.ndarray
) -> StreamInfo:
    """Raise ServerAwayError if the replica that answered lacks messages that the leader has: it lags behind."""
    if end - first == len(sequences) or end - first > _LOOKED_AT_MAX:
        return known
    missing = np.setdiff1d(np.arange(first, end), sequences, assume_unique=True)
    for attempt in range(2):
        left = missing[missing >= known.first_sequence]
        left = np.setdiff1d(left, np.array(known.deleted, np.int64), assume_unique=True)
        if not len(left):
            return known
        if not attempt:
            known = stream_info(connection, known.name, with_deleted=True)
    raise ServerAwayError(
        f"stream {known.name!r}: a replica that lags behind answered without sequence {left[0]}", stream=known.name
    )


def _one_by_one(connection: Connection, info: StreamInfo, part: Range, position: int) -> Iterator[Messages]:
    """Read from the leader by requests for single messages."""
    end = min(part.end, info.next_sequence)
    subject = f"{connection.api}.STREAM.MSG.GET.{part.stream}"
    while position < end:
        wanted = range(position, min(position + SINGLE_COUNT, end))
        for sequence in wanted:
            connection.publish(subject, b'{"seq":%d}' % sequence, f"{connection.inbox}.{sequence}")
        answers: dict[int, dict[str, object]] = {}
        end_s = time.monotonic() + connection.silence_s
        while len(answers) < len(wanted) and (left_s := end_s - time.monotonic()) > 0:
            received = connection.receive(left_s)
            for answered, status, payload in connection.replies(*received) if received else ():
                if status.code:
                    raise ServerAwayError(f"stream {part.stream}: {status.code} {status.text}", stream=part.stream)
                answers[int(answered.rpartition(".")[2])] = json.loads(payload)
        if len(answers) < len(wanted):
            raise ServerAwayError(f"stream {part.stream}: single messages were not answered", stream=part.stream)
        messages = [answers[sequence]["message"] for sequence in wanted if "message" in answers[sequence]]
        if messages:
            yield _from_json(messages)
        position = wanted.stop


def _from_json(messages: list) -> Messages:  # type: ignore[type-arg]
    raw = [base64.b64decode(message.get("hdrs") or "") for message in messages]
    present = np.array([len(headers) > 0 for headers in raw])
    return Messages(
        np.array([int(message["seq"]) for message in messages], np.int64),
        np.array([quantities.parse_time_ns(message["time"], "time") for message in messages], np.int64),
        buffers.of_bytes([message["subject"].encode() for message in messages]),
        parse_headers(buffers.of_bytes([headers for headers in raw if headers]), present),
        buffers.of_bytes([base64.b64decode(message.get("data") or "") for message in messages]),
        0,
    )
