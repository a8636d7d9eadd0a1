"""Consumers of JetStream streams: as the server told them, from golden bytes, and damaged."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError
from storage_core.foreign import ForeignDamage, open_foreign
from storage_core.foreign.nats.consumers import ConsumerState, decode_state

KEY = "fixture-key-not-secret"
CASES = [
    "consumers",
    "damaged-stuck-consumer",
    "encrypted",
    "encrypted-aes",
    "encrypted-s2",
    "kill9",
    "old-2-9-10",
    "old-2-9-10-kill9",
    "old-2-10-25",
    "old-2-12-8",
    "old-2-14-6",
    "workqueue",
]


def told_by_server(one: Any) -> dict[str, tuple[int, int, int, int]]:
    info = json.loads((one.path / "info.json").read_text())
    return {each["name"]: numbers(each) for each in map(plain, info["consumers"])}


def plain(consumer: dict[str, Any]) -> dict[str, Any]:
    """Return the server's numbers by the names of ours."""
    if isinstance(consumer["delivered"], dict):
        return {**consumer, **{key: consumer[key]["stream_seq"] for key in ("delivered", "ack_floor")}}
    return consumer


def numbers(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["delivered"], row["ack_floor"], row["num_ack_pending"], row["num_redelivered"]


@pytest.mark.parametrize("name", CASES)
def test_consumers_are_those_that_the_server_told(case: Callable[[str], Any], read_only_files: Any, name: str) -> None:
    one = case(name)
    damage: list[ForeignDamage] = []
    store = open_foreign(one.store, files=read_only_files, encryption_key=KEY)
    rows = {row["consumer"]: row for row in (each.row() for each in store.consumers(one.stream, damage.append))}
    if name == "damaged-stuck-consumer":  # the server sets it back at its start; here the stream has gone so far
        assert numbers(rows["d1"]) == (30, 28, 2, 0)
        assert not damage
        assert store.bounds(one.stream) == (1, 31)
        return
    assert {name: numbers(row) for name, row in rows.items()} == told_by_server(one)
    assert not damage


def test_configuration_pending_and_redelivered_are_kept(case: Callable[[str], Any]) -> None:
    found = {one.name: one for one in open_foreign(case("consumers").store).consumers("CONS")}
    assert found["filtered"].config["filter_subject"] == "cons.3"
    assert found["exact"].is_durable
    exact = found["exact"]
    assert (exact.delivered, exact.ack_floor, len(exact.pending), len(exact.redelivered)) == (13, 4, 6, 5)
    assert len(exact.pending_times_s) == 6
    assert all(abs(time_s - 1_795_224_357) < 60 for time_s in exact.pending_times_s)
    assert set(exact.pending) <= set(range(5, 14))
    assert all(count >= 1 for _, count in exact.redelivered)


def encode(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        value &= (1 << 64) - 1
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def test_both_versions_are_decoded() -> None:
    # floor (4, 10), delivered (7, 15), pending 12 as number 5, sent at 1000 s; 12 was sent again twice
    second = bytes([22, 2]) + encode(4, 10, 7, 15, 1, 2 * 1003, 2, 1, 2 * 3, 1, 2, 2)
    assert decode_state(second, "o.dat") == ConsumerState((7, 15), (4, 10), ((12, 5, 1000),), ((12, 2),))
    first = bytes([22, 1]) + encode(4, 10, 4, 6, 1, 2 * 1003, 2, 5, 0)  # zigzag of -3 is 5
    assert decode_state(first, "o.dat") == ConsumerState((7, 15), (4, 10), ((12, 0, 1000),), ())
    assert decode_state(b"", "o.dat") == ConsumerState()


def test_a_state_cut_anywhere_is_refused(case: Callable[[str], Any]) -> None:
    data = next(case("consumers").store.rglob("exact/o.dat")).read_bytes()
    for size in range(1, len(data)):
        with pytest.raises(CorruptionError):
            decode_state(data[:size], "o.dat")
    with pytest.raises(CorruptionError, match="1 bytes are left over"):
        decode_state(data + b"\0", "o.dat")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0, 0, 0, 0, 1 << 60, 0, 0), "entries at offset_bytes .*, too many"),
        ((0, 9, 0, 5, 0, 0), "nothing was sent after 5"),
        ((0, 0, 2, 2, 2, 0, 1, 1, 0, 1, 2, 0, 0), "sequence 1 is pending more than once"),
        ((0, 1 << 63, 0, 1 << 63, 0, 0), "reaches sequence"),
    ],
)
def test_a_state_that_cannot_be_is_refused(values: tuple[int, ...], text: str) -> None:
    with pytest.raises(CorruptionError, match=text):
        decode_state(bytes([22, 2]) + encode(*values), "o.dat")


