"""HighwayHash-64 against the published vectors, and its vectorised paths against each other."""

import numpy as np
import pytest

from storage_core.foreign.nats import highwayhash, long_chains
from storage_core.foreign.nats.highwayhash import (
    HEAD_SIZE,
    MESSAGE_SIZE_MIN,
    Batch,
    hash_together,
    highwayhash64,
    key_from_bytes,
)

# Hashes of the byte strings [], [0], [0, 1], ... under the key 0, 1, ..., 31; published with google/highwayhash.
VECTORS = """
907A56DE22C26E53 7EAB43AAC7CDDD78 B8D0569AB0B53D62 5C6BEFAB8A463D80 F205A46893007EDA 2B8A1668E4A94541 BD4CCC325BEFCA6F
4D02AE1738F59482 E1205108E55F3171 32D2644EC77A1584 F6E10ACDB103A90B C3BBF4615B415C15 243CC2040063FA9C A89A58CE65E641FF
24B031A348455A23 40793F86A449F33B CFAB3489F97EB832 19FE67D2C8C5C0E2 04DD90A69C565CC2 75D9518E2371C504 38AD9B1141D3DD16
0264432CCD8A70E0 A9DB5A6288683390 D7B05492003F028C 205F615AEA59E51E EEE0C89621052884 1BFC1A93A7284F4F 512175B5B70DA91D
F71F8976A0A2C639 AE093FEF1F84E3E7 22CA92B01161860F 9FC7007CCF035A68 A0C964D9ECD580FC 2C90F73CA03181FC 185CF84E5691EB9E
4FC1F5EF2752AA9B F5B7391A5E0A33EB B9B84B83B4E96C9C 5E42FE712A5CD9B4 A150F2F90C3F97DC 7FA522D75E2D637D 181AD0CC0DFFD32B
3889ED981E854028 FB4297E8C586EE2D 6D064A45BB28059C 90563609B3EC860C 7AA4FCE94097C666 1326BAC06B911E08 B926168D2B154F34
9919848945B1948D A2A98FC534825EBE E9809095213EF0B6 582E5483707BC0E9 086E9414A88A6AF5 EE86B98D20F6743D F89B7FF609B1C0A7
4C7D9CC19E22C3E8 9A97005024562A6F 5DD41CF423E6EBEF DF13609C0468E227 6E0DA4F64188155A B755BA4B50D7D4A1 887A3484647479BD
AB8EEBE9BF2139A0 75542C5D4CD2A6FF
"""
KEY = key_from_bytes(bytes(range(32)))


def vectors() -> np.ndarray:
    return np.array([int(one, 16) for one in VECTORS.split()], np.uint64)


def test_published_vectors_hold_when_hashed_together() -> None:
    sizes = np.arange(65)
    hashes = highwayhash64(np.arange(65, dtype=np.uint8), np.zeros(65, np.int64), sizes, KEY)
    assert np.array_equal(hashes, vectors())


def test_published_vectors_hold_one_by_one() -> None:
    buffer = np.arange(65, dtype=np.uint8)
    for size, expected in enumerate(vectors()):
        assert highwayhash64(buffer, np.zeros(1, np.int64), np.array([size]), KEY)[0] == expected


def test_published_vectors_hold_under_another_key() -> None:
    buffer = np.concatenate((np.arange(128, 161, dtype=np.uint8), np.array([255], np.uint8)))
    hashes = highwayhash64(buffer, np.array([0, 33]), np.array([33, 1]), (1, 2, 3, 4))
    assert [int(one) for one in hashes] == [0x53C516CCE478CAD7, 0x7858F24D2D79B2B2]


@pytest.fixture(params=["numpy", "numba"])
def mixing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let few messages be mixed side by side, or by compiled code, however small they are."""
    monkeypatch.setattr(long_chains, "COMPILED_SIZE_MIN", 0 if request.param == "numba" else 1 << 62)
    if request.param == "numba":
        assert long_chains.compiled() is not None, "the extra `rescue` belongs to what tests need"
    return str(request.param)


def test_groups_and_rests_agree_on_random_messages(mixing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    buffer = random.integers(0, 256, 60_000, dtype=np.uint8)
    starts = random.integers(0, 50_000, 300)
    sizes = np.minimum(random.integers(0, 9_000, 300) // random.integers(1, 40, 300), 60_000 - starts)
    together = highwayhash64(buffer, starts, sizes, KEY)
    for few_count, group_count in ((8, 37), (10_000, 4096), (0, 4096), (10_000, 10)):
        monkeypatch.setattr(highwayhash, "FEW_COUNT", few_count)
        monkeypatch.setattr(highwayhash, "GROUP_COUNT", group_count)
        assert np.array_equal(highwayhash64(buffer, starts, sizes, KEY), together)
    monkeypatch.setattr(highwayhash, "FEW_COUNT", 0)
    monkeypatch.setattr(highwayhash, "LONG_COUNT", 3)
    assert np.array_equal(highwayhash64(buffer, starts, sizes, KEY), together)


def test_batches_under_their_own_keys_have_the_hashes_of_each_alone(mixing: str) -> None:
    random = np.random.default_rng(13)
    batches = []
    for number in range(12):
        sizes = random.integers(0, 120_000, 1 + number) // random.integers(1, 30, 1 + number)
        buffer = random.integers(0, 256, int(sizes.sum()) + 5, dtype=np.uint8)
        batches.append(Batch(buffer, 5 + np.cumsum(sizes) - sizes, sizes, (number, 2, 3, 4)))
    batches.insert(3, Batch(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64), KEY))
    for batch, hashes in zip(batches, hash_together(batches), strict=True):
        each = [
            highwayhash64(batch.buffer, batch.starts[row : row + 1], batch.sizes[row : row + 1], batch.key)
            for row in range(len(batch.starts))
        ]
        assert hashes.tolist() == [int(one[0]) for one in each]


@pytest.mark.parametrize("few_count", [0, 8, 10_000])
def test_messages_whose_heads_lie_elsewhere_have_the_hash_of_the_whole(
    few_count: int, mixing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(highwayhash, "FEW_COUNT", few_count)
    random = np.random.default_rng(11)
    sizes = np.concatenate((np.arange(MESSAGE_SIZE_MIN, 140), [700, 20, 33, 40_000]))
    starts = np.cumsum(sizes) - sizes
    whole = random.integers(0, 256, int(sizes.sum()), dtype=np.uint8)
    heads = np.stack([whole[at : at + HEAD_SIZE].view("<u8") for at in starts])
    without = whole.copy()
    without[(starts[:, None] + np.arange(HEAD_SIZE)).ravel()] = 0xEE
    hashes = hash_together([Batch(without, starts, sizes, KEY, heads)])[0]
    assert np.array_equal(hashes, highwayhash64(whole, starts, sizes, KEY))


def test_nothing_behind_the_buffer_is_read() -> None:
    long = np.frombuffer(bytes(range(200)), np.uint8)
    starts = np.arange(200)
    whole = highwayhash64(long, starts, 200 - starts, KEY)
    for start in range(150, 200):  # in a buffer of its own, which ends elsewhere
        own = long[start:].copy()
        assert highwayhash64(own, np.zeros(1, np.int64), np.array([len(own)]), KEY)[0] == whole[start]


def test_no_messages_give_no_hashes() -> None:
    none = np.empty(0, np.int64)
    assert len(highwayhash64(np.empty(0, np.uint8), none, none, KEY)) == 0
