"""A stream that mirrors one of running NATS servers: the same sequences, times, headers and holes.

The position of a mirror is the stream itself: what comes next is the sequence behind its last message, and its last
messages are the anchors by which `live.offsets` tells whether the source still is what was mirrored. So nothing can be
lost beside it or disagree with it. Each append says which sequences its messages have, and the stream takes those that
it has not given alone: of two mirrors of one stream, one is refused.

A mirror may begin with a copy of the server's files, also of a server that runs: they are imported, and what they lack
at their end is read from the server.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.errors import (
    DataLossError,
    FencedError,
    InvalidMessageError,
    MirrorDivergedError,
    RequirementError,
    StorageError,
)
from storage_core.foreign import ForeignStore
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.nats.holes import removes_silently
from storage_core.live import offsets, server
from storage_core.live.columns import Messages
from storage_core.live.connection import Connection
from storage_core.live.login import Login, parse_address
from storage_core.live.offsets import Anchor, Finding, Position
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import Servers, StreamInfo, message_time, stream_info
from storage_core.metadata.appends import MIRROR, MIRROR_WRITER
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.reconcile import CONTINUE, FAIL
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.ingest.server_config import consumer_config, default_name
from storage_core.store.store import Store
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch

log = logging.getLogger("jstream")

CREATED, ADDRESSES = f"{MIRROR}.created", f"{MIRROR}.servers"  # in the metadata of the stream, beside MIRROR
APPEND_SIZE, APPEND_COUNT = 64 << 20, 1_000_000  # bytes and messages of one append
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
_KEPT = "mirror_kept"
_ANCHOR_DISTANCES = (1, 2, 10, 100, 1_000, 10_000, 100_000, 1_000_000)  # from the end


@dataclass(frozen=True, slots=True)
class MirrorRequest:
    """What is mirrored, and how."""

    source: str  # name of the stream on the servers
    name: str | None = None  # here; None: the same, or what stands for it
    num_replicas: int | None = None  # None: as many as there are volumes
    on_data_loss: str = FAIL  # when the source has removed messages before they were mirrored


@dataclass
class MirrorReport:
    """What one pass did."""

    stream: str
    source: str
    first: int = 0  # sequences [first, end) that this pass has looked at
    end: int = 0
    messages: int = 0  # that it stored
    imported: int = 0  # messages that came from files
    lag: int = 0  # sequences that the source has beyond
    kept: int = 0  # messages here that the source has no more
    consumers: list[str] = field(default_factory=list)  # that were made or moved
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "source": self.source,
            "first": self.first,
            "end": self.end,
            "messages": self.messages,
            "imported": self.imported,
            "lag": self.lag,
            "kept": self.kept,
            "consumers": self.consumers,
            "gaps": [list(gap) for gap in self.gaps],
        }


class Mirror:
    """One stream of running servers, and its mirror in a store. For one thread."""

    def __init__(
        self, store: Store, servers: Servers, request: MirrorRequest, files: ForeignStore | None = None
    ) -> None:
        """`files`: a copy of the server's files, which the mirror begins with if the stream is not there yet."""
        self._store, self._servers, self._request, self._files = store, servers, request, files
        self.name = request.name or default_name(request.source)

    def step(self) -> MirrorReport:
        """Bring over what the source has now.

        Raises MirrorDivergedError if the source is no longer what was mirrored, DataLossError for messages that it has
        removed before they were mirrored (unless they are skipped), FencedError if another mirror writes the stream,
        RequirementError if a stream of the name is no mirror of this one, ServerError as servers answer.
        """
        return self._servers.retrying(self._step)

    def _step(self, connection: Connection) -> MirrorReport:
        info = stream_info(connection, self._request.source, with_deleted=True)
        report = MirrorReport(self.name, self._request.source)
        stream = self._begun(connection, info, report)
        position = position_of(stream)
        time_of = partial(message_time, connection, info.name)
        finding = offsets.compare(position, info, time_of) if stream.last_sequence else None
        if finding is not None and finding.kind != offsets.GONE:
            self._diverged(finding)
        report.first = position.sequence
        if finding is not None:
            self._gap(DataLossError(finding.reason, first=finding.first, end=finding.end), report)
        self._copy(stream, info, max(position.sequence, info.first_sequence), report)
        report.end = stream.last_sequence + 1
        self._count_kept(stream, info, report)
        self._copy_consumers(connection, stream, report)
        report.lag = max(0, stream_info(connection, info.name).next_sequence - info.next_sequence)
        return report

    # --- how it begins

    def _begun(self, connection: Connection, info: StreamInfo, report: MirrorReport) -> Stream:
        """Return the mirror, made if it is not there."""
        if self.name not in self._store.streams():
            if self._files is None:
                config = {
                    "name": self.name,
                    "subjects": list(info.config.get("subjects") or [">"]),
                    "metadata": self._labels(info),
                    **({} if self._request.num_replicas is None else {"num_replicas": self._request.num_replicas}),
                }
                stream = self._store.add_stream(config, allow_overlap=True)
                self._tell("mirror_begun", f"of stream {info.name!r} of {self._servers}, made at {info.created}")
                return stream
            report.imported = self._import(self._files)
        stream = self._store.stream(self.name)
        metadata = stream.config.metadata
        if metadata.get(MIRROR) is None and self._files is not None:
            self._adopt(connection, info, stream, self._files)
        elif metadata.get(MIRROR) != info.name:
            other = f"it mirrors {metadata[MIRROR]!r}" if MIRROR in metadata else "it is no mirror"
            raise RequirementError(
                f"stream {self.name!r} is there and cannot mirror {info.name!r}: {other}. Give the mirror another name "
                "(--as), or delete the stream first"
            )
        return self._store.stream(self.name)

    def _labels(self, info: StreamInfo) -> dict[str, str]:
        return {MIRROR: info.name, CREATED: info.created, ADDRESSES: str(self._servers)}

    def _import(self, files: ForeignStore) -> int:
        wanted = self._request
        request = ImportRequest((wanted.source,), {wanted.source: self.name}, wanted.num_replicas, CONTINUE)
        imported = import_streams(self._store, files, request)
        return sum(int(stream["messages"]) for stream in imported["streams"])

    def _adopt(self, connection: Connection, info: StreamInfo, stream: Stream, files: ForeignStore) -> None:
        """Make a mirror of a stream that was imported; what the server does not have as it is there is refused."""
        created = {str(copy.config.get("created") or copy.config.get("Created")) for copy in files.copies(info.name)}
        state = stream.state()
        position = position_of(stream, info.created)
        finding = offsets.compare(position, info, partial(message_time, connection, info.name))
        if not any(server.same_time(text, info.created) for text in created):
            reason = (
                f"the files are of a stream made at {', '.join(sorted(created))}, the server's was made {info.created}"
            )
        elif finding is not None and finding.kind != offsets.GONE:
            reason = finding.reason
        else:
            reason = _tail_that_lacks(connection, info, state)
        if reason:
            raise MirrorDivergedError(
                f"stream {self.name!r}, imported from files, cannot continue as a mirror of {info.name!r}: {reason}. "
                "Delete it, and begin with files that are newer, or without files",
                stream=self.name,
            )
        unlimited = {"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
        labels = {**stream.config.metadata, **self._labels(info)}
        stream.edit({"metadata": labels, **unlimited})
        self._tell("mirror_begun", f"of stream {info.name!r} of {self._servers}, made at {info.created}, from files")

    # --- what comes over

    def _copy(self, stream: Stream, info: StreamInfo, first: int, report: MirrorReport) -> None:
        if first >= info.next_sequence:
            return
        deleted = SequenceSet.from_sequences(np.array(info.deleted, np.int64)).clip(first, info.next_sequence)
        part = Range(info.name, info.created, first, info.next_sequence, deleted=tuple(deleted.ranges()))
        for messages in _gathered(read_range(self._servers, part, partial(self._gap, report=report))):
            report.messages += sum(map(len, messages))
            self._append(stream, [each.batch(info.name, COLUMNS) for each in messages])

    def _append(self, stream: Stream, batches: list[pa.RecordBatch]) -> None:
        first, last = batches[0].column("sequence")[0].as_py(), batches[-1].column("sequence")[-1].as_py()
        writer = WriterBatch(MIRROR_WRITER, f"{first}-{last}")
        try:
            stream.restore(batches, writer)
        except InvalidMessageError:
            if ">" in stream.config.subjects:
                raise
            # The stream has had other subjects once: a mirror takes what the source has.
            stream.edit(subjects=[">"])
            stream.restore(batches, writer)
        except RequirementError as error:
            last = stream.state().next_sequence - 1
            if last < first:
                raise
            raise FencedError(
                f"stream {self.name!r} has got messages up to {last} since this mirror read it: "
                "another process writes the stream. Let only one process write it",
                stream=self.name,
            ) from error

    def _gap(self, error: DataLossError, report: MirrorReport) -> None:
        """Report messages that went before they were mirrored; raises the error unless they are skipped."""
        assert error.first is not None
        assert error.end is not None
        if self._request.on_data_loss == FAIL:
            raise DataLossError(
                f"stream {self.name!r}: {error}. To continue without them: --on-data-loss continue",
                **{**error.fields, "stream": self.name},
            )
        report.gaps.append((error.first, error.end))
        self._tell("mirror_gap", str(error), before=str(error.first), after=str(error.end))

    def _diverged(self, finding: Finding) -> None:
        self._tell("mirror_diverged", finding.reason, before=finding.kind)
        raise MirrorDivergedError(
            f"{finding.reason}. The mirror {self.name!r} stays as it is; mirror what the source has now under another "
            "name: --as",
            stream=self.name,
            first=finding.first,
            end=finding.end,
        )

    def _tell(self, kind: str, reason: str, before: str = "", after: str = "") -> None:
        with self._store.session() as session:
            event = Event(kind, self.name, before=before, after=after, reason=reason)
            session.propose(RecordEvents((event,)))

    def _count_kept(self, stream: Stream, info: StreamInfo, report: MirrorReport) -> None:
        """Count what is here and no more at the source; where it went by a hand, not by a limit, an event says so."""
        removed = SequenceSet.from_sequences(np.array(info.deleted, np.int64))
        if info.first_sequence > 1:
            removed = removed.union(SequenceSet.from_ranges([(1, info.first_sequence)]))
        state = stream.state()
        report.kept = len(state.shown().intersection(removed)) if removed else 0
        has_limit = any(info.config.get(key, 0) > 0 for key in ("max_msgs", "max_bytes"))
        if not report.kept or removes_silently(info.config, has_limit):
            return
        events = (
            event for event in self._store.view().state.events if (event.kind, event.stream) == (_KEPT, self.name)
        )
        before = max((int(event.after) for event in events), default=0)
        if report.kept > before:
            reason = f"of stream {info.name!r}, which has {report.kept} messages of the mirror no more; they stay here"
            self._tell(_KEPT, reason, before=str(before), after=str(report.kept))

    # --- consumers

    def _copy_consumers(self, connection: Connection, stream: Stream, report: MirrorReport) -> None:
        """Make the source's durable consumers, and move those that have gone on there; none is moved back."""
        present = set(stream.consumers())
        end = stream.last_sequence + 1
        for consumer in server.consumers(connection, self._request.source):
            if not consumer["config"].get("durable_name"):
                continue
            floor = min(int(consumer["ack_floor"]["stream_seq"]), end - 1)
            if consumer["config"].get("ack_policy") == "none":
                floor = min(int(consumer["delivered"]["stream_seq"]), end - 1)
            name = default_name(str(consumer["name"]))
            if name not in present:
                config, _ = consumer_config(name, _foreign(consumer))
                start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, floor + 1)}
                settings = {key: value for key, value in config.to_json().items() if key != "opt_start_time"}
                stream.add_consumer({**settings, **start})
            elif floor > int(stream.consumer(name).info()["ack_floor"]["stream_seq"]):
                stream.consumer(name).reset(floor + 1)
            else:
                continue
            report.consumers.append(name)


