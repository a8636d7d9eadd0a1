"""Commands of the metadata state machine: what an entry of the Raft log asks for.

A command carries everything that varies: times, ids, sets of sequences that the session worked out under its lock.
The state machine has no clock and makes no ids. Encoded as msgpack maps; a field that a later version adds has a
default, so that older logs still decode. A kind of command, or a meaning, that is new raises COMMANDS_VERSION, which
each entry carries and at which an older program stops.

Source: docs/formats/log.md, "Commands".
"""

from collections.abc import Iterable

import msgspec

from storage_core.bounded import UNDECODABLE
from storage_core.errors import CorruptRecordError, UnsupportedVersionError
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig


class Voter(msgspec.Struct, frozen=True):
    """A volume that votes."""

    volume_id: bytes
    instance_id: bytes
    path: str  # where it was seen last, from the directory that the first volume lies in
    learner: bool = False  # written, not asked: it has not caught up and been verified yet
    retired: str = ""  # why it neither votes nor counts until it was verified again; empty: it does


def ids_of_voters(voters: Iterable[Voter]) -> list[bytes]:
    """Return the volumes of a majority: all that are no learners, whether they can be asked now or not."""
    return [voter.volume_id for voter in voters if not voter.learner]


class VolumeChange(msgspec.Struct, frozen=True):
    """A change of the store's volumes in progress: an even number of voters exists within one only."""

    kind: str  # add, remove, replace
    added: tuple[bytes, ...]  # volume ids
    removed: tuple[bytes, ...]
    started_ns: int


class FormerVolume(msgspec.Struct, frozen=True):
    """A disk that was a volume and may come back with blocks that it had: another one took its place, or none."""

    volume_id: bytes
    instance_id: bytes
    path: str  # where it was seen last
    gone_ns: int  # blocks that were committed later are not on it


class SetAside(msgspec.Struct, frozen=True):
    """Messages of another copy of the store, on a volume whose log of that copy was set aside."""

    volume_id: bytes
    directory: str  # of the metadata files that were set aside, on that volume
    stream: str
    incarnation: bytes  # of the stream in that copy
    sequences: bytes  # encoded SequenceSet: messages that this store does not have under these numbers


class Event(msgspec.Struct, frozen=True):
    """Something that operators want to know afterwards: damage, repair, a volume that went or came back."""

    kind: str
    stream: str = ""
    consumer: str = ""
    volume: str = ""  # id, hex
    before: str = ""
    after: str = ""
    reason: str = ""
    time_ns: int = 0  # 0: that of the entry that brings it
    count: int = 0  # how often its cause was met so far; 0: it is not counted
    last_ns: int = 0  # when last, if more than once


def timed(events: Iterable[Event], time_ns: int) -> tuple[Event, ...]:
    """Return the events of an entry with their times; `time_ns`: that of the entry."""
    return tuple(msgspec.structs.replace(event, time_ns=event.time_ns or time_ns) for event in events)


class Init(msgspec.Struct, frozen=True, tag="init"):
    """The first entry of a store."""

    store_id: bytes
    settings: StoreSettings
    voters: tuple[Voter, ...]
    lock_domain: str
    host: str


class NoOp(msgspec.Struct, frozen=True, tag="noop"):
    """A new leader's own entry: commits what it found above the commit record."""


class TakeOver(msgspec.Struct, frozen=True, tag="take_over", omit_defaults=True):
    """The store is written from another host from now on, or from the same one after a restart."""

    lock_domain: str
    host: str
    reason: str = ""


class EditStore(msgspec.Struct, frozen=True, tag="edit_store"):
    """The settings of the store from now on; its permissions stay."""

    settings: StoreSettings


class AddStream(msgspec.Struct, frozen=True, tag="add_stream"):
    incarnation: bytes
    config: StreamConfig
    placement: tuple[bytes, ...]  # ids of the volumes that keep its blocks, as many as num_replicas
    allow_overlap: bool = True  # with the subjects of other streams; False: refused then


