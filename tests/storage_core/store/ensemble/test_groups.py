"""Group commit: several commits in one round of fsyncs, each with an outcome of its own."""

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from harness.faults import Call, FaultyFiles

from storage_core.errors import (
    AlreadyExistsError,
    DiskFullError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    StoreBusyError,
)
from storage_core.files import OS_FILES
from storage_core.metadata.commands import AddStream
from storage_core.metadata.config import StreamConfig
from storage_core.store.ensemble.groups import CommitGroups
from storage_core.store.ensemble.session import Session
from storage_core.store.ensemble.view import View
from storage_core.store.environment import Environment, one_after_another
from storage_core.store.store import Store
from storage_core.store.writing.staging import StagedBlock, Stager, Transaction


@pytest.fixture(params=[1, 3, 5])
def paths(tmp_path: Path, request: pytest.FixtureRequest) -> list[Path]:
    return [tmp_path / f"volume-{number}" for number in range(request.param)]


def staged(store: Store, *messages: bytes) -> tuple[Transaction, list[StagedBlock]]:
    """Return a transaction with these messages, durable and not committed."""
    transaction = store.begin(["S"])
    stager = Stager(transaction, transaction.targets["S"], 0, env=store.environment)
    stager.write(pa.record_batch({"data": pa.array(messages, pa.binary())}), "S")
    return transaction, stager.finish()


def log_syncs(calls: list[Call]) -> Counter[str]:
    """Return how often the log of each volume was fsynced."""
    return Counter(
        str(one.path.parents[1].name) for one in calls if (one.operation, one.file_kind) == ("sync", "segment")
    )


def test_one_commit_of_staged_blocks_is_one_round_of_fsyncs(paths: list[Path]) -> None:
    files = FaultyFiles(OS_FILES)
    store = Store.create(paths, env=Environment(files=files, parallel=one_after_another))
    store.add_stream({"name": "S"})
    transaction, blocks = staged(store, b"1")
    before = len(files.calls)
    store.commit(transaction, blocks)
    syncs = [one for one in files.calls[before:] if one.operation in ("sync", "sync_directory")]
    assert log_syncs(syncs) == {path.name: 1 for path in paths}
    assert {one.file_kind for one in syncs} == {"segment"}, "nothing else is waited for"


def test_commits_that_wait_together_share_a_round(paths: list[Path]) -> None:
    files = FaultyFiles(OS_FILES)
    store = Store.create(paths, env=Environment(files=files, parallel=one_after_another))
    store.add_stream({"name": "S"})
    waiting = [staged(store, b"%d" % number) for number in range(5)]
    before = len(files.calls)
    with store.session() as session, session.group():
        first = [session.state.streams["s"].next_sequence]
        for transaction, blocks in waiting:
            commit_in(session, store, transaction, blocks)
            first.append(session.state.streams["s"].next_sequence)
    assert first == [1, 2, 3, 4, 5, 6], "each sees what those before it did"
    assert log_syncs(files.calls[before:]) == {path.name: 1 for path in paths}
    table = Store.open(paths).stream("S").read(columns=["data"]).read_all()
    assert table.column("data").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]


def commit_all(store: Store, waiting: list[tuple[Transaction, list[StagedBlock]]]) -> None:
    with store.session() as session, session.group():
        for transaction, blocks in waiting:
            commit_in(session, store, transaction, blocks)


def commit_in(session: object, store: Store, transaction: Transaction, blocks: list[StagedBlock]) -> None:
    from storage_core.store.writing import appends

    known = store._window, store._limits, store._subjects
    appends.commit(session, transaction, blocks, None, (), "", *known, store.environment)  # type: ignore[arg-type]


def test_one_that_is_refused_does_not_take_the_others_with_it(paths: list[Path]) -> None:
    store = Store.create(paths)
    store.add_stream({"name": "S"})
    good, bad = staged(store, b"good"), staged(store, b"bad")
    target = bad[0].targets["S"]
    for volume in target.volumes:
        volume.blocks(OS_FILES).delete(target.incarnation, bad[1][0].summary.block_id)
    outcomes: list[object] = []
    groups = CommitGroups(store.session)
    with store.session() as session, session.group():
        for transaction, blocks in (bad, good):
            try:
                commit_in(session, store, transaction, blocks)
                outcomes.append("stored")
            except StorageError as error:
                outcomes.append(type(error))
    assert outcomes[1] == "stored" and outcomes[0] is not NotFoundError
    assert store.stream("S").read(columns=["data"]).read_all().column("data").to_pylist() == [b"good"]
    assert groups.run(lambda session: session.view.index) == store.view().index


