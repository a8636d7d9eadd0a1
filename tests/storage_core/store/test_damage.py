"""Damage to the metadata's files of a small real store: every third bit flipped, every length cut.

Opening and reading then gives the same messages, or an error of ours: never a wrong message, never another exception,
never fewer messages without an error. What a store does depends on a file only through what its decoder says of it.
So these bits and every length are given to the decoders, and each distinct answer to a whole store, once as a writer
and once as a reader on a read-only medium. Bits three apart are of every byte, and of each place in it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import StorageError
from storage_core.files import OS_FILES
from storage_core.raft import log_format, snapshot_format
from storage_core.raft.log_format import BATCHES_OFFSET, PAGE_SIZE, BadRecord
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.volume.identity import decode_identity
from storage_core.store.volume.index import VolumeIndex

QUICK = Environment(sleep=lambda _: None)
Answer = Any  # hashable


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one log segment: a stream, messages, a removal."""
    volume = tmp_path_factory.mktemp("fresh") / "volume"
    store = Store.create(volume)
    orders = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(2):
        orders.publish(f"orders.{number}", b"%d" % number, headers=[("n", b"%d" % number)])
    orders.remove(2)
    store.verify()
    return volume


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with two snapshots, a log that begins at the older one, and entries after the newer one."""
    volume = tmp_path_factory.mktemp("lived") / "volume"
    store = Store.create(volume)
    orders = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for number in range(5):
        orders.publish(f"orders.{number}", b"%d" % number)
        if number in (1, 3):
            with store.metadata.session(1.0) as session:
                assert session.snapshot()
    assert len(store.volumes()[0].log.segments()) == 2
    return volume


def messages(volume: Path, read_only: bool) -> dict[str, list[dict[str, Any]]]:
    store = Store.open(volume, read_only=read_only, env=QUICK)
    return {name: store.stream(name).read().read_all().to_pylist() for name in store.streams()}


class Trial:
    """Copies of one store, each with one file changed."""

    def __init__(self, volume: Path, place: Path) -> None:
        self._volume, self._place = volume, place
        self._expected = messages(volume, read_only=True)
        self._count = 0
        self.outcomes = {"same": 0, "error": 0}

    def try_with(self, name: str, content: bytes) -> None:
        """Open and read, in both ways, with this content of the file; then once more."""
        for read_only in (True, False):
            self._count += 1
            copy = self._place / str(self._count)
            shutil.copytree(self._volume, copy)
            (copy / name).write_bytes(content)
            first = self._outcome(copy, read_only)
            assert self._outcome(copy, read_only) == first, "opening twice is the same as once"
            assert self._outcome(copy, True) == first, "what was settled is settled for everybody"
            self.outcomes[first] += 1
            shutil.rmtree(copy)

    def _outcome(self, copy: Path, read_only: bool) -> str:
        try:
            found = messages(copy, read_only)
        except StorageError:
            return "error"
        assert found == self._expected, "other messages, or fewer, and no error"
        return "same"


def flips(content: bytes) -> Iterator[bytearray]:
    """Yield the content with each third bit flipped; the same buffer every time."""
    changed = bytearray(content)
    for bit in range(0, len(content) * 8, 3):
        changed[bit // 8] ^= 1 << bit % 8
        yield changed
        changed[bit // 8] ^= 1 << bit % 8


def cuts(content: bytes) -> Iterator[bytes]:
    for size in range(len(content)):
        yield content[:size]


def survey(variants: Iterator[bytes | bytearray], answer: Callable[[bytes], Answer]) -> tuple[int, dict[Answer, bytes]]:
    """Return how many variants there are, and one of each kind."""
    kinds: dict[Answer, bytes] = {}
    count = 0
    for variant in variants:
        count += 1
        kind = answer(variant)  # type: ignore[arg-type]
        if kind not in kinds:
            kinds[kind] = bytes(variant)
    return count, kinds


def said(decode: Callable[[bytes], object], page: bytes) -> Answer:
    try:
        return decode(page)
    except StorageError as error:
        return type(error)


class SegmentAnswers:
    """What the decoders say of a segment; parts that have not changed are not decoded again."""

    def __init__(self, whole: bytes) -> None:
        self._whole = [(part, decode(part)) for part, decode in self._parts(whole)]

    def __call__(self, content: bytes) -> Answer:
        answers = [
            before if part == was else decode(part)
            for (part, decode), (was, before) in zip(self._parts(content), self._whole, strict=True)
        ]
        size = len(content)
        return (*answers, size % PAGE_SIZE == 0, size < BATCHES_OFFSET + PAGE_SIZE)

    def _parts(self, content: bytes) -> list[tuple[bytes, Callable[[bytes], Answer]]]:
        pages = [bytes(content[PAGE_SIZE * at : PAGE_SIZE * (at + 1)]) for at in range(3)]
        return [
            (pages[0], lambda page: said(log_format.decode_segment_header, page)),
            (pages[1], lambda page: said(log_format.decode_commit_record, page)),
            (pages[2], lambda page: said(log_format.decode_commit_record, page)),
            (bytes(content[BATCHES_OFFSET:]), self._scan),
        ]

    @staticmethod
    def _scan(batches: bytes) -> Answer:
        found = [
            ("bad", record.offset_bytes) if isinstance(record, BadRecord) else (record, end)
            for record, end in log_format.scan(memoryview(batches), BATCHES_OFFSET)
        ]
        return (*found, len(batches) == max((end for _, end in found if isinstance(end, int)), default=0))


def report(capsys: pytest.CaptureFixture[str], what: str, count: int, kinds: int, trial: Trial) -> None:
    with capsys.disabled():
        print(f"\n{what}: {count} cases, {kinds} kinds, {trial.outcomes}", end="")


@pytest.mark.parametrize("variants", [flips, cuts])
@pytest.mark.parametrize(("store", "segment"), [("fresh", 0), ("lived", 0), ("lived", 1)])
def test_log_segment(
    store: str,
    segment: int,
    variants: Callable[[bytes], Iterator[bytes]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    volume: Path = request.getfixturevalue(store)
    path = sorted((volume / "meta").glob("*.log"))[segment]
    trial = Trial(volume, tmp_path)
    whole = path.read_bytes()
    count, kinds = survey(variants(whole), SegmentAnswers(whole))
    for variant in kinds.values():
        trial.try_with(f"meta/{path.name}", variant)
    report(capsys, f"{store} store, {path.name}, {variants.__name__}", count, len(kinds), trial)


@pytest.mark.parametrize("variants", [flips, cuts])
@pytest.mark.parametrize("snapshot", [0, 1])
def test_snapshot(
    lived: Path,
    snapshot: int,
    variants: Callable[[bytes], Iterator[bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = sorted((lived / "meta").glob("*.snap"))[snapshot]
    whole = path.read_bytes()

    def answer(content: bytes) -> Answer:
        header = said(snapshot_format.decode, bytes(content[:PAGE_SIZE]))
        payload = bytes(content[PAGE_SIZE:])
        return header, snapshot_format.payload_digest(payload) if payload == whole[PAGE_SIZE:] else "other"

    trial = Trial(lived, tmp_path)
    count, kinds = survey(variants(whole), answer)
    for variant in kinds.values():
        trial.try_with(f"meta/{path.name}", variant)
    assert trial.outcomes["error"] == 0, "there is another snapshot, and the log since"
    report(capsys, f"{path.name}, {variants.__name__}", count, len(kinds), trial)


@pytest.mark.parametrize("variants", [flips, cuts])
def test_identity_of_the_volume(
    fresh: Path, variants: Callable[[bytes], Iterator[bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (fresh / "jstream.volume").read_bytes()
    trial = Trial(fresh, tmp_path)
    count, kinds = survey(variants(whole), lambda page: said(lambda it: decode_identity(bytes(it), fresh), page))
    for variant in kinds.values():
        trial.try_with("jstream.volume", variant)
    assert trial.outcomes["same"] == 0
    report(capsys, f"jstream.volume, {variants.__name__}", count, len(kinds), trial)


@pytest.mark.parametrize("variants", [flips, cuts])
def test_index(
    fresh: Path, variants: Callable[[bytes], Iterator[bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made again from the files: what it says of blocks never changes, only when they were verified is forgotten."""
    copy = tmp_path / "volume"
    shutil.copytree(fresh, copy)
    whole = (copy / "index.db").read_bytes()
    incarnations = [bytes.fromhex(name) for name in os.listdir(copy / "streams")]
    sizes = {
        one: {block: size for block, (size, _) in VolumeIndex(OS_FILES, copy).stream(one).blocks.items()}
        for one in incarnations
    }
    assert sum(map(len, sizes.values())) == 2
    count = 0
    descriptor = os.open(copy / "index.db", os.O_RDWR)
    for variant in variants(whole):
        os.pwrite(descriptor, variant, 0)
        os.ftruncate(descriptor, len(variant))
        index = VolumeIndex(OS_FILES, copy)
        for one in incarnations:
            found = index.stream(one).blocks
            assert {block: size for block, (size, _) in found.items()} == sizes[one]
            assert {verified for _, verified in found.values()} <= {0}, "what is damaged vouches for nothing"
        count += 1
    os.close(descriptor)
    with capsys.disabled():
        print(f"\nindex.db, {variants.__name__}: {count} cases", end="")


def test_a_file_that_is_missing(lived: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = messages(lived, read_only=True)
    refused = []
    names = sorted(str(path.relative_to(lived)) for path in lived.rglob("*") if path.is_file())
    for number, name in enumerate(names):
        copy = tmp_path / str(number)
        shutil.copytree(lived, copy)
        (copy / name).unlink()
        try:
            assert messages(copy, read_only=False) == expected
        except StorageError:
            refused.append(Path(name).suffix)
    assert refused.count(".blk") == 5
    assert refused.count(".log") == 1, "the newest; the other one stands below a snapshot"
    assert set(refused) == {".blk", ".log", ".volume"}, "snapshots, caches and locks may be missing"
    with capsys.disabled():
        print(f"\nmissing files: {len(names)} cases, {len(refused)} refused", end="")
