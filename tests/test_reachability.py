"""Nothing in the product is there for tests alone: what no entry point reaches is removed, not kept.

Modules are reached by imports. Functions, classes and methods are reached by name (vulture), which finds most of what
is dead and nothing that lives; the programs that people write are the snippets of README and guide.
"""

import re
from pathlib import Path

import grimp
from vulture import Vulture  # type: ignore[import-untyped]

import pyspark_jstream
from spark_stream.cli.app import COMMANDS as LOADED

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("storage_core", "datasource", "spark_stream")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"`(?:\w+\.)*(\w+)\([^`]*\)`")  # in a sentence
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
# What is started or imported from outside, beside what `pyspark_jstream` offers.
ENTRIES = {
    "storage_core.foreign.nats.compiled_hash",  # imported by its name, where numba is installed
    "datasource.source",  # what Spark's look-up of data sources leads to
    "spark_stream.cli",  # jstream
    "spark_stream.cli.__main__",  # python -m spark_stream.cli
    "spark_stream.demo.__main__",  # python -m spark_stream.demo
    "spark_stream.demo.cluster",  # make demo-cluster
    "spark_stream.etl",  # spark-submit .../spark_stream/etl.py
    "spark_stream.monitoring",  # docs/guide/monitoring.md
    # what the list of commands names, to be imported when it is used
    *(f"spark_stream.cli.{command.place.partition(':')[0]}" for command in LOADED.values()),
    *(f"spark_stream.cli.{command.beside}" for command in LOADED.values() if command.beside),
}
# Names that something else calls, or looks up.
CALLED_BY_SPARK = [
    "getDefaultReadLimit",
    "initialOffset",
    "onQuery*",
    "prepareForTriggerAvailableNow",
    "pushFilters",
    "reportLatestOffset",
    "streamReader",
    "streamWriter",
]
CALLED_BY_PYTHON = ["__*__"]
CALLED_BY_TYPER = ["format_commands"]
CALLED_BY_NOTEBOOKS = ["_repr_html_"]
COMMANDS = ["@*app.command", "@*app.callback"]


def offered() -> set[str]:
    """Return the modules behind the names of `pyspark_jstream`."""
    modules = set()
    for name in set(pyspark_jstream.__all__) - {"DefaultSource", "use_this_python"}:
        value = getattr(pyspark_jstream, name)
        modules.add(getattr(value, "__module__", None) or value.__name__)
    return modules


def shown_python(page: str) -> list[str]:
    """Return the programs of a page, and the calls in its sentences."""
    programs = [text for kind, text in BLOCK.findall(page) if kind == "python" or "import " in text]
    return [*programs, *(f"{name}()" for name in CALL.findall(page))]


def test_every_module_is_reached_from_an_entry_point() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    reached: set[str] = set()
    waiting = [*ENTRIES, *offered()]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            package, _, _ = module.rpartition(".")
            waiting += [*graph.find_modules_directly_imported_by(module), *filter(None, [package])]
    assert graph.modules - reached == set()


def test_every_function_and_class_is_used_by_the_product_or_shown_to_users() -> None:
    loaded = [command.place.partition(":")[2] for command in LOADED.values()]
    names = CALLED_BY_SPARK + CALLED_BY_PYTHON + CALLED_BY_TYPER + CALLED_BY_NOTEBOOKS + loaded
    search = Vulture(ignore_names=names, ignore_decorators=COMMANDS)
    search.scavenge([str(ROOT / "pyspark_jstream"), *(str(ROOT / name) for name in PACKAGES)], exclude=["templates"])
    for page in PAGES:
        search.scan("\n".join(shown_python(page.read_text())), filename=page)
    found = [item for item in search.get_unused_code() if item.filename not in PAGES]
    unused = [item.get_report() for item in found if item.typ in ("class", "function", "method", "property")]
    assert unused == []
