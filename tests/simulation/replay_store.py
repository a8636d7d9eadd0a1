"""Repeats one seed of the simulated store, with all that happens: python tests/simulation/replay_store.py SEED"""

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from harness.mutants import maker_of  # noqa: E402
from harness.whole.kept import KEPT, Kept, save  # noqa: E402
from harness.whole.plan import Plan  # noqa: E402
from harness.whole.world import World  # noqa: E402
from mutants.store import answer_mutants, retention_mutants, store_mutants, time_mutants  # noqa: E402

MUTANTS = (store_mutants, retention_mutants, time_mutants, answer_mutants)
made = maker_of({name: mutant for module in MUTANTS for name, mutant in module.MUTANTS.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", help="a seed, or the name of a plan that is kept")
    parser.add_argument("--quiet", action="store_true", help="only say how it ends")
    parser.add_argument("--mutant", help="with this mistake in the store: a name from tests/mutants/store")
    parser.add_argument("--merging", action="store_true", help="with blocks that are merged")
    parser.add_argument("--keep", metavar="NAME", help="keep the plan under this name, with what it finds")
    parser.add_argument("--copies", action="store_true", help="with volumes of a copy of the store")
    parser.add_argument("--limits", action="store_true", help="with streams that keep few messages")
    parser.add_argument("--retention", action="store_true", help="with streams that let go of messages on their own")
    parser.add_argument("--varied", action="store_true", help="with rows, questions and refusals of all kinds")
    parser.add_argument("--time", action="store_true", help="and by their age, with delete markers")
    arguments = parser.parse_args()
    kept = chosen(arguments.seed, arguments)
    world = kept.world(None if arguments.quiet else print)
    try:
        run(world, arguments.mutant)
    except Exception as error:
        if arguments.keep:
            found = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            one = replace(kept, name=arguments.keep, found=found, mutant=arguments.mutant or "")
            save([*(other for other in KEPT if other.name != one.name), one])
        raise
    print(f"{arguments.seed} holds after {world.step_count} steps and {world.call_count} calls")


def chosen(name: str, asked: argparse.Namespace) -> Kept:
    """Return what was kept under this name, or what the seed draws."""
    for one in KEPT:
        if one.name == name:
            return one
    plan = Plan.of(Random(int(name)))
    kinds = plan.kinds()
    plan = next((made() for kind, made in kinds.items() if getattr(asked, kind)), plan)
    return Kept(name, "", int(name), plan)


def run(world: World, mutant: str | None) -> None:
    with made(mutant) if mutant else nullcontext():
        world.run()


if __name__ == "__main__":
    main()
