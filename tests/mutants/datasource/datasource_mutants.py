"""Known mistakes of the data source, and of what it knows batches by, each made in the real code by a `with` block."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from harness.mutants import Replacement, maker_of

from datasource import source, stream_offsets, stream_source, stream_writer, writer
from datasource.stream_writer import StreamWriter
from storage_core.metadata import appends
from storage_core.store.writing import staging
from storage_core.store.writing.batch_content import message_hashes


def takes_whatever_has_a_known_number_for_a_replay() -> list[Replacement]:
    """What stood here first: rows of a second driver were dropped with a warning."""
    return [(appends, "_check_content", lambda *arguments: None)]


def goes_by_the_count_of_messages_alone() -> list[Replacement]:
    return [(staging, "message_hashes", lambda messages, stream: np.zeros(messages.batch.num_rows, np.uint64))]


def counts_the_order_of_messages_as_content() -> list[Replacement]:
    def hashes(messages: Any, stream: str) -> np.ndarray:
        plain: np.ndarray = message_hashes(messages, stream)
        return plain * np.arange(1, len(plain) + 1, dtype=np.uint64)

    return [(staging, "message_hashes", hashes)]


def answers_that_a_batch_is_stored_and_fences_nobody() -> list[Replacement]:
    return [(appends, "_superseding", lambda state, targets, command: state)]


def lets_a_fenced_run_back_by_an_old_batch() -> list[Replacement]:
    plain = appends._superseding

    def superseding(state: Any, targets: Any, command: Any) -> Any:
        cleared = [replace(one, writers=_without_fences(one.writers)) for one in targets]
        return plain(state, cleared, command)

    def _without_fences(writers: Any) -> Any:
        return {name: _unfenced(one) for name, one in writers.items()}

    def _unfenced(one: Any) -> Any:
        import msgspec

        structs = isinstance(one, msgspec.Struct)
        return msgspec.structs.replace(one, superseded=()) if structs else replace(one, superseded=())

    return [(appends, "_superseding", superseding)]


def numbers_batches_by_run() -> list[Replacement]:
    plain = StreamWriter._identity

    def identity(self: StreamWriter, tasks: Any, batch_id: int) -> Any:
        made = plain(self, tasks, batch_id)
        return replace(made, batch=f"{made.batch} of {made.run}")

    return [(StreamWriter, "_identity", identity)]


def commits_as_the_same_run_for_ever() -> list[Replacement]:
    plain = StreamWriter._identity
    return [(StreamWriter, "_identity", lambda *arguments: replace(plain(*arguments), run=""))]


def takes_the_first_task_for_all() -> list[Replacement]:
    plain = StreamWriter._identity

    def identity(self: StreamWriter, tasks: Any, batch_id: int) -> Any:
        return plain(self, tasks[:1], int(tasks[0].batch_id))

    return [(StreamWriter, "_identity", identity)]


def begins_anew_to_commit_and_to_abort() -> list[Replacement]:
    return [(source, "SINK_WORKER", "no such module")]


def lets_an_abort_raise() -> list[Replacement]:
    def give_up(settings: Any, transaction: Any) -> None:
        with writer.open_store_of(settings) as store:
            store.abort(transaction)

    return [(stream_writer, "give_up", give_up)]


def leaves_the_blocks_of_an_aborted_batch() -> list[Replacement]:
    return [(stream_writer, "give_up", lambda settings, transaction: None)]


def empties_the_streams_that_get_rows_alone() -> list[Replacement]:
    return [(writer, "check_overwrite", lambda *_: None), (stream_writer, "check_overwrite", lambda *_: None)]


def reads_by_the_filters_that_a_consumer_has_now() -> list[Replacement]:
    from datasource.stream_source import StreamSource

    plain = StreamSource._decode

    def decode(self: Any, offset: Any) -> Any:
        return {name: replace(one, filters=self._reader.filters(name)) for name, one in plain(self, offset).items()}

    return [(StreamSource, "_decode", decode)]


def forgets_the_filters_of_a_plan() -> list[Replacement]:
    plain = stream_offsets._decoded
    return [(stream_offsets, "_decoded", lambda *arguments: replace(plain(*arguments), filters=()))]


def begins_a_first_batch_where_the_stream_ends_by_now() -> list[Replacement]:
    plain = stream_offsets._decoded
    return [(stream_offsets, "_decoded", lambda *arguments: replace(plain(*arguments), begin=None))]


def replays_up_to_the_newest_message() -> list[Replacement]:
    def to_the_end(state: Any, name: str, first: int, until: Any) -> tuple[int, int]:
        return first, state.stream(name).next_sequence

    return [(stream_source, "_range", to_the_end)]


def reads_the_last_message_of_a_batch_again() -> list[Replacement]:
    plain = stream_source._range
    return [(stream_source, "_range", lambda state, name, first, until: plain(state, name, max(1, first - 1), until))]


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    mutant.__name__: mutant
    for mutant in (
        takes_whatever_has_a_known_number_for_a_replay,
        goes_by_the_count_of_messages_alone,
        counts_the_order_of_messages_as_content,
        answers_that_a_batch_is_stored_and_fences_nobody,
        lets_a_fenced_run_back_by_an_old_batch,
        numbers_batches_by_run,
        commits_as_the_same_run_for_ever,
        takes_the_first_task_for_all,
        begins_anew_to_commit_and_to_abort,
        lets_an_abort_raise,
        leaves_the_blocks_of_an_aborted_batch,
        empties_the_streams_that_get_rows_alone,
        reads_by_the_filters_that_a_consumer_has_now,
        forgets_the_filters_of_a_plan,
        begins_a_first_batch_where_the_stream_ends_by_now,
        replays_up_to_the_newest_message,
        reads_the_last_message_of_a_batch_again,
    )
}

made = maker_of(MUTANTS)
