"""Checksums redone: what somebody writes who knows the format of a file.

Each seal walks a mutated file by whatever lengths it now declares and makes every checksum on the way true again.
`content` asks for a change of the document inside, where there is one: it is taken apart, changed and put back.
"""

import hashlib
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import Struct, error, pack_into, unpack_from
from typing import Any

from crc32c import crc32c
from harness.fuzz.mutations import mutate_tree, packed, unpacked

from storage_core.block.format import digest_of
from storage_core.foreign.nats.highwayhash import Key, highwayhash64
from storage_core.foreign.nats.index import highwayhash_of
from storage_core.foreign.nats.meta import checksum_text
from storage_core.foreign.nats.record import HEADERS_BIT, block_key
from storage_core.raft.entry import chain_hash
from storage_core.raft.log_format import BATCHES_OFFSET, KIND_ENTRY, PAGE_SIZE
from storage_core.raft.snapshot_format import payload_digest

Seal = Callable[[bytes, Path, random.Random, bool], bytes]
RECORD_COUNT_MAX = 2000  # records of one file that are sealed
JSON_BOMBS = (  # below what such a file may have
    b'{"name":' + b"[" * 100_000,
    b'{"name":"X","Name":"X","a":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"name":"X","Name":"X","a":' + b"9" * 100_000 + b"}",
    b'{"name":"X","Name":"X","max_msgs":' + b"9" * 4000 + b',"max_age":1e999,"subjects":["\\ud800"]}',
    b'{"name":"X","Name":"X"' + b',"a":{"b":[]}' * 5000 + b"}",
    b'{"name":"X","Name":"X","subjects":[' + b"[]," * 50_000 + b"0]}",
)
_LOG_RECORD = Struct("<IIIIQQQ8s16s")
_COMMIT = Struct("<8sHHIQQQ16s")


# --- foreign files