class EditStream(msgspec.Struct, frozen=True, tag="edit_stream"):
    incarnation: bytes
    config: StreamConfig
    allow_overlap: bool = True  # of subjects that the stream did not have before


class DeleteStream(msgspec.Struct, frozen=True, tag="delete_stream"):
    incarnation: bytes


class AppendedBlocks(msgspec.Struct, frozen=True):
    """What an append adds to one stream. `first` in the rows is relative to the stream's next sequence."""

    incarnation: bytes
    rows: bytes  # as encode_blocks has them; committed_ns and subject_set are filled in when it is applied
    subject_sets: tuple[tuple[str, ...], ...]  # distinct sets of subjects
    subject_set_of: bytes  # <i4 a row: position in subject_sets plus 1; 0 = not summarised
    duplicates: bytes = b""  # encoded SequenceSet, relative: msg_id was seen within the window, or a hole
    duplicate_count: int = 0
    duplicate_size: int = 0  # message bytes of the duplicates
    overwrite: bool = False  # remove everything before, in the same step
    expires: bytes = b""  # <i8 a row: when its first message expires, at the earliest; 0: none does; empty: none at all
    # Encoded SequenceSet, absolute: over the limits of their subjects, new ones among them; or what markers stand for.
    superseded: bytes = b""
    superseded_size: int = 0  # message bytes of those
    expected_last_sequence: int = -1  # of the stream, or the append is refused; -1: any


class Append(msgspec.Struct, frozen=True, tag="append"):
    transaction: bytes  # 16 bytes: creation time in ns (8, big-endian), then 8 random ones
    streams: tuple[AppendedBlocks, ...]
    writer: str = ""  # identity for exactly-once; empty: none
    batch: str = ""
    query: str = ""
    run: str = ""
    content: bytes = b""  # of the whole batch, 16 bytes: count of messages (u64), sum of their hashes (u64); a writer's
    any_content: bool = False  # what is stored under this batch counts, whatever it holds
    is_routed: bool = False  # its rows name their streams, so a batch may be without any; a writer's


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    transaction: bytes


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Remove exactly these messages; `low_watermark` moves the stream's first sequence up as well."""

    incarnation: bytes
    sequences: bytes  # encoded SequenceSet
    data_size: int  # message bytes of those that were still there
    low_watermark: int = 0  # 0: leave it
    reason: str = "delete"  # delete, purge, limits, rollup, retention: no consumer needs them any more
    expiries: bytes = b""  # EXPIRY_DTYPE: when more of blocks that were looked at expires; due_ns 0: nothing does


class Unlinked(msgspec.Struct, frozen=True, tag="unlinked"):
    """Files of these removed blocks have been unlinked: forget them."""

    blocks: tuple[bytes, ...]


class ForgetTransactions(msgspec.Struct, frozen=True, tag="forget_transactions"):
    """Transactions made before this time are refused from now on, and need not be remembered."""

    before_ns: int


class PrepareStreams(msgspec.Struct, frozen=True, tag="prepare_streams"):
    """Directories of streams to come are being filled. What is in them is unlinked if the streams never come."""

    incarnations: tuple[bytes, ...]
    until_ns: int  # pending deletes until then


class RestoreStreams(msgspec.Struct, frozen=True, tag="restore_streams"):
    """Streams with everything that is in them, under incarnations that were prepared: all of them, or none."""

    streams: tuple[bytes, ...]  # each as encode_stream wrote it
    events: tuple[Event, ...] = ()


class ChangeVolumes(msgspec.Struct, frozen=True, tag="change_volumes"):
    """The volumes of the store from now on. The voters among them change by one at most."""

    voters: tuple[Voter, ...]
    change: VolumeChange | None = None  # what is in progress after this
    events: tuple[Event, ...] = ()
    former: tuple[FormerVolume, ...] | None = None  # all of them after this; None: as before
    set_aside: tuple[SetAside, ...] = ()  # more of them


