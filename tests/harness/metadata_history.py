"""The metadata state machine under test: commands to apply, and a history that looks at each step that it is pure."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from storage_core import errors
from storage_core.metadata import machine
from storage_core.metadata.commands import AppendedBlocks, Command, Envelope, Init, Voter
from storage_core.metadata.config import StoreSettings, StreamConfig
from storage_core.metadata.invariants import check_state
from storage_core.metadata.machine import Place, Refused
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.metadata.state import StoreState, StreamState, decode_state, encode_state
from storage_core.sequences import SequenceSet

VOLUME = b"V" * 16
_SEEDS = count(1_000_000)
ONE, OTHER = b"1" * 16, b"2" * 16  # incarnations
INIT = Init(b"S" * 16, StoreSettings(), (Voter(VOLUME, b"I" * 16, "."),), "here", "host")


def config(name: str = "ORDERS", **keys: Any) -> StreamConfig:
    return StreamConfig(name=name, subjects=(f"{name}.>",), **keys)


def transaction(number: int, made_ns: int = 1_000) -> bytes:
    return made_ns.to_bytes(8, "big") + number.to_bytes(8, "big")


def blocks(
    *spans: int,
    incarnation: bytes = ONE,
    size: int = 10,
    subjects: Sequence[tuple[str, ...]] = (),
    hidden: Sequence[int] = (),
    holes: Sequence[int] = (),
    overwrite: bool = False,
    superseded: Sequence[int] = (),
    superseded_size: int = 0,
    seed: int | None = None,
) -> AppendedBlocks:
    """Return blocks of these spans; each message has `size` bytes. `hidden`: duplicates, `holes`: no rows, relative.
    `superseded`: absolute.

    `seed`: what the ids of the blocks are made of; None: nobody else's.
    """
    seed = next(_SEEDS) if seed is None else seed
    rows = np.zeros(len(spans), BLOCK_DTYPE)
    first = 0
    for at, span in enumerate(spans):
        missing = sum(first <= one < first + span for one in holes)
        rows[at] = (
            seed.to_bytes(8, "big") + at.to_bytes(8, "big"), b"D" * 16, first, span, span - missing, 1000,
            (span - missing) * size, 1, 2, 0, 0, 0, 1,
        )  # fmt: skip
        first += span
    sets = tuple(dict.fromkeys(subjects))
    which = np.array([sets.index(one) + 1 for one in subjects] or [0] * len(spans), "<i4")
    gone = SequenceSet.from_sequences([*hidden, *holes])
    return AppendedBlocks(
        incarnation, encode_blocks(rows), sets, which.tobytes(), gone.encode() if gone else b"",
        len(hidden), len(hidden) * size, overwrite, b"",
        SequenceSet.from_sequences(superseded).encode() if superseded else b"", superseded_size,
    )  # fmt: skip


class History:
    """Commands applied one after another."""

    def __init__(self, *commands: Command) -> None:
        self.state, self.index, self.time_ns = StoreState(), 0, 10_000
        self.history = b"history1"
        for command in commands:
            result = self.apply(command)
            assert not isinstance(result, Refused), result

    def apply(self, command: Command) -> machine.Result:
        """Apply a command twice and look that it is pure; go on from the result."""
        self.index += 1
        self.time_ns += 1
        before, encoded = self.state, encode_state(self.state)
        place, envelope = Place(self.index, self.history), Envelope(self.time_ns, command)
        self.state, result = machine.apply(before, place, envelope)
        again, same = machine.apply(before, place, envelope)
        assert encode_state(before) == encoded, "the old state is left alone"
        assert encode_state(again) == encode_state(self.state), "equal inputs give equal states"
        assert same == result
        check_state(self.state)
        if isinstance(result, Refused):
            assert self.state is before, "a refused command changes nothing"
        from_bytes, result_from_bytes = machine.apply(decode_state(encoded), place, envelope)
        assert encode_state(from_bytes) == encode_state(self.state), (
            "a state that came from a snapshot behaves the same"
        )
        assert result_from_bytes == result
        return result

    def stream(self, incarnation: bytes = ONE) -> StreamState:
        found = self.state.by_incarnation(incarnation)
        assert found is not None
        return found


def refusal(result: machine.Result) -> tuple[type[errors.StorageError], str]:
    assert isinstance(result, Refused), result
    with pytest.raises(result.error) as raised:
        result.raise_()
    assert str(raised.value) == result.reason
    return result.error, result.reason
