"""The rule that a store of STAN is not read past an unexpected end twice in a row.

The option cuts off what may be the end of a longer damage, so the server refuses it at two starts after each other,
and so does an import: after one that used it, the next one has to do without, or be the same import, resumed. The
server keeps that in a file of the store. A source is never written here, so an event of the importing store has it, by
cluster id and real path.

Source: nats-streaming-server, stores/filestore.go (`NewFileStore`).
"""

import json
from dataclasses import asdict, dataclass

from storage_core.errors import RequirementError
from storage_core.metadata.commands import Event
from storage_core.metadata.state import StoreState


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The last import from one store."""

    cluster_id: str  # "" if the store's server.dat does not tell
    path: str  # real path of the store
    import_id: str  # names one import, the same when it is resumed
    truncate_bad_eof: bool

    def event(self) -> Event:
        cut = ", with --truncate-bad-eof" if self.truncate_bad_eof else ""
        return Event(
            "import_begun",
            after=json.dumps(asdict(self)),
            reason=f"from {self.path} (cluster {self.cluster_id!r}){cut}",
        )


def check_use(last: StoreUse | None, now: StoreUse) -> None:
    """Raise RequirementError if the import before `now` from the same store has read past an unexpected end, too."""
    if last is None or not (last.truncate_bad_eof and now.truncate_bad_eof) or last.import_id == now.import_id:
        return
    raise RequirementError(
        f"--truncate-bad-eof was used for the last import from {now.path} (cluster {now.cluster_id!r}, import "
        f"{last.import_id!r}), and is refused twice in a row: look at what that import reported, then import without "
        "it; or resume that import"
    )


def last_use(state: StoreState, now: StoreUse) -> StoreUse | None:
    """Return the last import from the same store, None if none is remembered."""
    for event in reversed(state.events):
        if event.kind != "import_begun":
            continue
        try:
            use = StoreUse(**json.loads(event.after))
        except (ValueError, TypeError):
            continue
        if (use.cluster_id, use.path) == (now.cluster_id, now.path):
            return use
    return None
