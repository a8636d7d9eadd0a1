"""Print docs/guide/options.md, made of the table in datasource/options.py.

.venv/bin/python scripts/option_tables.py > docs/guide/options.md
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from datasource.options import OPTIONS, Option, Use

HEAD = """# Options

The options that `.option(name, value)` takes with `format("jstream")`. Names are not case-sensitive. Unknown options,
and options that do not apply, are rejected by name. Durations have a unit: `500ms`, `90s`, `2m`, `1h30m`,
`7d`. Sizes may have one, in powers of 1,024: `1048576`, `512k`, `64MB`.
"""

# Where an option may be given, as the column `for` says it.
PLACES = {
    frozenset(Use): "all",
    frozenset({Use.READ, Use.STREAM_READ}): "reads",
    frozenset({Use.WRITE, Use.STREAM_WRITE}): "writes",
}


def page() -> str:
    """Return the page: each option once, with the uses that it is for."""
    lines = ["| option | for | takes | default | meaning |", "|---|---|---|---|---|"]
    return "\n".join([HEAD, '<div class="stacks" markdown>', "", *lines, *map(_row, OPTIONS), "", "</div>", ""])


def _row(option: Option) -> str:
    meaning = f"Another name of `{option.alias}`. {option.meaning}".strip() if option.alias else option.meaning
    places = PLACES.get(frozenset(option.uses)) or ", ".join(use.value for use in Use if use in option.uses)
    cells = (f"`{option.name}`", places, option.kind.words, option.default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(page(), end="")
