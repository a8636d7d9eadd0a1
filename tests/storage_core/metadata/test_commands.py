"""Commands as bytes: each comes back, and what is no command of this version says so."""

from types import NoneType, UnionType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError, UnsupportedVersionError
from storage_core.metadata.commands import Command, Envelope, NoOp, decode_envelope, encode_envelope
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig

counts = st.integers(0, 2**63 - 1)
ids = st.binary(min_size=16, max_size=16)
names = st.text(max_size=12)
configs = st.builds(
    StreamConfig,
    name=st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True),
    subjects=st.just(("a.>",)),
    metadata=st.dictionaries(names, names, max_size=2),
)
consumer_configs = st.builds(
    ConsumerConfig,
    name=st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True),
    filter_subjects=st.just(("a.>",)),
    metadata=st.dictionaries(names, names, max_size=2),
)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    int: counts,
    bytes: ids,
    str: names,
    bool: st.booleans(),
    NoneType: st.none(),
    dict[str, dict[str, Any]]: st.dictionaries(names, st.dictionaries(names, st.one_of(counts, names))),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    StreamConfig: configs,
    ConsumerConfig: consumer_configs,
}


def commands_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return commands of one type with all their fields drawn."""
    fields = {field.name: drawn(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    origin = getattr(kind, "__origin__", None)
    if isinstance(kind, UnionType):
        return st.one_of([drawn(one) for one in kind.__args__])
    if origin is tuple:
        return st.lists(drawn(kind.__args__[0]), max_size=3).map(tuple)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in STRATEGIES:
        return commands_of(kind)
    return STRATEGIES[kind]


KINDS: list[type[msgspec.Struct]] = list(Command.__args__)
any_command: st.SearchStrategy[Any] = st.one_of([commands_of(kind) for kind in KINDS])


@given(any_command, st.integers(-(2**63), 2**63 - 1), st.dictionaries(ids, counts, max_size=3))
def test_every_command_comes_back(command: Command, time_ns: int, durable: dict[bytes, int]) -> None:
    envelope = Envelope(time_ns, command, durable)
    encoded = encode_envelope(envelope)
    assert decode_envelope(encoded) == envelope
    assert encode_envelope(decode_envelope(encoded)) == encoded


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_tags_are_frozen(kind: type[msgspec.Struct]) -> None:
    """What is in logs already must stay readable: a class may be renamed, its tag may not."""
    assert kind.__struct_config__.tag in {
        "init", "noop", "take_over", "add_stream", "edit_stream", "delete_stream", "append", "abort", "remove",
        "unlinked", "forget_transactions", "adopt", "change_volumes", "change_placement", "declare_lost",
        "record_events", "record_holders", "prepare_streams", "restore_streams", "add_consumer", "delete_consumer",
        "pause_consumer", "deliver", "acknowledge", "move_consumer", "record_consumer_events", "advance_consumers",
        "take_consumer", "merge_blocks", "edit_store", "take_back", "discard_lost",
    }  # fmt: skip


def test_a_command_of_a_newer_version_stops_the_reader() -> None:
    newer = {"time_ns": 1, "command": {"type": "teleport", "to": "mars"}, "durable": {}, "version": 2}
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        decode_envelope(msgspec.msgpack.encode(newer))


def test_a_known_command_with_a_newer_meaning_stops_the_reader() -> None:
    newer = {"time_ns": 1, "command": {"type": "noop"}, "durable": {}, "version": 2}
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        decode_envelope(msgspec.msgpack.encode(newer))


def test_an_unknown_command_of_this_version_is_damage() -> None:
    damaged = {"time_ns": 1, "command": {"type": "noob"}, "durable": {}, "version": 1}
    with pytest.raises(CorruptRecordError):
        decode_envelope(msgspec.msgpack.encode(damaged))


def test_keys_that_a_newer_version_added_are_passed_over() -> None:
    newer = msgspec.msgpack.encode({"time_ns": 1, "command": {"type": "noop", "why": "new"}, "durable": {}, "more": 2})
    assert decode_envelope(newer) == Envelope(1, NoOp())


def test_keys_with_a_default_may_be_missing() -> None:
    older = msgspec.msgpack.encode({"time_ns": 1, "command": {"type": "noop"}})
    assert decode_envelope(older) == Envelope(1, NoOp())


@given(st.binary(max_size=80))
def test_bytes_that_are_no_envelope_are_refused(payload: bytes) -> None:
    with pytest.raises((CorruptRecordError, UnsupportedVersionError)):
        decode_envelope(payload)


@given(any_command, st.data())
def test_an_envelope_cut_anywhere_is_refused(command: Command, data: st.DataObject) -> None:
    encoded = encode_envelope(Envelope(1, command))
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises((CorruptRecordError, UnsupportedVersionError)):
        decode_envelope(encoded[:size])


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_ns": "noon", "command": {"type": "noop"}},
        {"time_ns": 1, "command": {"type": "abort", "transaction": 5}},
        {"time_ns": 1, "command": {"type": "abort"}},
        {"time_ns": 1, "command": {}},
        {"time_ns": 1, "command": None},
        {"time_ns": 1},
        [],
        None,
    ],
)
def test_values_of_the_wrong_type_are_refused(wrong: object) -> None:
    with pytest.raises(CorruptRecordError):
        decode_envelope(msgspec.msgpack.encode(wrong))


def test_containers_are_not_believed_to_be_as_long_as_they_say() -> None:
    """An array that declares four billion elements in six bytes must not be allocated first."""
    bomb = b"\x82\xa7time_ns\x01\xa7command\x82\xa4type\xa4bury\xa6blocks\xdd\xff\xff\xff\xff"
    with pytest.raises(CorruptRecordError):
        decode_envelope(bomb)
