"""msgpack within bounds: round trips, refusals by name, and no growth beyond what the input can hold."""

import random
from struct import Struct
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.block.format import digest_of
from storage_core.bounded import decode, pack, unpack
from storage_core.errors import CorruptionError, CorruptRecordError
from storage_core.metadata.commands import Envelope, TakeOver, decode_envelope, encode_envelope
from storage_core.store.ingest.records import ImportHead, decode_record

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_round_trip(value: Any) -> None:
    packed = pack(value)
    assert unpack(packed, len(packed), "value") == value
    assert unpack(memoryview(packed), len(packed), "value") == value


def test_bytes_stay_bytes_and_tuples_become_lists() -> None:
    assert unpack(pack((b"\xff", "\u00e9", 1)), 100, "value") == [b"\xff", "\u00e9", 1]


def test_too_many_bytes_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(CorruptionError, match="snapshot has 101 bytes, at most 100 are allowed"):
        unpack(b"\xc1" * 101, 100, "snapshot")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x02",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc7\x01\x05\x00",
        b"\xd4\x05\x00",
        b"\x91" * 5_000,
    ],
    ids=["nothing", "never used", "array cut", "two values", "no UTF-8", "huge array", "huge map", "huge bin"]
    + ["huge str", "extension", "short extension", "deep"],
)
def test_what_is_not_one_value_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="snapshot is not valid msgpack"):
        unpack(data, 10_000, "snapshot")


def test_every_cut_is_refused() -> None:
    packed = pack({"name": "ORDERS", "runs": [1, 2, 3], "digest": bytes(16), "nested": {"a": [None, True]}})
    for size in range(len(packed)):
        with pytest.raises(CorruptionError):
            unpack(packed[:size], 1_000, "value")


def test_list_as_a_key_is_refused_by_name() -> None:
    with pytest.raises(CorruptionError, match="snapshot is not valid msgpack"):
        unpack(b"\x81\x90\x01", 10, "snapshot")


def test_random_bytes_give_a_value_or_an_error() -> None:
    dice = random.Random(1)
    heads_of_maps = {*range(0x80, 0x90), 0xDE, 0xDF}
    others = [byte for byte in range(256) if byte not in heads_of_maps]
    outcomes = [0, 0]
    for _ in range(5_000):
        try:
            unpack(bytes(dice.choices(others, k=dice.randrange(30))), 100, "value")
            outcomes[0] += 1
        except CorruptionError:
            outcomes[1] += 1
    print(f"values, errors: {outcomes}")


def test_text_that_is_no_utf8_is_refused_by_every_typed_decoder() -> None:
    head = msgspec.msgpack.encode(ImportHead(b"i" * 16, b"s" * 16, "ORDERS", ())).replace(b"ORDERS", b"ORD\xffRS")
    with pytest.raises(CorruptionError, match="the head"):
        decode(msgspec.msgpack.Decoder(ImportHead), head, "the head")
    fields = Struct("<8sII16s").pack(b"JSTRMIMP", 1, len(head), digest_of(head))
    with pytest.raises(CorruptRecordError, match=r"1\.part"):
        decode_record(fields + crc32c(fields).to_bytes(4, "little") + head, "1.part")
    entry = encode_envelope(Envelope(1, TakeOver("a host", "a machine"))).replace(b"a host", b"a h\xffst")
    with pytest.raises(CorruptRecordError, match="log entry"):
        decode_envelope(entry)
