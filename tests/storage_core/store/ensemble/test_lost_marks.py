"""Metadata whose log and commit records are both gone: what was acked cannot be told, so nothing is taken for torn."""

import os
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, NoQuorumError
from storage_core.store.store import Store


@pytest.mark.parametrize(("count", "error"), [(1, CorruptionError), (3, NoQuorumError)])
def test_a_log_of_which_only_a_snapshot_is_left_stops_the_store(
    tmp_path: Path, count: int, error: type[Exception]
) -> None:
    """Gone on with from the snapshot, it would give the numbers of acked messages to others."""
    paths = [tmp_path / f"volume-{number}" for number in range(count)]
    with Store.create(paths, snapshot_every=5) as store:
        stream = store.add_stream({"name": "S"})
        for _ in range(12):
            stream.publish("S", b"x")
    for path in paths:
        for segment in (path / "meta").glob("*.log"):
            segment.write_bytes(os.urandom(20_000))
    with pytest.raises(error, match="the commit records, which tell what counts"):
        Store.open(paths)
