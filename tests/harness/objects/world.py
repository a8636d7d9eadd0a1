"""One seed of a store on object stores: coordinators on several hosts read and write its metadata at once.

The code that runs is the real one, sessions and readers, over `Service`. What is written is events with names of their
own, so the state says what was committed, and in which order. After every step:

- What anybody was shown, by an ack, a view or a session's beginning, is the beginning of whatever anybody is shown
  later. It holds what had been acked or shown to anybody before it was asked for.
- What was refused with "nothing was stored" is never seen; nothing is seen twice; nothing is seen that nobody wrote.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

from harness.objects.scheduler import Scheduler, Task
from harness.objects.store import Bucket, Odds, Service
from harness.processes import SimulatedClock
from harness.simulated_disk import ProcessEnded

from storage_core.errors import CorruptionError, OutcomeUnknownError, StorageError
from storage_core.metadata.commands import Envelope, Event, Init, RecordEvents, Voter, encode_envelope
from storage_core.metadata.config import StoreSettings
from storage_core.metadata.state import StoreState
from storage_core.objects.files import ObjectFiles
from storage_core.paths import ObjectPath
from storage_core.raft.entry import HISTORY_SIZE, START, Vote, make_entry
from storage_core.store.ensemble.metadata_client import MetadataClient
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.volume import identity, locks, object_log
from storage_core.store.volume.identity import VolumeIdentity
from storage_core.store.volume.volumes import Volume


class Violation(AssertionError):
    """Something that must not be."""


@dataclass(frozen=True)
class Plan:
    volume_count: int
    process_count: int
    operation_count: int  # of each process
    snapshot_every: int
    odds: Odds
    away_share: float  # of the steps at which a bucket goes away or comes back
    losses: int  # buckets that are emptied, or put back to an older state

    @classmethod
    def of(cls, random: Random) -> "Plan":
        volume_count = random.choice((1, 3, 3, 3, 5))
        heavy = random.choice((0.0, 0.3, 1.0, 1.0))
        odds = Odds(
            late=0.06 * heavy, mute=0.04 * heavy, twice=0.02 * heavy, refused=0.01 * heavy, failed=0.02 * heavy,
            sleep=random.choice((0.0, 0.01, 0.04)), killed=random.choice((0.0, 0.003, 0.01)),
        )  # fmt: skip
        return cls(
            volume_count,
            random.choice((1, 2, 3, 3)),
            random.randint(4, 9),
            random.choice((1, 2, 3, 5, 100)),
            odds,
            random.choice((0.0, 0.0, 0.005)),
            random.choice((0, 0, 1)) if volume_count > 1 else 0,
        )


class _ForEachProcess(dict[str, Any]):
    """The mutexes of processes that share this one: each has its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def setdefault(self, key: str, default: Any = None) -> Any:
        task = self._scheduler.current
        return super().setdefault(f"{task.name if task is not None else ''} {key}", default)


