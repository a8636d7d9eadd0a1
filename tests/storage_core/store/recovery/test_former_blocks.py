"""A merged block that is gone everywhere: the blocks that it was merged from come back in its place."""

import shutil
from pathlib import Path

import pytest
from harness.block_places import block_files

from storage_core.sequences import SequenceSet
from storage_core.store.store import Store

MESSAGES = [b"message %d" % number for number in range(1, 7)]
EVERYTHING = list(enumerate(MESSAGES, 1))


class Trio:
    """Three volumes with a stream of one block a message, and what happens to them."""

    former: set[str]
    merged: str

    def __init__(self, root: Path) -> None:
        self.paths = [root / f"disk-{number}" for number in range(3)]
        self.outside = root / "outside"
        with Store.create(self.paths) as store:
            store.add_stream({"name": "S", "subjects": ["s"], "block_max_msgs": 100})
            for message in MESSAGES[:4]:
                store.stream("S").publish("s", message)

    def names(self) -> set[str]:
        with Store.open(self.paths, read_only=True) as store:
            return {bytes(row).hex() for row in store.stream_state("S").blocks.rows["block_id"]}

    def merge(self) -> None:
        self.former = self.names()
        with Store.open(self.paths) as store:
            assert store.compact()["runs"] == 1
        (self.merged,) = self.names()

    def lose(self, *names: str) -> None:
        """Remove blocks from every volume."""
        for path in [path for volume in self.paths for path in block_files(volume) if path.stem in names]:
            path.unlink()

    def away(self) -> None:
        self.paths[2].rename(self.outside)

    def back(self) -> None:
        shutil.rmtree(self.paths[2], ignore_errors=True)
        self.outside.rename(self.paths[2])

    def repair(self, **consent: bool) -> dict[str, object]:
        with Store.open(self.paths) as store:
            return dict(store.repair(**consent))

    def read(self) -> list[tuple[int, bytes]]:
        """Return all messages; every volume has all blocks of them."""
        for volume in self.paths:
            assert self.names() <= {path.stem for path in block_files(volume)}
        with Store.open(self.paths) as store:
            table = store.stream("S").read(columns=["sequence", "data"]).read_all()
        return list(zip(*(table.column(name).to_pylist() for name in ("sequence", "data")), strict=True))


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def lost(trio: Trio) -> SequenceSet:
    with Store.open(trio.paths) as store:
        return store.stream_state("S").lost


def test_a_merged_block_that_is_gone_gives_its_place_back_while_its_blocks_are_kept(trio: Trio) -> None:
    trio.merge()
    trio.lose(trio.merged)
    report = trio.repair()
    assert (report["ok"], report["lost"], report["unread"]) == (True, [], [])
    assert trio.read() == EVERYTHING[:4] and not lost(trio)
    trio.merge()
    assert trio.read() == EVERYTHING[:4]


def test_so_it_does_when_a_disk_comes_back_that_was_away_while_it_was_merged(trio: Trio) -> None:
    trio.away()
    trio.merge()
    trio.lose(trio.merged, *trio.former)
    assert [place["may_be_on"] for place in trio.repair()["unread"]], "not lost: a volume is away"
    trio.back()
    with Store.open(trio.paths) as store:
        for message in MESSAGES[4:]:
            store.stream("S").publish("s", message)
        store.maintain()
    report = trio.repair()
    assert (report["ok"], report["lost"], report["unread"]) == (True, [], [])
    assert trio.read() == EVERYTHING and not lost(trio)


def test_what_was_accepted_as_lost_is_taken_back_from_them(trio: Trio) -> None:
    trio.away()
    trio.merge()
    trio.lose(trio.merged, *trio.former)
    assert trio.repair(accept_loss=True)["lost"] == [{"stream": "S", "first": 1, "end": 5}]
    trio.back()
    report = trio.repair()
    assert (report["ok"], len(report["recoverable"])) == (False, 1)
    with Store.open(trio.paths) as store:
        store.maintain()
        back, _ = store.survey().recoverable(store.stream_state("S"))
    assert list(back.ranges()) == [(1, 5)]
    assert trio.repair(take_back=True)["taken_back"] == [{"stream": "S", "first": 1, "end": 5}]
    assert trio.read() == EVERYTHING[:4] and not lost(trio)


def test_what_none_of_them_has_is_lost_and_nothing_else(trio: Trio) -> None:
    trio.merge()
    trio.lose(trio.merged, sorted(trio.former)[0])
    (gone,) = trio.repair()["lost"]
    assert list(lost(trio).ranges()) == [(gone["first"], gone["first"] + 1)]
    assert trio.read() == [message for message in EVERYTHING[:4] if message[0] != gone["first"]]


def test_the_merged_block_itself_takes_their_place_when_it_comes_back(trio: Trio) -> None:
    trio.merge()
    trio.away()
    trio.lose(trio.merged, sorted(trio.former)[0])
    report = trio.repair()
    assert (report["lost"], [(place["first"], place["end"]) for place in report["unread"]]) == ([], [(1, 5)])
    (gone,) = trio.repair(accept_loss=True)["lost"]
    assert gone["end"] - gone["first"] == 1
    trio.back()
    trio.repair(take_back=True)
    assert trio.names() == {trio.merged} and trio.read() == EVERYTHING[:4] and not lost(trio)
