"""Consumers of a channel: subs.dat replayed in order.

A subscription is made by type 1, replaced by 2 (what is pending stays), removed by 3; type 5 says that a message was
sent to it and is pending, 4 that it was acknowledged. The type is not covered by the checksum, so that damage may turn
an acknowledgement (4) into a delivery (5) unseen.

Source: nats-streaming-server, stores/filestore.go (`recoverSubscriptions`), spb/protocol.proto.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.budget import PLACE_COUNT_MAX, together
from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.slices import ForeignDamage
from storage_core.foreign.stan.protobuf import decode_one
from storage_core.foreign.stan.record import SUBSCRIPTIONS, Kind, Records
from storage_core.foreign.stan.report import show
from storage_core.foreign.stan.scan import Cause, Stretch, Window, fold, scan_file
from storage_core.os_errors import raise_if_of_process

_NEW, _REPLACED, _REMOVED, _ACKED, _SENT = 1, 2, 3, 4, 5
LIVE_COUNT_MAX = 100_000  # subscriptions of a channel; a server's limit is a thousand
PENDING_COUNT_MAX = 1_000_000  # deliveries of a channel that wait for their acknowledgement
OnDamage = Callable[[ForeignDamage], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription of a channel, as the server would recover it."""

    stream: str
    id: int
    client_id: str
    queue_group: str  # of a durable queue group `DURABLE:GROUP`
    inbox: str
    ack_inbox: str
    max_in_flight: int
    ack_wait_s: int
    durable_name: str
    is_durable: bool
    is_offline: bool  # its client has left
    last_sent: int  # highest sequence that was ever sent to it
    pending: tuple[int, ...]  # sequences sent and not acknowledged, ascending

    @property
    def name(self) -> str:
        """Return how people call it: queue group, durable name, or the inbox of one that lives with its client."""
        return self.queue_group or self.durable_name or self.inbox

    @property
    def ack_floor(self) -> int:
        """Return the sequence up to which everything sent was acknowledged."""
        return self.pending[0] - 1 if self.pending else self.last_sent


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What damage is passed over: an unexpected end, and bad checksums."""

    truncate_bad_eof: bool = False
    no_crc: bool = False


@dataclass(slots=True)
class _Live:
    state: Subscription
    last_sent: int
    pending: set[int] = field(default_factory=set)


def replay_subscriptions(
    path: str,
    stream: str,
    options: ReplayOptions = ReplayOptions(),  # noqa: B008 - a frozen value
    on_damage: OnDamage | None = None,
    files: Files = OS_FILES,
) -> list[Subscription]:
    """Return the subscriptions in a subs.dat by id; none if there is no such file.

    A record whose checksum fails is left out, with `no_crc` applied if it can be read. Damage goes to `on_damage`;
    without it, what `options` do not allow raises CorruptRecordError, which shows the record.
    """
    live: dict[int, _Live] = {}
    pending_count, left_out = 0, 0
    for window, records in _replayed(path, stream, SUBSCRIPTIONS, options, on_damage, files):
        ids, numbers = records.fields[1].values.tolist(), records.fields[2].values.tolist()
        for row, (code, own, number) in enumerate(zip(records.types.tolist(), ids, numbers, strict=True)):
            subscription = live.get(own)
            if code in (_NEW, _REPLACED):
                if subscription is None and len(live) >= LIVE_COUNT_MAX:
                    left_out += 1
                    continue
                state = _subscription(_payload(window, records, row), stream)
                if subscription is not None and code == _REPLACED:
                    subscription.state, subscription.last_sent = state, max(subscription.last_sent, state.last_sent)
                else:
                    pending_count -= len(subscription.pending) if subscription is not None else 0
                    live[own] = _Live(state, state.last_sent)
            elif subscription is None:
                continue  # acknowledged after it was removed
            elif code == _REMOVED:
                pending_count -= len(subscription.pending)
                del live[own]
            elif code == _ACKED:
                pending_count -= number in subscription.pending
                subscription.pending.discard(number)
            else:
                subscription.last_sent = max(subscription.last_sent, number)
                if number not in subscription.pending and pending_count < PENDING_COUNT_MAX:
                    subscription.pending.add(number)
                    pending_count += 1
                else:
                    left_out += number not in subscription.pending
    _tell_left_out(left_out, path, stream, SUBSCRIPTIONS, options, on_damage)
    return [
        replace(subscription.state, last_sent=subscription.last_sent, pending=tuple(sorted(subscription.pending)))
        for _, subscription in sorted(live.items())
    ]


def as_consumer(subscription: Subscription, file: str) -> ForeignConsumer:
    """Return a subscription as consumers of all layouts are shown."""
    config = {
        name: getattr(subscription, name)
        for name in (
            "id",
            "client_id",
            "durable_name",
            "queue_group",
            "is_offline",
            "max_in_flight",
            "ack_wait_s",
            "inbox",
            "ack_inbox",
        )
    }
    return ForeignConsumer(
        layout="stan",
        account="",
        stream=subscription.stream,
        name=subscription.name,
        file=file,
        is_durable=subscription.is_durable,
        delivered=subscription.last_sent,
        ack_floor=subscription.ack_floor,
        pending=subscription.pending,
        config=config,
    )


def _replayed(
    path: str, stream: str, kind: Kind, options: ReplayOptions, on_damage: OnDamage | None, files: Files
) -> Iterator[tuple[Window, Records]]:
    """Yield the records to apply, window by window; tell or raise the damage first."""
    zeros: list[Stretch] = []  # padding if nothing comes after them
    try:
        for window in scan_file(path, kind, files=files):
            records = window.records
            applied = records.good | options.no_crc
            stretches = [*zeros, *window.stretches] if len(records) else list(window.stretches)
            zeros = [] if len(records) else zeros
            end = window.offset_bytes + int(records.ends[-1]) if len(records) else window.offset_bytes
            zeros = fold(
                zeros
                + [stretch for stretch in stretches if stretch.cause is Cause.PADDING and stretch.offset_bytes >= end]
            )
            for stretch in stretches:
                if stretch not in zeros:
                    goes_on = stretch.offset_bytes < end and stretch.cause in (Cause.END, Cause.PADDING)
                    reported = replace(stretch, cause=Cause.BAD) if goes_on else stretch
                    _tell(_damage(path, stream, kind, reported, options), on_damage)
            bad = np.flatnonzero(~records.good)
            for row in bad[:PLACE_COUNT_MAX].tolist():
                stretch = window.suspect(row, row + 1)
                _tell(_damage(path, stream, kind, stretch, options, applied=options.no_crc), on_damage)
            if len(bad) > PLACE_COUNT_MAX:
                rest = bad[PLACE_COUNT_MAX:]
                stretch = replace(window.suspect(int(rest[0]), int(rest[-1]) + 1), places=len(rest))
                _tell(_damage(path, stream, kind, stretch, options, applied=options.no_crc), on_damage)
            yield window, records.take(applied)
    except FileNotFoundError:
        return
    except OSError as error:
        raise_if_of_process(error)
        lost = Stretch(0, 0, Cause.MISSING, f"the file cannot be read: {error.strerror}", b"")
        _tell(_damage(path, stream, kind, lost, options), on_damage)


def _damage(
    path: str, stream: str, kind: Kind, stretch: Stretch, options: ReplayOptions, applied: bool = False
) -> ForeignDamage:
    harmless = stretch.cause is Cause.HARMLESS
    allowed = options.truncate_bad_eof if stretch.cause is Cause.END else options.no_crc
    effect = ", applied all the same" if applied else "" if harmless else ", left out"
    return ForeignDamage(
        layout="stan",
        account="",
        stream=stream,
        file=path,
        offset_bytes=stretch.offset_bytes,
        end_bytes=stretch.end_bytes,
        reason=together(stretch.places, f"record of a {kind.name}{effect}: {stretch.reason}"),
        allowed=harmless or (allowed and stretch.cause is not Cause.MISSING),
        record=show(kind, stretch),
        places=stretch.places,
    )


def _tell_left_out(
    count: int, path: str, stream: str, kind: Kind, options: ReplayOptions, on_damage: OnDamage | None
) -> None:
    if count:
        bounds = f"at most {LIVE_COUNT_MAX} of them and {PENDING_COUNT_MAX} pending messages are kept"
        stretch = Stretch(0, 0, Cause.MISSING, f"{count} records are more than is kept: {bounds}", b"")
        _tell(_damage(path, stream, kind, stretch, options), on_damage)


def _tell(damage: ForeignDamage, on_damage: OnDamage | None) -> None:
    if on_damage is not None:
        on_damage(damage)
    elif not damage.allowed:
        text = f"{damage.reason}\n{damage.record}"
        raise CorruptRecordError(damage.file, damage.offset_bytes, text, file=damage.file)


def _payload(window: Window, records: Records, row: int) -> bytes:
    return bytes(window.buffer[int(records.starts[row]) : int(records.ends[row])])


def _subscription(payload: bytes, stream: str) -> Subscription:
    fields, _ = decode_one(payload)
    return Subscription(
        stream=stream,
        id=_number(fields, 1),
        client_id=_text(fields, 2),
        queue_group=_text(fields, 3),
        inbox=_text(fields, 4),
        ack_inbox=_text(fields, 5),
        max_in_flight=_int32(fields, 6),
        ack_wait_s=_int32(fields, 7),
        durable_name=_text(fields, 8),
        last_sent=_number(fields, 9),
        is_durable=bool(_number(fields, 10)),
        is_offline=bool(_number(fields, 11)),
        pending=(),
    )


def _number(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    return value if isinstance(value, int) else 0


def _int32(fields: dict[int, int | bytes], number: int) -> int:
    value = _number(fields, number) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _text(fields: dict[int, int | bytes], number: int) -> str:
    value = fields.get(number, b"")
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else ""
