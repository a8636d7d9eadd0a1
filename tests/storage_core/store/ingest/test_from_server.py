"""Streams of other servers imported: every message as the reader reads it, once, wherever an import was ended."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.cases import Cases
from harness.channels import write_channel
from harness.faults import Call, end_at, fail_at
from harness.processes import Machine
from harness.sequences import expand
from harness.simulated_disk import NOTHING_KEPT, ProcessEnded

from storage_core.errors import (
    AlreadyExistsError,
    DataLossError,
    LimitExceededError,
    NotAStoreError,
    NotFoundError,
    RequirementError,
    StorageError,
    UnsupportedVersionError,
)
from storage_core.files import OS_FILES
from storage_core.foreign import ForeignStore, open_foreign, read_foreign_slice
from storage_core.store.ingest import from_server, server_streams
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.ingest.preparation import PREPARED_NS
from storage_core.store.ingest.records import PartRecord
from storage_core.store.ingest.server_config import default_name
from storage_core.store.ingest.server_parts import PartTask, write_part
from storage_core.store.store import Store

DATA = Path(__file__).parents[3] / "data"
KEY = "fixture-key-not-secret"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
SECOND_NS = 10**9
NATS = sorted(one.name for one in (DATA / "nats").iterdir() if one.is_dir())
STAN = sorted(one.name for one in (DATA / "stan").iterdir() if one.is_dir() and one.name != "encrypted")
CASES = int(os.environ.get("JSTREAM_IMPORT_CASES", "16"))  # calls of one kind of end, damages of one store
SMALL = DATA / "nats" / "deletes-tail" / "store"  # is imported again and again
CONTINUE = ImportRequest(on_data_loss="continue")


def opened(layout: str, case: str, **options: Any) -> ForeignStore:
    key = KEY if layout == "nats" and case.startswith("encrypted") else None
    return open_foreign(DATA / layout / case / "store", layout, encryption_key=key, **options)


def read(source: ForeignStore, stream: str) -> list[dict[str, Any]]:
    """Return what the reader reads of a stream, damaged or not."""
    rows: list[dict[str, Any]] = []
    for part in source.plan([stream]):
        for batch in read_foreign_slice(part, COLUMNS, lambda _: None):
            rows += batch.to_pylist()
    return rows


def rows_of(store: Store, stream: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.stream(stream).read(columns=COLUMNS).read_all().to_pylist()
    return rows


def check(store: Store, source: ForeignStore, report: dict[str, Any]) -> None:
    """Hold what was imported against what the reader reads, and the report against both."""
    unread = {one["stream"] for one in report["failed"]}
    assert {one["source"] for one in report["streams"]} == set(source.streams()) - unread
    for one in report["streams"]:
        expected = read(source, one["source"])
        assert rows_of(store, one["name"]) == expected
        state = store.stream_state(one["name"])
        first, end = (max(1, one) for one in source.bounds(one["source"]))  # a server counts an empty stream from 0
        assert (state.low_watermark, state.next_sequence) == (first, end)
        assert one["read"] == one["messages"] == len(expected)
        assert one["messages"] + one["holes"] + one["lost"] == end - first
        assert one["last_seq"] == end - 1
        told = {at for row in report["damage"] if row["first"] for at in range(row["first"], row["end"] or end)}
        assert {at for low, high in one["lost_ranges"] for at in range(low, high)} <= told
        foreign = source.consumers(one["source"], lambda _: None)
        assert one["consumers"] == sorted(default_name(one.name) for one in foreign if one.is_durable)


@pytest.mark.buckets
@pytest.mark.parametrize(
    ("settings", "parts"),
    [({"max_streams": 1}, 0), ({"max_consumers": 1}, 0), ({"max_msgs": 40}, 0), ({"max_bytes": 500}, 1)],
    ids=str,
)
def test_an_import_that_the_store_has_no_room_for_ends_as_soon_as_that_is_known(
    settings: dict[str, int], parts: int
) -> None:
    machine, written = Machine(11), list[PartTask]()
    store = machine.create(**settings)
    store.add_stream({"name": "MINE"}).add_consumer({"name": "mine"})

    def run_parts(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Iterator[PartRecord]:
        for task in tasks:
            written.append(task)
            yield write_part(task, store.environment, OS_FILES, lambda: step(1))

    with pytest.raises(LimitExceededError) as refused:
        import_streams(store, opened("nats", "consumers"), ImportRequest(), run_parts=run_parts)
    (limit,) = settings
    assert (refused.value.limit, refused.value.stream, len(written)) == (limit, "", parts)
    assert store.streams() == ["MINE"]
    if not parts:
        assert not len(store.view().state.deletes)  # no directory was prepared
    store.edit(**{limit: -1})
    assert import_streams(store, opened("nats", "consumers"), ImportRequest())["streams"]


@pytest.fixture(scope="module")
def replicated(volumes: None) -> Store:
    """A store of three volumes on a simulated disk, for one import after the other."""
    return Machine(7, 3).create()


@pytest.mark.parametrize("case", NATS)
def test_a_store_of_a_nats_server_is_imported_as_it_is_read(replicated: Store, case: str) -> None:
    source = opened("nats", case)
    (stream,) = source.streams()
    request = ImportRequest((stream,), {stream: f"nats-{case}"}, on_data_loss="continue")
    report = import_streams(replicated, source, request)
    assert report["failed"] == []
    check(replicated, source, report)
    damaged = case.startswith("damaged") and not case.endswith("no-index") or "bitflip" in case
    assert report["ok"] is not damaged
    index = replicated.view().index
    again = import_streams(replicated, opened("nats", case), request)
    assert [one["already"] for one in again["streams"]] == [True]
    assert replicated.view().index == index


@pytest.mark.parametrize("case", STAN)
def test_a_store_of_a_stan_server_is_imported_as_it_is_read(replicated: Store, case: str) -> None:
    source = opened("stan", case)
    names = {one: f"stan-{case}-{default_name(one)}" for one in source.streams()}
    report = import_streams(replicated, source, ImportRequest(tuple(names), names, on_data_loss="continue"))
    check(replicated, source, report)
    assert {one["source"]: one["name"] for one in report["streams"]} == names


def damage(place: Path, seeded: random.Random) -> None:
    for _ in range(seeded.randrange(1, 4)):
        path = seeded.choice(sorted(one for one in place.rglob("*") if one.is_file()))
        data = bytearray(path.read_bytes())
        at, kind = seeded.randrange(len(data) + 1), seeded.randrange(5)
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(data[:at])
        elif kind == 2:
            path.write_bytes(data[:at] + bytes(min(100, len(data) - at)) + data[at + 100 :])
        elif data:
            data[min(at, len(data) - 1)] ^= 1 << seeded.randrange(8)
            path.write_bytes(data)


@pytest.mark.parametrize("case", ["nats/consumers", "nats/plain-multiblock", "nats/limits-evicted", "stan/basic"])
def test_a_damaged_store_is_imported_as_it_is_read(tmp_path: Path, case: str) -> None:
    layout, store = case.split("/")[0], Machine(8).create()
    cases = Cases(f"import of {case}, damaged")
    for seed in range(CASES):
        with cases.case(f"{case}-{seed}"):
            place = tmp_path / str(seed)
            shutil.copytree(DATA / case / "store", place)
            damage(place, random.Random(f"{case}-{seed}"))
            try:
                source = open_foreign(place, layout)
                names = {one: f"{seed}-{default_name(one)}" for one in source.streams()}
                report = import_streams(store, source, ImportRequest(tuple(names), names, on_data_loss="continue"))
            except StorageError:
                assert seed not in {int(one.split("-")[0]) for one in store.streams()}
                continue
            check(store, source, report)
            shutil.rmtree(place)
    assert len(store.streams()) > CASES // 3
    assert store.verify()["ok"]
    cases.finish()


def test_everything_that_was_imported_is_whole_on_every_volume(replicated: Store) -> None:
    assert len(replicated.streams()) > 60
    assert replicated.verify()["ok"]
    replicated.maintain()
    left = [
        name
        for volume in replicated.volumes()
        for incarnation in replicated.environment.files.list_directory(volume.path / "streams")
        for name in replicated.environment.files.list_directory(volume.path / "streams" / incarnation)
        if not name.endswith(".blk")
    ]
    assert left == []


@pytest.mark.buckets
def test_consumers_go_on_where_they_were() -> None:
    machine = Machine(1)
    store = machine.create()
    import_streams(store, opened("nats", "consumers"), ImportRequest())
    machine.clock.sleep(2)  # longer than the ack_wait of `exact`
    consumers = store.stream_state("CONS").consumers
    exact = consumers["exact"]
    (before,) = (one for one in opened("nats", "consumers").consumers("CONS") if one.name == "exact")
    assert exact.next_sequence == 14
    assert expand(exact.outstanding()) == list(before.pending)
    assert (exact.config.ack_policy, exact.config.ack_wait, exact.config.max_deliver) == ("explicit", SECOND_NS, 5)
    assert consumers["filtered"].config.filter_subjects == ("cons.3",)
    assert consumers["ackall"].config.ack_policy == "all"
    assert consumers["untouched"].next_sequence == 61
    fetched = store.stream("CONS").consumer("exact").fetch(8, timeout_s=0).to_pylist()
    assert [row["sequence"] for row in fetched] == [*before.pending, 14, 15]
    again = dict(before.redelivered)
    assert [row["delivery_count"] for row in fetched][:6] == [2 + again.get(one, 0) for one in before.pending]
    assert not any(one.events for one in consumers.values())


def test_what_only_a_consumer_knows_of_is_lost_and_its_numbers_are_not_used_again() -> None:
    store = Machine(1).create()
    report = import_streams(store, opened("nats", "damaged-stuck-consumer"), CONTINUE)
    (one,) = report["streams"]
    assert (one["messages"], one["lost"], one["lost_ranges"]) == (0, 30, [[1, 31]])
    assert not report["ok"]
    consumer = store.stream("STUCK").consumer("d1")
    assert store.stream("STUCK").publish("stuck.1", b"new").sequence == 31
    assert consumer.fetch(1, timeout_s=0)["sequence"].to_pylist() == [31]


def test_what_a_server_knew_and_cannot_be_read_is_lost_and_its_numbers_are_not_used_again() -> None:
    store = Machine(1).create()
    report = import_streams(store, opened("nats", "damaged-index-ahead"), CONTINUE)
    (one,) = report["streams"]
    assert (one["messages"], one["holes"], one["lost"], one["lost_ranges"]) == (94, 0, 31, [[95, 126]])
    assert store.stream("AHEAD").info()["state"]["lost_ranges"] == [[95, 126]]
    assert store.stream("AHEAD").publish(store.stream_state("AHEAD").config.subjects[0][:-1] + "x", b"").sequence == 126


def test_empty_data_stays_empty_and_headers_keep_their_bytes() -> None:
    store = Machine(1).create()
    import_streams(store, opened("nats", "headers-empty-unicode"), ImportRequest())
    rows = rows_of(store, "MIX")
    assert any(row["data"] == b"" for row in rows)
    assert not any(row["data"] is None for row in rows)
    values = [pair["value"] for row in rows for pair in row["headers"] or ()]
    assert any(not value.isascii() for value in values)


def test_the_configuration_is_taken_over_as_far_as_it_works_and_the_rest_is_told() -> None:
    store = Machine(1).create()
    report = import_streams(store, opened("nats", "kv-max1"), ImportRequest(as_names={}))
    config = store.stream("KV_config").info()["config"]
    assert config["subjects"] == ["$KV.config.>"]
    assert config["deny_delete"] is True
    assert config["metadata"]["jstream.name"] == "KV_config"
    assert config["metadata"]["_nats.req.level"] == "0"
    notes = report["streams"][0]["notes"]
    assert config["discard"] == "new"
    assert not any(note.startswith(("discard", "max_msgs=", "retention", "deny_delete")) for note in notes)


# --- the contract of STAN's recovery


def test_a_channel_stops_at_its_first_bad_record_and_an_option_reads_past_it_once() -> None:
    machine = Machine(2)
    store = machine.create()
    case = "damaged-truncated-msgs"
    with pytest.raises(DataLossError, match=r"(?s)message with sequence 70 is lost.*payload.*--truncate-bad-eof"):
        import_streams(store, opened("stan", case), ImportRequest(on_data_loss="fail"))
    assert store.streams() == []
    cut = ImportRequest(on_data_loss="fail", truncate_bad_eof=True)
    report = import_streams(store, opened("stan", case, truncate_bad_eof=True), cut)
    assert not report["ok"]
    assert next(one for one in report["streams"] if one["name"] == "foo")["lost_ranges"] == [[70, 71]]
    again = import_streams(machine.open(), opened("stan", case, truncate_bad_eof=True), cut)
    assert all(one["already"] for one in again["streams"]), "the same import is no second use"
    other = ImportRequest(("foo",), {"foo": "other"}, on_data_loss="fail", truncate_bad_eof=True)
    with pytest.raises(RequirementError, match=r"--truncate-bad-eof was used for the last import.*twice in a row"):
        import_streams(machine.open(), opened("stan", case, truncate_bad_eof=True), other)
    without = ImportRequest(("leer",), {"leer": "in-between"}, on_data_loss="fail")
    import_streams(store, opened("stan", case), without)
    assert import_streams(store, opened("stan", case, truncate_bad_eof=True), other)["streams"][0]["lost"] == 1


@pytest.mark.buckets
def test_an_import_that_was_killed_past_an_unexpected_end_is_gone_on_with() -> None:
    machine = Machine(2)
    store = machine.create()
    case, cut = "damaged-truncated-msgs", ImportRequest(on_data_loss="fail", truncate_bad_eof=True)

    def killed(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_streams(store, opened("stan", case, truncate_bad_eof=True), cut, run_parts=killed)
    assert store.events(kind="import_begun")[-1]["reason"].endswith("with --truncate-bad-eof")
    report = import_streams(machine.open(), opened("stan", case, truncate_bad_eof=True), cut)
    assert len(report["streams"]) == 3
    assert len(store.events(kind="import_begun")) == 1


def test_messages_without_a_checksum_that_holds_are_read_if_asked_for_and_told() -> None:
    store = Machine(2).create()
    case = "damaged-bitflip-no-index"
    request = ImportRequest(on_data_loss="fail")
    with pytest.raises(DataLossError, match=r"--no-crc"):
        import_streams(store, opened("stan", case), request)
    source = opened("stan", case, no_crc=True)
    report = import_streams(store, source, request)
    check(store, source, report)
    assert any(row["served"] for row in report["damage"])
    assert not report["ok"]


# --- going on


def parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every block file be a part."""
    monkeypatch.setattr(server_streams, "PART_SIZE", 1)


