"""Copies of a stream: each block of each volume, as tiles that stand for as many blocks as there are too many of them.

States come from metadata, names, sizes, the last scrub and readers' reports; no block is read for it. One block's page
reads a copy from end to end when somebody asks for that.
"""

from collections import Counter
from contextlib import closing
from shlex import quote
from typing import Any

import numpy as np

from spark_stream.block_survey import survey
from spark_stream.store_scan import Scan
from spark_stream.ui import payload
from spark_stream.ui.model.pages import stream_head
from spark_stream.ui.query import Query
from spark_stream.ui.site import Site
from storage_core.errors import NotFoundError
from storage_core.metadata.state import StreamState
from storage_core.quantities import rfc3339
from storage_core.sequences import SequenceSet
from storage_core.store.replicas.replicas import STATES, BlockCopies

TILE_COUNT_MAX = 160  # per volume
LISTED_COUNT_MAX = 60  # blocks of a table
RANGE_COUNT_MAX = 50  # of copies that are not as they should be
FRAME_COUNT_MAX = 200
_BAD_FIRST = ("damaged", "missing", "behind", "current")


def copies_page(site: Site, query: Query, name: str) -> dict[str, Any]:
    """Return the copies of the blocks that hold sequences [first, end), by default of all."""
    scan, stream = _scanned(site, name)
    rows = stream.blocks.rows
    first = query.number("first", stream.low_watermark) or 1
    end = query.number("end", stream.next_sequence) or stream.next_sequence
    if end < first:
        raise ValueError(f"end: {end} lies before first, {first}")
    near = stream.blocks_in(first, end)
    shown = rows[near]
    bounds = _bounds(len(shown))
    replicas = {replica["name"]: replica for replica in stream_head(site, scan, stream)["replicas"]}
    digests: dict[str, str] = {}
    volumes, states = [], []
    for position, volume_id in enumerate(stream.placement):
        replica = replicas[volume_id.hex()]
        copies = scan.survey.block_copies(stream, position)
        own = _states(copies, replica["state"])
        states.append(own[near])
        is_there = replica["state"] != "missing"
        letter = digests.setdefault(replica["digest"], chr(ord("A") + len(digests))) if is_there else None
        volumes.append(
            {
                **replica,
                "content": letter,
                "counts": dict(Counter(own)),
                "tiles": [_tile(shown, own[near], begin, stop) for begin, stop in bounds],
                "bad": _bad_ranges(rows, own),
            }
        )
    blocks = []
    if len(shown) <= LISTED_COUNT_MAX:
        blocks = [_block(shown[at], [state[at] for state in states]) for at in range(len(shown))]
    return {
        "stream": stream_head(site, scan, stream),
        "volumes": volumes,
        "first": int(shown["first"][0]) if len(shown) else first,
        "end": int(shown["first"][-1] + shown["span"][-1]) if len(shown) else end,
        "is_all": len(shown) == len(rows),
        "shown_blocks": len(shown),
        "all_blocks": len(rows),
        "marks": _marks(stream, shown, bounds, ~scan.survey.whole_somewhere(stream)[near]),
        "blocks": blocks,
        "lost_ranges": [list(lost_range) for lost_range in stream.lost.ranges_head(RANGE_COUNT_MAX)],
        "states": sorted(
            {state for own in states for state in own},
            key=_goodness,
        ),
        "command": f"jstream drift --stream {quote(name)} --store {site.command_store}",
    }


def _scanned(site: Site, name: str) -> tuple[Scan, StreamState]:
    """Return a scan that knows the stream. Raises StreamNotFoundError."""
    wanted, scan = site.store().stream_state(name), site.scan()
    stream = scan.survey.view.state.by_incarnation(wanted.incarnation)
    if stream is None:
        scan = site.look()
        stream = scan.survey.view.state.by_incarnation(wanted.incarnation)
    return scan, stream if stream is not None else site.store().stream_state(name, scan.survey.view.state)


