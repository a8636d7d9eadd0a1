"""Repeats one seed of the simulated store, with all that happens: python tests/simulation/replay_store.py SEED"""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from harness.whole.plan import Plan  # noqa: E402
from harness.whole.world import World  # noqa: E402
from mutants.store.store_mutants import made  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--quiet", action="store_true", help="only say how it ends")
    parser.add_argument("--mutant", help="with this mistake in the store: a name from tests/mutants/store")
    parser.add_argument("--merging", action="store_true", help="with blocks that are merged")
    arguments = parser.parse_args()
    plan = Plan.of(Random(arguments.seed)).with_merging() if arguments.merging else None
    world = World(arguments.seed, None if arguments.quiet else print, plan)
    with made(arguments.mutant) if arguments.mutant else nullcontext():
        world.run()
    print(f"seed {arguments.seed} holds after {world.step_count} steps and {world.call_count} calls")


if __name__ == "__main__":
    main()
