"""The duplicate window: a msg_id counts for as long as it lasts, whatever became of the message and of its block."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import DataLossError
from storage_core.store.environment import REAL, Environment
from storage_core.store.store import Store
from storage_core.store.stream import Stream

MINUTE_NS = 60 * 1_000_000_000


@dataclass
class Clock:
    """Time that stands still but for a microsecond at each look, and for what a test adds."""

    now_ns: int = 1_700_000_000 * 1_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


@dataclass
class Lived:
    store: Store
    clock: Clock
    env: Environment

    @property
    def stream(self) -> Stream:
        return self.store.stream("S")

    def again(self) -> Stream:
        """Return the stream as another process sees it."""
        return Store.open(self.store.paths, env=self.env).stream("S")


def make(root: Path, volume_count: int = 1, graveyard_keep: str = "1h", **config: object) -> Lived:
    clock = Clock()
    env = replace(REAL, now_ns=clock)
    store = Store.create(
        [root / f"volume-{number}" for number in range(volume_count)], env=env, graveyard_keep=graveyard_keep
    )
    settings = {"name": "S", "duplicate_window": "10m", "num_replicas": volume_count, **config}
    store.add_stream(settings)
    return Lived(store, clock, env)


def rows(*msg_ids: str) -> pa.RecordBatch:
    return pa.record_batch({"data": [b"x"] * len(msg_ids), "msg_id": list(msg_ids)})


REMOVE: dict[str, Callable[[Stream], object]] = {
    "deleted": lambda stream: stream.remove(2),
    "purged": lambda stream: stream.purge(),
    "purged up to it": lambda stream: stream.purge(up_to=3),
    "not removed": lambda stream: None,
}


@pytest.mark.parametrize("how", REMOVE)
@pytest.mark.parametrize("block_max_msgs", [1, 3], ids=["a block of its own", "a block with others"])
def test_a_removed_message_counts_as_long_as_the_window_lasts(tmp_path: Path, how: str, block_max_msgs: int) -> None:
    lived = make(tmp_path, block_max_msgs=block_max_msgs)
    lived.stream.append(rows("a", "b", "c"))
    REMOVE[how](lived.stream)
    lived.clock.now_ns += 9 * MINUTE_NS
    for stream in (lived.stream, lived.again()):
        assert stream.publish("S", b"again", msg_id="b").duplicate
        assert not stream.publish("S", b"new", msg_id=f"d-{id(stream)}").duplicate


@pytest.mark.parametrize("how", REMOVE)
@pytest.mark.parametrize("block_max_msgs", [1, 3])
def test_it_does_not_count_when_the_window_is_over(tmp_path: Path, how: str, block_max_msgs: int) -> None:
    lived = make(tmp_path, block_max_msgs=block_max_msgs)
    lived.stream.append(rows("a", "b", "c"))
    lived.clock.now_ns += 9 * MINUTE_NS
    REMOVE[how](lived.stream)
    lived.stream.append(rows("e"))  # what is looked up now is remembered
    lived.clock.now_ns += 2 * MINUTE_NS
    assert not lived.stream.publish("S", b"again", msg_id="b").duplicate


def test_what_was_unlinked_is_forgotten(tmp_path: Path) -> None:
    lived = make(tmp_path, graveyard_keep="0s")
    lived.stream.append(rows("a", "b"))
    lived.stream.purge()
    lived.store.maintain()
    assert not lived.again().publish("S", b"again", msg_id="b").duplicate


def test_an_overwrite_forgets_what_it_replaces_and_a_purge_after_it_does_not(tmp_path: Path) -> None:
    lived = make(tmp_path)
    lived.stream.append(rows("a"))
    store = lived.store
    transaction = store.begin(["S"])
    store.commit(transaction, [], overwrite=["S"])
    assert not lived.again().publish("S", b"again", msg_id="a").duplicate
    lived.stream.purge()
    assert lived.again().publish("S", b"again", msg_id="a").duplicate


def test_another_stream_and_another_incarnation_have_seen_nothing(tmp_path: Path) -> None:
    lived = make(tmp_path)
    lived.store.add_stream({"name": "T", "duplicate_window": "10m", "num_replicas": 1})
    lived.stream.append(rows("a"))
    lived.stream.purge()
    assert not lived.store.stream("T").publish("T", b"x", msg_id="a").duplicate
    lived.store.delete_stream("S")
    lived.store.add_stream({"name": "S", "duplicate_window": "10m", "num_replicas": 1})
    assert not lived.stream.publish("S", b"x", msg_id="a").duplicate


def copies(lived: Lived) -> list[Path]:
    return sorted(path for one in lived.store.volumes() for path in one.path.glob("streams/*/*.blk"))


@pytest.mark.parametrize("is_removed", [False, True])
def test_any_copy_of_a_block_tells_its_msg_ids(tmp_path: Path, is_removed: bool) -> None:
    lived = make(tmp_path, volume_count=3)
    lived.stream.append(rows("a"))
    if is_removed:
        lived.stream.purge()
    first, second, _ = copies(lived)
    first.unlink()
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)
    assert lived.again().publish("S", b"again", msg_id="a").duplicate


def test_no_copy_of_a_live_block_refuses_the_append_and_of_a_removed_one_does_not(tmp_path: Path) -> None:
    lived = make(tmp_path, volume_count=3, block_max_msgs=1)
    lived.stream.append(rows("a"))
    for path in copies(lived):
        path.write_bytes(b"")
    with pytest.raises(DataLossError):
        lived.again().publish("S", b"again", msg_id="a")
    lived.stream.purge()
    assert not lived.again().publish("S", b"again", msg_id="a").duplicate


@pytest.mark.parametrize("msg_id", ["new", "seen"])
def test_publish_tells_a_duplicate_from_a_message_that_was_removed_at_once(
    tmp_path: Path, msg_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes each message as soon as it is committed: before `publish` looks again."""
    store = Store.create(tmp_path / "volume")
    stream = store.add_stream({"name": "S"})
    stream.publish("S", b"1", msg_id="seen")
    commit = store.commit

    def commit_and_purge(*arguments: Any) -> object:
        result = commit(*arguments)
        stream.purge()
        return result

    monkeypatch.setattr(store, "commit", commit_and_purge)
    assert stream.publish("S", b"2", msg_id=msg_id).duplicate == (msg_id == "seen")
