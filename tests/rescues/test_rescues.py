"""Kept stores of other servers, damaged at random: strict reads are exact or raise, and all readers say the same.

What is done and what has to hold is in tests/harness/rescues.py. `JSTREAM_RESCUES=nats/consumers:17` repeats one case,
`JSTREAM_RESCUES_SEED` is where a long run begins.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.cases import REPORTS
from harness.rescues import Kept, Outcome, cases, kept, run, strict

from storage_core.errors import StorageError

SECONDS, CASE_COUNT = 60.0, {"nats": 300, "nats-field": 100, "stan": 200, "stan-field": 20}
KEPT_CASES = {  # damages that were read wrong
    "nats": [
        "nats/r3-lagging-follower:5000142",  # two torn ends of three copies
        "nats/old-2-10-25:8500172",  # cut behind a tombstone, and a message damaged that was removed before: no trace
    ],
    "stan": [
        "stan/subs-compacted:5000051",  # an index cut within an entry
        "stan/damaged-no-index:5000226",  # a copy of a slice, damaged at its end
        "stan/damaged-truncated-subs:5000677",  # bytes that came in front of a cut
        "stan/damaged-no-index:5000763",  # two damaged messages in front of a channel
        "stan/damaged-truncated-subs:6000102",  # a first slice that is another one, beside its own index
        "stan/subs-compacted:6300024",  # zero bytes behind a damaged last record
    ],
    "stan-field": ["stan-field/numbers-restart:9100356"],  # cut within a copy, beside an index that lists more
}
LAYOUTS = pytest.mark.parametrize("stores", CASE_COUNT, indirect=True)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A directory in memory, where there is one: the disk is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


@dataclass(frozen=True)
class Stores:
    folder: str
    kept: dict[str, Kept]


@pytest.fixture(scope="module")
def stores(request: pytest.FixtureRequest) -> Stores:
    return Stores(request.param, kept(request.param.partition("-")[0], [request.param]))


def finish(outcome: Outcome, what: str) -> None:
    REPORTS.append(f"rescues, {what}: {outcome.describe()}")
    print(REPORTS[-1])
    assert not outcome.findings, "\n".join(outcome.findings)


@LAYOUTS
def test_damaged_stores_are_read_exactly_or_not_at_all(stores: Stores, folder: Path) -> None:
    asked = os.environ.get("JSTREAM_RESCUES", "")
    listed = [(name, int(seed)) for name, _, seed in (one.rpartition(":") for one in asked.split(",") if one)]
    todo = iter([case for case in listed if case[0] in stores.kept]) if asked else cases(stores.kept, 0)
    finish(run(stores.kept, todo, folder, SECONDS, CASE_COUNT[stores.folder]), stores.folder)


@pytest.mark.parametrize("stores", KEPT_CASES, indirect=True)
def test_damages_that_were_read_wrong_are_read_right(stores: Stores, folder: Path) -> None:
    listed = [case.rpartition(":") for case in KEPT_CASES[stores.folder]]
    outcome = run(stores.kept, iter([(name, int(seed)) for name, _, seed in listed]), folder, SECONDS)
    assert (outcome.findings, outcome.counts["damages"]) == ([], len(listed))


@pytest.mark.soak
@LAYOUTS
def test_damaged_stores_for_long(stores: Stores, folder: Path, soak_seconds: float) -> None:
    seed = int(os.environ.get("JSTREAM_RESCUES_SEED", random.SystemRandom().randrange(1 << 40)))
    print(f"rescues: from seed {seed}", flush=True)
    finish(run(stores.kept, cases(stores.kept, seed), folder, soak_seconds), f"{stores.folder} from seed {seed}")


def test_a_slice_overwritten_by_another_stops_a_strict_read(folder: Path) -> None:
    """No message of the slice is left, so that a reader which counts rows alone would leave the slice out."""
    store = kept("stan")["stan/limits-archive"]
    place = folder / "overwritten"
    shutil.copytree(store.place, place)
    channel = place / "foo"
    shutil.copy(channel / "msgs.7.dat", channel / "msgs.6.dat")
    with pytest.raises(StorageError, match=r"msgs\.6\.dat"):
        strict(store, place)


@pytest.mark.parametrize("stores", ["nats"], indirect=True)
def test_an_end_of_a_block_overwritten_by_its_beginning_stops_a_strict_read(stores: Stores, folder: Path) -> None:
    """The records there are true, and their messages are shown from their own place: no row tells of the damage."""
    store = stores.kept["nats/limits-evicted"]
    place = folder / "overwritten-end"
    shutil.copytree(store.place, place)
    next(place.rglob("index.db")).unlink()
    block = next(place.rglob("1.blk"))
    content, cut = block.read_bytes(), 5632
    record_end = min(end for end in store.ends[block.relative_to(place)] if end > len(content) - cut)
    block.write_bytes(content[:cut] + content[record_end - (len(content) - cut) : record_end])
    with pytest.raises(StorageError, match=r"1\.blk"):
        strict(store, place)
