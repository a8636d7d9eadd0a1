"""Messages with Nats-TTL: what goes when, in appends and in maintenance, and which blocks are looked at for it."""

from typing import Any

import pytest
from harness.processes import SECOND_NS, Machine

from storage_core.errors import InvalidMessageError
from storage_core.store.stream import Stream
from storage_core.store.writing import expiry


def made(machine: Machine, **config: Any) -> Stream:
    return machine.create().add_stream({"name": "S", "subjects": ["s"], "allow_msg_ttl": True, **config})


def row(ttl: str | None = None, **more: Any) -> dict[str, Any]:
    headers = [("other", b"1"), ("Nats-TTL", ttl.encode())] if ttl is not None else None
    return {"subject": "s", "data": b"x", "headers": headers, **more}


def left(stream: Stream) -> list[int]:
    sequences: list[int] = stream.read(columns=["sequence"]).read_all().column("sequence").to_pylist()
    return sequences


@pytest.mark.buckets
def test_messages_go_with_an_append_and_by_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1, 3)
    stream = made(machine, block_max_msgs=3)
    stream.append([row("10"), row(), row("1h"), row(), row("20s"), row("10s")])
    stream.append([row(), row()])
    consumer = stream.add_consumer({"name": "c"})
    looked: list[int] = []
    monkeypatch.setattr(expiry, "_over", lambda *a, over=expiry._over: looked.append(a[2]) or over(*a))
    machine.clock.now += 11 * SECOND_NS
    assert len(left(stream)) == 8  # readers go by no clock
    stream.append([row()])
    assert (left(stream), looked) == ([2, 3, 4, 5, 7, 8, 9], [1, 4])
    stream.append([row()])
    assert looked == [1, 4]  # nothing else is due
    machine.clock.now += 10 * SECOND_NS
    machine.open().maintain()
    assert (left(stream), looked) == ([2, 3, 4, 7, 8, 9, 10], [1, 4, 4])
    machine.clock.now += 3_600 * SECOND_NS
    machine.open().maintain()
    assert (left(stream), len(stream.state().expiries)) == ([2, 4, 7, 8, 9, 10], 0)
    assert (consumer.info()["num_skipped"], stream.state().data_size) == (4, 12)


def test_blocks_that_were_merged_or_purged_and_another_process(tmp_path: Any) -> None:
    machine = Machine(2)
    stream = made(machine)
    for at in range(20):
        stream.append([row("10s" if at % 3 == 0 else None), row("1h")])
    machine.open().compact()
    assert len(stream.state().blocks) < 20
    machine.clock.now += 11 * SECOND_NS
    machine.open().maintain()
    assert len(left(stream)) == 40 - 7
    assert len(stream.state().expiries) == 13 + 1  # of those that are not due, and the next of the others
    stream.purge()
    assert len(stream.state().expiries) == 0
    machine.clock.now -= 60 * SECOND_NS  # a clock that was set back removes nothing
    stream.append([row("30s")])
    machine.open().maintain()
    assert len(left(stream)) == 1


@pytest.mark.parametrize(
    "bad",
    [row("soon"), row("0"), row("-3"), row("999ms"), row("10s", timestamp_ns=1), row(str(1 << 40)), row("never")],
    ids=lambda one: str(one["headers"]),
)
def test_what_is_no_time_to_live_is_refused_by_name(bad: dict[str, Any]) -> None:
    stream = made(Machine(3), max_age="1h")
    with pytest.raises(InvalidMessageError, match="Nats-TTL") as refused:
        stream.append([row(), row("5"), bad])
    assert (refused.value.row, stream.last_sequence) == (2, 0)


def test_a_stream_that_has_not_set_it_refuses_the_header() -> None:
    stream = Machine(4).create().add_stream({"name": "S", "subjects": ["s"]})
    with pytest.raises(InvalidMessageError, match="allow_msg_ttl"):
        stream.append([row("5s")])
