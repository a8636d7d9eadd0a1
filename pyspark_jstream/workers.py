"""Which Python Spark's workers run."""

import os
import sys

_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM and settings are there already


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