def _foreign(consumer: dict[str, Any]) -> ForeignConsumer:
    return ForeignConsumer(
        layout="nats", account="", stream=str(consumer["stream_name"]), name=str(consumer["name"]), is_durable=True,
        delivered=int(consumer["delivered"]["stream_seq"]), ack_floor=int(consumer["ack_floor"]["stream_seq"]),
        file="", config=consumer["config"],
    )  # fmt: skip


def _gathered(batches: Iterator[Messages]) -> Iterator[list[Messages]]:
    """Yield what one append stores."""
    gathered: list[Messages] = []
    size = count = 0
    for messages in batches:
        if not len(messages):
            continue
        gathered.append(messages)
        size, count = size + messages.data.nbytes, count + len(messages)
        if size >= APPEND_SIZE or count >= APPEND_COUNT:
            yield gathered
            gathered, size, count = [], 0, 0
    if gathered:
        yield gathered


def position_of(stream: Stream, created: str | None = None) -> Position:
    """Return how far a mirror has come: its last messages are the anchors."""
    state = stream.state()
    created = created or state.config.metadata.get(CREATED, "")
    shown = state.shown()
    anchors: list[Anchor] = []
    for distance in _ANCHOR_DISTANCES if len(shown) else ():
        before = shown.clip(1, max(2, state.next_sequence - distance + 1))
        if not len(before):
            break
        sequence = int(before.ends[-1]) - 1
        if not anchors or sequence < anchors[-1][0]:
            times = stream.read(sequence, sequence + 1, ["timestamp_ns"], on_data_loss="continue").read_all()
            anchors += [(sequence, time.as_py()) for time in times.column("timestamp_ns")]
    return Position(created, state.next_sequence, tuple(anchors[: offsets.ANCHORS_KEPT]))


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """How far a mirror is behind its source, as far as that can be known."""

    sequences: int | None  # that the source has beyond the mirror
    problem: str = ""  # why it is not known


