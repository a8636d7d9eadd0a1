"""Known mistakes in what goes at an acknowledgement; `made(name)` makes one while its block runs."""

from collections.abc import Callable
from itertools import count
from typing import Any

from harness.mutants import Replacement, maker_of

from storage_core.metadata import consumers, machine, removals
from storage_core.metadata.commands import Append
from storage_core.metadata.retention import done_by_all
from storage_core.sequences import SequenceSet
from storage_core.store.writing import retention


def removes_before_all_have_acknowledged() -> list[Replacement]:
    """The first consumer that is done with a message takes it away from the others."""

    def done_by_any(stream: Any, sequences: SequenceSet) -> SequenceSet:
        done = SequenceSet.empty()
        for consumer in stream.consumers.values():
            done = done.union(consumer.done)
        return sequences.intersection(done) if len(stream.consumers) else done_by_all(stream, sequences)

    def unneeded(state: Any, stream: Any, volumes: Any, env: Any, among: SequenceSet | None) -> SequenceSet:
        return done_by_any(stream, stream.shown() if among is None else stream.removed.absent_among(among))

    return [(removals, "done_by_all", done_by_any), (retention, "_unneeded", unneeded)]


def takes_what_was_asked_for_again_as_done() -> list[Replacement]:
    """A message that was refused goes like one that was acknowledged."""
    plain = consumers.with_done

    def acknowledge(stream: Any, consumer: Any, command: Any) -> Any:
        made, number = acknowledge_plain(stream, consumer, command)
        return plain(stream, made, SequenceSet.decode(command.sequences)), number

    acknowledge_plain = consumers._acknowledge
    return [(consumers, "_acknowledge", acknowledge)]


def removes_what_is_handed_out() -> list[Replacement]:
    """A message goes when it is delivered, not when it is acknowledged."""

    def deliver(stream: Any, consumer: Any, command: Any) -> Any:
        made, number = deliver_plain(stream, consumer, command)
        return consumers.with_done(stream, made, SequenceSet.decode(command.sequences)), number

    deliver_plain = consumers._deliver
    return [(consumers, "_deliver", deliver)]


def each_process_expires_by_its_own_clock() -> list[Replacement]:
    """Whoever applies an append removes what is too old by the time that it is then, there."""
    clock = count()

    def append(state: Any, place: Any, time_ns: int, command: Append) -> Any:
        made, result = plain(state, place, time_ns, command)
        stream = made.by_incarnation(command.streams[0].incarnation)
        if stream is not None and stream.message_count and next(clock) % 2:
            gone = stream.shown_head(stream.first_sequence, 1)
            made, stream = removals.drop_below(made, stream, int(gone.ends[0]), time_ns, gone, 1)
            made = made.with_stream(stream)
        return made, result

    plain = machine._HANDLERS[Append]
    return [(machine, "_HANDLERS", {**machine._HANDLERS, Append: append})]


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    one.__name__: one
    for one in (
        removes_before_all_have_acknowledged,
        takes_what_was_asked_for_again_as_done,
        removes_what_is_handed_out,
        each_process_expires_by_its_own_clock,
    )
}
made = maker_of(MUTANTS)
