"""Bad input: what is no store, no stream, not readable, or asked wrongly, and what the error says."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError, DataLossError, NotAStoreError, NotFoundError
from storage_core.files import OsFile, OsFiles
from storage_core.foreign import LAYOUTS, ForeignDamage, open_foreign, read_foreign_slice, recognise_foreign
from storage_core.foreign.nats import directory


@pytest.fixture
def shop(records: Any, make_stream: Callable[..., Path]) -> Path:
    """Return a store with two streams in one account and one of the same name in another."""
    for name, account in (("ORDERS", "$G"), ("PAYMENTS", "$G"), ("ORDERS", "ACME")):
        path = make_stream(name, {1: records(name, 1).message(1, f"{name}.a", account.encode())}, account)
    return path


def stream_path(store: Path, name: str, account: str = "$G") -> Path:
    return store / "jetstream" / account / "streams" / name


def test_a_path_that_is_not_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="nowhere does not exist"):
        open_foreign(tmp_path / "nowhere")


def test_an_empty_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="no JetStream store"):
        open_foreign([tmp_path])


def test_a_file_is_no_store_and_the_error_says_what_to_give(shop: Path) -> None:
    with pytest.raises(NotAStoreError, match="is a file; give the directory"):
        open_foreign(stream_path(shop, "PAYMENTS") / "msgs" / "1.blk")


def test_a_tree_of_too_many_directories_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "DIRECTORY_COUNT_MAX", 20)
    for number in range(30):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(NotAStoreError, match="give one nearer to the streams"):
        open_foreign(tmp_path)


def test_a_store_is_recognised_from_its_directory_down_to_a_stream(shop: Path) -> None:
    stream = stream_path(shop, "PAYMENTS")
    for path in (shop, stream.parent.parent, stream):
        assert recognise_foreign(path) == "nats"


def test_what_is_no_store_is_not_recognised_and_no_error(shop: Path, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    shop.rename(deep / "store")
    for path in (
        tmp_path,
        tmp_path / "nowhere",
        deep / "store" / "jetstream" / "$G" / "streams" / "ORDERS" / "meta.inf",
    ):
        assert recognise_foreign(path) is None


def test_one_look_for_a_store_goes_over_few_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "GLANCE_COUNT_MAX", 20)
    for number in range(30):
        (tmp_path / str(number)).mkdir()
    assert recognise_foreign(tmp_path) is None


def test_an_unknown_stream_is_answered_with_the_nearest_name(shop: Path) -> None:
    with pytest.raises(NotFoundError, match="'PAYMENT' is not in .*; did you mean 'PAYMENTS'?"):
        open_foreign(shop).plan("PAYMENT")
    with pytest.raises(NotFoundError, match="there are ORDERS, PAYMENTS"):
        open_foreign(shop).bounds("x")


def test_a_glob_that_nothing_matches_is_an_error(shop: Path) -> None:
    with pytest.raises(NotFoundError, match=r"matches 'Q\*'"):
        open_foreign(shop).plan("Q*")


def test_globs_and_lists_name_streams_once_and_in_order(shop: Path) -> None:
    store = open_foreign(shop, account="$G")
    assert [part.stream for part in store.plan("*")] == ["ORDERS", "PAYMENTS"]
    assert [part.stream for part in store.plan(["P*", "PAYMENTS"])] == ["PAYMENTS"]


def test_a_stream_in_two_accounts_needs_the_account(shop: Path) -> None:
    store = open_foreign(shop)
    assert store.streams() == ["ORDERS", "PAYMENTS"]
    with pytest.raises(ValueError, match=r"account: stream 'ORDERS' is in the accounts \$G, ACME: name one"):
        store.plan("ORDERS")
    (part,) = open_foreign(shop, account="ACME").plan("ORDERS")
    assert part.account == "ACME"
    assert next(read_foreign_slice(part, ["data"]))["data"].to_pylist() == [b"ACME"]


def test_an_unknown_account_is_answered_with_those_that_are_there(shop: Path) -> None:
    with pytest.raises(NotFoundError, match=r"account 'AMCE' has no streams.*did you mean 'ACME'\?$"):
        open_foreign(shop, account="AMCE")


def test_an_unknown_layout_and_no_path_are_refused(shop: Path) -> None:
    assert LAYOUTS == ("nats", "stan")
    with pytest.raises(ValueError, match="layout 'kafka': foreign stores are nats, stan"):
        open_foreign(shop, "kafka")
    with pytest.raises(ValueError, match="path: at least one"):
        open_foreign([])


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"columns": ["key"]}, "column 'key'"),
        ({"first": 5, "end": 4}, "range of sequences: 5 to 4"),
        ({"time_first_ns": 5, "time_end_ns": 4}, "range of times"),
        ({"subject_filters": ["a..b"]}, "'a..b' is no subject filter"),
    ],
)
def test_impossible_questions_are_refused(shop: Path, asked: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        open_foreign(shop).plan("PAYMENTS", **asked)


def test_a_stream_without_meta_inf_is_read_under_the_name_that_its_records_prove(shop: Path) -> None:
    (stream_path(shop, "PAYMENTS") / "meta.inf").unlink()
    store = open_foreign(shop, account="$G")
    (part,) = store.plan("PAYMENTS")
    assert next(read_foreign_slice(part, ["data"]))["data"].to_pylist() == [b"$G"]
    (note,) = store.directory("PAYMENTS").notes  # type: ignore[attr-defined]
    assert "has no meta.inf" in note


def test_a_stream_whose_name_nothing_proves_is_listed_and_refused_by_name(shop: Path) -> None:
    path = stream_path(shop, "PAYMENTS")
    (path / "meta.inf").unlink()
    path.rename(path.with_name("COPY"))
    store = open_foreign(shop, account="$G")
    assert store.streams() == ["COPY", "ORDERS"]
    assert len(store.plan("ORDERS")) == 1
    with pytest.raises(CorruptionError, match=r"COPY has no meta.inf"):
        store.plan("*")


NO_STREAMS = [b"[]", b'{"name": 3}', b'{"name": "\\ud800"}', b"\xff\xfe", b"[" * 100_000]
DAMAGED_META = [
    *(lambda meta, size=size: meta[:size] for size in range(0, 40, 3)),
    *(lambda _, made=made: made for made in NO_STREAMS),
    lambda meta: meta.replace(b'"max_msgs": 1000', b'"max_msgs": 1'),
]


@pytest.mark.parametrize("damage", DAMAGED_META)
def test_a_damaged_configuration_counts_as_unknown(
    records: Any, make_stream: Callable[..., Path], damage: Callable[[bytes], bytes]
) -> None:
    messages = [records("PAY", 1).message(sequence, "PAY.a") for sequence in (1, 2, 3)]
    path = make_stream("PAY", {1: messages}, max_msgs=1000)
    meta = stream_path(path, "PAY") / "meta.inf"
    meta.write_bytes(damage(meta.read_bytes()))
    store = open_foreign(path)
    (part,) = store.plan("PAY")
    assert next(read_foreign_slice(part, ["sequence"])).num_rows == 3
    (note,) = store.directory("PAY").notes  # type: ignore[attr-defined]
    assert "meta.inf" in note


def test_a_missing_meta_sum_is_told_and_the_configuration_counts_as_unknown(shop: Path) -> None:
    (stream_path(shop, "PAYMENTS") / "meta.sum").unlink()
    directory = open_foreign(shop, account="$G").directory("PAYMENTS")  # type: ignore[attr-defined]
    assert "has no meta.sum" in directory.notes[0]
    assert directory.config == {"name": "PAYMENTS"}


def test_a_renamed_stream_directory_is_read_by_its_own_name(shop: Path) -> None:
    path = stream_path(shop, "PAYMENTS")
    path.rename(path.with_name("COPY"))
    store = open_foreign(path.with_name("COPY"))
    assert store.streams() == ["PAYMENTS"]
    (part,) = store.plan()
    assert next(read_foreign_slice(part, ["sequence"])).num_rows == 1


def test_a_stream_without_messages_directory_is_refused(shop: Path) -> None:
    path = stream_path(shop, "PAYMENTS") / "msgs"
    next(path.glob("*.blk")).unlink()
    path.rmdir()
    with pytest.raises(CorruptionError, match="has no directory msgs"):
        open_foreign(shop, account="$G").plan("PAYMENTS")


def test_leftovers_raft_logs_and_odd_names_are_passed_over(shop: Path, records: Any) -> None:
    streams = stream_path(shop, "PAYMENTS").parent
    stream_path(shop, "ORDERS").rename(streams / ".ORDERS")  # a deletion that was interrupted
    raft = shop / "jetstream" / "$SYS" / "_js_" / "S-R3F-abc"
    (raft / "msgs").mkdir(parents=True)
    (raft / "meta.inf").write_bytes(b"{}")
    messages = stream_path(shop, "PAYMENTS") / "msgs"
    for name in ("2.blk.tmp", "x.blk", "3.new", "-1.blk", "².blk"):
        (messages / name).write_bytes(b"whatever")
    store = open_foreign(shop, account="$G")
    assert store.streams() == ["PAYMENTS"]
    assert len(store.plan("PAYMENTS")) == 1


def test_a_purge_that_was_interrupted_goes_on_from_its_new_block(shop: Path, records: Any) -> None:
    path = stream_path(shop, "PAYMENTS") / "__new_msgs__"
    path.mkdir()
    (path / "2.blk").write_bytes(records("PAYMENTS", 2).tombstone(1))
    store = open_foreign(shop, account="$G")
    assert store.plan("PAYMENTS") == []
    assert store.bounds("PAYMENTS") == (2, 2)


def test_links_are_followed_once(shop: Path, tmp_path: Path) -> None:
    other = tmp_path / "mount"
    other.mkdir()
    (other / "here").symlink_to(shop, target_is_directory=True)
    (shop / "loop").symlink_to(other, target_is_directory=True)
    store = open_foreign(other, account="$G")
    assert store.streams() == ["ORDERS", "PAYMENTS"]
    assert len(store.plan("PAYMENTS")) == 1


def test_a_stream_that_links_and_paths_lead_to_twice_is_one_copy(
    shop: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = shop / "jetstream"
    links = tmp_path / "links"
    links.mkdir()
    (links / "node").symlink_to(node, target_is_directory=True)
    for paths in ([shop, node], [node, shop], [links, node], [links / "node", shop, shop]):
        store = open_foreign(paths, account="$G")
        assert [len(store.copies(name)) for name in store.streams()] == [1, 1]
        assert not caplog.records


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_in_place_of_a_block_costs_that_block_alone(make: Callable[[Path], None], shop: Path) -> None:
    make(stream_path(shop, "PAYMENTS") / "msgs" / "2.blk")
    make(stream_path(shop, "PAYMENTS") / "msgs" / "index.db")
    store = open_foreign(shop, account="$G")
    told: list[ForeignDamage] = []
    parts = store.plan("PAYMENTS")
    batches = [batch for part in parts for batch in read_foreign_slice(part, ["sequence"], told.append)]
    assert [row["sequence"] for batch in batches for row in batch.to_pylist()] == [1]
    assert [(Path(one.file).name, one.costs) for one in told] == [("2.blk", True)]
    with pytest.raises(DataLossError, match="messages from sequence 2 on are lost"):
        list(read_foreign_slice(parts[-1], ["sequence"]))


def test_disk_that_cannot_read_a_block_loses_that_block_alone(records: Any, make_stream: Callable[..., Path]) -> None:
    blocks = {number: records("ORDERS", number).message(number, "orders", b"x") for number in (1, 2, 3)}
    parts = open_foreign(make_stream("ORDERS", blocks)).plan("ORDERS")

    class FailingFiles(OsFiles):
        def open(self, path: Path, writable: bool = False, size: int | None = None) -> OsFile:
            if path.name == "2.blk":
                raise OSError(errno.EIO, "Input/output error", str(path))
            return super().open(path, writable)

    told: list[ForeignDamage] = []
    batches = [batch for part in parts for batch in read_foreign_slice(part, ["sequence"], told.append, FailingFiles())]
    assert [row["sequence"] for batch in batches for row in batch.to_pylist()] == [1, 3]
    assert [(one.first, one.end) for one in told] == [(2, 3)]
    assert told[0].reason == "the file cannot be read: Input/output error"


def test_many_streams_are_found(make_stream: Callable[..., Path]) -> None:
    for number in range(300):
        path = make_stream(f"S{number:03d}", {})
    store = open_foreign(path)
    assert len(store.streams()) == 300
    assert store.plan("*") == []
