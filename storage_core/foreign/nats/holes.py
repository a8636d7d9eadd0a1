"""Numbers of a stream that no block accounts for: removed, lost, or open.

Numbers rise by one from message to message, and a block accounts for those of its records and for what lies between
them: there the server removed, or skipped. Of a number that lies in no block, somebody else has to say that it was
removed: an index, a tombstone, the first sequence of the configuration, or a limit that was reached. Where nobody does,
it is lost. It is open, removed or lost, where the stream removes messages by itself without leaving a trace: by
acknowledgement, by age, by a limit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.foreign.nats.block import BLOCK_SUFFIX
from storage_core.foreign.nats.meta import INDEX_FILE
from storage_core.sequences import SequenceSet

RUN_COUNT_MAX = 1024  # runs of numbers between two blocks that are told one by one


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers `[first, end)` that a block accounts for; `end <= first`: none."""

    block_index: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Numbers in `[first, end)` of which nothing says that they were removed."""

    first: int
    end: int
    removed: SequenceSet  # numbers in between that were
    block_index: int  # of the block that may have had them
    open: bool  # they may have been removed: see above
    reason: str


def find_holes(
    spans: Iterable[Span], removed: SequenceSet, begin: int, end: int, listed: SequenceSet, leaves_no_trace: bool
) -> list[Hole]:
    """Return the holes in `[begin, end)`, ascending. `spans` are ascending by block index.

    `listed`: what an index that is older than the blocks says is there. `leaves_no_trace`: see `removes_silently`.
    """
    holes: list[Hole] = []
    at, before, gone_blocks = begin, 0, list[tuple[int, int]]()  # before: index of the last block with numbers
    last_index = 0
    for span in [*spans, None]:
        if span is not None:
            gone_blocks += [(last_index + 1, span.block_index)] if span.block_index > last_index + 1 else []
            last_index = span.block_index
            if span.end <= span.first:
                continue
        first = end if span is None else span.first
        absent = SequenceSet.from_ranges([(at, first)]).difference(removed) if at < first else SequenceSet.empty()
        if absent:
            missing = SequenceSet.from_ranges(gone_blocks)
            is_cut = bool(before) and span is not None and not missing
            own = missing.bounds[0] if missing else before + 1
            for low, high in _runs(absent):
                run = absent.clip(low, high)
                reason = _reason((low, high), before, missing, len(run.intersection(listed)))
                hidden = SequenceSet.from_ranges([(low, high)]).difference(run)
                holes.append(Hole(low, high, hidden, own, leaves_no_trace or is_cut, reason))
        if span is not None:
            at, before, gone_blocks = max(at, span.end), span.block_index, []
    return holes


def _runs(absent: SequenceSet) -> list[tuple[int, int]]:
    """Return the runs, of many the first ones and one more that spans the others."""
    runs = absent.ranges_head(RUN_COUNT_MAX)
    if absent.run_count > RUN_COUNT_MAX:
        runs[-1] = (runs[-1][0], absent.bounds[1])
    return runs


def removes_silently(config: Mapping[str, Any], is_near_limit: bool) -> bool:
    """Return whether a stream of that configuration removes messages by itself and leaves no trace in its blocks."""
    by_subject = config.get("max_msgs_per_subject", 0)
    return (
        config.get("retention", "limits") != "limits"
        or is_near_limit
        or config.get("allow_msg_ttl") is True
        or any(isinstance(limit, int) and limit > 0 for limit in (config.get("max_age", 0), by_subject))
    )


def block_names(numbers: SequenceSet) -> str:
    """Return the names of the files of these blocks; of many, the first ones."""
    ranges = numbers.ranges_head(8)
    names = [
        f"{first}{BLOCK_SUFFIX}" if end == first + 1 else f"{first}{BLOCK_SUFFIX} to {end - 1}{BLOCK_SUFFIX}"
        for first, end in ranges
    ]
    return ", ".join(names) + (" and others" if numbers.run_count > len(ranges) else "")


def _reason(run: tuple[int, int], before: int, gone_blocks: SequenceSet, listed_count: int) -> str:
    which = f"[{run[0]}, {run[1]})"
    place = f"{block_names(gone_blocks)} not there" if gone_blocks else f"{before}{BLOCK_SUFFIX} ends in front of them"
    if listed_count:
        listed = f"{INDEX_FILE}, which is older than the blocks, lists {listed_count} messages of {which} there"
        return f"{place}, and {listed}: removed since, or lost with their blocks"
    how = (
        "removed, or lost with a block that is gone"
        if gone_blocks or not before
        else "removed and compacted away, or cut off"
    )
    return f"{place}, and no index tells what became of {which}: {how}"