@dataclass
class World:
    seed: int
    plan: Plan | None = None
    trace: Callable[[str], None] | None = None
    shown: tuple[str, ...] = ()  # the longest that anybody was shown
    refused: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    acked_count: int = 0
    unknown_count: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.plan = plan = self.plan or Plan.of(self.random)
        self.scheduler = Scheduler(self.random, 60_000)
        self.service = Service(self.scheduler, self.random, plan.odds)
        self.service.trace = self.trace
        self.clock = SimulatedClock()
        self.paths = [ObjectPath(f"s3://bucket{number}/shop") for number in range(plan.volume_count)]
        self._ids = Random(self.seed ^ 0x1D5)
        self._damaged: Bucket | None = None
        self._is_older = False  # that bucket is as it was before, and not empty
        self._images: dict[str, dict[str, bytes]] = {}
        self._started = 0

    # --- the store

    def environment(self) -> Environment:
        return Environment(
            files=ObjectFiles(self.service.connect),
            now_ns=self.clock,
            random_bytes=self._ids.randbytes,
            lock_domain=lambda: "a host",
            sleep=lambda seconds: self.scheduler.pause(int(seconds * 200)),
            parallel=self._in_some_order,
        )

    def _in_some_order(self, calls):  # type: ignore[no-untyped-def]
        order = list(range(len(calls)))
        self.random.shuffle(order)
        outcomes = one_after_another([calls[at] for at in order])
        return [outcomes[order.index(at)] for at in range(len(calls))]

    def create(self) -> None:
        env, plan = self.environment(), self.plan
        assert plan is not None
        store_id = env.new_id()
        identities = [VolumeIdentity(store_id, env.new_id(), env.new_id(), 1) for _ in self.paths]
        voters = tuple(
            Voter(one.volume_id, one.instance_id, "." if len(self.paths) == 1 else str(path))
            for one, path in zip(identities, self.paths, strict=True)
        )
        settings = StoreSettings(snapshot_every=plan.snapshot_every)
        payload = encode_envelope(Envelope(1, Init(store_id, settings, voters, "", "host")))
        vote = Vote(1, env.new_id())
        first = make_entry(START.chain, 1, 1, env.random_bytes(HISTORY_SIZE), payload)
        for one, path in zip(identities, self.paths, strict=True):
            volume = Volume(one.volume_id, path, one, files=env.files)
            assert isinstance(volume.log, object_log.ObjectLog)
            volume.log.begin([vote, first], None)
            file = env.files.create(path / identity.FILE_NAME)
            file.write_at(0, one.encode())
            file.sync()

    # --- the run

    def run(self) -> None:
        logger = logging.getLogger("storage_core")
        before = logger.level
        logger.setLevel(logging.CRITICAL)  # by its method: loggers below it remember what they are enabled for
        try:
            with (
                patch.object(locks, "_mutexes", _ForEachProcess(self.scheduler)),
                patch.object(object_log, "new_id", lambda: self._ids.randbytes(16)),
            ):
                self._run()
        finally:
            logger.setLevel(before)

    def _run(self) -> None:
        assert self.plan is not None
        self.create()
        late = self.service.carry_out_late

        def before_step() -> None:
            late()
            self._happen()

        self.scheduler.before_step = before_step
        for number in range(self.plan.process_count):
            self.scheduler.spawn(f"P{number}", self._coordinate)
        self.scheduler.run()
        self._end()

    def _happen(self) -> None:
        """Let something happen to the buckets."""
        plan, buckets = self.plan, list(self.service.buckets.values())
        assert plan is not None
        if self.random.random() < plan.away_share:
            bucket = self.random.choice(buckets)
            bucket.is_away = not bucket.is_away
            self.service.note(f"{bucket.name} is {'away' if bucket.is_away else 'back'}")
        if plan.losses and self._damaged is None and self.scheduler.step % 50 == 0:
            if self.random.random() < 0.1:
                bucket = self._damaged = self.random.choice(buckets)
                image = self.random.choice(({}, self._images.get(bucket.name, {})))
                bucket.objects, self._is_older = dict(image), bool(image)
                self.service.note(f"{bucket.name} is as it was: {len(image)} objects")
            elif self.random.random() < 0.2:
                bucket = self.random.choice(buckets)
                self._images[bucket.name] = dict(bucket.objects)

    def _end(self) -> None:
        for bucket in self.service.buckets.values():
            bucket.is_away = False
        self.service.late.clear()
        metadata = MetadataClient.at(self.environment(), self.paths)
        with metadata.session(60.0) as session:
            self._show(session.state, 0, "the end")
        with metadata.session(60.0) as session:
            session.propose(RecordEvents((Event("last"),)))
            self.sent.add("last")
        self._show(
            MetadataClient.at(self.environment(), self.paths).view(60.0).state, len(self.shown), "a reader at the end"
        )

    # --- processes

    def _coordinate(self, task: Task) -> None:
        assert self.plan is not None
        metadata: MetadataClient | None = None
        for number in range(self.plan.operation_count):
            if metadata is None or self.random.random() < 0.1:
                metadata = None
            try:
                writes, known = self.random.random() < 0.65, len(self.shown)
                metadata = metadata or MetadataClient.at(self.environment(), self.paths, for_view=not writes)
                if writes:
                    self._write(metadata, f"{task.name}.{number}")
                else:
                    view = metadata.view(60.0)
                    # Too few volumes answered, and it says so: then it shows what it can. And what only a volume had
                    # that is older now is hidden from readers until the next session, which finds it on the others.
                    if view is metadata._reader.undecided or self._is_older:
                        known = 0
                    self._show(view.state, known, "a reader")
            except ProcessEnded:
                if self.scheduler.is_over:
                    raise
                task.is_killed, metadata = False, None
                self.service.note("is killed")
            except StorageError as error:
                self._excuse(error)

    def _write(self, metadata: MetadataClient, name: str) -> None:
        known, is_proposed, is_acked = len(self.shown), False, False
        self.sent.add(name)
        try:
            is_group = self.random.random() < 0.5
            # A view that the caller looked at, however long ago that was.
            view = metadata.cache.known.view if len(self.sent) % 2 else None
            with metadata.session(60.0, optimistic=is_group, view=view) as session:
                # What a group begins with may be old; what it ends with is not.
                self._show(session.state, 0 if is_group else known, "a session")
                is_proposed = True
                if not is_group:
                    session.propose(RecordEvents((Event(name),)))
                elif self.random.random() < 0.2:
                    with session.group():
                        is_proposed = False
                    self._show(session.state, known, "a session that wrote nothing")
                    return
                else:
                    with session.group():
                        session.propose(RecordEvents((Event(name),)))
                is_acked = True
                self.acked_count += 1
                self._show(session.state, 0, f"the ack of {name}")  # others may have gone on meanwhile
                if self.random.random() < 0.7:
                    session.snapshot_if_due()
        except OutcomeUnknownError:
            self.unknown_count += 1
            self.service.note(f"{name} is unknown")
            return
        except StorageError as error:
            self.service.note(f"{name}: {type(error).__name__}: {error}")
            if is_proposed and not is_acked:
                self.refused.add(name)
            self._excuse(error)

    def _excuse(self, error: StorageError) -> None:
        """Raise Violation for what no fault of this seed may end in."""
        self.service.note(f"{type(error).__name__}: {error}")
        if isinstance(error, CorruptionError) and self._damaged is None:
            raise Violation(f"{type(error).__name__}: {error}") from error

    # --- what must hold

    def _show(self, state: StoreState, known: int, to: str) -> None:
        kinds = tuple(event.kind for event in state.events if event.kind in self.sent)
        self.service.note(f"shown to {to}: {len(kinds)}")
        common = min(len(kinds), len(self.shown))
        if kinds[:common] != self.shown[:common]:
            raise Violation(f"FORK: {to} is shown {kinds}, and {self.shown} was shown before")
        if len(kinds) < known:
            raise Violation(f"LOST: {to} is shown {kinds}, and {self.shown[:known]} was acked or shown before")
        if len(set(kinds)) < len(kinds):
            raise Violation(f"TWICE: {kinds}")
        if self.refused.intersection(kinds):
            raise Violation(f"REFUSED: {self.refused.intersection(kinds)} was refused, and is there")
        if len(kinds) > len(self.shown):
            self.shown = kinds
