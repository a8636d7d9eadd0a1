"""Nothing that some disk still holds is given up without consent, whatever happens to two volumes of three.

Two faults in every order, with a repair between them or not; then a block goes from every volume at hand, so that only
disks that were taken out may have it. Those come back, in every order, with a repair after each. At any time: what a
repair declares lost, no disk holds, in the store or out of it. At the end: what a disk held is read again.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, permutations, product
from pathlib import Path

import pytest
from harness.block_places import block_files

from storage_core.errors import StorageError
from storage_core.store.store import Store

EARLY, LATE, LATER = b"there from the beginning", b"since an older copy was kept", b"since the first fault"


class Disks:
    """Three volumes, and the disks that were taken out of them."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root, self.paths = root, [root / f"disk-{number}" for number in range(3)]
        self.taken_out: list[tuple[int, Path]] = []  # (volume, where it is now)
        self._numbers = count()
        shutil.copytree(base, root)

    def take_out(self, volume: int) -> None:
        place = self.root / f"out-{next(self._numbers)}"
        self.paths[volume].rename(place)
        self.taken_out.append((volume, place))

    def put_back(self, disk: tuple[int, Path]) -> None:
        """Put a disk back; what is in its place is out then, or below the mount point."""
        volume, place = disk
        self.taken_out.remove(disk)
        if self.paths[volume].exists():
            self.take_out(volume)
        place.rename(self.paths[volume])

    # --- faults

    def away(self, volume: int) -> None:
        self.take_out(volume)

    def unmounted(self, volume: int) -> None:
        self.take_out(volume)
        self.paths[volume].mkdir()

    def blank(self, volume: int) -> None:
        shutil.rmtree(self.paths[volume], ignore_errors=True)
        self.paths[volume].mkdir()

    def older(self, volume: int) -> None:
        if self.paths[volume].exists():
            self.take_out(volume)
        shutil.copytree(self.root / f"older-{volume}", self.paths[volume])

    def block_gone(self, volume: int) -> None:
        for path in block_files(self.paths[volume])[:1] if self.paths[volume].exists() else []:
            path.unlink()

    def metadata_gone(self, volume: int) -> None:
        shutil.rmtree(self.paths[volume] / "meta", ignore_errors=True)

    # --- what is where

    def _directories(self) -> Iterator[Path]:
        yield from self.paths
        yield from (place for _, place in self.taken_out)

    def held(self) -> set[str]:
        """Return the names of the blocks that any disk has."""
        return {path.name for directory in self._directories() for path in block_files(directory)}

    def names(self) -> dict[int, str]:
        """Return the block of each sequence, as the metadata names them."""
        with Store.open(self.paths, read_only=True) as store:
            stream = store.stream_state("S")
            rows = [*stream.blocks.rows, *stream.lost_blocks.rows]
            return {int(row["first"]): f"{bytes(row['block_id']).hex()}.blk" for row in rows}

    # --- steps

    def fail(self, fault: Callable[["Disks", int], None], volume: int) -> int:
        if self.paths[volume].exists() or fault not in (Disks.away, Disks.unmounted):
            fault(self, volume)
        return 0

    def append(self) -> None:
        """Append a message, if the store can be written now."""
        with suppress(StorageError), Store.open(self.paths) as store:
            store.stream("S").publish("s", LATER)

    def lose_at_hand(self) -> None:
        """Remove a block that a disk out of the store has from every volume; if there is none, the newest."""
        outside = sorted({path.name for _, place in self.taken_out for path in block_files(place)})
        inside = sorted({path.name for volume in self.paths for path in block_files(volume)})
        for name in outside[-1:] or inside[-1:]:
            for path in [path for volume in self.paths for path in block_files(volume) if path.name == name]:
                path.unlink()

    def repair(self) -> int | None:
        """Repair without consent; check that nothing is given up that a disk holds.

        Return how many messages may come back; None if too much is away for a repair.
        """
        try:
            with Store.open(self.paths) as store:
                report = store.repair()
                names, held = self.names(), self.held()
        except StorageError:
            return None
        lost = [sequence for lost in report["lost"] for sequence in range(lost["first"], lost["end"])]
        assert not [sequence for sequence in lost if names[sequence] in held], report
        for place in report["unread"]:
            assert place["may_be_on"], report
        return sum(place["end"] - place["first"] for place in report["unread"])

    def accept(self) -> list[int]:
        """Accept what is lost; return its sequences. All else is read, and each message is what it was."""
        with Store.open(self.paths) as store:
            report = store.repair(accept_loss=True)
            lost = [sequence for lost in report["lost"] for sequence in range(lost["first"], lost["end"])]
            stream = store.stream("S")
            gone = list(store.stream_state("S").lost.ranges())
            table = stream.read(columns=["sequence", "data"]).read_all()
            expected = dict(enumerate((EARLY, LATE, LATER), 1))
            read = dict(zip(table.column("sequence").to_pylist(), table.column("data").to_pylist(), strict=True))
            assert {expected[sequence] for sequence in read} == set(read.values())
            assert len(read) + sum(end - first for first, end in gone) == stream.last_sequence
        return lost


FAULTS: list[Callable[[Disks, int], None]] = [
    Disks.away, Disks.unmounted, Disks.blank, Disks.older, Disks.block_gone, Disks.metadata_gone,
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of two messages, with copies of its volumes as they were after the first."""
    root = tmp_path_factory.mktemp("base") / "store"
    paths = [root / f"disk-{number}" for number in range(3)]
    root.mkdir()
    with Store.create(paths) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s"], "block_max_msgs": 1})
        stream.publish("s", EARLY)
    for number, path in enumerate(paths):
        shutil.copytree(path, root / f"older-{number}")
    with Store.open(paths) as store:
        store.stream("S").publish("s", LATE)
    return root


@pytest.mark.parametrize("first", FAULTS, ids=lambda fault: fault.__name__)
def test_nothing_that_a_disk_holds_is_given_up_after_two_faults(
    tmp_path: Path, base: Path, first: Callable[[Disks, int], None]
) -> None:
    counts = dict.fromkeys(("cases", "repairs", "refused", "waited for", "accepted as lost"), 0)
    for number, (second, other, repairs_between) in enumerate(product(FAULTS, (0, 1), (False, True))):
        order, orders = 0, 1
        while order < orders:
            disks = Disks(tmp_path / f"{number}-{order}", base)
            outcomes = [disks.fail(first, 0)]
            if repairs_between:
                outcomes.append(disks.repair())
            disks.append()
            outcomes += [disks.fail(second, other), disks.repair()]
            disks.lose_at_hand()
            outcomes.append(disks.repair())
            held, returns = disks.held(), list(permutations(disks.taken_out))
            for disk in returns[order]:
                disks.put_back(disk)
                outcomes.append(disks.repair())
            outcomes.append(disks.repair())
            if outcomes[-1] is not None:
                names, accepted = disks.names(), disks.accept()
                assert not [sequence for sequence in accepted if names[sequence] in held]
                counts["accepted as lost"] += len(accepted)
            counts["cases"] += 1
            counts["repairs"] += sum(outcome is not None for outcome in outcomes)
            counts["refused"] += sum(outcome is None for outcome in outcomes)
            counts["waited for"] += sum(outcome or 0 for outcome in outcomes)
            order, orders = order + 1, len(returns)
            shutil.rmtree(disks.root)
    print(f"{first.__name__}: {counts}")
    assert counts["cases"] >= 24 and counts["repairs"] > counts["refused"]
