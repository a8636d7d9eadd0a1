"""`jstream block dump`: whole blocks, and what can be made out of damaged ones."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.block_places import flip

from spark_stream.block_survey import survey
from spark_stream.cli.publish import message_batch
from storage_core.block.format import FRAME_HEADER_SIZE, HEADER_SIZE, TRAILER_SIZE
from storage_core.files import OS_FILES
from storage_core.store.reading.plan import ReadRequest

ROWS = 70_000  # more than one frame takes


@pytest.fixture(params=["none", "zstd"])
def block(request: pytest.FixtureRequest, jstream, store) -> Path:
    """A block of two frames of messages."""
    store.add_stream({"name": "S", "subjects": ["s.>"], "compression": request.param})
    lines = b"".join(b"line %d\n" % number for number in range(ROWS))
    jstream.done("pub", "s.a", "--stdin", stdin=lines[: lines.index(b"line 3\n")])  # another block, first
    stream = store.stream("S")
    first = stream.info()["state"]["last_seq"] + 1
    stream.append(message_batch("s.b", lines.splitlines(), [("k", b"v")]))
    (found,) = store.plan(ReadRequest(("S",), {"S": (first, None)})).slices
    return Path(found.paths[0])


def dumped(jstream, block: Path, code: int) -> dict[str, object]:
    outcome = jstream("block", "dump", block, "--json", with_store=False)
    assert outcome.code == code, outcome
    return json.loads(outcome.out)


def test_a_whole_block_says_whose_it_is_and_what_it_holds(jstream, store, block: Path) -> None:
    found = dumped(jstream, block, 0)
    assert found["header"]["store_id"] == store.id.hex()
    assert found["header"]["incarnation"] == store.stream("S").incarnation.hex() == block.parent.name
    assert found["header"]["block_id"] == block.stem
    assert (found["totals"]["messages"], found["totals"]["span"]) == (ROWS, ROWS)
    assert (found["runs"], found["subjects"], found["damage"]) == ([[0, ROWS]], {"s.b": ROWS}, [])
    assert sum(frame["rows"] for frame in found["frames"]) == ROWS
    assert [frame["state"] for frame in found["frames"]] == ["ok"] * len(found["frames"])
    assert len(found["frames"]) >= 2


def test_a_block_is_shown_to_people(jstream, block: Path) -> None:
    lines = [line.strip() for line in jstream.done("block", "dump", block).splitlines()]
    assert f"messages: {ROWS}" in lines
    assert f"block_id: {block.stem}" in lines
    assert any(line.split() == ["s.b", str(ROWS)] for line in lines)


def test_the_messages_of_a_block_are_shown_with_relative_sequences(jstream, block: Path) -> None:
    lines = jstream.done("block", "dump", block, "--messages", "--json").splitlines()
    assert len(lines) == ROWS
    assert json.loads(lines[0])["seq"] == 0
    assert jstream.done("block", "dump", block, "--messages", "--raw").splitlines()[-1] == f"line {ROWS - 1}"


def test_message_ids_are_frames_of_their_own(jstream, store) -> None:
    stream = store.add_stream({"name": "S"})
    stream.publish("S", b"x", msg_id="a")
    (found,) = store.plan(ReadRequest(("S",))).slices
    shown = dumped(jstream, Path(found.paths[0]), 0)
    assert [frame["kind"] for frame in shown["frames"]] == ["messages", "message ids"]
    assert shown["totals"]["msg_ids"] == 1


def test_a_damaged_payload_is_named_and_the_other_frames_are_whole(jstream, block: Path) -> None:
    flip(block, HEADER_SIZE + FRAME_HEADER_SIZE + 1000)
    found = dumped(jstream, block, 1)
    states = [frame["state"] for frame in found["frames"]]
    assert "fails its checksum" in states[0]
    assert set(states[1:]) == {"ok"}
    outcome = jstream("block", "dump", block, "--messages", "--json")
    assert outcome.code == 1
    assert len(outcome.out.splitlines()) == ROWS - found["frames"][0]["rows"]
    assert outcome.err.startswith("damaged: ")


def test_without_its_header_a_block_still_shows_footer_and_frames(jstream, block: Path) -> None:
    flip(block, 20)
    found = dumped(jstream, block, 1)
    assert found["header"] is None
    assert found["totals"]["messages"] == ROWS
    assert {frame["state"] for frame in found["frames"]} == {"ok"}
    assert len(found["damage"]) == 1


def test_without_its_footer_the_frames_are_found_by_searching(jstream, block: Path) -> None:
    whole = dumped(jstream, block, 0)["frames"]
    with block.open("r+b") as file:
        file.truncate(block.stat().st_size - 1)
    found = dumped(jstream, block, 1)
    assert found["header"]["block_id"] == block.stem
    assert (found["totals"], found["runs"], found["subjects"]) == (None, None, None)
    assert found["frames"] == whole


def test_a_frame_behind_one_with_a_damaged_header_is_found(jstream, block: Path) -> None:
    whole = dumped(jstream, block, 0)["frames"]
    flip(block, HEADER_SIZE + 20)
    assert "not what the footer says" in dumped(jstream, block, 1)["frames"][0]["state"]
    flip(block, block.stat().st_size - TRAILER_SIZE)
    assert dumped(jstream, block, 1)["frames"] == whole[1:]


def test_a_file_cut_inside_a_frame_says_how_much_is_there(jstream, block: Path) -> None:
    with block.open("r+b") as file:
        file.truncate(HEADER_SIZE + FRAME_HEADER_SIZE + 100)
    (frame,) = dumped(jstream, block, 1)["frames"]
    assert frame["state"].startswith("the file ends inside it, after 100 of ")


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 1])
def test_a_file_that_is_too_short_for_a_frame_is_damaged(jstream, block: Path, size: int) -> None:
    with block.open("r+b") as file:
        file.truncate(size)
    found = dumped(jstream, block, 1)
    assert (found["frames"], found["totals"]) == ([], None)
    assert (found["header"] is None) == (size < HEADER_SIZE)
    assert jstream("block", "dump", block).code == 1
    assert jstream("block", "dump", block, "--messages").code == 1


def test_a_file_that_is_no_block_is_said_to_be_none(jstream, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_bytes(b"dear reader " * 1000)
    outcome = jstream("block", "dump", tmp_path / "letter.txt", with_store=False)
    assert outcome.code == 1
    assert "magic" in outcome.err


@pytest.mark.parametrize("name", ["missing.blk", "."])
def test_what_is_no_file_is_an_error(jstream, tmp_path: Path, name: str) -> None:
    outcome = jstream("block", "dump", tmp_path / name, with_store=False)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")


def test_a_flipped_bit_in_any_byte_of_a_small_block_is_reported(jstream, store) -> None:
    store.add_stream({"name": "S"}).publish("S", b"x")
    (found,) = store.plan(ReadRequest(("S",))).slices
    path = Path(found.paths[0])
    whole = path.read_bytes()
    for offset_bytes in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset_bytes] ^= 1 << offset_bytes % 8
        path.write_bytes(damaged)
        with OS_FILES.open(path) as file:
            assert survey(file).damage, f"offset_bytes {offset_bytes}"
    print(f"{len(whole)} cases")


def test_a_block_file_alone_can_be_imported_once(jstream, store, block: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.blk"
    kept.write_bytes(block.read_bytes())
    before = store.stream("S").read(columns=["subject", "timestamp", "headers", "data"]).read_all().slice(3)
    store.add_stream({"name": "T", "subjects": ["s.>"]}, allow_overlap=True).publish("s.c", b"first")
    for _ in range(2):
        outcome = jstream("import", "block", kept, "--stream", "T")
        assert (outcome.code, outcome.out) == (0, f"{kept}: T 2 to {ROWS + 1}\n")
    after = store.stream("T").read(columns=["subject", "timestamp", "headers", "data"]).read_all().slice(1)
    assert after.equals(before)
    assert jstream("import", "block", kept, "--stream", "NONE").code == 1
    flipped = bytearray(block.read_bytes())
    flipped[HEADER_SIZE + FRAME_HEADER_SIZE + 500] ^= 1
    kept.write_bytes(flipped)
    store.add_stream({"name": "U", "subjects": ["s.>"]}, allow_overlap=True)
    refused = jstream("import", "block", kept, "--stream", "U")
    assert (refused.code, store.stream("U").last_sequence) == (1, 0)
    skipped = jstream("import", "block", kept, "--stream", "U", "--on-data-loss", "continue", "--json")
    (imported,) = json.loads(skipped.out)["blocks"]
    assert skipped.code == 1 and 0 < imported["end"] - 1 < ROWS and "damaged: " in skipped.err


def test_archived_blocks_are_read_again_with_the_sequences_they_had(jstream, store, tmp_path: Path) -> None:
    kept = tmp_path / "archive"
    kept.mkdir()
    copy = "import shutil, sys; shutil.copy(sys.argv[3], f'{sys.argv[1]}/{int(sys.argv[4]):06}.blk')"
    store.edit(deleted_block_retention="0s")
    command = [sys.executable, "-c", copy, str(kept)]
    stream = store.add_stream({"name": "S", "subjects": ["s"], "allow_msg_ttl": True, "archive_command": command})
    for number in range(1, 5):
        stream.append([{"subject": "s", "data": b"%d" % number}] * 3)
    stream.remove([2, 7, 8])
    store.compact()  # one block of 1 to 12, which lacks three messages
    for number in range(13, 15):  # two blocks of one message, which a stream would refuse without allow_msg_ttl
        headers = [("Nats-TTL", b"3600")]
        stream.append([{"subject": "s", "data": b"%d" % number, "headers": headers}])
    before = stream.read().read_all()
    stream.purge()
    store.maintain()
    files = sorted(kept.iterdir())
    assert [int(file.stem) for file in files] == [1, 13, 14]

    def imported(*words: object) -> Any:
        return jstream("import", "block", *words)

    again = store.add_stream({"name": "AGAIN", "subjects": ["s"]}, allow_overlap=True)
    assert imported(files[0], "--stream", "AGAIN", "--first", "1").out == f"{files[0]}: AGAIN 1 to 12\n"
    for _ in range(2):  # once, though asked for twice
        assert imported(*files, "--stream", "AGAIN", "--first", 1, "--first", 13, "--first", 14).code == 0
    names = [name for name in before.schema.names if name != "stream"]
    assert again.read(columns=names).read_all().equals(before.select(names))

    late = store.add_stream({"name": "LATE", "subjects": ["s"]}, allow_overlap=True)
    late.publish("s", b"first")
    assert imported(files[2], "--stream", "LATE", "--first", 14).code == 0
    assert [message["sequence"] for message in late.read(columns=["sequence"]).read_all().to_pylist()] == [1, 14]
    assert late.publish("s", b"next").sequence == 15 and late.info()["state"]["num_deleted"] == 12
    for at, why in ((13, "free are 16 to"), (1 << 62, "free are 16 to")):
        refused = imported(files[1], "--stream", "LATE", "--first", at)
        assert refused.code == 1 and "JSTREAM_REQUIREMENT" in refused.err and why in refused.err, refused
    elsewhere = imported(files[2], "--stream", "LATE", "--first", 20)
    assert elsewhere.code == 1 and "as sequences" in elsewhere.err
    assert late.info()["state"]["messages"] == 3
    for words in (["--first", 0], ["--first", "x"], ["--first", 1, "--first", 2]):
        assert imported(files[0], "--stream", "LATE", *words).code == 2
    assert store.verify()["ok"]
