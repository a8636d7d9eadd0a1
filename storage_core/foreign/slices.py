"""What a plan over a foreign store consists of, and what is reported of its streams and their damage.

Plain values, picklable.
"""

import json
from dataclasses import dataclass, field
from typing import Any

# Of the tables of streams and of damage; their types are in datasource/schema.py.
STREAM_COLUMNS = (
    "stream", "account", "path", "subjects", "messages", "bytes", "blocks", "first_sequence", "last_sequence",
    "consumers", "compression", "encrypted", "source", "problem", "config",
)  # fmt: skip
DAMAGE_COLUMNS = (
    "stream", "account", "file", "offset_bytes", "end_bytes", "first", "end", "lost_count", "open", "served", "costs",
    "reason", "description",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForeignSlice:
    """Part of one stream that lies in one block file: sequences in `[first, end)` that are not in `removed`."""

    layout: str
    account: str
    stream: str
    path: str  # of the block file, absolute
    block_index: int
    file_size: int  # bytes
    first: int
    end: int
    removed: bytes  # SequenceSet.encode(); of a part of a file, it may be that of the whole file
    known: bool  # an index vouches for every sequence of the part, so one that is missing is lost
    row_count: int  # messages, as many as are known before the file is read; filters not counted
    byte_size: int  # of the file's share that the part is, for packing
    subjects: tuple[str, ...] | None = None  # all subjects of the stream, if they are known and few
    configured: tuple[str, ...] = ()  # layout=nats: what the stream takes, if that says what its subjects may be
    time_first_ns: int | None = None  # messages from this time on
    time_end_ns: int | None = None  # and before this one
    subject_filters: tuple[str, ...] = ()  # empty: all
    truncate_bad_eof: bool = False  # layout=stan: read past an unexpected end of the file
    key: bytes = field(default=b"", repr=False)  # layout=nats: opens the key file of an encrypted block
    sound_crc32c: int | None = None  # layout=nats: of a block, uncompressed, whose records were all true when planned
    no_crc: bool = False  # layout=stan: serve messages whose checksum fails, each reported as damage
    bounds: tuple[int, int] = (1, 1 << 63)  # what the whole file answers for; layout=stan: the rest of it is not its
    left_out: bytes = b""  # layout=stan: SequenceSet.encode(), offset_bytes of true records that are not served
    told: "tuple[tuple[int, ForeignDamage], ...]" = ()  # layout=stan: known by now, with the sequence it is told at
    missing: str = ""  # why no file has the part, of which then nothing is read; "": `path` has it
    open: bool = False  # nothing tells whether the missing part was removed or is lost
    atomic_end: int = 0  # layout=nats: one above the last sequence, of a stream that takes atomic batches; else 0


@dataclass(frozen=True, slots=True)
class ForeignStream:
    """One copy of a stream: where it lies, and what it shows. What is not known of one that cannot be read is None."""

    layout: str
    account: str
    stream: str
    path: str
    subjects: tuple[str, ...]  # that it takes, as configured
    messages: int | None  # as many as are known before the blocks are read
    first: int | None  # sequence of the first message; last + 1 if there is none
    last: int | None  # highest sequence used
    byte_size: int  # of its block files
    block_count: int
    consumer_count: int | None
    compression: str
    encrypted: bool
    source: str  # what tells which messages it shows
    problem: str  # why it cannot be read, or what is wrong with it; "" if nothing is known to be
    config: dict[str, Any] = field(default_factory=dict)  # in the words of its server

    def row(self) -> dict[str, Any]:
        """Return it as a row of STREAM_COLUMNS."""
        values = {name: getattr(self, name) for name in STREAM_COLUMNS if hasattr(self, name)}
        return {
            **values,
            "subjects": list(self.subjects),
            "bytes": self.byte_size,
            "blocks": self.block_count,
            "consumers": self.consumer_count,
            "first_sequence": self.first,
            "last_sequence": self.last,
            "config": json.dumps(self.config, sort_keys=True),
        }


@dataclass(frozen=True, slots=True)
class ForeignDamage:
    """Bytes of a block file that are not what they should be, and the messages of the slice that they cost."""

    layout: str
    account: str
    stream: str
    file: str
    offset_bytes: int  # in the block; in the decompressed block if it is compressed
    end_bytes: int
    reason: str
    first: int | None = None  # lost or open sequences lie in [first, end); None: there are none
    end: int | None = None  # None with a first: nothing tells how far the loss reaches
    lost_count: int | None = None  # messages lost, if an index tells
    unclear: bool = False  # no message is known to be lost, but a removal may be, so that a removed message shows again
    served: bool = False  # the messages [first, end) were read all the same: an option asked for it
    allowed: bool = False  # an option says to read on past it
    record: str = ""  # how the first bad record looks, in several lines, and which options there are
    gone: bool = False  # nothing is there, rather than something wrong
    elsewhere: bool = False  # other copies have the messages [first, end), and they were read from there
    disputed: bool = False  # copies have different content of them, and no majority tells which is right
    places: int = 1  # of damage that it stands for; `reason` says so
    open: bool = False  # nothing tells whether the messages [first, end) were removed or are lost

    def row(self) -> dict[str, Any]:
        """Return it as a row of DAMAGE_COLUMNS."""
        values = {name: getattr(self, name) for name in DAMAGE_COLUMNS if hasattr(self, name)}
        served = self.served or self.elsewhere or self.disputed
        return {**values, "served": served, "costs": self.costs, "description": self.explain()}

    @property
    def costs(self) -> bool:
        """Return whether messages are lost, or may be wrong or lost."""
        return self.unclear or (self.first is not None and not self.served and not self.elsewhere)

    def explain(self) -> str:
        """Return describe(), and the bad record with the options there are if it is known."""
        return f"{self.describe()}\n{self.record}" if self.record else self.describe()

    def describe(self) -> str:
        """Return it as a sentence that names stream, sequences, file and place."""
        if self.elsewhere or self.disputed:
            return f"stream {self.stream!r}: {self.reason}: {self.file}"
        if self.served:
            assert self.first is not None and self.end is not None, self
            is_single = self.end == self.first + 1
            which = f"with sequence {self.first} was" if is_single else f"{self.first} to {self.end - 1} were"
            loss = f"the message{'' if is_single else 's'} {which} read without a checksum that holds"
        elif self.first is None:
            loss = "removed messages may show again" if self.unclear else "damage that cost no message"
        elif self.open and self.end is not None:
            if self.end == self.first + 1:
                loss = f"sequence {self.first} was removed or is lost"
            else:
                loss = f"sequences {self.first} to {self.end - 1} were removed or are lost"
        elif self.end is None:
            loss = f"messages from sequence {self.first} on are lost"
        elif self.end == self.first + 1:
            loss = f"the message with sequence {self.first} is lost"
        else:
            count = "" if self.lost_count is None else f"{self.lost_count} "
            loss = f"{count}messages of the sequences {self.first} to {self.end - 1} are lost"
        return f"stream {self.stream!r}: {loss}: {self.file} at offset_bytes {self.offset_bytes}: {self.reason}"


def note_damage(layout: str, account: str, stream: str, file: str, reason: str, unclear: bool = False) -> ForeignDamage:
    """Return damage to a file that holds no messages, or of which nobody knows what messages it held."""
    return ForeignDamage(layout, account, stream, file, 0, 0, reason, unclear=unclear)
