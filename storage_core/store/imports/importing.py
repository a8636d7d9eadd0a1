"""Importing streams of another server: with their sequences, times, headers, holes and consumers, exactly once.

An imported stream appears complete or not at all. Its directory is prepared first, as that of a restored stream is (a
delete in time to come: what an import that was given up leaves there goes then); tasks read parts of the source and
write them as blocks under the sequences that the messages have; one entry brings the stream with everything in it.
What a part came to lies beside its blocks (parts.py), so that the same command, run again, goes on where the
last one was ended, and what an import did is in the stream: run once more, it stores nothing.

    prepare_streams, heads    the directories say which import fills them
    import_begun              an event: which store is read, and whether past an unexpected end
    parts                     in any order, on any number of executors
    restore_streams           64 streams at a time at most

Format of what lies in the directories: docs/formats/import.md.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    DataLossError,
    NotAStoreError,
    RequirementError,
    StorageError,
)
from storage_core.files import OS_FILES, Files
from storage_core.foreign import ForeignDamage, ForeignSlice, ForeignStore
from storage_core.foreign.budget import fold_damage, together
from storage_core.foreign.plans import match_names
from storage_core.foreign.stan.store import StanStore
from storage_core.frozen import replace
from storage_core.metadata.commands import PrepareStreams, RecordEvents, RestoreStreams, ids_of_voters
from storage_core.metadata.manifest import decode_blocks
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import StoreState, StreamState, encode_stream, kept_of
from storage_core.metadata.store_changes import over_totals
from storage_core.sequences import SequenceSet
from storage_core.store.backups.restored_streams import PREPARED_NS, STREAMS_SIZE_MAX
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ensemble.session import Session
from storage_core.store.environment import Environment
from storage_core.store.imports import grown
from storage_core.store.imports.assembly import (
    WRITER,
    Assembled,
    ImportJob,
    PlannedStream,
    assemble,
    is_whole,
    leftovers,
    prepared_heads,
    sweep,
)
from storage_core.store.imports.config import stream_config, stream_names
from storage_core.store.imports.parts import (
    HEAD_FILE,
    ImportHead,
    ImportTarget,
    PartRecord,
    PartTask,
    damage_row,
    part_file,
    read_record,
    readable,
    write_part,
    write_record,
)
from storage_core.store.imports.stan_uses import StoreUse, check_use, last_use
from storage_core.store.store import Store
from storage_core.store.volume import placement
from storage_core.store.writing import appends
from storage_core.store.writing.sink import BlockPlace

logger = logging.getLogger(__name__)
PART_SIZE = 64 << 20  # bytes of block files in one part, unless a single one is larger
DAMAGE_COUNT_MAX = 10_000  # places of damage that an import lists one by one
PART_FILE_COUNT_MAX = 256  # block files in one part
STREAMS_AT_ONCE = 64  # streams of one entry
RANGES_SHOWN = 1000  # lost ranges in a report
Progress = Callable[[int, int], None]
RunParts = Callable[[Sequence[PartTask], Callable[[int], None]], Iterable[PartRecord]]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What is asked for."""

    streams: tuple[str, ...] = ()  # names and globs; empty: all
    as_names: Mapping[str, str] = field(default_factory=dict)  # what to call them here, by their own names
    num_replicas: int | None = None  # None: as many as there are volumes
    on_data_loss: str = FAIL  # at what a strict read of the source stops at, and at bad records of subscriptions
    truncate_bad_eof: bool = False  # the source was opened so


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A directory that is being filled."""

    head: ImportHead
    incarnation: bytes


def import_streams(
    store: Store,
    source: ForeignStore,
    request: ImportRequest,
    progress: Progress | None = None,
    run_parts: RunParts | None = None,
    source_files: Files = OS_FILES,
) -> dict[str, Any]:
    """Import streams of another server's store; run again, go on, or tell that it was done. Returns a report.

    `progress` hears (block files done, block files in all). `run_parts` writes parts elsewhere, as a Spark job does,
    and says how many block files are done with each. Raises NotFoundError (no such stream there), AlreadyExistsError
    (a stream of that name is here), ValueError (names, number of replicas), RequirementError (an unexpected end was
    read past the last time, too), DataLossError (damage that is not gone on past), and what writing to a store raises.
    What was done until then is kept for a week, for the same import.
    """
    return _Import(store, source, request, progress, run_parts, source_files).run()


class _Import:
    def __init__(
        self, store: Store, source: ForeignStore, request: ImportRequest, progress: Progress | None,
        run_parts: RunParts | None, source_files: Files,
    ) -> None:  # fmt: skip
        self._store, self._source, self._request, self._files = store, source, request, source_files
        self._env: Environment = store.environment
        self._run_parts = run_parts or self._run_here
        self._progress, self._done, self._total = progress, 0, 0
        self._failed: list[dict[str, str]] = []
        self._reports: list[dict[str, Any]] = []
        self._damage: list[dict[str, Any]] = []
        self._unlisted: dict[str, Any] = {}  # one row for what comes after DAMAGE_COUNT_MAX
        self._id = b""

    def run(self) -> dict[str, Any]:
        state = self._store.view().state
        names = self._names()
        planned = self._plan(names, _replicas(state, self._request.num_replicas))
        wanted, prepared = self._to_do(state, planned), {}
        if wanted:
            prepared = self._find_prepared(state, wanted)
            self._id = (
                self._id
                or next((preparation.head.import_id for preparation in prepared.values()), b"")
                or self._env.new_id()
            )
            uses = self._uses()
            for use in uses:
                check_use(last_use(state, use), use)
            known = [
                StreamState(stream.config, b"", 0, (), message_count=sum(part.row_count for part in stream.slices))
                for stream in wanted
            ]
            consumers = sum(consumer.is_durable for stream in wanted for consumer in stream.consumers)
            _check_room(state, known, {"max_streams": len(wanted), "max_consumers": consumers})
        self._total = sum(len(stream.slices) for stream in wanted)
        self._step(0)
        for at in range(0, len(wanted), STREAMS_AT_ONCE):
            with translated(self._store.label):
                chunk = self._prepare(wanted[at : at + STREAMS_AT_ONCE], prepared)
                if at == 0:
                    self._remember(uses)
                self._fill(chunk)
        return self._report()

    # --- what there is to do

    def _names(self) -> dict[str, str]:
        """Return what the streams that are asked for are called here. Raises NotFoundError, ValueError."""
        streams = self._source.streams()
        if not self._request.streams:
            return stream_names(streams, self._request.as_names)

        def find(name: str) -> str:
            self._source.copies(name)  # which tells the nearest name
            return name

        return stream_names(match_names(self._request.streams, streams, find, "the source"), self._request.as_names)

    def _plan(self, names: Mapping[str, str], num_replicas: int) -> list[PlannedStream]:
        """Return the streams that can be read; the others are reported. Raises the reason of one that is alone."""
        planned = []
        for foreign, name in names.items():
            try:
                planned.append(self._plan_one(foreign, name, num_replicas))
            except DataLossError:
                raise
            except (StorageError, ValueError) as error:
                if len(names) == 1:
                    raise
                self._failed.append({"stream": foreign, "reason": str(error)})
        return planned

    def _plan_one(self, foreign: str, name: str, num_replicas: int) -> PlannedStream:
        described = self._source.copies(foreign)
        first = next((stream for stream in described if not stream.problem), described[0])
        config, notes = stream_config(name, first, num_replicas)
        if caveat := self._source.caveat(foreign):
            notes.append(caveat)
        slices = tuple(self._source.plan([foreign]))
        reported: list[ForeignDamage] = []
        consumers = self._source.consumers(foreign, reported.append)
        noted = self._source.noted(foreign)
        for damage in [*reported, *noted]:
            if self._request.on_data_loss == FAIL and not damage.allowed and (damage.record or damage.costs):
                raise DataLossError(damage.explain())
        reported += noted
        policy = self._request.on_data_loss
        decided = [first.layout, first.account, foreign, msgspec.to_builtins(config), policy, slices]
        return PlannedStream(
            foreign=foreign,
            layout=first.layout,
            account=first.account,
            paths=tuple(stream.path for stream in described),
            config=config,
            slices=slices,
            bounds=self._source.bounds(foreign),
            consumers=tuple(consumers),
            damage=tuple(fold_damage(reported)),
            notes=tuple(notes),
            source=_digest(decided),
        )

    def _to_do(self, state: StoreState, planned: Sequence[PlannedStream]) -> list[PlannedStream]:
        """Return the streams that are not here yet; what this import made is reported. Raises AlreadyExistsError."""
        wanted = []
        for stream in planned:
            existing = state.streams.get(stream.name.casefold())
            if existing is None:
                wanted.append(stream)
                continue
            writer = existing.writers.get(WRITER)
            if writer is not None and stream.source.hex() not in writer.batches:
                report = grown.go_on(self._store, self._source, stream, existing, self._files)
                if report is not None:
                    self._reports.append(report)
                    continue
            if writer is None or existing.name != stream.name or stream.source.hex() not in writer.batches:
                reason = "an import made it, of another source or of this one before it changed; " if writer else ""
                raise AlreadyExistsError(
                    f"stream {existing.name!r} exists: {reason}import under another name (--stream with --as), or "
                    "delete this one first"
                )
            self._id = self._id or bytes.fromhex(writer.run)
            self._sweep_records(existing)
            self._tell(stream, existing, (), True, stream.notes)
        return wanted

    def _sweep_records(self, stream: StreamState) -> None:
        """Unlink records that a run left which was killed after its streams had come."""
        left = leftovers(self._store.volumes(), stream, records_only=True)
        if left:
            with self._store.session():
                sweep(left)

    def _find_prepared(self, state: StoreState, wanted: Sequence[PlannedStream]) -> dict[bytes, _Prepared]:
        """Return, by digest of their source, the directories that an import like this one has begun to fill."""
        names = {stream.source: stream.name for stream in wanted}
        return {
            head.source: _Prepared(head, incarnation)
            for head, incarnation in prepared_heads(state, self._store.volumes(), self._env)
            if names.get(head.source) == head.name
        }

    # --- the rule of STAN's unexpected ends

    def _uses(self) -> list[StoreUse]:
        if not isinstance(self._source, StanStore):
            return []
        uses = []
        for root in self._source.roots:
            try:
                cluster = self._source.cluster_id(root)
            except (NotAStoreError, CorruptionError):
                cluster = ""
            uses.append(StoreUse(cluster, readable(root), self._id.hex(), self._request.truncate_bad_eof))
        return uses

    def _remember(self, uses: Sequence[StoreUse]) -> None:
        """Write down in the importing store what is read now, before anything is read."""
        with self._store.session() as session:
            new = [use for use in uses if last_use(session.state, use) != use]
            for use in new:
                check_use(last_use(session.state, use), use)
            if new:
                session.propose(RecordEvents(tuple(use.event() for use in new)))

    # --- filling directories

    def _prepare(self, planned: Sequence[PlannedStream], prepared: Mapping[bytes, _Prepared]) -> list[ImportJob]:
        """Return the work on these streams, after their directories were made and say what they are for."""
        works = []
        with self._store.session() as session:
            new = {plan.source: self._env.new_id() for plan in planned if plan.source not in prepared}
            if new:
                placed = {
                    plan.source: placement.choose(session.state, session.writable, plan.config.num_replicas)
                    for plan in planned
                    if plan.source in new
                }
                until_ns = session.state.time_at(self._env.now_ns()) + PREPARED_NS
                session.propose(PrepareStreams(tuple(new.values()), until_ns))
            for plan in planned:
                known = prepared.get(plan.source)
                if known is not None:
                    head, incarnation = known.head, known.incarnation
                else:
                    head = ImportHead(self._id, plan.source, plan.name, placed[plan.source])
                    incarnation = new[plan.source]
                stream = StreamState(plan.config, incarnation, self._env.now_ns(), head.placement)
                appends.make_directories(session, incarnation, head.placement, self._env)
                target = self._target(session, stream, head)
                write_record(target.place.volumes, incarnation, HEAD_FILE, head, self._env)
                works.append(ImportJob(plan, stream, target, tuple(_tasks(target, plan.slices))))
        return works

    def _target(self, session: Session, stream: StreamState, head: ImportHead) -> ImportTarget:
        config = stream.config
        place = BlockPlace(
            volumes=placement.write_volumes(session.state, stream, session.volumes),
            needed=placement.quorum(stream),
            codec=config.compression,
            store_id=session.state.store_id,
            incarnation=stream.incarnation,
            transaction_id=self._env.now_ns().to_bytes(8, "big") + self._env.random_bytes(8),
            block_max_msgs=config.block_max_msgs,
            block_max_bytes=config.block_max_bytes,
        )
        return ImportTarget(config.name, place, head.source, self._request.on_data_loss)

    def _fill(self, works: Sequence[ImportJob]) -> None:
        """Write what is missing, and bring the streams of one entry."""
        records: dict[bytes, dict[int, PartRecord]] = {}
        left: list[PartTask] = []
        state = self._store.view().state
        for work in works:
            done = self._done_before(work)
            records[work.stream.incarnation] = done
            self._step(sum(len(task.slices) for task in work.tasks if task.number in done))
            left += [task for task in work.tasks if task.number not in done]
        size = {incarnation: sum(map(_size_of, done.values())) for incarnation, done in records.items()}
        for record in self._run_parts(left, self._step):
            records[record.incarnation][record.number] = record
            size[record.incarnation] += _size_of(record)
            _check_room(state, [replace(work.stream, data_size=size[work.stream.incarnation]) for work in works], {})
        with self._store.session() as session:
            made = [assemble(session, work, records[work.stream.incarnation], self._id, self._env) for work in works]
            left_over = [left for assembly in made for left in leftovers(session.writable, assembly.stream)]
            session.propose(self._command(made))
            sweep(left_over)
        for work, assembled in zip(works, made, strict=True):
            self._tell(work.planned, assembled.stream, assembled.records, False, assembled.notes)

    def _run_here(self, tasks: Sequence[PartTask], step: Callable[[int], None]) -> Iterator[PartRecord]:
        for task in tasks:
            yield write_part(task, self._env, self._files, lambda: step(1))

    def _done_before(self, work: ImportJob) -> dict[int, PartRecord]:
        """Return the parts that an earlier run has done: a record says so, and a quorum has every block, whole."""
        numbers = {part_file(task.number): task.number for task in work.tasks}
        records: dict[int, PartRecord] = {}
        incarnation = work.stream.incarnation
        for left in leftovers(self._store.volumes(), work.stream, records_only=True):
            for name in set(left.records) & set(numbers):
                if numbers[name] in records:
                    continue
                record = read_record(left.blocks, incarnation, name)
                is_ours = isinstance(record, PartRecord) and record.source == work.target.source
                if is_ours and isinstance(record, PartRecord) and record.incarnation == incarnation:
                    if is_whole(work, record, self._store.volumes(), self._env):
                        records[record.number] = record
        return records

    def _command(self, made: Sequence[Assembled]) -> RestoreStreams:
        encoded = tuple(encode_stream(assembled.stream) for assembled in made)
        size = sum(map(len, encoded))
        if size > STREAMS_SIZE_MAX:
            raise RequirementError(
                f"the streams have {size} bytes of metadata, one entry takes {STREAMS_SIZE_MAX}: "
                "import some, by --stream"
            )
        return RestoreStreams(encoded, tuple(event for assembled in made for event in assembled.events))

    # --- telling

    def _step(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _tell(
        self,
        planned: PlannedStream,
        stream: StreamState,
        records: Sequence[PartRecord],
        already: bool,
        notes: Sequence[str],
    ) -> None:
        beside = [damage_row(damage) for damage in planned.damage]
        damage_rows = [*beside, *(row for record in records for row in record.damage)]
        self._list(damage_rows)
        count, lost, unexplained = stream.message_count, len(stream.lost), SequenceSet.empty()
        for record in records:
            unexplained = unexplained.union(SequenceSet.decode(record.open))
        unexplained = unexplained.clip(stream.low_watermark, stream.next_sequence).difference(stream.lost)
        shown = stream.next_sequence - stream.low_watermark
        self._reports.append(
            {
                "name": stream.name,
                "source": planned.foreign,
                "account": planned.account,
                "already": already,
                "incarnation": stream.incarnation.hex(),
                "first_seq": stream.low_watermark,
                "last_seq": stream.next_sequence - 1,
                "read": count if already else sum(record.read_count for record in records),
                "messages": count,
                "bytes": stream.data_size,
                "holes": shown - count - lost,
                "lost": lost,
                "lost_ranges": [list(run) for run in stream.lost.ranges_head(RANGES_SHOWN)],
                "open": len(unexplained),
                "open_ranges": [list(run) for run in unexplained.ranges_head(RANGES_SHOWN)],
                "damaged": sum(row["left"] for row in damage_rows),
                "blocks": len(stream.blocks),
                "num_replicas": stream.config.num_replicas,
                "consumers": sorted(consumer.name for consumer in stream.consumers.values()),
                "notes": list(notes),
            }
        )

    def _list(self, rows: Sequence[dict[str, Any]]) -> None:
        room = max(0, DAMAGE_COUNT_MAX - len(self._damage))
        self._damage += rows[:room]
        for row in rows[room:]:
            before = self._unlisted or {**row, "left": False, "places": 0}
            places = before["places"] + row["places"]
            self._unlisted = {**before, "left": before["left"] or row["left"], "places": places}

    def _report(self) -> dict[str, Any]:
        damage = list(self._damage)
        if self._unlisted:
            reason = together(self._unlisted["places"], self._unlisted["reason"])
            damage.append({**self._unlisted, "reason": reason, "description": reason})
        is_whole = not any(row["left"] for row in damage) and not any(report["lost"] for report in self._reports)
        return {
            "layout": self._source.layout,
            "import": self._id.hex(),
            "ok": is_whole and not self._failed,
            "streams": sorted(self._reports, key=lambda report: str(report["name"])),
            "failed": self._failed,
            "damage": damage,
        }


def _check_room(state: StoreState, streams: Sequence[StreamState], more: Mapping[str, int]) -> None:
    """Raise LimitExceededError if the store's totals have no room for what is known of these streams, and for more."""
    kept = [kept_of(stream) for stream in streams]
    sizes = {"max_msgs": sum(count for count, _ in kept), "max_bytes": sum(size for _, size in kept)}
    error = over_totals(state, {**sizes, **more})
    if error is not None:
        raise error


