"""NATS JetStream's file store, versions 2.9 to 2.15, read in place."""

from storage_core.foreign.nats.store import NatsStore

__all__ = ["NatsStore"]
