"""What the demo prints: steps, facts, and the counts of all stages, which must add up."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """Prints as it goes; `ok` turns false with the first count that is not what it must be."""

    console: Console = field(default_factory=lambda: Console(soft_wrap=True, highlight=False))
    ok: bool = True
    counts: list[tuple[str, int, int]] = field(default_factory=list)  # stage, found, expected

    def step(self, title: str) -> None:
        self.console.print(f"\n[bold]{title}[/bold]")

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False)

    def count(self, stage: str, found: int, expected: int) -> None:
        """Note a stage's count; it is shown again at the end."""
        self.counts.append((stage, found, expected))
        self.check(f"{stage}: {found:,}", found == expected, f"expected {expected:,}")

    def check(self, text: str, holds: bool, otherwise: str) -> None:
        """Print the text as a fact that holds, or as one that does not."""
        self.ok = self.ok and holds
        self.say(text if holds else f"WRONG {text}: {otherwise}")

    def summary(self) -> None:
        """Print every stage's count beside what it must be."""
        table = Table(title="Counts at every stage", title_justify="left")
        table.add_column("stage")
        table.add_column("messages", justify="right")
        table.add_column("must be", justify="right")
        table.add_column("")
        for stage, found, expected in self.counts:
            table.add_row(stage, f"{found:,}", f"{expected:,}", "ok" if found == expected else "WRONG")
        self.console.print()
        self.console.print(table)
        verdict = "All counts add up." if self.ok else "Something does not add up; see WRONG above."
        self.console.print(f"[bold]{verdict}[/bold]")
