"""`--lock-timeout DURATION`: how long a command waits for a process that holds the store, anywhere among its words."""

from typing import Any

from spark_stream.cli.front_options import LOCK_TIMEOUT
from spark_stream.cli.quantities import parse_duration_option

_given: dict[str, float] = {}  # to the command that this process runs


def keep_lock_timeout(text: str | None) -> None:
    """Keep the duration for the verb. Raises WrongUsage for what is none."""
    _given.clear()
    if text is not None:
        _given["lock_timeout_s"] = parse_duration_option(text, LOCK_TIMEOUT) / 1e9


def lock_timeout() -> dict[str, Any]:
    """Return the argument of `Store.open` that the words of the command ask for; empty if they leave its default."""
    return dict(_given)
