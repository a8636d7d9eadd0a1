"""Random damage to kept stores of other servers, and all readers held against what was there and against each other.

- A strict read, by the data source's own reader, gives exactly what was there, or raises.
- The table of damage, an import, a comparison of copies and the page of `jstream ui` say the same lost sequences, and
  the same of which nobody can tell whether they were removed or are lost. What is neither shown nor said was not there.

What leaves no trace is no fault of a reader. A stream of NATS that was cut back to how it lay there earlier has what it
had then (`cuts`). First and last slices of a channel may be gone with their indexes: a limit drops the first ones, and
without the last ones the channel is as it was before them (`gone_without_trace`). NATS does not hash the size of a
subject: with another one a message has a true subject that it never had, and a limit per subject shows and hides others
(`has_other_subject`).

    outcome = run(kept("nats"), cases(kept("nats"), seed=0), folder, seconds=60)
    assert not outcome.findings

A case is the name of a store and a seed; both together always make the same damage, and `Outcome.findings` names them.
"""

import logging
import os
import random
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness.fuzz.mutations import mutate_bytes
from harness.fuzz.stores import HERE
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from datasource import source
from spark_stream.ui.rescue import Rescue
from storage_core.errors import StorageError
from storage_core.files import OS_FILES
from storage_core.foreign import ForeignDamage, ForeignStore, copies, open_foreign, read_foreign_slice
from storage_core.foreign.nats import highwayhash, record
from storage_core.foreign.nats.block import read_block
from storage_core.foreign.nats.directory import find_streams
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import scan_block
from storage_core.foreign.side_by_side import compare
from storage_core.foreign.stan.directory import find_channels
from storage_core.foreign.stan.record import FILE_HEADER_SIZE, MESSAGES
from storage_core.foreign.stan.repeats import read_numbers
from storage_core.foreign.stan.scan import scan_file
from storage_core.schema import read_schema
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.from_server import ImportRequest, import_streams
from storage_core.store.store import Store

DATA = Path(__file__).parents[1] / "data"
COLUMNS = ("stream", "sequence", "subject", "timestamp_ns", "headers", "data")
KEYS = {"nats": "fixture-key-not-secret\nfield-key-2\nfield-key-1"}  # each opens some
FINDING_COUNT_MAX = 20  # after which a run ends
IMPORT_ONE_IN, PAGE_ONE_IN = 12, 12  # of the cases: they take longest
REMEMBERED_MAX = 50_000  # hashes of so many arrays of messages
Row = tuple[Any, ...]
Rows = dict[tuple[str, int], Row]  # by stream and sequence
Said = dict[str, tuple[SequenceSet, SequenceSet]]  # by stream: lost, and open


@dataclass(frozen=True)
class Kept:
    """One store before it is damaged."""

    layout: str
    name: str
    place: Path
    key: str | None
    truth: Rows | None  # what a strict read gives; None: it raises, since the store is damaged as it is
    whole: Mapping[Path, bytes]  # its files, by path in it
    ends: Mapping[Path, frozenset[int]]  # of the files of messages: where a record ends
    spans: Mapping[Path, tuple[int, int]] = field(default_factory=dict)  # of slices of STAN: sequences, half open

    def options(self, place: Path) -> dict[str, str]:
        key = {} if self.key is None else {"encryptionKey": self.key}
        return {"path": str(place), "layout": self.layout, "stream": "*", **key}

    def open(self, place: Path) -> ForeignStore:
        return open_foreign(place, self.layout, encryption_key=self.key)


@dataclass
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def describe(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))


def kept(layout: str, folders: Iterable[str] = ("",)) -> dict[str, Kept]:
    """Return the kept stores of a layout by name, of `tests/data/LAYOUT` and of other folders in `tests/data`."""
    stores = {}
    for folder in folders:
        top = DATA / (folder or layout)
        for place in sorted(top.rglob("store")):
            name = f"{folder or layout}/{place.parent.relative_to(top)}"
            stores[name] = _kept(layout, name, place)
    return stores


