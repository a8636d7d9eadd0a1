"""Known mistakes of pipelines: batches under wrong identities, and upserts that take the wrong row.

Each is made in the real code by a `with` block.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from harness.mutants import Replacement, maker_of

from spark_stream.pipelines import sinks, tables
from spark_stream.pipelines.backfill import Wanted
from spark_stream.pipelines.identity import Identity


def numbers_all_batches_alike() -> list[Replacement]:
    return [(sinks, "append_to_stream", _under(lambda identity: replace(identity, number=1)))]


def gives_each_attempt_an_identity_of_its_own() -> list[Replacement]:
    attempts = count()
    return [(sinks, "append_to_stream", _under(lambda identity: replace(identity, app=f"app {next(attempts)}")))]


def takes_batches_with_other_rows_as_stored() -> list[Replacement]:
    return [(sinks, "_changed_batches", lambda pipeline: {"failOnChangedBatch": "false"})]


def stores_dead_letters_as_if_they_were_the_rows() -> list[Replacement]:
    return [(Identity, "of_dead_letters", lambda self: self)]


def names_backfills_by_their_pipeline_alone() -> list[Replacement]:
    return [(Wanted, "identity", lambda self, pipeline: Identity(f"jstream-etl/{pipeline}/backfill", 1))]


def _under(change: Callable[[Identity], Identity]) -> Callable[..., None]:
    plain = sinks.append_to_stream

    def append(rows: Any, volumes: Any, stream: str, subject: str, identity: Identity, options: Any) -> None:
        plain(rows, volumes, stream, subject, change(identity), options)

    return append


def upserts_what_is_older_than_the_table() -> list[Replacement]:
    return [(tables, "_is_newer", lambda order, by_sequence: "true")]


def upserts_nothing_that_has_no_order() -> list[Replacement]:
    return [(tables, "_is_newer", lambda order, by_sequence: f"here.{order} >= there.{order}")]


def upserts_without_regard_to_sequences() -> list[Replacement]:
    return [(tables, "_by_sequence", lambda rows, sink: False)]


def upserts_any_row_of_a_key() -> list[Replacement]:
    return [(tables, "newest", lambda rows, sink: rows.orderBy("sequence").dropDuplicates(list(sink.keys)))]


Mutants = dict[str, Callable[[], list[Replacement]]]


def _named(*mutants: Callable[[], list[Replacement]]) -> Mutants:
    return {mutant.__name__: mutant for mutant in mutants}


MUTANTS: Mutants = _named(
    numbers_all_batches_alike,
    gives_each_attempt_an_identity_of_its_own,
    takes_batches_with_other_rows_as_stored,
    stores_dead_letters_as_if_they_were_the_rows,
    names_backfills_by_their_pipeline_alone,
)
UPSERT_MUTANTS: Mutants = _named(
    upserts_what_is_older_than_the_table,
    upserts_nothing_that_has_no_order,
    upserts_without_regard_to_sequences,
    upserts_any_row_of_a_key,
)
made = maker_of({**MUTANTS, **UPSERT_MUTANTS})