def _size_of(record: PartRecord) -> int:
    return int(decode_blocks(record.rows, "rows")["data_size"].sum())


def _replicas(state: StoreState, asked: int | None) -> int:
    """Return how many replicas imported streams get. Raises ValueError if there are not so many volumes."""
    count = len(ids_of_voters(state.voters))
    if asked is None:
        return count - (1 - count % 2)
    if asked > count:
        raise ValueError(f"replicas: {asked} need as many volumes; the store has {count}")
    return asked


def _digest(value: object) -> bytes:
    return blake2b(json.dumps(_plain(value), sort_keys=True).encode(), digest_size=16).digest()


def _plain(value: object) -> Any:
    """Return plain values of plain values, for a digest; keys of encryption are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [attribute.name for attribute in dataclasses.fields(value) if attribute.name != "key"]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _tasks(target: ImportTarget, slices: Sequence[ForeignSlice]) -> Iterator[PartTask]:
    """Yield the parts of a stream: neighbouring slices up to PART_SIZE together."""
    number, gathered, size = 1, list[ForeignSlice](), 0
    for part in slices:
        is_full = size + part.byte_size > PART_SIZE or len(gathered) == PART_FILE_COUNT_MAX
        if gathered and is_full:
            yield PartTask(target, number, tuple(gathered))
            number, gathered, size = number + 1, [], 0
        gathered.append(part)
        size += part.byte_size
    if gathered:
        yield PartTask(target, number, tuple(gathered))
