"""What holds in the Python processes that Spark starts for planning and for tasks.

Each serves many plans or tasks, and Spark has it collect garbage after every one. That takes 40 ms where the modules of
Spark, Arrow and this package are loaded, as long as half of a task that reads 16 MiB, and it looks mostly at what lives
as long as the process.
"""

import gc
import sys

_DAEMON = "pyspark.daemon"  # the module that processes for planning and tasks are forked from, and that collects
_frozen = False


def freeze_modules() -> None:
    """Take all that is alive by now out of what the collector looks at, once in a process that Spark forked.

    For the first plan or task, when the modules are loaded. What is garbage by then is collected; of what is alive,
    cycles that are dropped later are never freed: those of one plan or task at most.
    """
    global _frozen
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _frozen or spec is None or spec.name != _DAEMON:
        return
    _frozen = True
    gc.collect()
    gc.freeze()
