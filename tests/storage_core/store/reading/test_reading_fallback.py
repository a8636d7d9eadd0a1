"""Reading around damage: rows come from another copy, frame by frame and in order, as long as any copy has them.

FAULTS scenarios 3, 4, 7 and 17 for blocks: whatever is wrong with the copies, a read yields exactly the rows that at
least one copy has, once and in order, tells the others with their sequences, and leaves reports about the bad copies.
"""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from crc32c import crc32c
from harness.cases import Cases
from harness.copies import Scattered
from harness.faults import Call, FaultyFiles
from harness.open_files import open_files
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.block.reader import BlockReader
from storage_core.chunked_set import ChunkedSet
from storage_core.deadlines import DeadlineFiles
from storage_core.errors import DataLossError, StalePlanError, UnavailableError, UnsupportedVersionError
from storage_core.files import OS_FILES
from storage_core.schema import READ_SCHEMA, read_schema
from storage_core.sequences import SequenceSet
from storage_core.store.environment import REAL, Environment
from storage_core.store.reading.plan import BlockSlice, ReadRequest
from storage_core.store.reading.reading import ReadDamage, ReadOptions, ask_block, read_slices
from storage_core.store.store import Store
from storage_core.store.volume import reports
from storage_core.store.volume.reports import Reports

FRAMES = 3
FRAME_ROWS = 10
HOLES = (4, 10, 11, 25)  # relative sequences that the second block leaves out
BLOCKS = 2
SKIP = ReadOptions(("sequence",), on_data_loss="continue")


@pytest.fixture
def scattered(tmp_path: Path) -> Scattered:
    """Two blocks of three frames on three volumes."""
    return make(tmp_path)


def make(root: Path, volume_count: int = 3) -> Scattered:
    made = Scattered.make(root, volume_count)
    made.add_block(FRAMES * FRAME_ROWS, FRAME_ROWS)
    made.add_block(FRAMES * FRAME_ROWS, FRAME_ROWS, HOLES)
    return made


def sequences(
    slices: Sequence[BlockSlice],
    options: ReadOptions = SKIP,
    told: list[ReadDamage] | None = None,
    env: Environment = REAL,
) -> list[int]:
    """Return the sequences that a read of these slices yields."""
    report = told.append if told is not None else None
    batches = list(read_slices(slices, options, report, env))
    assert all(batch.num_rows for batch in batches)
    return [number for batch in batches for number in batch.column("sequence").to_pylist()]


def copy_path(one: BlockSlice, at: int) -> Path:
    """Return the file of copy `at`, in the order in which a read tries them."""
    return Path(one.paths[at])


def frame_offsets(path: Path) -> list[int]:
    with OS_FILES.open(path) as file:
        return [int(offset) for offset in BlockReader.open(file).footer.frames.offsets]


def flip(path: Path, offset_bytes: int) -> None:
    with path.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, offset_bytes)
        os.pwrite(file.fileno(), bytes([byte ^ 0x10]), offset_bytes)


def damage_frame(one: BlockSlice, at: int, frame: int) -> None:
    path = copy_path(one, at)
    flip(path, frame_offsets(path)[frame] + 100)


def frame_sequences(one: BlockSlice) -> list[list[int]]:
    """Return the sequences of each frame of a block."""
    everything = [batch.column("sequence").to_pylist() for batch in read_slices([one], SKIP)]
    assert len(everything) == FRAMES
    return everything


