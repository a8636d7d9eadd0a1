"""Going on from what a process knows, by the records that others wrote behind it, without reading everything anew."""

from collections.abc import Sequence
from dataclasses import replace

from storage_core.raft.entry import Entry
from storage_core.store.ensemble.view import View, applied, with_entry
from storage_core.store.volume.log_contents import TailRead


def advance_view(known: View, looks: Sequence[TailRead]) -> View | None:
    """Return `known` moved on by what stands behind it on the volumes; None if that is not all there is to know.

    It is all if the logs hold the same entries, these go on from what is known, and the commit
    records are the same and name the last entry. Then everything that stands there is committed.
    """
    view = known
    for number, look in enumerate(looks):
        entries = [record for record in look.records if isinstance(record, Entry)]
        if number == 0:
            moved = _with_entries(view, entries)
            if moved is None:
                return None
            view = replace(moved, commit=look.commit)
        commit, end = look.commit, (look.commit.index, look.commit.chain)
        if commit != view.commit or (view.index, view.chain) != end:
            return None
        if entries and (entries[-1].index, entries[-1].chain) != end:
            return None
        terms = [view.term_seen, commit.term, *(record.term for record in look.records)]
        view = replace(view, term_seen=max(terms))
    return view


def _with_entries(view: View, entries: Sequence[Entry]) -> View | None:
    """Return the view after these entries; None if they do not go on from it."""
    for entry in entries:
        if entry.index <= view.index:
            continue
        if not entry.follows(view.chain):
            return None
        view = with_entry(view, applied(view.state, entry), entry)
    return view
