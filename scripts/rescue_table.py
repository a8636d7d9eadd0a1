"""Print docs/rescue.md: what servers served of each damaged store in tests/data/nats, and what jstream reads of it.

.venv/bin/python scripts/rescue_table.py > docs/rescue.md
"""

import base64
import gzip
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from storage_core.comparison import CopyDrift, State
from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.side_by_side import compare

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "data" / "nats"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
KEY = "fixture-key-not-secret"  # of the encrypted cases
HAPPENED = {
    "damaged-bitflip-index-kept": "one bit of an old block flipped",
    "damaged-bitflip-no-index": "the same, `index.db` gone",
    "damaged-compacted-no-index": "`index.db` of a compacted stream gone",
    "damaged-garbage-after-last": "64 zero bytes behind the last record",
    "damaged-index-ahead": "last block gone",
    "damaged-kv-no-index": "`index.db` of a key-value bucket gone",
    "damaged-limits-no-index": "`index.db` of a stream with `max_msgs` gone",
    "damaged-middle-block-gone": "a block in the middle gone",
    "damaged-no-index": "`index.db` gone",
    "damaged-s2-bitflip-index-kept": "one bit of a compressed block flipped",
    "damaged-s2-bitflip-no-index": "the same, `index.db` gone",
    "damaged-s2-no-index": "`index.db` of a compressed stream gone",
    "damaged-stuck-consumer": "all blocks gone, `index.db` emptied, consumer kept",
    "damaged-truncated-last": "last record half written",
    "kill9": "SIGKILL",
    "kill9-stale-index": "SIGKILL, `index.db` older than the blocks",
    "old-2-9-10-kill9": "SIGKILL of server 2.9.10",
    "r3-drift-old-messages-gone": "oldest block and `index.db` of one of three nodes gone",
    "r3-drift-stream-dir-gone": "stream directory of one of three nodes gone",
    "r3-lagging-follower": "one of three nodes stopped before the others",
}
HEAD = """# What is rescued

How much of a broken NATS JetStream store comes back. Real servers (2.15.1 unless the name says otherwise) wrote these
stores in `tests/data/nats`; most were damaged afterwards. *Served*: messages that a server still served from a copy,
the best of 2.9.10 to 2.15.1. *Read*: what `layout=nats` reads of the same files. *Damage*: what
`option("table", "damage")` lists.

A server changes a damaged store: 2.15.1 deleted all of `damaged-s2-bitflip-no-index`, good blocks included. jstream
changes nothing. A test compares this page (`scripts/rescue_table.py`) with the stores: all messages that are whole on
disk are read, as a client got them before the damage.

"""
FOOT = """
Read whole, without their `index.db` or after SIGKILL: {whole}.
So are {healthy_count} undamaged stores, the encrypted ones with their key.

## Copies side by side

`load("n1,n2,n3")` reads the copies of several nodes as one; `jstream drift nats n1 n2 n3` shows where they differ
([guide](guide/rescue.md)).

| case | what happened | served by the cluster | read of all copies | whole | what differs |
|---|---|---|---|---|---|
{replicas}

The copies vote on each sequence. A copy has a message (sequence, subject, time, headers and data, compared by a 64-bit
hash after its checksum held), or says that it was removed (by index, tombstone, or a whole block without it), or has no
vote, because it is damaged or gone, or never came so far.

| copies | served | rule |
|---|---|---|
| more say *removed* than have a message | nothing | `removed` |
| as many or fewer say so | the message | `kept` |
| as many or fewer say so, but would be more with those whose bytes are damaged or gone | the message | `unsure` |
| more than half of those with a message have the same | that one | `majority` |
| no majority, one content in most copies | that one | `most copies` |
| no majority, several contents in as many copies | the last one; in the same nanosecond the greater hash | `latest` |

The order of directories does not matter. With `unsure`, `most copies` and `latest` a read fails and names the
sequences; `failOnDataLoss=false` accepts the rule. `option("table", "damage")`, `jstream drift` and the log of a read
have every difference and its rule. A message that no copy has whole is lost, and fails a read. So is what a torn end
may have held behind all other copies, unless more than half of them end whole before it: then no cluster acknowledged
it.

With `layout=stan` no copy says *removed*: channels have no deletes, and limits leave no trace.
"""


@dataclass(frozen=True)
class Copy:
    """What was read of one copy of a stream."""

    path: str
    rows: list[dict[str, Any]]
    damage: list[ForeignDamage] = field(default_factory=list)

    @property
    def node(self) -> str:
        inside = Path(self.path).parts
        return inside[inside.index("store") + 1] if "jetstream" != inside[inside.index("store") + 1] else ""


def names() -> list[str]:
    return sorted(path.name for path in CASES.iterdir() if path.is_dir())


def info(case: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CASES / case / "info.json").read_text())
    return loaded