class ChangePlacement(msgspec.Struct, frozen=True, tag="change_placement"):
    """A stream's blocks are kept on these volumes from now on; those of the old ones that stay keep their place."""

    incarnation: bytes
    placement: tuple[bytes, ...]
    events: tuple[Event, ...] = ()


class DeclareLost(msgspec.Struct, frozen=True, tag="declare_lost"):
    """No copy of these messages is left: they are not served any more, and their numbers are not used again."""

    incarnation: bytes
    sequences: bytes  # encoded SequenceSet
    data_size: int  # message bytes of those that were shown, as far as that is known
    reason: str = ""


class TakeBack(msgspec.Struct, frozen=True, tag="take_back"):
    """A copy of messages that were declared lost has come back: they are served again, under their numbers."""

    incarnation: bytes
    sequences: bytes  # encoded SequenceSet: lost ones, of blocks that were kept for it or are named here
    data_size: int  # message bytes of those
    rows: bytes = b""  # BLOCK_DTYPE: blocks that others were merged from, which are gone, and take their place again


class DiscardLost(msgspec.Struct, frozen=True, tag="discard_lost"):
    """What was declared lost or set aside is given up for good: its blocks are unlinked, and nothing may come back."""


class MergeBlocks(msgspec.Struct, frozen=True, tag="merge_blocks"):
    """A run of neighbouring blocks is replaced by one that holds the same messages under the same sequences."""

    transaction: bytes  # that the new block was written by; 16 bytes as of an append
    incarnation: bytes
    blocks: bytes  # ids of the run, 16 bytes each, in order
    row: bytes  # the new block, as encode_blocks has it; committed_ns and subject_set are filled in when it is applied
    subjects: tuple[str, ...] | None = None  # its distinct subjects; None: not summarised
    dropped: bytes = b""  # encoded SequenceSet: rows of the run that the new block has not, since they are removed


class RecordHolders(msgspec.Struct, frozen=True, tag="record_holders"):
    """A volume has these blocks of a stream, each verified there: it missed them before, or was made anew since."""

    incarnation: bytes
    volume_id: bytes
    blocks: bytes  # ids, 16 bytes each; those that are not live any more are passed over
    events: tuple[Event, ...] = ()


class RecordEvents(msgspec.Struct, frozen=True, tag="record_events"):
    events: tuple[Event, ...]


class QueryStart(msgspec.Struct, frozen=True):
    """Where a query without a checkpoint begins in one stream, and what chose it."""

    sequence: int = 0  # 0: no query has begun
    choice: str = ""  # the option with its text, as in startingOffsets=latest; empty: none was given


class AddConsumer(msgspec.Struct, frozen=True, tag="add_consumer"):
    """A durable consumer of a stream. It was told of everything that is lost by now."""

    incarnation: bytes  # of the stream
    config: ConsumerConfig
    next_sequence: int  # where it begins, as its deliver_policy says
    query_start: QueryStart | None = None  # the query that makes it


class DeleteConsumer(msgspec.Struct, frozen=True, tag="delete_consumer"):
    incarnation: bytes
    name: str


class PauseConsumer(msgspec.Struct, frozen=True, tag="pause_consumer"):
    """Nothing is handed out before this time. 0 resumes."""

    incarnation: bytes
    name: str
    until_ns: int


class Deliver(msgspec.Struct, frozen=True, tag="deliver"):
    """These messages were handed out by one fetch, new ones and such as were not acknowledged in time."""

    incarnation: bytes
    name: str
    expected_next: int  # next_sequence of the consumer when the fetch was worked out; refused if it is another one
    next_sequence: int  # from now on
    sequences: bytes  # encoded SequenceSet
    deadline_ns: int  # they are handed out again then
    dropped: bytes = b""  # encoded SequenceSet: not waited for any more, removed or handed out too often
    withheld: bytes = b""  # encoded SequenceSet: new ones that no copy could be asked about: they wait
    events: tuple[Event, ...] = ()


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """What became of messages that were handed out. Those that nobody waits for are passed over."""

    incarnation: bytes
    name: str
    kind: str  # ack, nak, term; withhold: they were not handed out after all, no copy can be read
    sequences: bytes  # encoded SequenceSet
    deadline_ns: int = 0  # nak: they are handed out again then
    events: tuple[Event, ...] = ()


