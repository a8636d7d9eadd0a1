"""A disk of another copy of the store in the place of one of its volumes: the majority goes on, and takes it in again.

The copy is a restored backup or a snapshot that was written on by itself. Its logs are whole and durable, and may be
longer than ours, higher in term and far above our snapshots.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.faults import Call, FaultyFiles

from storage_core.errors import NoQuorumError, StorageError, StoreBusyError
from storage_core.files import OS_FILES
from storage_core.raft import snapshot_format
from storage_core.store.environment import REAL, one_after_another
from storage_core.store.store import Store

COMMON = [b"common %d" % number for number in range(3)]


def write(paths: Sequence[Path], what: str, count: int, sessions: int = 1) -> list[bytes]:
    """Write so many messages, each of `sessions` writers of its own: every one of them opens a new term."""
    messages = [b"%s %d" % (what.encode(), number) for number in range(count)]
    for part in range(sessions):
        with Store.open(paths) as store:
            for message in messages[part::sessions]:
                store.stream("S").publish("s.a", message)
    return [message for part in range(sessions) for message in messages[part::sessions]]


class Copied:
    """A store, and a copy of it that went on by itself."""

    def __init__(self, root: Path, volume_count: int = 3, snapshot_every: int = 128) -> None:
        self.paths = [root / "ours" / f"v{number}" for number in range(volume_count)]
        self.copies = [root / "copy" / f"v{number}" for number in range(volume_count)]
        with Store.create(self.paths, snapshot_every=snapshot_every) as store:
            stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
            for message in COMMON:
                stream.publish("s.a", message)
        shutil.copytree(root / "ours", root / "copy")

    def exchange(self, *places: int) -> None:
        """Put the copy's disks in the place of ours."""
        for place in places:
            shutil.rmtree(self.paths[place])
            shutil.copytree(self.copies[place], self.paths[place])


def repaired(store: Store) -> dict[str, Any]:
    """Repair everything: what the copy had more is all that waits for a decision. Return the report."""
    report = store.repair()
    assert all(damage["repaired"] for damage in report["damage"]), report
    assert report["ok"] is not bool(report["set_aside"]), report
    return report


def contents(paths: Sequence[Path], read_only: bool = False) -> list[bytes]:
    with Store.open(paths, read_only=read_only) as store:
        return shown(store)


