"""Consumers: what the real server recovers, and the contract for damage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.foreign import ForeignDamage
from storage_core.foreign.stan import subscriptions
from storage_core.foreign.stan.store import StanStore
from storage_core.foreign.stan.subscriptions import (
    ReplayOptions,
    Subscription,
    as_consumer,
    replay_subscriptions,
)

NEW, REPLACED, REMOVED, ACKED, SENT = 1, 2, 3, 4, 5
CASES = [
    "basic",
    "kill9",
    "crc-castagnoli",
    "encrypted",
    "limits-archive",
    "subs-compacted",
    "damaged-no-index",
    "damaged-truncated-msgs",
    "damaged-zero-tail",
]


def seen(one: Subscription) -> dict[str, Any]:
    """Return it as the server's monitoring shows it."""
    shown = {
        "ack_inbox": one.ack_inbox,
        "ack_wait": one.ack_wait_s,
        "client_id": one.client_id,
        "inbox": one.inbox,
        "is_durable": one.is_durable,
        "is_offline": one.is_offline,
        "last_sent": one.last_sent,
        "max_inflight": one.max_in_flight,
        "pending_count": len(one.pending),
    }
    named = {"durable_name": one.durable_name, "queue_name": one.queue_group}
    return shown | {key: value for key, value in named.items() if value}


def subscriptions_of(store: StanStore, channel: str) -> list[Subscription]:
    return replay_subscriptions(store.directory(channel).subscriptions_path, channel)


def by_inbox(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["ack_inbox"]))


@pytest.mark.parametrize("name", CASES)
def test_consumers_are_those_that_the_server_told(case: Callable[[str], Any], read_only_files: Any, name: str) -> None:
    one = case(name)
    store = StanStore([one.store], files=read_only_files)
    for channel, told in one.info["channels"].items():
        found = [seen(subscription) for subscription in subscriptions_of(store, channel)]
        assert by_inbox(found) == by_inbox(told["subscriptions"])
    (root,) = store.roots
    assert store.cluster_id(root) == one.info["cluster_id"]


def test_cut_record_stops_the_replay_unless_an_option_reads_past_the_end(case: Callable[[str], Any]) -> None:
    one = case("damaged-truncated-subs")
    for options in ({}, {"no_crc": True}):
        with pytest.raises(CorruptRecordError) as raised:
            StanStore([one.store], **options).consumers("foo")
        assert raised.value.code == "JSTREAM_CORRUPT_RECORD" and raised.value.offset_bytes == 1089
        assert str(raised.value.file).endswith("foo/subs.dat")
        text = str(raised.value)
        assert "record of a subscription, left out: the record declares 2" in text
        assert (
            "\n  head     02 00 00 03 4d c9 09 10   type 3 (subscription removed), size 2, checksum 0x1009c94d" in text
        )
        assert "\n  payload  08 " in text
        assert "truncateBadEof (--truncate-bad-eof) reads past an unexpected end" in text
    told: list[ForeignDamage] = []
    path = StanStore([one.store]).directory("foo").subscriptions_path
    found = replay_subscriptions(path, "foo", ReplayOptions(truncate_bad_eof=True), told.append)
    # The server lost the same removal: the subscription shows again, and is offline there as its client is gone.
    assert by_inbox([{**seen(one), "is_offline": None} for one in found]) == by_inbox(
        [{**told, "is_offline": None} for told in one.info["channels"]["foo"]["subscriptions"]]
    )
    assert [(damage.offset_bytes, damage.allowed) for damage in told] == [(1089, True)]


@pytest.fixture
def content(writer: Any) -> list[bytes]:
    first = writer.proto(f1=1, f2="alpha", f4="in", f5="ack", f6=16, f7=30, f8="dur", f10=1)
    other = writer.proto(f1=2, f2="beta", f3="dur:group", f4="in2", f5="ack2", f6=2**64 - 1, f7=30, f9=7)
    return [
        writer.version,
        writer.record(first, NEW),
        writer.record(other, NEW),
        *(writer.record(writer.proto(f1=1, f2=sequence), SENT) for sequence in (3, 4, 5)),
        writer.record(writer.proto(f1=1, f2=4), ACKED),
        writer.record(writer.proto(f1=9, f2=4), ACKED),  # nobody knows that subscription
        writer.record(writer.proto(f1=1, f2="gamma", f4="in3", f5="ack", f8="dur", f10=1, f11=1), REPLACED),
        writer.record(writer.proto(f1=2), REMOVED),
        writer.record(writer.proto(f1=3, f2="delta", f4="in4", f5="ack4"), REPLACED),
    ]


def replayed(path: Path, content: list[bytes], **options: Any) -> list[Subscription]:
    path.write_bytes(b"".join(content))
    on_damage = options.pop("on_damage", None)
    return replay_subscriptions(str(path), "foo", ReplayOptions(**options), on_damage)


