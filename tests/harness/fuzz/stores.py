"""What is mutated and read: stores of every kind, each with what was written to it, and what has to hold of a reading.

A reading returns the messages that were shown and what was reported. What is shown has to be what was written:

foreign   the same message under the same sequence in the same channel or stream. Where checksums were redone, a
          message may be forged, and looks like one that was written: no server signs what it writes, nor
          do times have to ascend. Then a mutated file has to hold its sequence, its time and its data.
imported  one reading in eight is an import into a store of ours: what is in it then has to be the same.
ours      the content of a message that was written. As long as the metadata's checksums were not redone, under its
          sequence, too: a block cannot be forged, since the metadata has its digest. With three volumes of which one
          is mutated, exactly what was written is shown, and nothing less.

Losses are reported: where a message is missing, so is an error or a damage, a note or an event that says so. A
stream that ends earlier on a boundary between records shows no loss, nor does what says nothing of its own end.
"""

import base64
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa
from harness.fuzz.mutations import mutate_bytes
from harness.fuzz.seals import seal_of, sealed, vouch
from pyspark.sql.pandas.types import to_arrow_schema

from datasource.schema import FOREIGN_CONSUMER_TYPES, FOREIGN_DAMAGE_TYPES, FOREIGN_STREAM_TYPES, spark_schema
from spark_stream.pipelines.config import load_pipeline
from spark_stream.pipelines.definitions import load_definitions
from spark_stream.pipelines.errors import DefinitionError
from storage_core.errors import StorageError
from storage_core.foreign import ForeignDamage, ForeignStore, open_foreign, read_foreign_slice
from storage_core.foreign.nats.store import NatsStore
from storage_core.foreign.stan.store import StanStore
from storage_core.metadata.manifest import BLOCK_DTYPE, encode_blocks
from storage_core.sequences import SequenceSet
from storage_core.store.environment import Environment
from storage_core.store.ingest.backup import decode_backup_mark, encode_backup_mark
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.ingest.records import DAMAGE_KEYS, ImportHead, PartRecord, decode_record, encode_record
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
from storage_core.store.volume.identity import VolumeIdentity, decode_mark, encode_mark
from storage_core.store.volume.reports import Report

DATA = Path(__file__).parents[2] / "data"
CONF = Path(__file__).parents[3] / "conf"
STREAMS, CONSUMERS, DAMAGE = (
    to_arrow_schema(spark_schema(types))
    for types in (FOREIGN_STREAM_TYPES, FOREIGN_CONSUMER_TYPES, FOREIGN_DAMAGE_TYPES)
)
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
NOON_NS = 1_795_262_400_000_000_000 + 3 * 3_600_000_000_000  # soon after the golden stores were left
HERE = Environment(now_ns=lambda: NOON_NS, lock_domain=lambda: "a machine", sleep=lambda _: None)
NATS = ("plain-multiblock", "s2-compressed", "kill9-stale-index", "limits-evicted", "deletes-erase", "consumers")
NATS += ("old-2-9-10", "headers-empty-unicode", "msg-ttl", "encrypted-s2")
STAN = ("basic", "crc-castagnoli", "limits-archive", "subs-compacted", "kill9")
KEY = "fixture-key-not-secret"
Row = tuple[Any, ...]  # subject, time, headers, data
Shown = dict[str, dict[int, Row]]  # by stream, by sequence


@dataclass
class Mutation:
    """What was done to a copy of a store."""

    kinds: list[str] = field(default_factory=list)  # of the files
    done: list[str] = field(default_factory=list)
    sealed: bool = False
    contents: list[bytes] = field(default_factory=list)  # of the mutated files
    vouched: bool = False  # the snapshot of a backup was made to have the digest of a mutated block


