"""jstream's storage: streams in block files, their metadata, and readers of foreign stores. Needs no Spark."""

from storage_core.metadata.config import StreamConfig
from storage_core.store.store import Store

__all__ = ["Store", "StreamConfig"]
