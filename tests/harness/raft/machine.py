"""The state machine of the simulated nodes: a running digest of everything applied, and the members.

Payloads are text, so that a trace can be read: `open TERM`, `set NUMBER`, `members KIND NODE`.
"""

from dataclasses import dataclass
from hashlib import blake2b

from storage_core.raft.entry import Entry
from storage_core.raft.membership import ChangeKind, Membership, MembershipChange
from storage_core.raft.messages import Position, Snapshot

MEMBERS = b"members "


def encode_change(change: MembershipChange) -> bytes:
    return MEMBERS + f"{change.kind.name} {change.node.decode()}".encode()


def decode_change(payload: bytes) -> MembershipChange | None:
    if not payload.startswith(MEMBERS):
        return None
    kind, node = payload[len(MEMBERS) :].split()
    return MembershipChange(ChangeKind[kind.decode()], node)


def changes_members(entry: Entry) -> bool:
    return entry.payload.startswith(MEMBERS)


@dataclass(frozen=True, slots=True)
class MachineState:
    """As of `position`, exactly."""

    position: Position
    digest: bytes
    membership: Membership

    def after(self, entry: Entry) -> "MachineState":
        digest = blake2b(self.digest + entry.payload, digest_size=8).digest()
        change = decode_change(entry.payload)
        membership = change.applied_to(self.membership) if change else self.membership
        return MachineState(Position.of(entry), digest, membership)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.position, self.membership, self.digest)


def restored(snapshot: Snapshot) -> MachineState:
    return MachineState(snapshot.position, snapshot.data, snapshot.membership)
