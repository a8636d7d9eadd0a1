"""The stuck consumer of other systems, lived by a query: its stream loses what it has read, and goes on.

1,844 messages are read and acknowledged; then they are lost, in each of the ways in which that happens, and new ones
come. With policy `fail` the query is told what is gone and how to go on; with `continue` it reads exactly what is new,
and hears of it once. The same for 1, 3 and 5 volumes, with the query's checkpoint and without.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from harness.life import to_table
from harness.model import Row
from harness.processes import Machine

from storage_core.errors import DataLossError
from storage_core.metadata.reconcile import CONTINUE, FAIL
from storage_core.store.consumers.query import QueryPosition, QueryReader, QueryStart, onward
from storage_core.store.recovery import adopt
from storage_core.store.store import Store

ORDERS = {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 700}
READ = 1844
REMEDY = "option failOnDataLoss=false goes on"
Positions = dict[str, QueryPosition]


class Opens(Protocol):
    """A machine with a store, simulated or not."""

    def open(self) -> Store: ...


def put(store: Store, count: int) -> Store:
    store.stream("orders").append(to_table([Row("orders.new", b"%d" % number) for number in range(count)]))
    return store


def read_to_the_end(machine: Opens, at: Positions) -> Positions:
    """Read and acknowledge all there is, as a query that stands there; return where it stands then."""
    store = machine.open()
    stream = store.stream_state("orders")
    reader = QueryReader(store, "etl")
    end = onward(stream, at["orders"], stream.next_sequence)
    reader.acknowledge({"orders": end.position})
    reader.close()
    return {"orders": end}


def begin(machine: Opens) -> Positions:
    store = machine.open()
    reader = QueryReader(store, "etl")
    at = reader.begin({"orders": QueryStart(store.stream_state("orders").first_sequence)})
    reader.close()
    return at


def reconcile(machine: Opens, at: Positions, policy: str) -> Positions:
    """Settle in a process of its own."""
    reader = QueryReader(machine.open(), "etl")
    try:
        return reader.reconcile(at, policy, REMEDY)
    finally:
        reader.close()


def lived(volume_count: int) -> tuple[Machine, Machine, Positions]:
    """Return the store when all was read, an older copy of it, and where the query stands."""
    machine = Machine(7, volume_count)
    machine.create().add_stream(ORDERS)
    put(machine.open(), 10)
    at = read_to_the_end(machine, begin(machine))
    older = machine.copy()
    older.environment().random_bytes(1)  # from here on it has luck of its own
    put(machine.open(), READ - 10)
    return machine, older, read_to_the_end(machine, at)


# --- what happens to the stream; each returns the machine afterwards


def lose_all_blocks(machine: Machine) -> None:
    for path, _ in machine.disk.files():
        if path.suffix == ".blk" or path.name == "index.db":
            machine.disk.remove(path)


def declared_lost(machine: Machine, older: Machine) -> Machine:
    lose_all_blocks(machine)
    machine.open().repair()
    put(machine.open(), 100)
    return machine


def made_again(machine: Machine, older: Machine) -> Machine:
    store = machine.open()
    store.delete_stream("orders")
    store.add_stream(ORDERS)
    put(store, 100)
    return machine


def another_store(machine: Machine, older: Machine) -> Machine:
    other = Machine(8, machine.volume_count)
    other.create().add_stream(ORDERS)
    put(other.open(), 100)
    return other


def older_copy(machine: Machine, older: Machine) -> Machine:
    put(older.open(), 100)
    return older


def older_copy_that_grew(machine: Machine, older: Machine) -> Machine:
    put(older.open(), 3000)
    return older


@dataclass(frozen=True)
class Story:
    happens: Callable[[Machine, Machine], Machine]
    first: int  # of what the query has not read
    count: int
    told: str


STORIES = [
    Story(declared_lost, 1845, 100, r"sequences 1 to 1844 are lost \(1844 messages\), all of them read before"),
    Story(made_again, 1, 100, r"was deleted and made again since it was read up to sequence 1844"),
    Story(another_store, 1, 100, r"was deleted and made again since it was read up to sequence 1844"),
    Story(older_copy, 11, 100, r"put back to an older copy: sequences 111 to 1844, which were read, are gone|"
                               r"put back to an older copy and has grown since: sequences 11 to 1844"),
    Story(older_copy_that_grew, 11, 3000, r"put back to an older copy and has grown since: sequences 11 to 1844"),
]  # fmt: skip
every_story = pytest.mark.parametrize("story", STORIES, ids=lambda one: one.happens.__name__)
replicas = pytest.mark.parametrize("volume_count", [1, 3, 5])


def events(machine: Opens) -> list[str]:
    kinds = ("consumer_failed", "consumer_reconciled", "query_failed", "query_reconciled")
    return [one["kind"] for one in machine.open().events() if one["kind"] in kinds]


def fails_and_then_goes_on(after: Opens, at: Positions, first: int, count: int, told: str) -> None:
    """Settle as a query does that stands where it stood before the story, and look at what it reads then."""
    for _ in range(2):  # started again as it was
        with pytest.raises(DataLossError, match=told) as failure:
            reconcile(after, at, FAIL)
        assert str(failure.value).endswith(REMEDY)
    assert events(after) == ["consumer_failed"]
    reconciled = reconcile(after, at, CONTINUE)
    assert reconciled["orders"].position.next_sequence == first
    new = after.open().stream("orders").read(first=first).read_all()
    assert new.column("sequence").to_pylist() == list(range(first, first + count))
    assert events(after) == ["consumer_failed", "consumer_reconciled"]
    for policy in (FAIL, CONTINUE):  # there is nothing left to tell
        assert reconcile(after, reconciled, policy) == reconciled
        assert reconcile(after, read_to_the_end(after, reconciled), policy)
    assert len(events(after)) == 2
    info = after.open().stream("orders").consumer("etl").info()
    assert (info["num_pending"], info["delivered"]["stream_seq"]) == (0, first + count - 1)


@replicas
@every_story
def test_a_query_fails_with_what_is_gone_and_the_remedy_and_then_goes_on_with_what_is_new(
    story: Story, volume_count: int
) -> None:
    machine, older, at = lived(volume_count)
    fails_and_then_goes_on(story.happens(machine, older), at, story.first, story.count, story.told)


@pytest.mark.parametrize("volume_count", [1, 3])
@every_story
def test_a_query_without_its_checkpoint_goes_on_where_the_consumer_says(story: Story, volume_count: int) -> None:
    machine, older, _ = lived(volume_count)
    after = story.happens(machine, older)
    reconciled = reconcile(after, begin(after), CONTINUE)
    assert reconciled["orders"].position.next_sequence == story.first
    assert reconcile(after, read_to_the_end(after, reconciled), FAIL)
    if story.happens is declared_lost:  # the others are all that their stores have ever seen
        assert events(after) == ["consumer_reconciled"]
    assert after.open().stream("orders").consumer("etl").info()["num_pending"] == 0


@dataclass(frozen=True)
class Directories:
    """The same on the disk of this machine."""

    paths: list[Path]

    def open(self) -> Store:
        return Store.open(self.paths)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_with_all_metadata_and_all_blocks_lost_an_adopted_stream_goes_on_where_it_was(
    tmp_path: Path, volume_count: int
) -> None:
    machine = Directories([tmp_path / f"volume-{number}" for number in range(volume_count)])
    Store.create(machine.paths).add_stream(ORDERS)
    put(machine.open(), READ)
    at = read_to_the_end(machine, begin(machine))
    for path in machine.paths:
        shutil.rmtree(path / "meta")
        for block in path.glob("streams/*/*.blk"):
            block.unlink()
    adopt.execute(adopt.plan(machine.paths))
    machine.open().edit_stream(ORDERS)  # of its configuration the name is left
    put(machine.open(), 100)
    told = r"was rebuilt from its blocks after it was read up to sequence 1844: .* sequences 1 to 1844 are lost"
    fails_and_then_goes_on(machine, at, 1845, 100, told)


@replicas
def test_blocks_that_are_gone_and_not_declared_lost_yet_stop_nobody_beyond_them(volume_count: int) -> None:
    machine, _, at = lived(volume_count)
    lose_all_blocks(machine)
    put(machine.open(), 100)
    assert reconcile(machine, at, FAIL) == at
    at = read_to_the_end(machine, at)
    machine.open().repair()
    with pytest.raises(DataLossError, match=r"sequences 1 to 1844 are lost \(1844 messages\), all of them read before"):
        reconcile(machine, at, FAIL)
    assert reconcile(machine, reconcile(machine, at, CONTINUE), FAIL)["orders"].position == at["orders"].position