class MoveConsumer(msgspec.Struct, frozen=True, tag="move_consumer"):
    """The consumer goes on elsewhere: it was reset, or its position was reconciled with the stream."""

    incarnation: bytes
    name: str
    next_sequence: int
    pending_end: int  # messages at and above it are not waited for any more
    events: tuple[Event, ...] = ()
    query_start: QueryStart | None = None  # the query that moves it; None: what is kept stays


class ConsumerAdvance(msgspec.Struct, frozen=True):
    """How far a query has come with one consumer."""

    incarnation: bytes
    name: str
    next_sequence: int  # everything below it is done
    generation: int = -1  # of the ownership under which this is said; -1: said for whoever owns it
    done: bytes = b""  # encoded SequenceSet: what it is done with now, if the stream's retention asks for it


class AdvanceConsumers(msgspec.Struct, frozen=True, tag="advance_consumers"):
    """A query has finished a batch: its consumers, of one stream each, move up to its end, and never back."""

    advances: tuple[ConsumerAdvance, ...]


class TakeConsumer(msgspec.Struct, frozen=True, tag="take_consumer"):
    """A query owns the consumer from now on; the former one, if it lives, is fenced by the generation."""

    incarnation: bytes
    name: str
    generation: int  # one more than before
    events: tuple[Event, ...] = ()


class RecordConsumerEvents(msgspec.Struct, frozen=True, tag="record_consumer_events"):
    """Events about a consumer that change nothing else."""

    incarnation: bytes
    name: str
    events: tuple[Event, ...]


# Of one consumer; applied by consumers.py.
ConsumerCommand = (
    AddConsumer
    | DeleteConsumer
    | PauseConsumer
    | Deliver
    | Acknowledge
    | MoveConsumer
    | RecordConsumerEvents
    | TakeConsumer
)
Command = (
    Init
    | NoOp
    | TakeOver
    | ChangeVolumes
    | EditStore
    | AddStream
    | EditStream
    | DeleteStream
    | PrepareStreams
    | RestoreStreams
    | ChangePlacement
    | Append
    | Abort
    | Remove
    | DeclareLost
    | TakeBack
    | DiscardLost
    | Unlinked
    | ForgetTransactions
    | MergeBlocks
    | RecordHolders
    | RecordEvents
    | AdvanceConsumers
    | ConsumerCommand
)


COMMANDS_VERSION = 1


class Envelope(msgspec.Struct, frozen=True):
    """Payload of an entry."""

    time_ns: int  # the leader's clock when it proposed
    command: Command
    durable: dict[bytes, int] = msgspec.field(default_factory=dict)  # volume id: highest index known durable there
    version: int = COMMANDS_VERSION  # of the commands that the writer knew


class _Version(msgspec.Struct, frozen=True):
    """What an entry of any version has."""

    version: int = COMMANDS_VERSION


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)
_VERSION_DECODER = msgspec.msgpack.Decoder(_Version)


def encode_envelope(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def decode_envelope(payload: bytes) -> Envelope:
    """Return the envelope of an entry whose checksum has passed.

    Raises UnsupportedVersionError for one that a newer program wrote, CorruptRecordError for what is no envelope.
    """
    try:
        version = _VERSION_DECODER.decode(payload).version
        if version > COMMANDS_VERSION:
            raise UnsupportedVersionError(
                f"an entry of the metadata log has version {version}; this program reads version {COMMANDS_VERSION}"
            )
        return _DECODER.decode(payload)
    except UNDECODABLE as error:
        raise CorruptRecordError("log entry", 0, f"not an envelope: {error}") from error
