"""Subject sets of a stream: which distinct sets of subjects its blocks have, each kept once.

A row of the manifest points into them: its `subject_set` minus 1 is a position, 0 says that the footer must be asked.
"""

import numpy as np

from storage_core.sequences import distinct
from storage_core.subjects import is_literal, matches

SUBJECT_SET_COUNT_MAX = 1024  # sets a stream keeps; blocks beyond are not summarised in the manifest
Sets = tuple[tuple[str, ...], ...]


def merged(have: Sets, new: Sets) -> tuple[Sets, np.ndarray]:
    """Return the sets with new ones added, and where position i + 1 of `new` is now (0 stays 0; no room is 0)."""
    places = {subject_set: position + 1 for position, subject_set in enumerate(have)}
    remap = np.zeros(len(new) + 1, "<i4")
    for position, subjects in enumerate(new):
        if subjects not in places and len(places) < SUBJECT_SET_COUNT_MAX:
            places[subjects] = len(places) + 1
        remap[position + 1] = places.get(subjects, 0)
    return tuple(places), remap


def without_unused(sets: Sets, rows: np.ndarray) -> tuple[Sets, np.ndarray]:
    """Return the sets that rows point into, and for each row where its own is now; rows of BLOCK_DTYPE."""
    used = distinct(rows["subject_set"])
    used = used[used > 0]
    places = np.zeros(len(sets) + 1, "<i4")
    places[used] = np.arange(1, len(used) + 1)
    return tuple(sets[at - 1] for at in used.tolist()), places[rows["subject_set"]]


def rows_that_may_match(filters: tuple[str, ...], sets: Sets, rows: np.ndarray) -> np.ndarray:
    """Return which of the rows of BLOCK_DTYPE may have a message that any of the filters takes."""
    may_match = np.array([True, *(_any_match(filters, subjects) for subjects in sets)])  # 0: not summarised
    taken: np.ndarray = may_match[rows["subject_set"]]
    return taken


def _any_match(filters: tuple[str, ...], subjects: tuple[str, ...]) -> bool:
    have = set(subjects)
    return any(
        subject_filter in have
        if is_literal(subject_filter)
        else any(matches(subject_filter, subject) for subject in subjects)
        for subject_filter in filters
    )
