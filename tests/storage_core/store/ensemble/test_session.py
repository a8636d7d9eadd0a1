"""Turns: processes of one host, one after another; each `Store` here has a memory of its own, as a process has."""

import logging
from pathlib import Path

import pytest
from harness.small_store import make_store, publish

from storage_core.errors import CorruptionError, NotAStoreError, ReadOnlyError, StorageError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.metadata.commands import Envelope, NoOp, encode_envelope
from storage_core.raft.entry import Entry, Vote, make_entry
from storage_core.raft.log_format import PAGE_SIZE, slot_offset
from storage_core.store.environment import Environment
from storage_core.store.store import Store
from storage_core.store.volume import locks
from storage_core.store.volume.log_contents import LogContents


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "volume"


def contents(store: Store) -> list[bytes]:
    found: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return found


def log_contents(store: Store) -> LogContents:
    return store.volumes()[0].log.read()


def add_uncommitted(store: Store) -> Entry:
    """Write an entry as a holder does that is killed before it writes the commit record."""
    log, seen = store.volumes()[0].log, log_contents(store)
    index, term, chain = seen.tip
    entry = make_entry(chain, index + 1, term, seen.entries[-1].history, encode_envelope(Envelope(1, NoOp())))
    log.append(seen.position, [entry])
    return entry


def damage_slot(store: Store, generation: int) -> None:
    log = store.volumes()[0].log
    with log.segment_path(log_contents(store).position.segment).open("r+b") as file:
        file.seek(slot_offset(generation) + 30)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x10]))


def files_of(volume: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (volume / "meta").iterdir()}


# --- terms


def test_a_process_that_writes_alone_keeps_its_term(volume: Path) -> None:
    store = make_store(volume, 5)
    assert {entry.term for entry in log_contents(store).entries[1:]} == {2}, "creation had term 1"


def test_a_term_is_given_up_when_others_led_and_were_only_read(volume: Path) -> None:
    """Reading moves the view past what others wrote: the end of the log is then clean, and still not ours."""
    one = make_store(volume)
    other = Store.open(volume)
    publish(other, b"1")
    assert contents(one) == [b"0", b"1"]
    publish(one, b"2")

    entries = log_contents(one).entries
    terms = [entry.term for entry in entries]
    assert terms == sorted(terms)
    assert len({entry.history for entry in entries[-3:]}) == 3, "each leader session has a history of its own"


def test_no_two_candidates_are_voted_for_in_one_term(volume: Path) -> None:
    """A vote without entries, as a full disk leaves it, is remembered by those who begin to read behind it."""
    store = make_store(volume)
    before, log = log_contents(store), store.volumes()[0].log
    log.append(before.position, [Vote(before.term + 1, b"killed candidate")])

    publish(Store.open(volume), b"1")

    terms = [vote.term for vote in log_contents(store).votes]
    assert len(set(terms)) == len(terms)


# --- hosts


def test_another_host_writes_nothing_before_it_is_refused(volume: Path) -> None:
    add_uncommitted(make_store(volume))
    before = files_of(volume)
    elsewhere = Environment(lock_domain=lambda: "another machine", sleep=lambda _: None)

    store = Store.open(volume, env=elsewhere)
    with pytest.raises(StoreBusyError, match="take-over"):
        publish(store, b"1")

    assert files_of(volume) == before
    Store.open(volume, env=elsewhere, take_over=True)
    publish(store, b"1")
    assert contents(store) == [b"0", b"1"]


# --- readers


def test_a_reader_that_cannot_decide_says_so_and_reads_what_is_committed(
    volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_uncommitted(make_store(volume))
    pauses: list[float] = []
    with caplog.at_level(logging.WARNING, "storage_core"):
        reader = Store.open(volume, read_only=True, env=Environment(sleep=pauses.append))
    assert "read as last known to be committed; newer messages may exist" in caplog.text
    waited = len(pauses)
    assert contents(reader) == [b"0"]
    assert len(pauses) == waited, "it waits for the writer once"


def test_a_reader_that_may_recover_does_so_once_and_writes_nothing_else(volume: Path) -> None:
    add_uncommitted(make_store(volume))
    before = files_of(volume)
    reader = Store.open(volume, read_only=True, recovers=True, env=Environment(sleep=lambda _: None))
    recovered, after = contents(reader), files_of(volume)
    assert after != before
    assert contents(Store.open(volume, read_only=True, recovers=True)) == recovered == [b"0"]
    assert files_of(volume) == after
    with pytest.raises(ReadOnlyError):
        publish(reader, b"1")
    with pytest.raises(ReadOnlyError):
        reader.repair()
    assert files_of(volume) == after


def test_a_view_is_not_replaced_by_one_that_was_undecided_long_ago(volume: Path) -> None:
    """What a reader fell back on before it could look under the lock is older than what it knows by now."""
    add_uncommitted(make_store(volume))
    store = Store.open(volume, env=Environment(sleep=lambda _: None))  # recovers what it could not decide
    publish(store, b"1")
    index, log = store.view().index, store.volumes()[0].log
    newest = log.segment_path(log.segments()[-1])
    newest.rename(volume / "aside")
    newest.mkdir()  # cannot be read just now
    store.lock_timeout_s = 0.0
    with locks.hold(OS_FILES, [volume], 1, 1.0), pytest.raises(StoreBusyError):
        store.view()
    newest.rmdir()
    (volume / "aside").rename(newest)
    assert store.view().index == index
    assert contents(store) == [b"0", b"1"]


def test_read_only_does_not_fall_back_on_an_older_commit_record(volume: Path) -> None:
    """With its newest commit record damaged a store must not look as it did one append before."""
    store = make_store(volume, 3)
    generation = log_contents(store).commit.generation  # type: ignore[union-attr]
    damage_slot(store, generation)
    with pytest.raises(CorruptionError, match="torn or damaged"):
        Store.open(volume, read_only=True, env=Environment(sleep=lambda _: None))

    assert contents(Store.open(volume)) == [b"0", b"1", b"2"], "under the lock the log itself decides"
    assert contents(Store.open(volume, read_only=True)) == [b"0", b"1", b"2"]


def test_damage_to_the_older_commit_record_costs_nothing(volume: Path) -> None:
    store = make_store(volume, 3)
    damage_slot(store, log_contents(store).commit.generation - 1)  # type: ignore[union-attr]
    assert contents(Store.open(volume, read_only=True)) == [b"0", b"1", b"2"]
    assert contents(Store.open(volume)) == [b"0", b"1", b"2"]


def test_a_log_without_its_first_entry_is_refused(volume: Path) -> None:
    """The first entry was durable before the volume had its identity: an empty log is never an empty store."""
    store = make_store(volume)
    path = store.volumes()[0].log.segment_path(1)
    path.write_bytes(path.read_bytes()[:PAGE_SIZE] + bytes(3 * PAGE_SIZE))
    before = files_of(volume)
    with pytest.raises(CorruptionError, match="entries up to 1 were committed"):
        Store.open(volume)
    assert files_of(volume) == before


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("name", ["jstream.volume", "meta/0000000000000001.log"])
def test_links_in_place_of_files_are_refused(volume: Path, name: str, read_only: bool) -> None:
    make_store(volume)
    (volume / name).rename(volume / "moved")
    (volume / name).symlink_to(volume / "moved")
    with pytest.raises(StorageError):
        Store.open(volume, read_only=read_only)


def test_a_file_in_place_of_a_volume_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(NotAStoreError, match="is not a directory"):
        Store.open(tmp_path / "file")
