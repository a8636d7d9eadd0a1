"""Stores on object stores whose server fails, refuses, cuts connections and loses answers."""

import errno
import itertools
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from harness.objects.server import KEY_ID, SECRET, Faults

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    NoQuorumError,
    NotAStoreError,
    OutcomeUnknownError,
    ProcessError,
    ReadOnlyError,
    StorageError,
    UnsuitableFileSystemError,
    VolumeAwayError,
)
from storage_core.objects.client import CALL_TIMEOUT_S
from storage_core.objects.remote import RemoteObjectStore
from storage_core.store.store import Store
from storage_core.store.volume import object_probe
from storage_core.store.writing.appends import WriterBatch

READS = ("GET", "HEAD")
TRANSIENT = ("503 SlowDown", "429 TooManyRequests", "500 InternalError", "cut", "lost", "short", "whole")


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


def test_part_that_fails_for_a_moment_is_put_again_and_a_volume_that_refuses_it_is_left_out(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path
) -> None:
    store = made(buckets, options)
    refusing, failed, lock = buckets[2].split("/")[2], [], threading.Lock()

    def judge(verb: str, address: str) -> str:
        with lock:
            if verb != "PUT" or "partNumber" not in address:
                return ""
            if refusing in address:
                return "403 AccessDenied"
            failed.append(address)
            return TRANSIENT[len(failed) - 1] if len(failed) <= 4 else ""

    faults.judge = judge
    random = Random(1)
    messages = [{"subject": "orders.new", "data": random.randbytes(64 << 10)} for _ in range(300)]
    store.stream("ORDERS").append(messages)
    assert len(failed) > 6
    assert data(Store.open(buckets[0], storage_options=options)) == [message["data"] for message in messages]
    assert [len(list((s3_root / bucket.split("/")[2]).rglob("*.blk"))) for bucket in buckets] == [1, 1, 0]


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


Requests = Callable[[str, str], bool]  # by verb and address


def every(verb: str, address: str) -> bool:
    return True


def lists(verb: str, address: str) -> bool:
    return "list-type" in address


def gets(verb: str, address: str) -> bool:
    return verb in READS and not lists(verb, address)


def puts(verb: str, address: str) -> bool:
    return verb == "PUT"


def deletes(verb: str, address: str) -> bool:
    return verb in ("DELETE", "POST")


# What the server answers to which requests while what is done, and what is raised and said.
REFUSALS: list[tuple[str, Requests, str, type[StorageError], str]] = [
    ("403 InvalidAccessKeyId", every, "open", ProcessError, "refuses to get.*InvalidAccessKeyId"),
    ("403 SignatureDoesNotMatch", every, "open", ProcessError, "credentials.*SignatureDoesNotMatch"),
    ("400 ExpiredToken", every, "open", ProcessError, "credentials.*ExpiredToken"),
    ("400 ExpiredToken", every, "append", ProcessError, "credentials.*ExpiredToken"),
    ("400 ExpiredToken", every, "read", ProcessError, "credentials.*ExpiredToken"),
    (
        "403 InvalidAccessKeyId",
        every,
        "fetch",
        ReadOnlyError,
        "credentials.*InvalidAccessKeyId",
    ),  # it begins with a put
    ("403 RequestTimeTooSkewed", every, "open", ProcessError, "clock.*RequestTimeTooSkewed"),
    ("400 AuthorizationHeaderMalformed", every, "open", ProcessError, "region.*AuthorizationHeaderMalformed"),
    ("301 PermanentRedirect", every, "open", ProcessError, "region.*redirect"),
    ("403 AccessDenied", gets, "open", ProcessError, "refuses to get"),
    ("403 AccessDenied", lists, "open", ProcessError, "refuses to list"),
    ("403 AccessDenied", puts, "append", ReadOnlyError, "refuses to put"),
    ("403 AccessDenied", puts, "consumer", ReadOnlyError, "refuses to put"),
    ("403 AccessDenied", gets, "create", ReadOnlyError, "refuses to get"),
    ("403 AccessDenied", lists, "create", ReadOnlyError, "refuses to list"),
    ("403 AccessDenied", puts, "create", ReadOnlyError, "refuses to put"),
    ("403 AccessDenied", deletes, "create", ReadOnlyError, "refuses to delete"),
    ("each AccessDenied", deletes, "create", ReadOnlyError, "refuses to delete"),
    ("403 AccessDenied", lambda *request: puts(*request) or deletes(*request), "create", ReadOnlyError, "to put"),
]


