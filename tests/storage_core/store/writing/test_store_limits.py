"""Limits of all streams of a store together, and what streams get by their names."""

from typing import Any

import pytest
from harness.processes import Machine

from storage_core.errors import LimitExceededError, RequirementError
from storage_core.store.store import Store
from storage_core.store.stream import Stream


def made(*names: str, **settings: Any) -> tuple[Machine, Store, list[Stream]]:
    machine = Machine(1)
    store = machine.create()
    store.edit(**settings)
    return machine, store, [store.add_stream({"name": name}) for name in names]


def rows(stream: Stream, count: int, size: int = 9) -> list[dict[str, Any]]:
    return [{"subject": stream.name, "data": bytes(size)} for _ in range(count)]


def refused(error: pytest.ExceptionInfo[LimitExceededError]) -> tuple[Any, ...]:
    caught = error.value
    return caught.stream, caught.limit, caught.value, caught.present, caught.given


@pytest.mark.buckets
def test_an_append_that_would_break_a_total_is_refused_whole() -> None:
    machine, store, (a, b) = made("A", "B", max_msgs=10, max_bytes=100)
    a.append(rows(a, 6))
    with pytest.raises(LimitExceededError) as error:
        b.append(rows(b, 5))
    assert refused(error) == ("", "max_msgs", 10, 6, 5)
    assert str(error.value).startswith("the whole store: max_msgs is 10; it has 6, and 5 more came")
    with pytest.raises(LimitExceededError) as error:
        b.publish("B", bytes(40))  # 60 and 41 bytes
    assert refused(error) == ("", "max_bytes", 100, 60, 41)
    assert (b.state().message_count, b.last_sequence) == (0, 0)
    b.append(rows(b, 4))
    a.remove(1)
    b.publish("B", b"room")
    again = machine.open(machine.files())
    assert [again.stream(name).state().message_count for name in ("A", "B")] == [5, 5]
    with pytest.raises(LimitExceededError):
        again.stream("A").publish("A", b"x")


def test_a_stream_at_its_own_limit_goes_on_within_the_total() -> None:
    _, store, (a,) = made("A", max_msgs=5)
    store.edit_stream({"name": "A", "max_msgs": 5})
    for _ in range(4):
        a.append(rows(a, 3))
    assert a.state().message_count == 5
    a.append(rows(a, 100))
    assert (a.state().message_count, store.view().state.streams.message_count) == (5, 5)


def test_a_limit_below_what_is_there_removes_nothing_and_lets_room_be_made() -> None:
    _, store, (a, b) = made("A", "B")
    a.append(rows(a, 10))
    store.edit(max_msgs=3, max_streams=1)
    assert a.state().message_count == 10
    with pytest.raises(LimitExceededError) as error:
        b.publish("B", b"x")
    assert refused(error) == ("", "max_msgs", 3, 10, 1)
    with pytest.raises(LimitExceededError) as error:
        store.add_stream({"name": "C"})
    assert refused(error) == ("", "max_streams", 1, 2, 1)
    a.purge(keep=2)
    b.publish("B", b"x")
    store.delete_stream("A")
    store.delete_stream("B")
    store.add_stream({"name": "C"}).append(rows(b, 0))
    store.edit(max_msgs=-1, max_streams=-1)
    store.add_stream({"name": "D"}).append([{"subject": "D", "data": b"x"}] * 50)


def test_consumers_of_all_streams_are_counted() -> None:
    _, store, (a, b) = made("A", "B", max_consumers=2)
    a.add_consumer({"name": "one"})
    b.add_consumer({"name": "two"})
    with pytest.raises(LimitExceededError) as error:
        b.add_consumer({"name": "three"})
    assert refused(error) == ("", "max_consumers", 2, 2, 1)
    a.consumer("one").delete()
    b.add_consumer({"name": "three"})


def test_streams_get_keys_by_their_names() -> None:
    _, store, _ = made(
        stream_defaults={
            "*": {"max_msgs": 100, "max_age": "7d"},
            "LOGS*": {"max_msgs": 10},
            "LOGS-?": {"discard": "new"},
        }
    )
    logs = store.add_stream({"name": "logs-1"}).config  # names are one without regard to case
    assert (logs.max_msgs, logs.max_age, logs.discard) == (10, 7 * 86_400 * 10**9, "new")
    other = store.add_stream({"name": "ORDERS", "max_age": 0}).config
    assert (other.max_msgs, other.max_age, other.discard) == (100, 0, "old")
    store.edit(stream_defaults={})
    assert store.add_stream({"name": "LOGS-2"}).config.max_msgs == -1
    assert store.stream("logs-1").config.max_msgs == 10


def test_permissions_are_chosen_once_and_settings_are_checked() -> None:
    _, store, _ = made()
    with pytest.raises(RequirementError):
        store.edit(permissions="group")
    with pytest.raises(ValueError, match="max_msgs: 'many' is not a whole number"):
        store.edit(max_msgs="many")
    store.edit(deleted_block_retention="1h")
    assert store.info()["settings"]["deleted_block_retention"] == 3_600 * 10**9
    assert store.info()["settings"]["max_bytes"] == -1
