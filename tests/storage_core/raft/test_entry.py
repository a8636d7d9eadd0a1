"""Entries form a chain: equal ends mean equal logs."""

from hypothesis import given
from hypothesis import strategies as st

from storage_core.raft.entry import CHAIN_START, Entry, chain_hash, make_entry

parts = st.tuples(
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=30),
)


def test_the_chain_is_what_the_format_document_says() -> None:
    """BLAKE2b-128, personalised, over the chain before, index, term, history and payload: a frozen value."""
    assert chain_hash(CHAIN_START, 1, 2, b"history.", b"payload").hex() == FIRST


FIRST = "9d02ba45592ec6ce033b1dcf9bc7cb43"


@given(st.binary(min_size=16, max_size=16), parts, parts)
def test_any_other_part_is_another_chain(before: bytes, one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (chain_hash(before, *one) == chain_hash(before, *other)) == (one == other)


@given(st.lists(parts, min_size=2, max_size=5), st.data())
def test_an_entry_follows_its_predecessor_only(log: list[tuple], data: st.DataObject) -> None:  # type: ignore[type-arg]
    entries: list[Entry] = []
    for part in log:
        entries.append(make_entry(entries[-1].chain if entries else CHAIN_START, *part))
    assert entries[0].follows(CHAIN_START)
    at = data.draw(st.integers(1, len(entries) - 1))
    assert entries[at].follows(entries[at - 1].chain)
    skipped = entries[at - 2].chain if at > 1 else CHAIN_START
    assert not entries[at].follows(skipped), "an entry in between is missing"
