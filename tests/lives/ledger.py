"""What a life was told, and what a store may therefore show. Nothing here knows jstream: it compares answers.

Calls overlap, so each has the moments (numbers that grow) between which it ran. A call that did not return may be done
or not; whatever is seen later decides it, and from then on it stays.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lives.messages import Batch, name_of

Row = tuple[int, str, bytes]
NEVER = float("inf")


class Violation(AssertionError):
    """A promise that was not kept."""


@dataclass
class Append:
    """Messages that somebody tried to store."""

    batch: Batch
    began: float
    writer: tuple[str, str] | None = None  # of a batch that may be sent again
    has_id: bool = False  # its token was given as msg_id, so it may be sent again, too
    first: int | None = None  # the sequence of its first message
    known: float = NEVER  # since when it is known to be stored
    ended: float = NEVER  # when the last attempt came to its end
    is_absent: bool = False  # no attempt has stored it, and none is under way

    @property
    def sequences(self) -> range:
        assert self.first is not None
        return range(self.first, self.first + self.batch.count)


@dataclass
class Removal:
    """Messages that somebody tried to remove: those for which `takes` is true."""

    takes: Callable[[int, str], bool]
    began: float
    acked: float = NEVER
    is_exact: bool = True  # all that it takes has to be gone; else some of it


@dataclass
class Reader:
    """A durable consumer."""

    name: str
    subject: str | None
    forgets: bool  # its ack_wait is short: what was handed out comes again by itself
    acked: dict[int, float] = field(default_factory=dict)
    maybe_acked: set[int] = field(default_factory=set)
    handed: dict[int, float] = field(default_factory=dict)  # and not asked for again since
    done: set[int] = field(default_factory=set)  # what was acknowledged before a reset

    def handed_out(self, rows: Iterable[tuple[int, str, bytes, int]], began: float, ended: float) -> None:
        for sequence, _, _, _ in rows:
            if self.acked.get(sequence, NEVER) < began:
                raise Violation(f"consumer {self.name}: {sequence} was acknowledged and is handed out again")
            if not self.forgets and self.handed.get(sequence, NEVER) < began:
                raise Violation(f"consumer {self.name}: {sequence} was handed out twice within ack_wait")
            self.handed[sequence] = min(ended, self.handed.get(sequence, NEVER))

    def acknowledged(self, sequences: Iterable[int], ended: float | None) -> None:
        for sequence in sequences:
            if ended is None:
                self.maybe_acked.add(sequence)
            else:
                self.acked.setdefault(sequence, ended)

    def asked_again(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.handed.pop(sequence, None)

    def was_reset(self) -> None:
        """What it acknowledged may come again after where it begins anew."""
        self.done.update(self.acked, self.maybe_acked)
        self.acked.clear()
        self.handed.clear()

    def open_sequences(self) -> list[int]:
        return [one for one in self.handed if one not in self.acked and one not in self.maybe_acked]


class StreamLedger:
    """One lifetime of a stream."""

    def __init__(self, name: str, incarnation: str, subjects: tuple[str, ...]) -> None:
        self.name, self.incarnation, self.subjects = name, incarnation, subjects
        self.appends: dict[str, Append] = {}
        self.removals: list[Removal] = []
        self.readers: dict[str, Reader] = {}
        self.gone: dict[int, float] = {}  # sequences that are not shown any more, since when that is known
        self._at: dict[int, tuple[str, int]] = {}  # which message each sequence ever was
        self._highest: list[tuple[float, int]] = []  # (when, the highest sequence that was acked by then)

    def fail(self, text: str) -> None:
        raise Violation(f"stream {self.name}: {text}")

    # --- appends

    def appended(self, append: Append, first: int, end: int, ended: float) -> None:
        """An append returned."""
        batch = append.batch
        if end - first != batch.count:
            self.fail(f"{batch.token} has {batch.count} messages and got [{first}, {end})")
        if append.is_absent and append.first is not None:
            self.fail(f"{batch.token} was stored, and is acked as if it were new")
        is_new = append.first is None
        self._place(append, first)
        if is_new and not append.writer and not append.has_id:
            before = max((top for when, top in self._highest if when < append.began), default=0)
            if first <= before:
                self.fail(f"{batch.token} got {first}, not above {before}, which was acked before it began")
        self._highest.append((ended, end - 1))
        append.known = min(append.known, ended)

    def _place(self, append: Append, first: int) -> None:
        if append.first is None:
            append.first = first
            append.is_absent = False
        elif append.first != first:
            self.fail(f"{append.batch.token} is at {append.first} and at {first}: twice, or renumbered")
        for number, sequence in enumerate(append.sequences):
            name = (append.batch.token, number)
            if self._at.setdefault(sequence, name) != name:
                self.fail(f"sequence {sequence} was {self._at[sequence]} and is {name}")

    # --- what is shown

    def check_row(self, row: Row) -> None:
        """A message that was read, by whatever call."""
        sequence, subject, data = row
        try:
            token, number = name_of(data)
        except ValueError:
            self.fail(f"{sequence} is a message that nobody wrote: {data[:60]!r}")
        append = self.appends.get(token)
        if append is None or not 0 <= number < append.batch.count:
            self.fail(f"{sequence} is message {number} of {token}, which nobody wrote here")
            return
        if data != append.batch.data(number) or subject != append.batch.subject:
            self.fail(f"{sequence} is {token}:{number}, changed: {subject!r}, {data[:60]!r}")
        if append.is_absent:
            self.fail(f"{sequence}: {token} was not stored, as was seen, and is there now")
        self._place(append, sequence - number)

    def look(self, rows: list[Row], began: float, ended: float, settled: float = 0, is_newest: bool = True) -> None:
        """The whole stream was read. What was tried before `settled`, not acked, and is not there now, never will be.

        `is_newest`: enough volumes could be asked. With fewer it is what a majority had stored at some time before.
        """
        shown: set[int] = set()
        last = 0
        for row in rows:
            self.check_row(row)
            if row[0] <= last:
                self.fail(f"{row[0]} comes after {last}")
            last = row[0]
            shown.add(last)
        for append in self.appends.values():
            if not is_newest:
                continue
            if append.first is None:
                if append.ended < min(settled, began):
                    append.is_absent = True
                continue
            if append.known < began or not shown.isdisjoint(append.sequences):
                append.known = min(append.known, ended)
                for sequence in append.sequences:
                    self._check_shown(append, sequence, sequence in shown, began, ended)

    def _check_shown(self, append: Append, sequence: int, is_shown: bool, began: float, ended: float) -> None:
        token, subject = append.batch.token, append.batch.subject
        if not is_shown:
            if sequence not in self.gone:
                if not any(one.began < ended and one.takes(sequence, subject) for one in self.removals):
                    self.fail(f"{sequence} ({token}) was acked or seen, nobody removed it, and it is not there")
                self.gone[sequence] = ended
            return
        if self.gone.get(sequence, NEVER) < began:
            self.fail(f"{sequence} ({token}) was removed, as was seen, and is there again")
        for one in self.removals:
            if one.acked < began and one.is_exact and append.known < one.began and one.takes(sequence, subject):
                self.fail(f"{sequence} ({token}) was removed, which was acked, and is still there")

    # --- at the end

    def check_drained(self, reader: Reader, rows: list[Row]) -> None:
        """Everything that the stream shows was handed to this consumer, and acknowledged."""
        for sequence, subject, _ in rows:
            if reader.subject not in (None, subject):
                continue
            if sequence not in reader.acked and sequence not in reader.maybe_acked and sequence not in reader.done:
                self.fail(f"consumer {reader.name} never got {sequence}: skipped in silence")
