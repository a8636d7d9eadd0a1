"""A volume of another copy of the store: what it has more is said, and kept until somebody discards it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness.block_places import block_files

from spark_stream.check import Limits, problems_of
from spark_stream.store_scan import scan_of
from storage_core.errors import DataLossError, NotFoundError
from storage_core.store.environment import REAL
from storage_core.store.recovery import adopt, foreign
from storage_core.store.store import Store

DAY_NS = 86_400 * 10**9


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three volumes, two of which were put back to copies of after the fifth message of eleven."""
    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    with Store.create(paths, deleted_block_retention="1s") as store:
        stream = store.add_stream({"name": "S", "subjects": ["s"], "block_max_msgs": 1})
        store.add_stream({"name": "EMPTY", "subjects": ["empty"]})
        for number in range(5):
            stream.publish("s", b"%d" % number)
    for path in paths[:2]:
        shutil.copytree(path, path.with_name(f"{path.name} of before"))
    with Store.open(paths) as store:
        for number in range(6):
            store.stream("S").publish("s", b"later %d" % number)
    for path in paths[:2]:
        shutil.rmtree(path)
        path.with_name(f"{path.name} of before").rename(path)
    return paths


def later(paths: list[Path]) -> None:
    """Do the maintenance of a day later, twice."""
    env = replace(REAL, now_ns=lambda: REAL.now_ns() + DAY_NS + DAY_NS // 24)
    with Store.open(paths, env=env) as store:
        store.maintain()
        store.maintain()


def said(store: Store) -> list[str]:
    return [f"{problem.sentence} {problem.reason}" for problem in problems_of(scan_of(store), Limits())]


def test_what_most_volumes_do_not_have_is_said_and_kept(paths: list[Path]) -> None:
    whole = {path.name for path in block_files(paths[2])}
    with Store.open(paths) as store:
        assert any("has 6 messages (6 to 11) that the store does not have" in text for text in said(store))
        assert store.stream("S").publish("s", b"other").sequence == 6
        with pytest.raises(NotFoundError, match="nothing was set aside of stream 'S'"):
            store.read_set_aside("S")
        report = store.repair()
        assert not report["ok"]  # it waits for a decision
        assert [(one["stream"], one["ranges"], one["directory"]) for one in report["set_aside"]] == [
            ("S", [[6, 12]], "meta-1")
        ]
        (lost,) = [event for event in store.events() if event["kind"] == "lost"]
        assert (lost["stream"], lost["volume"], lost["after"]) == ("S", store.volumes()[2].name, "6 messages: 6 to 11")
        assert any("had 6 messages (6 to 11) more in another copy of the store" in text for text in said(store))
    later(paths)
    assert whole <= {path.name for path in block_files(paths[2])}
    with Store.open(paths) as store:
        columns = ("data", "sequence", "subject")
        rows = store.read_set_aside("S", columns).read_all().to_pylist()
        assert rows == [dict(zip(columns, (b"later %d" % n, n + 6, "s"), strict=True)) for n in range(6)]
        assert store.read_set_aside("S", ["data"]).read_all().num_columns == 1
        with pytest.raises(NotFoundError, match="of stream 'EMPTY'; of S something was"):
            store.read_set_aside("EMPTY")
        report = store.repair(discard_lost=True)
        assert (report["ok"], report["set_aside"]) == (True, []) and not said(store)
        with pytest.raises(NotFoundError):
            store.read_set_aside("S")
    later(paths)
    assert len(block_files(paths[2])) == 6


def test_the_messages_of_a_copy_that_was_adopted_alone_are_said(paths: list[Path]) -> None:
    """Both give out the same sequences; the majority counts."""
    shutil.rmtree(paths[2])
    with Store.open(paths) as store:
        store.repair()
    aside = [path.rename(path.with_name(f"{path.name} away")) for path in paths[:2]]
    shutil.rmtree(paths[2] / "meta")
    adopt.execute(adopt.plan([paths[2]]), accept_loss=True)
    with Store.open(paths[2]) as store:
        assert store.stream("S").publish("s", b"acknowledged alone").sequence == 6
    for path, volume in zip(aside, paths[:2], strict=True):
        path.rename(volume)
    with Store.open(paths) as store:
        store.stream("S").publish("s", b"by the majority")
        (set_aside,) = store.repair()["set_aside"]
        assert (set_aside["ranges"], set_aside["messages"]) == ([[6, 7]], 1)
        assert [event["after"] for event in store.events() if event["kind"] == "lost"] == ["1 messages: 6"]
        assert store.read_set_aside("S", ["data"]).read_all().to_pylist() == [{"data": b"acknowledged alone"}]
    mine = {path.name for path in block_files(paths[2])}
    later(paths)
    assert mine == {path.name for path in block_files(paths[2])}


def test_a_disk_that_is_only_older_has_nothing_more(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        store.repair()
        store.stream("S").purge()
        store.stream("S").publish("s", b"after all were removed")
    with Store.open(paths) as store:
        before = shutil.copytree(paths[1], paths[1].with_name("older"))
        shutil.rmtree(paths[1])
        store.repair()
        store.stream("S").publish("s", b"more")
    shutil.rmtree(paths[1])
    before.rename(paths[1])
    with Store.open(paths) as store:
        known = len(store.view().state.set_aside)
        assert foreign.messages_of(store.view().state, store.volumes()[1]) == []
        assert all(damage["repaired"] for damage in store.repair()["damage"])
        assert len(store.view().state.set_aside) == known


def test_damage_of_what_was_set_aside_is_never_served(paths: list[Path]) -> None:
    with Store.open(paths) as store:
        store.stream("S").publish("s", b"other")
        store.repair()
        kept = store.read_set_aside("S").read_all()
        newest = max(block_files(paths[2]), key=lambda path: path.read_bytes().count(b"later 5"))
        newest.write_bytes(newest.read_bytes().replace(b"later 5", b"later 6"))
        with pytest.raises(DataLossError):
            store.read_set_aside("S").read_all()
        assert store.read_set_aside("S", on_data_loss="continue").read_all().num_rows == kept.num_rows - 1
        assert store.repair(["EMPTY"])["ok"] and not store.repair(["S"])["ok"]