def test_a_read_that_ends_early_leaves_no_file_open(tmp_path: Path) -> None:
    """From the second block on the next one is opened meanwhile, also if nobody comes for it."""
    scattered = make(tmp_path)
    for _ in range(3):
        scattered.add_block(FRAMES * FRAME_ROWS, FRAME_ROWS)
    opened: list[Path] = []

    def judge(call: Call) -> int:
        if call.operation == "open" and call.file_kind == "block":
            opened.append(call.path)
        return 0

    env = replace(REAL, files=DeadlineFiles(FaultyFiles(OS_FILES, judge, ("open",))))
    everything = sequences(scattered.slices())
    for batch_count, block_count in ((1, 1), (FRAMES, 1), (FRAMES + 1, 3), (2 * FRAMES + 1, 4), (5 * FRAMES, 5)):
        opened.clear()
        reading = cast("Generator[pa.RecordBatch]", read_slices(scattered.slices(), SKIP, None, env))
        rows = [number for _ in range(batch_count) for number in next(reading).column("sequence").to_pylist()]
        reading.close()
        assert rows == everything[: len(rows)]
        assert len(opened) == len(set(opened)) == block_count
        assert open_files(tmp_path) == 0


# --- frames


def test_every_pattern_of_damaged_frames_yields_what_any_copy_has(tmp_path: Path) -> None:
    """Each of three frames is damaged in any subset of three copies: 512 patterns, of which one byte decides each."""
    subsets = [set(one) for count in range(4) for one in itertools.combinations(range(3), count)]
    cases = Cases("patterns of damaged frames over three copies")
    scattered = make(tmp_path)
    one = scattered.slices()[1]
    per_frame = frame_sequences(one)
    offsets = frame_offsets(copy_path(one, 0))
    for pattern in itertools.product(subsets, repeat=FRAMES):
        marks = [(at, offsets[frame] + 100) for frame, copies in enumerate(pattern) for at in copies]
        for at, offset in marks:
            flip(copy_path(one, at), offset)
        with cases.case(f"damaged copies by frame: {pattern}"):
            told: list[ReadDamage] = []
            lost = [frame for frame, copies in enumerate(pattern) if len(copies) == 3]
            expected = [number for frame in range(FRAMES) if frame not in lost for number in per_frame[frame]]
            assert sequences([one], told=told) == expected
            assert [(one.first, one.end - 1) for one in told if not one.served] == [
                (per_frame[frame][0], per_frame[frame][-1]) for frame in lost
            ]
            served = {(one.file, one.first, one.end - 1) for one in told if one.served}
            assert served == {
                (one.paths[at], per_frame[frame][0], per_frame[frame][-1])
                for frame, copies in enumerate(pattern)
                if len(copies) < 3
                for at in copies
                if copies.issuperset(range(at))  # the copies before it were bad as well: this one was asked
            }
        for at, offset in marks:
            flip(copy_path(one, at), offset)
    cases.finish()
    assert cases.count == 512


