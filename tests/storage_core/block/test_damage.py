"""Every bit flipped, every length cut, every file swapped: found, never served, and never the end of the process."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from storage_core.block.damage import FrameDamage
from storage_core.block.format import BlockIdentity
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import CorruptFrameError, CorruptionError, TruncatedRecordError, UnsupportedVersionError

CODECS = ("none", "lz4", "zstd")
TO_OPEN = (CorruptionError, TruncatedRecordError)
EVERYTHING = ("sequence", "subject", "timestamp_ns", "headers", "data")


def read(reader: BlockReader, **request: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(FrameRequest(EVERYTHING, **request)) for row in batch.to_pylist()]


@pytest.mark.parametrize("vouched", [True, False], ids=["vouched for", "foreign"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_found_and_never_served(blocks: Any, memory_file: Any, codec: str, vouched: bool) -> None:
    ids = msg_id_hashes(pa.array(["a", None, None]))
    sealed = blocks.seal(blocks.batch(3), codec=codec, hashes=[ids], frame_row_count=2)
    expected = sealed.expected if vouched else None
    request = FrameRequest(EVERYTHING)
    good = pa.Table.from_batches(sealed.reader(vouched).read(request))
    without = {0: good.slice(2), 2: good.slice(0, 2)}  # frame 1 has the message ids of frame 0
    found = {"open": 0, "read": 0, "message ids": 0, "verify": 0}
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, expected)
    frames = range(128 * 8, reader.footer.frames.end_offset * 8)
    # Codecs take turns, bit by bit. A foreign file goes the same way up to one check: fewer bits are enough there.
    for bit in range(CODECS.index(codec), len(sealed.data) * 8, len(CODECS) if vouched else 13):
        file.data[bit >> 3] ^= 1 << (bit & 7)
        if bit not in frames:
            with pytest.raises(TO_OPEN):
                BlockReader.open(file, expected)
            found["open"] += 1
        else:  # opening reads nothing of the frames, so the block may be open before
            damage: list[FrameDamage] = []
            batches = list(reader.read(replace(request, on_damage=damage.append)))
            if damage:
                (only,) = damage
                assert pa.Table.from_batches(batches).equals(without[only.frame]), bit
                assert (only.first, only.end, only.row_count) == {0: (1, 3, 2), 2: (3, 4, 1)}[only.frame], bit
                found["read"] += 1
            else:
                assert pa.Table.from_batches(batches).equals(good), bit
                found[_found_later(reader)] += 1
        file.data[bit >> 3] ^= 1 << (bit & 7)
    print(f"{codec}: {sum(found.values())} flipped bits, found by {found}")
    assert all(found.values())


def _found_later(reader: BlockReader) -> str:
    """Return what finds a bit that costs no message."""
    (only,) = reader.verify()
    assert (only.row_count, only.first, only.end) == (0, 0, 0)
    if "padding" in only.reason:
        return "verify"
    with pytest.raises(CorruptFrameError):
        list(reader.message_ids())
    return "message ids"


@pytest.mark.parametrize("vouched", [True, False], ids=["vouched for", "foreign"])
@pytest.mark.parametrize("codec", CODECS)
def test_file_cut_at_every_length_does_not_open(blocks: Any, memory_file: Any, codec: str, vouched: bool) -> None:
    sealed = blocks.with_everything(codec)
    for size in range(len(sealed.data)):
        with pytest.raises(TruncatedRecordError):
            BlockReader.open(memory_file(sealed.data[:size]), sealed.expected if vouched else None)
    print(f"{codec}: {len(sealed.data)} lengths")


def test_file_with_bytes_behind_it_does_not_open(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.with_everything()
    for tail in (b"\0", sealed.data, bytes(4096)):
        for expected in (sealed.expected, None):
            with pytest.raises(TO_OPEN):
                BlockReader.open(memory_file(sealed.data + tail), expected)


def test_zeros_of_the_right_size_do_not_open(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.with_everything()
    with pytest.raises(CorruptionError, match="magic"):
        BlockReader.open(memory_file(bytes(len(sealed.data))), sealed.expected)


@pytest.mark.parametrize("field", ["store_id", "incarnation", "block_id"])
def test_block_of_another_owner_does_not_open(blocks: Any, memory_file: Any, field: str) -> None:
    batch = blocks.batch(5)
    ours = blocks.seal(batch)
    theirs = blocks.seal(batch, identity=replace(blocks.identity, **{field: b"?" * 16}))
    assert len(ours.data) == len(theirs.data)
    with pytest.raises(CorruptionError, match=f"{field.replace('_', ' ')}: expected .*, found 3f3f"):
        BlockReader.open(memory_file(theirs.data), ours.expected)


def test_block_with_the_same_names_but_other_messages_does_not_open(blocks: Any, memory_file: Any) -> None:
    ours = blocks.seal(blocks.batch(5))
    theirs = blocks.seal(blocks.batch(5, data=lambda number: b"DATA %d" % number))
    assert len(ours.data) == len(theirs.data)
    with pytest.raises(CorruptionError, match="footer digest"):
        BlockReader.open(memory_file(theirs.data), ours.expected)


def test_header_of_one_block_before_the_rest_of_another_does_not_open(blocks: Any, memory_file: Any) -> None:
    other = blocks.seal(blocks.batch(5), identity=BlockIdentity(*(b"?" * 16 for _ in range(4))))
    mixed = other.data[:128] + blocks.seal(blocks.batch(5)).data[128:]
    with pytest.raises(CorruptionError, match="header checksum"):
        BlockReader.open(memory_file(mixed))


def test_frame_of_another_block_is_not_served(blocks: Any, memory_file: Any) -> None:
    ours = blocks.seal(blocks.batch(5))
    theirs = blocks.seal(blocks.batch(5), identity=replace(blocks.identity, block_id=b"?" * 16))
    end = ours.reader().footer.frames.end_offset
    mixed = ours.data[:128] + theirs.data[128:end] + ours.data[end:]
    with pytest.raises(CorruptFrameError, match="header of frame 0"):
        read(BlockReader.open(memory_file(mixed), ours.expected))


def test_frames_that_changed_places_are_not_served(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(6), frame_row_count=3)
    first, second, end = sealed.reader().footer.frames.offsets.tolist()
    assert second - first == end - second
    data = sealed.data[:first] + sealed.data[second:end] + sealed.data[first:second] + sealed.data[end:]
    damage: list[FrameDamage] = []
    assert read(BlockReader.open(memory_file(data), sealed.expected), on_damage=damage.append) == []
    assert [(one.frame, one.first, one.end) for one in damage] == [(0, 1, 4), (1, 4, 7)]


def test_newer_version_is_refused_as_such(blocks: Any, memory_file: Any) -> None:
    from crc32c import crc32c

    data = bytearray(blocks.seal(blocks.batch(1)).data)
    data[8] = 2
    data[12:16] = crc32c(bytes(data[:12])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersionError, match="expected 1, found 2"):
        BlockReader.open(memory_file(data))


def test_good_frames_around_a_bad_one_survive_and_the_report_has_the_numbers(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(12), frame_row_count=3)
    offset = int(sealed.reader().footer.frames.offsets[2])
    data = bytearray(sealed.data)
    data[offset + 300] ^= 1
    reader = BlockReader.open(memory_file(data), sealed.expected)
    damage: list[FrameDamage] = []
    rows = read(reader, first_sequence=101, on_damage=damage.append)
    assert [row["sequence"] for row in rows] == [101, 102, 103, 104, 105, 106, 110, 111, 112]
    (only,) = damage
    assert (only.file, only.offset_bytes, only.frame) == ("/memory/block.blk", offset, 2)
    assert (only.first, only.end, only.row_count) == (107, 110, 3)
    assert str(only).startswith(f"/memory/block.blk: offset_bytes {offset}: payload checksum of frame 2: expected 0x")
    with pytest.raises(CorruptFrameError) as caught:
        read(reader)
    assert caught.value.args[0].offset_bytes == offset
    assert [one.frame for one in reader.verify(first_sequence=101)] == [2]
    assert next(reader.verify(first_sequence=101)).first == 107
    assert read(reader, first=100, end=107, first_sequence=101) == rows[:6], "a frame nobody asked for is not read"


@pytest.mark.parametrize("place", ["header", "frame", "padding", "footer", "trailer", "cut", "grown"])
def test_verify_finds_what_happens_to_the_file_after_it_was_opened(blocks: Any, memory_file: Any, place: str) -> None:
    sealed = blocks.with_everything()
    footer_offset = sealed.reader().footer.frames.end_offset
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, sealed.expected)
    places = {"header": 90, "frame": 200, "padding": footer_offset - 1, "footer": footer_offset + 5, "trailer": -1}
    if place == "cut":
        file.truncate(len(sealed.data) - 1)
    elif place == "grown":
        file.data += b"\0"
    else:
        file.data[places[place]] ^= 0x10
    assert list(sealed.reader().verify()) == []
    assert list(reader.verify())


def test_file_cut_while_it_is_read_is_damage_of_the_frames_behind(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(9), frame_row_count=3)
    file = memory_file(sealed.data)
    reader = BlockReader.open(file, sealed.expected)
    file.truncate(int(reader.footer.frames.offsets[1]) + 10)
    damage: list[FrameDamage] = []
    assert [row["sequence"] for row in read(reader, on_damage=damage.append)] == [1, 2, 3]
    assert [one.frame for one in damage] == [1, 2]
    assert "found 10 bytes" in damage[0].reason


def test_errors_of_the_file_come_out_as_they_are(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(3))

    class Failing(memory_file):  # type: ignore[misc]
        def read_into(self, offset_bytes: int, buffer: memoryview) -> int:
            raise OSError(5, "I/O error")

    reader = BlockReader.open(Failing(sealed.data), sealed.expected)
    with pytest.raises(OSError, match="I/O error"):
        read(reader, on_damage=lambda damage: pytest.fail("an error of the disk is not damage"))
