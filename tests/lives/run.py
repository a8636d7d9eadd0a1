"""Random lives of real stores: python tests/lives/run.py --seed 1 --count 100, or --seconds 600.

A life that fails prints its log and the command that repeats it, and the run ends with exit code 1. One that is ended
early, by Ctrl-C or SIGTERM, says what its lives came to by then.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from lives.ledger import Violation  # noqa: E402
from lives.life import Life  # noqa: E402
from lives.processes import Nursery  # noqa: E402

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one: many more lives


class Lives:
    """Lives one after another, and what they came to. A context manager."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jstream-lives-", dir=MEMORY if MEMORY.is_dir() else None))
        self.counts: Counter[str] = Counter()
        self._without = tuple(without)
        self._nursery = Nursery(self.folder)

    def __enter__(self) -> "Lives":
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def live(self, seed: int) -> Life:
        """Run one life; raises Violation with its log, and with what repeats it."""
        folder = self.folder / str(seed)
        folder.mkdir()
        life = Life(seed, folder, self._nursery, self._without)
        try:
            life.run()
        except Exception as error:
            why = str(error) if isinstance(error, Violation) else traceback.format_exc()
            lines = "\n".join(life.log)
            raise Violation(f"python tests/lives/run.py --seed {seed}: {why}\n{lines}\n{why}") from error
        finally:
            self.counts.update(life.counts)
            shutil.rmtree(folder, ignore_errors=True)
        self.counts["lives"] += 1
        return life

    def describe(self) -> str:
        return ", ".join(f"{self.counts[name]} {name}" for name in sorted(self.counts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first life")
    parser.add_argument("--count", type=int, default=1, help="of lives")
    parser.add_argument("--seconds", type=float, help="go on for so long instead")
    parser.add_argument("--without", action="append", default=[], help="leave out a kind of bout or damage, or limits")
    parser.add_argument("--log", action="store_true", help="print each life's log")
    parser.add_argument("--go-on", action="store_true", help="after a life that failed")
    arguments = parser.parse_args()
    began, seed, failed = time.monotonic(), arguments.seed, []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Lives(arguments.without) as lives:
        while (
            time.monotonic() - began < arguments.seconds
            if arguments.seconds
            else seed < arguments.seed + arguments.count
        ):
            try:
                life = lives.live(seed)
                if arguments.log:
                    print("\n".join(life.log))
            except Violation as error:
                failed.append(seed)
                print(error, "\n", flush=True)
                if not arguments.go_on:
                    break
            except KeyboardInterrupt:
                break
            seed += 1
        print(f"seeds {arguments.seed} to {seed - 1}, {time.monotonic() - began:.0f} s: {lives.describe()}")
    print(f"failed: {failed}" if failed else "all held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
