"""Raft scenarios as text: commands to a few nodes, and everything that they then say, write and apply.

A transcript has lines of three kinds: `# why`, `> command`, and what came of the command. `replay` runs the commands
anew and returns the whole text, so that a change of behaviour is a difference between two texts.

    group a b c [learners=d] [inflight=2] [append=1]   start nodes; node e: one more, blank
    given a 1 1 2 [term=3]   let a log have entries of these terms, and its node be in the last of them, or this one
    campaign a [forced]   tick a [5]   propose a x y   change a promote d   transfer a b   read a r1
    ready a               take what is to be done, send what goes at once; persist a: do the rest
    deliver b             step in what was sent to b;   lose b: drop it
    run [a b]             do and deliver until nothing is left, among these or all; `run quietly` prints nothing
    cut a b / join        lose what goes between these and the others / end that
    restart a             lose what is not persisted;   fail a: its storage fails;   trust a [not]: set_verified
    compact a [keep=2]    snapshot at what is applied;   arrived a b [not]: report_snapshot;   unreachable a b
    status a   log a   progress a
"""

from dataclasses import dataclass, field

from harness.raft.disk import NodeDisk
from harness.raft.machine import MachineState, decode_change, encode_change, restored

from storage_core.raft.core import Node
from storage_core.raft.entry import Entry, make_entry
from storage_core.raft.membership import ChangeKind, Membership, MembershipChange
from storage_core.raft.messages import (
    ORIGIN,
    AppendRequest,
    AppendResponse,
    CampaignRequest,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    Position,
    Snapshot,
    SnapshotRequest,
    TermNotice,
    VoteRequest,
    VoteResponse,
)
from storage_core.raft.outcomes import Proposed, Ready, Refused
from storage_core.raft.state import Host, Settings, TermOpening

ROUNDS_MAX = 200  # of `run`; more is a livelock


def replay(text: str) -> str:
    """Return the transcript with the outcome of its commands as it is now."""
    stage, lines = Stage(), []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *stage.do(line[1:].split())]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


@dataclass
class Actor:
    id: bytes
    disk: NodeDisk
    state: MachineState
    settings: Settings
    node: Node = field(init=False)
    handed: Ready | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        snapshot = self.disk.storage.snapshot()
        assert snapshot is not None
        self.state, self.handed = restored(snapshot), None
        # Others stop listening to candidates for 5 ticks, and campaign themselves after 9.
        host = Host(lambda bound: bound - 1, lambda term: TermOpening(b"%08d" % term, b"open"), decode_change)
        storage, hard_state, applied = self.disk.storage, self.disk.hard_state, snapshot.position.index
        self.node = Node(self.id, storage, hard_state, applied, snapshot.membership, self.settings, host)