@dataclass(frozen=True)
class Subject:
    """A store that is mutated: how it is read, and what has to hold then."""

    name: str
    place: Path
    truth: Shown
    read: Callable[[Path, random.Random], tuple[Shown, list[str]]]  # shown, and what was reported
    check: Callable[["Subject", Mutation, Shown, list[str]], str]  # what is wrong, "" if nothing
    takes: Callable[[Path], bool] = lambda _: True  # which files are mutated
    written: Shown = field(default_factory=dict)  # what the files hold beside: messages that were removed


def mutate(place: Path, subject: Subject, rng: random.Random) -> Mutation:
    """Do something to one or two files of a store."""
    mutation = Mutation()
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and subject.takes(path.relative_to(place))]
    kinds: dict[str, list[Path]] = {}
    for path in paths:
        kinds.setdefault(seal_of(path)[0], []).append(path)
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.choice(sorted(kinds))
        path = rng.choice(kinds[kind])
        if not path.exists():
            continue
        mutation.kinds.append(kind)
        what = rng.randrange(20)
        if what == 0:
            path.unlink()
            mutation.done.append(f"{path.name} removed")
            continue
        other = rng.choice(kinds[kind])
        if what == 1 and other != path and other.exists():
            shutil.copyfile(other, path)
            mutation.done.append(f"{path.name} is {other.name}")
            mutation.contents.append(path.read_bytes())
            continue
        other = rng.choice(paths)
        redone = rng.random() < 0.7
        document = redone and rng.random() < 0.5
        data = before = path.read_bytes()
        if not document:
            data = mutate_bytes(data, other.read_bytes() if other.exists() else b"", rng)
        if redone:
            data = sealed(data, path, rng, document)
        mutation.sealed |= redone
        path.write_bytes(data)
        if kind == "block" and redone and rng.random() < 0.8:
            mutation.vouched |= vouch(place, before, data)
        mutation.contents.append(data)
        mutation.done.append(f"{path.name} changed" + (", document" if document else ", sealed" if redone else ""))
    return mutation


def _rows(rows: dict[int, Row], batch: pa.RecordBatch) -> None:
    batch.validate(full=True)
    for row in batch.to_pylist():
        headers = None if row["headers"] is None else tuple((each["key"], each["value"]) for each in row["headers"])
        assert row["sequence"] not in rows, f"sequence {row['sequence']} is shown twice"
        rows[row["sequence"]] = (row["subject"], row["timestamp_ns"], headers, row["data"])


# --- foreign stores


def _read_foreign(layout: str, key: str | None = None) -> Callable[[Path, random.Random], tuple[Shown, list[str]]]:
    def read(place: Path, rng: random.Random) -> tuple[Shown, list[str]]:
        shown: Shown = {}
        damage_seen: list[ForeignDamage] = []
        lenient = layout == "stan" and rng.random() < 0.5
        options: dict[str, Any] = {"truncate_bad_eof": True, "no_crc": True} if lenient else {}
        if key is not None:
            options["encryption_key"] = key
        try:
            opened = open_foreign(place, layout, **options)
        except StorageError as error:
            return {}, [str(error)]
        if not lenient and rng.random() < 0.125:
            return _import(opened, place.with_name(place.name + "-imported"))
        refused: list[str] = []
        for name in opened.streams():
            try:
                damage, slices = opened.inspect(name)
                damage_seen += damage
                for part in slices:
                    for batch in read_foreign_slice(part, COLUMNS, damage_seen.append):
                        _rows(shown.setdefault(name, {}), batch)
                consumers = opened.consumers(name, damage_seen.append)
                pa.RecordBatch.from_pylist([consumer.row() for consumer in consumers], CONSUMERS)
                pa.RecordBatch.from_pylist([copy.row() for copy in opened.copies(name)], STREAMS)
                opened.bounds(name), opened.notes(name)
            except StorageError as error:
                refused.append(str(error))
        if isinstance(opened, StanStore):
            for root in opened.roots:
                try:
                    opened.cluster_id(root)
                except StorageError as error:
                    refused.append(str(error))
        pa.RecordBatch.from_pylist([entry.row() for entry in damage_seen], DAMAGE)
        for entry in damage_seen:
            if entry.served and entry.first is not None:  # an option asked for what cannot be vouched for
                for sequence in range(entry.first, entry.end or entry.first):
                    shown.get(entry.stream, {}).pop(sequence, None)
        return shown, [entry.explain() for entry in damage_seen] + refused

    return read


