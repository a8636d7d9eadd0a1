"""The copies of a stream, as one look at all volumes shows them."""

from storage_core.metadata.state import StreamState
from storage_core.store.replicas.replicas import Replica
from storage_core.store.store import Store


def replica_states(store: Store, stream: StreamState) -> list[Replica]:
    """Return the copies of a stream in the order of its placement."""
    return store.survey().replicas(stream)
