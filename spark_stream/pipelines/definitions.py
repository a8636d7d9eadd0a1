"""Streams and consumers as a file defines them, and what it takes to make a store look like it.

    [streams.ORDERS]
    subjects = ["orders.>"]
    compression = "zstd"
    max_msg_size = "1MB"

    [streams.ORDERS.consumers.warehouse]
    filter_subjects = ["orders.created.>"]

    [settings]
    max_bytes = "1TB"
    [settings.stream_defaults."LOGS*"]
    max_age = "7d"

Keys are those of the configuration of streams and consumers. A key that the file does not name stays as it is in the
store, and so does a stream that it does not name, unless deleting was asked for.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.toml import check_keys, read_toml, substitute, volume_of
from storage_core import Store
from storage_core.metadata import machine
from storage_core.metadata.commands import (
    AddConsumer,
    AddStream,
    Command,
    DeleteConsumer,
    DeleteStream,
    EditStore,
    EditStream,
    Envelope,
    ids_of_voters,
)
from storage_core.metadata.config import SIZES, StoreSettings, StreamConfig
from storage_core.metadata.consumer_config import ConsumerConfig
from storage_core.metadata.state import StoreState
from storage_core.metadata.stream_changes import new_config
from storage_core.quantities import parse_size
from storage_core.raft.entry import HISTORY_SIZE

MAKE, CHANGE, DELETE, CONFLICT = "make", "change", "delete", "conflict"


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One stream: what the file says of it and its consumers, the values checked, the keys that it names only."""

    config: dict[str, Any]
    consumers: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Definitions:
    """A file of definitions. `store`: its volumes, absolute; empty if the file names none."""

    file: Path
    store: list[str]
    streams: dict[str, StreamDefinition]
    settings: dict[str, Any] = field(default_factory=dict)  # of the store, those that the file names
    allow_overlap: bool = False  # with the subjects of other streams


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan. `changes`: for each key the value now and the one to come, None for none."""

    kind: str
    stream: str  # empty: the store's settings
    consumer: str = ""
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "action": self.kind,
            "stream": self.stream or None,
            "consumer": self.consumer or None,
            "changes": {key: list(pair) for key, pair in self.changes.items()},
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in order, and what is in the store without being named by the file."""

    actions: list[Action]
    unnamed: list[str]  # STREAM or STREAM/CONSUMER

    @property
    def conflicts(self) -> list[Action]:
        return [action for action in self.actions if action.kind == CONFLICT]


def load_definitions(file: Path) -> Definitions:
    """Return what the file defines; raises DefinitionError naming the key, what came and what is taken, and OSError."""
    file = Path(os.path.abspath(file))
    tables = substitute(file, read_toml(file))
    check_keys(file, "", tables, ("store", "streams", "settings"))
    store = tables.get("store", [])
    listed = store.split(",") if isinstance(store, str) else store
    if not isinstance(listed, list) or not all(isinstance(volume, str) and volume.strip() for volume in listed):
        raise DefinitionError(file, "store", f"{store!r} is not a list of volumes")
    streams = tables.get("streams")
    if isinstance(streams, list):
        raise DefinitionError(file, "streams", "is a list, as of [[streams]]; each stream is a table [streams.NAME]")
    if not isinstance(streams, Mapping) or not streams:
        raise DefinitionError(file, "streams", "is missing: each stream is a table [streams.NAME]")
    made = {name: _stream(file, name, table) for name, table in streams.items()}
    _check_folded(file, "streams", list(made))
    settings = _settings(file, tables.get("settings", {}))
    return Definitions(file, [volume_of(file, "store", volume.strip()) for volume in listed], made, settings)


def _settings(file: Path, table: object) -> dict[str, Any]:
    """Return the settings that are given, with the values that the store would keep for them."""
    if not isinstance(table, Mapping):
        raise DefinitionError(file, "settings", f"{table!r} is not a table of the store's settings")
    try:
        values = _sized(table)
        if isinstance(defaults := values.get("stream_defaults"), Mapping):
            values["stream_defaults"] = {
                pattern: _sized(keys) if isinstance(keys, Mapping) else keys for pattern, keys in defaults.items()
            }
        checked = StoreSettings.from_mapping(values).to_json()
    except (ValueError, TypeError) as error:
        raise DefinitionError(file, "settings", str(error)) from error
    return {key: checked[key] for key in values}