@pytest.mark.parametrize(("fate", "is_refused", "what", "error", "says"), REFUSALS)
def test_what_is_refused_is_named_and_secrets_are_not_shown(
    buckets: list[str],
    options: dict[str, str],
    faults: Faults,
    caplog: pytest.LogCaptureFixture,
    fate: str,
    is_refused: Requests,
    what: str,
    error: type[StorageError],
    says: str,
) -> None:
    store = made(buckets[:1], options)
    store.stream("ORDERS").append(rows(1))
    consumer = store.stream("ORDERS").add_consumer({"name": "billing"})
    calls = {
        "open": lambda: Store.open(buckets[0], storage_options=options),
        "append": lambda: store.stream("ORDERS").append(rows(2)),
        "read": lambda: store.stream("ORDERS").read().read_all(),
        "consumer": lambda: (
            Store.open(buckets[0], storage_options=options).stream("ORDERS").add_consumer({"name": "other"})
        ),
        "fetch": lambda: consumer.fetch(1, timeout_s=0),
        "create": lambda: Store.create(buckets[1], storage_options=options),
    }
    begun_s = time.monotonic()
    faults.judge = lambda verb, address: fate if is_refused(verb, address) else ""
    with caplog.at_level(logging.DEBUG), pytest.raises(error, match=says) as caught:
        calls[what]()
    assert time.monotonic() - begun_s < CALL_TIMEOUT_S, "nothing is tried again for long that stays refused"
    said = "".join((str(caught.value), repr(caught.value), repr(store), *caplog.messages))
    assert SECRET not in said and KEY_ID not in said
    faults.judge = lambda verb, address: ""
    assert data(store) == [b"1"] * 3, "what was refused is nowhere"


@pytest.mark.parametrize("fate", ["400 ExpiredToken", "403 AccessDenied"])
def test_majority_that_refuses_this_process_is_no_lost_majority(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path, fate: str
) -> None:
    store = made(buckets, options)
    store.stream("ORDERS").append(rows(1))
    names = [bucket.split("/")[2] for bucket in buckets]
    refusing = names[:2]
    faults.judge = lambda verb, address: fate if any(f"/{name}" in address for name in refusing) else ""
    writes: dict[str, Callable[[], object]] = {
        "append": lambda: store.stream("ORDERS").append(rows(2)),
        "remove": lambda: store.stream("ORDERS").remove(1),
        "repair": lambda: store.repair(),
        "add": lambda: store.add_stream({"name": "LOGS"}),
        "open": lambda: Store.open(buckets, storage_options=options).add_stream({"name": "LOGS"}),
    }
    for write in writes.values():
        with pytest.raises(ProcessError, match="check the credentials") as caught:
            write()
        assert (caught.value.errno, str(caught.value.file).split("/")[2] in refusing) == (errno.EACCES, True)
    assert data(store) == [b"1"] * 3, "what is known to be committed is still read"
    faults.judge = lambda verb, address: fate if f"/{refusing[0]}" in address else ""
    store.stream("ORDERS").append(rows(2))
    assert not store.repair()["ok"], "one of three is left as it is, and said"
    (s3_root / names[2]).rename(s3_root / f"lost-{names[2]}")
    with pytest.raises(ProcessError, match="check the credentials"):
        store.stream("ORDERS").append(rows(3))
    (s3_root / names[1]).rename(s3_root / f"lost-{names[1]}")
    with pytest.raises(NoQuorumError) as lost:
        store.stream("ORDERS").append(rows(3))
    assert (lost.value.available, lost.value.needed) == (0, 2)
    for name in names[1:]:
        (s3_root / f"lost-{name}").rename(s3_root / name)
    faults.judge = lambda verb, address: ""
    assert store.repair()["ok"] and data(store) == [b"1"] * 3 + [b"2"] * 3


