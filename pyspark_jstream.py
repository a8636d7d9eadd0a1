"""What Spark finds: the data source `jstream`; and everything that users import.

Spark's look-up imports every top-level module called `pyspark_*` and takes its `DefaultSource`. An error in one of them
hides the data sources of all, so this one imports nothing of its own until it is used: a broken installation then shows
itself where `format("jstream")` is used, and nowhere else. `Store` needs no Spark, and does not load it.

Importing this module makes Spark's Python workers run this Python (`use_this_python`), if no session is there yet.
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
    from datasource.scan import scan
    from spark_stream import rescue
    from spark_stream.pipelines.api import run_pipeline
    from spark_stream.session import session
    from storage_core import Store, StreamConfig, errors
    from storage_core.metadata.consumer_config import ConsumerConfig
    from storage_core.store.consumers.consumer import Consumer
    from storage_core.store.contents import Message
    from storage_core.store.stream import Stream

    DefaultSource: type[DataSource]

__all__ = [
    "Consumer",
    "ConsumerConfig",
    "DefaultSource",
    "Message",
    "Store",
    "Stream",
    "StreamConfig",
    "acknowledge",
    "errors",
    "register",
    "rescue",
    "run_pipeline",
    "scan",
    "session",
    "use_this_python",
]

# Where each name comes from: a module, and the name in it; none is loaded before it is used.
_OFFERED = {
    "Consumer": ("storage_core.store.consumers.consumer", "Consumer"),
    "ConsumerConfig": ("storage_core.metadata.consumer_config", "ConsumerConfig"),
    "Message": ("storage_core.store.contents", "Message"),
    "Store": ("storage_core", "Store"),
    "Stream": ("storage_core.store.stream", "Stream"),
    "StreamConfig": ("storage_core", "StreamConfig"),
    "acknowledge": ("datasource.acknowledging", "acknowledge"),
    "errors": ("storage_core.errors", None),
    "register": ("datasource.registration", "register"),
    "rescue": ("spark_stream.rescue", None),
    "run_pipeline": ("spark_stream.pipelines.api", "run_pipeline"),
    "scan": ("datasource.scan", "scan"),
    "session": ("spark_stream.session", "session"),
}

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


def _offered(name: str) -> Any:
    try:
        if name == "DefaultSource":
            return _make_source()
        module, attribute = _OFFERED[name]
        return _own(module) if attribute is None else getattr(_own(module), attribute)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        try:
            here = f"PySpark {importlib.import_module('pyspark').__version__}"
        except ImportError:
            here = "no PySpark"
        raise ImportError(
            f"{name} of jstream needs Spark 4.0 to 4.3, and this Python has {here}. Store works without Spark"
        ) from error


def __getattr__(name: str) -> Any:
    if name == "DefaultSource" or name in _OFFERED:
        offered: Any = _offered(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = offered
    return offered


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def use_this_python() -> None:
    """Make Spark's Python workers run this Python, unless PYSPARK_PYTHON names one, or spark-submit started us.

    They would run the first `python3` on the PATH. Outside an activated environment that one has no jstream, and Spark
    says DATA_SOURCE_NOT_FOUND. Python is given by its name and the PATH, because Spark does not find data sources with
    a path that holds a space; by the name `python3` where that fits, so that executors on other hosts find theirs.

    Has no effect on a session that exists. Whatever else the processes of Spark's workers need is set here, too.
    """
    if "PYSPARK_PYTHON" in os.environ or _SUBMITTED in os.environ or not sys.executable:
        return
    folder, name = os.path.split(sys.executable)
    usual = os.path.join(folder, "python3")
    if os.path.exists(usual) and os.path.samefile(usual, sys.executable):
        name = "python3"
    os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))
    os.environ["PYSPARK_PYTHON"] = name


_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM and settings are there already
_main_module = getattr(sys.modules.get("__main__"), "__spec__", None)
if _main_module is None or not _main_module.name.startswith("pyspark."):  # a worker keeps what Spark has set
    use_this_python()
