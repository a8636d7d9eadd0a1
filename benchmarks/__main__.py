"""`python -m benchmarks`: what `make bench` runs: all that is measured, then one table of what is and what should be.

Each part is a program of its own, and can be run alone. The table is read from the files that the parts leave in
benchmarks/results, so that a part that was not run is shown as it was measured last.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.figures import RESULTS
from benchmarks.spark_batch import MESSAGES, ROUNDS

PARTS = ("spark_batch", "replicas", "planning", "scrub", "rescue", "idle", "turns")
WITH_MESSAGES = ("spark_batch", "replicas")


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"how many go through Spark ({MESSAGES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds after one of warm-up ({ROUNDS})")
    arguments = parser.parse_args()
    if arguments.messages < 1 or arguments.rounds < 1:
        parser.error("--messages and --rounds are at least 1")
    failed = []
    for part in arguments.only:
        command = [sys.executable, "-m", f"benchmarks.{part}"]
        if part in WITH_MESSAGES:
            command += ["--messages", str(arguments.messages), "--rounds", str(arguments.rounds)]
        print(f"\n--- {part}", flush=True)
        if subprocess.run(command, cwd=RESULTS.parent.parent).returncode:
            failed.append(part)
    show_table()
    for part in failed:
        print(f"{part} failed; what is shown of it is older")
    return 1 if failed else 0


def show_table() -> None:
    """Print every ratio that was measured, and whether it is what the project wants."""
    print(f"\n{'ratio':<58}{'is':>8}{'by CPU':>8}{'wanted':>10}")
    for part in PARTS:
        path = RESULTS / f"{part}.json"
        for ratio in json.loads(path.read_text())["ratios"] if path.exists() else ():
            wanted, verdict = judge(ratio)
            print(f"{ratio['name']:<58}{ratio['ratio']:>8.2f}{ratio['by_cpu']:>8.2f}{wanted:>10}  {verdict}".rstrip())
    print("\nOther work of the machine moves all of these; processor time is moved less than elapsed time.")


def judge(ratio: dict[str, Any]) -> tuple[str, str]:
    """Return what is wanted of a ratio and whether it is so, by elapsed time; both empty if nothing is wanted."""
    if ratio.get("wanted") is not None:
        return f">= {ratio['wanted']:g}", "" if ratio["ratio"] >= ratio["wanted"] else "missed"
    if ratio.get("at_most") is not None:
        return f"<= {ratio['at_most']:g}", "" if ratio["ratio"] <= ratio["at_most"] else "missed"
    return "", ""


if __name__ == "__main__":
    sys.exit(run())
