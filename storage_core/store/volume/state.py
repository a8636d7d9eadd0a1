"""The states of a volume: what people, events and JSON say of it, and what a session decides by."""

from enum import Enum


class VolumeState(str, Enum):
    """What a volume is to its store; as text the same word in every message, event and JSON."""

    CURRENT = "current"  # it has everything that is committed
    BEHIND = "behind"  # it lacks the newest entries, and catches up when it is written next
    DAMAGED = "damaged"  # what it has cannot be believed
    MISSING = "missing"  # there is none at its path, or nothing in it
    FOREIGN = "foreign"  # another volume, another instance of it, or one of another copy of the store
    ROLLED_BACK = "rolled_back"  # entries that were durable there are not there any more
    RETIRED = "retired"  # it failed, and does not count before it was verified

    def __str__(self) -> str:
        return self.value
