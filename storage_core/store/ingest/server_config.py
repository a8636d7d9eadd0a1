"""What becomes of the names, configurations and consumers of another server's streams when they are imported.

Names outside `[A-Za-z0-9_-]{1,128}` get a default that can be read back: `_` is written `__`, and every other byte that
names cannot have is `_` and two hex digits, so that `orders.eu` becomes `orders_2Eeu`. A key of a configuration is
taken over if this version carries it out; whatever else asks for something is reported, nothing is dropped silently.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from storage_core.foreign.consumers import ForeignConsumer
from storage_core.foreign.slices import ForeignStream
from storage_core.metadata.commands import Event
from storage_core.metadata.config import NAME_PATTERN, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.consumer_state import ConsumerState
from storage_core.metadata.pending import PENDING_DTYPE, PendingMessages
from storage_core.metadata.reconcile import CONTINUE, Position, decide, facts_of
from storage_core.metadata.retention import beginning
from storage_core.metadata.shared_map import SharedMap
from storage_core.metadata.state import StreamState
from storage_core.sequences import SequenceSet

SECOND_NS = 1_000_000_000
ACK_WAIT_MAX_NS = 365 * 86_400 * SECOND_NS  # for a deadline of what was sent before; keeps it an int64
_NOTHING: tuple[object, ...] = (None, False, 0, -1, "", [], {})  # values that ask for nothing
# Taken care of, or of no use here.
_OURS = ("name", "subjects", "num_replicas", "storage", "Created", "created", "metadata", "first_seq")
_CONSUMER_OURS = ("name", "Name", "durable_name", "Created", "created", "num_replicas", "max_waiting", "metadata")
_LAST = ("discard_new_per_subject",)  # of a stream, since others have to be there first
_CODECS = {"s2": "lz4"}  # what stands for a codec that we do not write
# Keys of STAN's subscriptions that say who read, not how.
_STAN_IDENTITY = ("id", "client_id", "queue_group", "is_offline", "inbox", "ack_inbox")


# --- names


def readable(text: str) -> str:
    """Return the text with what no UTF-8 can say (names of files hold any bytes) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def default_name(foreign: str) -> str:
    """Return what a foreign name becomes here; the name itself if it is one that we take."""
    if NAME_PATTERN.fullmatch(foreign):
        return foreign
    parts = []
    for byte in foreign.encode("utf-8", "surrogateescape"):
        letter = chr(byte)
        if letter == "_":
            parts.append("__")
        else:
            parts.append(letter if byte < 0x80 and (letter.isalnum() or letter == "-") else f"_{byte:02X}")
    return "".join(parts)


def stream_names(foreign: Sequence[str], as_names: Mapping[str, str]) -> dict[str, str]:
    """Return what each stream is to be called here. Raises ValueError for names that cannot be, or are twice."""
    strange = sorted(set(as_names) - set(foreign))
    if strange:
        raise ValueError(f"as: {strange[0]!r} is not among the streams that are imported")
    names = {stream_name: as_names.get(stream_name, default_name(stream_name)) for stream_name in foreign}
    taken: dict[str, str] = {}
    for foreign_name, name in names.items():
        if not NAME_PATTERN.fullmatch(name):
            problem = (
                f"as: {name!r} is"
                if foreign_name in as_names
                else f"stream {foreign_name!r}: its name here would be {name!r}, which is"
            )
            raise ValueError(
                f"{problem} not 1 to 128 of the characters A-Z a-z 0-9 _ -; name it with --stream and --as"
            )
        former = taken.setdefault(name.casefold(), foreign_name)
        if former != foreign_name:
            raise ValueError(
                f"streams {former!r} and {foreign_name!r} would both be called {name!r} here, where case makes no "
                "difference: import them one by one, with --stream and --as"
            )
    return names


# --- streams


