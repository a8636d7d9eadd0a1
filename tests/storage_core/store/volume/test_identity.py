"""Marks of volumes that are being made: whole, or they say nothing."""

from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, NotAStoreError
from storage_core.file_kinds import MAKING_MARK
from storage_core.store.volume.identity import VolumeIdentity, decode_mark, encode_mark

PATH = Path("/volume/jstream.creating")
IDENTITIES = tuple(VolumeIdentity(b"S" * 16, bytes([number]) * 16, b"I" * 16, 10**18) for number in range(5))


def test_a_mark_of_the_largest_store_comes_back_within_its_bound() -> None:
    mark = encode_mark(IDENTITIES)
    assert len(mark) <= MAKING_MARK.size_max
    assert decode_mark(mark, PATH) == IDENTITIES


def test_a_mark_that_was_cut_off_or_changed_is_refused() -> None:
    mark = encode_mark(IDENTITIES[:2])
    for at in range(len(mark)):
        changed = bytearray(mark)
        changed[at] ^= 4
        with pytest.raises((NotAStoreError, CorruptionError)):
            decode_mark(bytes(changed), PATH)
    page = len(mark) // 2
    for size in (1, page - 1, page + 1, len(mark) - 1):
        with pytest.raises((NotAStoreError, CorruptionError)):
            decode_mark(mark[:size], PATH)
    assert decode_mark(mark[:page], PATH) == IDENTITIES[:1]