def test_an_import_goes_on_with_the_parts_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    parted(monkeypatch)
    machine = Machine(4, 3)
    store, source = machine.create(), opened("nats", "plain-multiblock")
    part_count = len(source.plan("*"))
    assert part_count > 2
    ran: list[list[int]] = []

    def run(stop_after: int) -> Any:
        def write(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
            ran.append([task.number for task in tasks])
            for task in tasks[:stop_after]:
                yield write_part(task, store.environment)
            if len(tasks) > stop_after:
                raise KeyboardInterrupt

        return write

    with pytest.raises(KeyboardInterrupt):
        import_streams(store, source, ImportRequest(), run_parts=run(2))
    assert store.streams() == []
    for volume in machine.paths[:2]:  # block of part 1 or 2: one copy is not enough
        path = next(path for path, _ in machine.disk.files(volume) if path.suffix == ".blk")
        machine.disk.flip_bit(path, 8 * 300)
    report = import_streams(machine.open(), source, ImportRequest(), run_parts=run(part_count))
    check(machine.open(), source, report)
    assert ran[0] == list(range(1, part_count + 1))
    assert set(range(3, part_count + 1)) < set(ran[1]) < set(range(1, part_count + 1))
    assert machine.open().verify()["ok"]


def test_a_source_that_has_changed_is_another_import(tmp_path: Path) -> None:
    machine = Machine(4)
    store = machine.create()
    place = tmp_path / "store"
    shutil.copytree(DATA / "nats" / "damaged-no-index" / "store", place)

    def killed(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
        yield write_part(tasks[0], store.environment)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_streams(store, open_foreign(place), ImportRequest(), run_parts=killed)
    last = max(place.rglob("*.blk"))
    last.write_bytes(last.read_bytes()[:-30])
    source = open_foreign(place)
    check(store, source, import_streams(store, source, ImportRequest()))
    last.write_bytes(last.read_bytes()[:-300])
    with pytest.raises(AlreadyExistsError, match=r"exists: an import made it, of another source or of this one before"):
        import_streams(store, open_foreign(place), ImportRequest())


def test_damage_in_what_a_source_has_grown_by_stops_the_import_or_is_reported(tmp_path: Path) -> None:
    store, place = Machine(4).create(), tmp_path / "store"
    shutil.copytree(DATA / "nats" / "damaged-no-index" / "store", place)
    last = max(place.rglob("*.blk"))
    content = last.read_bytes()
    last.unlink()
    (before,) = import_streams(store, open_foreign(place), CONTINUE)["streams"]
    last.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    with pytest.raises(DataLossError):
        import_streams(store, open_foreign(place), ImportRequest())
    report = import_streams(store, open_foreign(place), CONTINUE)
    (grown,) = report["streams"]
    assert (grown["first_seq"], grown["already"], report["ok"]) == (before["last_seq"] + 1, False, False)
    assert set(grown) == set(before)
    assert grown["damaged"] and report["damage"][0]["file"] == str(last)
    expected = [row for row in read(open_foreign(place), grown["source"]) if row["sequence"] > before["last_seq"]]
    assert rows_of(store, grown["name"])[before["messages"] :] == expected
    assert grown["messages"] == len(expected)


def test_tasks_may_be_done_twice_and_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    parted(monkeypatch)
    machine = Machine(4, 3)
    store, source = machine.create(), opened("nats", "plain-multiblock")

    def run(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
        mixed = [*tasks, *tasks]
        random.Random(5).shuffle(mixed)
        done: list[PartRecord] = [write_part(task, store.environment) for task in mixed]
        yield from {(one.incarnation, one.number): one for one in done}.values()

    check(store, source, import_streams(store, source, ImportRequest(), run_parts=run))
    assert store.verify()["ok"]
    files = [path for path, _ in machine.disk.files(machine.paths[0]) if path.suffix in (".blk", ".part")]
    assert len(files) == len(store.stream_state(store.streams()[0]).blocks), "what was written twice is gone"


def small_import(store: Store) -> dict[str, Any]:
    return import_streams(store, open_foreign(SMALL), ImportRequest())


def calls_of(machine: Machine) -> list[Call]:
    files = machine.files()
    store = Store.open(list(machine.paths), lock_timeout_s=0.0, env=machine.environment(files))
    files.calls = []
    small_import(store)
    return files.calls


def some(calls: list[Call], count: int) -> list[Call]:
    """Return every call if they are few, else as many of them by a fixed seed."""
    return calls if len(calls) <= count else sorted(random.Random(11).sample(calls, count), key=lambda one: one.number)


@pytest.mark.parametrize("what", ["killed", "killed halfway", "power lost", "nothing kept"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_import_that_ends_at_any_call_is_there_whole_or_not_at_all_and_goes_on(what: str, count: int) -> None:
    machine = Machine(6, count)
    machine.create(deleted_block_retention="1h")
    source = open_foreign(SMALL)
    (name,) = source.streams()
    expected = read(source, name)
    cases = Cases(f"import onto {count} volumes: {what} at a call")
    calls = calls_of(machine.copy())
    if what == "killed halfway":
        calls = [call for call in calls if call.operation == "write"]
    for call in some(calls, CASES):
        with cases.case(str(call), call.operation):
            one = machine.copy()
            files = one.files()
            store = Store.open(list(one.paths), lock_timeout_s=0.0, env=one.environment(files))
            files.calls, files.judge = [], end_at(call.number, halfway=what == "killed halfway")
            with pytest.raises(ProcessEnded):
                small_import(store)
            if what in ("power lost", "nothing kept"):
                one.disk.lose_power(NOTHING_KEPT if what == "nothing kept" else None)
            again = one.open()
            assert again.streams() in ([], [name])
            report = small_import(again)
            assert rows_of(again, name) == expected
            assert report["streams"][0]["messages"] == len(expected)
            (incarnation,) = (stream.incarnation.hex() for stream in again.view().state.streams.values())
            records = [path for path, _ in one.disk.files(Path("/disk")) if path.suffix == ".part"]
            assert not [path for path in records if path.parent.name == incarnation]
            one.clock.sleep(PREPARED_NS / SECOND_NS + 7200)
            again.maintain()
            assert again.verify()["ok"]
            kept = [again.stream(name).incarnation.hex()]
            for volume in one.paths:
                assert one.files().list_directory(volume / "streams") == kept, "what was left is gone"
    cases.finish()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_call_that_fails_is_survived_or_leaves_no_stream(error: int) -> None:
    machine = Machine(6, 3)
    machine.create()
    source = open_foreign(SMALL)
    (name,) = source.streams()
    expected = read(source, name)
    cases = Cases(f"import onto 3 volumes: {errno.errorcode[error]} at a call")
    for call in some(calls_of(machine.copy()), CASES):
        with cases.case(str(call), call.operation):
            one = machine.copy()
            files = one.files()
            store = Store.open(list(one.paths), lock_timeout_s=0.0, env=one.environment(files))
            files.calls, files.judge = [], fail_at(call.number, error)
            try:
                small_import(store)
            except StorageError:
                assert one.open().streams() in ([], [name])
            assert one.open().streams() == [] or rows_of(one.open(), name) == expected
            small_import(one.open())
            assert rows_of(one.open(), name) == expected
    cases.finish()


def test_an_import_that_was_given_up_leaves_nothing_after_a_week() -> None:
    machine = Machine(6, 3)
    store = machine.create(deleted_block_retention="1h")

    def killed(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
        yield write_part(tasks[0], store.environment)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_streams(store, open_foreign(SMALL), ImportRequest(), run_parts=killed)
    assert any(path.suffix == ".part" for path, _ in machine.disk.files(machine.paths[0]))
    machine.clock.sleep(PREPARED_NS / SECOND_NS + 7200)
    store.maintain()
    for volume in machine.paths:
        assert machine.files().list_directory(volume / "streams") == []


# --- what is refused


def test_what_cannot_be_imported_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    store = Machine(1).create()
    store.add_stream({"name": "cons"})
    index = store.view().index
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.blk").write_bytes(next(SMALL.rglob("*.blk")).read_bytes())
    with pytest.raises(NotAStoreError, match="is no JetStream store"):
        open_foreign(tmp_path / "empty")
    with pytest.raises(NotAStoreError, match="is a file; give the directory"):
        open_foreign(tmp_path / "one.blk")
    consumers = opened("nats", "consumers")
    refused: list[tuple[ForeignStore, ImportRequest, type[Exception], str]] = [
        (consumers, ImportRequest(("CONZ",)), NotFoundError, "did you mean 'CONS'"),
        (consumers, ImportRequest(("A*",)), NotFoundError, "matches 'A\\*'"),
        (consumers, ImportRequest(), AlreadyExistsError, "stream 'cons' exists: import under another name"),
        (consumers, ImportRequest(("CONS",), {"CONS": "a.b"}), ValueError, "'a.b' is not 1 to 128"),
        (consumers, ImportRequest(("CONS",), {"X": "a"}), ValueError, "'X' is not among the streams"),
        (consumers, ImportRequest(("CONS",), {"CONS": "a"}, 3), ValueError, "3 need as many volumes; the store has 1"),
        (consumers, ImportRequest(("CONS",), {"CONS": "a"}, 2), ValueError, "has 1"),
        (open_foreign(DATA / "nats" / "encrypted" / "store"), ImportRequest(), UnsupportedVersionError, "encrypted"),
        (opened("stan", "encrypted"), ImportRequest(), UnsupportedVersionError, "encrypted"),
    ]
    for source, request, error, reason in refused:
        with pytest.raises(error, match=reason):
            import_streams(store, source, request)
    assert store.view().index == index


def test_streams_that_cannot_be_read_are_told_and_the_others_imported(tmp_path: Path) -> None:
    place = tmp_path / "store"
    for case in ("consumers", "encrypted", "plain-multiblock"):
        shutil.copytree(DATA / "nats" / case / "store", place, dirs_exist_ok=True)
    store = Machine(1).create()
    report = import_streams(store, open_foreign(place), ImportRequest())
    assert [one["stream"] for one in report["failed"]] == ["CRYPT"]
    assert "encrypted" in report["failed"][0]["reason"]
    assert len(store.streams()) == 2
    assert not report["ok"]


def test_names_and_paths_that_are_no_utf8_are_imported(tmp_path: Path) -> None:
    place = tmp_path / "stor\udce9"
    write_channel(place / "caf\udce9")
    store = Machine(1).create()
    report = import_streams(store, open_foreign(place, "stan"), ImportRequest())
    assert store.streams() == ["caf_E9"]
    assert store.stream("caf_E9").info()["config"]["metadata"]["jstream.name"] == "caf\\udce9"
    assert report["streams"][0]["messages"] == 1
    assert "stor\\udce9" in store.events(kind="imported")[0]["reason"]


def test_a_source_that_a_task_cannot_see_is_not_taken_for_lost(tmp_path: Path) -> None:
    shutil.copytree(DATA / "nats" / "consumers" / "store", tmp_path / "store")
    store = Machine(1).create()

    def unmounted(tasks: Sequence[PartTask], step: Callable[[int], None]) -> Any:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        yield write_part(tasks[0], store.environment)

    with pytest.raises(NotFoundError, match="cannot be seen on .*every executor must see it at the same path"):
        import_streams(store, open_foreign(tmp_path / "store"), ImportRequest(), run_parts=unmounted)
    assert store.streams() == []


def test_more_streams_than_one_entry_takes_come_in_several(
    tmp_path: Path, make_store: Callable[[Path, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_server, "STREAMS_AT_ONCE", 3)
    store = Machine(1).create()
    progress: list[tuple[int, int]] = []
    source = open_foreign(make_store(tmp_path, 7), "stan")
    report = import_streams(store, source, ImportRequest(), lambda done, total: progress.append((done, total)))
    check(store, source, report)
    assert progress[-1] == (7, 7)


@pytest.fixture
def make_store() -> Callable[[Path, int], Path]:
    """Return a function that makes some channels of STAN."""

    def make(folder: Path, count: int) -> Path:
        for number in range(count):
            write_channel(folder / "many" / f"leer{number}")
        return folder / "many"

    return make
