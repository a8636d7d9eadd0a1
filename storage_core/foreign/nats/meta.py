"""Name and configuration of a stream: meta.inf with its checksum in meta.sum, opened with meta.key if it is encrypted.

The name is part of the key of every checksum in the stream, so it has to be the true one. Where the checksum of
meta.inf does not hold, or there is no meta.inf, the name that it claims and the name of the directory are tried on
index.db and the blocks: a checksum that holds under a name proves it. The messages can then be read, and the
configuration counts as unknown: what its limits were, nobody can tell.

Source: nats-server, server/filestore.go (`writeStreamMeta`), server/jetstream.go (`EnableJetStream`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_core.errors import CorruptionError, StorageError, UnsupportedVersionError
from storage_core.file_kinds import NATS_INDEX, NATS_KEY, NATS_META, NATS_SUM, FileKind
from storage_core.files import Files
from storage_core.foreign.nats.block import BlockFile, read_block, read_file
from storage_core.foreign.nats.encryption import Seed, derive_key, open_key_file
from storage_core.foreign.nats.index import highwayhash_of, index_checksum_holds
from storage_core.foreign.nats.record import block_key
from storage_core.foreign.nats.scan import scan_block
from storage_core.os_errors import raise_if_of_process

META_FILE, META_SUM_FILE, META_KEY_FILE = "meta.inf", "meta.sum", "meta.key"
INDEX_FILE = "index.db"
PROOF_BLOCK_COUNT = 8  # blocks that are asked whether a name is theirs
PROOF_SIZE = 256 << 10  # bytes of each
DEFAULT_ACCOUNT = "$G"


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The encryption keys of a server's configuration, for one account: the one of now, and former ones."""

    keys: tuple[str, ...] = field(repr=False)
    account: str = DEFAULT_ACCOUNT

    def derive(self, context: str) -> tuple[bytes, ...]:
        return tuple(derive_key(key, self.account, context) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Meta:
    """What meta.inf says, as far as it can be believed."""

    name: str
    config: dict[str, Any]  # {"name": name} alone if it cannot be believed
    seed: Seed | None = None  # opens index.db
    notes: tuple[str, ...] = ()  # what is wrong with it


def load_meta(
    place: Path, names: Sequence[str], key: ServerKey | None, blocks: Callable[[str], Sequence[BlockFile]], files: Files
) -> Meta:
    """Return name and configuration of the stream in the directory `place`, which has `names` in it.

    `blocks` returns the block files as they are opened under a name. Raises UnsupportedVersionError if the stream is
    encrypted and there is no key, CorruptionError if its name cannot be known.
    """
    if META_KEY_FILE in names and key is None:
        raise UnsupportedVersionError(
            f"{place} is encrypted ({META_KEY_FILE} lies beside {META_FILE}): the key in the server's configuration "
            "reads it, with option encryptionKey"
        )
    seed, claimed = None, ""
    try:
        content = _read(place, META_FILE, NATS_META, names, files)
        plain = content
        if META_KEY_FILE in names and key is not None:
            seed = _open_key(place, names, key, files)
            plain = seed.open_box(content, str(place / META_FILE))
        config = decode_config(plain, "name", str(place / META_FILE))
        claimed = config["name"]
        _check_sum(place, names, content, claimed, files)
    except CorruptionError as error:
        for name in dict.fromkeys((claimed, place.name)):
            if name and _is_proven(name, blocks(name), seed is not None or META_KEY_FILE not in names, files):
                return Meta(name, {"name": name}, seed, (str(error),))
        raise
    if claimed != place.name and not _is_proven(claimed, blocks(claimed), True, files):
        if _is_proven(place.name, blocks(place.name), META_KEY_FILE not in names, files):
            note = f"{place / META_FILE} is that of stream {claimed!r}, the blocks are those of {place.name!r}"
            return Meta(place.name, {"name": place.name}, None, (note,))
    return Meta(claimed, config, seed)


def decode_config(content: bytes, name_field: str, name: str) -> dict[str, Any]:
    """Return the JSON object of a stream or consumer; `name_field` must be text. Raises CorruptionError."""
    try:
        config = json.loads(content)
        value = config[name_field]
        if not isinstance(value, str) or not value:
            raise ValueError(name_field)
        json.dumps(config, ensure_ascii=False).encode()  # halves of characters, which no server writes, go nowhere
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(f"{name} is not the JSON object of a stream: {error}") from error
    return dict(config)


def checksum_text(content: bytes, identity: str) -> str:
    """Return what a meta.sum holds for the content of its meta.inf."""
    return highwayhash_of(content, identity).to_bytes(8, "little").hex()


def _read(place: Path, file: str, kind: FileKind, names: Sequence[str], files: Files) -> bytes:
    if file not in names:
        raise CorruptionError(f"{place} has no {file}")
    try:
        return read_file(place / file, kind, files)
    except (OSError, StorageError) as error:
        raise_if_of_process(error)
        raise CorruptionError(f"{place / file} cannot be read: {error}") from error


def _open_key(place: Path, names: Sequence[str], key: ServerKey, files: Files) -> Seed:
    content = _read(place, META_KEY_FILE, NATS_KEY, names, files)
    return open_key_file(key.derive(place.name), content, str(place / META_KEY_FILE))


def _check_sum(place: Path, names: Sequence[str], content: bytes, identity: str, files: Files) -> None:
    stored = _read(place, META_SUM_FILE, NATS_SUM, names, files).strip().decode("ascii", "backslashreplace")
    actual = checksum_text(content, identity)
    if stored != actual:
        raise CorruptionError(
            f"{place / META_FILE}: checksum is {stored}, the content has {actual} for a stream named {identity!r}"
        )


def _is_proven(name: str, blocks: Sequence[BlockFile], is_open: bool, files: Files) -> bool:
    """Return whether a checksum of the stream holds under the name.

    That of index.db covers its encrypted form: it says nothing about the key, which has to open a record unless the
    stream `is_open`.
    """
    if is_open and blocks and _holds_index(Path(blocks[0].path).with_name(INDEX_FILE), name, files):
        return True
    return any(_holds_record(block, name, files) for block in blocks[:PROOF_BLOCK_COUNT] if block.size)


def _holds_index(path: Path, name: str, files: Files) -> bool:
    try:
        return index_checksum_holds(read_file(path, NATS_INDEX, files), name)
    except (OSError, StorageError) as error:
        raise_if_of_process(error)
        return False


def _holds_record(block: BlockFile, name: str, files: Files) -> bool:
    try:
        record_key = block_key(name, block.block_index)
        data = read_block(block.path, files, block.key, record_key).data
    except (OSError, StorageError) as error:
        raise_if_of_process(error)
        return False
    return len(scan_block(data.slice(0, min(data.size, PROOF_SIZE)), record_key).records) > 0
