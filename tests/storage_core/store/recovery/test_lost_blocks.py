"""Blocks that are cut, emptied, damaged or gone: missing, never empty, told with stream, sequences, file and offset.

FAULTS scenarios 4 and 17 for one volume, where no other copy is left: reading stops with an error that names the
range, or goes on without it; the last sequence stays, and new messages get new numbers.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.block.reader import BlockReader
from storage_core.errors import DataLossError
from storage_core.files import OS_FILES
from storage_core.store.reading.reading import ReadDamage
from storage_core.store.store import Store
from storage_core.store.stream import Stream

ROWS_PER_BLOCK = 70_000  # two frames: the first holds 65,536 rows
BLOCKS = 3


@dataclass
class Lived:
    """A store with three blocks in a stream, of which the second one will suffer."""

    store: Store
    stream: Stream
    victim: Path
    first: int  # sequences of the victim
    end: int

    def read(self, on_data_loss: str = "fail") -> list[int]:
        table = self.stream.read(columns=["sequence"], on_data_loss=on_data_loss).read_all()
        return table.column("sequence").to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    volume = tmp_path_factory.mktemp("lost") / "volume"
    store = Store.create(volume)
    stream = store.add_stream({"name": "orders"})
    for _ in range(BLOCKS):
        stream.append(pa.record_batch({"data": pa.array([b"payload"] * ROWS_PER_BLOCK)}))
    return volume


@pytest.fixture
def lived(template: Path, tmp_path: Path) -> Lived:
    shutil.copytree(template, tmp_path / "volume")
    store = Store.open(tmp_path / "volume")
    stream = store.stream("orders")
    row = stream.state().blocks.rows[1]
    directory = tmp_path / "volume" / "streams" / stream.incarnation.hex()
    victim = directory / f"{bytes(row['block_id']).hex()}.blk"
    return Lived(store, stream, victim, int(row["first"]), int(row["first"] + row["span"]))


def frame_offsets(path: Path) -> list[int]:
    file = OS_FILES.open(path)
    try:
        return [int(one) for one in BlockReader.open(file).footer.frames.offsets]
    finally:
        file.close()


def cut(size: Callable[[Path], int]) -> Callable[[Lived], None]:
    def act(lived: Lived) -> None:
        content = lived.victim.read_bytes()
        lived.victim.write_bytes(content[: size(lived.victim)])

    return act


WHOLE_BLOCK: dict[str, Callable[[Lived], None]] = {
    "cut in the middle of a frame": cut(lambda path: frame_offsets(path)[1] + 1000),
    "cut on a frame's boundary": cut(lambda path: frame_offsets(path)[1]),
    "cut by its last byte": cut(lambda path: path.stat().st_size - 1),
    "cut to 0 bytes": cut(lambda path: 0),
    "longer by a byte": lambda lived: lived.victim.write_bytes(lived.victim.read_bytes() + b"\0"),
    "gone": lambda lived: lived.victim.unlink(),
    "a directory": lambda lived: (lived.victim.unlink(), lived.victim.mkdir())[1],
    "another block": lambda lived: shutil.copy(next(lived.victim.parent.glob("*.blk")), lived.victim) and None,
}


@pytest.mark.parametrize("how", [name for name in WHOLE_BLOCK if name != "another block"])
def test_a_block_that_is_not_whole_is_missing_and_not_empty(lived: Lived, how: str) -> None:
    WHOLE_BLOCK[how](lived)
    with pytest.raises(DataLossError) as raised:
        lived.read()
    for part in ("'orders'", f"sequences {lived.first} to {lived.end - 1}", str(lived.victim), "offset_bytes"):
        assert part in str(raised.value)
    expected = [*range(1, lived.first), *range(lived.end, BLOCKS * ROWS_PER_BLOCK + 1)]
    assert lived.read("continue") == expected
    assert lived.stream.last_sequence == BLOCKS * ROWS_PER_BLOCK
    verified = lived.store.verify()
    (damage,) = verified["damage"]
    assert not verified["ok"] and verified["checked_blocks"] == BLOCKS
    assert (damage["stream"], damage["file"]) == ("orders", str(lived.victim))
    assert (damage["first"], damage["end"]) == (lived.first, lived.end)
    (replica,) = lived.stream.info()["cluster"]["replicas"]
    assert not replica["current"] and replica["damaged_blocks"] == 1 and replica["state"] == "damaged"
    assert lived.stream.info()["state"]["last_seq"] == BLOCKS * ROWS_PER_BLOCK
    assert list(lived.stream.append([pa.record_batch({"data": [b"more"]})])) == [BLOCKS * ROWS_PER_BLOCK + 1]
    assert lived.read("continue")[-1] == BLOCKS * ROWS_PER_BLOCK + 1


def test_a_damaged_frame_costs_itself_and_no_other(lived: Lived) -> None:
    first_frame = 65_536
    content = bytearray(lived.victim.read_bytes())
    content[frame_offsets(lived.victim)[0] + 500] ^= 1
    lived.victim.write_bytes(content)
    with pytest.raises(DataLossError, match=f"sequences {lived.first} to {lived.first + first_frame - 1} "):
        lived.read()
    assert lived.read("continue") == [*range(1, lived.first), *range(lived.first + first_frame, 3 * ROWS_PER_BLOCK + 1)]
    told: list[ReadDamage] = []
    lived.stream.read(on_data_loss="continue", report=told.append).read_all()
    assert [(one.first, one.end) for one in told] == [(lived.first, lived.first + first_frame)]
    (damage,) = lived.store.verify()["damage"]
    assert (damage["first"], damage["end"]) == (lived.first, lived.first + first_frame)
    assert lived.stream.get(lived.first + first_frame).data == b"payload"


def test_damage_that_verify_found_is_shown_until_the_block_is_whole_again(lived: Lived) -> None:
    content = lived.victim.read_bytes()
    damaged = bytearray(content)
    damaged[frame_offsets(lived.victim)[0] + 500] ^= 1
    lived.victim.write_bytes(damaged)
    assert not lived.store.verify()["ok"]
    for store in (lived.store, Store.open(lived.store.paths[0])):
        (replica,) = store.stream("orders").info()["cluster"]["replicas"]
        assert not replica["current"] and replica["damaged_blocks"] == 1 and replica["state"] == "damaged"
    lived.victim.write_bytes(content)
    assert lived.store.verify()["ok"]
    (replica,) = lived.stream.info()["cluster"]["replicas"]
    assert replica["current"] and replica["damaged_blocks"] == 0 and replica["last_scrub"]


def test_another_block_under_the_name_is_not_served(lived: Lived) -> None:
    other = next(path for path in lived.victim.parent.glob("*.blk") if path != lived.victim)
    shutil.copy(other, lived.victim)
    with pytest.raises(DataLossError, match=f"sequences {lived.first} to {lived.end - 1}"):
        lived.read()
    assert not lived.store.verify()["ok"]


def test_a_stream_whose_folder_is_gone_keeps_its_numbers(lived: Lived) -> None:
    shutil.rmtree(lived.victim.parent)
    with pytest.raises(DataLossError, match=f"sequences 1 to {ROWS_PER_BLOCK}"):
        lived.read()
    assert lived.read("continue") == []
    assert lived.stream.last_sequence == BLOCKS * ROWS_PER_BLOCK
    info = lived.stream.info()
    assert info["state"]["messages"] == info["state"]["last_seq"] == BLOCKS * ROWS_PER_BLOCK
    assert info["cluster"]["replicas"][0]["state"] == "missing"
    assert len(lived.store.verify()["damage"]) == BLOCKS


def test_what_is_lost_can_be_removed_and_the_rest_is_read(lived: Lived) -> None:
    lived.victim.unlink()
    removed = lived.stream.remove(range(lived.first, lived.end))
    assert removed == ROWS_PER_BLOCK
    assert len(lived.read()) == (BLOCKS - 1) * ROWS_PER_BLOCK
    assert lived.store.verify()["ok"]


def test_questions_about_what_is_lost_are_refused_and_others_answered(lived: Lived) -> None:
    lived.victim.unlink()
    with pytest.raises(DataLossError):
        lived.stream.get(lived.first)
    assert lived.stream.get(lived.first - 1).sequence == lived.first - 1
    assert lived.stream.last("orders").sequence == BLOCKS * ROWS_PER_BLOCK
    with pytest.raises(DataLossError):
        lived.stream.subjects()
