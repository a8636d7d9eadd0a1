"""NATS Streaming's (STAN) file store, read in place."""

from storage_core.foreign.stan.store import StanStore

__all__ = ["StanStore"]
