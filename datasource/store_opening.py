"""The store at the paths of the options: opened, with advice where there is none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from datasource.settings import ReadSettings, StreamReadSettings, WriteSettings
from storage_core import Store
from storage_core.errors import NotAStoreError
from storage_core.paths import place

if TYPE_CHECKING:
    from storage_core.foreign import ForeignStore

Settings = ReadSettings | StreamReadSettings | WriteSettings


def open_store(
    paths: Sequence[str],
    lock_timeout_s: float,
    take_over: bool = False,
    storage_options: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> Store:
    """Return the jstream store; raises as `Store.open` does. One that is `read_only` recovers from a power loss.

    `take_over`: this host writes the store from now on. For the beginning of a read, a write or a query alone: one that
    goes on and is refused was taken over from, and would take the store back from its successor.
    """
    with _advising(paths):
        try:
            return Store.open(
                [place(path) for path in paths],
                read_only,
                lock_timeout_s=lock_timeout_s,
                take_over=take_over,
                storage_options=storage_options,
                recovers=read_only,
            )
        except NotAStoreError as error:
            from storage_core.foreign import recognise_foreign  # a third of all imports, and seldom needed

            for path in paths:
                layout = recognise_foreign(path)
                if layout is not None:
                    raise NotAStoreError(
                        f"{error}; a store of another server lies there: option layout={layout} reads it"
                    ) from error
            raise


def open_store_of(settings: Settings, take_over: bool = False) -> Store:
    """Return the jstream store that the options name; `take_over` as in `open_store`."""
    return open_store(settings.paths, settings.lock_timeout_s, take_over, settings.storage)


def open_for_reading(settings: Settings, take_over: bool = False) -> Store:
    """Return the same for reading alone: who plans a batch writes nothing."""
    if take_over:
        open_store_of(settings, take_over=True).close()
    return open_store(settings.paths, settings.lock_timeout_s, storage_options=settings.storage, read_only=True)


def open_foreign_store(settings: ReadSettings) -> "ForeignStore":
    """Return the store that another server wrote; raises as `open_foreign` does."""
    from storage_core.foreign import open_foreign

    with _advising(settings.paths):
        return open_foreign(
            [Path(path) for path in settings.paths],
            settings.layout,
            settings.account,
            truncate_bad_eof=settings.truncate_bad_eof,
            no_crc=settings.no_crc,
            encryption_key=settings.encryption_key,
        )


@contextmanager
def _advising(paths: Sequence[str]) -> Iterator[None]:
    # Spark gives us load(p) and load([p]) alike, so a comma within a path looks like one between two.
    try:
        yield
    except NotAStoreError as error:
        if len(paths) == 1:
            raise
        raise NotAStoreError(
            f"{error} (of {len(paths)} paths; commas separate them: if one holds a comma, write a JSON list, as in "
            """load('["/a,b"]'))"""
        ) from error
