"""Subjects of a stream as a tree, with how many messages each branch has.

Blocks are asked from the newest on, by their footers where those say it, until all are counted or the bounds of one
request are reached; then the page says which messages it counted, and the next one goes on there.
"""

import time
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from spark_stream.ui.model.pages import stream_head
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.errors import StorageError
from storage_core.metadata.state import StreamState
from storage_core.store.contents import counts_in, slices
from storage_core.store.opened import OpenStore
from storage_core.store.reading.plan import ReadRequest
from storage_core.subjects import is_literal

COUNTING_S = 1.0  # for one page
SUBJECT_COUNT_MAX = 100_000  # subjects that one page counts
NODE_COUNT_MAX = 200  # branches that one page shows


@dataclass(slots=True)
class Branch:
    """Subjects that begin with the same tokens."""

    prefix: str
    messages: int = 0  # of all subjects of the branch
    own: int = 0  # of the subject that ends here
    subjects: int = 0
    branches: dict[str, "Branch"] = field(default_factory=dict)

    def add(self, tokens: list[str], messages: int) -> None:
        branch = self
        for token in tokens:
            branch.messages += messages
            branch.subjects += 1
            prefix = f"{branch.prefix}.{token}" if branch.prefix else token
            branch = branch.branches.setdefault(token, Branch(prefix))
        branch.messages += messages
        branch.own += messages
        branch.subjects += 1


@dataclass(slots=True)
class Counts:
    """What was counted: messages [first, end) of the stream by subject."""

    first: int
    end: int
    by_subject: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0  # blocks


def subjects_page(site: Site, query: Query, name: str) -> dict[str, Any]:
    """Return the branches below `prefix` of the messages below sequence `before`, by default of the newest ones."""
    store, prefix = site.store(), query.text("prefix")
    stream = store.stream_state(name)
    if prefix and not is_literal(prefix):
        raise ValueError(f"prefix: {prefix[:80]!r} is not the beginning of a subject: tokens joined by dots")
    end = min(query.number("before", stream.next_sequence) or stream.next_sequence, stream.next_sequence)
    counts = _count(store, stream, prefix, end)
    tree, skipped = Branch(prefix), len(prefix.split(".")) if prefix else 0
    for subject, messages in counts.by_subject.items():
        tree.add(subject.split(".")[skipped:], messages)
    which = f" {quote(prefix + '.>')}" if prefix else ""
    return {
        "stream": stream_head(site, site.scan(), stream),
        "prefix": prefix,
        "tree": _shown(tree),
        "first": counts.first,
        "end": counts.end,
        "is_all": counts.first <= stream.low_watermark and counts.end == stream.next_sequence,
        "older": counts.first if counts.first > stream.low_watermark else None,
        "unreadable_blocks": counts.unreadable,
        "command": f"jstream stream subjects {quote(name)}{which} --store {site.command_store}",
    }


def _count(store: OpenStore, stream: StreamState, prefix: str, end: int) -> Counts:
    filters = (prefix, f"{prefix}.>") if prefix else ()
    sizes = {bytes(row["block_id"]): int(row["row_count"]) for row in stream.blocks.rows}
    request = ReadRequest((stream.name,), {stream.name: (stream.low_watermark, end)}, subject_filters=filters)
    counts, until = Counts(stream.low_watermark, end), time.monotonic() + COUNTING_S
    for number, block in enumerate(reversed(list(slices(store, stream, request)))):
        if number and (time.monotonic() > until or len(counts.by_subject) >= SUBJECT_COUNT_MAX):
            counts.first = block.end
            break
        try:
            counted = counts_in(store, block, sizes[block.block_id])
        except StorageError:
            counts.unreadable += 1
            continue
        for subject, messages in counted:
            if not prefix or subject == prefix or subject.startswith(f"{prefix}."):
                counts.by_subject[subject] = counts.by_subject.get(subject, 0) + messages
    return counts


def _shown(tree: Branch) -> dict[str, Any]:
    """Return the tree with the branches that have the most messages, down to the leaves while there is room."""
    left = NODE_COUNT_MAX
    top = _node(tree)
    level = [(tree, top)]
    while level and left > 0:
        below = []
        for branch, node in level:
            listed = sorted(branch.branches.values(), key=lambda child: (-child.messages, child.prefix))[:left]
            left -= len(listed)
            pairs = [(child, _node(child)) for child in listed]
            node["branches"] = [shown for _, shown in pairs]
            node["left_out"] = len(branch.branches) - len(listed)
            below += pairs
        level = below
    return top


def _node(branch: Branch) -> dict[str, Any]:
    return {
        "token": branch.prefix.rpartition(".")[2],
        "prefix": branch.prefix,
        "messages": branch.messages,
        "own": branch.own,
        "subjects": branch.subjects,
        "branches": [],
        "left_out": len(branch.branches),
    }
