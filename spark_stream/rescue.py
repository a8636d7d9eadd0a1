"""Rescue from Python: stores of other servers opened, compared copy by copy, drawn, and imported.

    from pyspark_jstream import Store, rescue

    nodes = rescue.open(["n1", "n2", "n3"])
    rescue.picture(rescue.compare(nodes, "ORDERS")).save("drift.html")
    with Store.open_or_create("shop") as store:
        rescue.import_streams(store, nodes)

Nothing here writes to the source.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_stream import pictures
from storage_core import notebook
from storage_core.comparison import Drift, State
from storage_core.foreign import LAYOUTS, ForeignStore, open_foreign, recognise_foreign
from storage_core.foreign import side_by_side as foreign_side_by_side
from storage_core.foreign.stan.store import StanStore
from storage_core.metadata.reconcile import FAIL, check_policy
from storage_core.paths import Paths, resolve_paths
from storage_core.store.ingest import from_server
from storage_core.store.ingest.from_server import ImportRequest
from storage_core.store.store import Store

__all__ = ["Drift", "ForeignStore", "Picture", "State", "compare", "import_streams", "open", "picture"]

Progress = Callable[[int, int], None]  # gets what is done, and how much there is


def open(paths: Paths, layout: str = "", **options: Any) -> ForeignStore:
    """Open what a server of NATS JetStream or NATS Streaming left behind: the directories of its nodes.

    `layout` is `nats` or `stan`; without it, the directories show which. `options`: `account`, `encryption_key`,
    `truncate_bad_eof`, `no_crc`, as the options of the data source. Raises NotAStoreError, CorruptionError.
    """
    resolved = resolve_paths(paths)
    recognised = (recognise_foreign(path) for path in resolved)
    return open_foreign(resolved, layout or next(filter(None, recognised), LAYOUTS[0]), **options)


def compare(store: Store | ForeignStore, stream: str, progress: Progress | None = None) -> Drift:
    """Compare all copies of a stream, message by message; reads every byte of them. Raises NotFoundError."""
    if isinstance(store, Store):
        return store.compare(stream, progress)
    _check_opened(store, "store")
    return foreign_side_by_side.compare(store, stream, progress)


def import_streams(
    store: Store,
    source: ForeignStore,
    streams: str | Sequence[str] = (),
    as_names: Mapping[str, str] | None = None,
    num_replicas: int | None = None,
    on_data_loss: str = FAIL,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Import streams with their sequences, gaps and consumers; return a report. Run again, it adds nothing twice.

    `streams`: names and globs, without any all of them. `as_names`: what to call them here. `on_data_loss`: "fail"
    raises DataLossError at messages that no copy has, "continue" leaves them out. Raises AlreadyExistsError,
    NotFoundError.
    """
    if not isinstance(store, Store):
        raise ValueError(f"store: {type(store).__name__} is no Store; open it with Store.open(PATH)")
    _check_opened(source, "source")
    chosen = (streams,) if isinstance(streams, str) else tuple(streams)
    check_policy("on_data_loss", on_data_loss)
    truncates = isinstance(source, StanStore) and source.truncate_bad_eof
    request = ImportRequest(chosen, dict(as_names or {}), num_replicas, on_data_loss, truncates)
    return notebook.Info(from_server.import_streams(store, source, request, progress), notebook.import_html)


def picture(drift: Drift | Sequence[Drift]) -> "Picture":
    """Return the picture of one comparison or of several: a notebook shows it, `save` writes it."""
    return Picture([drift] if isinstance(drift, Drift) else drift)


class Picture:
    """Which copy has which message, drawn."""

    def __init__(self, drifts: Sequence[Drift]) -> None:
        self._drifts = list(drifts)

    def _repr_html_(self) -> str:
        return pictures.replica_map_html(self._drifts)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write it as a page, `.html`. Raises ValueError for any other suffix."""
        path = Path(file)
        if path.suffix.lower() != pictures.SUFFIX:
            raise ValueError(f"{path}: a picture is a page, so its name has to end in {pictures.SUFFIX}")
        path.write_text(pictures.replica_map_page(self._drifts), encoding="utf-8")


def _check_opened(source: object, name: str) -> None:
    if source is None or isinstance(source, (str, os.PathLike, Sequence, Store)):
        raise ValueError(f"{name}: {type(source).__name__} is no opened store; open it with rescue.open(PATH)")
