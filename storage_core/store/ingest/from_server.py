"""Importing streams of another server: with their sequences, times, headers, holes and consumers, exactly once.

The same command, run again, resumes where the last one was ended, and what an import did is in the stream: run once
more, it stores nothing. How streams are put together: assembly.py. Of a STAN store an event `import_begun` says before
anything is read which store that is, and whether it is read past an unexpected end.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from storage_core.errors import (
    AlreadyExistsError,
    CorruptionError,
    DataLossError,
    NotAStoreError,
    StorageError,
)
from storage_core.files import OS_FILES, Files
from storage_core.foreign import ForeignDamage, ForeignStore
from storage_core.foreign.budget import fold_damage, together
from storage_core.foreign.plans import match_names
from storage_core.foreign.stan.store import StanStore
from storage_core.metadata.commands import RecordEvents, ids_of_voters
from storage_core.metadata.reconcile import FAIL
from storage_core.metadata.state import StoreState, StreamState
from storage_core.sequences import SequenceSet
from storage_core.store.ensemble.metadata_client import translated
from storage_core.store.ingest import preparation, server_growth
from storage_core.store.ingest.assembly import Assembled, Assembler, RunParts, check_room
from storage_core.store.ingest.progress import Progress, ProgressCounter
from storage_core.store.ingest.records import PartRecord
from storage_core.store.ingest.server_config import readable, stream_config, stream_names
from storage_core.store.ingest.server_parts import PartTask, damage_row, write_part
from storage_core.store.ingest.server_streams import WRITER, ServerStream
from storage_core.store.ingest.stan_uses import StoreUse, check_use, last_use
from storage_core.store.opened import OpenStore
from storage_core.store.volume import placement

DAMAGE_COUNT_MAX = 10_000  # places of damage that an import lists one by one
STREAMS_AT_ONCE = 64  # streams of one entry
RANGES_SHOWN = 1000  # lost ranges in a report


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What is asked for."""

    streams: tuple[str, ...] = ()  # names and globs; empty: all
    as_names: Mapping[str, str] = field(default_factory=dict)  # what to call them here, by their own names
    num_replicas: int | None = None  # None: as many as there are volumes
    on_data_loss: str = FAIL  # at what a strict read of the source stops at, and at bad records of subscriptions
    truncate_bad_eof: bool = False  # the source was opened so


def import_streams(
    store: OpenStore,
    source: ForeignStore,
    request: ImportRequest,
    progress: Progress | None = None,
    run_parts: RunParts[PartTask] | None = None,
    source_files: Files = OS_FILES,
) -> dict[str, Any]:
    """Import streams of another server's store; run again, resume, or say that it was done. Returns a report.

    `progress` gets (block files done, block files in all). `run_parts` writes parts elsewhere, as a Spark job does,
    and says how many block files are done with each. Raises NotFoundError (no such stream there), AlreadyExistsError
    (a stream of that name is here), ValueError (names, number of replicas), RequirementError (an unexpected end was
    read past the last time, too), DataLossError (damage that is not skipped), and what writing to a store raises.
    What was done until then is kept for a week, for the same import.
    """
    return _Import(store, source, request, progress, run_parts, source_files).run()


