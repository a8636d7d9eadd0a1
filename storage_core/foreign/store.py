"""Stores of other servers, read in place and never written: opened, planned on the driver, read on executors."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import pyarrow as pa

from storage_core.errors import NotAStoreError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.nats.directory import holds_streams
from storage_core.foreign.nats.reading import OpenedSlice
from storage_core.foreign.nats.reading import digest_slice as digest_nats_slice
from storage_core.foreign.nats.reading import open_slices as open_nats_slices
from storage_core.foreign.nats.reading import read_slice as read_nats_slice
from storage_core.foreign.nats.store import LAYOUT as NATS_LAYOUT
from storage_core.foreign.nats.store import NatsStore
from storage_core.foreign.slices import ForeignDamage, ForeignSlice
from storage_core.foreign.stan.directory import holds_channels
from storage_core.foreign.stan.reading import digest_slice as digest_stan_slice
from storage_core.foreign.stan.reading import read_slice as read_stan_slice
from storage_core.foreign.stan.store import LAYOUT as STAN_LAYOUT
from storage_core.foreign.stan.store import StanStore
from storage_core.foreign.union import DigestSlice, Examined, UnionSlice, examine, read_union
from storage_core.paths import is_in_object_store

LAYOUTS = (NATS_LAYOUT, STAN_LAYOUT)
_READERS = {NATS_LAYOUT: read_nats_slice, STAN_LAYOUT: read_stan_slice}
_DIGESTERS: dict[str, DigestSlice] = {NATS_LAYOUT: digest_nats_slice, STAN_LAYOUT: digest_stan_slice}
ForeignStore: TypeAlias = NatsStore | StanStore  # what both can do: copies.py


def open_foreign(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    layout: str = NATS_LAYOUT,
    account: str | None = None,
    files: Files = OS_FILES,
    *,
    truncate_bad_eof: bool = False,
    no_crc: bool = False,
    encryption_key: str | Sequence[str] | None = None,
) -> ForeignStore:
    """Return the store of another server that lies at or below the paths.

    For layout=nats `account` leaves only the streams of that account, and `encryption_key` is the key in the server's
    configuration, for streams that are encrypted; several, or a text of several lines: the key of now and former ones.
    For layout=stan `truncate_bad_eof` reads past an unexpected end of a file, and `no_crc` serves messages whose
    checksum fails; both are reported as damage. Raises NotAStoreError, NotFoundError for an account that is not there,
    ValueError for a layout that is not known or has not what is asked for.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r}: foreign stores are {', '.join(LAYOUTS)}")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not listed:
        raise ValueError("path: at least one is needed")
    address = next((path for path in listed if "://" in str(path)), None)
    if address is not None:
        raise NotAStoreError(
            f"{address} is an address; jstream reads the files of a server: name its store_dir, or a folder in it. "
            "`jstream mirror` brings over streams of a server that runs"
        )
    if layout == STAN_LAYOUT:
        if account is not None:
            raise ValueError(f"account: layout={STAN_LAYOUT} has no accounts")
        if encryption_key is not None:
            raise ValueError(f"encryption_key: layout={STAN_LAYOUT} is not decrypted")
        return StanStore(listed, truncate_bad_eof, no_crc, files)
    if truncate_bad_eof or no_crc:
        raise ValueError(f"truncate_bad_eof, no_crc: they are for layout={STAN_LAYOUT}, {layout} needs neither")
    return NatsStore(listed, account, files, encryption_key)


def recognise_foreign(path: str | os.PathLike[str]) -> str | None:
    """Return the layout of the foreign store at or just below the path, None where none is seen.

    For the advice of an error: it looks into a few hundred directories at most, and never raises.
    """
    if is_in_object_store(path):
        return None
    if holds_streams(path, OS_FILES):
        return NATS_LAYOUT
    return STAN_LAYOUT if holds_channels(path, OS_FILES) else None


@dataclass(frozen=True, slots=True)
class OpenedPart:
    """A slice that is ready to be read."""

    part: ForeignSlice
    files: Files
    opened: OpenedSlice | None  # layout=nats, of one copy

    def read(
        self, columns: Sequence[str], on_damage: Callable[[ForeignDamage], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages in schema.read_schema(columns), ascending by sequence, 3 MiB a batch.

        Every message is checked by its checksum and never served if that fails, unless the part says `no_crc`. Damage
        goes to `on_damage`, and reading goes on without it; without `on_damage`, damage that cost messages or may have
        raises DataLossError, which names stream, file, offset and sequences, before the first batch (layout=stan: of
        the 16 MiB of the file that it is in). So does what copies have differently without a majority.
        """
        part = self.part
        if self.opened is not None:
            return self.opened.read(columns, on_damage)
        if isinstance(part, UnionSlice):
            readers = _READERS[part.layout], _DIGESTERS[part.layout]
            return read_union(part, columns, on_damage, self.files, *readers)
        return _READERS[part.layout](part, columns, on_damage, self.files)


def open_foreign_slices(parts: Sequence[ForeignSlice], files: Files = OS_FILES) -> Iterator[OpenedPart]:
    """Yield the slices in their order, ready to be read.

    Blocks of few long messages are read ahead, up to 64 MiB of them, since their checksums cost less together.
    """
    for own, some in groupby(parts, lambda part: part.layout == NATS_LAYOUT and not isinstance(part, UnionSlice)):
        if own:
            yield from (OpenedPart(opened.part, files, opened) for opened in open_nats_slices(list(some), files))
        else:
            yield from (OpenedPart(part, files, None) for part in some)


def read_foreign_slice(
    part: ForeignSlice,
    columns: Sequence[str],
    on_damage: Callable[[ForeignDamage], None] | None = None,
    files: Files = OS_FILES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one slice: see OpenedPart.read()."""
    for opened in open_foreign_slices([part], files):
        yield from opened.read(columns, on_damage)


def examine_foreign_slice(part: UnionSlice, files: Files = OS_FILES) -> Examined:
    """Return what the copies of a stream have in one of the ranges of `side_by_side`, and what their vote is."""
    return examine(part, _DIGESTERS[part.layout], files)
