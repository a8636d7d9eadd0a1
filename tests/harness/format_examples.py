"""The worked examples of docs/formats/log.md and snapshot.md, made by the encoders.

After a change of these formats, from the project's folder:
`PYTHONPATH=tests .venv/bin/python -m harness.format_examples`
"""

from pathlib import Path

import msgspec

from storage_core.metadata import commands, machine, state
from storage_core.metadata.commands import Envelope, Init, NoOp, Voter
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.state import StoreState
from storage_core.raft import log_format, snapshot_format
from storage_core.raft.entry import CHAIN_START, CommitRecord, Entry, Vote, make_entry
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, SegmentHeader
from storage_core.raft.snapshot_format import SnapshotBody, SnapshotHeader

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "formats"
STORE, VOLUME, INSTANCE = b"S" * 16, b"V" * 16, b"I" * 16
MADE_NS = 1_700_000_000_000_000_000
SETTINGS = StoreSettings(deleted_block_retention=86_400_000_000_000, snapshot_every=512)
FIRST_ENVELOPE = Envelope(MADE_NS, Init(STORE, SETTINGS, (Voter(VOLUME, INSTANCE, "."),), "d0", "host-a"))
SECOND_ENVELOPE = Envelope(MADE_NS + 1, NoOp(), {VOLUME: 1})
VOTES = Vote(1, b"candidate-one..."), Vote(2, b"candidate-two...")


def entries() -> tuple[Entry, Entry]:
    first = make_entry(CHAIN_START, 1, 1, b"HISTORY1", commands.encode_envelope(FIRST_ENVELOPE))
    return first, make_entry(first.chain, 2, 2, b"HISTORY2", commands.encode_envelope(SECOND_ENVELOPE))


def segment() -> bytes:
    first, second = entries()
    data = bytearray(SegmentHeader(STORE, VOLUME, INSTANCE, 1, 0, 0, CHAIN_START).encode())
    data += bytes(BATCHES_OFFSET - len(data))
    for generation, entry in ((1, first), (2, second)):
        record = CommitRecord(generation, entry.term, entry.index, entry.chain, (VOLUME,) if generation > 1 else ())
        at = log_format.slot_offset(generation)
        data[at : at + PAGE_SIZE] = log_format.encode_commit_record(record)
    for batch in ([VOTES[0], first], [VOTES[1]], [second]):
        data += log_format.encode_batch(list(batch), len(data))
        data += bytes(-len(data) % PAGE_SIZE)
    return bytes(data)


def snapshot() -> bytes:
    now = StoreState()
    for entry, envelope in zip(entries(), (FIRST_ENVELOPE, SECOND_ENVELOPE), strict=True):
        now, _ = machine.apply(now, machine.Place(entry.index, entry.history), envelope)
    trail = b"".join(entry.chain for entry in entries())
    body = SnapshotBody(msgspec.Raw(state.encode_state(now)), VOTES[1].term, VOTES[1].candidate, {VOLUME: 2}, trail)
    payload = snapshot_format.encode_body(body)
    last = entries()[1]
    header = SnapshotHeader(
        STORE, VOLUME, INSTANCE, last.index, last.term, last.chain, last.history, len(payload),
        snapshot_format.payload_digest(payload),
    )  # fmt: skip
    return snapshot_format.encode(header) + payload


def dump(data: bytes) -> str:
    """Return rows of 16 bytes in hex, four at a time, and text, `*` for rows like the one before."""
    rows, before, repeated = [], b"", False
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        if row == before:
            if not repeated:
                rows.append("*")
            repeated = True
            continue
        before, repeated = row, False
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        pairs = row.hex(" ", -4)
        rows.append(f"{at:08x}  {pairs:<35}  |{text}|")
    if repeated:
        rows.append(f"{len(data):08x}")
    return "\n".join(rows)


def rewrite(name: str, data: bytes) -> None:
    path = FORMATS / name
    head, tail = path.read_text().split("## Worked example", 1)
    text, _, rest = tail.split("```", 2)
    path.write_text(f"{head}## Worked example{text}```\n{dump(data)}\n```{rest}")


if __name__ == "__main__":
    rewrite("log.md", segment())
    rewrite("snapshot.md", snapshot())