def test_records_are_replayed_in_order(writer: Any, tmp_path: Path, content: list[bytes]) -> None:
    first, last = replayed(tmp_path / "subs.dat", content)
    assert (first.id, first.client_id, first.inbox, first.is_offline) == (1, "gamma", "in3", True)
    assert (first.pending, first.last_sent, first.ack_floor, first.name) == ((3, 5), 5, 2, "dur")
    assert (last.id, last.pending, last.last_sent, last.ack_floor, last.name) == (3, (), 0, 0, "in4")
    before = replayed(tmp_path / "subs.dat", content[:-2])[1]
    assert (before.max_in_flight, before.last_sent, before.name) == (-1, 7, "dur:group")


def test_table_has_a_row_a_subscription(tmp_path: Path, content: list[bytes]) -> None:
    subscriptions = replayed(tmp_path / "subs.dat", content)
    rows = [as_consumer(one, "subs.dat").row() for one in subscriptions]
    assert [{key: row[key] for key in ("stream", "consumer", "ack_floor", "pending")} for row in rows] == [
        {"stream": "foo", "consumer": "dur", "ack_floor": 2, "pending": [3, 5]},
        {"stream": "foo", "consumer": "in4", "ack_floor": 0, "pending": []},
    ]


def test_missing_file_is_no_subscription(tmp_path: Path) -> None:
    assert replay_subscriptions(str(tmp_path / "subs.dat"), "foo") == []


def test_cut_at_every_length_applies_the_whole_records(tmp_path: Path, content: list[bytes]) -> None:
    whole = b"".join(content)
    edges = [sum(map(len, content[:count])) for count in range(len(content) + 1)]
    for size in range(len(whole)):
        records = sum(edge <= size for edge in edges[1:])
        told: list[ForeignDamage] = []
        found = replayed(tmp_path / "subs.dat", [whole[:size]], on_damage=told.append)
        assert found == replayed(tmp_path / "subs.dat", content[:records]), size
        assert len(told) == (size not in edges), size
        if told:
            with pytest.raises(CorruptRecordError):
                replayed(tmp_path / "subs.dat", [whole[:size]])
            assert replayed(tmp_path / "subs.dat", [whole[:size]], truncate_bad_eof=True) == found


def test_every_flipped_bit_costs_its_record_at_most(tmp_path: Path, content: list[bytes]) -> None:
    whole = b"".join(content)
    edges = [sum(map(len, content[:count])) for count in range(len(content) + 1)]
    complete = replayed(tmp_path / "subs.dat", content)
    without = [replayed(tmp_path / "subs.dat", content[:hit] + content[hit + 1 :]) for hit in range(1, len(content))]
    for bit in range(8 * len(whole)):
        place = bit // 8
        hit = sum(edge <= place for edge in edges) - 1
        if hit > 0 and place - edges[hit] == 3:
            continue  # the type is not covered by the checksum
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit % 8
        found = replayed(tmp_path / "subs.dat", [bytes(flipped)], on_damage=lambda _: None)
        in_size = hit == 0 or place - edges[hit] < 4
        assert found == (complete if in_size else without[hit - 1]), bit


def test_unknown_type_is_a_bad_record(writer: Any, tmp_path: Path, content: list[bytes]) -> None:
    strange = [*content[:3], writer.record(writer.proto(f1=1), 9), *content[3:]]
    with pytest.raises(CorruptRecordError, match="the record has type 9, known are 1, 2, 3, 4, 5"):
        replayed(tmp_path / "subs.dat", strange)
    assert replayed(tmp_path / "subs.dat", strange, no_crc=True) == replayed(tmp_path / "subs.dat", content)


def test_bad_checksum_is_applied_with_no_crc_and_told(writer: Any, tmp_path: Path, content: list[bytes]) -> None:
    bad = bytearray(content[4])
    bad[4] ^= 1
    damaged = [*content[:4], bytes(bad), *content[5:]]
    told: list[ForeignDamage] = []
    found = replayed(tmp_path / "subs.dat", damaged, no_crc=True, on_damage=told.append)
    assert found == replayed(tmp_path / "subs.dat", content)
    assert ["applied all the same" in damage.reason for damage in told] == [True]


def test_more_subscriptions_and_deliveries_than_are_kept_are_told(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "LIVE_COUNT_MAX", 3)
    monkeypatch.setattr(subscriptions, "PENDING_COUNT_MAX", 5)
    new = [writer.record(writer.proto(f1=number, f5="inbox"), NEW) for number in range(1, 6)]
    sent = [writer.record(writer.proto(f1=1, f2=number), SENT) for number in range(1, 9)]
    acked = [writer.record(writer.proto(f1=1, f2=1), ACKED), writer.record(writer.proto(f1=2, f2=9), SENT)]
    path = tmp_path / "subs.dat"
    path.write_bytes(b"".join([writer.version, *new, *sent, *acked]))
    told: list[ForeignDamage] = []
    found = replay_subscriptions(str(path), "foo", on_damage=told.append)
    assert [(one.id, one.pending, one.last_sent) for one in found] == [(1, (2, 3, 4, 5), 8), (2, (9,), 9), (3, (), 0)]
    assert [one.reason.split(":")[1] for one in told] == [" 5 records are more than is kept"]
    with pytest.raises(CorruptRecordError, match="more than is kept"):
        replay_subscriptions(str(path), "foo")
