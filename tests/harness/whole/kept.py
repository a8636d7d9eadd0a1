"""Plans that found something once, with the seed that goes with them: tests/data/simulation/kept.json.

A seed alone means another life whenever anything is added to what plans draw from. A plan that is kept says how often
what happens, and what is added later does not happen in it. `replay_store.py SEED --keep NAME` adds one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.whole.plan import Plan
from harness.whole.world import World

FILE = Path(__file__).resolve().parents[2] / "data" / "simulation" / "kept.json"


@dataclass(frozen=True)
class Kept:
    name: str
    found: str  # what was wrong
    seed: int
    plan: Plan
    mutant: str = ""  # the known mistake that it finds

    def world(self, trace: Callable[[str], None] | None = None) -> World:
        return World(self.seed, trace, self.plan)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "plan": self.plan.to_json()}


def load() -> list[Kept]:
    listed = json.loads(FILE.read_text()) if FILE.exists() else []
    return [Kept(**{**one, "plan": Plan.from_json(one["plan"])}) for one in listed]


def save(kept: list[Kept]) -> None:
    """Write them one per line, in the order of their names."""
    lines = [json.dumps(life.to_json(), sort_keys=True) for life in sorted(kept, key=lambda life: life.name)]
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


KEPT = load()
