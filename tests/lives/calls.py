"""The calls that processes of a life make, each with what it comes to in the ledger."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lives.ledger import NEVER, Append, Reader, Removal, StreamLedger, Violation
from lives.messages import Batch
from lives.processes import Call, Failure

if TYPE_CHECKING:
    from lives.life import Life

WEIGHTS = {
    "append": 26, "publish": 8, "batch": 10, "fetch": 24, "ack": 22, "nak": 4, "read": 8, "get": 5, "remove": 4,
    "purge": 3, "compact": 3, "maintain": 4, "verify": 2, "scrub": 2, "report": 3, "info": 3, "edit": 2, "reopen": 5,
    "command": 3,
}  # fmt: skip


class Calls:
    """Makes calls at random; those named in WEIGHTS return None if there is nothing for them to do."""

    def __init__(self, life: "Life") -> None:
        self._life, self._random = life, life.random

    def _stream(self) -> StreamLedger:
        return self._life.streams[self._random.choice(list(self._life.streams))]

    def new_batch(self, stream: StreamLedger, count: int) -> Batch:
        return Batch(f"t{self._life.number()}", self._random.choice(stream.subjects), count)

    def append(self) -> Call:
        stream = self._stream()
        append = Append(self.new_batch(stream, self._random.choice((1, 2, 3, 8))), self._life.now())
        return self.appending(stream, append)

    def batch(self) -> Call:
        """Append a batch of a named writer: a new one, or one whose outcome is not known, or one that was stored."""
        stream = self._stream()
        known = [one for one in stream.appends.values() if one.writer]
        open_ones = [one for one in known if one.known == NEVER]
        if open_ones or (known and self._random.random() < 0.3):
            append = self._random.choice(open_ones or known)
            append.is_absent, append.ended = False, NEVER
        else:
            batch = self.new_batch(stream, self._random.choice((1, 2, 5)))
            append = Append(batch, self._life.now(), (self._random.choice(("w1", "w2")), batch.token))
        return self.appending(stream, append)

    def appending(self, stream: StreamLedger, append: Append) -> Call:
        stream.appends[append.batch.token] = append

        def done(result: tuple[int, int], ended: float) -> None:
            append.ended = ended
            stream.appended(append, *result, ended)
            self._life.counts["messages"] += append.batch.count

        def unknown(ended: float) -> None:
            append.ended = ended

        arguments = {"stream": stream.name, "batch": append.batch, "writer": append.writer}
        return Call("append", arguments, done, unknown, writes=True)

    def publish(self) -> Call:
        stream = self._stream()
        open_ones = [one for one in stream.appends.values() if one.has_id and one.known == NEVER]
        if open_ones and self._random.random() < 0.7:
            append = self._random.choice(open_ones)
            append.is_absent, append.ended = False, NEVER
        else:
            append = Append(self.new_batch(stream, 1), self._life.now(), has_id=True)
        stream.appends[append.batch.token] = append
        is_first = append.first is None and append.ended == NEVER

        def done(result: tuple[int, bool], ended: float) -> None:
            sequence, is_duplicate = result
            append.ended = ended
            places = {sequence, append.first or sequence}
            if is_duplicate and any(one.takes(at, append.batch.subject) for one in stream.removals for at in places):
                return  # where the first one was, nobody says any more
            stream.appended(append, sequence, sequence + 1, ended)
            self._life.counts["messages"] += 1
            del is_first_[:]

        is_first_ = [is_first]

        def unknown(ended: float) -> None:
            append.ended = ended

        return Call("publish", {"stream": stream.name, "batch": append.batch}, done, unknown, writes=True)

    def read(self) -> Call:
        stream = self._stream()
        call = Call("read", {"stream": stream.name}, refused=lambda failure: self._is_stale(stream, failure))
        call.done = lambda rows, ended: stream.look(
            rows, call.began, ended, is_newest=not self._life.crew.is_excused(call)
        )
        return call

    def _is_stale(self, stream: StreamLedger, failure: Failure) -> bool:
        """Return whether a read met blocks that went after it was planned, in a store that keeps none of them."""
        return failure.is_a("StalePlanError") and bool(stream.removals) and not self._life.keeps_removed

    def get(self) -> Call | None:
        stream = self._stream()
        known = [one for append in stream.appends.values() if append.first for one in append.sequences]
        if not known:
            return None
        sequence = self._random.choice(known)

        def refused(failure: Failure) -> bool:
            return failure.is_a("NotFoundError") and bool(stream.removals) or self._is_stale(stream, failure)

        return Call(
            "get", {"stream": stream.name, "sequence": sequence}, lambda row, _: stream.check_row(row), refused=refused
        )

    def remove(self) -> Call | None:
        stream = self._stream()
        known = [one for append in stream.appends.values() if append.first for one in append.sequences]
        if not known:
            return None
        chosen = set(self._random.sample(known, min(len(known), self._random.randrange(1, 6))))
        removal = Removal(lambda sequence, _: sequence in chosen, NEVER)
        return self._removing(stream, removal, Call("remove", {"stream": stream.name, "sequences": sorted(chosen)}))

    def purge(self) -> Call | None:
        stream = self._stream()
        top = max((append.sequences.stop for append in stream.appends.values() if append.first), default=1)
        how = self._random.choice(("all", "subject", "end", "end", "keep"))
        what: dict[str, Any] = {}
        takes: Callable[[int, str], bool] = lambda sequence, subject: True  # noqa: E731
        if how == "subject":
            what["subject"] = wanted = self._random.choice(stream.subjects)
            takes = lambda sequence, subject: subject == wanted  # noqa: E731
        elif how == "end":
            what["end"] = end = self._random.randrange(1, top + 1)
            takes = lambda sequence, subject: sequence < end  # noqa: E731
        elif how == "keep":
            what["keep"] = self._random.randrange(1, 20)
        elif self._random.random() < 0.6:
            return None  # not everything all the time
        removal = Removal(takes, NEVER, is_exact=how != "keep")
        return self._removing(stream, removal, Call("purge", {"stream": stream.name, **what}))

    def _removing(self, stream: StreamLedger, removal: Removal, call: Call) -> Call:
        stream.removals.append(removal)
        removal.began = self._life.now()

        def done(_: int, ended: float) -> None:
            removal.acked = ended

        call.done, call.writes = done, True
        return call

    def _reader(self) -> tuple[StreamLedger, Reader] | None:
        stream = self._stream()
        return (stream, self._random.choice(list(stream.readers.values()))) if stream.readers else None

    def fetch(self) -> Call | None:
        pair = self._reader()
        if pair is None:
            return None
        stream, reader = pair
        return self.fetching(stream, reader, self._random.choice((1, 3, 10, 40)))

    def fetching(self, stream: StreamLedger, reader: Reader, count: int) -> Call:
        call = Call("fetch", {"stream": stream.name, "consumer": reader.name, "count": count}, writes=True)

        def done(rows: list[tuple[int, str, bytes, int]], ended: float) -> None:
            for row in rows:
                stream.check_row(row[:3])
            reader.handed_out(rows, call.began, ended)
            self._life.counts["deliveries"] += len(rows)

        def refused(failure: Failure) -> bool:
            # Messages removed before a consumer that fails on that: it waits until somebody resets it.
            return failure.is_a("DataLossError") and bool(stream.removals)

        call.done, call.refused = done, refused
        return call

    def ack(self) -> Call | None:
        pair = self._reader()
        if pair is None or not pair[1].open_sequences():
            return None
        stream, reader = pair
        waiting = reader.open_sequences()
        return self.acknowledging(
            stream, reader, self._random.sample(waiting, self._random.randrange(1, len(waiting) + 1))
        )

    def acknowledging(self, stream: StreamLedger, reader: Reader, sequences: list[int]) -> Call:
        arguments = {"stream": stream.name, "consumer": reader.name, "sequences": sorted(sequences)}
        reader.acknowledged(sequences, None)  # until it returns

        def done(_: int, ended: float) -> None:
            reader.maybe_acked.difference_update(sequences)
            reader.acknowledged(sequences, ended)

        return Call("ack", arguments, done, writes=True)

    def nak(self) -> Call | None:
        pair = self._reader()
        if pair is None or not pair[1].open_sequences():
            return None
        stream, reader = pair
        waiting = self._random.sample(reader.open_sequences(), 1)
        reader.asked_again(waiting)
        return Call("nak", {"stream": stream.name, "consumer": reader.name, "sequences": waiting}, writes=True)

    def compact(self) -> Call:
        return Call("compact", writes=True)

    def maintain(self) -> Call:
        return Call("maintain", writes=True)

    def verify(self) -> Call:
        return Call("verify", {}, lambda report, _: self._life.check_verdict(report))

    def scrub(self) -> Call:
        return Call("scrub")

    def report(self) -> Call:
        return Call("report")

    def info(self) -> Call | None:
        pair = self._reader()
        if pair is None:
            return None
        return Call("consumer_info", {"stream": pair[0].name, "consumer": pair[1].name})

    def edit(self) -> Call:
        arguments = {"name": self._stream().name, "block_max_msgs": self._random.choice((2, 9, 1000))}
        return Call("edit_stream", arguments, writes=True)

    def reopen(self) -> Call:
        return Call("open", {"paths": self._life.volumes.ways_in()})

    def command(self) -> Call:
        verbs = (["stream", "ls"], ["stream", "report"], ["events"], ["cluster", "info"], ["store", "info"])
        arguments = [*self._random.choice(verbs), "--json", *self._life.store_option()]

        def done(result: tuple[int, str, str], ended: float) -> None:
            code, _, text = result
            crew = self._life.crew
            is_closed = crew.meets_closed and "[JSTREAM_PROCESS_LIMIT]" in text
            if code != 0 and not is_closed and not crew.is_excused(call):
                raise Violation(
                    f"jstream {' '.join(arguments)}: exit code {code}, {text}; {self._life.volumes.describe()}"
                )

        call = Call("command", {"arguments": arguments})
        call.done = done
        return call
