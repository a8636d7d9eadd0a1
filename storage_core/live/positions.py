"""Durable consumers that show on the server how far a reader has come, for the server's own monitoring.

Nothing is read by them. One is moved by being made anew, since a server moves the start of none.
"""

from storage_core.errors import AlreadyExistsError, NotFoundError, StreamNotFoundError
from storage_core.live.connection import Connection
from storage_core.live.server import stream_info

_METADATA = {"jstream": "position of a reader"}


def show_position(connection: Connection, stream: str, consumer: str, created: str, sequence: int) -> None:
    """Let the consumer say that everything below `sequence` was read; it is made if it is not there.

    Raises AlreadyExistsError for a consumer of somebody else, ValueError for a stream from which a consumer takes
    messages, or in which it keeps them.
    """
    info = stream_info(connection, stream)
    if info.created != created:
        return
    if info.is_for_consumers:
        raise ValueError(
            f"option 'consumer': stream {stream!r} has retention {info.config['retention']}, in which a consumer that "
            "shows a position would take messages away or keep them: leave it out"
        )
    try:
        answer = connection.request("CONSUMER.INFO", stream, consumer)
    except StreamNotFoundError:
        raise
    except NotFoundError:
        pass
    else:
        config = answer["config"]
        if (config.get("metadata") or {}).get("jstream") != _METADATA["jstream"]:
            raise AlreadyExistsError(
                f"consumer {consumer!r} of stream {stream!r} was not made by a query of jstream, and is left alone: "
                "name another one"
            )
        if config.get("opt_start_seq") == sequence:
            return
        connection.request("CONSUMER.DELETE", stream, consumer)
    wanted = {
        "durable_name": consumer,
        "description": "shows how far a query of jstream has read; nothing is delivered by it",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": sequence,
        "ack_policy": "none",
        "metadata": _METADATA,
    }
    connection.request("CONSUMER.CREATE", stream, consumer, body={"stream_name": stream, "config": wanted})
