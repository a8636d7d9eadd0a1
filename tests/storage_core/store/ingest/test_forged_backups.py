"""Backups whose manifest vouches for what no store wrote: refused whole, in bounds, and the process lives on.

Whoever makes one has the digests right: of the footers in the snapshot, and of the snapshot in its own header.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack_into
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from harness.bounded_run import Ended, restore_all
from harness.forged_blocks import Forger

from storage_core.block.format import digest_of
from storage_core.chunked_set import ChunkedSet
from storage_core.errors import CorruptionError
from storage_core.metadata.invariants import check_state
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.metadata.state import StoreState, Streams, StreamState, encode_state
from storage_core.raft.entry import EntryId
from storage_core.schema import FRAME_SCHEMA
from storage_core.sequences import SEQUENCE_MAX, SequenceSet
from storage_core.store.environment import REAL
from storage_core.store.ingest.backup import backup, open_backup, read_mark, write_state
from storage_core.store.store import Store
from storage_core.store.volume.identity import BACKUP_FILE

SECONDS_MAX, MEMORY_MAX = 5.0, 500 << 20
Change = Callable[[Forger], object]


def made(place: Path, compression: str = "none") -> Path:
    """Return a backup of a store with one block of a hundred messages."""
    store = Store.create([place / "volume"])
    stream = store.add_stream({"name": "notes", "subjects": ["notes.>"], "compression": compression})
    headers, data = [{"key": "k", "value": b"v"}], b"data" * 25
    rows = [
        {"subject": f"notes.{n % 3}", "timestamp_ns": 1000 + n, "headers": headers, "data": data} for n in range(100)
    ]
    stream.append(pa.Table.from_pylist(rows, schema=FRAME_SCHEMA))
    backup(store, place / "backup")
    return place / "backup"


def with_state(directory: Path, state: StoreState | bytes) -> None:
    """Make a backup one of this state, whatever it says."""
    encoded = state if isinstance(state, bytes) else encode_state(state)
    store_id = read_mark(directory / BACKUP_FILE, REAL)
    (snapshot,) = (directory / "meta").iterdir()
    write_state(directory, store_id, EntryId(int(snapshot.stem, 16), 1, bytes(16)), encoded, REAL)


def with_block(directory: Path, change: Change) -> None:
    """Forge the block of a backup, with all checksums and digests."""
    (path,) = directory.rglob("*.blk")
    forger = Forger(path.read_bytes())
    change(forger)
    forged = forger.seal()
    path.write_bytes(forged)
    footer_offset, footer_size = np.frombuffer(forged, "<u4", 2, len(forged) - 24).tolist()
    state = open_backup(directory, REAL).state
    (stream,) = state.streams.values()
    rows = stream.blocks.rows.copy()
    rows["digest"] = np.void(digest_of(forged[footer_offset : footer_offset + footer_size]))
    rows["file_size"] = len(forged)
    with_state(directory, state.with_stream(replace(stream, blocks=Table.of(rows))))


def check(cases: dict[str, Path]) -> None:
    ended, peak_bytes = restore_all(list(cases.values()))
    for (name, directory), outcome in zip(cases.items(), ended, strict=True):
        print(f"{name}: {outcome.error}, {outcome.seconds:.2f} s: {outcome.text[:200]}")
        check_refused(directory, outcome, name)
    print(f"{peak_bytes >> 20} MiB")
    assert peak_bytes < MEMORY_MAX


def check_refused(directory: Path, outcome: Ended, name: str) -> None:
    assert outcome.error == "CorruptionError", (name, outcome)
    assert str(directory) in outcome.text and "offset_bytes" in outcome.text, (name, outcome)
    assert len(outcome.text) < 2000 and "\x1b" not in outcome.text, (name, outcome)
    assert outcome.seconds < SECONDS_MAX, (name, outcome)
    assert not Path(f"{directory}-restored", "jstream.volume").exists(), name


def offsets_of(forger: Forger, values: list[int]) -> int:
    """Return where in the payload the offsets of a column begin."""
    at = forger.payloads[0].find(np.array(values, "<i4").tobytes())
    assert at > 0
    return at


def last_offset(size: int, value: int) -> Change:
    """Set the last offset of the column whose values have this size to `value`."""

    def change(forger: Forger) -> None:
        start = offsets_of(forger, [0, size, 2 * size, 3 * size])
        pack_into("<i", forger.payloads[0], start + 4 * 100, value)

    return change


def inner_offset(size: int, value: int) -> Change:
    def change(forger: Forger) -> None:
        start = offsets_of(forger, [0, size, 2 * size, 3 * size])
        pack_into("<i", forger.payloads[0], start + 4 * 50, value)

    return change


def no_utf8(forger: Forger) -> None:
    at = forger.payloads[0].find(b"notes.0")
    forger.payloads[0][at] = 0xFF


def other_subject(forger: Forger) -> None:
    at = forger.payloads[0].find(b"notes.0")
    forger.payloads[0][at : at + 7] = b"other.0"


def other_times(forger: Forger) -> None:
    at = forger.payloads[0].find((1000).to_bytes(8, "little"))
    forger.payloads[0][at : at + 8] = (5).to_bytes(8, "little")


def other_size(forger: Forger) -> None:
    forger.sections["data_size"] -= 1


OFFSETS: dict[str, Change] = {
    "data ends at 200,000": last_offset(100, 200_000),
    "data ends at 9e8": last_offset(100, 900_000_000),
    "data goes back": inner_offset(100, -1),
    "data within": inner_offset(100, 200_000),
    "a subject ends at 9e8": last_offset(7, 900_000_000),
    "a subject goes back": inner_offset(7, -5),
    "headers end at 2^31-1": last_offset(1, 2**31 - 1),
    "no UTF-8": no_utf8,
    "another subject than the footer has": other_subject,
    "other times than the footer has": other_times,
    "another size than the footer has": other_size,
}


def test_forged_arrow_is_refused_by_restore(tmp_path: Path) -> None:
    good, cases = made(tmp_path), {}
    for number, (name, change) in enumerate(OFFSETS.items()):
        cases[name] = shutil.copytree(good, tmp_path / f"forged-{number}")
        with_block(cases[name], change)
    check(cases)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_forged_sizes_of_compressed_buffers_are_refused_by_restore(tmp_path: Path, codec: str) -> None:
    good, cases = made(tmp_path, codec), {}
    for number, declared in enumerate([16, 9_999, 10_001, 1 << 20, -2, 1 << 40, -1, 2**63 - 1, -(2**63)]):

        def change(forger: Forger, declared: int = declared) -> None:
            at = forger.payloads[0].rfind((10_000).to_bytes(8, "little"))  # the last buffer is that of the data
            assert at > 0
            pack_into("<q", forger.payloads[0], at, declared)

        cases[str(declared)] = shutil.copytree(good, tmp_path / f"forged-{number}")
        with_block(cases[str(declared)], change)
    check(cases)


# --- states


def test_a_span_beyond_the_block_is_refused_unless_what_it_adds_was_removed(tmp_path: Path) -> None:
    directory = made(tmp_path)
    state = open_backup(directory, REAL).state
    (stream,) = state.streams.values()
    rows = stream.blocks.rows.copy()
    rows["span"] += 1
    removed = ChunkedSet.of(SequenceSet.from_ranges([(50, 51)]))
    longer = replace(stream, blocks=Table.of(rows), next_sequence=102, removed=removed)
    with_state(directory, state.with_stream(longer))
    with pytest.raises(CorruptionError, match="span in the footer: expected 101, found 100"):
        Store.restore(directory, tmp_path / "new")
    removed = ChunkedSet.of(SequenceSet.from_ranges([(101, 102)]))
    with_state(directory, state.with_stream(replace(longer, removed=removed)))
    with Store.restore(directory, tmp_path / "new") as store:
        assert store.stream("notes").info()["state"]["messages"] == 100
        assert store.verify()["ok"]


def of_stream(**changes: Any) -> Callable[[StoreState], StoreState]:
    def change(state: StoreState) -> StoreState:
        (stream,) = state.streams.values()
        return replace(state, streams=Streams({"notes": replace(stream, **changes)}))

    return change


def of_config(**changes: Any) -> Callable[[StoreState], StoreState]:
    def change(state: StoreState) -> StoreState:
        (stream,) = state.streams.values()
        config = msgspec.structs.replace(stream.config, **changes)
        return replace(state, streams=Streams({config.name.casefold(): replace(stream, config=config)}))

    return change


def of_row(**changes: int) -> Callable[[StoreState], StoreState]:
    def change(state: StoreState) -> StoreState:
        (stream,) = state.streams.values()
        rows = stream.blocks.rows.copy()
        for name, value in changes.items():
            rows[name] = value
        return state.with_stream(replace(stream, blocks=Table.of(rows)))

    return change


def twice(state: StoreState) -> StoreState:
    (stream,) = state.streams.values()
    config = msgspec.structs.replace(stream.config, name="again")
    empty = Table.of(np.empty(0, BLOCK_DTYPE))
    bare = StreamState(config, stream.incarnation, 1, stream.placement, blocks=empty)
    return replace(state, streams=Streams({"notes": stream, "again": bare}))


STATES: dict[str, Callable[[StoreState], StoreState]] = {
    "a name that is a path": of_config(name="../../x"),
    "a name with ESC": of_config(name="a\x1b[2Jb"),
    "a name of a million letters": of_config(name="n" * 1_000_000),
    "a subject with a line break": of_config(subjects=("a\nb",)),
    "no replicas": of_config(num_replicas=0),
    "span -1": of_row(span=-1),
    "span 2^63-1": of_row(span=2**63 - 1),
    "span that ends behind the stream": of_row(span=101),
    "row_count -1": of_row(row_count=-1),
    "fewer rows than messages": of_row(row_count=99),
    "first 2^63-10": of_row(first=2**63 - 10),
    "first -5": of_row(first=-5),
    "a size below that of any block": of_row(file_size=10),
    "times that go back": of_row(time_min_ns=10**18),
    "a set of subjects that there is not": of_row(subject_set=7),
    "next_sequence -1": of_stream(next_sequence=-1),
    "next_sequence 2^64-1": of_stream(next_sequence=2**64 - 1),
    "next_sequence 2^63-2": of_stream(next_sequence=SEQUENCE_MAX),
    "a first sequence behind the end": of_stream(low_watermark=102),
    "a message_count that is not so": of_stream(message_count=101),
    "removed sequences outside": of_stream(removed=ChunkedSet.of(SequenceSet.from_ranges([(200, 300)]))),
    "lost sequences outside": of_stream(lost=SequenceSet.from_ranges([(0, 2)])),
    "histories that go back": of_stream(histories=((b"h" * 8, 50), (b"i" * 8, 20))),
    "an incarnation of two bytes": of_stream(incarnation=b"xx"),
    "data_size -1": of_stream(data_size=-1),
    "two streams of one incarnation": twice,
    "no store": lambda state: replace(state, store_id=b""),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("good"))


def test_states_of_no_store_are_refused_by_restore(tmp_path: Path, good: Path) -> None:
    cases, state = {}, open_backup(good, REAL).state
    check_state(state)
    for number, (name, change) in enumerate(STATES.items()):
        cases[name] = shutil.copytree(good, tmp_path / f"forged-{number}")
        with_state(cases[name], change(state))
    check(cases)


def test_two_streams_of_one_name_are_refused_by_restore(tmp_path: Path, good: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "forged")
    state = msgspec.msgpack.decode(encode_state(open_backup(good, REAL).state))
    state["streams"].append(state["streams"][0])
    with_state(directory, msgspec.msgpack.encode(state))
    with pytest.raises(CorruptionError, match="2 streams with 1 names"):
        open_backup(directory, REAL)


def test_a_state_nested_nine_million_deep_is_refused_by_restore(tmp_path: Path, good: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "forged")
    encoded = encode_state(open_backup(good, REAL).state)
    key = msgspec.msgpack.encode("unknown")
    assert encoded[0] == 0xDE or encoded[0] & 0xF0 == 0x80  # a map: with one key more
    count = (encoded[0] & 0x0F) if encoded[0] != 0xDE else int.from_bytes(encoded[1:3], "big")
    rest = encoded[1:] if encoded[0] != 0xDE else encoded[3:]
    nested = b"\x91" * 9_000_000 + b"\xc0"
    with_state(directory, b"\xde" + (count + 1).to_bytes(2, "big") + key + nested + rest)
    check({"nested": directory})