def nats_block(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    import numpy as np

    sealed, at, starts, parts = bytearray(data), 0, [], []
    while at + 30 <= len(sealed) and len(starts) < RECORD_COUNT_MAX:
        size = unpack_from("<I", sealed, at)[0]
        end = at + (size & ~HEADERS_BIT)
        if end - at < 30 or end > len(sealed):
            break
        subject_end = at + 22 + unpack_from("<H", sealed, at + 20)[0]
        body = subject_end + (4 if size & HEADERS_BIT else 0)
        parts.append(bytes(sealed[at + 4 : at + 20] + sealed[at + 22 : subject_end] + sealed[body : end - 8]))
        starts.append(end - 8)
        at = end
    stream, number = path.parent.parent.name, path.stem
    if parts and number.isdigit():
        sizes = np.array([len(one) for one in parts], np.int64)
        hashes = _hashes(b"".join(parts), sizes, block_key(stream, int(number)))
        for place, one in zip(starts, hashes, strict=True):
            pack_into("<Q", sealed, place, one)
    return bytes(sealed)


def _hashes(data: bytes, sizes: Any, key: Key) -> list[int]:
    import numpy as np

    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    found: list[int] = highwayhash64(np.frombuffer(data, np.uint8), starts, sizes, key).tolist()
    return found


def nats_index(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    return data[:-8] + highwayhash_of(data[:-8], path.parent.parent.name).to_bytes(8, "little")


def nats_meta(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """The sum lies in a file beside it."""
    if content and rng.random() < 0.1:
        data = rng.choice(JSON_BOMBS)
    elif content:
        try:
            changed = mutate_tree(json.loads(data), rng)
            data = json.dumps(changed, default=lambda value: value.hex()).encode()
        except (ValueError, TypeError, RecursionError):
            data = rng.choice(JSON_BOMBS)
    name = path.parent.name
    identity = f"{path.parent.parent.parent.name}/{name}" if path.parent.parent.name == "obs" else name
    (path.parent / "meta.sum").write_text(checksum_text(data, identity))
    return data


def stan_records(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    sealed, at = bytearray(data), 4
    mask = 0xFFFFFFFF if path.name.startswith(("msgs", "server")) else 0xFFFFFF
    while at + 8 <= len(sealed):
        size = unpack_from("<I", sealed, at)[0] & mask
        if not size or at + 8 + size > len(sealed):
            break
        pack_into("<I", sealed, at + 4, zlib.crc32(sealed[at + 8 : at + 8 + size]))
        at += 8 + size
    return bytes(sealed)


def stan_index(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    sealed = bytearray(data)
    for at in range(4, len(sealed) - 31, 32):
        pack_into("<I", sealed, at + 28, zlib.crc32(sealed[at : at + 28]))
    return bytes(sealed)


# --- our own


def log_segment(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """All records that stand where one may; with `content` one entry is another one, and the chain goes on from it."""
    sealed = bytearray(data)
    for page in range(0, min(len(sealed) - PAGE_SIZE + 1, BATCHES_OFFSET), PAGE_SIZE):
        if any(sealed[page : page + PAGE_SIZE]):
            _seal_page(sealed, page)
    places = []
    at = BATCHES_OFFSET
    while at + _LOG_RECORD.size <= len(sealed) and len(places) < RECORD_COUNT_MAX:
        size, kind = unpack_from("<II", sealed, at + 4)
        if not 1 <= kind <= 3 or at + _LOG_RECORD.size + size > len(sealed):
            at = (at // PAGE_SIZE + 1) * PAGE_SIZE
            continue
        places.append((at, size, kind))
        at += _LOG_RECORD.size + size + -size % 8
    entries = [place for place in places if place[2] == KIND_ENTRY]
    changed = rng.choice(entries)[0] if content and entries else -1
    relinks = content or rng.random() < 0.5
    chain = bytes(sealed[88:104])  # of the entry that the segment follows
    chains: dict[int, bytes] = {}
    for at, size, kind in places:
        if kind == KIND_ENTRY:
            _, _, _, _, _, index, term, history, was = _LOG_RECORD.unpack_from(sealed, at)
            start = at + _LOG_RECORD.size
            if at == changed:
                _change_payload(sealed, start, size, rng)
                size = unpack_from("<I", sealed, at + 4)[0]
            if relinks:
                was = chain_hash(chain, index, term, history, bytes(sealed[start : start + size]))
                sealed[at + 48 : at + 64] = was
            chain = chains[index] = was
        pack_into("<I", sealed, at, crc32c(sealed[at + 4 : at + _LOG_RECORD.size + size]))
    if relinks:
        for page in (PAGE_SIZE, 2 * PAGE_SIZE):
            if page + PAGE_SIZE <= len(sealed) and sealed[page : page + 8] == b"JSTRMCMT":
                index = _COMMIT.unpack_from(sealed, page)[6]
                if index in chains:
                    sealed[page + 40 : page + 56] = chains[index]
                _seal_page(sealed, page)
    return bytes(sealed)


def _change_payload(sealed: bytearray, start: int, size: int, rng: random.Random) -> None:
    """Put a changed document in place of a payload, if it has the room: what follows keeps its place."""
    value = unpacked(bytes(sealed[start : start + size]))
    for _ in range(20):
        changed = packed(mutate_tree(value, rng))
        if changed and len(changed) <= size:
            # msgpack has no padding: what is shorter shows in the size in the record, whose batch ends earlier then.
            pack_into("<I", sealed, start - _LOG_RECORD.size + 4, len(changed))
            sealed[start : start + size] = changed + bytes(size - len(changed))
            return


def snapshot(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    payload = data[PAGE_SIZE:]
    if content:
        payload = packed(mutate_tree(unpacked(payload), rng), payload)
    sealed = bytearray(data[:PAGE_SIZE].ljust(PAGE_SIZE, b"\x00")) + payload
    place = Struct("<8sHHI16s16s16sQQ16s8s").size
    pack_into("<Q16s", sealed, place, len(payload), payload_digest(payload))
    _seal_page(sealed, 0)
    return bytes(sealed)


def page(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    sealed = bytearray(data[:PAGE_SIZE].ljust(PAGE_SIZE, b"\x00"))
    _seal_page(sealed, 0)
    return bytes(sealed)


def _seal_page(sealed: bytearray, at: int) -> None:
    pack_into("<I", sealed, at + PAGE_SIZE - 4, crc32c(sealed[at : at + PAGE_SIZE - 4]))


def volume_index(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    return _crc_and_size(data, "<8sIIQ", rng, content)


def report(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    return _crc_and_size(data, "<8sIII", rng, content)


def _crc_and_size(data: bytes, fields: str, rng: random.Random, content: bool) -> bytes:
    header = Struct(fields)
    if len(data) < header.size:
        return data
    magic, version, _, _ = header.unpack_from(data)
    payload = data[header.size :]
    if content:
        payload = packed(mutate_tree(unpacked(payload), rng), payload)
    return header.pack(magic, version, crc32c(payload), len(payload)) + payload


def journal(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    header = Struct("<8sIIQQ")
    if len(data) < header.size:
        return data
    magic, version, _, index, end = header.unpack_from(data)
    crc = crc32c(header.pack(magic, version, 0, index, end))
    sealed = bytearray(header.pack(magic, version, crc, index, end) + data[header.size :])
    places = []
    at = sealed.find(b"PLCE")
    while 0 <= at <= len(sealed) - 24:
        size = unpack_from("<I", sealed, at + 8)[0]
        end = at + 24 + size
        if end > len(sealed):
            at = sealed.find(b"PLCE", at + 1)
            continue
        places.append((at, end))
        at = sealed.find(b"PLCE", end)
    changed = rng.choice(places) if content and places else None
    for at, end in reversed(places):
        if (at, end) == changed:
            before = bytes(sealed[at + 24 : end])
            payload = packed(mutate_tree(unpacked(before), rng), before)
            sealed[at + 24 : end] = payload
            pack_into("<I", sealed, at + 8, len(payload))
            end = at + 24 + len(payload)
        pack_into("<I", sealed, at + 4, crc32c(sealed[at + 8 : end]))
    return bytes(sealed)


def block(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """Header, frames that are found by their magic, footer and trailer. What the manifest has of it is not redone."""
    sealed = bytearray(data)
    if len(sealed) < 128 + 24:
        return data
    pack_into("<I", sealed, 12, crc32c(sealed[:12]))
    pack_into("<I", sealed, 124, crc32c(sealed[:124]))
    start, size = unpack_from("<II", sealed, len(sealed) - 24)
    if content and start + size == len(sealed) - 24:
        footer = bytes(sealed[start : start + size])
        changed = packed(mutate_tree(unpacked(footer), rng), footer)
        sealed[start : start + size] = changed
        pack_into("<II", sealed, len(sealed) - 24, start, len(changed))
        size = len(changed)
    at = sealed.find(b"JSFR", 128)
    while 0 <= at < len(sealed) - 64:
        payload = unpack_from("<I", sealed, at + 12)[0]
        if at + 64 + payload <= len(sealed):
            pack_into("<I", sealed, at + 8, crc32c(sealed[at + 64 : at + 64 + payload]))
            pack_into("<I", sealed, at + 4, crc32c(sealed[at + 8 : at + 64]))
        at = sealed.find(b"JSFR", at + 64)
    if start + size <= len(sealed):
        pack_into("<I", sealed, len(sealed) - 16, crc32c(sealed[start : start + size]))
    pack_into("<I", sealed, len(sealed) - 12, crc32c(sealed[-24:-12]))
    return bytes(sealed)


def vouch(place: Path, before: bytes, after: bytes) -> bool:
    """Let the snapshot of a backup have the digest of a block's footer as it is now; return whether it has."""
    footers = [_footer(one) for one in (before, after)]
    path = next((place / "meta").glob("*.snap"), None)
    if path is None or not (place / "jstream.backup").exists() or None in footers:
        return False
    was, now = (hashlib.blake2b(one or b"", digest_size=16).digest() for one in footers)
    data = path.read_bytes()
    path.write_bytes(snapshot(data.replace(was, now), path, random.Random(0), content=False))
    return was in data


def _footer(block: bytes) -> bytes | None:
    if len(block) < 152:
        return None
    start, size = unpack_from("<II", block, len(block) - 24)
    return block[start : start + size] if start + size == len(block) - 24 else None


def import_record(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    header = Struct("<8sII16s")
    if len(data) < header.size + 4:
        return data
    magic, version, _, _ = header.unpack_from(data)
    payload = data[header.size + 4 :]
    if content:
        payload = packed(mutate_tree(unpacked(payload), rng), payload)
    fields = header.pack(magic, version, len(payload), digest_of(payload))
    return fields + crc32c(fields).to_bytes(4, "little") + payload


def mark(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """A mark of a backup."""
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


def pages(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """A mark of a volume that is being made: a page for each identity."""
    sealed = bytearray(data)
    for at in range(0, len(sealed) - PAGE_SIZE + 1, PAGE_SIZE):
        _seal_page(sealed, at)
    return bytes(sealed)


def nothing(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    return data


def seal_of(path: Path) -> tuple[str, Seal]:
    """Return the kind of a file, by its name and place, and what makes its checksums true."""
    name, suffix = path.name, path.suffix
    if path.parent.name == "msgs":
        kinds = {".blk": ("nats block", nats_block), ".db": ("nats index.db", nats_index)}
        return kinds.get(suffix, (f"nats N{suffix}", nothing))
    if name == "meta.inf":
        return ("nats consumer" if path.parent.parent.name == "obs" else "nats stream"), nats_meta
    if name.startswith("msgs."):
        return ("stan messages", stan_records) if suffix == ".dat" else ("stan index", stan_index)
    if name in ("subs.dat", "clients.dat", "server.dat"):
        return f"stan {path.stem}", stan_records
    by_name = {
        "jstream.volume": ("identity", page),
        "index.db": ("index.db", volume_index),
        "placements.journal": ("journal", journal),
        "jstream.backup": ("backup mark", mark),
        "jstream.restoring": ("mark of a volume", pages),
        "jstream.unfinished": ("backup mark", mark),
        "o.dat": ("nats consumer state", nothing),
        "reserve": ("reserve", nothing),
    }
    by_suffix = {
        ".log": ("log segment", log_segment),
        ".snap": ("snapshot", snapshot),
        ".blk": ("block", block),
        ".report": ("report", report),
        ".part": ("import record", import_record),
        ".toml": ("definition", nothing),
        ".key": ("nats key", nothing),
    }
    return by_name.get(name) or by_suffix.get(suffix) or (f"other {suffix or name}", nothing)


def sealed(data: bytes, path: Path, rng: random.Random, content: bool) -> bytes:
    """Return the file with its checksums redone, as far as it can be walked."""
    try:
        return seal_of(path)[1](data, path, rng, content)
    except (error, IndexError, OverflowError):
        return data
