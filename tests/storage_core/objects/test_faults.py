"""Stores on object stores whose server fails, refuses, cuts connections and loses answers."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from harness.objects.server import KEY_ID, SECRET, Faults, serving

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    NotAStoreError,
    ProcessError,
    ReadOnlyError,
    StorageError,
    UnsuitableFileSystemError,
)
from storage_core.store.store import Store
from storage_core.store.writing.appends import WriterBatch

READS = ("GET", "HEAD")
TRANSIENT = ("503 SlowDown", "429 TooManyRequests", "500 InternalError", "cut", "lost", "short", "whole")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def options(s3_root: Path, faults: Faults) -> Iterator[dict[str, str]]:
    with serving(s3_root, faults) as given:
        yield given


def made(volumes: list[str], options: dict[str, str]) -> Store:
    store = Store.create(volumes, storage_options=options)
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    return store


def rows(number: int) -> list[dict[str, object]]:
    return [{"subject": "orders.new", "data": b"%d" % number}] * 3


def data(store: Store) -> list[bytes]:
    return store.stream("ORDERS").read(columns=["data"]).read_all()["data"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("fate", TRANSIENT)
def test_reads_that_fail_for_a_moment_are_made_again(
    buckets: list[str], options: dict[str, str], faults: Faults, fate: str
) -> None:
    store = made(buckets[:1], options)
    failed: set[str] = set()
    lock = threading.Lock()

    def first_time(verb: str, address: str) -> str:
        with lock:
            if verb not in READS or address in failed:
                return ""
            failed.add(address)
            return fate

    faults.judge = first_time
    store.stream("ORDERS").append(rows(1))
    assert data(Store.open(buckets[0], storage_options=options)) == [b"1"] * 3
    assert len(failed) >= 4


@pytest.mark.parametrize("fate", ["500 InternalError", "cut", "lost"])
def test_volume_that_takes_nothing_is_left_out_and_catches_up(
    buckets: list[str], options: dict[str, str], faults: Faults, fate: str
) -> None:
    store = made(buckets, options)
    bucket = buckets[1].split("/")[2]
    faults.judge = lambda verb, address: fate if verb == "PUT" and bucket in address and ".blk" not in address else ""
    for number in range(3):
        store.stream("ORDERS").append(rows(number))
    faults.judge = lambda verb, address: ""
    store.stream("ORDERS").append(rows(3))
    expected = [b"%d" % number for number in range(4) for _ in range(3)]
    assert data(Store.open(buckets[1], storage_options=options)) == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_sent_until_it_is_known_to_be_there_is_there_once(
    buckets: list[str], options: dict[str, str], faults: Faults, seed: int
) -> None:
    made(buckets, options)
    random, lock = Random(seed), threading.Lock()

    def often(verb: str, address: str) -> str:
        with lock:
            return random.choice(TRANSIENT) if random.random() < 0.1 else ""

    faults.judge = often
    for number in range(5):
        for _ in range(20):
            try:
                store = Store.open(buckets, storage_options=options)
                store.stream("ORDERS").append(rows(number), WriterBatch("loader", str(number)))
                break
            except StorageError:  # it may be there all the same
                continue
    faults.judge = lambda verb, address: ""
    assert data(Store.open(buckets, storage_options=options)) == [b"%d" % number for number in range(5) for _ in "123"]


def test_credentials_that_are_refused_are_named_and_not_shown(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    made(buckets[:1], options)
    for code in ("403 AccessDenied", "403 SignatureDoesNotMatch", "400 ExpiredToken", "301 PermanentRedirect"):
        faults.judge = lambda verb, address, fate=code: fate  # type: ignore[misc]
        with pytest.raises(ProcessError, match="check the credentials") as caught:
            Store.open(buckets[0], storage_options=options)
        assert code.split()[1] in str(caught.value) or "redirect" in str(caught.value)
        assert SECRET not in str(caught.value) and KEY_ID not in str(caught.value)


@pytest.mark.parametrize(
    ("verbs", "right"), [(("GET",), "list"), (("PUT",), "put"), (("DELETE", "POST"), "delete"), (("HEAD",), "get")]
)
def test_right_that_is_missing_is_named(
    buckets: list[str], options: dict[str, str], faults: Faults, verbs: tuple[str, ...], right: str
) -> None:
    faults.judge = lambda verb, address: "403 AccessDenied" if verb in verbs else ""
    with pytest.raises((ReadOnlyError, ProcessError), match=f"refuses to {right}"):
        Store.create(buckets[0], storage_options=options)


def test_bucket_that_is_not_there_is_no_store(s3_options: dict[str, str]) -> None:
    with pytest.raises(NotAStoreError):
        Store.open("s3://no-such-bucket/shop", storage_options=s3_options)
    with pytest.raises(NotAStoreError, match="there is no bucket s3://no-such-bucket"):
        Store.create("s3://no-such-bucket/shop", storage_options=s3_options)


def test_places_that_cannot_be_volumes_are_refused_and_left_alone(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    roots = [s3_root / bucket.split("/")[2] for bucket in buckets]
    (s3_root / f"{roots[0].name}-alias").symlink_to(roots[0])
    alias = buckets[0].replace(roots[0].name, f"{roots[0].name}-alias")
    with pytest.raises(ValueError, match="two names of one place"):
        Store.create([buckets[0], buckets[1], alias], storage_options=s3_options)
    with pytest.raises(ValueError, match="is given twice"):
        Store.create([buckets[0], buckets[1], f"s3a://{roots[0].name}/shop/"], storage_options=s3_options)
    with pytest.raises(ValueError, match="lies within"):
        Store.create([buckets[0], buckets[1], f"{buckets[0]}/inside"], storage_options=s3_options)
    (roots[2] / "shop").mkdir()
    (roots[2] / "shop" / "report.csv").write_text("a;b")
    with pytest.raises(AlreadyExistsError, match=r"report\.csv"):
        Store.create(buckets, storage_options=s3_options)
    with pytest.raises(NotAStoreError):
        Store.open(buckets[2], storage_options=s3_options)
    left = sorted(str(path.relative_to(s3_root)) for root in roots for path in root.rglob("*") if path.is_file())
    assert left == [f"{roots[2].name}/shop/report.csv"]


def test_server_that_ignores_conditions_is_refused_and_nothing_is_left_there(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path
) -> None:
    faults.judge = lambda verb, address: "always"
    with pytest.raises(UnsuitableFileSystemError, match="creating an object that is not there"):
        Store.create(buckets[0], storage_options=options)
    assert not [path for path in (s3_root / buckets[0].split("/")[2]).rglob("*") if path.is_file()]


def test_store_of_local_disks_that_was_copied_into_a_bucket_says_so_and_is_left_alone(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, tmp_path: Path
) -> None:
    with Store.create(tmp_path / "shop") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        store.stream("ORDERS").append(rows(1))
    root = s3_root / buckets[0].split("/")[2]
    shutil.copytree(tmp_path / "shop", root / "shop")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with pytest.raises(CorruptionError, match="volume on disks"):
        Store.open(buckets[0], storage_options=s3_options)
    with pytest.raises(AlreadyExistsError):
        Store.create(buckets[0], storage_options=s3_options)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("volume_count", [1, 3])
def test_buckets_that_were_emptied_are_no_store_and_nothing_is_made_of_them(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path, volume_count: int
) -> None:
    store = made(buckets[:volume_count], s3_options)
    for bucket in buckets[:volume_count]:
        root = s3_root / bucket.split("/")[2]
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(StorageError):
        store.stream("ORDERS").append(rows(1))
    with pytest.raises(NotAStoreError):
        Store.open(buckets[:volume_count], storage_options=s3_options)
    assert not [path for bucket in buckets for path in (s3_root / bucket.split("/")[2]).rglob("*.rec")]