def stream_config(name: str, foreign: ForeignStream, num_replicas: int) -> tuple[StreamConfig, list[str]]:
    """Return the configuration of an imported stream, and what of the old one is not carried over, in sentences.

    Raises ValueError for a number of replicas that there cannot be.
    """
    notes: list[str] = []
    values: dict[str, Any] = {
        "name": name,
        "num_replicas": num_replicas,
        "subjects": [readable(subject) for subject in foreign.subjects],
    }
    StreamConfig.from_mapping({"name": name, "num_replicas": num_replicas})
    if not foreign.subjects:
        notes.append(f"it names no subjects of its own: here it takes {name}")
    try:
        StreamConfig.from_mapping(values)
    except ValueError as error:
        notes.append(f"it takes every subject (>) here: {error}")
        values["subjects"] = [">"]
    for key, value in sorted(foreign.config.items(), key=lambda item: item[0] in _LAST):
        if key in _OURS or value in _NOTHING:
            continue
        if key == "max_age":
            notes.append(
                f"max_age={_shown(value)} is not carried over, or older messages would go at once: stream edit "
                "--max-age sets it, and says before what that removes"
            )
            continue
        if key == "allow_msg_ttl":
            notes.append("allow_msg_ttl holds for messages to come: those that are imported stay, whatever their TTL")
        _take_over(values, key, value, StreamConfig, notes)
    labels = {"jstream.layout": foreign.layout, "jstream.account": foreign.account, "jstream.name": foreign.stream}
    values["metadata"] = {**_labels(foreign.config), **{key: readable(value) for key, value in labels.items() if value}}
    return StreamConfig.from_mapping(values), notes


def _take_over(
    values: dict[str, Any], key: str, value: object, kind: type[StreamConfig] | type[ConsumerConfig], notes: list[str]
) -> None:
    """Take a key into `values` if it works here; leave it out if it changes nothing; else note it."""
    if key == "compression" and isinstance(value, str) and value in _CODECS:
        notes.append(f"compression={value}: its blocks are written with {_CODECS[value]} here")
        value = _CODECS[value]
    try:
        kind.from_mapping({**values, key: value})
    except (ValueError, TypeError):
        notes.append(f"{key}={_shown(value)} is not carried over")
        return
    if key in kind.__struct_fields__ or key == "filter_subject":
        values[key] = value


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value
    return text if len(text) <= 80 else text[:77] + "..."


def _labels(config: Mapping[str, Any]) -> dict[str, str]:
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        return {}
    return {key: value for key, value in metadata.items() if isinstance(key, str) and isinstance(value, str)}


# --- consumers


@dataclass(frozen=True, slots=True)
class ImportedConsumers:
    """The consumers of an imported stream, and what there is to tell of them."""

    stream: StreamState  # with them
    names: tuple[str, ...]
    events: tuple[Event, ...] = ()  # of those that could not stay where they were
    notes: tuple[str, ...] = ()


def with_consumers(stream: StreamState, foreign: Sequence[ForeignConsumer], now_ns: int) -> ImportedConsumers:
    """Return the stream with its consumers at their places; one that cannot be there is moved, and reported."""
    made: dict[str, ConsumerState] = {}
    events: list[Event] = []
    notes: list[str] = []
    for foreign_consumer, name in _named(foreign, notes):
        config, left = consumer_config(name, foreign_consumer)
        notes += [f"consumer {name}: {note}" for note in left]
        consumer, place_notes = _placed(stream, foreign_consumer, config, now_ns)
        notes += [f"consumer {name}: {note}" for note in place_notes]
        events += consumer.events
        made[name.casefold()] = beginning(stream, consumer)
    return ImportedConsumers(
        replace(stream, consumers=SharedMap(made)),
        tuple(consumer.name for consumer in made.values()),
        tuple(events),
        tuple(notes),
    )


def _named(foreign: Sequence[ForeignConsumer], notes: list[str]) -> list[tuple[ForeignConsumer, str]]:
    """Return the consumers that are kept with their names here, in order of names."""
    durable = []
    for consumer in foreign:
        if consumer.is_durable:
            durable.append(consumer)
        else:
            notes.append(f"consumer {consumer.name} is not carried over: it is not durable")
    often = Counter(default_name(consumer.name).casefold() for consumer in durable)
    named: dict[str, tuple[ForeignConsumer, str]] = {}
    for consumer in sorted(durable, key=lambda consumer: consumer.name):
        client = consumer.config.get("client_id")
        name = default_name(consumer.name)
        if often[name.casefold()] > 1 and isinstance(client, str) and client:
            name = default_name(f"{client}.{consumer.name}")  # STAN: the same durable name at several clients
        if not NAME_PATTERN.fullmatch(name) or name.casefold() in named:
            notes.append(f"consumer {consumer.name} is not carried over: {name!r} is too long a name here, or taken")
            continue
        if name != consumer.name:
            notes.append(f"consumer {consumer.name} is called {name} here")
        named[name.casefold()] = (consumer, name)
    return list(named.values())


