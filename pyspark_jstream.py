"""What Spark finds: the data source `jstream`; and what users import: `Store`, `register` and `acknowledge`.

Spark's look-up imports every top-level module called `pyspark_*` and takes its `DefaultSource`. An error in one of them
hides the data sources of all, so this one imports nothing of its own until it is used: a broken installation then shows
itself where `format("jstream")` is used, and nowhere else. `Store` needs no Spark, and does not load it.
"""

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from datasource.acknowledging import acknowledge
    from datasource.registration import register
    from storage_core import Store

    DefaultSource: type[DataSource]

__all__ = ["DefaultSource", "Store", "acknowledge", "register"]

REQUIRED = ("datasource", "storage_core")  # what this module imports; it lies beside this file
PACKAGES = (*REQUIRED, "spark_stream")  # everything of ours that a folder of the same name can hide


def check_packages() -> None:
    """Raise ImportError naming whatever takes the place of one of our packages on Python's path."""
    home = os.path.dirname(os.path.realpath(__file__))
    for name in PACKAGES:
        place = _place(name)
        if place is None and name in REQUIRED:
            raise ImportError(f"jstream is not installed completely: its package {name!r} is missing from {home}")
        if place is not None and os.path.dirname(place) != home:
            raise ImportError(
                f"{place} is in the way: it takes the name of jstream's own package {name!r} at "
                f"{os.path.join(home, name)}. Rename it, start from another folder, or take its parent folder from "
                "PYTHONPATH"
            )


def _place(name: str) -> str | None:
    """Return the folder (or the file, of a plain module) that Python takes for a top-level name; None if there is none.

    Nothing is imported: what is in the way may do anything when it runs.
    """
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    return os.path.realpath(places[0] if places else spec.origin or name)


def _own(module: str) -> Any:
    check_packages()
    return importlib.import_module(module)


def _make_source() -> type:
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The data source `jstream`; what it does is in `datasource.source`."""

        @classmethod
        def name(cls) -> str:
            return "jstream"

        def schema(self) -> Any:
            return _own("datasource.source").schema(self.options)

        def reader(self, schema: Any) -> Any:
            return _own("datasource.source").reader(self.options, schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return _own("datasource.source").writer(self.options, schema, overwrite)

        def streamReader(self, schema: Any) -> Any:
            return _own("datasource.source").stream_reader(self.options, schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return _own("datasource.source").stream_writer(self.options, schema, overwrite)

    # Spark's processes find the class again by its name in this module.
    DefaultSource.__qualname__ = "DefaultSource"
    return DefaultSource


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        found: Any = _make_source()
    elif name == "Store":
        found = _own("storage_core").Store
    elif name == "acknowledge":
        found = _own("datasource.acknowledging").acknowledge
    elif name == "register":
        found = _own("datasource.registration").register
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
