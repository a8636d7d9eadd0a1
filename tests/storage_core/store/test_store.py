"""The face of a store: where its volumes may lie, and what is no path and no configuration."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.block_places import block_count

from storage_core import Store
from storage_core.errors import NotAStoreError, RequirementError
from storage_core.metadata.config import StreamConfig


def test_directories_that_volumes_lie_in_are_made(tmp_path: Path) -> None:
    volumes = [tmp_path / "disks" / name / "shop" for name in "abc"]
    with Store.create(volumes) as store:
        assert store.paths == [str(one) for one in volumes]


def test_a_volume_within_a_file_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file/shop/a cannot be made, .*/file is not a directory"):
        Store.create(tmp_path / "file" / "shop" / "a")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("listed", [False, True], ids=["text", "list"])
def test_commas_separate_paths_in_text_and_belong_to_them_in_a_list(tmp_path: Path, listed: bool) -> None:
    paths = [f"{tmp_path}/a,b", f"{tmp_path}/c", f"{tmp_path}/d"]
    found = Store.create(paths if listed else f"{tmp_path}/a, {tmp_path}/b ,{tmp_path}/c").paths
    assert found == (paths if listed else [f"{tmp_path}/{name}" for name in "abc"])
    assert Store.open(paths[:1] if listed else f"{tmp_path}/b").paths == found


def test_a_file_uri_is_a_path_and_other_uris_are_none(tmp_path: Path) -> None:
    assert Store.create(f"file://{tmp_path}/shop").paths == [f"{tmp_path}/shop"]
    assert Store.open(f"file:{tmp_path}/shop").paths == [f"{tmp_path}/shop"]
    with pytest.raises(ValueError, match="path: 'hdfs://host/shop' is not a local path.*HDFS and DBFS hold no volumes"):
        Store.create("hdfs://host/shop")


@pytest.mark.parametrize("paths", [None, 5, b"shop", ["shop", None]])
def test_what_is_no_path_is_named(paths: Any) -> None:
    for call in (Store.create, Store.open):
        with pytest.raises(ValueError, match="path: .* is neither a path nor a list of paths"):
            call(paths)


@pytest.mark.parametrize("paths", ["", " ", [], ["shop", ""], "shop,"])
def test_no_path_is_named(paths: Any) -> None:
    with pytest.raises(ValueError, match="path: .* names no volume"):
        Store.create(paths)


@pytest.mark.parametrize("count", [2, 4, 6, 7])
def test_a_store_has_one_three_or_five_volumes(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"volumes: {count} were given .* a store has 1, 3 or 5 of them"):
        Store.create([tmp_path / str(number) for number in range(count)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config", [None, "ORDERS", ["ORDERS"]])
def test_what_is_no_configuration_is_named(tmp_path: Path, config: Any) -> None:
    store = Store.create(tmp_path / "shop")
    for call in (store.add_stream, store.edit_stream):
        with pytest.raises(ValueError, match="a stream's configuration is a dict or StreamConfig, not "):
            call(config)


@pytest.mark.parametrize("streams", ["ORDERS", ["ORDERS"], ("ORDERS",), {"ORDERS": 1}.keys()], ids=repr)
def test_one_stream_is_a_name_or_a_list_of_one(tmp_path: Path, streams: Any) -> None:
    store = Store.create(tmp_path / "shop")
    for name in ("ORDERS", "O"):
        store.add_stream({"name": name}).publish(name, b"a bell")
    for call in (store.verify, store.repair, store.scrub):
        assert call(streams)["checked_blocks"] == 1
    assert [one["config"]["name"] for one in store.report(streams)] == ["ORDERS"]
    assert list(store.begin(streams).targets) == ["ORDERS"]
    assert [one["name"] for one in store.backup(tmp_path / "saved", streams)["streams"]] == ["ORDERS"]
    restored = store.restore_streams(tmp_path / "saved", streams, {"ORDERS": "BEFORE"})
    assert [one["name"] for one in restored["streams"]] == ["BEFORE"]


@pytest.mark.parametrize("streams", [5, [None], [["ORDERS"]]])
def test_what_is_no_name_of_a_stream_is_named(tmp_path: Path, streams: Any) -> None:
    store = Store.create(tmp_path / "shop")
    for call in (store.verify, store.repair, store.scrub, store.report, store.compact):
        with pytest.raises(ValueError, match="streams: .* is neither a name nor a list of names"):
            call(streams=streams)


@pytest.mark.parametrize("arguments", [{"read_only": "no"}, {"take_over": "false"}, {"lock_timeout_s": "1m"}])
def test_what_is_no_way_to_open_a_store_is_named(tmp_path: Path, arguments: dict[str, Any]) -> None:
    Store.create(tmp_path / "shop")
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name}: {value!r} is n"):
        Store.open(tmp_path / "shop", **arguments)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda store: store.scrub(limit_bytes="10GB"), "limit_bytes: '10GB' is not a number of bytes"),
        (lambda store: store.scrub(rate_bytes_per_s=True), "rate_bytes_per_s: True is not a number of bytes"),
        (lambda store: store.events(kind=5), "kind: 5 is no kind of event"),
        (lambda store: store.remove_volumes(5), "names: 5 is neither a name nor a list of names"),
        (lambda store: store.stream("ORDERS").first_at_time("2026"), "time_ns: '2026' is not a number of nanoseconds"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(tmp_path: Path, call: Callable[[Store], Any], text: str) -> None:
    store = Store.create(tmp_path / "shop")
    store.add_stream({"name": "ORDERS"})
    with pytest.raises(ValueError, match=text):
        call(store)


def test_open_or_create_makes_a_store_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    paths[1].mkdir()
    for number in range(2):
        with Store.open_or_create(paths, snapshot_every=100) as store:
            names = store.streams()
            assert names == ["ORDERS"][:number]
            if not names:
                store.add_stream({"name": "ORDERS"})
    shutil.rmtree(paths[2])
    with Store.open_or_create(paths) as store:  # a volume is missing: the store is there nevertheless
        assert store.streams() == ["ORDERS"]


def test_open_or_create_makes_no_store_beside_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match="a"):
        Store.open_or_create(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["notes.txt"]


def test_open_or_create_checks_settings_of_a_store_that_exists_too(tmp_path: Path) -> None:
    Store.create(tmp_path / "a").close()
    with pytest.raises(ValueError, match="colour"):
        Store.open_or_create(tmp_path / "a", colour="red")


def test_open_or_create_called_by_several_at_once_makes_one_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda number: Store.open_or_create(tmp_path / "a", lock_timeout_s=30), range(4)))
    assert len({store.id for store in stores}) == 1


def test_a_configuration_asks_for_what_a_dict_of_its_keys_asks_for(tmp_path: Path) -> None:
    store = Store.create([tmp_path / name for name in "abc"], stream_defaults={"*": {"compression": "lz4"}})
    made = [
        store.add_stream({"name": "A", "subjects": ["a"], "max_msgs": 9}).config.to_json(),
        store.add_stream(StreamConfig(name="B", subjects=("b",), max_msgs=9)).config.to_json(),
    ]
    assert {**made[0], "name": "B", "subjects": ["b"]} == made[1]
    assert (made[1]["num_replicas"], made[1]["compression"], made[1]["max_msgs"]) == (3, "lz4", 9)
    assert store.add_stream(StreamConfig(name="C")).config.subjects == ("C",)
    whole = msgspec.structs.replace(store.stream("B").config, name="D", subjects=("d",))
    assert store.add_stream(whole).config == whole, "a whole configuration has all its keys given"


def test_an_edit_changes_what_is_given_and_nothing_else(tmp_path: Path) -> None:
    store = Store.create([tmp_path / name for name in "abc"])
    stream = store.add_stream({"name": "A", "subjects": ["a"], "max_msgs": 9, "compression": "lz4", "max_age": "2d"})
    before = stream.config.to_json()
    for changes in ({"max_bytes": 99}, {"max_msgs": -1}, {"num_replicas": 1, "description": "few"}):
        store.edit_stream(StreamConfig(name="A", **changes))
        before = {**before, **changes}
        assert Store.open(tmp_path / "a").stream("A").config.to_json() == before
        assert stream.excess(StreamConfig(name="A", **changes)) is None
    store.edit_stream(msgspec.structs.replace(stream.config, max_msgs=5))
    assert stream.config.to_json() == {**before, "max_msgs": 5}


def test_a_refused_edit_with_other_replicas_copies_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    store = Store.create(paths)
    stream = store.add_stream({"name": "A", "num_replicas": 1, "deny_purge": True})
    stream.publish("A", b"x")
    count = block_count(store)
    for changes in ({"deny_purge": False}, {"retention": "workqueue"}, {"sealed": True, "max_msgs": 0.5}):
        with pytest.raises((RequirementError, ValueError)):
            store.edit_stream({"name": "A", "num_replicas": 3, **changes})
        assert (len(stream.state().placement), stream.config.num_replicas, block_count(store)) == (1, 1, count)
    store.edit_stream({"name": "A", "num_replicas": 3, "max_msgs": 5})
    assert (len(stream.state().placement), stream.config.max_msgs, block_count(store)) == (3, 5, 3)


@pytest.mark.parametrize("setting", [7, 604_800, "50ms"])
def test_a_retention_that_can_only_be_a_mistake_is_refused(tmp_path: Path, setting: Any) -> None:
    with pytest.raises(ValueError, match=f"deleted_block_retention: {setting} is not 0 .none. or 100ms and more"):
        Store.create(tmp_path / "a", deleted_block_retention=setting)
