"""What a page says of a stream that mirrors one of running NATS servers: how far behind it is, and its last comparison.

The lag is asked of the servers that the mirror names, once in a while for all viewers. A store may come from anywhere,
so the login of the environment goes to the servers in NATS_URL alone. Everything else is in the store.
"""

import os
import time
from typing import Any

from spark_stream.store_scan import Scan
from storage_core.live.login import Address, Login, parse_address
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
            lag = _asked(stream)
            self._known[stream.name] = time.monotonic(), stream.next_sequence, lag
        return lag


def _asked(stream: StreamState) -> MirrorLag:
    try:
        login = Login().completed()
        named = _addresses(stream.config.metadata.get(ADDRESSES, ""))
        if login.says_who and not named <= _addresses(os.environ.get("NATS_URL", "")):
            return MirrorLag(
                None, "the login of the environment is for other servers; NATS_URL has to name those above"
            )
    except ValueError as error:
        return MirrorLag(None, str(error))
    return lag_of(stream, login, ASK_S)


def _addresses(text: str) -> set[Address]:
    return {parse_address(address, "NATS_URL") for address in text.split(",") if address}


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
