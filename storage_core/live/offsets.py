"""How far a reader has come in a stream of running servers, and what it does when the stream is no longer as it was.

Servers give streams a time of creation and sequences, and both stay the same when a server comes back with an older
copy of its files and grows over the end that it lost. So a position carries anchors as well: the times, to the
nanosecond, of the messages that its last batches ended with. A message that has another time now is another message.

    created     last sequence       anchor                    what happened   where a reader may go on
    another                                                   made again      at the first message
    the same    before the position                           went back       behind the last anchor that still holds
    the same    at or behind it     there, with another time  rewritten       behind the last anchor that still holds
    the same    at or behind it     holds, or was removed                     at the position
    and then    first sequence behind the position            gone            at the first message

Of an anchor whose message was removed nothing is known: the one before it is asked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.errors import UnsupportedVersionError, holding
from storage_core.live.server import StreamInfo

VERSION = 1
ANCHORS_KEPT = 8
MADE_AGAIN, WENT_BACK, REWRITTEN, GONE = "made again", "went back", "rewritten", "gone"
Anchor = tuple[int, int]  # a sequence, and the time of its message in nanoseconds
TimeOf = Callable[[int], int | None]  # of a sequence; None: there is no such message


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has come: everything below `sequence` was handed out."""

    created: str
    sequence: int
    anchors: tuple[Anchor, ...] = ()  # newest first
    begin: int | None = None  # of the batch that ends here, where that is not the end of the one before

    def onward(self, sequence: int, time_ns: int | None) -> "Position":
        """Return the end of a batch, whose last message is of that time; None: there is no message at its end."""
        newest = () if time_ns is None else ((sequence - 1, time_ns),)
        return Position(self.created, sequence, (*newest, *self.anchors)[:ANCHORS_KEPT], self.begin)

    def carried(self) -> "Position":
        """Return the end of a batch as the start of the next one, which does not begin where that batch did.

        Where nothing was read the two are the same place, and it is kept: so the first batch says where a query began.
        """
        begin = self.begin if self.begin == self.sequence else None
        return Position(self.created, self.sequence, self.anchors, begin)


@dataclass(frozen=True, slots=True)
class Finding:
    """What has happened to a stream since a reader was there."""

    kind: str
    first: int  # sequences [first, end) that the reader lacks, or has of messages that are others now
    end: int
    position: Position  # where the reader may go on
    reason: str


def compare(position: Position, info: StreamInfo, time_of: TimeOf) -> Finding | None:
    """Return what has happened to the stream, None if it only has grown."""
    name, before = f"stream {info.name!r}", position.sequence - 1
    holds = f"it {holding(info.first_sequence, info.next_sequence)}"
    if position.created != info.created:
        reason = (
            f"{name} was deleted and made again at {info.created}; it was read up to sequence {before} of that of "
            f"{position.created}: {holds}"
        )
        begun = _begun(info.created, info.first_sequence)
        return Finding(MADE_AGAIN, 1, position.sequence, begun, reason)
    went_back = info.next_sequence < position.sequence
    if went_back or _is_rewritten(position.anchors, info, time_of):
        anchors = _still_held(position.anchors, info, time_of)
        shared = anchors[0][0] + 1 if anchors else info.first_sequence
        target = max(info.first_sequence, min(shared, info.next_sequence))
        what = "has lost its end" if went_back else "has lost its end, and other messages have those sequences now"
        reason = (
            f"{name} {what}: it was read up to sequence {before}, of which {target} to {before} are gone or are other "
            f"messages; {holds}"
        )
        kind = WENT_BACK if went_back else REWRITTEN
        return Finding(kind, target, position.sequence, _begun(info.created, target, anchors), reason)
    if info.first_sequence > position.sequence and not info.is_for_consumers:
        reason = (
            f"{name}: sequences {position.sequence} to {info.first_sequence - 1} were removed, by its limits or a "
            f"purge, before they were read; {holds}"
        )
        begun = _begun(info.created, info.first_sequence, position.anchors)
        return Finding(GONE, position.sequence, info.first_sequence, begun, reason)
    return None


def _begun(created: str, sequence: int, anchors: tuple[Anchor, ...] = ()) -> Position:
    return Position(created, sequence, anchors, begin=sequence)


def _is_rewritten(anchors: tuple[Anchor, ...], info: StreamInfo, time_of: TimeOf) -> bool:
    """Return whether the newest anchor whose message is there has another time."""
    for sequence, time_ns in anchors:
        if sequence < info.first_sequence:
            return False
        now_ns = time_of(sequence)
        if now_ns is not None:
            return now_ns != time_ns
    return False


def _still_held(anchors: tuple[Anchor, ...], info: StreamInfo, time_of: TimeOf) -> tuple[Anchor, ...]:
    """Return the anchors from the newest one on whose message is as it was, or is before all that the stream has."""
    for at, (sequence, time_ns) in enumerate(anchors):
        if sequence < info.first_sequence or (sequence < info.next_sequence and time_of(sequence) == time_ns):
            return anchors[at:]
    return ()


# --- as JSON


def encode(positions: Mapping[str, Position]) -> dict[str, dict[str, Any]]:
    """Return the JSON object by streams; equal positions give equal text."""
    return {name: _encoded(positions[name]) for name in sorted(positions)}


def _encoded(position: Position) -> dict[str, Any]:
    made = {
        "anchors": [list(anchor) for anchor in position.anchors],
        "begin": position.begin,
        "created": position.created,
        "sequence": position.sequence,
        "version": VERSION,
    }
    return {key: value for key, value in made.items() if value is not None}


def decode(offset: object) -> dict[str, Position]:
    """Return the positions of a JSON object that was encoded here.

    Raises ValueError naming stream and field of what cannot be one, UnsupportedVersionError.
    """
    if not isinstance(offset, dict):
        raise ValueError(f"the checkpoint's offset is {offset!r:.200}, expected a JSON object with an entry per stream")
    return {name: _decoded(name, entry) for name, entry in offset.items()}


def _decoded(name: str, entry: object) -> Position:
    fields = entry if isinstance(entry, dict) else {}
    version = fields.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnsupportedVersionError(
            f"the checkpoint's offset of stream {name!r} has version {version}, this program reads {VERSION}: a newer "
            "jstream wrote it"
        )
    created, sequence, begin = fields.get("created"), fields.get("sequence"), fields.get("begin")
    anchors = fields.get("anchors")
    is_whole = (
        version == VERSION
        and isinstance(created, str)
        and _is_sequence(sequence)
        and (begin is None or (_is_sequence(begin) and begin <= sequence))
        and isinstance(anchors, list)
        and len(anchors) <= ANCHORS_KEPT
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_sequence, pair)) for pair in anchors)
        and set(fields) <= {"anchors", "begin", "created", "sequence", "version"}
    )
    if not is_whole:
        raise ValueError(
            f"the checkpoint's offset of stream {name!r} is {entry!r:.500}, expected created, sequence, anchors and "
            "version of a stream of running NATS servers: it was edited or is of another source. Put the folder "
            "'offsets' of the checkpoint back from a copy, or begin with a new checkpoint"
        )
    return Position(str(created), sequence, tuple((at, time_ns) for at, time_ns in anchors), begin)  # type: ignore[arg-type,union-attr]


def _is_sequence(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**63
