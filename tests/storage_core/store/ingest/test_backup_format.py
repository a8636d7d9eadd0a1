"""The manifest and the marks of a backup: read as written, and refused with a bit changed anywhere."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness.format_examples import backup_manifest

from storage_core.errors import CorruptionError, NotAStoreError, StorageError, UnsupportedVersionError
from storage_core.files import OS_FILES
from storage_core.store.ingest import backup_format
from storage_core.store.ingest.backup_format import Manifest
from storage_core.store.replicas.live_blocks import live_blocks
from storage_core.store.volume.block_store import BlockStore

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "backup.md"
PATH = Path("/backup/jstream.backup")


def read(encoded: bytes) -> backup_format.Backup:
    return backup_format.understood(backup_format.decode_manifest(encoded, PATH), PATH)


def test_the_worked_example_is_what_the_document_says() -> None:
    dump = DOCUMENT.read_text().split("## Worked example")[1].split("```")[1].strip().splitlines()
    encoded = b"".join(bytes.fromhex(line[8:58]) for line in dump)
    assert backup_format.encode_manifest(backup_manifest()) == encoded
    found = read(encoded)
    (block,) = live_blocks(found.state, found.state.streams["notes"])
    assert (found.manifest.index, found.manifest.is_whole, found.directory) == (3, True, Path("/backup"))
    assert (block.first, block.end, block.file_size) == (1, 4, 1049)
    assert block.path_in(found.files(OS_FILES)) == Path("/backup/00000001.blk")
    assert block.path_in(BlockStore(OS_FILES, Path("/volume"))).parent.name == b"INCARNATION-----".hex()


def test_every_key_of_the_manifest_is_described() -> None:
    table = DOCUMENT.read_text().split("| key | type |")[1].split("\n\n")[0]
    described = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert tuple(described) == Manifest.__struct_fields__


def test_a_flip_of_any_bit_and_a_cut_anywhere_are_refused() -> None:
    whole = backup_format.encode_manifest(backup_manifest())
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, NotAStoreError), match=r"jstream\.backup"):
            read(bytes(damaged))
    for size in range(len(whole)):
        with pytest.raises((CorruptionError, NotAStoreError), match=r"jstream\.backup"):
            read(whole[:size])
    with pytest.raises(CorruptionError, match="bytes of payload"):
        read(whole + b"x")


def test_a_manifest_of_a_newer_version_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(backup_format, "FORMAT_VERSION", 2)
        newer = backup_format.encode_manifest(backup_manifest())
    with pytest.raises(UnsupportedVersionError, match="version 2; this program reads version 1"):
        read(newer)


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [(b"ANOTHER-BLOCK---", 1)],
        [(b"BLOCK-ID--------", 0)],
        [(b"BLOCK-ID--------", 100_000_000)],
        [(b"BLOCK-ID--------", 1), (b"BLOCK-ID--------", 2)],
    ],
)
def test_numbers_that_are_not_those_of_the_blocks_are_refused(numbers: list[tuple[bytes, int]]) -> None:
    rows = np.array(numbers, backup_format.NUMBER_DTYPE).tobytes()
    with pytest.raises(CorruptionError, match="number"):
        read(backup_format.encode_manifest(msgspec.structs.replace(backup_manifest(), numbers=rows)))


def test_a_payload_that_is_no_manifest_is_refused() -> None:
    for changed in ({"state": b"no state"}, {"numbers": b"1"}, {"made_ns": "now"}):
        with pytest.raises(StorageError):
            read(backup_format.encode_manifest(msgspec.structs.replace(backup_manifest(), **changed)))


def test_only_eight_digits_and_a_suffix_are_a_number() -> None:
    assert backup_format.block_number("00000001.blk") == 1
    assert backup_format.block_number(backup_format.block_name(99_999_999)) == 99_999_999
    for name in (
        "00000000.blk",
        "1.blk",
        "00000001.blk.blk",
        "0000000a.blk",
        "00000001.repair",
        "٠٠٠٠٠٠٠١.blk",
        ".blk",
    ):
        assert backup_format.block_number(name) is None, name


def test_a_mark_says_whose_it_is_until_a_bit_is_changed() -> None:
    mark = backup_format.encode_unfinished(b"S" * 16)
    assert backup_format.decode_unfinished(mark) == b"S" * 16
    for at in range(len(mark)):
        damaged = bytearray(mark)
        damaged[at] ^= 4
        assert backup_format.decode_unfinished(bytes(damaged)) is None
        assert backup_format.decode_unfinished(mark[:at]) is None