def _import(source: ForeignStore, target: Path) -> tuple[Shown, list[str]]:
    """Import all streams into a new store; return what is in it, and what was reported."""
    shown: Shown = {}
    reports: list[str] = []
    try:
        with Store.create([target], env=HERE) as store:
            report = import_streams(store, source, ImportRequest(on_data_loss="continue"))
            reports += [str(problem["reason"]) for problem in [*report["damage"], *report["failed"]]]
            assert store.verify()["ok"], "an imported store is whole"
            for stream in report["streams"]:
                _read_stream(store, stream["name"], shown.setdefault(stream["source"], {}), reports)
    except StorageError as error:
        reports.append(str(error))
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return shown, reports


def _check_foreign(subject: Subject, mutation: Mutation, shown: Shown, reports: list[str]) -> str:
    for stream, rows in shown.items():
        for sequence, row in rows.items():
            true = subject.truth.get(stream, {}).get(sequence) or subject.written.get(stream, {}).get(sequence)
            if row == true or (true is not None and _moved(row, true)):
                continue
            if not mutation.sealed or not any(_holds(content, sequence, row) for content in mutation.contents):
                return f"stream {stream}: {sequence} was not there: {row!r}, but {true!r}"
    missing = [
        (stream, sequence)
        for stream, rows in subject.truth.items()
        for sequence in rows
        if sequence not in shown.get(stream, {}) and sequence < max(shown.get(stream, {}), default=0)
    ]
    if missing and not reports and not mutation.sealed and not _silent(mutation):
        return f"missing and nothing reported: {missing[:5]}"
    return ""


def _silent(mutation: Mutation) -> bool:
    """Return whether only files without a checksum of their own were mutated: what they say is believed."""
    return any(kind in ("nats N.idx", "nats stream") for kind in mutation.kinds)


def _moved(row: Row, true: Row) -> bool:
    """Return whether only the border between subject and data is another one: NATS does not hash it."""
    return row[1] == true[1] and row[2] is None and row[0].encode() + row[3] == true[0].encode() + true[3]


def _holds(content: bytes, sequence: int, row: Row) -> bool:
    if row[3] not in content:
        return False
    nats = pack("<Q", sequence) + pack("<q", row[1])
    return nats in content or (_holds_uvarint(content, sequence) and (not row[1] or _holds_uvarint(content, row[1])))


