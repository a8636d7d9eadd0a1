"""What a leader knows of one follower, and how much it may send there before it hears back.

    PROBE       where the logs part is not known: one message at a time, until an answer or a heartbeat's answer
    REPLICATE   the logs agree: messages follow each other unanswered, bounded by Inflight
    SNAPSHOT    the follower needs entries that are compacted away: nothing is sent until the snapshot has arrived

    PROBE -> REPLICATE      an append was accepted
    REPLICATE -> PROBE      an append was refused, or a message is known to be lost
    PROBE -> SNAPSHOT       a snapshot was sent
    SNAPSHOT -> PROBE       it failed, or has arrived and the leader's log begins behind it by now
    SNAPSHOT -> REPLICATE   the follower has accepted entries that the leader's log goes on from

Source: Raft paper, section 5.3; the three states are those of etcd/raft.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum


class Sending(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Inflight:
    """Appends that were sent and not answered, oldest first; bounded by number and by payload bytes."""

    def __init__(self, count_max: int, size_max: int) -> None:
        self._count_max, self._size_max = count_max, size_max
        self._sent: deque[tuple[int, int]] = deque()  # last index of a message, its payload bytes
        self._size = 0

    @property
    def count(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        """One message may go over the bound of bytes, so that an entry larger than it gets through."""
        return len(self._sent) >= self._count_max or self._size >= self._size_max

    def add(self, last_index: int, size: int) -> None:
        assert not self.is_full, (self._sent, self._size)
        self._sent.append((last_index, size))
        self._size += size

    def release_to(self, index: int) -> None:
        """Forget the messages whose entries all stand at or below `index`."""
        while self._sent and self._sent[0][0] <= index:
            self.release_oldest()

    def release_oldest(self) -> None:
        self._size -= self._sent.popleft()[1]

    def clear(self) -> None:
        self._sent.clear()
        self._size = 0


@dataclass(slots=True)
class Progress:
    """Invariant: counted <= match < next; every entry in [match + 1, next) was sent and may be lost."""

    next: int  # index of the entry to be sent next
    inflight: Inflight
    match: int = 0  # the follower has persisted the leader's log up to here, by its own word
    sending: Sending = Sending.PROBE
    counted: int = 0  # of this, what it said while verified; only that counts towards a commit
    verified: bool = False  # by its last word; that word may be an old one, so nothing but activity depends on it
    active: bool = False  # heard of since the last check of the quorum
    awaits_answer: bool = False  # PROBE: the one message is out
    snapshot_index: int = 0  # SNAPSHOT: of the one that was sent

    @property
    def is_paused(self) -> bool:
        """Return whether no append may be sent just now."""
        if self.sending is Sending.PROBE:
            return self.awaits_answer
        return self.sending is Sending.SNAPSHOT or self.inflight.is_full

    def probe(self) -> None:
        """Find out anew where the logs agree; `match` is known to be right."""
        snapshot_index = self.snapshot_index if self.sending is Sending.SNAPSHOT else 0
        self._enter(Sending.PROBE)
        self.next = max(self.match, snapshot_index) + 1

    def replicate(self) -> None:
        self._enter(Sending.REPLICATE)
        self.next = self.match + 1

    def sent(self, last_index: int, entry_count: int, size: int) -> None:
        """Note an append; `last_index` is that of its last entry."""
        if self.sending is Sending.PROBE:
            self.awaits_answer = True
        elif entry_count:
            self.next = last_index + 1
            self.inflight.add(last_index, size)

    def sent_snapshot(self, index: int) -> None:
        self._enter(Sending.SNAPSHOT)
        self.snapshot_index = index

    def snapshot_failed(self) -> None:
        self.snapshot_index = 0
        self.probe()

    def accepted(self, index: int, verified: bool) -> bool:
        """Note that the follower has everything up to `index`; return whether that is news."""
        self.awaits_answer = False
        if verified:
            self.counted = max(self.counted, index)
        self.next = max(self.next, index + 1)
        if index <= self.match:
            return False
        self.match = index
        self.inflight.release_to(index)
        return True

    def refused(self, before_index: int, next_index: int) -> bool:
        """Go back to `next_index`, because the follower lacks the entry `before_index`; False: that is old news."""
        if self.sending is Sending.REPLICATE:
            if before_index <= self.match:
                return False
            self.probe()
            return True
        if self.sending is Sending.SNAPSHOT or before_index != self.next - 1:
            return False
        if before_index <= self.match:
            self.match = self.counted = 0  # it has lost what it had, or this is an old message; asking again is safe
        self.next = max(min(before_index, next_index), self.match + 1)
        self.awaits_answer = False
        return True

    def answered_heartbeat(self) -> None:
        """Let one more message go: what was sent may be lost."""
        self.awaits_answer = False
        if self.sending is Sending.REPLICATE and self.inflight.is_full:
            self.inflight.release_oldest()

    def _enter(self, sending: Sending) -> None:
        self.sending = sending
        self.awaits_answer = False
        self.snapshot_index = 0
        self.inflight.clear()
