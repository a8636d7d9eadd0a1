"""The finder of frames against a plain walk, over payloads that look like frames and every end of a chunk."""

import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import ProtocolError
from storage_core.live.wire import PAYLOAD_SIZE_MAX, find_frames, numbers_before

SEED = os.environ.get("JSTREAM_NATS_SEED", "jstream")
Place = tuple[int, int, int]  # start, end of the control line, end of the payload

HOSTILE = (
    b"",
    b"\r\n",
    b"\n\n\n",
    b"MSG a 1 5\r\nhello\r\n" * 3,
    b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"PING\r\n-ERR 'no'\r\nMSG ",
    b"MSG a 1 999999999999999999999\r\n",
    b"\r\nMSG a 1 0",
    b"x" * 130,
    b"7" * 40,
    "MSG \u00e4 1 3\r\n".encode(),
)
HEADERS = b"NATS/1.0\r\nNats-Sequence: 9\r\nMSG a 1 3: \r\n\r\n"
CONTROLS = (b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b'INFO {"a": "MSG b 1 3"}\r\n', b"-ERR 'x'\r\n")


def message(subject: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> bytes:
    place = b" ".join(part for part in (subject, b"1", reply) if part)
    if headers:
        return b"HMSG %s %d %d\r\n%s%s\r\n" % (place, len(headers), len(headers) + len(payload), headers, payload)
    return b"MSG %s %d\r\n%s\r\n" % (place, len(payload), payload)


def walk(block: bytes) -> tuple[list[Place], int]:
    """Return the whole frames of a chunk and the end of the last one, found one after another."""
    frames, start = [], 0
    while (feed := block.find(b"\n", start)) >= 0:
        words, end = block[start : feed - 1].split(b" "), feed + 1
        if words[0] in (b"MSG", b"HMSG"):
            end += int(words[-1]) + 2
        if end > len(block):
            break
        frames.append((start, feed - 1, end - 2))
        start = end
    return frames, start


def found(block: bytes) -> tuple[list[Place], int]:
    frames = find_frames(np.frombuffer(block, np.uint8))
    places = zip(frames.starts.tolist(), frames.line_ends.tolist(), frames.payload_ends.tolist(), strict=True)
    return list(places), frames.end


def hostile_frame(source: random.Random) -> bytes:
    if source.random() < 0.03:
        return source.choice(CONTROLS)
    payload = source.choice((*HOSTILE, source.randbytes(source.randrange(60))))
    reply = source.choice((b"", b"$JS.ACK.S.C.1.%d.2.3.4" % source.randrange(10**12)))
    return message(b"a.%d" % source.randrange(10**6), reply, payload, HEADERS if source.random() < 0.3 else b"")


payloads = st.one_of(st.sampled_from(HOSTILE), st.binary(max_size=40))
frames_of_servers = st.one_of(
    st.builds(
        message,
        st.sampled_from((b"a", b"a.b")),
        st.sampled_from((b"", b"_INBOX.1")),
        payloads,
        st.sampled_from((b"", HEADERS)),
    ),
    st.sampled_from(CONTROLS),
)


@given(st.lists(frames_of_servers, max_size=12))
def test_finder_agrees_with_a_walk_at_every_end_of_a_chunk(frames: list[bytes]) -> None:
    block = b"".join(frames)
    for size in range(len(block) + 1):
        assert found(block[:size]) == walk(block[:size]), size
    assert found(block)[1] == len(block)


def check_many(seed: str, count: int) -> None:
    source = random.Random(seed)
    block = b"".join(hostile_frame(source) for _ in range(count))
    places, end = walk(block)
    at, taken = 0, 0
    while at < end:  # in chunks of any size, each beginning where the last whole frame ended
        size = source.choice((64, 4_096, 1 << 20)) + source.randrange(2_000)
        part, used = found(block[at : at + size])
        expected = [tuple(place - at for place in frame) for frame in places[taken : taken + len(part)]]
        assert part == expected, f"seed={seed} at={at}"
        at, taken = at + used, taken + len(part)
    assert taken == count


def test_finder_agrees_with_a_walk_over_hostile_messages_in_chunks_of_any_size() -> None:
    check_many(SEED, 50_000)


@pytest.mark.soak
def test_finder_agrees_with_a_walk_over_a_million_hostile_messages() -> None:
    for part in range(20):
        check_many(f"{SEED}-{part}", 50_000)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (b"MSG a 1 x\r\nPING\r\n", "no size"),
        (b"MSG a 1 3\nabc\r\n\r\n", "no size"),
        (b"MSG a 1 -3\r\nabcdefgh\r\n", "no CR LF"),  # 3 bytes, as a walk would have it
        (b"MSG a 1 %d\r\nab" % (PAYLOAD_SIZE_MAX + 1), "no size"),
        (b"MSG a 1 99999999999999999999\r\nab", "no size"),
        (b"MSG a 1 3\r\nabcde\r\nPING\r\n", "no CR LF"),
        (b"GET / HTTP/1.1\r\n", "none of the NATS protocol"),
        (b"PING\n", "no CR LF"),
    ],
)
def test_what_is_no_frame_is_refused(block: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        find_frames(np.frombuffer(block, np.uint8))


def test_control_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(ProtocolError, match="control line of more than"):
        find_frames(np.frombuffer(b"MSG " + b"a" * (1 << 21), np.uint8))


def test_wanted_is_the_size_that_makes_the_next_message_whole() -> None:
    whole = message(b"a", b"", b"x" * 5_000)
    frames = find_frames(np.frombuffer(b"PING\r\n" + whole[:40], np.uint8))
    assert (frames.end, frames.wanted) == (6, 6 + len(whole))


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_numbers_are_read_backwards_whatever_stands_before_them(numbers: list[int]) -> None:
    text = b"0123456789."
    ends, starts = [], []
    for number in numbers:
        starts.append(len(text))
        text += b"%d" % number
        ends.append(len(text))
        text += b"."
    values, begins = numbers_before(np.frombuffer(text, np.uint8), np.array(ends))
    assert values.tolist() == numbers
    assert begins.tolist() == starts


def test_what_is_no_number_is_minus_one() -> None:
    text = b"        abc.9999999999999999999999."
    values, _ = numbers_before(np.frombuffer(text, np.uint8), np.array([11, 34, 3]))
    assert values.tolist() == [-1, -1, -1]
