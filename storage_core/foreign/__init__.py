"""Stores of other servers, read in place: NATS JetStream and NATS Streaming (STAN)."""

from storage_core.foreign.slices import ForeignDamage, ForeignSlice
from storage_core.foreign.store import LAYOUTS, ForeignStore, open_foreign, read_foreign_slice, recognise_foreign

__all__ = [
    "LAYOUTS",
    "ForeignDamage",
    "ForeignSlice",
    "ForeignStore",
    "open_foreign",
    "read_foreign_slice",
    "recognise_foreign",
]