def test_store_that_may_not_be_written_is_read_and_without_deletions_it_is_written(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    store = made(buckets[:1], options)
    faults.judge = lambda verb, address: "403 AccessDenied" if verb in ("DELETE", "POST") else ""
    for number in range(3):
        store.stream("ORDERS").append(rows(number))
    faults.judge = lambda verb, address: "403 AccessDenied" if verb not in READS else ""
    expected = [b"%d" % number for number in range(3) for _ in range(3)]
    assert data(Store.open(buckets[0], storage_options=options)) == expected


def test_bucket_that_is_not_there_is_no_store(s3_options: dict[str, str]) -> None:
    with pytest.raises(NotAStoreError):
        Store.open("s3://no-such-bucket/shop", storage_options=s3_options)
    with pytest.raises(NotAStoreError, match="there is no bucket s3://no-such-bucket"):
        Store.create("s3://no-such-bucket/shop", storage_options=s3_options)


@pytest.mark.parametrize("volume_count", [1, 3])
def test_volumes_of_which_nothing_answers_are_away(
    buckets: list[str], options: dict[str, str], monkeypatch: pytest.MonkeyPatch, volume_count: int
) -> None:
    monkeypatch.setattr(RemoteObjectStore.__init__, "__defaults__", (0.5,))  # seconds for a call, repetitions included
    made(buckets[:volume_count], options)
    nowhere = {**options, "aws_endpoint_url": "http://127.0.0.1:1"}
    for call in (Store.open, Store.create):
        with pytest.raises(VolumeAwayError, match=r"http://127\.0\.0\.1:1: .*Connection refused"):
            call(buckets[:volume_count], storage_options=nowhere)


def test_volume_that_answers_after_minutes_is_not_waited_for(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    store = made(buckets, options)
    late, is_over = buckets[1].split("/")[2], threading.Event()

    def answer_late(verb: str, address: str) -> str:
        if f"/{late}" in address:
            is_over.wait(120.0)
        return ""

    faults.judge = answer_late
    try:
        begun_s = time.monotonic()
        store.stream("ORDERS").append(rows(0))
        for number, volumes in enumerate((buckets, buckets[:1])):
            other = Store.open(volumes, storage_options=options)  # whose calls there are overdue
            afresh = Store.open(
                volumes, storage_options={**options, "timeout": f"{8 + number}s"}
            )  # as in a new process
            other.stream("ORDERS").append(rows(number + 1))
            assert data(afresh) == [b"%d" % row for row in range(number + 2) for _ in "123"]
        assert time.monotonic() - begun_s < 20.0, "about two seconds for whoever does not know yet"
    finally:
        is_over.set()


def test_append_that_no_volume_takes_is_refused_since_they_are_away(
    buckets: list[str], options: dict[str, str], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteObjectStore.__init__, "__defaults__", (0.5,))
    store = made(buckets, options)
    faults.judge = lambda verb, address: "503 SlowDown" if verb == "PUT" else ""
    with pytest.raises(VolumeAwayError, match="503 Service Unavailable: SlowDown"):
        store.stream("ORDERS").append(rows(1))


@pytest.mark.parametrize("fate", ["404 NoRole", "403 Forbidden"])
def test_credentials_that_nothing_gives_are_missed_by_name(
    buckets: list[str], options: dict[str, str], faults: Faults, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    for key in options:
        monkeypatch.delenv(key.upper(), raising=False)
    given = {key: value for key, value in options.items() if "key" not in key}
    given["aws_metadata_endpoint"] = options["aws_endpoint_url"]  # which would give those of the machine's role
    faults.judge = lambda verb, address: fate
    with pytest.raises(ProcessError, match="no credentials: neither settings nor environment nor a role"):
        Store.open(buckets[0], storage_options=given)


def test_store_in_buckets_of_google(buckets: list[str], options: dict[str, str]) -> None:
    account = {"gcs_base_url": options["aws_endpoint_url"], "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    given = {"google_service_account_key": json.dumps(account), "allow_http": "true"}
    volumes = [bucket.replace("s3://", "gs://") for bucket in buckets]
    store = made(volumes, given)
    store.stream("ORDERS").append(rows(1))
    assert data(Store.open(volumes[1], storage_options=given)) == [b"1"] * 3
    assert store.repair()["ok"]


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


def test_server_that_asks_all_racers_to_try_again_now_and_then_is_no_wrong_one(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    numbers = itertools.count()

    def judge(verb: str, address: str) -> str:
        is_raced = verb == "PUT" and "probe-" in address
        return "409 ConditionalRequestConflict" if is_raced and next(numbers) < object_probe.RACER_COUNT else ""

    faults.judge = judge
    made(buckets[:1], options).stream("ORDERS").append(rows(1))
    faults.judge = lambda verb, address: "409 ConditionalRequestConflict" if verb == "PUT" else ""
    with pytest.raises(UnsuitableFileSystemError, match="none succeeded"):
        Store.create(buckets[1], storage_options=options)


@pytest.mark.parametrize("lets_win", [lambda number: True, lambda number: number == 9], ids=["always", "once"])
def test_server_that_lets_several_win_is_refused_and_nothing_is_left_there(
    buckets: list[str],
    options: dict[str, str],
    faults: Faults,
    s3_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    lets_win: Callable[[int], bool],
) -> None:
    monkeypatch.setattr(object_probe, "PATIENCE_S", 60.0)  # however busy this machine is
    numbers = itertools.count()

    def judge(verb: str, address: str) -> str:
        return "always" if verb == "PUT" and lets_win(next(numbers) // object_probe.RACER_COUNT) else ""

    faults.judge = judge
    with pytest.raises(UnsuitableFileSystemError, match="in this object store") as caught:
        Store.create(buckets[0], storage_options=options)
    assert caught.value.what == "creating an object that is not there"
    assert not [path for path in (s3_root / buckets[0].split("/")[2]).rglob("*") if path.is_file()]


def test_server_that_serves_other_ranges_is_refused(
    buckets: list[str], options: dict[str, str], faults: Faults, s3_root: Path
) -> None:
    faults.judge = lambda verb, address: "wrong"
    with pytest.raises(UnsuitableFileSystemError) as caught:
        Store.create(buckets[0], storage_options=options)
    assert caught.value.what == "reading a range of an object"
    assert not [path for path in (s3_root / buckets[0].split("/")[2]).rglob("*") if path.is_file()]


def test_range_that_is_not_the_one_that_was_asked_for_is_asked_for_again(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    store = made(buckets[:1], options)
    random, served = Random(1), itertools.count()
    messages = [{"subject": "orders.new", "data": random.randbytes(64 << 10)} for _ in range(160)]
    store.stream("ORDERS").append(messages)
    faults.judge = lambda verb, address: "other" if verb == "GET" and next(served) % 2 else ""
    assert data(store) == [message["data"] for message in messages]


def test_bytes_that_are_not_the_ones_that_were_asked_for_come_from_another_volume(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    store = made(buckets, options)
    random = Random(1)
    messages = [{"subject": "orders.new", "data": random.randbytes(64 << 10)} for _ in range(160)]
    store.stream("ORDERS").append(messages)
    for bucket in buckets:
        wrong = bucket.split("/")[2]
        faults.judge = lambda verb, address, wrong=wrong: "wrong" if wrong in address else ""  # type: ignore[misc]
        assert data(store) == [message["data"] for message in messages]


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


def test_prefix_with_folders_in_which_nothing_is_any_more_is_empty(
    buckets: list[str], s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SeaweedFS lists a prefix that was emptied."""
    children = RemoteObjectStore.children
    monkeypatch.setattr(RemoteObjectStore, "children", lambda store, prefix: ["streams", *children(store, prefix)])
    Store.open_or_create(buckets[0], 0.0, storage_options=s3_options)
    with pytest.raises(AlreadyExistsError, match="holds a jstream store already"):
        Store.create(buckets[0], storage_options=s3_options)


def test_metadata_that_is_lost_in_buckets_is_for_a_backup(
    buckets: list[str], s3_options: dict[str, str], s3_root: Path
) -> None:
    made(buckets, s3_options)
    another = [buckets[0].replace("/shop", "/other")]
    made(another, s3_options)
    for bucket in buckets:
        shutil.rmtree(s3_root / bucket.split("/")[2] / "shop" / "meta")
    shutil.rmtree(s3_root / buckets[0].split("/")[2] / "other" / "meta")
    for volumes in (buckets, another):
        with pytest.raises(StorageError, match="restore a backup") as caught:
            Store.open(volumes, storage_options=s3_options)
        assert "--adopt" not in str(caught.value), "which is refused there"


def test_append_that_may_not_look_whether_it_counts_does_not_say_that_nothing_was_stored(
    buckets: list[str], options: dict[str, str], faults: Faults
) -> None:
    store = made(buckets[:1], options)
    store.stream("ORDERS").append(rows(1))
    created: list[str] = []

    def judge(verb: str, address: str) -> str:
        if verb == "PUT" and ".rec" in address:
            created.append(address)
        return "403 AccessDenied" if verb == "HEAD" and created else ""

    faults.judge = judge
    with pytest.raises(OutcomeUnknownError, match="check the credentials"):
        store.stream("ORDERS").append(rows(2), WriterBatch("loader", "2"))
    faults.judge = lambda verb, address: ""
    store.stream("ORDERS").append(rows(2), WriterBatch("loader", "2"))
    assert data(store) == [b"1"] * 3 + [b"2"] * 3
