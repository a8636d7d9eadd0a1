"""What a page says of a stream that mirrors one of running NATS servers: how far behind it is, and its last comparison.

The lag is asked of the servers that the mirror names, with the login of the environment, once in a while for all
viewers. Everything else is in the store.
"""

import time
from typing import Any

from spark_stream.store_scan import Scan
from storage_core.live.login import Login
from storage_core.metadata.appends import MIRROR
from storage_core.metadata.state import StreamState
from storage_core.mirror import ADDRESSES, MirrorLag, lag_of
from storage_core.store.describe import events

FRESH_S = 5.0
ASK_S = 1.0  # a page waits for a server no longer
_KINDS = {"mirror_compared": "compared", "mirror_diverged": "diverged"}


class MirrorLags:
    """What the servers said last of each mirror."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._known: dict[str, tuple[float, int, MirrorLag]] = {}  # when it was asked, and how far the mirror was then

    def of(self, stream: StreamState) -> MirrorLag:
        asked_at, sequence, lag = self._known.get(stream.name, (-1e9, 0, MirrorLag(None)))
        if sequence != stream.next_sequence or time.monotonic() - asked_at >= self._fresh_s:
            lag = lag_of(stream, Login(), ASK_S)
            self._known[stream.name] = time.monotonic(), stream.next_sequence, lag
        return lag


def mirror_of(lags: MirrorLags, scan: Scan, stream: StreamState) -> dict[str, Any] | None:
    """Return what is to be said of a mirror; None for other streams."""
    source = stream.config.metadata.get(MIRROR)
    if source is None:
        return None
    lag = lags.of(stream)
    newest: dict[str, Any] = dict.fromkeys(_KINDS.values())
    for event in events(scan.survey.view.state, None, stream.name, None):
        if event["kind"] in _KINDS:
            newest[_KINDS[event["kind"]]] = {key: event[key] for key in ("time", "after", "reason")}
    servers = stream.config.metadata.get(ADDRESSES, "")
    return {"source": source, "servers": servers, "lag": lag.sequences, "problem": lag.problem, **newest}