def lag_of(stream: StreamState, login: Login, silence_s: float) -> MirrorLag:
    """Ask the servers that a mirror names; what goes wrong is in the outcome, and nothing is tried again."""
    metadata = stream.config.metadata
    try:
        addresses = tuple(parse_address(text, ADDRESSES) for text in metadata[ADDRESSES].split(","))
        with Servers(addresses, login, silence_s).connect() as connection:
            info = stream_info(connection, metadata[MIRROR])
    except (StorageError, ValueError, KeyError) as error:
        return MirrorLag(None, str(error))
    if not server.same_time(info.created, metadata.get(CREATED, "")):
        return MirrorLag(None, f"stream {info.name!r} was made again at {info.created}")
    return MirrorLag(max(0, info.next_sequence - max(stream.next_sequence, info.first_sequence)))


def _tail_that_lacks(connection: Connection, info: StreamInfo, state: StreamState) -> str:
    """Return what is wrong with the end of files: messages that the server has, and that cannot come any more."""
    shown = state.shown()
    first = int(shown.ends[-1]) if len(shown) else state.first_sequence
    message = server.next_message(connection, info.name, first) if first < state.next_sequence else None
    if message is None or message[0] >= state.next_sequence:
        return ""
    return (
        f"the files lack message {message[0]}, which the server has, and name {state.next_sequence - 1} as the last one"
    )
