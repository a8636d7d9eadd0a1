"""Known mistakes in what a stream takes in and answers; `made(name)` makes one while its block runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from harness.mutants import Replacement, maker_of

from storage_core.store import contents
from storage_core.store.writing import appends, messages
from storage_core.store.writing.duplicates import MsgIdWindow


def counts_removed_messages_of_a_subject() -> list[Replacement]:
    plain = contents._column_counts

    def counts(store: Any, block: Any, row_count: int) -> list[tuple[str, int]]:
        return contents._footer_counts(store, block) or plain(store, block)

    return [(contents, "counts_in", counts)]


def looks_for_the_last_message_in_the_newest_block() -> list[Replacement]:
    plain = contents.last_sequence
    return [(contents, "last_sequence", lambda slices, subject, env: plain(slices[-1:], subject, env))]


def stores_its_own_time_with_all_rows() -> list[Replacement]:
    return [(messages, "_times", lambda given, now_ns, count: pa.array(np.full(count, now_ns, np.int64)))]


def forgets_the_msg_ids_of_other_appends() -> list[Replacement]:
    def seen(self: Any, state: Any, stream: Any, volumes: Any, hashes: np.ndarray, env: Any) -> np.ndarray:
        return np.zeros(len(hashes), bool)

    return [(MsgIdWindow, "seen", seen)]


def takes_other_rows_for_the_batch_that_is_stored() -> list[Replacement]:
    return [(appends, "combined", lambda parts: bytes(16))]


MUTANTS: dict[str, Callable[[], list[Replacement]]] = {
    mutant.__name__: mutant
    for mutant in (
        counts_removed_messages_of_a_subject,
        looks_for_the_last_message_in_the_newest_block,
        stores_its_own_time_with_all_rows,
        forgets_the_msg_ids_of_other_appends,
        takes_other_rows_for_the_batch_that_is_stored,
    )
}
made = maker_of(MUTANTS)
