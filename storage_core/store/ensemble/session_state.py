"""What a session goes by: a record that is never changed, only swapped whole, and the commands that move it.

Whatever depends on entries that are not written yet is in the record, caches' updates as well: so a record that is put
back takes back all of it, and nothing outlives the attempt that made it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storage_core.frozen import replace
from storage_core.metadata import machine
from storage_core.metadata.commands import Envelope
from storage_core.metadata.state import StoreState
from storage_core.raft.entry import Entry
from storage_core.store.ensemble.process_cache import Leadership
from storage_core.store.ensemble.view import View


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command as the next entry of the log, and what it comes to."""

    envelope: Envelope
    before: StoreState
    state: StoreState  # after it
    result: machine.Result

    @property
    def changes_nothing(self) -> bool:
        """Return whether no entry is needed: it is refused, or was stored before and fences nobody."""
        if isinstance(self.result, machine.AppendDone) and self.result.already:
            return self.state is self.before
        return isinstance(self.result, machine.Refused)

    def outcome(self) -> machine.Outcome:
        """Return the result; raises what the command is refused with."""
        if isinstance(self.result, machine.Refused):
            self.result.raise_()
        return self.result


@dataclass(frozen=True, slots=True)
class SessionState:
    """All that a session goes by. Swapped whole: what could not be written is taken back by the record before it.

    Invariant: `voting` are voters of the view's state, and members.
    """

    view: View
    members: tuple[bytes, ...]  # volumes that entries are written to, in the order of the voters
    voting: frozenset[bytes]  # those of them that count
    retiring: Mapping[bytes, str] = field(default_factory=dict)  # volumes that failed, and why
    staged: tuple[Entry, ...] = ()  # made, applied to the view, and not written yet
    releases_space: bool = False  # what is staged makes room: it may use the reserves
    reserve_min: int = 0  # and has to leave so many bytes of each
    candidacy: Leadership | None = None  # under which it is made; its vote may still have to be written
    cache_updates: tuple[Callable[[], None], ...] = ()  # due when what is staged is committed
    undo_steps: tuple[Callable[[], None], ...] = ()  # due when it is taken back, and is nowhere
    follow_ups: tuple[Callable[[], object], ...] = ()  # commands for a round of their own, which may fail

    def without(self, volume_id: bytes) -> "SessionState":
        """Return the record of a session that writes this volume no more."""
        members = tuple(member for member in self.members if member != volume_id)
        return replace(self, members=members, voting=self.voting - {volume_id})

    def back_to(self, before: "SessionState") -> "SessionState":
        """Return what was before, but for volumes that were left out since: who counts is decided by its voters."""
        members = tuple(member for member in before.members if member in self.members)
        known = self.view.positions
        positions = {volume_id: at for volume_id, at in before.view.positions.items() if volume_id in known}
        return replace(
            before,
            view=replace(before.view, positions=positions),
            members=members,
            voting=before.voting.intersection(members),
            retiring=self.retiring,
        )

    def on_top_of(self, base: "SessionState") -> "SessionState":
        """Return the same staged entries after `base` wrote something before the first of them: a vote."""
        members = tuple(member for member in self.members if member in base.members)
        return replace(
            self,
            view=replace(self.view, positions=base.view.positions, term_seen=base.view.term_seen),
            members=members,
            voting=self.voting.intersection(members),
            retiring=base.retiring,
        )