def test_a_group_that_was_given_up_writes_nothing_not_even_its_vote(paths: list[Path]) -> None:
    """What follows in the same session opens the term that the group would have opened."""
    Store.create(paths)
    store = Store.open(paths)  # a process that does not lead yet
    with store.session() as session:
        before, term = contents_of(paths), session.view.term_seen + 1
        with pytest.raises(AlreadyExistsError):
            propose_together(
                session, [added(b"A"), msgspec.structs.replace(added(b"A"), incarnation=b"another".ljust(16))]
            )
        assert not session.state.streams, "nothing of the group is left"
        assert contents_of(paths) == before, "a byte was written"
        session.propose(added(b"B"))
    for volume in store.volumes():
        contents = volume.log.read()
        assert term in [vote.term for vote in contents.votes], "no entry of a term without its vote"
        assert contents.tip.term == term
    assert Store.open(paths).streams() == ["B"]


def contents_of(paths: list[Path]) -> dict[Path, bytes]:
    """Return all files of the metadata logs."""
    return {file: file.read_bytes() for path in paths for file in sorted((path / "meta").iterdir())}


def propose_together(session: Session, commands: list[AddStream]) -> None:
    with session.group():
        for command in commands:
            session.propose(command)


def added(name: bytes) -> AddStream:
    return AddStream(name.ljust(16), StreamConfig(name=name.decode(), subjects=(name.decode(),)), ())


def test_a_job_that_raises_takes_back_all_that_it_proposed_and_nothing_of_the_others(paths: list[Path]) -> None:
    """Caches learn what was committed, in that order; what a job has left elsewhere is undone."""
    store = Store.create(paths)
    store.add_stream({"name": "S"})
    learned, undone = list[str](), list[str]()
    groups = CommitGroups(store.session)

    def kept(session: Session) -> None:
        session.propose(added(b"KEPT"))
        session.when_committed(lambda: learned.append("kept"))
        session.if_taken_back(lambda: undone.append("kept"))

    def refused(session: Session) -> None:
        session.propose(added(b"REFUSED"))
        session.when_committed(lambda: learned.append("refused"))
        session.if_taken_back(lambda: undone.append("refused"))
        session.follow_up(lambda: session.propose(added(b"FOLLOWING")))
        raise NotFoundError("half of it was proposed")

    calls = iter([kept, refused])
    first, second = run_two(groups, lambda session: next(calls)(session))
    outcomes = sorted(type(one.exception()).__name__ for one in (first, second))
    assert outcomes == ["NoneType", "NotFoundError"]
    assert Store.open(paths).streams() == ["KEPT", "S"]
    assert (learned, undone) == (["kept"], ["refused"])


def test_a_cache_learns_nothing_of_a_round_that_failed(tmp_path: Path) -> None:
    failing = False

    def judge(call: Call) -> int:
        return errno.ENOSPC if failing and (call.operation, call.file_kind) == ("write", "segment") else 0

    env = Environment(files=FaultyFiles(OS_FILES, judge), parallel=one_after_another)
    store = Store.create(tmp_path / "volume", env=env)
    learned = list[str]()

    def call(session: Session) -> None:
        session.propose(added(b"A"))
        session.when_committed(lambda: learned.append("A"))

    failing = True
    with pytest.raises(DiskFullError):
        store.together(call)
    assert (store.streams(), learned) == ([], [])
    failing = False
    store.together(call)
    assert (store.streams(), learned) == (["A"], ["A"])


def test_threads_get_sequences_of_their_own(paths: list[Path]) -> None:
    store = Store.create(paths)
    stream = store.add_stream({"name": "S"})
    with ThreadPoolExecutor(8) as threads:
        published = list(threads.map(lambda number: stream.publish("S", b"%d" % number), range(40)))
    assert sorted(one.sequence for one in published) == list(range(1, 41))
    for number, one in enumerate(published):
        assert stream.get(one.sequence).data == b"%d" % number


def test_no_commit_of_a_group_is_acked_if_its_round_fails(tmp_path: Path) -> None:
    failing = False

    def verdict(call: Call) -> int | None:
        return 5 if failing and (call.operation, call.file_kind) == ("sync", "segment") else None

    paths = [tmp_path / f"volume-{number}" for number in range(3)]
    env = Environment(files=FaultyFiles(OS_FILES, verdict), parallel=one_after_another)
    store = Store.create(paths, env=env)
    store.add_stream({"name": "S"})
    waiting = [staged(store, b"%d" % number) for number in range(3)]
    failing = True
    with pytest.raises(OutcomeUnknownError):
        commit_all(store, waiting)
    failing = False
    assert Store.open(paths).stream("S").last_sequence in (0, 3), "all of the round, or nothing of it"


