"""Adoption: a store without a quorum of metadata goes on from blocks, journals and what is left of the logs.

FAULTS scenarios 5 (majority) and 21: a clear stop, and `repair --adopt` rebuilds; nothing is deleted.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from harness.block_places import block_files
from harness.faults import FaultyFiles, end_at
from harness.forged_blocks import Forger
from harness.replicas import replica_states
from harness.simulated_disk import ProcessEnded
from harness.templates import Template

from storage_core.block.format import digest_of
from storage_core.errors import NotAStoreError, RequirementError, StaleIncarnationError, StorageError
from storage_core.files import OS_FILES
from storage_core.metadata.state import encode_state
from storage_core.raft import log_format
from storage_core.store.environment import REAL, one_after_another
from storage_core.store.recovery import adopt
from storage_core.store.store import Store
from storage_core.store.volume.placement_journal import PlacementJournal

MESSAGES = 12
EXPECTED = [b"message %d " % number * 20 for number in range(MESSAGES)]


def make(root: Path, count: int = 3) -> list[Path]:
    paths = [root / f"volume-{number}" for number in range(count)]
    with Store.create(paths, snapshot_every=5) as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"], "max_msg_size": 5000})
        for message in EXPECTED:
            stream.publish("s.a", message)
        store.add_stream({"name": "T"}).publish("T", b"of another stream")
    return paths


def lose_metadata(volume: Path) -> None:
    shutil.rmtree(volume / "meta")


def lose_metadata_and_identity(volume: Path) -> None:
    shutil.rmtree(volume / "meta")
    (volume / "jstream.volume").unlink()


def lose_segments(volume: Path) -> None:
    """Only an older snapshot is left."""
    for path in (volume / "meta").glob("*.log"):
        path.unlink()


def contents(store: Store) -> list[bytes]:
    data: list[bytes] = store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist()
    return data


def check(paths: list[Path], lost: int = 0) -> None:
    with Store.open(paths) as store:
        assert store.repair()["ok"]
        replicas = replica_states(store, store.stream_state("S"))
        assert [one.state for one in replicas] == ["current"] * len(paths), [one.reason for one in replicas]
        assert len(contents(store)) == MESSAGES - lost
        info = store.stream("S").info()["state"]
        assert (info["messages"], info["last_seq"]) == (MESSAGES - lost, MESSAGES)
        assert store.stream("S").publish("s.a", b"next").sequence == MESSAGES + 1
        assert store.verify()["ok"]
        assert "adopted" in [one["kind"] for one in store.events()]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("harm", [lose_metadata, lose_metadata_and_identity], ids=lambda one: one.__name__)
def test_without_any_metadata_blocks_come_back_in_order_by_the_journals(
    tmp_path: Path, count: int, harm: Callable[[Path], None]
) -> None:
    paths = make(tmp_path, count)
    for path in paths:
        harm(path)
    with pytest.raises(StorageError):
        Store.open(paths)
    plan = adopt.plan(paths)
    told = str(plan)
    assert "newest metadata: none can be read" in told and f"stream S: {MESSAGES} messages" in told and "0 lost" in told
    assert {one["name"]: one["messages"] for one in plan.to_json()["streams"]} == {"S": MESSAGES, "T": 1}
    assert not (paths[0] / "meta").exists(), "a plan writes nothing"
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert contents(store) == EXPECTED
        assert store.streams() == ["S", "T"]
    check(paths)


def test_configuration_and_removals_come_from_the_best_metadata_that_is_left(tmp_path: Path) -> None:
    paths = make(tmp_path)
    with Store.open(paths) as store:
        store.stream("S").remove([3, 4])
        before = store.stream_state("S")
    for path in paths[:2]:
        lose_metadata(path)
    plan = adopt.plan(paths)
    assert plan.metadata_index > 0 and plan.to_json()["streams"][0]["source"] == "the metadata"
    adopt.execute(plan)
    with Store.open(paths) as store:
        after = store.stream_state("S")
        assert after.config.max_msg_size == 5000 and after.removed == before.removed and not after.lost
        assert after.incarnation != before.incarnation
        assert (after.origins, after.data_size) == (((before.incarnation, MESSAGES + 1),), before.data_size)
        assert contents(store) == EXPECTED[:2] + EXPECTED[4:]
        assert {one.volume_id for one in store.volumes()} == set(before.placement)


def test_an_older_snapshot_and_the_journals_make_up_the_whole(tmp_path: Path) -> None:
    paths = make(tmp_path)
    for path in paths:
        lose_segments(path)
    plan = adopt.plan(paths)
    assert plan.metadata_index > 0
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert contents(store) == EXPECTED
    check(paths)


def test_one_volume_that_is_left_goes_on_alone_or_with_new_ones(tmp_path: Path) -> None:
    paths = make(tmp_path)
    for path in paths[1:]:
        shutil.rmtree(path)
    with pytest.raises(ValueError, match="2 were given"):
        adopt.plan(paths[:2])
    plan = adopt.plan(paths)
    assert plan.to_json()["needs_accept_loss"] and "1 of the store's 3 volumes" in str(plan)
    with pytest.raises(RequirementError, match="Bring the others back"):
        adopt.execute(plan)
    adopt.execute(plan, accept_loss=True)
    check(paths)


def test_what_a_volume_that_is_left_out_may_have_is_not_lost_without_consent(tmp_path: Path) -> None:
    paths = make(tmp_path)
    gone = block_files(paths[0])[3].name
    for path in paths[:2]:
        next(path.rglob(gone)).unlink()
        lose_metadata(path)
    away = paths[2].rename(tmp_path / "away")
    plan = adopt.plan(paths)
    assert "the others may have messages that are declared lost" in plan.gives_up
    with pytest.raises(RequirementError, match="say --accept-loss"):
        adopt.execute(plan)
    away.rename(paths[2])
    plan = adopt.plan(paths)
    assert not plan.gives_up
    adopt.execute(plan)
    check(paths)


def test_volumes_that_are_not_adopted_are_told_before_they_leave_the_store(tmp_path: Path) -> None:
    paths = make(tmp_path)
    with Store.open(paths) as store:
        names = [one.name for one in store.volumes()]
    for path in paths[1:]:
        shutil.rmtree(path)
    for asked in (paths[:1], paths):
        told = adopt.plan(asked).to_json()["notes"]
        assert [note.split()[1] for note in told] == names[1:], asked
        assert all("what it alone has is not adopted" in note for note in told)


def test_blocks_that_are_whole_nowhere_are_lost_and_their_numbers_are_not_used_again(tmp_path: Path) -> None:
    paths = make(tmp_path)
    with Store.open(paths) as store:
        ids = [bytes(row["block_id"]).hex() for row in store.stream_state("S").blocks.rows]
    for path in paths:
        for gone in (ids[4], ids[5], ids[-1]):
            next(path.glob(f"streams/*/{gone}.blk")).unlink()
        lose_metadata(path)
    plan = adopt.plan(paths)
    [told] = [one for one in plan.to_json()["streams"] if one["name"] == "S"]
    assert told["lost_ranges"] == [[5, 7], [MESSAGES, MESSAGES + 1]] and told["last_seq"] == MESSAGES
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert store.stream("S").info()["state"]["lost_ranges"] == told["lost_ranges"]
        assert contents(store) == EXPECTED[:4] + EXPECTED[6:-1]
    check(paths, lost=3)


def forge(volume: Path, change: Callable[[Forger, np.ndarray], object]) -> None:
    """Take the metadata, and forge the first block of S and what the journal says of it, with all checksums."""
    with Store.open([volume]) as store:
        incarnation, block_id = store.stream_state("S").incarnation, store.stream_state("S").blocks.rows["block_id"][0]
    lose_metadata(volume)
    journal = PlacementJournal(OS_FILES, volume)
    (path,) = volume.glob(f"streams/*/{bytes(block_id).hex()}.blk")
    records = list(journal.read())
    forger = Forger(path.read_bytes())
    rows = next(one.rows for one in records if one.incarnation == incarnation).copy()
    change(forger, rows[:1])
    forged = forger.seal()
    path.write_bytes(forged)
    offset, size = np.frombuffer(forged, "<u4", 2, len(forged) - 24).tolist()
    rows["digest"][0], rows["file_size"][0] = np.void(digest_of(forged[offset : offset + size])), len(forged)
    first = next(at for at, one in enumerate(records) if one.incarnation == incarnation)
    records[first] = replace(records[first], rows=rows)
    journal.write(1, records)


def arrow_offset(forger: Forger, _: np.ndarray) -> None:
    at = forger.payloads[0].find(np.array([0, len(EXPECTED[0])], "<i4").tobytes())
    assert at > 0
    forger.payloads[0][at + 4 : at + 8] = (900_000_000).to_bytes(4, "little")


def time_of_the_footer(forger: Forger, _: np.ndarray) -> None:
    forger.columns[4][0] -= 1


def row_count_of_the_journal(_: Forger, row: np.ndarray) -> None:
    row["row_count"] = 0


@pytest.mark.parametrize("change", [arrow_offset, time_of_the_footer, row_count_of_the_journal])
def test_blocks_that_are_not_what_a_journal_vouches_for_are_lost_and_not_served(
    tmp_path: Path, change: Callable[[Forger, np.ndarray], object]
) -> None:
    (path,) = make(tmp_path, 1)
    forge(path, change)
    plan = adopt.plan([path])
    [told] = [one for one in plan.to_json()["streams"] if one["name"] == "S"]
    assert told["lost_ranges"] == [[1, 2]]
    adopt.execute(plan)
    with Store.open([path]) as store:
        assert contents(store) == EXPECTED[1:]


@pytest.mark.parametrize(("first", "span"), [(1, -1), (2**63 - 10, 1), (-5, 1), (1, 2**63 - 1)])
def test_claims_of_sequences_that_there_cannot_be_are_told_and_left_alone(
    tmp_path: Path, first: int, span: int
) -> None:
    (path,) = make(tmp_path, 1)

    def change(_: Forger, row: np.ndarray) -> None:
        row["first"], row["span"] = first, span

    forge(path, change)
    plan = adopt.plan([path])
    assert any("there are none such" in note for note in plan.notes)
    adopt.execute(plan)
    with Store.open([path]) as store:
        assert contents(store) == EXPECTED[1:]


def test_a_block_of_which_a_frame_is_damaged_is_adopted_with_its_whole_frames(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    with Store.open([path]) as store:
        store.add_stream({"name": "U", "subjects": ["u"], "block_max_bytes": 64 << 20})
        rows = {"subject": ["u"] * 140_000, "data": [b"%d" % number for number in range(140_000)]}
        store.stream("U").append(pa.table(rows))
        block_id = bytes(store.stream_state("U").blocks.rows["block_id"][0]).hex()
    lose_metadata(path)
    (file,) = path.glob(f"streams/*/{block_id}.blk")
    content = bytearray(file.read_bytes())
    content[5_000] ^= 1
    file.write_bytes(content)
    adopt.execute(adopt.plan([path]))
    with Store.open([path]) as store:
        assert store.stream("U").read(on_data_loss="continue").read_all().num_rows == 140_000 - 65_536


def test_blocks_that_no_journal_speaks_of_are_told_and_left_alone(tmp_path: Path) -> None:
    paths = make(tmp_path)
    strange = paths[0] / "streams" / os.urandom(16).hex()
    strange.mkdir()
    for path in block_files(paths[0])[:2]:
        shutil.copy(path, strange / f"{os.urandom(16).hex()}.blk")
    for path in paths:
        lose_metadata(path)
    plan = adopt.plan(paths)
    assert len(plan.unclaimed) == 2 and "2 block files are in no journal" in str(plan)
    adopt.execute(plan)
    with Store.open(paths) as store:
        store.maintain()
    assert len(list(strange.iterdir())) == 2


def test_a_store_with_a_quorum_is_not_adopted(tmp_path: Path) -> None:
    paths = make(tmp_path)
    lose_metadata(paths[1])
    with pytest.raises(RequirementError, match="nothing has to be adopted"):
        adopt.plan(paths)
    with pytest.raises(RequirementError, match="is a volume of the store as well"):
        adopt.plan(paths[:1])


def test_two_stores_are_not_mixed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    paths, theirs = make(tmp_path / "a"), make(tmp_path / "b")
    for path in (*paths, *theirs):
        lose_metadata(path)
    with pytest.raises(NotAStoreError, match="several stores"):
        adopt.plan([*paths[:2], theirs[0]])
    with pytest.raises(NotAStoreError, match="nothing of a store"):
        adopt.plan([tmp_path])


def test_what_was_planned_before_is_refused_afterwards(tmp_path: Path) -> None:
    """Old transactions do not find their stream, and an old plan is not carried out again."""
    paths = make(tmp_path)
    with Store.open(paths) as store:
        transaction = store.begin(["S"])
    for path in paths:
        lose_metadata(path)
    plan = adopt.plan(paths)
    adopt.execute(plan)
    with pytest.raises(RequirementError, match="is not as it was when the plan was made"):
        adopt.execute(plan)
    with Store.open(paths) as store, pytest.raises(StaleIncarnationError):
        store.commit(transaction, [], overwrite=["S"])


def test_old_files_are_set_aside_and_a_second_adoption_goes_on_from_the_first(tmp_path: Path) -> None:
    paths = make(tmp_path)
    for path in paths[:2]:
        lose_metadata(path)
    adopt.execute(adopt.plan(paths))
    assert list((paths[2] / "meta-1").glob("*.log")) and (paths[2] / "meta-1" / "jstream.volume").exists()
    with Store.open(paths) as store:
        store.stream("S").publish("s.a", b"between")
        store.maintain()
    for path in paths:
        lose_metadata(path)
    adopt.execute(adopt.plan(paths))
    with Store.open(paths) as store:
        assert contents(store) == [*EXPECTED, b"between"]
        assert len(store.stream_state("S").origins) == 2
        assert store.repair()["ok"]
        assert store.stream("S").publish("s.a", b"x").sequence == MESSAGES + 2


def test_an_adoption_that_was_killed_anywhere_is_done_again(tmp_path: Path) -> None:
    counting = FaultyFiles(OS_FILES)
    root = tmp_path / "store"
    root.mkdir()
    paths = make(root)
    made = Template(root)
    _adopt(paths, counting)
    tried = 0
    for number in range(0, len(counting.calls), 4):
        made.put_back()
        with pytest.raises(ProcessEnded):
            _adopt(paths, FaultyFiles(OS_FILES, end_at(number)))
        with contextlib.suppress(RequirementError):  # enough of it was done
            adopt.execute(adopt.plan(paths))
        with Store.open(paths) as store:
            store.repair()
            assert contents(store) == EXPECTED, number
            assert store.stream_state("S").config.max_msg_size == 5000
        check(paths)
        tried += 1
    print(f"adoptions killed at {tried} of {len(counting.calls)} calls that change something")


def _adopt(paths: list[Path], files: FaultyFiles) -> None:
    for path in paths[:2]:
        lose_metadata(path)
    env = replace(REAL, files=files, parallel=one_after_another)
    adopt.execute(adopt.plan(paths, env), env)


# --- merged blocks


def make_merged(root: Path, unlinked: bool, keep_old_metadata: bool) -> tuple[list[Path], list[bytes]]:
    """Return three volumes without a quorum of metadata, on which blocks were merged, and what they showed."""
    paths = [root / f"volume-{number}" for number in range(3)]
    with Store.create(paths, snapshot_every=5, deleted_block_retention="0s" if unlinked else "24h") as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        for message in EXPECTED:
            stream.publish("s.a", message)
        stream.remove([2, MESSAGES])
        if keep_old_metadata:
            store.maintain()
            shutil.copytree(paths[0] / "meta", root / "older")
        assert store.compact()["runs"] == 1
        stream.publish("s.a", b"later")
        store.maintain()
        expected = contents(store)
    assert [len(block_files(path)) for path in paths] == [2 if unlinked else MESSAGES + 2] * 3
    for path in paths:
        lose_metadata(path)
    if keep_old_metadata:
        shutil.copytree(root / "older", paths[0] / "meta")
    return paths, expected


def unlink_merged(paths: list[Path]) -> None:
    """Lose the one block that is larger than the others."""
    for path in paths:
        max(block_files(path), key=lambda one: one.stat().st_size).unlink()


@pytest.mark.parametrize("keep_old_metadata", [False, True])
@pytest.mark.parametrize("what_is_left", ["both", "merged ones", "old ones"])
def test_a_store_is_adopted_from_merged_blocks_or_from_those_they_were_made_of(
    tmp_path: Path, what_is_left: str, keep_old_metadata: bool
) -> None:
    paths, expected = make_merged(tmp_path, what_is_left == "merged ones", keep_old_metadata)
    if what_is_left == "old ones":
        unlink_merged(paths)
    plan = adopt.plan(paths)
    assert not plan.unclaimed
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert store.repair()["ok"]
        found = store.stream("S").read(columns=["sequence", "data"]).read_all().to_pydict()
        shown = dict(zip(found["sequence"], found["data"], strict=True))
        removed = {2, MESSAGES}
        assert [shown[one] for one in shown if one not in removed] == expected
        if keep_old_metadata or what_is_left == "merged ones":
            assert not removed & set(shown), "the metadata, or the merged block, knows that they were removed"
        assert store.stream("S").publish("s.a", b"next").sequence == MESSAGES + 2
        assert store.compact()["unreadable"] == []
        assert store.verify()["ok"]
    # Metadata is lost once more, after blocks of the incarnation that is continued were merged again.
    for path in paths:
        lose_metadata(path)
    adopt.execute(adopt.plan(paths))
    with Store.open(paths) as store:
        assert [one for one in contents(store) if one not in (EXPECTED[1], EXPECTED[-1])] == [*expected, b"next"]
        assert store.verify()["ok"]


def test_a_merged_block_whose_last_messages_were_removed_before_is_adopted(tmp_path: Path) -> None:
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths, deleted_block_retention="0s") as store:
        stream = store.add_stream({"name": "S"})
        for first in (1, 4):
            stream.append([{"subject": "S", "data": b"%d" % one} for one in range(first, first + 3)])
        stream.remove([5, 6])
        assert store.compact()["runs"] == 1
        store.maintain()
    for path in paths:
        lose_metadata(path)
    plan = adopt.plan(paths)
    assert not plan.unclaimed
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert contents(store) == [b"1", b"2", b"3", b"4"]
        assert store.stream("S").info()["state"]["lost_ranges"] == []
        assert store.stream("S").publish("S", b"next").sequence == 7
        assert store.verify()["ok"]


def exchanged_without_metadata(root: Path) -> list[Path]:
    """Return volumes of which one is of a copy that was written on, and of which the others lost their metadata.

    In both of them the same sequences were acked: 13 and 14 here, 13 to 15 in the copy.
    """
    (root / "ours").mkdir()
    paths = make(root / "ours")
    shutil.copytree(root / "ours", root / "copy")
    for directory, count in (("ours", 2), ("copy", 3)):
        with Store.open([root / directory / path.name for path in paths]) as store:
            for number in range(count):
                store.stream("S").publish("s.a", f"{directory} {number}".encode())
            store.maintain()
    shutil.rmtree(paths[2])
    shutil.copytree(root / "copy" / paths[2].name, paths[2])
    for path in paths[:2]:
        lose_metadata(path)
    return paths


def test_messages_that_lose_their_sequences_are_told_and_a_majority_needs_consent(tmp_path: Path) -> None:
    paths = exchanged_without_metadata(tmp_path)
    plan = adopt.plan(paths)
    names = [one.name for one in plan.volumes]
    told = plan.to_json()
    [stream] = [one for one in told["streams"] if one["name"] == "S"]
    assert stream["conflicts"] == [{"ranges": [[13, 15]], "messages": 2, "volumes": names[:2], "majority": True}]
    assert told["needs_accept_loss"] and "2 lost" in str(plan) and "13 to 14" in str(plan)
    before = {path: path.read_bytes() for path in tmp_path.glob("ours/**/*") if path.is_file()}
    with pytest.raises(RequirementError, match="--accept-loss"):
        adopt.execute(plan)
    assert {path: path.read_bytes() for path in tmp_path.glob("ours/**/*") if path.is_file()} == before
    adopt.execute(plan, accept_loss=True)
    with Store.open(paths) as store:
        assert contents(store) == EXPECTED + [b"copy 0", b"copy 1", b"copy 2"]
        lost = [(one["volume"], one["after"]) for one in store.events() if one["kind"] == "lost"]
        assert lost == [(name, "2 messages: 13 to 14") for name in names[:2]]


def test_without_the_volume_of_the_copy_nothing_is_lost(tmp_path: Path) -> None:
    paths = exchanged_without_metadata(tmp_path)
    shutil.rmtree(paths[2])
    plan = adopt.plan(paths)
    assert not plan.to_json()["needs_accept_loss"] and not plan.streams[0].conflicts
    adopt.execute(plan)
    with Store.open(paths) as store:
        assert contents(store) == [*EXPECTED, b"ours 0", b"ours 1"]


def test_a_state_that_is_larger_than_an_entry_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path)
    for path in paths:
        lose_metadata(path)
    monkeypatch.setattr(log_format, "PAYLOAD_SIZE_MAX", 1024)
    plan = adopt.plan(paths)
    assert len(encode_state(plan.state)) > log_format.PAYLOAD_SIZE_MAX
    adopt.execute(plan)
    monkeypatch.undo()
    check(paths)


def test_what_was_there_stays_if_the_new_metadata_cannot_be_written(tmp_path: Path) -> None:
    paths = make(tmp_path)
    for path in paths[:2]:
        lose_metadata(path)
    files = FaultyFiles(OS_FILES)
    env = replace(REAL, files=files, parallel=one_after_another)
    plan = adopt.plan(paths, env)
    there = (path for path in paths[2].rglob("*") if path.is_file() and path.name != "lock")  # whose note has a time
    kept = {path: path.read_bytes() for path in there}
    files.judge = lambda call: errno.ENOSPC if call.operation == "write" and "volume-1" in str(call.path) else 0
    with pytest.raises(StorageError):
        adopt.execute(plan, env)
    assert {path: path.read_bytes() for path in kept} == kept
    adopt.execute(adopt.plan(paths))
    check(paths)


@pytest.mark.parametrize("harm", ["directory", "files", "cut"])
def test_who_meets_a_volume_without_its_metadata_is_told_the_remedy(tmp_path: Path, harm: str) -> None:
    with Store.create(tmp_path / "shop") as store:
        store.add_stream({"name": "S"}).publish("S", b"a bell")
    log = tmp_path / "shop" / "meta"
    if harm == "directory":
        shutil.rmtree(log)
    for file in log.iterdir() if log.exists() else ():
        os.truncate(file, 10) if harm == "cut" else file.unlink()
    for read_only in (False, True):
        with pytest.raises(StorageError, match="`jstream repair --adopt`"):
            Store.open(tmp_path / "shop", read_only=read_only)
