"""A view of the metadata: committed state, and where in the logs of the volumes it stands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage_core.errors import CorruptionError
from storage_core.frozen import replace
from storage_core.metadata import machine
from storage_core.metadata.command_invariants import are_appends_good
from storage_core.metadata.commands import decode_envelope
from storage_core.metadata.invariants import check_block_ids, check_state
from storage_core.metadata.state import StoreState, Streams, decode_state
from storage_core.raft.entry import CommitRecord, Entry
from storage_core.raft.snapshot_format import longer_trail
from storage_core.store.ensemble.merged_log import LogChain
from storage_core.store.volume.log_contents import LogPosition

RUN_SIZE_MAX = 1 << 20  # bytes of entries that are decoded before the first of them is applied


@dataclass(frozen=True, slots=True)
class View:
    """Committed state, and where it stands. Never changed; a process replaces its view by newer ones."""

    state: StoreState
    index: int
    term: int
    chain: bytes
    commit: CommitRecord | None  # None: committed by what a snapshot says
    # By volume: records at and after it have not been looked at. In object stores the volume's log ends there with
    # `index`: nothing but its records tells whether it lags, and one that does has no position.
    positions: Mapping[bytes, LogPosition]
    term_seen: int  # highest term that anything before the positions speaks of, votes included
    snapshot_index: int  # of the newest snapshot
    durable: Mapping[bytes, int]  # by volume: highest index known durable there
    snapshot_streams: Streams  # as of the newest snapshot
    trail: bytes  # chains of the newest entries, that at `index` is the last


def applied(state: StoreState, entry: Entry) -> StoreState:
    """Return the state after a committed entry; a refused command leaves it as it was. Raises CorruptionError."""
    return all_applied(state, [entry])


def all_applied(state: StoreState, entries: Sequence[Entry]) -> StoreState:
    """Return the state after committed entries. Raises CorruptionError, naming the one that is none of ours."""
    for run in _runs(entries):
        try:
            envelopes = []
            for entry in run:
                envelopes.append(decode_envelope(entry.payload))
            are_good = are_appends_good(envelopes)
            for entry, envelope in zip(run, envelopes, strict=True):
                state, _ = machine.apply(state, machine.Place(entry.index, entry.history), envelope, are_good)
        except CorruptionError as error:
            raise CorruptionError(f"entry {entry.index} of the metadata log: {error}", **error.fields) from error
    return state


def _runs(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the entries in runs that are looked at together, so that their commands take little memory."""
    start = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.payload)
        if size > RUN_SIZE_MAX:
            yield entries[start : at + 1]
            start, size = at + 1, 0
    if start < len(entries):
        yield entries[start:]


def with_entry(view: View, state: StoreState, entry: Entry) -> View:
    """Return the view with one entry more, after which the state is this."""
    trail = longer_trail(view.trail, entry.chain)
    return replace(view, state=state, index=entry.index, term=entry.term, chain=entry.chain, trail=trail)


def trail_of(log: LogChain) -> bytes:
    """Return the chains of the newest entries of a log."""
    trail = log.snapshot_body.trail if log.snapshot_body is not None else b""
    for entry in log.entries:
        trail = longer_trail(trail, entry.chain)
    return trail


def first_state(log: LogChain) -> StoreState:
    """Return the state that a log begins with: that of its snapshot. Raises CorruptionError."""
    if log.snapshot_body is None:
        return StoreState()
    state = decode_state(log.snapshot_body.state)
    check_state(state)
    return state


def replay(log: LogChain, state: StoreState | None = None) -> StoreState:
    """Return the state at the end of a log; `state`: that at its beginning. Raises CorruptionError."""
    state = first = first_state(log) if state is None else state
    state = all_applied(state, log.entries)
    if state.streams is not first.streams:
        check_block_ids(state)
    return state
