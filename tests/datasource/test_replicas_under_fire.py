"""Replicas with real files and real Spark: volumes are lost and damaged at random while a job appends.

One volume at a time of three, two of five; the next ones only when all copies are current again. Which fault comes is
decided by a seed. Every append that was acked is there at the end, once and in order, whichever majority survives.
"""

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_jstream import register
from storage_core import Store
from storage_core.errors import StorageError

pytestmark = pytest.mark.spark
STREAM = "FIRE"
REPAIRS_MAX = 20  # after which a store that is not current is not going to be


@dataclass
class Job:
    """A job that appends numbered messages, `per_append` at a time, and keeps what was acked."""

    spark: SparkSession
    paths: list[str]
    appends: int
    per_append: int
    acked: int = 0
    errors: list[str] = field(default_factory=list)
    each: Callable[[], None] = lambda: None

    def run(self) -> None:
        try:
            register(self.spark)  # a thread has no session of its own, and Spark looks in its first one
            for number in range(self.appends):
                self._append(number)
                self.acked += 1
                self.each()
        except Exception as error:
            self.errors.append(f"{error} {getattr(error, 'java_exception', '')}")
        finally:
            self.each()

    def _append(self, number: int) -> None:
        first = number * self.per_append
        rows = self.spark.range(first, first + self.per_append, 1, 2)
        frame = rows.selectExpr("cast(id as string) as data", "concat('n.', id % 7) as subject")
        writer = frame.write.format("jstream").mode("append").option("stream", STREAM)
        writer = writer.option("writerId", "fire").option("batchId", str(number))
        for attempt in itertools.count():
            try:
                writer.save(",".join(self.paths))
                return
            except Exception:  # a fault may take more than Spark's own retries; the same batch may be sent again
                if attempt == 3:
                    raise


@dataclass
class Fire:
    """What happens to volumes, decided by a seed. Every fault is done to one directory from outside."""

    paths: list[Path]
    seed: int
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.older: dict[Path, Path] = {}

    def keep_copies(self) -> None:
        """Copy every volume as it is between two sessions, to put it back later."""
        with Store.open(self.paths).session():
            for path in self.paths:
                copy = path.with_suffix(".older")
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(path, copy)
                self.older[path] = copy

    def strike(self, path: Path) -> None:
        faults = [self.delete, self.blank, self.roll_back, self.flip, self.cut]
        fault = faults[len(self.done) % len(faults)] if self.random.random() < 0.5 else self.random.choice(faults)
        self.done.append(fault.__name__)
        fault(path)

    def delete(self, path: Path) -> None:
        gone = path.with_suffix(".gone")
        path.rename(gone)
        shutil.rmtree(gone)

    def blank(self, path: Path) -> None:
        gone = path.with_suffix(".gone")
        path.rename(gone)
        path.mkdir(mode=0o700)
        shutil.rmtree(gone)

    def roll_back(self, path: Path) -> None:
        if path not in self.older:
            return self.delete(path)
        gone = path.with_suffix(".gone")
        path.rename(gone)
        shutil.copytree(self.older[path], path)
        shutil.rmtree(gone)
        return None

    def flip(self, path: Path) -> None:
        for file in self._some(path):
            with file.open("r+b") as opened:
                for _ in range(2):
                    place = self.random.randrange(file.stat().st_size)
                    opened.seek(place)
                    byte = opened.read(1)[0] ^ 1 << self.random.randrange(8)
                    opened.seek(place)
                    opened.write(bytes([byte]))

    def cut(self, path: Path) -> None:
        for file in self._some(path):
            with file.open("r+b") as opened:
                opened.truncate(self.random.randrange(file.stat().st_size))

    def _some(self, path: Path) -> list[Path]:
        """Return files of the volume: of those that do not go away meanwhile."""
        files = sorted(one for one in path.rglob("*") if one.suffix in (".blk", ".log", ".snap", ".volume"))
        chosen = self.random.sample(files, min(len(files), self.random.randint(1, 4)))
        return [one for one in chosen if one.exists() and one.stat().st_size]