def _kept(layout: str, name: str, place: Path) -> Kept:
    whole = {path.relative_to(place): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    key = KEYS.get(layout) if any(path.suffix == ".key" for path in whole) else None
    ends = {path: frozenset(some) for path, some in _record_ends(layout, place, key)}
    store = Kept(layout, name, place, key, None, whole, ends, dict(_spans(place)) if layout == "stan" else {})
    try:
        return replace(store, truth=strict(store, place))
    except StorageError:
        return store


def _record_ends(layout: str, place: Path, key: str | None) -> Iterator[tuple[Path, list[int]]]:
    if layout == "nats":
        for stream in find_streams([place], encryption_key=key):
            for block in stream.blocks:
                content = read_block(block.path, key=block.key)
                if not content.compressed:
                    records = scan_block(content.data, block_key(stream.name, block.block_index)).records
                    yield Path(block.path).relative_to(place.resolve()), records.ends.tolist()
        return
    for channel in find_channels([place]).channels:
        for part in channel.slices:
            ends = [
                window.offset_bytes + end
                for window in scan_file(part.path, MESSAGES, channel.name, part.size)
                for end in window.records.ends.tolist()
            ]
            yield Path(part.path).relative_to(place.resolve()), [FILE_HEADER_SIZE, *ends]


def _spans(place: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for channel in find_channels([place]).channels:
        for part in channel.slices:
            sequences = read_numbers(channel.name, part, OS_FILES).sequences
            if len(sequences):
                span = int(sequences.min()), int(sequences.max()) + 1
                yield Path(part.path).relative_to(place.resolve()), span


# --- damage


def damage(store: Kept, place: Path, rng: random.Random) -> list[str]:
    """Do one to three things to the files of a store, as disks and people do them; return what."""
    done = []
    if rng.random() < 0.5:  # without an index most is hidden
        for path in [path for path in store.whole if _is_index(path)]:
            (place / path).unlink()
        done.append("no index")
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = sorted(path for path in place.rglob("*") if path.is_file())
        if not paths:
            break
        blocks = [path for path in paths if path.relative_to(place) in store.ends]
        path = rng.choice(blocks if blocks and rng.random() < 0.6 else paths)
        done.append(f"{path.name} {_damage_one(path, blocks, rng)}")
    return done


def _damage_one(path: Path, blocks: list[Path], rng: random.Random) -> str:
    data = path.read_bytes()
    others = [block for block in blocks if block.name != path.name]  # another node's may be what the stream had before
    what = rng.randrange(8)
    if what == 0:
        path.unlink()
        return "gone"
    if what == 1:
        path.write_bytes(bytes(len(data)) if rng.random() < 0.5 else b"")
        return "blank"
    if what == 2:
        page = 512 * rng.randrange(1 + len(data) // 512)
        path.write_bytes(data[:page] + bytes(len(data) - page) if rng.random() < 0.5 else data[:page])
        return f"ends at {page}"
    if what == 3 and path in blocks and others:
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        return f"is {other.name}"
    if path.suffix == ".idx":  # it has no checksum: what a bit in it says is believed
        path.unlink()
        return "gone"
    path.write_bytes(mutate_bytes(data, rng.choice([path, *others]).read_bytes(), rng))
    return "changed"


def _is_index(path: Path) -> bool:
    return path.suffix == ".idx" or path.name == "index.db"


def cuts(store: Kept, place: Path) -> dict[Path, int | None]:
    """Return where blocks of NATS were cut so that no trace is left: their size then, None of those that are gone.

    No index tells more, the last block there ends with a record of it, or is empty, and all later ones are gone.
    So the stream lay there earlier, whatever was done to what is in front.
    """
    cut: dict[Path, int | None] = {}
    folders: dict[Path, list[Path]] = {}
    for path in store.whole if store.layout == "nats" else ():
        if path.suffix == ".blk":
            folders.setdefault(path.parent, []).append(path)
    for folder, blocks in folders.items():
        index = folder / "index.db"
        if index in store.whole and _bytes(place / index) == store.whole[index]:
            continue
        for path in sorted(blocks, key=_number, reverse=True):
            content, whole = _bytes(place / path), store.whole[path]
            if content is None:
                cut[path] = None
                continue
            edges = [0, *sorted(store.ends.get(path, ()))]  # none are known of compressed blocks
            records = zip(reversed(edges[:-1]), reversed(edges[1:]), strict=True)
            size = next((end for start, end in records if content.endswith(whole[start:end])), None)
            if not content or size not in (None, len(whole)):
                cut[path] = size or 0
            break
    return cut


def lay_earlier(store: Kept, place: Path, cut: Mapping[Path, int | None], scratch: Path) -> Rows | None:
    """Return what a strict read gave when the blocks ended where they were cut, and nothing else was damaged but files
    of consumers; None if it raised."""
    changed = {path.parent for path in cut}
    files = {path: content for path, content in store.whole.items() if not (path.parent in changed and _is_index(path))}
    files |= {path: _bytes(place / path) for path in files if "obs" in path.parts}
    files |= {path: None if size is None else store.whole[path][:size] for path, size in cut.items()}
    try:
        _write(files, scratch)
        return strict(store, scratch)
    except StorageError:
        return None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(files: Mapping[Path, bytes | None], place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (place / path).write_bytes(content)


def gone_without_trace(store: Kept, place: Path) -> set[tuple[str, int]]:
    """Return the messages of first and last slices of channels that are gone with their indexes, those of last slices
    also if the slice ends with a record of it, or is zero from there on. The server drops first ones so when a limit is
    reached, and keeps its limits in no file of the store; the channel ended so earlier.
    """
    gone: set[tuple[str, int]] = set()
    folders: dict[Path, list[Path]] = {}
    for path in store.spans:
        folders.setdefault(path.parent, []).append(path)
    for folder, slices in folders.items():
        slices.sort(key=_number)
        for path in slices:
            if any(_bytes(place / each) is not None for each in (path, path.with_suffix(".idx"))):
                break
            gone.update((folder.name, sequence) for sequence in range(*store.spans[path]))
        for path in reversed(slices):
            content, ends = _bytes(place / path) or b"", sorted(store.ends[path])
            content = next((content[:end] for end in ends if not any(content[end:])), content)  # zero bytes are padding
            whole = store.whole[path]
            records = zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True)
            cut = next((end for start, end in records if content.endswith(whole[start:end])), 0)  # whatever is in front
            is_cut = not content or content == whole[: ends[0]] or cut > 0
            if not is_cut or any(_bytes(place / path.with_suffix(".idx")) or b""):
                break
            first, end = store.spans[path]
            kept_count = ends.index(cut) if cut else 0
            gone.update((folder.name, sequence) for sequence in range(first + kept_count, end))
            if kept_count:
                break
    return gone


def has_other_subject(store: Kept, place: Path) -> bool:
    """Return whether the only damage to some record of NATS is the size of its subject."""
    if store.layout != "nats":
        return False
    for path, ends in store.ends.items():
        whole, now = store.whole[path], _bytes(place / path) or b""
        if now == whole:
            continue
        edges = [0, *sorted(ends)]
        for start, end in zip(edges, edges[1:], strict=False):
            own, changed = whole[start:end], now[start:end]
            if own != changed and own[:20] == changed[:20] and own[22:] == changed[22:]:
                return True
    return False


def _number(path: Path) -> int:
    return int("".join(filter(str.isdigit, path.name)) or 0)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


# --- readers


def strict(store: Kept, place: Path) -> Rows:
    """Return what a read with `failOnDataLoss=true` gives. Raises StorageError."""
    reader = source.reader(CaseInsensitiveDict(store.options(place)), _schema())
    return _rows(batch for partition in reader.partitions() for batch in reader.read(partition))


@cache
def _schema() -> Any:
    return from_arrow_schema(read_schema(COLUMNS))


def _rows(batches: Iterable[pa.RecordBatch]) -> Rows:
    rows: Rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            at = row["stream"], row["sequence"]
            assert at not in rows, f"{at} is shown twice"
            headers = None if row["headers"] is None else tuple((one["key"], one["value"]) for one in row["headers"])
            rows[at] = row["timestamp_ns"], headers, row["subject"], row["data"]
    return rows


def same(rows: Rows, truth: Rows) -> bool:
    """Return whether the rows are these, but for the border of subject and data, which NATS does not hash."""
    return rows.keys() == truth.keys() and all(_alike(row, truth[at]) for at, row in rows.items())


def _alike(row: Row, true: Row) -> bool:
    (time, headers, subject, data), (_, _, true_subject, true_data) = row, true
    # A border within a character leaves bytes in the subject that are no text; they are shown as escapes.
    shown = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), subject.encode())
    moved = headers is None and true_subject.encode() + true_data in (subject.encode() + data, shown + data)
    return row == true or (moved and (time, headers) == true[:2])


@dataclass
class Listed:
    """What `table=damage` lists, and what is read past it."""

    rows: Rows
    damage: list[ForeignDamage]
    refused: set[str]  # streams of which nothing can be read


def listed(opened: ForeignStore) -> Listed:
    rows: Rows = {}
    damages: list[ForeignDamage] = []
    refused = set()
    for name in opened.streams():
        own, slices = opened.inspect(name)
        if any(each.first is None and not slices and not each.end_bytes for each in own) and not _opens(opened, name):
            refused.add(name)
        for part in slices:
            rows |= _rows(read_foreign_slice(part, COLUMNS, own.append))
        damages += own
    return Listed(rows, damages, refused)


def _opens(opened: ForeignStore, name: str) -> bool:
    try:
        opened.bounds(name)
    except StorageError:
        return False
    return True


def compared(opened: ForeignStore) -> Said:
    drifts = {name: compare(opened, name) for name in opened.streams()}
    return {name: (drift.lost, drift.open) for name, drift in drifts.items()}


def imported(opened: ForeignStore, target: Path) -> Said:
    """Import all streams into a new store. Streams that cannot be read are not in the outcome."""
    try:
        with Store.create([target], env=HERE) as store:
            report = import_streams(store, opened, ImportRequest(on_data_loss="continue"))
            return {
                stream["source"]: (_set(stream["lost_ranges"]), _set(stream["open_ranges"]))
                for stream in report["streams"]
            }
    except StorageError:  # of one that is alone
        return {}
    finally:
        shutil.rmtree(target, ignore_errors=True)


def paged(place: Path) -> Said:
    """Return what the page of `jstream ui` shows."""
    done = threading.Event()

    def announce() -> None:
        if page.result.state in ("done", "failed"):
            done.set()

    page = Rescue([place], announce)
    page.begin()
    done.wait()
    if page.result.error:
        raise StorageError(page.result.error)
    return {name: (drift.lost, drift.open) for name, drift in page.result.drifts.items()}


def _set(ranges: Iterable[Iterable[int]]) -> SequenceSet:
    return SequenceSet.from_ranges((first, end) for first, end in ranges)


# --- what has to hold


def check(store: Kept, place: Path, scratch: Path, rng: random.Random, counts: Counter[str]) -> str:
    """Return what is wrong with the reading of a damaged store, "" if nothing."""
    cut = cuts(store, place)
    truth = lay_earlier(store, place, cut, scratch) if cut else store.truth
    gone = gone_without_trace(store, place)
    is_other = has_other_subject(store, place)
    if truth is not None and gone:
        truth = {at: row for at, row in truth.items() if at not in gone}
    try:
        rows = strict(store, place)
    except StorageError:
        counts["strict reads that raised"] += 1
    else:
        kind = "of what lay there earlier" if cut else "of exactly what was there"
        counts[f"strict reads {kind}"] += 1
        if truth is None and not cut and not gone and not _tells_nothing(store.open(place)):
            return "a strict read of a store that was damaged before raises no error"
        if truth is not None and not same(rows, truth) and not is_other:
            more, less = sorted(rows.keys() - truth.keys()), sorted(truth.keys() - rows.keys())
            return f"a strict read gives other rows: {len(more)} more {more[:5]}, {len(less)} less {less[:5]}"
    try:
        opened = store.open(place)
    except StorageError:
        counts["stores that are none any more"] += 1
        return ""
    said = compared(opened)
    everything = listed(opened)
    if wrong := _check_listed(opened, everything, said, truth, is_other):
        return wrong
    if rng.randrange(IMPORT_ONE_IN) == 0:
        counts["imports"] += 1
        if wrong := _differs("an import", imported(opened, scratch), said, everything.refused):
            return wrong
    if rng.randrange(PAGE_ONE_IN) == 0 and store.key is None and store.layout == _recognised(place):
        counts["pages"] += 1
        if wrong := _differs("the page", paged(place), said, set()):
            return wrong
    return ""


def _tells_nothing(opened: ForeignStore) -> bool:
    """Return whether nothing is left that tells how far the streams went, so that what was damaged leaves no trace."""
    return all(opened.caveat(name) for name in opened.streams())


def _recognised(place: Path) -> str | None:
    from storage_core.foreign import recognise_foreign

    return recognise_foreign(place)


def _check_listed(opened: ForeignStore, everything: Listed, said: Said, truth: Rows | None, is_other: bool) -> str:
    for name, (lost, unexplained) in said.items():
        if name in everything.refused:
            continue
        costly = [each for each in everything.damage if each.stream == name and each.costs and each.first is not None]
        ranges = [(each.first or 0, each.end or 1 << 62) for each in costly if not each.open]
        missing = lost.difference(SequenceSet.from_ranges(ranges))
        if missing:
            return f"stream {name}: the table does not list {missing} as lost, a comparison does"
        ranges = [(each.first or 0, each.end or 1 << 62) for each in costly if each.open]
        missing = unexplained.difference(SequenceSet.from_ranges(ranges))
        if missing:
            return f"stream {name}: the table does not list {missing} as open, a comparison does"
        shown = {at for stream, at in everything.rows if stream == name}
        if any(at in lost or at in unexplained for at in shown):
            return f"stream {name}: what is shown is said to be lost"
        if truth is None or is_other or any(each.unclear for each in everything.damage):
            continue
        hidden = {at for stream, at in truth if stream == name} - shown
        behind = min((each.first or 0 for each in costly if each.end is None), default=1 << 62)
        if opened.caveat(name):  # nothing tells how far the stream went
            behind = min(behind, opened.bounds(name)[1])
        silent = sorted(at for at in hidden if at not in lost and at not in unexplained and at < behind)
        if silent:
            return f"stream {name}: {len(silent)} messages are neither shown nor said to be lost: {silent[:5]}"
    return ""


def _differs(what: str, mine: Said, said: Said, refused: set[str]) -> str:
    for name, (lost, unexplained) in said.items():
        if name in refused:
            continue
        if name not in mine:
            return f"stream {name}: {what} does not have it"
        if mine[name] != (lost, unexplained):
            return f"stream {name}: {what} says {mine[name]}, a comparison {(lost, unexplained)}"
    return ""


# --- runs


def cases(names: Iterable[str], seed: int) -> Iterator[tuple[str, int]]:
    """Yield cases without end, one store after another."""
    names = list(names)
    while names:
        yield from ((name, seed) for name in names)
        seed += 1


def run(
    stores: Mapping[str, Kept],
    todo: Iterator[tuple[str, int]],
    folder: Path,
    seconds: float,
    count_max: int | None = None,
) -> Outcome:
    """Try cases until the time is over, or so many are done, or too much is wrong."""
    outcome = Outcome()
    end = time.monotonic() + seconds
    with _quickly():
        for name, seed in todo:
            if time.monotonic() > end or outcome.counts["damages"] == count_max:
                break
            if wrong := try_one(stores[name], seed, folder, outcome.counts):
                outcome.findings.append(f"{name}:{seed} {wrong}")
                if len(outcome.findings) == FINDING_COUNT_MAX:
                    break
    return outcome


@contextmanager
def _quickly() -> Iterator[None]:
    """Log nothing, look for no processes that write to the stores, and hash each array of messages once: most blocks of
    a damaged store are as they were."""
    remembered: dict[bytes, np.ndarray] = {}

    def hash_together(batches: Sequence[highwayhash.Batch]) -> list[np.ndarray]:
        names = [_name_of(batch) for batch in batches]
        new = [at for at, name in enumerate(names) if name not in remembered]
        if len(remembered) > REMEMBERED_MAX:
            new = list(range(len(names)))
            remembered.clear()
        remembered.update(zip((names[at] for at in new), hashed([batches[at] for at in new]), strict=True))
        return [remembered[name].copy() for name in names]

    hashed, writers, level = highwayhash.hash_together, copies.writers, logging.root.manager.disable
    highwayhash.hash_together = record.hash_together = hash_together
    copies.writers = lambda paths: []
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        highwayhash.hash_together = record.hash_together = hashed
        copies.writers = writers
        logging.disable(level)


def _name_of(batch: highwayhash.Batch) -> bytes:
    name = blake2b(repr(batch.key).encode(), digest_size=16)
    for part in (batch.starts, batch.sizes, batch.heads, batch.buffer):
        name.update(b"|" if part is None else np.ascontiguousarray(part).view(np.uint8))
    return name.digest()


def try_one(store: Kept, seed: int, folder: Path, counts: Counter[str]) -> str:
    """Damage a copy of a store and read it; return what was done and what is wrong, "" if nothing."""
    rng = random.Random(f"{store.name}:{seed}")
    place = folder / f"store-{os.getpid()}"
    _write(store.whole, place)
    done = damage(store, place, rng)
    counts["damages"] += 1
    try:
        wrong = check(store, place, folder / f"import-{os.getpid()}", rng, counts)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return f"({', '.join(done)}): {wrong}" if wrong else ""
