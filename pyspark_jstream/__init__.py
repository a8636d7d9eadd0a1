"""What Spark finds: the data source `jstream`; and everything that users import.

Spark's look-up imports every top-level module called `pyspark_*` and takes its `DefaultSource`. An error in one of them
hides the data sources of all, so this one imports nothing of its own until it is used: a broken installation then shows
itself where `format("jstream")` is used, and nowhere else. `Store` needs no Spark, and does not load it.

Importing this module makes Spark's Python workers run this Python (`use_this_python`), if no session is there yet.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pyspark_jstream.packages import own
from pyspark_jstream.workers import use_this_python

if TYPE_CHECKING:
    from datasource.acknowledging import acknowledge
    from datasource.registration import register
    from datasource.scan import scan
    from pyspark_jstream.source import DefaultSource
    from spark_stream import rescue
    from spark_stream.pipelines.api import run_pipeline
    from spark_stream.session import session
    from storage_core import Store, StreamConfig, errors
    from storage_core.metadata.consumer_config import ConsumerConfig
    from storage_core.store.consumers.consumer import Consumer
    from storage_core.store.contents import Message
    from storage_core.store.stream import Stream

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
    "DefaultSource": ("pyspark_jstream.source", "DefaultSource"),
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


def _offered(name: str) -> Any:
    try:
        place, attribute = _OFFERED[name]
        # What Spark looks for is there whatever is in the way of the other packages: its methods say so.
        module = importlib.import_module(place) if place.startswith(f"{__name__}.") else own(place)
        return module if attribute is None else getattr(module, attribute)
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
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = offered = _offered(name)
    return offered


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_main_module = getattr(sys.modules.get("__main__"), "__spec__", None)
if _main_module is None or not _main_module.name.startswith("pyspark."):  # a worker keeps what Spark has set
    use_this_python()