def shown(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


def states(paths: Sequence[Path]) -> list[str]:
    with Store.open(paths, read_only=True) as store:
        return [one["state"] for one in store.cluster_info()["volumes"]]


LENGTHS = {
    "longer": (4, 8, 128),
    "shorter": (4, 1, 128),
    "of one length": (3, 3, 128),
    "far above our snapshots": (3, 30, 2),
    "far below our snapshots": (30, 3, 2),
}


@pytest.mark.parametrize("volume_count", [3, 5])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_one_volume_of_another_copy_never_outvotes_the_majority(
    tmp_path: Path, lengths: str, volume_count: int
) -> None:
    ours, theirs, snapshot_every = LENGTHS[lengths]
    copied = Copied(tmp_path, volume_count, snapshot_every)
    write(copied.copies, "copied", theirs, sessions=2)
    expected = COMMON + write(copied.paths, "acked", ours)
    last = volume_count - 1
    copied.exchange(last)
    for read_only in (True, False):
        assert contents(copied.paths, read_only) == expected
    assert contents(copied.paths[last:]) == expected, "also where it is the only volume that was named"
    assert states(copied.paths) == ["current"] * last + ["foreign"]
    expected += write(copied.paths, "written beside it", 2)
    assert contents(copied.paths, read_only=True) == expected
    with Store.open(copied.paths) as store:
        report = repaired(store)
        assert (report["lost"], len(report["set_aside"])) == ([], 1), report
        assert [(one["before"], one["after"]) for one in report["volumes"]] == [("foreign", "current")]
        assert "foreign" in [one["kind"] for one in store.events()]
        assert store.repair(discard_lost=True)["ok"] and store.verify()["ok"]
    assert states(copied.paths) == ["current"] * volume_count
    for gone in copied.paths[: volume_count // 2]:
        shutil.rmtree(gone)
    assert contents(copied.paths) == expected, "what was taken in is whole"


def test_two_of_five_volumes_of_another_copy_do_not_outvote_three(tmp_path: Path) -> None:
    copied = Copied(tmp_path, 5)
    write(copied.copies, "copied", 9, sessions=3)
    expected = COMMON + write(copied.paths, "acked", 2)
    copied.exchange(0, 3)
    assert contents(copied.paths, read_only=True) == contents(copied.paths) == expected
    with Store.open(copied.paths) as store:
        assert repaired(store)["set_aside"]
    assert states(copied.paths) == ["current"] * 5
    assert contents(copied.paths) == expected


def test_a_process_that_knows_the_store_goes_on_when_a_volume_is_exchanged(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    write(copied.copies, "copied", 8)
    expected = COMMON + write(copied.paths, "acked", 2)
    with Store.open(copied.paths) as store, Store.open(copied.paths, read_only=True) as reader:
        for one in (store, reader):
            assert one.stream("S").info()["state"]["messages"] == len(expected)
        copied.exchange(1)
        for number in range(3):
            store.stream("S").publish("s.a", b"new %d" % number)
            for one in (store, reader):
                assert one.stream("S").info()["state"]["messages"] == len(expected) + number + 1
    assert contents(copied.paths) == [*expected, b"new 0", b"new 1", b"new 2"]


def lose(path: Path) -> None:
    shutil.rmtree(path)


def lose_log(path: Path) -> None:
    for file in (path / "meta").iterdir():
        file.unlink()


@pytest.mark.parametrize("harm", [lose, lose_log], ids=lambda one: one.__name__)
def test_without_a_majority_on_one_branch_it_refuses_and_says_who_stands_where(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    copied = Copied(tmp_path)
    write(copied.copies, "copied", 8)
    write(copied.paths, "acked", 4)
    copied.exchange(2)
    harm(copied.paths[1])
    before = {path: path.read_bytes() for path in tmp_path.glob("ours/*/meta/*")}
    for read_only in (True, False):
        with pytest.raises(StorageError) as refusal:
            contents(copied.paths, read_only)
        cause = refusal.value if isinstance(refusal.value, NoQuorumError) else refusal.value.__cause__
        assert isinstance(cause, NoQuorumError)
        told = str(cause)
        assert f"{copied.paths[2]} up to entry 13" in told and f"{copied.paths[0]} up to entry 9" in told, told
        assert "--adopt" not in told
    assert {path: path.read_bytes() for path in tmp_path.glob("ours/*/meta/*")} == before


def test_an_entry_that_only_one_volume_is_left_with_is_not_given_up_for_a_copy(tmp_path: Path) -> None:
    """The majority holds nothing above where the copy was made, and one of it is older still."""
    copied = Copied(tmp_path)
    write(copied.copies, "copied", 8)
    behind = tmp_path / "behind"
    shutil.copytree(copied.paths[1], behind)
    expected = COMMON + write(copied.paths, "acked", 1)
    shutil.rmtree(copied.paths[1])
    shutil.copytree(behind, copied.paths[1])
    copied.exchange(2)
    for read_only in (True, False):
        assert contents(copied.paths, read_only) == expected
    expected += write(copied.paths, "acked since", 1)
    assert contents(copied.paths) == expected


@pytest.mark.parametrize(("volume_count", "places"), [(3, [0]), (3, [2]), (5, [4]), (5, [1, 3])])
@pytest.mark.parametrize(("snapshot_every", "count"), [(2, 8), (128, 8), (128, 1)])
def test_a_copy_that_only_went_further_than_ours_is_foreign(
    tmp_path: Path, volume_count: int, places: list[int], snapshot_every: int, count: int
) -> None:
    """It contradicts no entry of ours; but by its word a majority has lost some, and that would be many faults."""
    copied = Copied(tmp_path, volume_count, snapshot_every)
    write(copied.copies, "copied", count)
    with Store.open(copied.paths) as there_before:
        assert there_before.stream("S").last_sequence == len(COMMON)
        copied.exchange(*places)
        assert there_before.stream("S").last_sequence == len(COMMON), "a process that had it open goes on as before"
    for read_only in (True, False):
        assert contents(copied.paths, read_only) == COMMON
    assert [at for at, state in enumerate(states(copied.paths)) if state == "foreign"] == places
    with Store.open(copied.paths, read_only=True) as store:
        assert {one["file"] for one in store.verify()["damage"]} == {str(copied.paths[place]) for place in places}
    expected = COMMON + write(copied.paths, "acked", 2)
    with Store.open(copied.paths) as store:
        assert repaired(store)["set_aside"]
    assert states(copied.paths) == ["current"] * volume_count
    assert contents(copied.paths) == contents([copied.paths[places[0]]]) == expected


def test_a_copy_too_far_above_to_be_compared_is_known_by_what_it_says_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_format, "TRAIL_COUNT_MAX", 4)
    copied = Copied(tmp_path, snapshot_every=2)
    write(copied.copies, "copied", 30)
    expected = COMMON + write(copied.paths, "acked", 3)
    copied.exchange(2)
    for read_only in (True, False):
        assert contents(copied.paths, read_only) == expected
    assert states(copied.paths) == ["current", "current", "foreign"]


@pytest.mark.parametrize(("volume_count", "missing"), [(3, [1]), (5, [1, 2])])
def test_a_copy_by_whose_word_no_more_were_put_back_than_may_fail_is_followed(
    tmp_path: Path, volume_count: int, missing: list[int]
) -> None:
    """It looks like the only one that is left with acked entries: nobody can tell, and nothing acked may be lost."""
    copied = Copied(tmp_path, volume_count)
    for place in missing:
        shutil.rmtree(copied.copies[place])
    written = write(copied.copies, "copied", 1)
    copied.exchange(0)
    assert contents(copied.paths, read_only=True) == contents(copied.paths) == COMMON + written


@pytest.mark.parametrize("place", range(3))
def test_one_volume_that_is_ahead_of_the_others_still_leads(tmp_path: Path, place: int) -> None:
    """It alone carries the highest commit record: the others were put back, and hold nothing that contradicts it."""
    copied = Copied(tmp_path)
    older = [path for number, path in enumerate(copied.paths) if number != place][0]
    expected = COMMON + write(copied.paths, "acked", 2)
    shutil.rmtree(older)
    shutil.copytree(copied.copies[copied.paths.index(older)], older)
    assert contents(copied.paths, read_only=True) == contents(copied.paths) == expected


@pytest.mark.parametrize("read_only", [True, False])
def test_a_volume_that_was_away_when_a_process_last_read_has_its_say_again(tmp_path: Path, read_only: bool) -> None:
    copied = Copied(tmp_path)
    write(copied.copies, "copied", 4)
    away = tmp_path / "away"
    with Store.open(copied.paths, read_only=read_only) as reader:
        copied.paths[2].rename(away)
        assert shown(reader) == COMMON
        away.rename(copied.paths[2])
        copied.exchange(1)
        assert shown(reader) == COMMON, "one volume of another copy against two of ours"
        expected = COMMON + write(copied.paths, "acked", 1)
        assert shown(reader) == expected


@pytest.mark.parametrize("snapshot_every", [2, 128])
def test_a_reader_takes_no_copy_for_ours_while_ours_is_written_between_any_two_of_its_calls(
    tmp_path: Path, snapshot_every: int
) -> None:
    """It reads one log before a message is acked and another one afterwards: no volume stands where the copy began."""
    (tmp_path / "made").mkdir()
    copied = Copied(tmp_path / "made", snapshot_every=snapshot_every)
    write(copied.copies, "copied", 2)
    number, is_over = int(snapshot_every == 2), False  # every second call, with either length of the logs
    while not is_over:
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", root)
        copied.paths = [root / "ours" / path.name for path in copied.paths]
        copied.copies = [root / "copy" / path.name for path in copied.copies]
        files = FaultyFiles(OS_FILES, counted=("open", "list"), is_armed=False)
        env = replace(REAL, files=files, parallel=one_after_another)
        with Store.open(copied.paths, lock_timeout_s=0) as writer, Store.open(copied.paths, env=env) as reader:
            copied.exchange(1)
            acked: list[bytes] = []

            def acking(call: Call, at: int = number, writer: Store = writer, acked: list[bytes] = acked) -> int:
                with contextlib.suppress(StoreBusyError):  # the reader looks under the locks
                    for one in range(6 if call.number == at else 0):
                        writer.stream("S").publish("s.a", b"acked %d" % one)
                        acked.append(b"acked %d" % one)
                return 0

            files.judge, files.is_armed = acking, True
            seen = shown(reader)
            files.is_armed = False
            assert seen == (COMMON + acked)[: len(seen)], (number, files.calls[number])
            is_over = number >= len(files.calls)
            writer.stream("S").publish("s.a", b"last")
            reader.stream("S").publish("s.a", b"of the reader")
            assert shown(reader) == [*COMMON, *acked, b"last", b"of the reader"], number
        shutil.rmtree(root)
        number += 2
    print(f"{number // 2} calls, every {snapshot_every} entries a snapshot")
    assert number > 20


def test_maintenance_never_waits_for_its_own_locks(tmp_path: Path) -> None:
    """Readers without a lock cannot be sure: a volume of another copy goes on from ours and has lost its identity,
    and one of the others is away. What is done under the locks goes by what is known there."""
    copied = Copied(tmp_path, 5, snapshot_every=3)
    write(copied.copies, "copied", 12)
    copied.exchange(1)
    with (copied.paths[1] / "jstream.volume").open("r+b") as identity:
        identity.truncate(166)
    copied.paths[3].rename(tmp_path / "away")
    at_hand = [path for place, path in enumerate(copied.paths) if place != 3]
    with Store.open(at_hand, lock_timeout_s=2) as store:
        store.stream("S").publish("s.a", b"more")
        store.maintain()
        assert store.repair()["ok"], "it makes the one that is away anew"
        assert shown(store) == [*COMMON, b"more"]
