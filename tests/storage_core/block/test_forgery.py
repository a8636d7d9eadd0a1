"""A hostile writer: mutated blocks with all checksums right. An error or valid rows, bounded memory, process alive.

`random` mutates from a seed, so a failure repeats; the seed and the case are in its message.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from struct import pack_into
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from storage_core.block.damage import FrameDamage
from storage_core.block.format import PAYLOAD_SIZE_MAX
from storage_core.block.payload import compressed_payload
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import CorruptFrameError, CorruptionError, TruncatedRecordError, UnsupportedVersionError
from storage_core.schema import FRAME_SCHEMA

CODECS = ("none", "lz4", "zstd")
NUMBERS = (0, 1, 2, 7, 8, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63)
REQUESTS = (
    FrameRequest(),
    FrameRequest(("sequence", "headers"), subject_filters=("s.1",)),
    FrameRequest(("timestamp", "data"), time_first_ns=1_000_000_000_000_002_000, first=2, verify=False),
)


def mutate(data: bytearray, dice: random.Random) -> None:
    """Change some bytes, or a number where one may lie, or the length."""
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        if not data:
            return
        at, what = dice.randrange(len(data)), dice.random()
        if what < 0.4:
            data[at] ^= 1 << dice.randrange(8)
        elif what < 0.9:
            width = dice.choice((2, 4, 8))
            number = dice.choice((dice.choice(NUMBERS), dice.randrange(300))) % (1 << 8 * width)
            at -= at % width
            data[at : at + width] = number.to_bytes(width, "little")
        elif what < 0.95:
            del data[at:]
        else:
            data[at:at] = bytes(dice.randrange(40))


def forge(forged: Any, dice: random.Random) -> bytes:
    """Mutate a payload, a column of the frame table or the footer, and put all checksums right."""
    what = dice.random()
    if what < 0.6:
        mutate(dice.choice(forged.payloads), dice)
    elif what < 0.8:
        column = dice.choice(forged.columns)
        column[dice.randrange(len(column))] = dice.choice(NUMBERS) % (1 << (8 * column.itemsize - 1))
    else:
        footer = bytearray(msgpack.packb(forged.sections))
        mutate(footer, dice)
        return bytes(forged.seal(bytes(footer)))
    return bytes(forged.seal())


def read_everything(data: bytes, memory_file: Any) -> str:
    """Read a block in every way there is; return how it went."""
    try:
        reader = BlockReader.open(memory_file(data))
    except (CorruptionError, TruncatedRecordError, UnsupportedVersionError):
        return "does not open"
    damage: list[FrameDamage] = []
    for request in REQUESTS:
        for batch in reader.read(FrameRequest(**(vars(request) | {"on_damage": damage.append}))):
            batch.validate(full=True)
            batch.to_pylist()
    damage += reader.verify()
    try:
        list(reader.message_ids())
    except CorruptFrameError:
        return "damaged message ids"
    return "damaged frame" if damage else "valid rows"


def run_cases(blocks: Any, forger: Any, memory_file: Any, seed: int, goes_on: Callable[[int], bool]) -> Counter[str]:
    good = {codec: blocks.with_everything(codec).data for codec in CODECS}
    outcomes: Counter[str] = Counter()
    case = 0
    while goes_on(case):
        dice = random.Random(f"{seed}-{case}")
        try:
            data = forge(forger(good[dice.choice(CODECS)]), dice)
        except AssertionError:
            outcomes["cannot be encoded"] += 1  # a number that our own encoder asserts
        else:
            try:
                outcomes[read_everything(data, memory_file)] += 1
            except Exception as error:
                raise AssertionError(f"seed={seed} case={case}") from error
        case += 1
    return outcomes


def test_forged_blocks_give_errors_or_valid_rows(blocks: Any, forger: Any, memory_file: Any) -> None:
    outcomes = run_cases(blocks, forger, memory_file, 3, lambda case: case < 1_000)
    print(f"{sum(outcomes.values())} forged blocks: {dict(outcomes)}")
    assert min(outcomes[one] for one in ("does not open", "damaged frame", "valid rows")) > 50


@pytest.mark.soak
def test_forged_blocks_for_as_long_as_asked(blocks: Any, forger: Any, memory_file: Any, soak_seconds: float) -> None:
    end, seed = time.monotonic() + soak_seconds, time.time_ns()
    outcomes = run_cases(blocks, forger, memory_file, seed, lambda _: time.monotonic() < end)
    print(f"seed={seed}: {sum(outcomes.values())} forged blocks: {dict(outcomes)}")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_decompression_bomb_is_refused_before_it_unfolds(
    blocks: Any, forger: Any, memory_file: Any, codec: str
) -> None:
    forged = forger(blocks.seal(blocks.batch(1), codec=codec).data)
    row = {"subject": "s.0", "timestamp_ns": 1_000_000_000_000_000_000, "data": bytes(PAYLOAD_SIZE_MAX + 1)}
    bomb = compressed_payload(pa.RecordBatch.from_pylist([row], schema=FRAME_SCHEMA), codec)
    forged.payloads[0] = bytearray(bomb)
    reader = BlockReader.open(memory_file(forged.seal()))
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(CorruptFrameError, match=f"declares {PAYLOAD_SIZE_MAX + 1} bytes"):
        list(reader.read(FrameRequest()))
    assert pa.default_memory_pool().bytes_allocated() - before <= bomb.size + 4096
    assert bomb.size < 2_000_000


def test_buffer_that_inflates_to_more_than_it_declares_is_damage(blocks: Any, forger: Any, memory_file: Any) -> None:
    for codec in ("lz4", "zstd"):
        forged = forger(blocks.seal(blocks.batch(1, data=lambda _: bytes(4_096)), codec=codec).data)
        payload = forged.payloads[0]
        at = payload.rfind((4_096).to_bytes(8, "little"))  # the last buffer is that of the data
        assert at > 0
        for declared in (16, 8_192):
            pack_into("<q", payload, at, declared)
            with pytest.raises(CorruptFrameError):
                list(BlockReader.open(memory_file(forged.seal())).read(FrameRequest()))


def test_text_that_is_no_utf8_is_damage_unless_the_manifest_vouches_for_it(
    blocks: Any, forger: Any, memory_file: Any
) -> None:
    forged = forger(blocks.seal(blocks.batch(1)).data)
    at = forged.payloads[0].find(b"s.0")
    forged.payloads[0][at] = 0xFF
    for verify in (True, False):
        with pytest.raises(CorruptFrameError, match="UTF8"):
            list(BlockReader.open(memory_file(forged.seal())).read(FrameRequest(verify=verify)))


def test_offsets_outside_the_data_are_found_without_checksums(blocks: Any, memory_file: Any) -> None:
    sealed = blocks.seal(blocks.batch(5))
    payload = memoryview(sealed.data)[192:]
    offsets = np.arange(0, 18, 3, dtype=np.int32).tobytes()  # of the subjects
    at = 192 + bytes(payload).find(offsets)
    data = bytearray(sealed.data)
    pack_into("<i", data, at + 20, 1_000_000)
    reader = BlockReader.open(memory_file(data), sealed.expected)
    with pytest.raises(CorruptFrameError, match="payload checksum"):
        list(reader.read(FrameRequest()))
    with pytest.raises(CorruptFrameError, match="Arrow record batch"):
        list(reader.read(FrameRequest(verify=False)))
    (damage,) = reader.verify()
    assert damage.row_count == 5


def test_message_ids_of_impossible_rows_are_damage(blocks: Any, forger: Any, memory_file: Any) -> None:
    forged = forger(blocks.with_everything().data)
    forged.payloads[1][16:20] = (3).to_bytes(4, "little")
    with pytest.raises(CorruptFrameError, match="rows of message ids of frame 1: expected ascending, below 3, found 3"):
        list(BlockReader.open(memory_file(forged.seal())).message_ids())