def consumer_config(name: str, foreign: ForeignConsumer) -> tuple[ConsumerConfig, list[str]]:
    notes: list[str] = []
    values: dict[str, Any] = {"name": name}
    settings = dict(foreign.config)
    if foreign.layout == "stan":
        for key in _STAN_IDENTITY:
            settings.pop(key, None)
        settings = {
            "ack_wait": settings.get("ack_wait_s", 0) * SECOND_NS,
            "max_ack_pending": settings.get("max_in_flight", 0),
        }
    # Where it begins is known already; what the policy refers to may not be.
    policy = settings.get("deliver_policy", "all")
    for key in ("deliver_policy", "opt_start_seq", "opt_start_time"):
        settings.pop(key, None)
    begin = {key: foreign.config[key] for key in ("opt_start_seq", "opt_start_time") if foreign.config.get(key)}
    try:
        ConsumerConfig.from_mapping({**values, "deliver_policy": policy, **begin})
        values |= {"deliver_policy": policy, **begin}
    except (ValueError, TypeError):
        notes.append(f"deliver_policy={_shown(policy)} is not carried over; its position is")
    for key, value in settings.items():
        if key not in _CONSUMER_OURS and value not in _NOTHING:
            _take_over(values, key, value, ConsumerConfig, notes)
    values["metadata"] = _labels(foreign.config)
    return ConsumerConfig.from_mapping(values), notes


def _placed(
    stream: StreamState, foreign: ForeignConsumer, config: ConsumerConfig, now_ns: int
) -> tuple[ConsumerState, list[str]]:
    """Return the consumer where it was, or where the rule of reconciliation puts it, with an event about that."""
    notes: list[str] = []
    first = stream.first_sequence
    if foreign.delivered is None:
        notes.append(f"what it had read is damaged: it begins at the first message, {first}")
    next_sequence = max(first, 1) if not foreign.delivered else foreign.delivered + 1
    made = decide(
        Position(stream.incarnation, next_sequence), facts_of(stream), SequenceSet.empty(), CONTINUE
    )  # fmt: skip
    events: tuple[Event, ...] = ()
    if made.must_be_reported:
        reason = f"{made.action.value}: {made.reason}"
        before, after = str(next_sequence - 1), str(made.next_sequence - 1)
        events = (Event("consumer_reconciled", stream.name, config.name, "", before, after, reason, now_ns),)
        notes.append(made.reason)
    rows, missing_count = _pending(stream, foreign, config, made.next_sequence, now_ns)
    if missing_count:
        messages, are = ("a message", "is") if missing_count == 1 else (f"{missing_count} messages", "are")
        notes.append(f"{messages} that it had not acknowledged {are} not in the stream any more")
    state = ConsumerState(
        config, now_ns, stream.incarnation, made.next_sequence, (), PendingMessages.of(rows), stream.lost, 0, events
    )
    return state, notes


def _pending(
    stream: StreamState, foreign: ForeignConsumer, config: ConsumerConfig, next_sequence: int, now_ns: int
) -> tuple[np.ndarray, int]:
    """Return the messages that wait for their acknowledgement, a row each, and how many are gone from the stream."""
    if config.ack_policy == "none" or not foreign.pending:
        return np.zeros(0, PENDING_DTYPE), 0
    sequences = np.array(foreign.pending, np.int64)
    is_present = stream.shown().mask(sequences) & (sequences < next_sequence)
    rows = np.zeros(len(sequences), PENDING_DTYPE)
    rows["first"], rows["end"] = sequences, sequences + 1
    # Sent long ago, they are due at once; where nobody knows when they were sent, likewise.
    now_s = now_ns // SECOND_NS
    sent_s = np.array(foreign.pending_times_s or [now_s] * len(sequences), np.int64).clip(0, now_s)
    rows["deadline_ns"] = sent_s * SECOND_NS + min(config.ack_wait, ACK_WAIT_MAX_NS)
    again = dict(foreign.redelivered)
    rows["deliveries"] = [1 + again.get(sequence, 0) for sequence in foreign.pending]
    return rows[is_present], int((~is_present).sum())