def _sized(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with sizes as numbers."""
    values = dict(keys)
    for key in SIZES:
        if isinstance(values.get(key), str):
            values[key] = -1 if values[key] == "-1" else parse_size(values[key], key)
    return values


def _stream(file: Path, name: str, table: object) -> StreamDefinition:
    place = f"streams.{name}"
    if not isinstance(table, Mapping):
        raise DefinitionError(file, place, f"{table!r} is not a table of a stream's keys")
    keys = {key: value for key, value in table.items() if key != "consumers"}
    if isinstance(keys.get("consumer"), Mapping):
        raise DefinitionError(file, f"{place}.consumer", "there is no such key; did you mean 'consumers'?")
    consumers = table.get("consumers", {})
    if not isinstance(consumers, Mapping) or not all(isinstance(consumer, Mapping) for consumer in consumers.values()):
        raise DefinitionError(file, f"{place}.consumers", f"write each consumer as a table [{place}.consumers.NAME]")
    _check_folded(file, f"{place}.consumers", list(consumers))
    config = _checked(file, place, name, keys, StreamConfig)
    made = {
        consumer: _checked(file, f"{place}.consumers.{consumer}", consumer, keys, ConsumerConfig)
        for consumer, keys in consumers.items()
    }
    return StreamDefinition(config, made)


def _checked(
    file: Path, place: str, name: str, keys: Mapping[str, Any], kind: "type[StreamConfig] | type[ConsumerConfig]"
) -> dict[str, Any]:
    """Return the keys that are given, with the values that the store would keep for them."""
    if keys.get("name", name) != name:
        raise DefinitionError(file, f"{place}.name", f"{keys['name']!r} is not the name of the table; leave it out")
    try:
        values = _sized({**keys, "name": name})
        config = kind.from_mapping(values).to_json()
    except (ValueError, TypeError) as error:
        raise DefinitionError(file, place, str(error)) from error
    return {key: value for key, value in config.items() if key in values or f"{key[:-1]}" in values}


def _check_folded(file: Path, place: str, names: list[str]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        known = folded.setdefault(name.lower(), name)
        if known != name:
            raise DefinitionError(file, place, f"{known!r} and {name!r} differ in case only, and names must not")


def plan(store: Store, wanted: Definitions, delete: bool = False) -> Plan:
    """Return what would make the store look like the definitions; `delete`: also what they do not name goes."""
    changes = _differences(store.view().state.settings.to_json(), wanted.settings)
    actions = [Action(CHANGE, "", changes=changes)] if changes else []  # first: what streams get by their names
    unnamed: list[str] = []
    present = store.streams()
    for name, definition in wanted.streams.items():
        actions += _plan_stream(store, name, definition, name in present)
        if name in present:
            extra = [consumer for consumer in store.stream(name).consumers() if consumer not in definition.consumers]
            unnamed += [f"{name}/{consumer}" for consumer in extra]
            actions += [Action(DELETE, name, consumer) for consumer in extra if delete]
    others = [name for name in present if name not in wanted.streams]
    unnamed += others
    actions += [Action(DELETE, name) for name in others if delete]
    return Plan(_with_conflicts(store, wanted, actions), unnamed)


def _plan_stream(store: Store, name: str, definition: StreamDefinition, exists: bool) -> list[Action]:
    if not exists:
        made = [Action(MAKE, name, changes=_news(definition.config))]
        return made + [Action(MAKE, name, consumer, _news(keys)) for consumer, keys in definition.consumers.items()]
    stream = store.stream(name)
    now = stream.config.to_json()
    changes = _differences(now, definition.config)
    actions = [Action(CHANGE, name, changes=changes)] if changes else []
    known = {consumer.name: consumer.config.to_json() for consumer in stream.state().consumers.values()}
    for consumer, keys in definition.consumers.items():
        if consumer not in known:
            actions.append(Action(MAKE, name, consumer, _news(keys)))
        elif different := _differences(known[consumer], keys):
            reason = "a consumer cannot be changed; remove it, and it is created again, from its beginning"
            actions.append(Action(CONFLICT, name, consumer, different, reason))
    return actions


def _with_conflicts(store: Store, wanted: Definitions, actions: list[Action]) -> list[Action]:
    """Return the actions, those that the store would refuse as conflicts: nothing is done by halves.

    Each is applied to a copy of the state, after those before it, as the store will do it.
    """
    state, judged = store.view().state, list[Action]()
    for action in actions:
        reason = action.reason
        if action.kind != CONFLICT:
            try:
                envelope = Envelope(store.environment.now_ns(), _command(store, state, wanted, action))
                state, result = machine.apply(state, machine.Place(0, bytes(HISTORY_SIZE)), envelope)
                reason = result.reason if isinstance(result, machine.Refused) else ""
            except ValueError as error:
                reason = str(error)
        reason = reason.removeprefix(f"stream {action.stream!r}: ")
        judged.append(replace(action, kind=CONFLICT, reason=reason) if reason else action)
    return judged


def _command(store: Store, state: StoreState, wanted: Definitions, action: Action) -> Command:
    """Return the command that carries an action out. Raises ValueError."""
    if not action.stream:
        return EditStore(StoreSettings.from_mapping({**state.settings.to_json(), **wanted.settings}))
    definition, stream = wanted.streams.get(action.stream), state.stream(action.stream)
    if stream is None:
        assert definition is not None, action
        if action.consumer:  # of a stream whose making is a conflict
            raise ValueError(f"stream {action.stream!r} cannot be made")
        config = new_config(state, definition.config)
        placement = _on_volumes(state, config.num_replicas)
        return AddStream(store.environment.new_id(), config, placement, wanted.allow_overlap)
    if action.kind == DELETE:
        named = DeleteConsumer(stream.incarnation, action.consumer)
        return named if action.consumer else DeleteStream(stream.incarnation)
    assert definition is not None, action
    if action.consumer:
        return AddConsumer(stream.incarnation, ConsumerConfig.from_mapping(definition.consumers[action.consumer]), 1)
    config = stream.config.with_changes(definition.config)
    _on_volumes(state, config.num_replicas)
    config = msgspec.structs.replace(config, num_replicas=stream.config.num_replicas)  # a command of its own
    return EditStream(stream.incarnation, config, wanted.allow_overlap)


def _on_volumes(state: StoreState, replicas: int) -> tuple[bytes, ...]:
    """Return volumes for so many replicas. Raises ValueError if the store has too few."""
    volumes = tuple(ids_of_voters(state.voters))
    if replicas > len(volumes):
        raise ValueError(f"{replicas} replicas need as many volumes; the store has {len(volumes)}")
    return volumes[:replicas]


def _news(keys: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (None, value) for key, value in keys.items() if key != "name"}


def _differences(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (now[key], value) for key, value in wanted.items() if now[key] != value}


def execute(store: Store, wanted: Definitions, action: Action) -> None:
    """Carry out one step; each is one committed change. Raises as the calls of the store do."""
    definition = wanted.streams.get(action.stream)
    if not action.stream:
        store.edit(**wanted.settings)
        return
    if action.kind == DELETE:
        if action.consumer:
            store.stream(action.stream).consumer(action.consumer).delete()
        else:
            store.delete_stream(action.stream)
        return
    assert definition is not None and action.kind in (MAKE, CHANGE), action
    if action.consumer:
        store.stream(action.stream).add_consumer(definition.consumers[action.consumer])
    elif action.kind == MAKE:
        store.add_stream(definition.config, allow_overlap=wanted.allow_overlap)
    else:
        store.edit_stream(definition.config, allow_overlap=wanted.allow_overlap)