class Stage:
    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self._sent: list[Message] = []
        self._away: set[bytes] = set()
        self._lines: list[str] = []
        self._settings = Settings()

    def do(self, words: list[str]) -> list[str]:
        """Carry out a command and return what there is to see."""
        name, *arguments = words
        self._lines = []
        options = dict(word.split("=") for word in arguments if "=" in word)
        plain = [word for word in arguments if "=" not in word]
        getattr(self, f"_do_{name}")(*plain, **options)
        return self._lines

    def _say(self, line: str) -> None:
        self._lines.append(line)

    # --- nodes

    def _do_group(self, *names: str, learners: str = "", inflight: str = "64", append: str = "1000000") -> None:
        self._settings = Settings(election_ticks=5, inflight_count_max=int(inflight), append_size_max=int(append))
        all_learners = tuple(name.encode() for name in learners)
        self._origin = Snapshot(ORIGIN, Membership.of([name.encode() for name in names], all_learners), b"")
        for name in (*names, *learners):
            self._do_node(name)

    def _do_node(self, name: str) -> None:
        actor = Actor(name.encode(), NodeDisk(self._origin, keeps_commit=True), restored(self._origin), self._settings)
        self.actors[name] = actor

    def _do_given(self, name: str, *terms: str, term: str = "0") -> None:
        actor, last, entries = self.actors[name], ORIGIN, []
        for each in map(int, terms):
            entries.append(make_entry(last.chain, last.index + 1, each, b"%08d" % each, b"x"))
            last = Position.of(entries[-1])
        hard_state = HardState(max(last.term, int(term)), None, 0)
        actor.disk.write(Ready((), None, tuple(entries), hard_state, True, (), (), ()))
        actor.disk.sync()
        actor.start()

    def _do_restart(self, name: str) -> None:
        actor = self.actors[name]
        actor.disk.lose_unsynced()
        actor.start()

    def _do_fail(self, name: str) -> None:
        self.actors[name].node.storage_failed("fsync failed")
        self.actors[name].handed = None

    def _do_trust(self, name: str, negation: str = "") -> None:
        self.actors[name].node.set_verified(not negation)

    # --- requests

    def _do_campaign(self, name: str, forced: str = "") -> None:
        if not self.actors[name].node.campaign(bool(forced)):
            self._say("must not campaign")

    def _do_tick(self, name: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.actors[name].node.tick()

    def _do_propose(self, name: str, *payloads: str) -> None:
        self._answer(self.actors[name].node.propose([payload.encode() for payload in payloads]))

    def _do_change(self, name: str, kind: str, node: str) -> None:
        change = MembershipChange(ChangeKind[kind.upper().replace("-", "_")], node.encode())
        self._answer(self.actors[name].node.propose_membership(encode_change(change)))

    def _do_transfer(self, name: str, to: str) -> None:
        self._answer(self.actors[name].node.transfer_leadership(to.encode()))

    def _do_read(self, name: str, request: str) -> None:
        self._answer(self.actors[name].node.read_index(request.encode()))

    def _answer(self, answer: Proposed | Refused | None) -> None:
        if isinstance(answer, Refused):
            self._say(f"refused: {answer.value}")

    def _do_compact(self, name: str, keep: str = "0") -> None:
        actor = self.actors[name]
        actor.disk.compact(actor.state.snapshot(), int(keep))
        actor.disk.sync()

    def _do_arrived(self, name: str, to: str, negation: str = "") -> None:
        self.actors[name].node.report_snapshot(to.encode(), not negation)

    def _do_unreachable(self, name: str, to: str) -> None:
        self.actors[name].node.report_unreachable(to.encode())

    # --- persisting and delivering

    def _do_ready(self, name: str) -> None:
        actor = self.actors[name]
        ready = actor.handed = actor.node.ready()
        self._say(f"{name} has ready{', must sync' if ready.must_sync else ''}")
        for message in ready.at_once:
            self._send(message, "at once")
        actor.disk.write(ready)
        if ready.snapshot is not None:
            self._say(f"  install   {_snapshot(ready.snapshot)}")
        for entry in ready.entries:
            self._say(f"  write     {_entry(entry)}")
        if ready.hard_state is not None:
            hard = ready.hard_state
            self._say(f"  write     term {hard.term}, vote {_name(hard.vote)}, commit {hard.commit}")

    def _do_persist(self, name: str) -> None:
        actor = self.actors[name]
        ready, actor.handed = actor.handed, None
        assert ready is not None, f"{name} has nothing to persist"
        if ready.must_sync:
            actor.disk.sync()
        for message in ready.messages:
            self._send(message, "send")
        if ready.snapshot is not None:
            actor.state = restored(ready.snapshot)
        for entry in ready.committed:
            actor.state = actor.state.after(entry)
            self._say(f"  apply     {_entry(entry)}")
        for result in ready.reads:
            index = "lost" if result.index is None else f"from {result.index} on"
            self._say(f"  read      {result.request.decode()}: {index}")
        actor.node.advance()

    def _send(self, message: Message, when: str) -> None:
        cut = (message.sender in self._away) != (message.to in self._away)
        self._say(f"  {when:9} {describe(message)}{'  LOST' if cut else ''}")
        if not cut and message.to.decode() in self.actors:
            self._sent.append(message)

    def _do_deliver(self, name: str) -> None:
        mine = [message for message in self._sent if message.to == name.encode()]
        self._sent = [message for message in self._sent if message.to != name.encode()]
        for message in mine:
            self.actors[name].node.step(message)
            if self.actors[name].node.failure is not None:
                self._say(f"{name} falls silent: {self.actors[name].node.failure}")
                break

    def _do_lose(self, name: str) -> None:
        for message in self._sent:
            if message.to == name.encode():
                self._say(f"  lost      {describe(message)}")
        self._sent = [message for message in self._sent if message.to != name.encode()]

    def _do_run(self, *names: str) -> None:
        quiet, names = "quietly" in names, tuple(name for name in names if name != "quietly")
        for _ in range(ROUNDS_MAX):
            busy = False
            for name in names or self.actors:
                busy = self._run_one(name) or busy
            if not busy:
                break
        else:
            raise AssertionError(f"still busy after {ROUNDS_MAX} rounds")
        if quiet:
            self._lines = []

    def _run_one(self, name: str) -> bool:
        actor = self.actors[name]
        busy = any(message.to == actor.id for message in self._sent)
        self._do_deliver(name)
        if actor.handed is None and actor.node.has_ready():
            busy = True
            self._do_ready(name)
        if actor.handed is not None:
            self._do_persist(name)
        return busy

    def _do_cut(self, *names: str) -> None:
        self._away = {name.encode() for name in names}

    def _do_join(self) -> None:
        self._away = set()

    # --- looking

    def _do_status(self, name: str) -> None:
        status = self.actors[name].node.status()
        members = f"voters {_names(status.membership.voters)}"
        members += f", learners {_names(status.membership.learners)}" if status.membership.learners else ""
        place = f"commit {status.commit}, applied {status.applied}, last {status.last.term}/{status.last.index}"
        self._say(
            f"{name}: {status.role.value} of term {status.term}, leader {_name(status.leader)}; {place}; {members}"
        )

    def _do_log(self, name: str) -> None:
        storage = self.actors[name].disk.storage
        first, end = storage.base().index + 1, storage.last().index + 1
        entries = " ".join(_entry(entry) for entry in storage.entries(first, end, 1 << 60)) if first < end else "empty"
        self._say(f"{name}: after {storage.base().index}: {entries}")

    def _do_progress(self, name: str) -> None:
        for node, progress in self.actors[name].node.status().progress.items():
            flags = f"{', paused' if progress.is_paused else ''}{'' if progress.verified else ', not verified'}"
            flags += f", {progress.inflight.count} in flight" if progress.inflight.count else ""
            place = f"match {progress.match}, next {progress.next}"
            self._say(f"{node.decode()}: {progress.sending.value}, {place}{flags}")


def describe(message: Message) -> str:
    """Return a message as one line."""
    return f"{_name(message.sender)}->{_name(message.to)} in {message.term}: {_content(message)}"


def _content(message: Message) -> str:
    if isinstance(message, AppendRequest):
        entries = " ".join(_entry(entry) for entry in message.entries)
        return f"append [{entries}] after {message.before.term}/{message.before.index}, commit {message.commit}"
    if isinstance(message, AppendResponse):
        doubt = "" if message.verified else ", not verified"
        if message.accepted:
            return f"accepted to {message.index}{doubt}"
        return f"refused after {message.index}, hint {message.hint_term}/{message.hint_index}{doubt}"
    if isinstance(message, HeartbeatRequest):
        return f"heartbeat, commit {message.commit}, read round {message.read_round}"
    if isinstance(message, HeartbeatResponse):
        return f"heartbeat heard, read round {message.read_round}{'' if message.verified else ', not verified'}"
    if isinstance(message, VoteRequest):
        what = "would you vote" if message.pre else "vote"
        return f"{what}{' at once' if message.forced else ''}? last {message.last.term}/{message.last.index}"
    if isinstance(message, VoteResponse):
        return f"{'would vote' if message.pre else 'vote'}: {'yes' if message.granted else 'no'}"
    if isinstance(message, SnapshotRequest):
        return f"install {_snapshot(message.snapshot)}"
    assert isinstance(message, CampaignRequest | TermNotice)
    return "campaign" if isinstance(message, CampaignRequest) else "that term is over"


def _entry(entry: Entry) -> str:
    change = decode_change(entry.payload)
    what = f"({change.kind.value} {_name(change.node)})" if change else entry.payload.decode()
    return f"{entry.term}/{entry.index}:{what}"


def _snapshot(snapshot: Snapshot) -> str:
    members = _names(snapshot.membership.voters)
    learners = f" learners {_names(snapshot.membership.learners)}" if snapshot.membership.learners else ""
    return f"snapshot at {snapshot.position.term}/{snapshot.position.index}, voters {members}{learners}"


def _name(node: bytes | None) -> str:
    return node.decode() if node else "nobody"


def _names(nodes: tuple[bytes, ...]) -> str:
    return b" ".join(nodes).decode()
