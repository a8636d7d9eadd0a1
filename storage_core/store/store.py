"""Store: the face of a store towards Python, Spark's data source and the command line.

Opens volumes, keeps the metadata, hands out streams, and carries out appends. Everything below one `Store` may be
used from several threads; several processes may open the same volumes. What carries out what operators ask of it is
imported when it is called: reading and writing processes start without it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from storage_core import notebook
from storage_core.errors import (
    AlreadyExistsError,
    NotAStoreError,
    ReadOnlyError,
    StoreBusyError,
)
from storage_core.metadata.commands import AddStream, EditStore
from storage_core.metadata.config import StoreSettings, StreamConfig, given_keys
from storage_core.metadata.stream_changes import new_config
from storage_core.paths import Paths, check_apart, is_in_object_store, resolve_paths, volume_labels
from storage_core.quantities import check_flag, whole_number
from storage_core.store import describe
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import REAL, Environment, reaching
from storage_core.store.opened import LOCK_TIMEOUT_S, OpenStore, names_of
from storage_core.store.volume import placement

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.comparison import Drift
    from storage_core.store.key_value import KeyValue
    from storage_core.store.maintenance.compaction import Compaction
    from storage_core.store.maintenance.merging import MergePolicy
    from storage_core.store.recovery.membership import Membership
    from storage_core.store.snapshot import Snapshot
    from storage_core.store.stream import Stream

CREATION_POLL_S = 0.02  # while another process or thread makes the same store


class Store(OpenStore):
    """A store of numbered streams on its volumes. Make one with `create` or `open`; a context manager."""

    @classmethod
    def create(
        cls,
        volumes: Paths,
        *,
        env: Environment = REAL,
        storage_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "Store":
        """Make a store on empty or missing directories, one, three or five, and open it; what they lie in is made, too.

        Volumes may be prefixes in object stores, `s3://bucket/prefix`; `storage_options` are those of the client, named
        as in delta-rs. Settings: deleted_block_retention, snapshot_every, permissions, max_streams, max_consumers,
        max_msgs, max_bytes, stream_defaults. Raises ValueError (number of volumes, one twice or within another, unknown
        setting), AlreadyExistsError (a directory that is not empty).
        """
        from storage_core.store.ensemble import creation

        paths = check_apart(resolve_paths(volumes))
        env = _reaching(paths, env, storage_options)
        made = creation.create_volumes(paths, StoreSettings.from_mapping(settings), env)
        return cls(MetadataClient(env, made), env, False, LOCK_TIMEOUT_S)

    @classmethod
    def open(
        cls,
        path_or_paths: Paths,
        read_only: bool = False,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        take_over: bool = False,
        env: Environment = REAL,
        storage_options: Mapping[str, Any] | None = None,
        recovers: bool = False,
    ) -> "Store":
        """Open the store that the volumes belong to; any of them leads to the rest.

        `take_over`: from now on the store is written from this host; for a host that is down for good, or a copy.
        `recovers`: a store that is opened for reading only is recovered if a power loss left commits that only the
        locks can tell from unfinished ones; that is done once, and nothing else is written.
        Raises NotAStoreError, CorruptionError, UnsupportedVersionError, ValueError (a volume at two paths).
        """
        _check_opening(read_only, take_over, recovers, lock_timeout_s)
        paths = resolve_paths(path_or_paths)
        env = _reaching(paths, env, storage_options)
        metadata = MetadataClient.at(env, paths, read_only, for_view=not take_over, recovers=recovers)
        store = cls(metadata, replace(env, leaves_reports=not read_only), read_only, lock_timeout_s)
        if take_over:
            with metadata.session(lock_timeout_s, take_over=True):
                pass
        state = store.view().state
        if not read_only and len(state.voters) > 1 and not is_in_object_store(paths[0]):  # which would be more requests
            store.maintain_if_due(state)
        return store

    @classmethod
    def open_or_create(
        cls,
        volumes: Paths,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        take_over: bool = False,
        env: Environment = REAL,
        storage_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "Store":
        """Open the store on these volumes; make it if every one of them is missing or empty.

        `settings` are those of `create`, for a store that is made. Raises what `open` and `create` do.
        """
        from storage_core.store.ensemble import creation

        paths = resolve_paths(volumes)
        env = _reaching(paths, env, storage_options)
        StoreSettings.from_mapping(settings)  # wrong ones are refused also where they are not needed
        deadline_s = env.monotonic() + lock_timeout_s
        while True:
            is_free = all(creation.is_free(path, env) for path in paths)  # before the look that may find a new store
            try:
                return cls.open(paths, lock_timeout_s=lock_timeout_s, take_over=take_over, env=env)
            except NotAStoreError:
                if not is_free:
                    raise
            try:
                return cls.create(paths, env=env, **settings)
            except (AlreadyExistsError, StoreBusyError):  # somebody else makes it at this moment
                if env.monotonic() >= deadline_s:
                    raise
                env.sleep(CREATION_POLL_S)

    # --- who and where

    def close(self) -> None:
        """End the use of this object, and of its streams and consumers: from now on they raise StoreClosedError.

        Operations under way in other threads, and readers that `read` has returned, run to their end. Files that stay
        open between calls are closed, so that nothing is in the way of unmounting a volume.
        """
        self._is_closed = True
        self._metadata.cache.close()
        if "maintenance" in vars(self):
            self.maintenance.close()

    def __enter__(self) -> "Store":
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return notebook.store_html(self.info(), self.cluster_info())

    def edit(self, **settings: Any) -> None:
        """Change settings of the store; those that are not given stay as they are.

        Limits lower than what there is remove nothing: nothing is added before there is room. Raises ValueError naming
        the setting, RequirementError for `permissions`, which stay.
        """
        StoreSettings.from_mapping(settings)
        with self.session() as session:
            merged = StoreSettings.from_mapping({**session.state.settings.to_json(), **settings})
            session.propose(EditStore(merged))

    # --- streams

    def snapshot(self) -> "Snapshot":
        """Return the store as it is now, for reads that belong together: `with store.snapshot() as view:`.

        Counts, messages and configurations of all streams come from one look at the volumes, whatever is written
        meanwhile. Raises what a look at the volumes does.
        """
        from storage_core.store.snapshot import Snapshot

        return Snapshot(self, self.view())

    def stream(self, name: str) -> "Stream":
        """Return the stream; raises NotFoundError naming the nearest name."""
        from storage_core.store.stream import Stream

        return Stream(self, self.stream_state(name).incarnation, name)

    def add_stream(
        self, config: StreamConfig | Mapping[str, Any] | None = None, *, allow_overlap: bool = False, **keys: Any
    ) -> "Stream":
        """Make a stream, on every volume unless num_replicas says less.

        The configuration comes as an object, a dict, or by its keys: `add_stream(name="ORDERS", max_msgs=9)`.
        `allow_overlap`: other streams may take the same subjects. Raises AlreadyExistsError, SubjectsOverlapError,
        ValueError naming the key of the configuration.
        """
        from storage_core.store.stream import Stream
        from storage_core.store.writing import appends

        check_flag("allow_overlap", allow_overlap)
        checked = new_config(self.view().state, given_keys(StreamConfig, config, keys))
        with self.session() as session:
            incarnation = self._env.new_id()
            chosen = placement.choose(session.state, session.writable, checked.num_replicas)
            command = AddStream(incarnation, checked, chosen, allow_overlap)
            session.check(command)
            appends.make_directories(session, incarnation, chosen, self._env)
            session.propose(command)
        return Stream(self, incarnation, checked.name)

    def key_value(self, bucket: str) -> "KeyValue":
        """Return the bucket of keys and values that the stream `KV_<bucket>` holds; raises NotFoundError."""
        from storage_core.store.key_value import KeyValue, stream_name

        return KeyValue(self, self.stream(stream_name(bucket)))

    def add_key_value(
        self, bucket: str, history: int = 1, *, allow_overlap: bool = False, **settings: Any
    ) -> "KeyValue":
        """Make a bucket of keys and values: the stream `KV_<bucket>`, configured as NATS clients do.

        `history`: revisions of a key that are kept, 64 at most. `settings`: keys of the stream's configuration, such
        as `max_age` (how long a value stays), `allow_msg_ttl=True` (for single keys), `max_bytes`, `num_replicas`.
        Raises what `add_stream` does, ValueError naming the setting.
        """
        from storage_core.store.key_value import KeyValue, stream_config

        config = stream_config(bucket, history, settings)
        return KeyValue(self, self.add_stream(config, allow_overlap=allow_overlap))

    def edit_stream(
        self, config: StreamConfig | Mapping[str, Any] | None = None, *, allow_overlap: bool = False, **keys: Any
    ) -> "Stream":
        """Change the stream that `name` in the configuration names, as `Stream.edit` does, and return it."""
        given = given_keys(StreamConfig, config, keys)
        name = given.get("name")
        if not isinstance(name, str):
            raise ValueError(f"name of a stream: {name!r} does not say which stream to change")
        stream = self.stream(name)
        stream.edit(given, allow_overlap=allow_overlap)
        return stream

    def delete_stream(self, name: str) -> None:
        """Delete the stream of this name, as `Stream.delete` does. Raises NotFoundError naming the nearest name."""
        self.stream(name).delete()

    # --- for operators

    def info(self) -> dict[str, Any]:
        """Return what there is to know about the store, with keys of the NATS API where they mean the same."""
        return notebook.Info(describe.store_info(self.view().state, self.volumes()), notebook.store_html)

    def cluster_info(self) -> dict[str, Any]:
        """Return what each volume is like: its metadata, and all copies of streams on it taken together."""
        return notebook.Info(describe.cluster_info(self.survey()), notebook.cluster_html)

    def report(self, streams: Sequence[str] | None = None, exact_times: bool = False) -> list[dict[str, Any]]:
        """Return these streams (None: all, by name) as `Stream.info` has them, from one look at the volumes.

        Without `exact_times` no message is read: the bounds of the first and last block stand for the times of the
        first and last message.
        """
        return describe.stream_report(self, names_of(streams), exact_times)

    def events(
        self, limit: int | None = None, stream: str | None = None, kind: str | None = None
    ) -> list[dict[str, Any]]:
        """Return what happened to the store, oldest first: the newest `limit`, of one stream or one kind if named.

        Raises NotFoundError for a stream that there is not and that no event is about, ValueError for such a kind.
        """
        state = self.view().state
        events = describe.events(state, limit, stream, kind)
        if stream is not None and not any(event.stream == stream for event in state.events):
            self.stream_state(stream, state)
        return events

    def verify(
        self, streams: Sequence[str] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Read and check every block of these streams (None: all), and the metadata; return what was found.

        `progress` gets (blocks done, blocks in all). The result has ok, checked_blocks and damage.
        """
        from storage_core.store import operations

        return self._shown(operations.verify(self, progress, names_of(streams)))

    def compare(self, stream: str, progress: Callable[[int, int], None] | None = None) -> "Drift":
        """Return all copies of a stream side by side, message by message; reads every byte of them.

        `progress` gets (copies of blocks done, copies in all). Raises NotFoundError.
        """
        from storage_core.store.replicas import side_by_side

        state = self.view().state
        return side_by_side.compare(state, self.stream_state(stream, state), self.volumes(), self._env, progress)

    def repair(
        self,
        streams: Sequence[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        accept_loss: bool = False,
        take_back: bool = False,
        discard_lost: bool = False,
    ) -> dict[str, Any]:
        """Bring everything back to current that can be, and declare lost what nothing has any more.

        Volumes that are blank, missing, retired or damaged get new metadata, then every copy of every block of
        these streams (None: all) is read, and bad ones are replaced by good ones. `progress` gets (copies done, copies
        in all).

        Messages that no volume at hand has are not lost while a volume is away, or a disk may come back whose place
        another one took. `accept_loss` declares them lost all the same. Their blocks are remembered: once a copy is
        back, `take_back` serves the messages again, under their sequences. `discard_lost` gives up for good what was
        declared lost by then or set aside, and waits for no former disk any more; their files are unlinked.

        Returns ok (everything is current, all damage was repaired, and nothing waits for a decision), checked_blocks,
        damage, volumes (what became of those that took no part), lost, unread (whole on no volume at hand, and
        may_be_on), recoverable (lost, and there again), taken_back, set_aside (messages of another copy of the store).
        Raises ValueError if only some streams are named with `discard_lost`.
        """
        from storage_core.store.recovery import take_back as taking_back
        from storage_core.store.recovery.repair import Repair

        names = self._known(streams)
        if discard_lost and (names is not None or take_back):
            raise ValueError("discard_lost: it is for the whole store, and after what can be taken back was")
        repairing = Repair(self.metadata, self._env, self.lock_timeout_s, accept_loss)
        if discard_lost:
            repairing.volumes()
            taking_back.discard(self.metadata, self.lock_timeout_s)
        report = repairing.run(names, progress, take_back)
        with self.metadata.session(self.lock_timeout_s) as session:
            self.maintenance.journal(session)
        return self._shown(report)

    def read_set_aside(
        self, stream: str, columns: Sequence[str] | None = None, on_data_loss: str = "fail"
    ) -> "pa.RecordBatchReader":
        """Return a reader over messages of a stream that another copy of the store had, and that repairs set aside.

        They are not in the stream, which may have given their sequences to others: append them to it, or to another
        one, to keep them, then give up what is set aside with `repair(discard_lost=True)`. `columns`, `on_data_loss`:
        as in `read` of a stream. Raises NotFoundError if nothing was set aside, DataLossError, CorruptionError.
        """
        import pyarrow as pa

        from storage_core.schema import read_schema
        from storage_core.store.reading.reading import ReadOptions
        from storage_core.store.recovery import other_copies
        from storage_core.store.snapshot import check_read

        check_read(columns, on_data_loss)
        schema = read_schema(tuple(columns) if columns is not None else None)
        held = other_copies.set_aside_of(self.view().state, stream)
        options = ReadOptions(tuple(schema.names), on_data_loss=on_data_loss)
        batches = other_copies.read_set_aside(held, self.volumes(), options, self._env)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def scrub(
        self,
        streams: Sequence[str] | None = None,
        limit_bytes: int | None = None,
        rate_bytes_per_s: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Read and check the next portion of all copies, at most about `limit_bytes`; the next call resumes there.

        Damage is written down, and left to be repaired by maintenance and `repair`. `progress` gets (copies done,
        copies in all). Returns ok, checked_blocks, damage and done (the end was reached: the next call starts over).
        """
        from storage_core.store.replicas.scrub import Scrub

        scrubbing = Scrub(self.metadata, self._env, self.lock_timeout_s, self.read_only)
        report = scrubbing.run(progress, limit_bytes, rate_bytes_per_s, self._known(streams))
        return self._shown(report)

    def compact(
        self, streams: Sequence[str] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Merge small neighbouring blocks of these streams (None: all) into as few as their configuration allows.

        No message and no sequence changes, and readers notice nothing. Takes the lock for each commit alone. `progress`
        gets (blocks done, blocks in all). Returns runs, blocks and bytes that were merged, and unreadable: what has to
        be repaired first.
        """
        from storage_core.store.maintenance.merging import COMPACTING

        names = self._known(streams)  # before it is refused for another reason
        return self.compaction(COMPACTING).run(names, progress)

    def compaction(self, policy: "MergePolicy") -> "Compaction":
        """Return what merges blocks, for callers that run its tasks elsewhere. Raises ReadOnlyError."""
        from storage_core.store.maintenance.compaction import Compaction

        if self.read_only:
            raise ReadOnlyError(f"{self.label} was opened for reading only", store=self.label)
        return Compaction(self.metadata, self._env, self.lock_timeout_s, policy)

    def maintain(
        self, is_stopped: Callable[[], bool] = lambda: False, check: Callable[[], None] = lambda: None
    ) -> None:
        """Do all maintenance that is due, without the bounds of a session; `is_stopped` is asked between two pieces.

        `check`, which `watching` yields, is called before each piece, and ends the maintenance with what it raises.

        Volumes whose metadata is damaged or of an older instance rejoin, copies that are missing or were reported are
        repaired, small blocks merged, old deletes and orphaned blocks unlinked, the journal written, a snapshot taken.
        An empty or missing directory is left as it is: a disk may not be mounted there. `repair` makes it a volume.
        """
        from storage_core.store import operations

        operations.maintain(self, is_stopped, check)

    def watching(self) -> AbstractContextManager[Callable[[], None]]:
        """Be the one process that maintains the store again and again, until the block ends.

        Entering it raises StoreBusyError, which names the process that already does. `maintain` does not need it.
        It yields a check for `maintain`, which raises LeaseLostError once another process has taken over: in buckets
        it does if this one was stopped for longer than 30 seconds.
        """
        from storage_core.store.consumers import ownership

        return ownership.watching(self)

    # --- volumes

    def add_volumes(self, paths: Paths) -> None:
        """Add volumes, two at a time, on empty or missing directories. Streams keep the replicas that they have.

        If it is interrupted, the same call, `repair` or `maintain` resumes it. Raises ValueError (number of volumes, a
        volume of this store), AlreadyExistsError (a directory that is not empty), RequirementError (another change is
        under way, a volume takes no part).
        """
        self._membership().add(check_apart(resolve_paths(paths)))

    def remove_volumes(self, names: Sequence[str]) -> None:
        """Remove volumes by name (id in hex), two at a time; streams are moved to others first. Their files stay.

        Raises ValueError (unknown name, number of volumes), RequirementError (a stream has more replicas than volumes
        would be left, another change is under way).
        """
        self._membership().remove(names_of(names, "names") or [])

    def replace_volume(self, name: str, path: str | os.PathLike[str]) -> None:
        """Put a new volume in the place of another one, which may be lost; its blocks are copied from the others.

        Raises ValueError (unknown name, a path of the store's own), AlreadyExistsError, RequirementError.
        """
        (resolved,) = resolve_paths([path])
        self._membership().replace(name, resolved)

    def step_down(self) -> None:
        """Start a new term: the next writer reads every volume again. No other host takes over."""
        self._membership().step_down()

    def _shown(self, report: Mapping[str, Any]) -> notebook.Info:
        """Return what a check found, in whose table a notebook shows volumes by their labels."""
        labels = volume_labels({volume.name: str(volume.path) for volume in self.volumes()})
        return notebook.Info(report, partial(notebook.check_html, labels=labels))

    def _known(self, streams: Sequence[str] | None) -> list[str] | None:
        """Return the names, None for all. Raises NotFoundError for a stream that there is not."""
        names = names_of(streams)
        for name in names or ():
            self.stream_state(name)
        return names

    def _membership(self) -> "Membership":
        from storage_core.store.recovery.membership import Membership

        return Membership(self.metadata, self._env, self.lock_timeout_s)

    def backup(
        self,
        directory: str | os.PathLike[str],
        streams: Sequence[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Back up the store, or these streams, as they are now, into a new or empty directory.

        An unfinished backup there is resumed. `progress` gets (blocks done, blocks in all). Returns what is in
        it. Raises what backup.backup does.
        """
        from storage_core.store.ingest import backup

        return backup.backup(self, directory, names_of(streams), progress)

    @classmethod
    def restore(
        cls,
        directory: str | os.PathLike[str],
        volumes: Paths,
        progress: Callable[[int, int], None] | None = None,
        env: Environment = REAL,
        storage_options: Mapping[str, Any] | None = None,
    ) -> "Store":
        """Make a store of a backup on one, three or five new or empty directories, and open it.

        They may be prefixes in object stores that hold nothing. Raises what restore.restore_store does; then nothing
        was made.
        """
        from storage_core.store.ingest.restore import restore_store

        env = _reaching(resolve_paths(volumes), env, storage_options)
        return cls(restore_store(directory, volumes, progress, env).metadata, env, False, LOCK_TIMEOUT_S)

    def restore_streams(
        self,
        directory: str | os.PathLike[str],
        streams: Sequence[str] | None = None,
        as_names: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Restore streams of a backup, None for all, under their own names or those of `as_names`: all or none.

        Returns what was restored. Raises what from_backup.restore_streams does; then the store is as before.
        """
        from storage_core.store.ingest.from_backup import restore_streams

        self.check_open()
        return restore_streams(self, directory, names_of(streams), as_names, progress)


def _check_opening(read_only: object, take_over: object, recovers: object, lock_timeout_s: object) -> None:
    for name, flag in (("read_only", read_only), ("take_over", take_over), ("recovers", recovers)):
        check_flag(name, flag)
    is_number = isinstance(lock_timeout_s, float) or whole_number(lock_timeout_s) is not None
    if not is_number or not lock_timeout_s >= 0:  # type: ignore[operator]
        raise ValueError(f"lock_timeout_s: {lock_timeout_s!r} is not a number of seconds, 0 or more")


def _reaching(paths: Sequence[Path], env: Environment, storage_options: Mapping[str, Any] | None) -> Environment:
    """Return the environment that reaches these volumes. Raises ValueError for options that are for none of them."""
    if not storage_options:
        return env
    if not all(map(is_in_object_store, paths)):
        listed = ", ".join(map(str, paths))
        raise ValueError(f"storage_options are for object stores, such as s3://bucket/shop; not for {listed}")
    return reaching(storage_options)