class _Import:
    def __init__(
        self, store: OpenStore, source: ForeignStore, request: ImportRequest, progress: Progress | None,
        run_parts: RunParts[PartTask] | None, source_files: Files,
    ) -> None:  # fmt: skip
        self._store, self._source, self._request, self._files = store, source, request, source_files
        self._progress = ProgressCounter(progress)
        self._assembler = Assembler(store, run_parts or self._run_here, self._progress)
        self._failed: list[dict[str, str]] = []
        self._reports: list[dict[str, Any]] = []
        self._damage: list[dict[str, Any]] = []
        self._unlisted: dict[str, Any] = {}  # one row for what comes after DAMAGE_COUNT_MAX

    def run(self) -> dict[str, Any]:
        state, assembler = self._store.view().state, self._assembler
        names = self._names()
        wanted = self._to_do(state, self._plan(names, _replicas(state, self._request.num_replicas)))
        if wanted:
            prepared = assembler.find_prepared(state, wanted)
            uses = self._uses()
            for use in uses:
                check_use(last_use(state, use), use)
            known = [
                StreamState(stream.config, b"", 0, (), message_count=sum(part.row_count for part in stream.slices))
                for stream in wanted
            ]
            consumers = sum(consumer.is_durable for stream in wanted for consumer in stream.consumers)
            check_room(state, known, {"max_streams": len(wanted), "max_consumers": consumers})
        self._progress.total = sum(len(stream.slices) for stream in wanted)
        self._progress.step(0)
        for at in range(0, len(wanted), STREAMS_AT_ONCE):
            with translated(self._store.label):
                chunk = wanted[at : at + STREAMS_AT_ONCE]
                jobs = assembler.prepare(chunk, prepared)
                if at == 0:
                    self._remember(uses)
                for planned, done in zip(chunk, assembler.fill(jobs), strict=True):
                    self._add_report(planned, done)
        return self._report()

    # --- what there is to do

    def _names(self) -> dict[str, str]:
        """Return what the streams that are asked for are called here. Raises NotFoundError, ValueError."""
        streams = self._source.streams()
        if not self._request.streams:
            return stream_names(streams, self._request.as_names)

        def find(name: str) -> str:
            self._source.copies(name)  # raises NotFoundError with the nearest name
            return name

        return stream_names(match_names(self._request.streams, streams, find, "the source"), self._request.as_names)

    def _plan(self, names: Mapping[str, str], num_replicas: int) -> list[ServerStream]:
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

    def _plan_one(self, foreign: str, name: str, num_replicas: int) -> ServerStream:
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
        return ServerStream(
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
            digest=_digest(decided),
            on_data_loss=policy,
        )

    def _to_do(self, state: StoreState, planned: Sequence[ServerStream]) -> list[ServerStream]:
        """Return the streams that are not here yet; what this import made is reported. Raises AlreadyExistsError."""
        wanted = []
        for stream in planned:
            existing = state.streams.get(stream.name.casefold())
            if existing is None:
                wanted.append(stream)
                continue
            writer = existing.writers.get(WRITER)
            if writer is not None and stream.digest.hex() not in writer.batches:
                growth = server_growth.append_growth(self._store, self._source, stream, existing, self._files)
                if growth is not None:
                    self._add_report(stream, growth, already=not growth.records)
                    continue
            if writer is None or existing.name != stream.name or stream.digest.hex() not in writer.batches:
                reason = "an import made it, of another source or of this one before it changed; " if writer else ""
                raise AlreadyExistsError(
                    f"stream {existing.name!r} exists: {reason}import under another name (--stream with --as), or "
                    "delete this one first"
                )
            self._assembler.import_id = self._assembler.import_id or bytes.fromhex(writer.run)
            preparation.sweep_records(self._store, existing)
            self._add_report(stream, Assembled(existing, notes=stream.notes), already=True)
        return wanted

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
            import_id = self._assembler.import_id.hex()
            uses.append(StoreUse(cluster, readable(root), import_id, self._request.truncate_bad_eof))
        return uses

    def _remember(self, uses: Sequence[StoreUse]) -> None:
        """Write down in the importing store what is read now, before anything is read."""
        with self._store.session() as session:
            new = [use for use in uses if last_use(session.state, use) != use]
            for use in new:
                check_use(last_use(session.state, use), use)
            if new:
                session.propose(RecordEvents(tuple(use.event() for use in new)))

    def _run_here(self, tasks: Sequence[PartTask], step: Callable[[int], None]) -> Iterator[PartRecord]:
        for task in tasks:
            yield write_part(task, self._store.environment, self._files, lambda: step(1))

    # --- the report

    def _add_report(self, planned: ServerStream, done: Assembled, already: bool = False) -> None:
        stream, records = done.stream, done.records
        beside = [damage_row(damage) for damage in planned.damage]
        damage_rows = [*beside, *(row for record in records for row in record.damage)]
        self._list_damage(damage_rows)
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
                "notes": list(done.notes),
            }
        )

    def _list_damage(self, rows: Sequence[dict[str, Any]]) -> None:
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
            "import": self._assembler.import_id.hex(),
            "ok": is_whole and not self._failed,
            "streams": sorted(self._reports, key=lambda report: str(report["name"])),
            "failed": self._failed,
            "damage": damage,
        }


def _replicas(state: StoreState, asked: int | None) -> int:
    """Return how many replicas imported streams get. Raises ValueError if there are not so many volumes."""
    count = len(ids_of_voters(state.voters))
    if asked is None:
        return placement.possible_replicas(count, count)
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
