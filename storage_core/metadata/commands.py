"""Commands of the metadata state machine: what an entry of the Raft log asks for.

A command carries everything that varies: times, ids, sets of sequences that the holder worked out under its lock.
The state machine has no clock and makes no ids. Encoded as msgpack maps; a field that a later version adds has a
default, so that older logs still decode, and an unknown kind of command stops an older program.

Source: docs/formats/log.md, "Commands".
"""

import msgspec

from storage_core.errors import CorruptRecordError, UnsupportedVersionError
from storage_core.metadata.config import StoreSettings, StreamConfig


class Voter(msgspec.Struct, frozen=True):
    """A volume that votes."""

    volume_id: bytes
    instance_id: bytes
    path: str  # where it was seen last; relative to the first volume where that is possible
    learner: bool = False


class Init(msgspec.Struct, frozen=True, tag="init"):
    """The first entry of a store."""

    store_id: bytes
    settings: StoreSettings
    voters: tuple[Voter, ...]
    lock_domain: str
    host: str


class NoOp(msgspec.Struct, frozen=True, tag="noop"):
    """A new leader's own entry: commits what it found above the commit record."""


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """The store is written from another host from now on."""

    lock_domain: str
    host: str


class AddStream(msgspec.Struct, frozen=True, tag="add_stream"):
    incarnation: bytes
    config: StreamConfig
    placement: tuple[bytes, ...]  # ids of the volumes that keep its blocks


class EditStream(msgspec.Struct, frozen=True, tag="edit_stream"):
    incarnation: bytes
    config: StreamConfig


class DeleteStream(msgspec.Struct, frozen=True, tag="delete_stream"):
    incarnation: bytes


class AppendedBlocks(msgspec.Struct, frozen=True):
    """What an append adds to one stream. `first` in the rows is relative to the stream's next sequence."""

    incarnation: bytes
    rows: bytes  # BLOCK_DTYPE; committed_ns and subject_set are filled in when it is applied
    subject_sets: tuple[tuple[str, ...], ...]  # distinct sets of subjects
    subject_set_of: bytes  # <i4 a row: position in subject_sets plus 1; 0 = not summarised
    duplicates: bytes = b""  # encoded SequenceSet, relative: msg_id was seen within the window, or a hole
    duplicate_count: int = 0
    duplicate_size: int = 0  # message bytes of the duplicates
    overwrite: bool = False  # remove everything before, in the same step


class Append(msgspec.Struct, frozen=True, tag="append"):
    transaction: bytes  # 16 bytes: creation time in ns (8, big-endian), then 8 random ones
    streams: tuple[AppendedBlocks, ...]
    writer: str = ""  # identity for exactly-once; empty: none
    batch: str = ""
    query: str = ""
    run: str = ""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    transaction: bytes


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Remove exactly these messages; `floor` moves the stream's first sequence up as well."""

    incarnation: bytes
    sequences: bytes  # encoded SequenceSet
    data_size: int  # message bytes of those that were still there
    floor: int = 0  # 0: leave it
    reason: str = "delete"  # delete, purge


class Bury(msgspec.Struct, frozen=True, tag="bury"):
    """Files of these removed blocks have been unlinked: forget them."""

    blocks: tuple[bytes, ...]


class ForgetTransactions(msgspec.Struct, frozen=True, tag="forget_transactions"):
    """Transactions made before this time are refused from now on, and need not be remembered."""

    before_ns: int


Command = (
    Init | NoOp | TakeOver | AddStream | EditStream | DeleteStream | Append | Abort | Remove | Bury | ForgetTransactions
)


class Envelope(msgspec.Struct, frozen=True):
    """Payload of an entry."""

    time_ns: int  # the leader's clock when it proposed
    command: Command
    durable: dict[bytes, int] = msgspec.field(default_factory=dict)  # volume id: highest index known durable there


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def decode_envelope(payload: bytes) -> Envelope:
    """Return the envelope of an entry whose checksum has passed.

    Raises UnsupportedVersionError for a command that this version does not know, CorruptRecordError for bytes that
    are no envelope.
    """
    try:
        return _DECODER.decode(payload)
    except msgspec.ValidationError as error:
        if "Invalid value" in str(error) and "type" in str(error):
            raise UnsupportedVersionError(f"the metadata log has a command of a newer version: {error}") from error
        raise CorruptRecordError("log entry", 0, f"not an envelope: {error}") from error
    except msgspec.DecodeError as error:
        raise CorruptRecordError("log entry", 0, f"not msgpack: {error}") from error
