"""Commands about streams: made, changed, deleted, restored, and which volumes have their blocks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from storage_core import errors
from storage_core.frozen import replace
from storage_core.metadata.commands import (
    AddStream,
    ChangePlacement,
    DeleteStream,
    EditStream,
    PrepareStreams,
    RecordHolders,
    RestoreStreams,
    ids_of_voters,
)
from storage_core.metadata.config import StreamConfig
from storage_core.metadata.consumers import restored
from storage_core.metadata.invariants import check_stream
from storage_core.metadata.manifest import PENDING_DELETE_DTYPE, Table, ids
from storage_core.metadata.results import Done, Place, Result, refuse, refuse_with
from storage_core.metadata.retention import beginning, check_change
from storage_core.metadata.state import StoreState, StreamState, decode_stream
from storage_core.metadata.store_changes import with_events
from storage_core.subjects import filters_overlap


def new_config(state: StoreState, given: Mapping[str, Any]) -> StreamConfig:
    """Return the configuration of a new stream: keys that are not given are the store's defaults, and a replica on
    every volume. Raises ValueError naming the key.
    """
    defaults = state.settings.defaults_of(str(given.get("name")))
    if given.get("num_replicas") is None:
        defaults["num_replicas"] = len(ids_of_voters(state.voters))
    missing = {key: value for key, value in defaults.items() if given.get(key) is None}
    return StreamConfig.from_mapping({**given, **missing})


def add_stream(state: StoreState, place: Place, time_ns: int, command: AddStream) -> tuple[StoreState, Result]:
    _check_name_is_free(state, command.config.name)
    if not command.allow_overlap:
        _check_apart(state, command.config.name, command.config.subjects)
    stream = StreamState(command.config, command.incarnation, time_ns, command.placement)
    return state.with_stream(stream), Done()


def _check_name_is_free(state: StoreState, name: str) -> None:
    existing = state.streams.get(name.casefold())
    if existing is not None:
        how = "exists" if existing.name == name else f"differs from stream {existing.name!r} only in case"
        refuse(errors.AlreadyExistsError, f"stream {name!r} {how}")


class Overlap(NamedTuple):
    """Subjects that two streams take: those of the one that is asked about, and those of the other."""

    subjects: list[str]
    other: str
    other_subjects: list[str]


def overlaps(state: StoreState, name: str, subjects: Iterable[str]) -> Iterator[Overlap]:
    """Yield, by name, the other streams that take messages of these subjects of the stream `name`."""
    asked = list(subjects)
    others = {stream.name: stream for subject in asked for stream in state.streams.that_may_take(subject)}
    for _, other in sorted(others.items()):
        pairs = [(own, its) for own in asked for its in other.config.subjects if filters_overlap(own, its)]
        if pairs and other.name != name:
            own_subjects, other_subjects = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
            yield Overlap(own_subjects, other.name, other_subjects)


def _check_apart(state: StoreState, name: str, subjects: Iterable[str]) -> None:
    for overlap in overlaps(state, name, subjects):
        refuse_with(errors.SubjectsOverlapError(name, *overlap))


def edit_stream(state: StoreState, place: Place, time_ns: int, command: EditStream) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    old, new = stream.config, command.config
    if new.name != old.name:
        refuse(errors.RequirementError, f"stream {old.name!r}: a stream cannot be renamed to {new.name!r}")
    if new.num_replicas != old.num_replicas:
        reason = f"num_replicas is {old.num_replicas} and cannot be changed to {new.num_replicas}"
        refuse(errors.RequirementError, f"stream {old.name!r}: {reason}")
    for flag in ("sealed", "deny_delete", "deny_purge", "allow_msg_ttl"):
        if getattr(old, flag) and not getattr(new, flag):
            refuse(errors.RequirementError, f"stream {old.name!r}: {flag} cannot be taken back")
    if not command.allow_overlap:
        _check_apart(state, new.name, (subject for subject in new.subjects if subject not in old.subjects))
    try:
        check_change(old.retention, new.retention, old.name)
    except errors.RequirementError as error:
        refuse(type(error), str(error))
    return state.with_stream(with_config(stream, new)), Done()


def with_config(stream: StreamState, config: StreamConfig) -> StreamState:
    """Return the stream with another configuration, its messages as they are; asked before an edit as well."""
    old, stream = stream.config, replace(stream, config=config)
    if config.retention != old.retention:
        stream = replace(stream, missed_end=stream.first_sequence)
        for _, consumer in stream.consumers.items():
            stream = stream.with_consumer(beginning(stream, consumer))
    return stream


def delete_stream(state: StoreState, place: Place, time_ns: int, command: DeleteStream) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    pending_deletes = add_pending_deletes(state.pending_deletes, stream, stream.blocks.rows, time_ns)
    # The directory outlives its blocks: a row with no block id asks maintenance to remove it at the end.
    directory = np.zeros(len(stream.incarnations), PENDING_DELETE_DTYPE)
    directory["incarnation"], directory["dropped_ns"] = ids(stream.incarnations), time_ns
    return replace(
        state, streams=state.streams.without(stream), pending_deletes=pending_deletes.append(directory)
    ), Done()


def prepare_streams(
    state: StoreState, place: Place, time_ns: int, command: PrepareStreams
) -> tuple[StoreState, Result]:
    if any(state.by_incarnation(incarnation) is not None for incarnation in command.incarnations):
        refuse(errors.AlreadyExistsError, "a stream is prepared under an incarnation that there is")
    deletes = np.zeros(len(command.incarnations), PENDING_DELETE_DTYPE)
    deletes["incarnation"], deletes["dropped_ns"] = ids(command.incarnations), command.until_ns
    return replace(state, pending_deletes=state.pending_deletes.append(deletes)), Done()


def restore_streams(
    state: StoreState, place: Place, time_ns: int, command: RestoreStreams
) -> tuple[StoreState, Result]:
    for encoded in command.streams:
        try:
            stream = decode_stream(encoded)
            check_stream(stream)
        except errors.CorruptionError as error:
            refuse(errors.CorruptionError, str(error))
        _check_name_is_free(state, stream.name)
        if state.by_incarnation(stream.incarnation) is not None:
            refuse(errors.AlreadyExistsError, f"stream {stream.name!r}: its incarnation is another stream's")
        if not stream.placement or any(state.voter(volume_id) is None for volume_id in stream.placement):
            refuse(errors.RequirementError, f"stream {stream.name!r}: its placement names volumes that there are not")
        deletes = state.pending_deletes.rows
        prepared = (deletes["incarnation"] == np.void(stream.incarnation)) & (deletes["block_id"] == np.void(bytes(16)))
        if not prepared.any():
            refuse(errors.RequirementError, f"stream {stream.name!r}: its blocks were unlinked before it was restored")
        histories = ((place.history, 1),) if stream.next_sequence > 1 else ()
        stream = restored(replace(stream, created_ns=time_ns, histories=histories))
        state = replace(state, pending_deletes=state.pending_deletes.keep(~prepared)).with_stream(stream)
    return with_events(state, command.events, time_ns), Done()


def change_placement(
    state: StoreState, place: Place, time_ns: int, command: ChangePlacement
) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    if not command.placement:
        refuse(errors.RequirementError, f"stream {stream.name!r}: its blocks are kept on at least one volume")
    unknown = [volume_id.hex() for volume_id in command.placement if state.voter(volume_id) is None]
    if unknown or len(set(command.placement)) != len(command.placement):
        refuse(errors.RequirementError, f"stream {stream.name!r}: {unknown or 'a volume given twice'} is no placement")
    # Bit i of a row's holders speaks of volume i of the placement: it moves with the volume.
    rows = stream.blocks.rows.copy()
    holders = np.zeros(len(rows), rows["holders"].dtype)
    for position, volume_id in enumerate(command.placement):
        if volume_id in stream.placement:
            held = (rows["holders"] >> np.uint32(stream.placement.index(volume_id))) & np.uint32(1)
            holders |= held << np.uint32(position)
    rows["holders"] = holders
    config = msgspec.structs.replace(stream.config, num_replicas=len(command.placement))
    stream = replace(stream, placement=command.placement, config=config, blocks=Table.of(rows))
    return with_events(state.with_stream(stream), command.events, time_ns), Done()


def record_holders(state: StoreState, place: Place, time_ns: int, command: RecordHolders) -> tuple[StoreState, Result]:
    stream = live(state, command.incarnation)
    if command.volume_id not in stream.placement:
        reason = f"stream {stream.name!r} keeps no blocks on volume {command.volume_id.hex()}"
        refuse(errors.RequirementError, reason)
    rows = stream.blocks.rows.copy()
    held = np.isin(rows["block_id"], np.frombuffer(command.blocks, "V16"))
    rows["holders"][held] |= np.uint32(1) << np.uint32(stream.placement.index(command.volume_id))
    stream = replace(stream, blocks=Table.of(rows))
    return with_events(state.with_stream(stream), command.events, time_ns), Done()


def live(state: StoreState, incarnation: bytes) -> StreamState:
    stream = state.by_incarnation(incarnation)
    if stream is None:
        refuse(errors.StaleIncarnationError, "the stream was deleted, or deleted and made again, in the meantime")
    assert stream is not None
    return stream


def add_pending_deletes(pending_deletes: Table, stream: StreamState, blocks: np.ndarray, time_ns: int) -> Table:
    deletes = np.zeros(len(blocks), PENDING_DELETE_DTYPE)
    deletes["incarnation"] = np.void(stream.incarnation)
    for incarnation, end in reversed(stream.origins):
        deletes["incarnation"][blocks["first"] < end] = np.void(incarnation)
    deletes["block_id"], deletes["dropped_ns"] = blocks["block_id"], time_ns
    return pending_deletes.append(deletes)
