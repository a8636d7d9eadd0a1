"""What a plan over a foreign store is asked for, checked before any file is looked at."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from storage_core.errors import NotFoundError
from storage_core.schema import read_schema
from storage_core.subjects import is_filter

_GLOB_CHARACTERS = frozenset("*?[")


def check_asked(
    columns: Sequence[str] | None,
    sequences: tuple[int | None, int | None],
    times_ns: tuple[int | None, int | None],
    subject_filters: Sequence[str],
) -> None:
    """Raise ValueError for columns that no message has, a range that ends before it begins, or what is no filter."""
    read_schema(None if columns is None else tuple(columns))
    for kind, (first, end) in (("sequences", sequences), ("times", times_ns)):
        if first is not None and end is not None and first > end:
            raise ValueError(f"range of {kind}: {first} to {end} ends before it begins")
    for subject_filter in subject_filters:
        if not is_filter(subject_filter):
            raise ValueError(f"subject: {subject_filter!r} is no subject filter")


def match_names(
    patterns: str | Sequence[str], names: Iterable[str], find: Callable[[str], str], paths: str
) -> list[str]:
    """Return the names that names and globs mean, sorted. `find` returns a name that is there, or raises.

    Raises NotFoundError for a glob that nothing matches, but for the one that means all.
    """
    matched: list[str] = []
    known = sorted(names)
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if pattern in known or not _GLOB_CHARACTERS & set(pattern):
            matched.append(find(pattern))
            continue
        hits = [name for name in known if fnmatchcase(name, pattern)]
        if not hits and pattern != "*":
            raise NotFoundError(f"stream: nothing in {paths} matches {pattern!r}")
        matched += hits
    return sorted(set(matched))
