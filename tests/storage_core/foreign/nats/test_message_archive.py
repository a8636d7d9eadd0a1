"""Entries of a backup that holds messages: found whatever lies in them, and nothing read of what is damaged."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError
from storage_core.foreign import open_foreign, read_foreign_slice
from storage_core.foreign.nats import message_archive
from storage_core.foreign.nats.consumers import ConsumerState, decode_state, encode_state
from storage_core.foreign.nats.cursor import encode_uvarint

NOW_NS = 1_795_755_774_535_231_500
DESCRIPTION = {"config": {"name": "A", "subjects": [">"]}}
END = bytes(5)
COLUMNS = ("sequence", "timestamp_ns", "subject", "headers", "data")


def entry(number: int, time_ns: int, name: bytes, headers: bytes, data: bytes) -> bytes:
    zigzag = time_ns << 1 if time_ns >= 0 else (-time_ns << 1) - 1
    sizes = (len(name), zigzag, number, len(headers), len(data))
    return b"".join(map(encode_uvarint, sizes)) + name + headers + data


def file(name: str, content: Any) -> bytes:
    return entry(0, NOW_NS, name.encode(), b"", json.dumps(content).encode())


def unpack(archive: bytes, place: Path) -> None:
    message_archive.unpack(
        io.BytesIO(archive).read, DESCRIPTION, place / "jetstream" / "$G" / "streams" / "s", "archive"
    )


@pytest.mark.parametrize("seed", range(5))
def test_messages_come_out_whatever_they_hold(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(message_archive, "PIECE_SIZE", chosen.choice([100, 1_000, 20_000, 1 << 20]))
    rows, sequence = [], 0
    for number in range(200):
        sequence += chosen.choice([1, 1, 1, 5, 1 << 20])
        time_ns = chosen.choice([0, 1, -5, 10**18, NOW_NS + number, NOW_NS + number, NOW_NS + number])
        subject = b"s" * chosen.choice([1, 3, 3, 127, 128, 300, 17_000])
        headers = chosen.choice([b"", b"NATS/1.0\r\na: b\r\n\r\n"])
        looks_so = entry(sequence + 1, NOW_NS, b"other", b"", b"x") * 3
        data = chosen.choice([b"", chosen.randbytes(chosen.randrange(300)), looks_so, b"\xff" * 30])
        rows.append((sequence, time_ns, subject, headers, data))
    written = [entry(*row) for row in rows]
    unpack(b"".join((file("state.json", {"last_seq": sequence + 7}), *written, END)), tmp_path)
    assert rows_of(tmp_path) == [
        (number, time_ns, subject.decode(), [{"key": "a", "value": b"b"}] if headers else [], data)
        for number, time_ns, subject, headers, data in rows
    ]
    assert open_foreign(tmp_path).bounds("A") == (rows[0][0], sequence + 8)


def rows_of(place: Path) -> list[tuple[Any, ...]]:
    store = open_foreign(place)
    batches = [batch for part in store.plan("A", COLUMNS) for batch in read_foreign_slice(part, COLUMNS)]
    return [
        (row["sequence"], row["timestamp_ns"], row["subject"], row["headers"] or [], row["data"])
        for batch in batches
        for row in batch.to_pylist()
    ]


SMALL = (file("state.json", {"last_seq": 1}), entry(1, NOW_NS, b"a", b"", b"data"), END)


def test_archive_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = b"".join(SMALL)
    unpack(whole, tmp_path / "whole")
    for size in range(len(whole)):
        with pytest.raises(CorruptionError) as raised:
            unpack(whole[:size], tmp_path / str(size))
        assert raised.value.fields["file"] == "archive"


@pytest.mark.parametrize(
    "parts",
    {
        "bytes behind its end": (*SMALL, b"x"),
        "no state": SMALL[1:],
        "state that is no JSON": (entry(0, NOW_NS, b"state.json", b"", b"{"), *SMALL[1:]),
        "state without a sequence": (file("state.json", {"last_seq": "1"}), *SMALL[1:]),
        "a file of no backup": (file("../state.json", {}), *SMALL),
        "a consumer outside": (file("consumers/../../../x", {"config": {}}), *SMALL),
        "a consumer without configuration": (file("consumers/x", {"config": 1}), *SMALL),
        "a consumer with half a state": (file("consumers/x", {"config": {}, "state": {"delivered": {}}}), *SMALL),
        "a sequence twice": (SMALL[0], SMALL[1], SMALL[1], END),
        "a message that is too long": (SMALL[0], SMALL[1][:-5] + b"\xff\xff\xff\x7f", END),
        "an integer that is too long": (SMALL[0], b"\xff" * 80, END),
    }.values(),
)
def test_archive_that_no_server_wrote_is_refused(parts: tuple[bytes, ...], tmp_path: Path) -> None:
    with pytest.raises(CorruptionError):
        unpack(b"".join(parts), tmp_path / "place")
    assert [path.name for path in tmp_path.iterdir()] in ([], ["place"])


def test_state_of_a_consumer_comes_back() -> None:
    state = ConsumerState((20, 120), (3, 103), ((104, 4, 1_795_755_774), (110, 19, 1_795_755_700)), ((104, 3),))
    assert decode_state(encode_state(state), "o.dat") == state
    assert decode_state(encode_state(ConsumerState()), "o.dat") == ConsumerState()
