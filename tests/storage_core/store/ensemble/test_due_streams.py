"""Which streams maintenance looks at, and what the streams of a state know of themselves, against the obvious way."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.metadata.config import StreamConfig
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import Streams, StreamState
from storage_core.store.ensemble.due_streams import DueStreams
from storage_core.store.maintenance import merging
from storage_core.store.replicas import background_repair
from storage_core.store.store import Store

VOLUMES = (b"volume-one------", b"volume-two------")


def stream(number: int, life: int, block_count: int) -> StreamState:
    rows = np.zeros(block_count, BLOCK_DTYPE)
    rows["first"], rows["span"], rows["file_size"] = np.arange(block_count) + 1, 1, 100 + number
    config = StreamConfig(name=f"S{number}", subjects=(f"s{number}",))
    incarnation = number.to_bytes(8, "big") + life.to_bytes(8, "big")
    return StreamState(config, incarnation, 0, VOLUMES[: 1 + number % 2], blocks=Table.of(rows))


CHANGES = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["put", "edit", "delete", "look"]), st.integers(0, 3)), max_size=80
)


@given(CHANGES)
def test_streams_know_their_sizes_and_due_ones_are_those_whose_blocks_changed(
    changes: list[tuple[int, str, int]],
) -> None:
    streams, due, expected = Streams(), DueStreams(), set[bytes]()
    for life, (number, what, block_count) in enumerate(changes):
        known = streams.get(f"s{number}")
        if what == "put":
            made = stream(number, life, block_count)
            expected -= {known.incarnation} if known is not None else set()
            streams = streams.with_stream(made)
            expected.add(made.incarnation)
        elif what == "edit" and known is not None:
            streams = streams.with_stream(replace(known, next_sequence=known.next_sequence + 1))
        elif what == "delete" and known is not None:
            streams = streams.without(known)
            expected.discard(known.incarnation)
        elif what == "look":
            found = due.among(streams)
            assert {one.incarnation for one in found} == expected
            for one in found[::2]:
                due.done(one)
                expected.remove(one.incarnation)
        assert streams.block_count == sum(len(one.blocks) for one in streams.values())
        assert streams.consumer_count == sum(len(one.consumers) for one in streams.values())
        assert all(streams.by_incarnation(one.incarnation) is one for one in streams.values())
        kept: Counter[bytes] = Counter()
        for one in streams.values():
            kept.update(dict.fromkeys(one.placement, int(one.blocks.rows["file_size"].sum())))
        assert {volume: size for volume, size in streams.kept_sizes().items() if size} == +kept


def test_a_command_looks_at_the_stream_that_it_touches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "volume")
    for number in range(40):
        store.add_stream({"name": f"S{number}"})
    looks = {"repair": 0, "merging": 0}

    def counted(module: object, name: str, key: str) -> None:
        call = getattr(module, name)

        def counting(*arguments: object) -> object:
            looks[key] += 1
            return call(*arguments)

        monkeypatch.setattr(module, name, counting)

    counted(background_repair, "missing_copies", "repair")
    counted(merging, "due", "merging")
    for _ in range(5):
        store.stream("S7").publish("S7", b"x")
    assert looks == {"repair": 5, "merging": 5}
