"""Which streams a piece of maintenance has to look at: those whose blocks have changed since it was done with them.

A store may have thousands of streams of which a command touches one. What has changed between two looks is read off the
maps of the two states, so a look costs the streams that were touched and those that are still due.
"""

from storage_core.metadata.state import Streams, StreamState


class DueStreams:
    """The streams that one piece of maintenance is not done with. Used under the store's locks."""

    def __init__(self) -> None:
        self._looked = Streams()
        self._due: dict[bytes, None] = {}  # incarnations, in the order in which they became due

    def among(self, streams: Streams) -> list[StreamState]:
        """Return those that are due, of the streams as they are now."""
        for before, now in streams.changes_since(self._looked):
            if before is not None and (now is None or now.incarnation != before.incarnation):
                self._due.pop(before.incarnation, None)
                before = None
            if now is not None and (before is None or before.blocks is not now.blocks):
                self._due[now.incarnation] = None
        self._looked = streams
        known = ((incarnation, streams.by_incarnation(incarnation)) for incarnation in self._due)
        return [stream for _, stream in known if stream is not None]

    def done(self, stream: StreamState) -> None:
        """Say that nothing is left to be done about the stream until its blocks change."""
        self._due.pop(stream.incarnation, None)

    def restart(self) -> None:
        """Take all streams to be due, the next time."""
        self._looked = Streams()
