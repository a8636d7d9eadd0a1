"""Repeats one seed of the simulated store, with all that happens: python tests/simulation/replay_store.py SEED"""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from harness.whole.world import World  # noqa: E402
from mutants.store.store_mutants import made  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--quiet", action="store_true", help="only say how it ends")
    parser.add_argument("--mutant", help="with this mistake in the store: a name from tests/mutants/store")
    arguments = parser.parse_args()
    world = World(arguments.seed, None if arguments.quiet else print)
    with made(arguments.mutant) if arguments.mutant else nullcontext():
        world.run()
    print(f"seed {arguments.seed} holds after {world.step_count} steps and {world.call_count} calls")


if __name__ == "__main__":
    main()
