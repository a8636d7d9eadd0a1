"""A writing process is killed with SIGKILL again and again; the store opens each time, and is what was acked.

FAULTS scenario 10 with real processes and real files. The writer says what it is about to do, and what was acked; what
was announced and not acked may have happened or not, and the model takes both.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage_core.store.store import Store

ROOT = Path(__file__).resolve().parents[4]

# Does one random operation after another; announces each, and says when it was acked.
WRITER = """
import json, random, sys
import pyarrow as pa
from storage_core.store.store import Store
chance = random.Random(sys.argv[2])
store = Store.open(json.loads(sys.argv[1]))
stream = store.stream("S")
def say(*words):
    print(json.dumps(words), flush=True)
number = stream.last_sequence
while True:
    what = chance.choice(["append", "append", "append", "append", "remove", "purge", "maintain"])
    if what == "append":
        rows = [f"{number + more}" for more in range(chance.randint(1, 9))]
        say("append", stream.last_sequence + 1, rows)
        got = stream.append(pa.table({"data": rows}))
        say("done", got.start, got.stop)
        number = stream.last_sequence
    elif what == "remove":
        chosen = sorted({chance.randint(1, max(1, stream.last_sequence)) for _ in range(3)})
        say("remove", chosen)
        stream.remove(chosen)
        say("done")
    elif what == "purge":
        below = max(1, stream.last_sequence - 200)
        say("purge", below)
        stream.purge(end=below)
        say("done")
    else:
        say("maintain")
        store.maintain()
        say("done")
"""


class Model:
    """What the stream holds by what was announced and acked."""

    def __init__(self) -> None:
        self.messages: dict[int, str] = {}
        self.pending: list[Any] | None = None

    def hear(self, line: str) -> None:
        words = json.loads(line)
        if words[0] != "done":
            self.pending = words
            return
        assert self.pending is not None
        if self.pending[0] == "append":
            assert words[1] == self.pending[1], "numbers go on where they ended"
        self.messages = self.after(self.pending)
        self.pending = None

    def after(self, words: list[Any]) -> dict[int, str]:
        """Return what the stream holds after an operation."""
        held = dict(self.messages)
        if words[0] == "append":
            held.update({words[1] + place: row for place, row in enumerate(words[2])})
        elif words[0] == "remove":
            held = {sequence: row for sequence, row in held.items() if sequence not in words[1]}
        elif words[0] == "purge":
            held = {sequence: row for sequence, row in held.items() if sequence >= words[1]}
        return held

    def settle(self, found: dict[int, str]) -> None:
        """Check what was found after a kill: as before the last operation, or as after it."""
        allowed = [self.messages] + ([self.after(self.pending)] if self.pending is not None else [])
        assert found in allowed, (self.pending, sorted(set(found.items()) ^ set(self.messages.items()))[:10])
        self.messages, self.pending = found, None


def contents(paths: list[Path]) -> dict[int, str]:
    table = Store.open(paths).stream("S").read(columns=["sequence", "data"]).read_all()
    data = [row.decode() for row in table.column("data").to_pylist()]
    return dict(zip(table.column("sequence").to_pylist(), data, strict=True))


def kill_again_and_again(place: Path, volume_count: int, seed: int, kills: int) -> None:
    paths = [place / f"volume-{number}" for number in range(volume_count)]
    Store.create(paths, snapshot_every=5, deleted_block_retention="0s").add_stream({"name": "S", "block_max_msgs": 4})
    chance, model = random.Random(seed), Model()
    for life in range(kills):
        command = [sys.executable, "-c", WRITER, json.dumps([str(path) for path in paths]), f"{seed}-{life}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env=environment) as process:
            assert process.stdout is not None
            try:
                for _ in range(chance.randint(1, 24)):
                    line = process.stdout.readline()
                    assert line, f"seed={seed}: life {life} ended by itself"
                    model.hear(line)
            finally:
                process.send_signal(signal.SIGKILL)
            for line in process.stdout:  # what it said between the last look and its end
                if line.endswith("]\n"):
                    model.hear(line)
        model.settle(contents(paths))
        assert contents(paths) == model.messages, "opened twice is as opened once"
    report = Store.open(paths).repair()
    assert report["ok"], f"seed={seed}: {report}"
    assert contents(paths) == model.messages
    print(
        f"\n{kills} kills of a writer to {volume_count} volumes, seed={seed}, {len(model.messages)} messages at the end"
    )


@pytest.mark.parametrize(("volume_count", "seed"), [(1, 10), (3, 11)])
def test_10_a_writing_process_is_killed_in_a_loop(tmp_path: Path, volume_count: int, seed: int) -> None:
    kill_again_and_again(tmp_path, volume_count, seed, kills=12)


@pytest.mark.soak
@pytest.mark.parametrize("volume_count", [1, 3, 5])
def test_10_soak_a_writing_process_is_killed_in_a_loop(tmp_path: Path, volume_count: int, soak_seconds: float) -> None:
    began, seed = time.monotonic(), 1000
    while seed == 1000 or time.monotonic() - began < soak_seconds:
        place = tmp_path / str(seed)
        place.mkdir()
        kill_again_and_again(place, volume_count, seed, kills=200)
        seed += 1
