"""`python -m benchmarks`: what `make bench` runs."""

import argparse
import sys

from benchmarks import spark_batch

MESSAGES = 2_000_000
ROUNDS = 3


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=spark_batch.__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"how many to write and read ({MESSAGES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds after one of warm-up ({ROUNDS})")
    given = parser.parse_args()
    if given.messages < 1 or given.rounds < 1:
        parser.error("--messages and --rounds are at least 1")
    return spark_batch.main(given.messages, given.rounds)


if __name__ == "__main__":
    sys.exit(run())
