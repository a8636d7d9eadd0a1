"""Finding channels, and telling what is none."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError, NotAStoreError, NotFoundError
from storage_core.foreign import open_foreign, recognise_foreign
from storage_core.foreign.stan.directory import find_channels, read_cluster_id
from storage_core.foreign.stan.store import StanStore


def test_channels_are_found_from_every_directory_above_them(case: Callable[[str], Any], tmp_path: Path) -> None:
    shutil.copytree(case("basic").store, tmp_path / "node 1" / "data" / "stan")
    store = tmp_path / "node 1" / "data" / "stan"
    for place in (tmp_path, tmp_path / "node 1", store):
        assert open_foreign(place, "stan").streams() == ["bar.baz", "foo", "leer"]
    assert open_foreign(store / "foo", "stan").streams() == ["foo"]
    assert open_foreign([store / "foo", store / "leer"], "stan").streams() == ["foo", "leer"]
    assert open_foreign([store, store], "stan").streams() == ["bar.baz", "foo", "leer"]
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "away").symlink_to(store)
    assert open_foreign(tmp_path / "linked", "stan").bounds("foo") == (1, 71)


def test_store_is_recognised_from_its_directory_and_from_a_channel(case: Callable[[str], Any], tmp_path: Path) -> None:
    store = case("basic").store
    assert [recognise_foreign(place) for place in (store, store / "foo", store.parent)] == ["stan"] * 3
    assert [recognise_foreign(place) for place in (tmp_path, tmp_path / "nowhere", store / "server.dat")] == [None] * 3


def test_store_without_channels_is_an_empty_store(case: Callable[[str], Any], tmp_path: Path) -> None:
    shutil.copy(case("basic").store / "server.dat", tmp_path)
    store = StanStore([tmp_path])
    assert store.streams() == []
    assert store.plan() == []
    assert store.cluster_id(store.roots[0]) == "fix"


def test_channel_without_messages_is_empty(writer: Any, make_channel: Any, read: Any) -> None:
    for contents in ({"subs_dat": writer.version}, {"msgs_1_dat": writer.version}, {"msgs_1_dat": b""}):
        store = make_channel(**contents)
        assert open_foreign(store, "stan").bounds("foo") == (1, 1)
        assert read(store) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [("notes.txt", b"x"), ("msgs.1.dat.bak", b"x"), ("msgs.x.dat", b"x"), ("msgs..dat", b"x"), ("1.blk", b"x")],
)
def test_directory_of_other_files_is_no_store(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo" / name).write_bytes(content)
    with pytest.raises(NotAStoreError, match="is no store of NATS Streaming: no server.dat and no channel"):
        open_foreign(tmp_path, "stan")


def test_what_is_no_directory_is_refused_by_name(case: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="nothing does not exist"):
        open_foreign(tmp_path / "nothing", "stan")
    with pytest.raises(NotAStoreError, match=r"msgs\.1\.dat is a file; give the directory of its channel or store"):
        open_foreign(case("basic").store / "foo" / "msgs.1.dat", "stan")
    with pytest.raises(NotAStoreError, match="is no store of NATS Streaming"):
        open_foreign(tmp_path, "stan")


def test_archived_and_other_files_beside_slices_are_not_looked_at(writer: Any, make_channel: Any, read: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 4), msgs_2_dat_bak=b"junk", subs123456=b"junk", msgs_x_dat=b"junk")
    assert len(read(store)) == 3


def test_unknown_channels_and_the_only_one_of_two_copies_are_refused_by_name(
    case: Callable[[str], Any], tmp_path: Path
) -> None:
    for node in ("n1", "n2"):
        shutil.copytree(case("basic").store, tmp_path / node)
    store = open_foreign(tmp_path, "stan")
    with pytest.raises(ValueError, match=r"path: 2 copies of channel 'foo', give the path of one: .*n1/foo, .*n2/foo"):
        store.directory("foo")
    with pytest.raises(NotFoundError, match="channel 'fooo' is not in .*; did you mean 'foo'"):
        store.plan("fooo")
    with pytest.raises(NotFoundError, match=r"nothing in .* matches 'x\*'"):
        store.plan("x*")


def test_options_of_other_layouts_are_refused(case: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="account: layout=stan has no accounts"):
        open_foreign(case("basic").store, "stan", "$G")
    for option in ("truncate_bad_eof", "no_crc"):
        with pytest.raises(ValueError, match="they are for layout=stan"):
            open_foreign(case("basic").store, "nats", **{option: True})


@pytest.mark.parametrize(
    ("subject", "range_of"),
    [("a..b", {}), ("foo", {"first": 5, "end": 4}), ("foo", {"time_first_ns": 2, "time_end_ns": 1})],
)
def test_plans_that_cannot_be_are_refused(case: Callable[[str], Any], subject: str, range_of: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"subject|range"):
        open_foreign(case("basic").store, "stan").plan("foo", subject_filters=[subject], **range_of)


def test_damaged_server_file_tells_no_cluster(case: Callable[[str], Any], tmp_path: Path) -> None:
    whole = (case("basic").store / "server.dat").read_bytes()
    with pytest.raises(NotAStoreError, match=r"server\.dat cannot be read"):
        read_cluster_id(tmp_path)
    for content in (b"", whole[:4], whole[:-1], whole + b"\x00", b"\x02" + whole[1:], bytes(200)):
        (tmp_path / "server.dat").write_bytes(content)
        with pytest.raises(CorruptionError, match=r"server\.dat"):
            read_cluster_id(tmp_path)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "server.dat").write_bytes(flipped)
        with pytest.raises(CorruptionError):
            read_cluster_id(tmp_path)


def test_many_channels_are_listed_without_reading_them(writer: Any, tmp_path: Path) -> None:
    for number in range(500):
        channel = tmp_path / f"channel.{number}"
        channel.mkdir()
        (channel / "subs.dat").write_bytes(writer.version)
    assert len(find_channels([tmp_path]).channels) == 500


def test_channel_that_links_and_paths_lead_to_twice_is_one_copy(writer: Any, make_channel: Any) -> None:
    store = make_channel(msgs_1_dat=writer.slice(1, 4))
    (store / "deeper").mkdir()
    (store / "deeper" / "again").symlink_to(store / "foo", target_is_directory=True)
    for paths in ([store, store / "foo"], [store / "foo", store, store / "deeper"]):
        assert [len(open_foreign(paths, "stan").copies(name)) for name in open_foreign(paths, "stan").streams()] == [1]
