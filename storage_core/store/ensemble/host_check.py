"""Which host writes a store: moving it is an entry of its log."""

from collections.abc import Sequence

from storage_core.errors import OtherHostError
from storage_core.metadata.commands import TakeOver
from storage_core.metadata.state import StoreState
from storage_core.store import lock_domain
from storage_core.store.environment import Environment
from storage_core.store.volume.volumes import Volume


def check_host(
    state: StoreState, volumes: Sequence[Volume], label: str, env: Environment, take_over: bool = False
) -> TakeOver | None:
    """Return what moves the store to this host; None if it is written from here already.

    Raises OtherHostError if that takes a decision, and `take_over` does not say that it was made.
    """
    if all(volume.is_remote for volume in volumes):
        return None  # it is written from everywhere
    domain = env.lock_domain()
    if lock_domain.is_same(state.lock_domain, domain):
        return None
    import socket  # a store that stays where it is does without it

    present = [volume.path for volume in volumes if volume.identity is not None]
    domain = lock_domain.of_volumes(domain, present, env.file_system)
    is_restarted = lock_domain.is_next_boot(state.lock_domain, domain)
    if not is_restarted and not take_over:
        raise OtherHostError(label, state.host, socket.gethostname())
    return TakeOver(domain, socket.gethostname(), "the host was restarted" if is_restarted else "")
