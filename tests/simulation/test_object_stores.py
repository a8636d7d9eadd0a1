"""The metadata of stores on object stores, written from several hosts at once: seeds, and mistakes that they find.

Repeat one seed with every call: `World(seed, trace=print).run()`.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from harness.objects.store import Bucket, Odds
from harness.objects.world import Plan, Violation, World
from harness.simulated_disk import ProcessEnded
from mutants.store import object_mutants
from mutants.store.object_mutants import MUTANTS

from storage_core.errors import CorruptionError, OutcomeUnknownError, StorageError, SupersededError
from storage_core.metadata.commands import Event, RecordEvents
from storage_core.metadata.state import StoreState
from storage_core.os_errors import UnreachableError
from storage_core.store.ensemble.metadata_client import MetadataClient

SEED_COUNT = 150
ACKED_MIN = 400  # a simulation in which everything fails shows nothing
KEPT = {  # seeds of what is rare
    "takes_a_record_that_leads_to_a_snapshot_for_damage": 198,
    "believes_in_records_without_their_witness": 714,
}
FOUND = {  # seeds, and what they have found
    16_000_856: "a listing of different moments without any snapshot was taken for a lost log",
    17_004_794: "a record in a bucket that was emptied counted as the end of a log, and an acked entry was not shown",
    16_009_412: "a reader moved on, and its next session took a volume that lagged for one in step",
}
PLAYED = (  # found by schedules of their own, below and in test_object_log.py
    "reads_what_a_later_candidate_brought_along",
    "believes_in_records_whatever_their_tags",
    "looks_at_the_witness_before_it_lists",
    "looks_at_the_witness_before_it_creates",
    "removes_records_before_snapshots",
    "adopts_a_snapshot_that_came_late",
    "removes_records_that_the_newest_snapshot_covers",
)


def test_every_acked_entry_stays_whatever_happens_to_calls_and_coordinators() -> None:
    acked = 0
    for seed in range(SEED_COUNT):
        world = World(seed)
        world.run()
        acked += world.acked_count
    assert acked >= ACKED_MIN


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.values())
def test_seed_that_found_a_mistake(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("volume_count", [1, 3, 5])
def test_nothing_is_refused_or_unknown_where_nothing_goes_wrong(volume_count: int) -> None:
    world = World(7, Plan(volume_count, 1, 12, 3, Odds(), 0.0, 0))
    world.run()
    assert (world.unknown_count, world.refused) == (0, set())
    assert world.acked_count + 1 == len(world.shown) > 4, "with that of the end"


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in PLAYED])
def test_mistake_is_found(name: str) -> None:
    with object_mutants.made(name), pytest.raises((Violation, StorageError)):
        run_all((KEPT[name],) if name in KEPT else range(SEED_COUNT))


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        World(seed).run()


# --- schedules that seeds do not come upon


class Played:
    """A store on three buckets, and what its processes are let do."""

    def __init__(self) -> None:
        self.world = World(1, Plan(3, 0, 0, 100, Odds(), 0.0, 0))
        self.world.create()
        self.buckets = list(self.world.service.buckets.values())

    def process(self, read_only: bool = False) -> MetadataClient:
        return MetadataClient.at(self.world.environment(), self.world.paths, read_only)

    @contextmanager
    def without(self, number: int) -> Iterator[None]:
        self.buckets[number].is_away = True
        try:
            yield
        finally:
            self.buckets[number].is_away = False

    @contextmanager
    def records(self, *allowed: int, more: tuple[int, ...] = (), ends: bool = False) -> Iterator[None]:
        """Let records be created in these buckets, one after another; afterwards in `more` alone.

        `ends`: then the process is no more.
        """
        left = list(allowed)

        def judge(verb: str, bucket: Bucket, name: str) -> None:
            number = self.buckets.index(bucket)
            if bucket.is_away:
                raise UnreachableError(errno.EHOSTUNREACH, "away")
            if verb != "create" or not name.endswith(".rec"):
                return
            if number in left:
                left.remove(number)
            elif ends and not left:
                raise ProcessEnded
            elif number not in more:
                raise UnreachableError(errno.EHOSTUNREACH, "no answer")

        self.world.service.judge = judge
        try:
            yield
        finally:
            self.world.service.judge = None


def shown(state: StoreState) -> list[str]:
    return [event.kind for event in state.events if event.kind in ("acked", "unknown")]


def figure_8() -> tuple[list[str], list[str]]:
    """Return what a reader is shown between two leaders, and what the last one has.

    The trace `OLD_TERM` of the model: an entry of an old term comes to a majority as a copy, and is replaced.
    """
    played = Played()
    first = played.process()
    with first.session(60.0) as session:
        session.propose(RecordEvents((Event("acked"),)))
        with pytest.raises(OutcomeUnknownError), played.records(0):
            session.propose(RecordEvents((Event("unknown"),)))
    with played.without(0), played.records(1, 2, more=(1,)), pytest.raises(OutcomeUnknownError):
        with played.process().session(60.0):
            pass  # its first entry comes to bucket 1 alone
    with played.without(1), played.records(0, 2, ends=True), pytest.raises(ProcessEnded):
        with played.process().session(60.0):
            pass  # it ends when it has copied the entry and has its votes
    reader = played.process(read_only=True)
    with played.without(1):
        try:
            seen = shown(reader.view(60.0).state)
        except StorageError:  # it cannot tell
            seen = []
    with played.without(0), played.process().session(60.0) as session:
        return seen, shown(session.state)


def test_reader_is_not_shown_what_a_later_candidate_brought_along() -> None:
    seen, at_last = figure_8()
    assert at_last == ["acked"], "the schedule replaces the entry"
    assert "unknown" not in seen


def test_reader_that_counts_copies_is_shown_what_is_replaced() -> None:
    with object_mutants.made("reads_what_a_later_candidate_brought_along"):
        seen, at_last = figure_8()
    assert ("unknown" in seen, "unknown" in at_last) == (True, False)


def look_twice_after_a_snapshot() -> list[str]:
    """Return what a reader is shown that may not lead, when the newest record is in the newest snapshot."""
    played = Played()
    with played.process().session(60.0) as session:
        session.propose(RecordEvents((Event("acked"),)))
        assert session.snapshot()
    reader = played.process(read_only=True)
    reader.view(60.0)
    return shown(reader.view(60.0).state)


def test_newest_record_stays_though_a_snapshot_covers_it() -> None:
    assert look_twice_after_a_snapshot() == ["acked"]
    with object_mutants.made("removes_records_that_the_newest_snapshot_covers"), pytest.raises(CorruptionError):
        look_twice_after_a_snapshot()


def records_of(played: Played) -> list[list[str]]:
    """Return what is wrong with the log of each volume."""
    volumes = played.process(read_only=True).volumes()
    return [volume.log.read().damage for volume in volumes]


def test_volume_that_lags_behind_what_was_read_is_not_taken_for_one_in_step() -> None:
    played = Played()
    first, second = played.process(), played.process()
    with first.session(60.0) as session:
        session.propose(RecordEvents((Event("acked"),)))
    with played.without(1), second.session(60.0) as session:
        session.propose(RecordEvents((Event("acked"),)))
    assert shown(first.view(60.0).state) == ["acked", "acked"], "two buckets have it"
    with first.session(60.0) as session:
        session.propose(RecordEvents((Event("acked"),)))
    assert records_of(played) == [[], [], []], "no record goes on after an entry that is not there"
    with played.without(0):
        assert shown(played.process().view(60.0).state) == ["acked"] * 3


# --- requests


@pytest.mark.parametrize("volume_count", [1, 3])
def test_commit_of_a_leader_is_a_record_and_a_look_on_each_volume(volume_count: int) -> None:
    world = World(1, Plan(volume_count, 0, 0, 100, Odds(), 0.0, 0))
    world.create()
    metadata = MetadataClient.at(world.environment(), world.paths)
    for _ in range(2):
        world.service.call_counts.clear()
        with metadata.session(60.0, optimistic=True) as session:
            with session.group():
                session.propose(RecordEvents((Event("acked"),)))
    assert world.service.call_counts == {"create": volume_count, "head": volume_count}


@pytest.mark.parametrize("volume_count", [1, 3])
def test_look_for_news_is_a_listing_of_each_volume(volume_count: int) -> None:
    world = World(1, Plan(volume_count, 0, 0, 100, Odds(), 0.0, 0))
    world.create()
    metadata = MetadataClient.at(world.environment(), world.paths)
    for _ in range(3):
        world.service.call_counts.clear()
        metadata.view(60.0)
    assert world.service.call_counts == {"list": volume_count}


def find_nothing_to_write(process: MetadataClient) -> None:
    with process.session(60.0, optimistic=True) as session:
        assert shown(session.state) == ["acked"]
        with session.group():
            pass  # by what is known nothing has to be written


def test_refusal_by_what_a_leader_knows_is_confirmed() -> None:
    """It may have been deposed, and what it knows may be old."""
    played = Played()
    first, second = played.process(), played.process()
    for process in (first, second):
        with process.session(60.0) as session:
            session.propose(RecordEvents((Event("acked"),)))
    with pytest.raises(SupersededError):
        find_nothing_to_write(first)
    with first.session(60.0, optimistic=True) as session:
        assert shown(session.state) == ["acked", "acked"]
