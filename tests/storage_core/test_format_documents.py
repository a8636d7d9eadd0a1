"""The format documents are right: their worked examples decode to what they say, their tables are those of the code."""

import re
from pathlib import Path
from struct import Struct

import msgspec
import pytest
from harness import format_examples
from harness.format_examples import (
    FIRST_ENVELOPE,
    FORMATS,
    INSTANCE,
    MADE_NS,
    SECOND_ENVELOPE,
    STORE,
    VOLUME,
    entries,
)

from storage_core.files import OS_FILES
from storage_core.metadata import commands, consumer_state, pending, state
from storage_core.metadata.commands import Command, Envelope, Voter, decode_envelope
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, PENDING_DELETE_DTYPE
from storage_core.raft import log_format, snapshot_format
from storage_core.raft.entry import CHAIN_START, CommitRecord, Vote
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, SegmentHeader
from storage_core.store.volume import identity as volume_file
from storage_core.store.volume import placement_journal
from storage_core.store.volume.identity import VolumeIdentity, decode_identity
from storage_core.store.volume.index import VolumeIndex
from storage_core.store.volume.placement_journal import PlacementJournal


def document(name: str) -> str:
    return (FORMATS / name).read_text()


def worked_example(name: str) -> bytes:
    """Return the bytes of the hex dump under "Worked example": rows of 16, `*` for rows like the one before."""
    dump = document(name).split("## Worked example")[1].split("```")[1].strip().splitlines()
    data, repeat = bytearray(), False
    for line in dump:
        if line == "*":
            repeat = True
            continue
        at, row = int(line[:8], 16), bytes.fromhex(line[8:].split("|")[0])
        if repeat:
            data += bytes(data[-16:]) * ((at - len(data)) // 16)
            repeat = False
        assert len(data) == at, f"{name}: {line}"
        data += row
    return bytes(data)


def test_volume() -> None:
    page = worked_example("volume.md")
    expected = VolumeIdentity(STORE, VOLUME, INSTANCE, MADE_NS)
    assert decode_identity(page, Path("example")) == expected
    assert expected.encode() == page


def test_log() -> None:
    segment = worked_example("log.md")
    assert segment == format_examples.segment()
    first, second = entries()
    header = SegmentHeader(STORE, VOLUME, INSTANCE, 1, 0, 0, CHAIN_START)
    assert log_format.decode_segment_header(segment[:PAGE_SIZE]) == header
    slots = [log_format.decode_commit_record(segment[PAGE_SIZE * slot : PAGE_SIZE * (slot + 1)]) for slot in (1, 2)]
    assert slots == [CommitRecord(2, 2, 2, second.chain, (VOLUME,)), CommitRecord(1, 1, 1, first.chain)]
    read = [record for record, _ in log_format.scan(memoryview(segment)[BATCHES_OFFSET:], BATCHES_OFFSET)]
    assert read == [Vote(1, b"candidate-one..."), first, Vote(2, b"candidate-two..."), second]
    assert [decode_envelope(one.payload) for one in (first, second)] == [FIRST_ENVELOPE, SECOND_ENVELOPE]


def test_snapshot() -> None:
    file = worked_example("snapshot.md")
    assert file == format_examples.snapshot()
    header, payload = snapshot_format.decode(file[:PAGE_SIZE]), file[PAGE_SIZE:]
    _, second = entries()
    assert (header.store_id, header.volume_id, header.instance_id) == (STORE, VOLUME, INSTANCE)
    assert (header.index, header.term, header.chain, header.history) == (2, 2, second.chain, b"HISTORY2")
    assert (header.payload_size, header.payload_digest) == (len(payload), snapshot_format.payload_digest(payload))
    body = snapshot_format.decode_body(payload)
    assert (body.vote, body.durable) == (Vote(2, b"candidate-two..."), {VOLUME: 2})
    assert [snapshot_format.trail_chain(body.trail, 2, index) for index in range(4)] == [
        None, *(one.chain for one in entries()), None,
    ]  # fmt: skip
    decoded = state.decode_state(body.state)
    assert decoded.voters == (Voter(VOLUME, INSTANCE, "."),)
    assert (decoded.store_id, decoded.created_ns, decoded.streams) == (STORE, MADE_NS, {})


def test_placements(tmp_path: Path) -> None:
    journal = PlacementJournal(OS_FILES, tmp_path)
    journal.path.write_bytes(worked_example("placements.md"))
    (one,) = journal.read()
    assert (one.index, one.incarnation, one.stream) == (5, b"INCARNATION-----", "ORDERS")
    (row,) = one.rows
    assert (bytes(row["block_id"]), int(row["first"]), int(row["span"])) == (b"BLOCK-ID--------", 1, 3)
    assert placement_journal._header(1, 0, 32) + placement_journal._encode(one) == journal.path.read_bytes()


def test_index(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(worked_example("index-db.md"))
    index = VolumeIndex(OS_FILES, tmp_path)
    directory = tmp_path / "streams" / b"INCARNATION-----".hex()
    directory.mkdir(parents=True)
    (directory / (b"BLOCK-ID--------".hex() + ".blk")).write_bytes(bytes(1049))
    assert index.stream(b"INCARNATION-----").blocks == {b"BLOCK-ID--------": (1049, MADE_NS + 9)}


# --- tables


def table_after(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the tables between this heading and the next, without the first two rows."""
    section = re.split(r"\n#+ ", text.split(f"{heading}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def command_types() -> list[type[msgspec.Struct]]:
    return list(Command.__args__)


@pytest.mark.parametrize("command", command_types(), ids=lambda one: str(one.__struct_config__.tag))
def test_every_command_is_described(command: type[msgspec.Struct]) -> None:
    tag = command.__struct_config__.tag
    described = [row[0] for row in table_after(document("log.md"), f"### {tag}")]
    described = described[: len(command.__struct_fields__)]  # append has a second table
    assert tuple(described) == command.__struct_fields__


def test_every_part_of_an_append_is_described() -> None:
    text = document("log.md").split("Each element of `streams`:\n", 1)[1].split("###")[0]
    described = re.findall(r"^\| (\w+) \| (?:bin|array|int|bool)", text, re.MULTILINE)
    assert tuple(described) == commands.AppendedBlocks.__struct_fields__


@pytest.mark.parametrize(
    "part",
    [commands.Voter, commands.VolumeChange, commands.FormerVolume, commands.SetAside, commands.Event],
    ids=lambda one: one.__name__,
)
def test_every_key_of_a_part_of_a_command_is_named(part: type[msgspec.Struct]) -> None:
    for field in part.__struct_fields__:
        assert f"`{field}`" in document("log.md"), field


def test_every_key_of_a_consumers_configuration_is_named() -> None:
    for field in ConsumerConfig.__struct_fields__:
        assert f"`{field}`" in document("log.md"), field


def test_the_envelope_and_the_snapshots_payload_are_described() -> None:
    rows = table_after(document("log.md"), "## 5. Envelope")
    assert tuple(row[0] for row in rows) == Envelope.__struct_fields__
    rows = table_after(document("snapshot.md"), "## 2. Payload")
    assert tuple(row[0] for row in rows) == snapshot_format.SnapshotBody.__struct_fields__


def test_every_key_of_the_state_is_described() -> None:
    text = document("snapshot.md")
    rows, consumer = table_after(text, "## 3. State"), ["key of a consumer", "type", "meaning"]
    described = {word for row in rows[: rows.index(consumer)] for word in row[0].split(", ")}
    assert described == {*state._StateRecord.__struct_fields__, "key", "---", *state._StreamRecord.__struct_fields__}
    of_consumers = [row[0] for row in rows[rows.index(consumer) + 2 :]]
    assert tuple(of_consumers) == consumer_state.ConsumerRecord.__struct_fields__
    for field in state._WriterRecord.__struct_fields__:
        assert f"`{field}`" in text


def test_rows_of_the_manifest_are_where_the_table_says() -> None:
    rows = table_after(document("log.md"), "## 7. Row of the manifest")
    described = [(row[2], int(row[0]), int(row[1])) for row in rows]
    fields = BLOCK_DTYPE.fields
    assert fields is not None
    assert described == [(name, field[1], field[0].itemsize) for name, field in fields.items()]
    assert f"{BLOCK_DTYPE.itemsize} bytes a block" in document("log.md")
    assert f"rows of {PENDING_DELETE_DTYPE.itemsize} bytes" in document("snapshot.md")
    assert f"{pending.PENDING_DTYPE.itemsize} bytes a row" in document("snapshot.md")
    assert f"rows of {state.TRANSACTION_DTYPE.itemsize} bytes" in document("snapshot.md")


@pytest.mark.parametrize(
    ("name", "heading", "struct"),
    [
        ("volume.md", "# Identity of a volume, version 1", volume_file._FIELDS),
        ("log.md", "## 2. Segment header, page 0", log_format._HEADER),
        ("log.md", "## 3. Commit record, pages 1 and 2", log_format._COMMIT),
        ("log.md", "## 4. Record", log_format._RECORD),
        ("snapshot.md", "## 1. Header", snapshot_format._HEADER),
        ("placements.md", "## 1. Header", placement_journal._HEADER),
        ("placements.md", "## 2. Record", placement_journal._RECORD),
    ],
)
def test_offsets_and_sizes_of_a_structure_are_those_of_the_code(name: str, heading: str, struct: Struct) -> None:
    rows = [row for row in table_after(document(name), heading) if row[1].isdigit()]
    end = 0
    for offset, size, *_ in rows:
        assert int(offset) == end, f"{heading}: field at {offset}"
        end += int(size)
    fixed = sum(int(row[1]) for row in rows if row[2] not in ("padding", "crc32c") or end < PAGE_SIZE)
    assert fixed == struct.size
    assert end in (struct.size, PAGE_SIZE)


def test_versions_and_limits_are_those_of_the_code() -> None:
    assert volume_file.FORMAT_VERSION == log_format.FORMAT_VERSION == snapshot_format.FORMAT_VERSION == 1
    assert placement_journal.FORMAT_VERSION == state.STATE_VERSION == 1
    assert f"{placement_journal.RECORD_SIZE_MAX:,}" in document("placements.md")
    assert log_format.PAYLOAD_SIZE_MAX == 64 << 20
    assert snapshot_format.PAYLOAD_SIZE_MAX == 1 << 30
