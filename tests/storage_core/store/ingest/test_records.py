"""Records of an import's parts: what is believed of a file, and the example in the format's document."""

import re
from pathlib import Path

import msgspec
import pytest

from storage_core.errors import CorruptRecordError, UnsupportedVersionError
from storage_core.files import OS_FILES
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.records import (
    DAMAGE_KEYS,
    HEAD_FILE,
    ImportHead,
    PartRecord,
    decode_record,
    encode_record,
    read_record,
)
from storage_core.store.volume.block_store import BlockStore

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "import.md"
HEAD = ImportHead(b"IMPORT-ID-------", b"SOURCE-DIGEST---", "ORDERS", (b"VOLUME-ID-------",))
PART = PartRecord(
    incarnation=b"INCARNATION-----",
    source=b"SOURCE-DIGEST---",
    number=1,
    rows=bytes(108),
    subjects=(("orders.new",), None),
    holders=(((b"v" * 16, b"i" * 16),), ()),
    present=SequenceSet.from_ranges([(1, 9)]).encode(),
    lost=SequenceSet.empty().encode(),
    read_count=8,
    damage=({**dict.fromkeys(sorted(DAMAGE_KEYS)), "file": "1.blk", "places": 3, "left": True},),
)


@pytest.mark.parametrize("record", [HEAD, PART], ids=["head", "part"])
def test_records_come_back_as_they_were_and_damage_is_found(record: ImportHead | PartRecord) -> None:
    encoded = encode_record(record)
    assert decode_record(encoded, "x") == record
    for size in range(len(encoded)):
        with pytest.raises(CorruptRecordError):
            decode_record(encoded[:size], "x")
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            decode_record(bytes(flipped), "x")


def test_damage_with_other_columns_is_no_record_of_a_part() -> None:
    (row,) = PART.damage
    for damage in ({}, {**row, "more": 1}, {name: row[name] for name in row if name != "left"}):
        with pytest.raises(CorruptRecordError, match="other columns"):
            decode_record(encode_record(msgspec.structs.replace(PART, damage=(damage,))), "x")


def test_a_record_of_a_newer_program_is_told_apart_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.store.ingest.records.FORMAT_VERSION", 2)
    encoded = encode_record(HEAD)
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersionError, match="has version 2; this program reads version 1"):
        decode_record(encoded, "x")


def test_what_cannot_be_believed_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    blocks, incarnation = BlockStore(OS_FILES, tmp_path), b"its incarnation."
    assert read_record(blocks, incarnation, HEAD_FILE) is None
    blocks.make(incarnation)
    blocks.put_record(incarnation, HEAD_FILE, encode_record(HEAD))
    assert read_record(blocks, incarnation, HEAD_FILE) == HEAD
    blocks.put_record(incarnation, HEAD_FILE, encode_record(HEAD)[:-1])
    assert read_record(blocks, incarnation, HEAD_FILE) is None


def test_the_example_in_the_document_is_right() -> None:
    lines = re.findall(r"^[0-9a-f]{8}  (.{35})  \|", DOCUMENT.read_text(), re.MULTILINE)
    assert decode_record(bytes.fromhex("".join(lines)), "the example") == HEAD
