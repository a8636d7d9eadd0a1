"""Stores of other servers, read in place: NATS JetStream and NATS Streaming (STAN)."""

from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.slices import ForeignDamage, ForeignSlice, ForeignStream
from storage_core.foreign.store import (
    LAYOUTS,
    ForeignStore,
    OpenedPart,
    open_foreign,
    open_foreign_slices,
    read_foreign_slice,
    recognise_foreign,
)

__all__ = [
    "LAYOUTS",
    "ForeignConsumer",
    "ForeignDamage",
    "ForeignSlice",
    "ForeignStore",
    "ForeignStream",
    "OpenedPart",
    "open_foreign",
    "open_foreign_slices",
    "read_foreign_slice",
    "recognise_foreign",
]
