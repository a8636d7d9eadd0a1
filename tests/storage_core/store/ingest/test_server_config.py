"""Names, configurations and consumers of other servers' streams, as they are taken over."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core.chunked_set import ChunkedSet
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.slices import ForeignStream
from storage_core.metadata.config import NAME_PATTERN, StreamConfig
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ingest.server_config import (
    default_name,
    stream_config,
    stream_names,
    with_consumers,
)

NOW_NS = 1_800_000_000 * 10**9


def original_name(name: str) -> str:
    """Return the foreign name that `default_name` changed into this one."""
    encoded = re.sub(r"__|_([0-9A-F]{2})", lambda found: chr(int(found[1], 16)) if found[1] else "_", name)
    return encoded.encode("latin-1").decode("utf-8", "surrogateescape")


@given(st.text(min_size=1, max_size=30))
@example("orders.eu")
@example("a_b.c")
@example("bestellung-ü")
@example("\udcff")
def test_a_default_name_is_one_that_we_take_and_leads_back(foreign: str) -> None:
    name = default_name(foreign)
    if NAME_PATTERN.fullmatch(foreign):
        assert name == foreign
    else:
        assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
        assert original_name(name) == foreign


def test_default_names_are_readable() -> None:
    assert default_name("orders.eu") == "orders_2Eeu"
    assert default_name("dur:my_group") == "dur_3Amy__group"


def test_names_that_clash_here_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="'Orders' and 'orders' would both be called 'orders' here.*--stream and --as"):
        stream_names(["Orders", "orders"], {})
    with pytest.raises(ValueError, match="'a.b' and 'a_2Eb' would both be called"):
        stream_names(["a.b", "a_2Eb"], {})
    assert stream_names(["Orders", "orders"], {"orders": "small"}) == {"Orders": "Orders", "orders": "small"}
    with pytest.raises(ValueError, match="its name here would be .* not 1 to 128"):
        stream_names(["x" * 129], {})


def foreign(layout: str = "nats", subjects: tuple[str, ...] = ("s.>",), **config: Any) -> ForeignStream:
    return ForeignStream(
        layout, "$G", "S", "/source", subjects, 0, 1, 0, 0, 0, 0, "none", False, "index.db", "", config=config
    )


def test_a_configuration_is_taken_over_key_by_key() -> None:
    config, notes = stream_config(
        "S",
        foreign(
            name="S", max_msg_size=1024, deny_purge=True, sealed=True, description="d", retention="limits", max_age=0,
            compression="s2", mirror={"name": "OTHER"}, metadata={"team": "a"}, placement=None, max_msgs=-1,
        ),
        3,
    )  # fmt: skip
    assert (config.max_msg_size, config.deny_purge, config.sealed, config.description) == (1024, True, True, "d")
    assert (config.compression, config.num_replicas, config.subjects) == ("lz4", 3, ("s.>",))
    assert config.metadata == {
        "team": "a", "jstream.layout": "nats", "jstream.account": "$G", "jstream.name": "S",
    }  # fmt: skip
    assert notes == [
        "compression=s2: its blocks are written with lz4 here",
        'mirror={"name":"OTHER"} is not carried over',
    ]


def test_limits_are_carried_over_but_not_what_would_remove_messages_at_once() -> None:
    keys = {
        "discard_new_per_subject": True, "max_msgs_per_subject": 2, "max_msgs": 10, "max_bytes": 1 << 20,
        "max_consumers": 3, "discard": "new", "retention": "interest",
    }  # fmt: skip
    config, notes = stream_config("S", foreign(**keys, max_age=3_600_000_000_000), 1)
    assert {key: getattr(config, key) for key in keys} == keys
    assert config.max_age == 0
    assert [note.split(" is not")[0] for note in notes] == ["max_age=3600000000000"]


def test_a_mirror_and_strange_subjects_are_told() -> None:
    assert stream_config("S", foreign(subjects=()), 1)[1] == ["it names no subjects of its own: here it takes S"]
    config, notes = stream_config("S", foreign(subjects=("a b",)), 1)
    assert config.subjects == (">",)
    assert notes[0].startswith("it takes every subject (>) here: ")


def stream(first: int, end: int, removed: tuple[tuple[int, int], ...] = ()) -> StreamState:
    gone = ChunkedSet.of(SequenceSet.from_ranges(removed))
    return StreamState(
        StreamConfig(name="S", subjects=("s.>",)), b"i" * 16, 0, (), first, end, removed=gone,
        message_count=end - first - len(gone),
    )  # fmt: skip


def consumer(name: str = "c", **more: Any) -> ForeignConsumer:
    values: dict[str, Any] = {"is_durable": True, "delivered": 5, "ack_floor": 2, "pending": (3, 5)} | more
    return ForeignConsumer("nats", "$G", "S", name, "o.dat", **values)


def test_messages_that_wait_are_due_when_they_were_or_at_once() -> None:
    sent_s = (NOW_NS // 10**9 - 100, NOW_NS // 10**9 - 1)
    one = consumer(pending_times_s=sent_s, redelivered=((5, 2),), config={"ack_wait": 30 * 10**9})
    done = with_consumers(stream(1, 10, ((3, 4),)), [one], NOW_NS)
    state = done.stream.consumers["c"]
    assert (state.next_sequence, state.pending.rows.tolist()) == (6, [(5, 6, (sent_s[1] + 30) * 10**9, 3)])
    assert done.notes == ("consumer c: a message that it had not acknowledged is not in the stream any more",)


def test_positions_behind_and_ahead_are_reconciled_and_told() -> None:
    done = with_consumers(
        stream(20, 30), [consumer("behind"), consumer("ahead", delivered=50), consumer("new", delivered=0)], NOW_NS
    )
    assert {one.name: one.next_sequence for one in done.stream.consumers.values()} == {
        "ahead": 30, "behind": 20, "new": 20,
    }  # fmt: skip
    assert [(one.consumer, one.before, one.after) for one in done.events] == [
        ("ahead", "50", "29"), ("behind", "5", "19"),
    ]  # fmt: skip
    assert all(one.time_ns == NOW_NS for one in done.events)


def test_a_consumer_whose_state_is_damaged_begins_at_the_first_message() -> None:
    done = with_consumers(stream(20, 30), [consumer(delivered=None, ack_floor=None, pending=())], NOW_NS)
    assert done.stream.consumers["c"].next_sequence == 20
    assert "what it had read is damaged: it begins at the first message, 20" in done.notes[0]


def test_what_does_not_outlive_its_client_is_left_and_told() -> None:
    done = with_consumers(stream(1, 10), [consumer(is_durable=False)], NOW_NS)
    assert (done.names, done.notes) == ((), ("consumer c is not carried over: it is not durable",))


def test_one_durable_name_at_two_clients_becomes_two_consumers() -> None:
    both = [consumer("dur", config={"client_id": client}) for client in ("alice", "bob")]
    done = with_consumers(stream(1, 10), both, NOW_NS)
    assert done.names == ("alice_2Edur", "bob_2Edur")


def test_settings_of_a_consumer_that_do_not_work_here_are_told() -> None:
    config = {"deliver_policy": "last_per_subject", "headers_only": True, "filter_subject": "s.a", "max_ack_pending": 7}
    done = with_consumers(stream(1, 10), [consumer(config=config)], NOW_NS)
    made = done.stream.consumers["c"].config
    assert (made.filter_subjects, made.max_ack_pending, made.deliver_policy) == (("s.a",), 7, "all")
    assert done.notes == (
        "consumer c: deliver_policy=last_per_subject is not carried over; its position is",
        "consumer c: headers_only=true is not carried over",
    )
