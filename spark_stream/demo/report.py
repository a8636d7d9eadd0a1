"""What the demo says as it goes, with the counts of all stages, which must add up; the page shows all of it again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from storage_core.comparison import Drift

COUNTS_HEAD = ("stage", "messages", "must be", "because")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line below a step."""

    text: str
    holds: bool | None = None  # None: nothing to hold it against


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages one stage has, and how many it must have."""

    stage: str
    actual: int
    expected: int
    because: str  # where the expected number comes from


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of the pipeline."""

    rows: int
    rows_per_s: float
    lag: int  # sequences between the batch and the end of the stream, when it ended
    time_s: float  # since the run began


@dataclass(slots=True)
class Step:
    """One step of the job: what was found out in it, and what there is to look at."""

    title: str
    facts: list[Fact] = field(default_factory=list)
    maps: list[tuple[str, Drift, str]] = field(default_factory=list)  # (caption, copies, command that shows the same)
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = field(default_factory=list)  # (head, rows)
    batches: list[Batch] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)  # (seconds since the run began, what happened)


@dataclass
class Report:
    """Prints as it goes; `ok` turns false with the first fact that does not hold."""

    console: Console = field(default_factory=lambda: Console(soft_wrap=True, highlight=False, record=True))
    ok: bool = True
    made: str = ""  # with what, when, in which time
    story: str = ""  # what happened, in a sentence or two, if all of it holds
    numbers: list[tuple[str, str]] = field(default_factory=list)  # the few that matter, with their words
    steps: list[Step] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)

    @property
    def now(self) -> Step:
        return self.steps[-1]

    def step(self, title: str) -> None:
        self.steps.append(Step(f"{len(self.steps) + 1}. {title}"))
        self.console.print(f"\n[bold]{self.now.title}[/bold]")

    def say(self, text: str) -> None:
        self._add(Fact(text))

    def count(self, stage: str, actual: int, expected: int, because: str) -> None:
        """Note a stage's count; it is shown again at the end."""
        self.counts.append(Count(stage, actual, expected, because))
        self.check(f"{stage}: {actual:,}", actual == expected, f"must be {expected:,}, {because}")

    def check(self, text: str, holds: bool, otherwise: str) -> None:
        """Print the text as a fact that holds, or as one that does not."""
        self.ok = self.ok and holds
        self._add(Fact(text if holds else f"WRONG {text}: {otherwise}", holds))

    def _add(self, fact: Fact) -> None:
        self.now.facts.append(fact)
        self._print(f"{'- ' if fact.holds is None else 'ok ' if fact.holds else ''}{fact.text}")

    def _print(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False)

    def begin_page(self, story: str, numbers: Sequence[tuple[str, str]]) -> None:
        """Note what the page begins with."""
        self.story, self.numbers = story, list(numbers)

    def show_copies(self, caption: str, drift: Drift, command: str) -> None:
        """Print what each copy of a stream has, and keep the picture of it for the page."""
        self.now.maps.append((caption, drift, command))
        for copy in drift.copies:
            parts = [f"{count:,} {name}" for name, count in copy.counts.items() if count] or ["nothing there"]
            self._print(f"{copy.label:<9} {', '.join(parts)}")
        self._print(f"together  {drift.message_count:,} messages; {drift.verdict()}")

    def show_table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, whose first column is text and whose others are numbers, and keep it for the page."""
        self.now.tables.append((head, rows))
        self._print_table(head, rows, len(head) - 1)

    def _print_table(self, head: Sequence[str], rows: Sequence[Sequence[str]], number_count: int) -> None:
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        self.console.print()
        for row in (head, *rows):
            cells = [
                value.rjust(width) if 0 < at <= number_count else value.ljust(width)
                for at, (value, width) in enumerate(zip(row, widths, strict=True))
            ]
            self._print("  ".join(cells).rstrip())

    @property
    def verdict(self) -> str:
        return "All counts add up." if self.ok else "Something does not add up; see WRONG."

    def count_rows(self) -> list[tuple[str, str, str, str]]:
        """Return the counts as people read them, as COUNTS_HEAD."""
        rows = []
        for count in self.counts:
            wrong = "" if count.actual == count.expected else "WRONG "
            rows.append((count.stage, f"{wrong}{count.actual:,}", f"{count.expected:,}", count.because))
        return rows

    def summary(self) -> None:
        """Print every stage's count beside what it must be."""
        self.console.print("\n[bold]Counts at every stage[/bold]")
        self._print_table(COUNTS_HEAD, self.count_rows(), 2)
        self.console.print(f"\n[bold]{self.verdict}[/bold] {self.made}")