def _states(copies: BlockCopies, replica_state: str) -> list[str]:
    """Return the state of each copy; where the volume is away, of that."""
    if replica_state in ("foreign", "rolled_back", "retired"):
        return [replica_state] * len(copies.whole)
    if replica_state == "missing" and not (copies.file_sizes >= 0).any():
        return ["missing"] * len(copies.whole)
    return [state.value for state in copies.states]


def _bounds(count: int) -> list[tuple[int, int]]:
    """Return which blocks each tile stands for."""
    tiles = min(count, TILE_COUNT_MAX)
    edges = [at * count // tiles for at in range(tiles + 1)] if tiles else []
    return list(zip(edges[:-1], edges[1:], strict=True))


def _goodness(state: str) -> int:
    return _BAD_FIRST.index(state) if state in _BAD_FIRST else -1


def _tile(rows: np.ndarray, states: list[str], begin: int, stop: int) -> dict[str, Any]:
    counts = Counter(states[begin:stop])
    worst = min(counts, key=_goodness)
    return {
        "state": worst,
        "is_mixed": len(counts) > 1,
        "bad": sum(counts.values()) - counts["current"],
        "blocks": stop - begin,
        "first": int(rows["first"][begin]),
        "end": int(rows["first"][stop - 1] + rows["span"][stop - 1]),
        "block": bytes(rows["block_id"][begin]).hex() if stop - begin == 1 else None,
    }


def _marks(
    stream: StreamState, rows: np.ndarray, bounds: list[tuple[int, int]], is_unreadable: np.ndarray
) -> list[dict[str, Any]]:
    """Return, for each tile's sequences, how many are lost, removed, or in blocks of which no copy is whole.

    That is what a read of all copies together does not have.
    """
    marks = []
    nowhere = SequenceSet.from_columns(
        rows["first"][is_unreadable], rows["first"][is_unreadable] + rows["span"][is_unreadable]
    ).intersection(stream.shown())
    for begin, stop in bounds:
        first, end = int(rows["first"][begin]), int(rows["first"][stop - 1] + rows["span"][stop - 1])
        lost = stream.lost.count_in(first, end)
        removed = stream.removed.count_in(first, end) - lost + max(0, min(end, stream.low_watermark) - first)
        unreadable = nowhere.count_in(first, end)
        state = "lost" if lost or unreadable else "removed" if removed * 2 > end - first else "served"
        counts = {"lost": lost, "unreadable": unreadable, "removed": max(0, removed)}
        marks.append({"first": first, "end": end, **counts, "state": state})
    return marks


def _bad_ranges(rows: np.ndarray, states: list[str]) -> list[dict[str, Any]]:
    """Return runs of blocks in the same bad state."""
    ranges: list[dict[str, Any]] = []
    at = 0
    while at < len(states) and len(ranges) < RANGE_COUNT_MAX:
        if states[at] == "current":
            at += 1
            continue
        begin = at
        while at < len(states) and states[at] == states[begin]:
            at += 1
        ranges.append(
            {
                "state": states[begin],
                "first": int(rows["first"][begin]),
                "end": int(rows["first"][at - 1] + rows["span"][at - 1]),
                "blocks": at - begin,
                "bytes": int(rows["file_size"][begin:at].sum()),
                "block": bytes(rows["block_id"][begin]).hex() if at == begin + 1 else None,
            }
        )
    return ranges


def _block(row: np.void, states: list[str]) -> dict[str, Any]:
    first, span = int(row["first"]), int(row["span"])
    return {
        "block": bytes(row["block_id"]).hex(),
        "first": first,
        "end": first + span,
        "messages": int(row["row_count"]),
        "bytes": int(row["data_size"]),
        "file_size": int(row["file_size"]),
        "time_min": rfc3339(int(row["time_min_ns"])),
        "time_max": rfc3339(int(row["time_max_ns"])),
        "states": states,
    }


# --- one block


def block_page(site: Site, query: Query, name: str, block: str) -> dict[str, Any]:
    """Return one block and its copies; with `volume`, what reading that copy from end to end finds in it."""
    scan, stream = _scanned(site, name)
    rows = stream.blocks.rows
    wanted = bytes.fromhex(block) if len(block) == 32 and not set(block) - set("0123456789abcdef") else b""
    ids = rows["block_id"].tobytes()
    at = next((at for at in range(len(rows)) if ids[16 * at : 16 * at + 16] == wanted), None)
    if at is None:
        raise NotFoundError(
            f"stream {name!r} has no block {block[:32]!r} now: it may have been merged into another one"
        )
    row = rows[at]
    written_as = stream.written_as(int(row["first"]))
    copies, states = [], []
    volumes = {volume.volume_id: volume for volume in scan.survey.volumes}
    for position, volume_id in enumerate(stream.placement):
        held = scan.survey.block_copies(stream, position)
        replica = next(
            replica for replica in stream_head(site, scan, stream)["replicas"] if replica["name"] == volume_id.hex()
        )
        state = _states(held, replica["state"])[at]
        verified_ns = int(held.verified_ns[at])
        states.append(state)
        volume = volumes.get(volume_id)
        copies.append(
            {
                "name": volume_id.hex(),
                "label": replica["label"],
                "state": state,
                "file": str(volume.blocks.path(written_as, wanted)) if volume is not None else None,
                "file_size": int(held.file_sizes[at]) if held.file_sizes[at] >= 0 else None,
                "verified": rfc3339(abs(verified_ns)) if verified_ns else None,
            }
        )
    chosen = query.text("volume")
    offset_bytes = query.number("offset", 0) or 0
    read = None
    if chosen:
        copy = next((copy for copy in copies if copy["name"] == chosen), None)
        if copy is None:
            raise ValueError(f"volume: {chosen[:40]!r} is none of this stream's")
        read = _read_copy(volumes[bytes.fromhex(chosen)].blocks, written_as, wanted, offset_bytes)
        read["label"] = copy["label"]
    first_copy = next((copy["file"] for copy in copies if copy["state"] == "current"), copies[0]["file"])
    return {
        "stream": stream_head(site, scan, stream),
        **_block(row, states),
        "digest": bytes(row["digest"]).hex(),
        "committed": rfc3339(int(row["committed_ns"])),
        "older": bytes(rows["block_id"][at - 1]).hex() if at else None,
        "newer": bytes(rows["block_id"][at + 1]).hex() if at + 1 < len(rows) else None,
        "copies": copies,
        "volume": chosen,
        "read": read,
        "command": f"jstream block dump {quote(str(first_copy))}",
    }


def _read_copy(blocks: Any, written_as: bytes, block_id: bytes, offset_bytes: int) -> dict[str, Any]:
    """Return what a copy holds, checked from end to end, and some of its bytes."""
    try:
        with closing(blocks.open(written_as, block_id)) as file:
            report = survey(file).to_json()
            size = int(report["file_size"])
            start = min(offset_bytes, max(0, size - 1)) // payload.HEX_ROW * payload.HEX_ROW
            some = file.read_at(start, 1024)
    except OSError as error:
        return {"error": str(error), "frames": [], "damage": [], "hex": "", "offset_bytes": 0, "file_size": None}
    return {
        "error": None,
        "file_size": size,
        "frames": report["frames"][:FRAME_COUNT_MAX],
        "frames_left_out": max(0, len(report["frames"]) - FRAME_COUNT_MAX),
        "damage": report["damage"][:RANGE_COUNT_MAX],
        "hex": payload.hex_dump(some, start),
        "offset_bytes": start,
        "next_offset": start + 1024 if start + 1024 < size else None,
        "previous_offset": max(0, start - 1024) if start else None,
    }


assert set(_BAD_FIRST) <= {state.value for state in STATES}
