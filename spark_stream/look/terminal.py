"""Data on stdout: JSON for programs, tables for people; and talk on stderr.

On a terminal Rich draws the tables and folds what is too wide. Anywhere else a table is plain text, as wide as it
must be, so that no column is ever cut and `awk` finds its fields.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def naming_stdout() -> Iterator[None]:
    """Let an error of the operating system in the body say that it is about standard output."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
        raise


def write(data: str | bytes) -> None:
    """Write all of `data` to stdout, and flush it."""
    rest = memoryview(data.encode(sys.stdout.encoding, "backslashreplace") if isinstance(data, str) else data)
    with naming_stdout():
        sys.stdout.flush()  # what others have printed there goes out first
        while rest:
            # With PYTHONUNBUFFERED the "buffer" is the bare file, which may take less than it is given.
            rest = rest[sys.stdout.buffer.write(rest) or 0 :]
        sys.stdout.buffer.flush()


def print_json(value: Any) -> None:
    """Print one JSON document; whatever lies outside ASCII is escaped, so no locale can spoil it."""
    write(json.dumps(value, indent=2) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print names and the like, one per line, escaped as they need it."""
    write("".join(f"{printable(line)}\n" for line in lines))


def say(text: str) -> None:
    """Print on stderr what is for people and no data."""
    print(printable(text), file=sys.stderr, flush=True)


class Warnings(logging.Handler):
    """Prints what the store warns of, each warning once in a command."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    @classmethod
    def listen(cls) -> None:
        """Begin a command: from here on warnings go to its person."""
        logger = logging.getLogger("storage_core")
        for handler in [handler for handler in logger.handlers if isinstance(handler, cls)]:
            logger.removeHandler(handler)
        logger.addHandler(cls())

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text in self._shown:
            return
        self._shown.add(text)
        try:
            say(f"warning: {text}")
        except OSError:
            return  # nobody listens; whoever warned is in the middle of something, and goes on


def counted(count: int, thing: str) -> str:
    """Return `1 message` or `2 messages`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def show_span(seconds: float) -> str:
    """Return a span of time for people, in its two largest units: `1 d 1 h`, `2 min 5 s`; below ten seconds `1.5 s`."""
    whole = max(0, round(seconds))
    if whole < 10:
        return f"{max(0.0, seconds):.1f} s"
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def show_size(byte_count: int) -> str:
    """Return a size for people: `1.5 MiB`."""
    size = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def printable(text: str) -> str:
    """Return `text` with everything escaped that could steer a terminal or break a table's line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """Print rows under their column names; numbers stand to the right. The title is for terminals only."""
    numeric = [bool(rows) and all(type(row[at]) is int for row in rows) for at in range(len(columns))]
    texts = [[printable(_cell(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, texts, numeric, title)
        return
    table = [list(columns), *texts]
    widths = [max(len(row[at]) for row in table) for at in range(len(columns))]
    write("".join(f"{_plain_row(row, widths, numeric)}\n" for row in table))


def print_facts(title: str, facts: Sequence[tuple[str, Any]]) -> None:
    """Print what is known of one thing: a heading, one `name: value` a line, an empty line."""
    shown = [(printable(name), printable(_cell(value))) for name, value in facts]  # a name may be a key of metadata
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"  {name:>{width}}: {value}".rstrip() for name, value in shown]
    write("\n".join([printable(title), "", *lines, "", ""]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if sys.stdout.isatty() else str(value)
    return str(value)


def _plain_row(cells: list[str], widths: list[int], numeric: list[bool]) -> str:
    placed = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return "  ".join(placed).rstrip()


def _print_rich(columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: what a stream holds is never read as markup
    with naming_stdout():
        Console().print(table)
