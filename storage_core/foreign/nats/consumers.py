"""Consumers of a JetStream stream: obs/CONSUMER/meta.inf (configuration) and o.dat (what it had been sent).

    o.dat: magic 22, version 1 or 2, then uvarints: ack floor (consumer sequence, stream sequence), delivered (the
    same), number pending; if there are any, base time (varint, seconds) and for each the distances from the floor
    (stream sequence; version 2: consumer sequence) and from the base time (varint); number redelivered, and for each
    the distance of its stream sequence from the floor and how often it was sent again.

Version 1 wrote what was delivered as a distance from the floor. The file has no checksum, so a flipped bit may go
unnoticed; what contradicts itself is refused.

Source: nats-server, server/store.go (`encodeConsumerState`), server/filestore.go (`decodeConsumerState`,
`ConsumerStore`, `writeConsumerMeta`).
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from storage_core.errors import CorruptionError, StorageError
from storage_core.file_kinds import NATS_CONSUMER_STATE, NATS_KEY, NATS_META, NATS_SUM
from storage_core.files import OS_FILES, Files
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.nats.block import read_file
from storage_core.foreign.nats.cursor import Cursor, encode_uvarint
from storage_core.foreign.nats.directory import StreamDirectory
from storage_core.foreign.nats.encryption import Seed, open_key_file
from storage_core.foreign.nats.index import SEQUENCE_END
from storage_core.foreign.nats.meta import (
    META_FILE,
    META_KEY_FILE,
    META_SUM_FILE,
    checksum_text,
    decode_config,
)
from storage_core.foreign.slices import ForeignDamage, note_damage
from storage_core.os_errors import raise_if_of_process

CONSUMERS_DIRECTORY, STATE_FILE = "obs", "o.dat"
STATE_MAGIC = 22
_MASK = (1 << 64) - 1
OnDamage = Callable[[ForeignDamage], None]


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """What o.dat says. Pairs are (consumer sequence, stream sequence)."""

    delivered: tuple[int, int] = (0, 0)
    ack_floor: tuple[int, int] = (0, 0)
    pending: tuple[tuple[int, int, int], ...] = ()  # (stream sequence, consumer sequence or 0, sent at, seconds)
    redelivered: tuple[tuple[int, int], ...] = ()  # (stream sequence, times)


def read_consumers(
    stream: StreamDirectory, last: int | None, on_damage: OnDamage | None = None, files: Files = OS_FILES
) -> list[ForeignConsumer]:
    """Return the consumers of a stream by name; `last` is the highest sequence that the stream used, if it is known.

    Damage goes to `on_damage`: a configuration or state that cannot be read, a consumer that is ahead of its stream,
    and what should be a directory and is not one. Without it, damage raises CorruptionError.
    """
    tell = on_damage or _refuse
    top = Path(stream.path) / CONSUMERS_DIRECTORY
    if CONSUMERS_DIRECTORY not in files.list_directory(Path(stream.path).resolve()):
        return []  # no consumer was ever made: the server makes the directory with the first one

    def report(place: Path, reason: str) -> None:
        tell(note_damage("nats", stream.account, stream.name, str(place), reason))

    consumers = []
    try:
        names = list_consumers(top, files)
    except OSError as error:
        raise_if_of_process(error)
        report(top, f"which consumers there are is unknown: {_reason(error)}")
        return []
    for name in names:
        place = top / name
        if not files.is_directory(place):
            report(place, f"consumer {name!r}: not a directory")
            continue
        try:
            consumers.append(_read_consumer(stream, place, last, tell, files))
        except OSError as error:
            raise_if_of_process(error)
            report(place, f"consumer {name!r}: {_reason(error)}")
    return sorted(consumers, key=lambda consumer: consumer.name)


def list_consumers(top: Path, files: Files = OS_FILES) -> list[str]:
    """Return what lies in a directory of consumers, without what a deletion left over.

    Raises OSError if it cannot be listed, NotADirectoryError if it is none.
    """
    if not files.is_directory(top):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(top))
    return [name for name in files.list_directory(top.resolve()) if not name.startswith(".")]


def decode_state(data: bytes, name: str) -> ConsumerState:
    """Return the content of an o.dat; an empty one is that of a consumer that was sent nothing yet.

    Raises CorruptionError if it ends too early or contradicts itself.
    """
    if not data:
        return ConsumerState()
    cursor = Cursor(data, name)
    magic, version = cursor.byte(), cursor.byte()
    if magic != STATE_MAGIC or version not in (1, 2):
        raise CorruptionError(f"{name}: begins with {magic}, {version}, not {STATE_MAGIC}, 1 or 2")
    floor = cursor.uvarint(), cursor.uvarint()
    delivered = cursor.uvarint(), cursor.uvarint()
    if version == 1 and floor[0] > 1:
        delivered = delivered[0] + floor[0] - 1, delivered[1]
    if version == 1 and floor[1] > 1:
        delivered = delivered[0], delivered[1] + floor[1] - 1
    pending_count, pending = cursor.uvarint(), []
    base_s = cursor.varint() if pending_count else 0
    _check_count(cursor, pending_count)
    for _ in range(pending_count):
        sequence = (floor[1] + cursor.uvarint()) & _MASK
        own = (floor[0] + cursor.uvarint()) & _MASK if version == 2 else 0
        distance_s = cursor.varint()
        pending.append((sequence, own, base_s - distance_s if version == 2 else base_s + distance_s))
    redelivered_count = cursor.uvarint()
    _check_count(cursor, redelivered_count)
    redelivered = [((floor[1] + cursor.uvarint()) & _MASK, cursor.uvarint()) for _ in range(redelivered_count)]
    if cursor.at != len(data):
        raise CorruptionError(f"{name}: {len(data) - cursor.at} bytes are left over")
    state = ConsumerState(delivered, floor, tuple(sorted(pending)), tuple(sorted(redelivered)))
    _check(state, name)
    return state


def encode_state(state: ConsumerState) -> bytes:
    """Return an o.dat of version 2."""
    floor, base_s = state.ack_floor, max((sent_s for _, _, sent_s in state.pending), default=0)
    values = [*floor, *state.delivered, len(state.pending), *([base_s << 1] if state.pending else [])]
    for sequence, own, sent_s in state.pending:
        values += [sequence - floor[1], own - floor[0], (base_s - sent_s) << 1]
    values.append(len(state.redelivered))
    for sequence, times in state.redelivered:
        values += [sequence - floor[1], times]
    return bytes((STATE_MAGIC, 2)) + b"".join(encode_uvarint(value & _MASK) for value in values)


def _check_count(cursor: Cursor, count: int) -> None:
    if 2 * count > len(cursor.data) - cursor.at:
        raise CorruptionError(f"{cursor.name}: declares {count} entries at offset_bytes {cursor.at}, too many")


def _check(state: ConsumerState, name: str) -> None:
    sequences = [delivery[0] for delivery in state.pending] + [delivery[0] for delivery in state.redelivered]
    highest = max([state.ack_floor[1], state.delivered[1], *sequences])
    if highest >= SEQUENCE_END or max((abs(delivery[2]) for delivery in state.pending), default=0) >> 62:
        raise CorruptionError(f"{name}: reaches sequence {highest}, or a time that there is not")
    twice = [first[0] for first, second in pairwise(state.pending) if first[0] == second[0]]
    if twice:
        raise CorruptionError(f"{name}: sequence {twice[0]} is pending more than once")
    if state.ack_floor[1] > state.delivered[1] or any(delivery[0] > state.delivered[1] for delivery in state.pending):
        raise CorruptionError(
            f"{name}: acknowledged or pending up to "
            f"{max([state.ack_floor[1], *(delivery[0] for delivery in state.pending)])}, but nothing was sent after "
            f"{state.delivered[1]}"
        )


def _read_consumer(
    stream: StreamDirectory, place: Path, last: int | None, tell: OnDamage, files: Files
) -> ForeignConsumer:
    names = files.list_directory(place.resolve())
    path = str(place / STATE_FILE)

    def report(file: str, reason: str) -> None:
        tell(note_damage("nats", stream.account, stream.name, file, f"consumer {place.name!r}: {reason}"))

    config: dict[str, Any] = {}
    state: ConsumerState | None = None
    try:
        seed = _seed(stream, place, names, files)
    except (StorageError, OSError) as error:
        raise_if_of_process(error)
        report(str(place / META_KEY_FILE), f"{_reason(error)}; neither configuration nor state can be read")
    else:
        try:
            config = _config(stream, place, seed, files)
        except (StorageError, OSError) as error:
            raise_if_of_process(error)
            report(str(place / META_FILE), _reason(error))
        try:
            state = _state(path, seed, names, files)
        except (StorageError, OSError) as error:
            raise_if_of_process(error)
            report(path, _reason(error))
    if state is not None and last is not None and state.delivered[1] > last:
        report(path, f"is ahead of its stream: it was sent sequence {state.delivered[1]}, the stream ends with {last}")
    return ForeignConsumer(
        layout="nats",
        account=stream.account,
        stream=stream.name,
        name=_text(config, "name") or _text(config, "Name") or place.name,
        file=path,
        is_durable=bool(_text(config, "durable_name")),
        delivered=None if state is None else state.delivered[1],
        ack_floor=None if state is None else state.ack_floor[1],
        pending=() if state is None else tuple(delivery[0] for delivery in state.pending),
        pending_times_s=() if state is None else tuple(delivery[2] for delivery in state.pending),
        redelivered=() if state is None else state.redelivered,
        config=config,
    )


def _seed(stream: StreamDirectory, place: Path, names: list[str], files: Files) -> Seed | None:
    if META_KEY_FILE not in names:
        return None
    path = place / META_KEY_FILE
    if stream.server_key is None:
        raise CorruptionError(f"{path}: the consumer is encrypted, its stream is not; option encryptionKey reads it")
    keys = stream.server_key.derive(f"{stream.name}.{place.name}")
    return open_key_file(keys, read_file(path, NATS_KEY, files), str(path))


def _config(stream: StreamDirectory, place: Path, seed: Seed | None, files: Files) -> dict[str, Any]:
    path = place / META_FILE
    content = read_file(path, NATS_META, files)
    stored = read_file(place / META_SUM_FILE, NATS_SUM, files).strip().decode("ascii", "backslashreplace")
    actual = checksum_text(content, f"{stream.name}/{place.name}")
    if stored != actual:
        raise CorruptionError(f"{path}: checksum is {stored}, the content has {actual}")
    return decode_config(content if seed is None else seed.open_box(content, str(path)), "Name", str(path))


def _state(path: str, seed: Seed | None, names: list[str], files: Files) -> ConsumerState:
    if STATE_FILE not in names:
        return ConsumerState()
    content = read_file(path, NATS_CONSUMER_STATE, files)
    return decode_state(content if seed is None or not content else seed.open_box(content, path), path)


def _text(config: dict[str, Any], key: str) -> str:
    value = config.get(key, "")
    return value if isinstance(value, str) else ""


def _reason(error: Exception) -> str:
    """Return what an error says, without the place, which stands beside it, and without numbers of the system's."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def _refuse(damage: ForeignDamage) -> None:
    raise CorruptionError(f"{damage.file}: {damage.reason}")
