"""What the demo says as it goes, with the counts of all stages, which must add up; the page shows all of it again."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from storage_core.comparison import Drift


@dataclass(frozen=True, slots=True)
class Fact:
    """One line below a step."""

    text: str
    holds: bool = True


@dataclass(slots=True)
class Step:
    """One step of the job: what was found out in it, and the copies as they were then."""

    title: str
    facts: list[Fact] = field(default_factory=list)
    maps: list[tuple[str, Drift]] = field(default_factory=list)  # (caption, copies)


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages one stage has, and how many it must have."""

    stage: str
    found: int
    expected: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of the pipeline."""

    run: int
    rows: int
    rows_per_s: float
    lag: int  # messages between the batch and the end of the stream, when it ended
    time_s: float  # since the run began


@dataclass
class Report:
    """Prints as it goes; `ok` turns false with the first fact that does not hold."""

    console: Console = field(default_factory=lambda: Console(soft_wrap=True, highlight=False))
    ok: bool = True
    steps: list[Step] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    consumers: list[tuple[str, dict[str, int]]] = field(default_factory=list)  # (when, delivered, pending, ...)

    def step(self, title: str) -> None:
        self.steps.append(Step(f"{len(self.steps) + 1}. {title}"))
        self.console.print(f"\n[bold]{self.steps[-1].title}[/bold]")

    def say(self, text: str, holds: bool = True) -> None:
        self.steps[-1].facts.append(Fact(text, holds))
        self.console.print(f"  {text}", markup=False)

    def count(self, stage: str, found: int, expected: int) -> None:
        """Note a stage's count; it is shown again at the end."""
        self.counts.append(Count(stage, found, expected))
        self.check(f"{stage}: {found:,}", found == expected, f"expected {expected:,}")

    def check(self, text: str, holds: bool, otherwise: str) -> None:
        """Print the text as a fact that holds, or as one that does not."""
        self.ok = self.ok and holds
        self.say(text if holds else f"WRONG {text}: {otherwise}", holds)

    def show_copies(self, caption: str, drift: Drift) -> None:
        """Say what each copy of a stream has, and keep the picture of it."""
        self.steps[-1].maps.append((caption, drift))
        for copy in drift.copies:
            parts = [f"{count:,} {name}" for name, count in copy.counts.items() if count] or ["nothing there"]
            self.say(f"{copy.label:<8} {', '.join(parts)}")
        self.say(f"together: {drift.message_count:,} messages; {drift.verdict()}")

    def show_consumer(self, when: str, info: dict[str, int]) -> None:
        self.consumers.append((when, info))
        self.say(f"consumer {when}: " + ", ".join(f"{name} {value:,}" for name, value in info.items()))

    @property
    def verdict(self) -> str:
        return "All counts add up." if self.ok else "Something does not add up; see WRONG above."

    def summary(self) -> None:
        """Print every stage's count beside what it must be."""
        table = Table(title="Counts at every stage", title_justify="left")
        table.add_column("stage")
        table.add_column("messages", justify="right")
        table.add_column("must be", justify="right")
        table.add_column("")
        for one in self.counts:
            judged = "ok" if one.found == one.expected else "WRONG"
            table.add_row(one.stage, f"{one.found:,}", f"{one.expected:,}", judged)
        self.console.print()
        self.console.print(table)
        self.console.print(f"[bold]{self.verdict}[/bold]")
