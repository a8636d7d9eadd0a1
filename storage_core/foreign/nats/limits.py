"""What the limits of a stream remove, worked out again where no index tells.

The server writes nothing into the blocks when a limit removes a message; only its index knows, and without one it
applies the limits anew at its next start. The same is done here, in the same order, on what the tombstones left.
Age is measured against the newest message instead of a clock: a message that was too old, or whose own time to live
was over, when the newest one was stored had been removed by then, and of others nobody can tell.

Source: nats-server, server/filestore.go (`enforceMsgLimit`, `enforceBytesLimit`, `expireMsgsOnRecover`,
`enforceMsgPerSubjectLimit`), server/stream.go (`StreamConfig`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_core.foreign.nats.record import SIZE_MIN
from storage_core.foreign.nats.ttl import NEVER
from storage_core.subjects import is_filter

CONFIGURED_COUNT_MAX = 64  # subjects of a stream that messages are checked against; of streams with more, none are


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a stream; 0 is none."""

    max_msgs: int
    max_bytes: int
    max_age_ns: int
    max_msgs_per_subject: int
    first_sequence: int
    per_message_ttl: bool = False  # the header Nats-TTL counts
    rolls_up: bool = False  # the header Nats-Rollup counts

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Limits":
        """Return the limits in a configuration as it stands in meta.inf. Total limits remove only old messages."""
        removes_old = config.get("discard", "old") == "old"
        refuses_new = not removes_old and config.get("discard_new_per_subject") is True
        is_copy = bool(config.get("mirror") or config.get("sources"))  # it keeps the headers of others
        return cls(
            _positive(config, "max_msgs") if removes_old else 0,
            _positive(config, "max_bytes") if removes_old else 0,
            0 if _positive(config, "subject_delete_marker_ttl") else _positive(config, "max_age"),
            0 if refuses_new else _positive(config, "max_msgs_per_subject"),
            _positive(config, "first_seq"),
            config.get("allow_msg_ttl") is True,
            config.get("allow_rollup_hdrs") is True and not is_copy,
        )

    def is_near(self, count: int, size: int, removed_count: int, removed_size: int, size_max: int) -> bool:
        """Return whether a limit of the whole stream may have removed what is missing from it.

        `count` and `size` of what is there, and of what is known to have been there; the largest message.
        """
        is_full = 0 < self.max_msgs <= count + removed_count
        return is_full or 0 < self.max_bytes < size + removed_size + max(size_max, SIZE_MIN)

    def keep(
        self,
        sequences: np.ndarray,
        sizes: np.ndarray,
        times_ns: np.ndarray,
        subjects: np.ndarray,
        ttls_ns: np.ndarray | None = None,
        newest_ns: int = 0,
    ) -> np.ndarray:
        """Return a mask of the messages that stay.

        Parallel arrays, ascending by sequence; `sizes` are whole records in bytes, `subjects` any codes that are
        equal where the subjects are, `ttls_ns` as parse_ttls returns them. `newest_ns`: of a message that was removed.
        """
        keep = sequences >= self.first_sequence
        newest = max(newest_ns, int(times_ns.max())) if len(times_ns) else 0
        if ttls_ns is not None:
            keep &= (ttls_ns <= 0) | (newest - times_ns < ttls_ns)
        if self.max_msgs:
            keep &= _from_end(keep.astype(np.int64)) <= self.max_msgs
        if self.max_bytes:
            keep &= _from_end(np.where(keep, sizes, 0)) <= self.max_bytes
        if self.max_age_ns:
            never = False if ttls_ns is None else ttls_ns == NEVER
            keep &= (newest - times_ns <= self.max_age_ns) | never
        if self.max_msgs_per_subject:
            kept = np.flatnonzero(keep)
            keep[kept[_rank_from_end(subjects[kept]) >= self.max_msgs_per_subject]] = False
        return keep


def configured_subjects(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the filters whose messages the stream takes; () if its configuration does not tell, or they are many.

    A mirror and what comes from other streams have the subjects of those; a transformed subject is another.
    """
    subjects = config.get("subjects")
    if any(config.get(key) for key in ("mirror", "sources", "subject_transform")) or not isinstance(subjects, list):
        return ()
    if len(subjects) > CONFIGURED_COUNT_MAX or not all(isinstance(each, str) and is_filter(each) for each in subjects):
        return ()
    return tuple(subjects)


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key, 0)
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0


def _from_end(values: np.ndarray) -> np.ndarray:
    """Return for each place the sum from there to the end."""
    return np.cumsum(values[::-1])[::-1]


def _rank_from_end(codes: np.ndarray) -> np.ndarray:
    """Return how many equal codes come after each place."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    ends = np.searchsorted(ordered, ordered, side="right")
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = ends - 1 - np.arange(len(codes))
    return ranks
