"""The rule that a store of STAN is not read past an unexpected end twice in a row.

The option cuts off what may be the end of a longer damage, so the server refuses it at two starts after each other,
and so does an import: after one that used it, the next one has to do without, or be the same import, resumed. The
server keeps that in a file of the store. A source is never written here, so the importing store remembers it, by
cluster id and real path (storage_core/store/imports/importing.py).

Source: nats-streaming-server, stores/filestore.go (`NewFileStore`).
"""

from dataclasses import dataclass

from storage_core.errors import RequirementError


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The last import from one store."""

    cluster_id: str  # "" if the store's server.dat does not tell
    path: str  # real path of the store
    import_id: str  # names one import, the same when it is resumed
    truncate_bad_eof: bool


def check_use(last: StoreUse | None, now: StoreUse) -> None:
    """Raise RequirementError if the import before `now` from the same store has read past an unexpected end, too."""
    if last is None or not (last.truncate_bad_eof and now.truncate_bad_eof) or last.import_id == now.import_id:
        return
    raise RequirementError(
        f"--truncate-bad-eof was used for the last import from {now.path} (cluster {now.cluster_id!r}, import "
        f"{last.import_id!r}), and is refused twice in a row: look at what that import reported, then import without "
        "it; or resume that import"
    )