def replicas(paths: list[Path]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Store.open(paths).stream(STREAM).info()["cluster"]["replicas"]
    return found


def all_current(paths: list[Path]) -> bool:
    """Repair until every copy is current and the same as the others; False if that does not come about."""
    for _ in range(REPAIRS_MAX):
        try:
            with Store.open(paths) as store:
                store.repair()
            found = replicas(paths)
        except StorageError:
            continue
        if {one["state"] for one in found} == {"current"} and len({one["digest"] for one in found}) == 1:
            return True
    return False


@pytest.mark.parametrize(("volume_count", "at_once", "seed"), [(3, 1, 1), (5, 2, 2)])
def test_an_appending_job_loses_nothing_while_volumes_are_lost_and_damaged(
    spark: SparkSession, tmp_path: Path, volume_count: int, at_once: int, seed: int
) -> None:
    under_fire(spark, tmp_path, volume_count, at_once, seed, appends=20, per_append=4_000)


@pytest.mark.soak
@pytest.mark.parametrize(("volume_count", "at_once"), [(3, 1), (5, 2)])
def test_soak_an_appending_job_under_fire(
    spark: SparkSession, tmp_path: Path, volume_count: int, at_once: int, soak_seconds: float
) -> None:
    began, seed = time.monotonic(), 1000
    while True:
        place = tmp_path / str(seed)
        place.mkdir()
        under_fire(spark, place, volume_count, at_once, seed, appends=100, per_append=10_000)
        shutil.rmtree(place)
        seed += 1
        if time.monotonic() - began > soak_seconds:
            break


def under_fire(
    spark: SparkSession, place: Path, volume_count: int, at_once: int, seed: int, appends: int, per_append: int
) -> None:
    print(f"\nseed={seed}, {volume_count} volumes, {at_once} at once")
    paths = [place / f"volume-{number}" for number in range(volume_count)]
    with Store.create(paths, snapshot_every=20) as store:
        store.add_stream({"name": STREAM, "subjects": ["n.*"], "block_max_msgs": 1_500})
    fire = Fire(paths, seed)
    job = Job(spark, [str(path) for path in paths], appends, per_append)
    appended = threading.Event()
    job.each = appended.set
    worker = threading.Thread(target=job.run)
    worker.start()
    try:
        while worker.is_alive():
            appended.wait(60)
            appended.clear()
            if fire.random.random() < 0.4:
                fire.keep_copies()
            for path in fire.random.sample(paths, at_once):
                fire.strike(path)
            assert all_current(paths), f"seed={seed} {fire.done}: {replicas(paths)}"
    finally:
        worker.join()
    assert not job.errors, f"seed={seed} {fire.done}: {job.errors}"
    print(f"{len(fire.done)} faults: {', '.join(fire.done)}")
    assert len(fire.done) >= min(5, appends // 4)
    check_everything(spark, paths, appends * per_append, at_once)


def check_everything(spark: SparkSession, paths: list[Path], count: int, at_once: int) -> None:
    """Every message once and in order: read by Spark, and from every combination of volumes that may survive."""
    frame = spark.read.format("jstream").option("stream", STREAM).load([str(path) for path in paths])
    found = frame.selectExpr("count(*)", "count(distinct data)", "max(sequence)", "min(sequence)").first()
    assert found is not None
    assert tuple(found) == (count, count, count, 1)
    expected = [str(number).encode() for number in range(count)]
    for lost in itertools.combinations(paths, at_once):
        for path in lost:
            path.rename(path.with_suffix(".away"))
        left = [path for path in paths if path not in lost]
        try:
            table = Store.open(left).stream(STREAM).read(columns=["sequence", "data"]).read_all()
            assert table.column("sequence").to_pylist() == list(range(1, count + 1))
            assert table.column("data").to_pylist() == expected, f"without {lost}"
        finally:
            for path in lost:
                path.with_suffix(".away").rename(path)