@settings(max_examples=150)
@given(data=st.data())
def test_ranges_splits_filters_and_removals_are_kept_when_rows_come_from_several_copies(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same read of undamaged copies says what has to come out, whichever copies the rows come from."""
    scattered = make(tmp_path_factory.mktemp("scattered"))
    end = scattered.stream.next_sequence
    first = data.draw(st.integers(1, end - 1))
    stop = data.draw(st.integers(first, end))
    removed = data.draw(st.sets(st.integers(1, end - 1), max_size=20))
    columns = data.draw(st.lists(st.sampled_from(READ_SCHEMA.names), min_size=1, unique=True))
    options = ReadOptions(
        tuple(columns),
        subject_filters=data.draw(st.sampled_from([(), ("s.1",), ("s.0", "s.2"), ("t.>",)])),
        time_first_ns=data.draw(st.none() | st.integers(0, end * 1000)),
        time_end_ns=data.draw(st.none() | st.integers(0, end * 1000)),
        verify=data.draw(st.booleans()),
    )
    scattered.change(removed=ChunkedSet.of(SequenceSet.from_sequences(sorted(removed))))
    grain = data.draw(st.integers(1, 20))
    parts = [part for one in scattered.slices(first, stop) for part in one.split(grain)]
    expected = pa.Table.from_batches(list(read_slices(parts, options)), read_schema_of(options))
    for one in scattered.slices():
        for frame in range(FRAMES):
            for at in data.draw(st.sets(st.integers(0, 2), max_size=2)):
                path = copy_path(one, at)
                flip(path, frame_offsets(path)[frame] + 8)  # of its header: found without checksums as well
    told: list[ReadDamage] = []
    found = pa.Table.from_batches(list(read_slices(parts, options, told.append)), read_schema_of(options))
    assert found.equals(expected)
    assert all(one.served and first <= one.first < one.end <= stop for one in told)


def read_schema_of(options: ReadOptions) -> pa.Schema:
    return read_schema(options.columns)


def test_the_rest_of_a_batch_that_lies_behind_a_damaged_frame_is_served_after_it(scattered: Scattered) -> None:
    one = scattered.slices()[0]
    expected = frame_sequences(one)
    for frame in (0, 2):
        damage_frame(one, 0, frame)
    damage_frame(one, 1, 2)
    batches = [batch.column("sequence").to_pylist() for batch in read_slices([one], SKIP)]
    assert batches == expected


# --- whole copies


def cut_on_a_frame(path: Path) -> None:
    os.truncate(path, frame_offsets(path)[1])


def put_another_block(path: Path) -> None:
    shutil.copy(next(one for one in sorted(path.parent.iterdir()) if one != path), path)


def put_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def put_an_older_one(path: Path) -> None:
    """A whole block of the same name and size, with other times: a disk that was rolled back has something like it."""
    other = Scattered.make(path.parents[2] / "older", 1)
    other.add_block(FRAMES * FRAME_ROWS, FRAME_ROWS, later_ns=1)
    other.add_block(FRAMES * FRAME_ROWS, FRAME_ROWS, HOLES, later_ns=1)
    (older,) = [one for one in other.files(0) if one.name == path.name]
    assert older.stat().st_size == path.stat().st_size
    shutil.copy(older, path)


HARM: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "its directory missing": lambda path: shutil.rmtree(path.parent),
    "its directory a file": lambda path: (shutil.rmtree(path.parent), path.parent.write_bytes(b""))[1],
    "cut on a frame's boundary": cut_on_a_frame,
    "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer by a byte": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zero bytes": lambda path: os.truncate(path, 0),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a directory": lambda path: (path.unlink(), path.mkdir())[1],
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path))[1],
    "a link to a good copy": put_a_link,
    "another block": put_another_block,
    "an older block": put_an_older_one,
    "a damaged header": lambda path: flip(path, 20),
    "a header of a newer version": lambda path: flip(path, 8),
    "a damaged footer": lambda path: flip(path, frame_offsets(path)[-1] + 3),
    "a damaged trailer": lambda path: flip(path, path.stat().st_size - 2),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("bad_count", [1, 2])
def test_a_copy_that_is_not_the_block_is_passed_over(scattered: Scattered, harm: str, bad_count: int) -> None:
    expected = sequences(scattered.slices())
    one = scattered.slices()[1]
    for at in range(bad_count):
        HARM[harm](copy_path(one, at))
    told: list[ReadDamage] = []
    assert sequences(scattered.slices(), replace(SKIP, on_data_loss="fail"), told) == expected
    mine = [damage for damage in told if damage.first >= one.first]
    assert [(damage.file, damage.served) for damage in mine] == [(one.paths[at], True) for at in range(bad_count)]
    assert {(damage.first, damage.end) for damage in mine} == {(one.first, one.end)}
    assert all(damage.reason and "were read from another copy" in str(damage) for damage in mine)


@pytest.mark.parametrize("harm", [name for name in HARM if "missing" not in name and "a file" not in name])
def test_rows_that_no_copy_has_are_lost_and_every_copy_is_named(scattered: Scattered, harm: str) -> None:
    one = scattered.slices()[1]
    expected = sequences(scattered.slices()[:1])
    for at in range(3):
        HARM[harm](copy_path(one, at))
    told: list[ReadDamage] = []
    assert sequences(scattered.slices(), told=told) == expected
    (damage,) = [one for one in told if not one.served]
    assert (damage.first, damage.end) == (one.first, one.end)
    with pytest.raises(DataLossError, match=f"sequences {one.first} to {one.end - 1} cannot be read") as raised:
        sequences(scattered.slices(), replace(SKIP, on_data_loss="fail"))
    assert all(path in str(raised.value) for path in one.paths)


def test_copies_that_are_bad_in_different_ways_still_serve_everything_together(scattered: Scattered) -> None:
    expected = sequences(scattered.slices())
    first, second = scattered.slices()
    damage_frame(first, 0, 0)
    HARM["zero bytes"](copy_path(first, 1))
    damage_frame(first, 2, 2)
    HARM["missing"](copy_path(second, 0))
    damage_frame(second, 1, 1)
    damage_frame(second, 2, 0)
    assert sequences(scattered.slices()) == expected


def test_a_disk_that_fails_at_any_read_is_passed_over(tmp_path: Path) -> None:
    scattered = make(tmp_path)
    slices = scattered.slices()
    expected = sequences(slices)
    for count in (1, 2):
        bad = {Path(one.paths[at]) for one in slices for at in range(count)}
        counting = FaultyFiles(OS_FILES, counted=("open", "read", "size"))
        sequences(slices, env=replace(REAL, files=counting))
        cases = Cases(f"EIO from {count} of 3 copies while they are read")
        for number, called in enumerate(counting.calls):
            forever = number % 2 == count % 2  # each call fails once for ever, and once by itself
            with cases.case(f"{called}, for ever {forever}"):

                def judge(call: Call, at: int = number, forever: bool = forever, bad: set[Path] = bad) -> int:
                    hit = call.number == at or (forever and call.number > at)
                    return errno.EIO if hit and call.path in bad else 0

                env = replace(REAL, files=FaultyFiles(OS_FILES, judge, ("open", "read", "size")))
                told: list[ReadDamage] = []
                assert sequences(slices, replace(SKIP, on_data_loss="fail"), told, env) == expected
                assert told and all(one.served for one in told)
                if not forever:
                    assert len(told) == 1 and "Input/output error" in told[0].reason
        cases.finish()


@pytest.mark.parametrize(("volume_count", "bad_count"), [(3, 1), (5, 2)])
def test_flips_and_cuts_all_over_the_copies_of_a_minority_cost_nothing(
    tmp_path: Path, volume_count: int, bad_count: int
) -> None:
    scattered = Scattered.make(tmp_path, volume_count)
    scattered.add_block(FRAMES * 4, 4, (2, 5))
    (one,) = scattered.slices()
    expected = pa.Table.from_batches(list(read_slices([one], replace(SKIP, columns=tuple(READ_SCHEMA.names)))))
    whole = copy_path(one, 0).read_bytes()
    cases, found = Cases(f"{bad_count} of {volume_count} copies of a block damaged"), 0

    def read_with(content: Callable[[int], bytes]) -> None:
        nonlocal found
        for at in range(bad_count):
            copy_path(one, at).write_bytes(content(at))
        told: list[ReadDamage] = []
        options = ReadOptions(tuple(READ_SCHEMA.names))
        assert pa.Table.from_batches(list(read_slices([one], options, told.append))).equals(expected)
        assert all(damage.served for damage in told)
        found += bool(told)

    for byte in range(bad_count, len(whole), 5):
        with cases.case(f"bit {byte % 8} of byte {byte}", "flips"):
            flipped = bytearray(whole)
            flipped[byte] ^= 1 << byte % 8
            # The second copy is damaged somewhere else.
            other = bytearray(whole)
            other[(byte * 7 + 1000) % len(whole)] ^= 1
            read_with(lambda at: bytes(other if at else flipped))  # noqa: B023
    for size in range(bad_count, len(whole), 11):
        with cases.case(f"cut to {size}", "cuts"):
            read_with(lambda at: whole[: size - size * at // 2])  # noqa: B023
    cases.finish()
    # Padding and what else is not needed for these rows is looked at by scrub, not by reads.
    assert found > 0.75 * cases.count


# --- what is told and left


def test_a_volume_that_never_took_the_block_is_no_news(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 3)
    scattered.add_block(10, 10, holders=[1, 2])
    (one,) = scattered.slices()
    HARM["zero bytes"](copy_path(one, 0))
    told: list[ReadDamage] = []
    assert len(sequences([one], told=told)) == 10
    assert [damage.file for damage in told] == [one.paths[0]]
    HARM["zero bytes"](copy_path(one, 1))
    with pytest.raises(DataLossError) as raised:
        sequences([one], replace(SKIP, on_data_loss="fail"))
    assert one.paths[0] in str(raised.value) and one.paths[1] in str(raised.value)
    assert one.paths[2] not in str(raised.value)


def test_a_copy_that_repair_brought_to_a_volume_that_had_missed_it_is_served(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 3)
    scattered.add_block(10, 10, holders=[1, 2])
    (one,) = scattered.slices()
    shutil.copy(one.paths[0], one.paths[2])
    for at in range(2):
        HARM["zero bytes"](copy_path(one, at))
    assert len(sequences([one])) == 10


def reports_on(scattered: Scattered) -> list[tuple[int, reports.Report]]:
    return [
        (number, report)
        for number, volume in enumerate(scattered.volumes)
        for _, report in Reports(OS_FILES, volume.path).read()
    ]


def test_a_report_is_left_on_another_volume_for_each_bad_copy_once(scattered: Scattered) -> None:
    first, second = scattered.slices()
    damage_frame(first, 0, 0)
    damage_frame(first, 0, 2)
    HARM["missing"](copy_path(second, 0))
    HARM["zero bytes"](copy_path(second, 1))
    for _ in range(3):
        sequences(scattered.slices())
    found = {(one.block_id, one.volume_id): (number, one) for number, one in reports_on(scattered)}
    assert len(reports_on(scattered)) == len(found) == 3
    bad = [(first, 0), (second, 0), (second, 1)]
    assert set(found) == {(one.block_id, one.copies[at].volume_id) for one, at in bad}
    for (_, volume_id), (number, report) in found.items():
        assert scattered.volumes[number].volume_id != volume_id
        assert report.incarnation == scattered.stream.incarnation and report.reason and report.time_ns
    _, report = found[first.block_id, first.copies[0].volume_id]
    assert (report.first, report.end) == (first.first, first.first + FRAME_ROWS)
    _, report = found[second.block_id, second.copies[0].volume_id]
    assert (report.first, report.end, report.reason) == (second.first, second.end, "the file is missing")


def test_reading_goes_on_where_no_report_can_be_left(scattered: Scattered) -> None:
    expected = sequences(scattered.slices())
    damage_frame(scattered.slices()[0], 0, 1)
    files = FaultyFiles(OS_FILES, lambda call: errno.EROFS)
    assert sequences(scattered.slices(), env=replace(REAL, files=files)) == expected
    assert files.calls and not reports_on(scattered)


def test_undamaged_copies_are_read_from_one_file_a_block_and_nothing_is_written(scattered: Scattered) -> None:
    files = FaultyFiles(OS_FILES, counted=("open", "create", "write", "list", "make_directory"))
    told: list[ReadDamage] = []
    sequences(scattered.slices(), told=told, env=replace(REAL, files=files))
    assert [call.operation for call in files.calls] == ["open"] * BLOCKS
    assert not told


def test_files_are_closed_however_a_read_ends(scattered: Scattered, tmp_path: Path) -> None:
    for one in scattered.slices():
        damage_frame(one, 0, 1)
    batches = read_slices(scattered.slices(), SKIP)
    next(batches), next(batches)  # the second one comes from another copy
    assert open_files(tmp_path) == 2
    batches.close()  # type: ignore[attr-defined]
    sequences(scattered.slices())
    assert open_files(tmp_path) == 0


# --- questions, old plans, newer versions


def test_a_question_about_a_block_is_answered_by_a_copy_that_can(scattered: Scattered) -> None:
    one = scattered.slices()[1]
    HARM["missing"](copy_path(one, 0))
    HARM["a damaged footer"](copy_path(one, 1))
    assert ask_block(one, lambda reader: reader.footer.row_count) == FRAMES * FRAME_ROWS
    HARM["a directory"](copy_path(one, 2))
    with pytest.raises(DataLossError) as raised:
        ask_block(one, lambda reader: reader.footer.row_count)
    assert all(path in str(raised.value) for path in one.paths)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create([tmp_path / f"volume-{number}" for number in range(3)], deleted_block_retention="0s")
    stream = made.add_stream({"name": "S", "num_replicas": 3})
    for _ in range(2):
        stream.append(pa.record_batch({"data": [b"x"] * 10}))
    return made


@pytest.mark.parametrize("lost_volumes", [[], [0], [1], [2]])
def test_an_old_plan_is_stale_and_any_volume_that_is_left_says_so(store: Store, lost_volumes: list[int]) -> None:
    plan = store.plan(ReadRequest(("S",)))
    store.stream("S").purge()
    store.maintain()
    for number in lost_volumes:
        shutil.rmtree(store.volumes()[number].path)
    for options in (SKIP, replace(SKIP, on_data_loss="fail")):
        with pytest.raises(StalePlanError, match="sequences 1 to 10 were removed"):
            sequences(plan.slices, options)
    left = [one.path for one in store.volumes() if one.identity is not None]
    assert all(Reports(OS_FILES, path).read() == [] for path in left), "nothing is damaged"


def test_messages_whose_only_volume_is_away_are_no_loss_and_back_with_it(store: Store) -> None:
    stream = store.add_stream({"name": "T", "num_replicas": 1})
    stream.append(pa.record_batch({"data": [b"x"] * 5}))
    home = next(one.path for one in store.volumes() if one.volume_id in stream.state().placement)
    home.rename(home.with_name("away"))
    for on_data_loss in ("fail", "continue"):
        with pytest.raises(UnavailableError, match=f"sequences 1 to 5 cannot be read: the volume is away: {home} "):
            stream.read(on_data_loss=on_data_loss).read_all()
    home.with_name("away").rename(home)
    assert stream.read().read_all().num_rows == 5


def test_a_block_that_is_gone_from_every_volume_but_should_not_be_is_lost(store: Store) -> None:
    plan = store.plan(ReadRequest(("S",)))
    for path in plan.slices[0].paths:
        Path(path).unlink()
    with pytest.raises(DataLossError, match="sequences 1 to 10 cannot be read: the file is missing"):
        sequences(plan.slices, replace(SKIP, on_data_loss="fail"))
    assert sequences(plan.slices) == list(range(11, 21))


def test_an_old_plan_goes_on_with_what_one_volume_has_not_unlinked_yet(store: Store) -> None:
    plan = store.plan(ReadRequest(("S",)))
    kept = Path(plan.slices[0].paths[2])
    content = kept.read_bytes()
    store.stream("S").purge(end=11)
    store.maintain()
    kept.write_bytes(content)
    assert sequences(plan.slices) == list(range(1, 21))


def test_a_newer_version_of_a_block_is_refused_only_if_no_copy_can_be_read(scattered: Scattered) -> None:
    one = scattered.slices()[0]

    def make_newer(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[8:12] = (2).to_bytes(4, "little")
        content[12:16] = crc32c(bytes(content[:12])).to_bytes(4, "little")
        path.write_bytes(content)

    make_newer(copy_path(one, 0))
    assert len(sequences([one])) == FRAMES * FRAME_ROWS
    for at in (1, 2):
        make_newer(copy_path(one, at))
    with pytest.raises(UnsupportedVersionError):
        sequences([one])
