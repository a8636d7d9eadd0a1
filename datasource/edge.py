"""The edge towards Spark: errors that leave here show their code, as Spark's own do: `[JSTREAM_DATA_LOSS] ...`.

Spark makes text of whatever Python raises, so this is the last place where an error is one of ours. It prints the whole
of a traceback before the error itself; one of ours says what happened and where, and comes without: JSTREAM_TRACEBACK=1
keeps it.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from storage_core.errors import OptionError, StorageError

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
CALLED_BY_SPARK = (
    "abort", "commit", "initialOffset", "latestOffset", "partitions", "prepareForTriggerAvailableNow", "pushFilters",
    "read", "reportLatestOffset", "write",
)  # fmt: skip


def show_codes(kind: C) -> C:
    """Let the methods of a reader or writer that Spark calls raise errors that show their code; decorates the class."""
    for name in CALLED_BY_SPARK:
        if name in vars(kind):
            setattr(kind, name, shows_code(vars(kind)[name]))
    return kind


def shows_code(function: F) -> F:
    """The same for a function, and for the iterator that it may return."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
        except StorageError as error:
            raise _shown(error)  # noqa: B904
        return _shown_iterator(result) if isinstance(result, Iterator) else result

    return wrapped  # type: ignore[return-value]


def checks_options(function: F) -> F:
    """The same for a function that checks options and columns: what it refuses is an OptionError."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except ValueError as error:
            refusal = option_error(error)
            if refusal is error:
                raise
            raise refusal from error

    return shows_code(wrapped)  # type: ignore[return-value]


def option_error(error: ValueError) -> Exception:
    """Return the error for users of what a check of options and columns refused; anything but that as it is."""
    return OptionError(str(error)) if type(error) is ValueError else error


def _shown_iterator(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except StorageError as error:
        raise _shown(error)  # noqa: B904


def _shown(error: StorageError) -> StorageError:
    error.shows_code = True
    if not os.environ.get("JSTREAM_TRACEBACK"):
        error.__traceback__, error.__cause__, error.__suppress_context__ = None, None, True
    return error
