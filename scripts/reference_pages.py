"""What is made when the site is built: pages of commands, Python and metrics, its colours, what copy buttons copy.

A hook of mkdocs (mkdocs.yml). What is made here is never out of date, and lies in no file of the repository.
"""

import html
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import pyspark_jstream
from spark_stream.cli.app import app
from spark_stream.metrics import MAINTENANCE_METRICS, METRICS
from storage_core.metadata.events import KINDS
from storage_core.notebook import stylesheet

SIGNATURE_WIDTH = 72  # what a page shows in one line
PROMPT = '<span class="gp">$ </span>'
CONSOLE = re.compile(rf'<div class="highlight">(?=<pre><span></span><code>({re.escape(PROMPT)}.*?)</code>)', re.DOTALL)
PLAIN_TEXT = str.maketrans({"|": r"\|", "<": "&lt;", ">": "&gt;", "*": r"\*", "_": r"\_"})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; called by mkdocs."""
    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(make()) + "\n"))
    files.append(File.generated(config, "look.css", content=colours()))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Let the copy buttons of console examples copy the commands alone; called by mkdocs."""
    return CONSOLE.sub(lambda block: f'<div class="highlight" data-copy="{commands_in(block[1])}">', content)


def commands_in(console: str) -> str:
    """Return the commands of a console example as the text of an attribute, a line each. `console`: its markup."""
    lines = (line.removeprefix(PROMPT) for line in console.splitlines() if line.startswith(PROMPT))
    return html.escape("\n".join(html.unescape(re.sub(r"<[^>]*>", "", line)) for line in lines))


def colours() -> str:
    """Return the colours of all that jstream draws as variables of the site."""
    named = re.findall(r"--\w+: light-dark\(.*?\);", stylesheet())
    return "[data-md-color-scheme] {\n  " + "\n  ".join(named) + "\n}\n"


def commands_page() -> Iterator[str]:
    yield "# All commands\n"
    yield "What `--help` says. [Commands, with examples](../guide/commands.md) shows what they print.\n"
    root: Any = typer.main.get_command(app)
    yield from _commands(root, ["jstream"], None)


def _commands(command: Any, names: list[str], parent: Any) -> Iterator[str]:
    context = command.make_context(names[-1], [], parent=parent, resilient_parsing=True)
    if len(names) > 1:
        yield f"{'#' * min(len(names), 4)} {' '.join(names)}\n"
        yield _plain(command.help or "") + "\n"
    rows = [row for parameter in command.get_params(context) if (row := _parameter(parameter, context))]
    if rows:
        yield "| | |\n|---|---|\n" + "\n".join(rows) + "\n"
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        yield from _commands(command.get_command(context, name), [*names, name], context)


def _parameter(parameter: Any, context: Any) -> str:
    """Return the row of an argument or option; empty for `--help` and for what is hidden."""
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return ""
    name, text = record
    return f"| `{' '.join(name.split()).replace('|', chr(92) + '|')}` | {_plain(text)} |"


def python_page() -> Iterator[str]:
    yield "# Python\n"
    yield "Everything that `from pyspark_jstream import ...` offers. [Python](../guide/python.md) has examples.\n"
    for name in sorted(set(pyspark_jstream.__all__) - {"DefaultSource", "errors", "rescue"}):
        yield from _described(name, getattr(pyspark_jstream, name))
    yield "## rescue\n"
    for name, function in _public(pyspark_jstream.rescue, inspect.isfunction):
        yield from _described(f"rescue.{name}", function, level=3)


def _described(name: str, thing: Any, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    if inspect.isclass(thing):
        yield _docstring(thing)
        for attribute, member in _public(thing, lambda member: callable(member) or isinstance(member, property)):
            yield from _described(f"{name}.{attribute}", member, level + 1)
    elif isinstance(thing, property):
        yield _docstring(thing.fget)
    else:
        yield f"```py\n{name.rpartition('.')[2]}{_signature(thing)}\n```\n"
        yield _docstring(thing)


def _signature(function: Callable[..., Any]) -> str:
    """Return the signature as a caller sees it, without modules, and without what tests alone hand in."""
    whole = inspect.signature(function)
    kept = [parameter for name, parameter in whole.parameters.items() if name not in ("self", "cls", "env")]
    shown = str(whole.replace(parameters=kept))
    if len(shown) > SIGNATURE_WIDTH:  # one parameter a line
        _, arrow, returned = shown.rpartition(" -> ")
        shown = "\n".join(["(", *(f"    {parameter}," for parameter in _parameters(kept)), f"){arrow}{returned}"])
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", shown).replace("'", "")


def _parameters(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    is_starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_starred:
            yield "*"
        is_starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        yield str(parameter)


def _public(owner: Any, is_wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield what the owner itself defines and documents, in the order of its source."""
    for name, member in vars(owner).items():
        member = getattr(member, "__func__", member)  # of a class method
        module = getattr(member, "__module__", None) or getattr(owner, "__module__", None)
        is_own = inspect.isclass(owner) or module == owner.__name__
        if not name.startswith("_") and is_own and is_wanted(member) and _docstring(member):
            yield name, member


def _docstring(thing: Any) -> str:
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "").replace("<", "&lt;") + "\n"


def metrics_page() -> Iterator[str]:
    yield "# Metrics\n"
    yield "What `jstream metrics` prints; [monitoring](../guide/monitoring.md) says what is worth an alert.\n"
    yield "| metric | labels | |\n|---|---|---|"
    for name, (labels, text) in (METRICS | dict(MAINTENANCE_METRICS)).items():
        yield f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {_plain(text)} |"


def events_page() -> Iterator[str]:
    yield "# Events\n"
    yield (
        "The kinds of events that `jstream events` shows. A *fact* is recorded each time, a *condition* once, until an "
        "*end* about the same volume, copy, stream or consumer. `count` says how often a cause came back. "
        "`jstream check --events-since` warns of a *problem*.\n"
    )
    yield "| kind | is | made by |\n|---|---|---|"
    for name, kind in KINDS.items():
        words = ("condition" if kind.is_condition else "fact", kind.ends and "end", kind.is_problem and "problem")
        shown = ", ".join(word for word in words if word)
        yield f"| `{name}` | {shown} | {_plain(kind.made_by)} |"


def _plain(text: str) -> str:
    """Return text of ours as Markdown; `code` stays code."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(piece if piece.startswith("`") else piece.translate(PLAIN_TEXT) for piece in pieces)


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands_page,
    "python": python_page,
    "metrics": metrics_page,
    "events": events_page,
}