def messages(case: str, file: str) -> list[dict[str, Any]]:
    """Return the messages that a client got, `expected` of the store as it is, `before` of it before the damage."""
    path = CASES / case / f"{file}.jsonl.gz"
    if not path.exists():
        return []
    return [_row(json.loads(line)) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


@cache
def read(case: str) -> list[Copy]:
    """Read every copy of the stream of a case."""
    store = open_foreign(CASES / case / "store", encryption_key=KEY)
    return [_read_copy(copy.path, copy.stream) for copy in store.copies(info(case)["stream"])]


def served(case: str) -> dict[str, set[int]]:
    """Return the sequences that each server version served."""
    known = info(case).get("served", {})
    return {
        version: {sequence for first, end in runs for sequence in range(first, end)} for version, runs in known.items()
    }


def page() -> str:
    """Return docs/rescue.md."""
    single = [case for case in names() if case in HAPPENED and not case.startswith("r3-")]
    whole = [case for case in single if not any(copy.damage for copy in read(case))]
    lines = ["| case | what happened | written | served | read | damage |", "|---|---|---|---|---|---|"]
    lines += [line for case in single if case not in whole for line in _lines(case)]
    foot = FOOT.format(
        whole=", ".join(f"`{case}`" for case in whole),
        healthy_count=sum(case not in HAPPENED for case in names()),
        replicas="\n".join(_together(case) for case in names() if case.startswith("r3-")),
    )
    return HEAD + "\n".join(lines) + "\n" + foot


def together(case: str) -> list[dict[str, Any]]:
    """Return what is read of all copies of the stream of a case together."""
    store = open_foreign(CASES / case / "store")
    parts = store.plan(info(case)["stream"], COLUMNS)
    return [row for part in parts for batch in read_foreign_slice(part, COLUMNS) for row in batch.to_pylist()]


def _together(case: str) -> str:
    drift = compare(open_foreign(CASES / case / "store"), info(case)["stream"])
    whole = ", ".join(copy.label for copy in drift.copies if copy.whole)
    losses = "; ".join([*(f"{copy.label}: {_counts(copy)}" for copy in drift.copies if not copy.whole), *drift.notes])
    served_count = len(messages(case, "expected"))
    happened = HAPPENED.get(case, "")
    return f"| `{case}` | {happened} | {served_count} | {len(together(case))} | {whole} | {losses or 'nothing'} |"


def _counts(copy: CopyDrift) -> str:
    return ", ".join(f"{copy.count(state)} {state.label}" for state in State if copy.count(state))


def _lines(case: str) -> Iterator[str]:
    written = len(messages(case, "before") or messages(case, "expected"))
    by_version = {version: len(served_messages) for version, served_messages in served(case).items()}
    best = max(by_version.values(), default=None)
    versions = [version for version, count in by_version.items() if count == best]
    which = "" if len(versions) == len(by_version) else f" ({', '.join(versions)})"
    for copy in read(case):
        name = f"`{case}`" + (f", {copy.node}" if copy.node else "")
        losses = "; ".join(_shown(damage) for damage in copy.damage) or "nothing"
        if len(copy.damage) > 1:
            costly = [damage for damage in copy.damage if damage.first is not None]
            sequences = ", ".join(str(damage.first) for damage in costly)
            losses = f"sequences {sequences}: {_reason(costly[0])}, and so on" if costly else losses
        count = "" if best is None else f"{best}{which}"
        yield f"| {name} | {HAPPENED[case]} | {written} | {count} | {len(copy.rows)} | {losses} |"


def _shown(damage: ForeignDamage) -> str:
    if damage.first is None:
        return _reason(damage)
    if damage.end is None:
        return f"from sequence {damage.first} on: {_reason(damage)}"
    if damage.end == damage.first + 1:
        return f"sequence {damage.first}: {_reason(damage)}"
    return f"sequences {damage.first} to {damage.end - 1}: {_reason(damage)}"


def _reason(damage: ForeignDamage) -> str:
    """Return what is wrong, without where in the file, and without what follows from it."""
    return re.split("; in the compressed file| in the record of|: the blocks", damage.reason)[0]


def _read_copy(path: str, stream: str) -> Copy:
    store = open_foreign(path, encryption_key=KEY)
    damage, parts = store.inspect(stream)
    rows = [
        row for part in parts for batch in read_foreign_slice(part, COLUMNS, damage.append) for row in batch.to_pylist()
    ]
    return Copy(path, rows, damage)


def _row(line: dict[str, Any]) -> dict[str, Any]:
    pairs = [{"key": key, "value": value.encode()} for key, value in line["headers"]]
    return {
        "sequence": line["seq"],
        "subject": line["subject"],
        "timestamp_ns": line["time_ns"],
        "headers": pairs if line["hdrs"] else None,
        "data": base64.b64decode(line["data"]),
    }


if __name__ == "__main__":
    print(page(), end="")