class Interrupted(BaseException):
    """What Ctrl-C is to the thread that it reaches."""


class Moments:
    """A store's turns, in the first of which something happens to the thread that leads it."""

    def __init__(self, store: Store, error: BaseException) -> None:
        self._store, self._error = store, error
        self.session_count = 0
        self.at = "after the commit"

    @contextmanager
    def session(self, view: View | None = None) -> Iterator[Session]:
        self.session_count += 1
        is_first = self.session_count == 1
        if is_first and self.at == "before the session":
            raise self._error
        with self._store.session(view) as session:
            yield session
        if is_first and self.at == "after the commit":
            raise self._error


def run_two(groups: CommitGroups, call: Callable[[Session], object]) -> tuple[Future[object], Future[object]]:
    """Let two threads commit in one group: the first one leads, once the second one waits."""
    second_waits = threading.Event()
    second: list[Future[object]] = []

    def first_call(session: Session) -> object:
        return call(session)

    with ThreadPoolExecutor(2) as threads:
        groups._round_mutex.acquire()
        first = threads.submit(groups.run, first_call)
        while len(groups._waiting) < 1:
            second_waits.wait(0.001)
        second.append(threads.submit(groups.run, call))
        while len(groups._waiting) < 2:
            second_waits.wait(0.001)
        groups._round_mutex.release()
    return first, second[0]


def publisher(store: Store) -> Callable[[Session], object]:
    numbers = iter(range(100))

    def call(session: Session) -> object:
        transaction, blocks = staged(store, b"%d" % next(numbers))
        commit_in(session, store, transaction, blocks)
        return "stored"

    return call


def test_what_goes_wrong_after_the_commit_fails_nobody(paths: list[Path]) -> None:
    store = Store.create(paths)
    store.add_stream({"name": "S"})
    moments = Moments(store, ValueError("a mistake in the maintenance"))
    outcomes = [one.result() for one in run_two(CommitGroups(moments.session), publisher(store))]
    assert outcomes == ["stored", "stored"] and moments.session_count == 1
    assert store.stream("S").last_sequence == 2


@pytest.mark.parametrize("at", ["before the session", "after the commit"])
def test_an_interrupt_reaches_the_thread_that_it_is_for(paths: list[Path], at: str) -> None:
    store = Store.create(paths)
    store.add_stream({"name": "S"})
    moments = Moments(store, Interrupted())
    moments.at = at
    outcomes = run_two(CommitGroups(moments.session), publisher(store))
    errors = [one.exception() for one in outcomes]
    assert sorted(type(error).__name__ for error in errors) == ["Interrupted", "NoneType"]
    stored = 2 if at == "after the commit" else 1
    assert store.stream("S").last_sequence == stored, "the other thread's message is there, once"


def test_an_interrupt_while_the_round_is_written_leaves_the_outcome_open(tmp_path: Path) -> None:
    armed = False

    def judge(call: Call) -> int:
        if armed and (call.operation, call.file_kind) == ("sync", "segment"):
            raise Interrupted
        return 0

    env = Environment(files=FaultyFiles(OS_FILES, judge), parallel=one_after_another)
    store = Store.create(tmp_path / "volume", env=env)
    store.add_stream({"name": "S"})
    call = publisher(store)
    armed = True
    outcomes = run_two(CommitGroups(store.session), call)
    armed = False
    assert {type(one.exception()) for one in outcomes} == {Interrupted, OutcomeUnknownError}
    assert Store.open(tmp_path / "volume").stream("S").last_sequence in (0, 2)


def test_threads_do_not_share_an_exception(paths: list[Path]) -> None:
    store = Store.create(paths)
    moments = Moments(store, StoreBusyError("busy"))
    moments.at = "before the session"
    first, second = (one.exception() for one in run_two(CommitGroups(moments.session), lambda _: None))
    assert type(first) is type(second) is StoreBusyError and first is not second and str(first) == str(second)


def test_an_append_whose_maintenance_fails_is_acked(tmp_path: Path) -> None:
    """Also when it fails with what nobody expects there."""
    armed = False

    def judge(call: Call) -> int:
        if armed and call.file_kind in ("journal", "directory of a stream"):
            raise ValueError("a mistake of ours")
        return 0

    store = Store.create(tmp_path / "volume", env=Environment(files=FaultyFiles(OS_FILES, judge)))
    stream = store.add_stream({"name": "S"})
    transaction, blocks = staged(store, b"1")
    armed = True
    assert store.commit(transaction, blocks).appended["S"].first == 1
    with store.session():
        pass
    armed = False
    assert stream.read(columns=["data"]).read_all().column("data").to_pylist() == [b"1"]