def _holds_uvarint(content: bytes, value: int) -> bool:
    """Return whether the number stands there, in as many bytes as it takes or in more: a server reads both alike."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    padded = re.escape(bytes([*out, value | 0x80])) + b"\x80{0,%d}\x00" % (8 - len(out))
    return bytes([*out, value]) in content or (len(out) < 9 and re.search(padded, content, re.DOTALL) is not None)


def foreign(layout: str, name: str) -> Subject:
    place = DATA / layout / name / "store"
    key = KEY if name.startswith("encrypted") else None
    read = _read_foreign(layout, key)
    truth: Shown = {}
    written: Shown = {}
    opened = open_foreign(place, layout, encryption_key=key)
    for stream in opened.streams():
        parts = opened.plan(stream)
        for part in parts:
            for batch in read_foreign_slice(part, COLUMNS, lambda _: None):
                _rows(truth.setdefault(stream, {}), batch)
        for block in opened.directory(stream).blocks if isinstance(opened, NatsStore) else ():
            whole = replace(
                parts[0],
                path=block.path,
                block_index=block.block_index,
                file_size=block.size,
                key=block.key,
                first=1,
                end=1 << 62,
                removed=SequenceSet.empty().encode(),
                known=False,
                subjects=None,
            )
            for batch in read_foreign_slice(whole, COLUMNS, lambda _: None):
                _rows(written.setdefault(stream, {}), batch)
    takes = lambda path: path.name != "meta.sum"  # noqa: E731 - written with its meta.inf
    return Subject(f"{layout}/{name}", place, truth, read, _check_foreign, takes, written)


# --- stores of ours


def _read_ours(volumes: Callable[[Path], list[Path]]) -> Callable[[Path, random.Random], tuple[Shown, list[str]]]:
    def read(place: Path, rng: random.Random) -> tuple[Shown, list[str]]:
        reports: list[str] = []
        shown: Shown = {}
        way = rng.choice(("read", "read", "repair", "write"))
        paths = volumes(place)

        def trying(step: Callable[[], Any]) -> None:
            try:
                step()
            except StorageError as error:
                reports.append(str(error))

        try:
            store = Store.open(paths, read_only=way == "read", env=HERE, take_over=way != "read")
        except StorageError as error:
            return {}, [str(error)]
        with store:
            trying(lambda: reports.extend(map(str, store.verify()["damage"])))
            if way == "repair":
                trying(lambda: reports.extend(map(str, (store.repair()["lost"]))))
                trying(store.scrub)
            for step in (store.info, store.cluster_info, store.report, store.events, store.view):
                trying(step)
            for name in _streams(store, reports):
                rows = shown.setdefault(name, {})
                trying(lambda name=name, rows=rows: _read_stream(store, name, rows, reports))  # type: ignore[misc]
            if way == "write":
                trying(store.maintain)
                trying(lambda: store.add_stream({"name": "ADDED-LAST"}).publish("ADDED-LAST", b"new"))
        return shown, reports

    return read


def _streams(store: Store, reports: list[str]) -> list[str]:
    try:
        return store.streams()
    except StorageError as error:
        reports.append(str(error))
        return []


def _read_stream(store: Store, name: str, rows: dict[int, Row], reports: list[str]) -> None:
    stream = store.stream(name)
    stream.info(), stream.consumers()
    if stream.state().lost:
        reports.append("lost")
    for batch in stream.read(
        columns=list(COLUMNS), on_data_loss="continue", report=lambda damage: reports.append(str(damage))
    ):
        _rows(rows, batch)
    stream.subjects(), stream.gaps()


def _check_ours(subject: Subject, mutation: Mutation, shown: Shown, reports: list[str]) -> str:
    written = {row for rows in subject.truth.values() for row in rows.values()}
    contents = {(row[0], row[2], row[3]) for row in written}
    forged = mutation.sealed and any(kind in ("log segment", "snapshot") for kind in mutation.kinds)
    for stream, rows in shown.items():
        for sequence, row in rows.items():
            if stream == "ADDED-LAST" or (forged and (row[0], row[2], row[3]) in contents):
                continue
            if subject.truth.get(stream, {}).get(sequence) != row:
                return f"stream {stream}: {sequence} was not there: {row!r}"
    missing = [
        (stream, sequence)
        for stream, rows in subject.truth.items()
        for sequence in rows
        if sequence not in shown.get(stream, {})
    ]
    if missing and not reports and not forged:
        return f"missing and nothing reported: {missing[:5]}"
    return ""


def _check_three(subject: Subject, mutation: Mutation, shown: Shown, reports: list[str]) -> str:
    wrong = _check_ours(subject, mutation, shown, reports)
    forged = mutation.sealed and any(kind in ("log segment", "snapshot") for kind in mutation.kinds)
    if wrong or forged:
        return wrong
    lacking = [name for name, rows in subject.truth.items() if len(shown.get(name, {})) != len(rows)]
    return f"one volume of three was mutated, and {lacking} lack messages: {reports[:3]}" if lacking else ""


def golden(name: str) -> Subject:
    """A golden store of one volume."""
    expected = json.loads((DATA / "stores" / f"{name}.json").read_text())
    with Store.open(DATA / "stores" / name, read_only=True, env=HERE) as store:
        truth: Shown = {stream: {} for stream in expected["streams"]}
        for stream, rows in truth.items():
            _read_stream(store, stream, rows, [])
    for stream, about in expected["streams"].items():
        assert [_data(each) for each in about["messages"]] == [row[3] or b"" for row in truth[stream].values()]
    return Subject(f"ours/{name}", DATA / "stores" / name, truth, _read_ours(lambda place: [place]), _check_ours)


def _data(message: dict[str, Any]) -> bytes:
    """Return the data of a message in JSON."""
    data = message["data"] or ""
    return base64.b64decode(data) if "data" in message.get("base64", ()) else data.encode()


def three_volumes(folder: Path) -> Subject:
    """A store of three volumes with some life behind it, of which the first is mutated."""
    place = folder / "three"
    place.mkdir()
    volumes = [place / name for name in ("v1", "v2", "v3")]
    store = Store.create(volumes, env=HERE, snapshot_every=8)
    for name in ("ORDERS", "AUDIT"):
        stream = store.add_stream({"name": name, "subjects": [f"{name}.>"], "num_replicas": 3})
        for at in range(6):
            subjects = [f"{name}.{n % 3}" for n in range(20)]
            stream.append(pa.table({"subject": subjects, "data": [b"%d %d" % (at, n) for n in range(20)]}))
        stream.remove([3, 4, 5, 50])
        stream.add_consumer({"name": "reader"}).fetch(5)
    report = Report(b"i" * 16, b"b" * 16, b"v" * 16, 1, 5, 64, "a frame is damaged", NOON_NS)
    for volume in volumes:
        (volume / "reports").mkdir(exist_ok=True)
        (volume / "reports" / report.name).write_bytes(report.encode())
    truth: Shown = {name: {} for name in store.streams()}
    for name, rows in truth.items():
        _read_stream(store, name, rows, [])
    store.close()
    times = {name: next(iter(rows.values()))[1] for name, rows in truth.items()}
    written: Shown = {
        name: {at + 1: (f"{name}.{at % 20 % 3}", times[name], None, b"%d %d" % divmod(at, 20)) for at in range(120)}
        for name in truth
    }

    def first(path: Path) -> bool:
        return path.parts[0] == "v1" and path.name != "lock"

    read = _read_ours(lambda place: [place / name for name in ("v1", "v2", "v3")])
    return Subject("ours/three", place, truth, read, _check_three, first, written)


def adopted(three: Subject) -> Subject:
    """The same store, adopted: a majority of the volumes, or all of them, have lost their metadata."""

    def read(place: Path, rng: random.Random) -> tuple[Shown, list[str]]:
        volumes = [place / name for name in ("v1", "v2", "v3")]
        for volume in rng.choice((volumes, volumes[1:], volumes[:2])):
            shutil.rmtree(volume / "meta", ignore_errors=True)
            if rng.random() < 0.3:
                (volume / "jstream.volume").unlink(missing_ok=True)
        chosen = rng.choice((volumes, volumes, volumes[:1]))
        try:
            plan = adopt.plan(chosen, HERE)
            str(plan), json.dumps(plan.to_json())
            adopt.execute(plan, HERE, accept_loss=True)
        except StorageError as error:
            return {}, [str(error)]
        shown, told = _read_ours(lambda _: chosen)(place, rng)
        lost = [f"{one.name} lost {one.lost}" for one in plan.streams if one.lost]
        return shown, [*told, *plan.notes, *lost, *map(str, plan.unclaimed)]

    return Subject("ours/adopted", three.place, three.truth, read, _check_adopted, three.takes, three.written)


def _check_adopted(subject: Subject, mutation: Mutation, shown: Shown, reports: list[str]) -> str:
    """Journals and metadata that were redone say which blocks there are, and what is not known any more comes back."""
    redone = mutation.sealed and any(kind in ("log segment", "snapshot", "journal") for kind in mutation.kinds)
    kinds = ["snapshot"] if redone else []
    for stream, rows in shown.items():
        written = subject.written.get(stream, {})
        anywhere = set(written.values()) if redone else set()
        for sequence, row in list(rows.items()):
            is_known = row == written.get(sequence) or row in anywhere
            if sequence not in subject.truth.get(stream, {}) and is_known:
                del rows[sequence]  # it was removed, which metadata alone knows
    return _check_ours(subject, Mutation(kinds, mutation.done, redone, mutation.contents), shown, reports)


def backed_up(folder: Path) -> Subject:
    """A backup of a golden store, restored onto one volume and read there."""
    place = folder / "backup"
    with Store.open(DATA / "stores" / "v1-lived", read_only=True, env=HERE) as store:
        store.backup(place)
        truth: Shown = {name: {} for name in store.streams()}
        for name, rows in truth.items():
            _read_stream(store, name, rows, [])

    def read(backup: Path, rng: random.Random) -> tuple[Shown, list[str]]:
        target = backup.with_name(backup.name + "-restored")
        try:
            try:
                Store.restore(backup, [target], env=HERE).close()
            except StorageError as error:
                return {}, [str(error)]
            return _read_ours(lambda _: [target])(backup, rng)
        finally:
            shutil.rmtree(target, ignore_errors=True)

    return Subject("ours/backup", place, truth, read, _check_backup)


def _check_backup(subject: Subject, mutation: Mutation, shown: Shown, reports: list[str]) -> str:
    """A snapshot that was redone may name the same messages otherwise: their content is what was written."""
    if mutation.vouched:
        return ""  # whatever the block holds was written by whoever made the snapshot
    redone = mutation.sealed and "snapshot" in mutation.kinds
    kinds = ["snapshot"] if redone else []
    return _check_ours(subject, Mutation(kinds, mutation.done, redone, mutation.contents), shown, reports)


# --- files that are read one by one


def single_files(folder: Path) -> Subject:
    """Marks of backups and restores, records of imports, pipelines and definitions: each by what reads it."""
    place = folder / "single"
    place.mkdir()
    identity = VolumeIdentity(b"s" * 16, b"v" * 16, b"i" * 16, NOON_NS)
    rows = encode_blocks(np.zeros(2, BLOCK_DTYPE))
    holders = (((b"v" * 16, b"i" * 16),), ())
    damage = (dict.fromkeys(sorted(DAMAGE_KEYS)),)
    part = PartRecord(b"i" * 16, b"s" * 16, 1, rows, (("a",), None), holders, b"", b"", 2, damage)
    head = ImportHead(b"i" * 16, b"s" * 16, "ORDERS", (b"v" * 16,))
    (place / "jstream.restoring").write_bytes(encode_mark([identity, identity]))
    (place / "jstream.unfinished").write_bytes(encode_backup_mark(b"s" * 16))
    (place / "00000001.part").write_bytes(encode_record(part))
    (place / "00000000.part").write_bytes(encode_record(head))
    shutil.copyfile(CONF / "pipelines" / "orders.toml", place / "pipeline.toml")
    shutil.copyfile(CONF / "streams.toml", place / "streams.toml")
    readers: dict[str, Callable[[Path], Any]] = {
        "jstream.restoring": lambda path: decode_mark(path.read_bytes(), path),
        "jstream.unfinished": lambda path: decode_backup_mark(path.read_bytes(), path),
        "00000001.part": lambda path: decode_record(path.read_bytes(), path.name),
        "00000000.part": lambda path: decode_record(path.read_bytes(), path.name),
        "pipeline.toml": load_pipeline,
        "streams.toml": load_definitions,
    }

    def read(files: Path, rng: random.Random) -> tuple[Shown, list[str]]:
        for name, reader in readers.items():
            try:
                if (files / name).exists():
                    reader(files / name)
            except (StorageError, DefinitionError):
                pass
        return {}, []

    return Subject("ours/single", place, {}, read, lambda *_: "", lambda path: path.name != "lock")