def test_damaged_consumers_are_told_and_the_others_read(case: Callable[[str], Any], tmp_path: Path) -> None:
    shutil.copytree(case("consumers").store, tmp_path / "store")
    path = next(tmp_path.rglob("obs"))
    (path / "exact" / "o.dat").write_bytes(b"\x16\x02\x01")
    (path / "ackall" / "meta.inf").write_bytes(b"{}")
    (path / "bystart" / "meta.sum").unlink()
    (path / "empty").mkdir()
    store = open_foreign(tmp_path)
    with pytest.raises(CorruptionError, match="obs"):
        store.consumers("CONS")
    damage: list[ForeignDamage] = []
    found = {one.name: one for one in store.consumers("CONS", damage.append)}
    assert sorted(found) == ["ackall", "ackall_partial", "bystart", "empty", "exact", "filtered", "untouched"]
    assert (found["exact"].delivered, found["ackall"].delivered, found["empty"].delivered) == (None, 20, 0)
    assert sorted(one.reason.split("'")[1] for one in damage) == ["ackall", "bystart", "empty", "exact"]
    assert len(store.inspect("CONS")[0]) == 4


@pytest.mark.parametrize("kind", ["file", "fifo", "link to nothing", "link to itself"])
def test_what_lies_where_the_consumers_should_be_is_told_as_damage(
    case: Callable[[str], Any], tmp_path: Path, kind: str
) -> None:
    shutil.copytree(case("consumers").store, tmp_path / "store")
    (top,) = (tmp_path / "store").rglob("obs")
    shutil.rmtree(top)
    if kind == "file":
        top.write_bytes(b"?")
    elif kind == "fifo":
        os.mkfifo(top)
    else:
        top.symlink_to("obs" if kind == "link to itself" else "nowhere")

    store, damage = open_foreign(tmp_path / "store"), list[ForeignDamage]()
    assert store.consumers("CONS", damage.append) == []
    (only,) = damage
    assert (only.file, only.reason) == (str(top), "which consumers there are is unknown: not a directory")
    with pytest.raises(CorruptionError, match="which consumers there are is unknown"):
        store.consumers("CONS")
    assert [one.consumer_count for one in store.copies("CONS")] == [None]


def test_a_stream_without_the_directory_has_no_consumers_and_no_damage(
    case: Callable[[str], Any], tmp_path: Path
) -> None:
    shutil.copytree(case("consumers").store, tmp_path / "store")
    (top,) = (tmp_path / "store").rglob("obs")
    shutil.rmtree(top)
    store = open_foreign(tmp_path / "store")
    assert store.consumers("CONS") == []
    assert [one.consumer_count for one in store.copies("CONS")] == [0]


def test_a_consumer_that_is_a_file_is_told_and_the_others_read(case: Callable[[str], Any], tmp_path: Path) -> None:
    shutil.copytree(case("consumers").store, tmp_path / "store")
    (place,) = (tmp_path / "store").rglob("obs/exact")
    shutil.rmtree(place)
    place.write_bytes(b"?")
    damage: list[ForeignDamage] = []
    found = open_foreign(tmp_path / "store").consumers("CONS", damage.append)
    assert "exact" not in [one.name for one in found] and len(found) == 5
    assert [(one.file, one.reason) for one in damage] == [(str(place), "consumer 'exact': not a directory")]
