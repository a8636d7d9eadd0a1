"""Transformations: SQL over the view `messages`, or a Python function from DataFrame to DataFrame."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from spark_stream.pipelines.config import Pipeline
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.toml import place_of
from storage_core.suggestions import did_you_mean, instead

VIEW = "messages"
Function = Callable[[DataFrame], DataFrame]


def load_transform(pipeline: Pipeline) -> Function:
    """Return the pipeline's transformation; raises DefinitionError if the Python function is not there."""
    if pipeline.transform.python:
        return _load_function(pipeline)
    if pipeline.transform.sql:
        sql = pipeline.transform.sql

        def run_sql(messages: DataFrame) -> DataFrame:
            messages.createOrReplaceTempView(VIEW)
            return messages.sparkSession.sql(sql)

        return run_sql
    return lambda messages: messages


def transform(pipeline: Pipeline, function: Function, messages: DataFrame) -> DataFrame:
    """Return the transformed rows. What the definition is to blame for is a DefinitionError that names its key."""
    key = "transform.python" if pipeline.transform.python else "transform.sql"
    try:
        rows = function(messages)
    except Exception as error:  # the function is the user's, and so is what it raises
        raise DefinitionError(pipeline.file, key, f"{type(error).__name__}: {_first_lines(error)}") from error
    if not isinstance(rows, DataFrame):
        raise DefinitionError(pipeline.file, key, f"returned {type(rows).__name__}, not a DataFrame")
    if rows.isStreaming != messages.isStreaming:
        raise DefinitionError(pipeline.file, key, "returned rows that do not come from the messages it was given")
    check_columns(pipeline, rows.columns)
    return rows


def check_columns(pipeline: Pipeline, columns: list[str]) -> None:
    """Raise DefinitionError if the sink asks for a column that the transformation does not make."""
    sink = pipeline.sink
    wanted = [
        ("key", sink.keys),
        ("order_by", [sink.order_by] if sink.order_by else []),
        ("partition_by", sink.partitions),
    ]
    for key, names in wanted:
        for name in names:
            if name.lower() not in [column.lower() for column in columns]:
                near = instead(name, columns)
                raise DefinitionError(
                    pipeline.file, f"sink.{key}", f"no column {name!r} comes out of the transformation{near}"
                )


def _load_function(pipeline: Pipeline) -> Function:
    place, _, name = pipeline.transform.python.rpartition(":")
    key = "transform.python"
    try:
        if place.endswith(".py"):
            module = _load_file(Path(place_of(pipeline.file, key, place)))
        else:
            module = importlib.import_module(place)
    except Exception as error:  # importing runs the user's code
        raise DefinitionError(pipeline.file, key, f"{place}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        near = did_you_mean(
            name,
            [defined for defined in dir(module) if callable(getattr(module, defined)) and not defined.startswith("_")],
        )
        raise DefinitionError(pipeline.file, key, f"{place} has no function {name!r}{near}")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> ModuleType:
    """Import a file that is on no path. Spark's workers could not import it, so what it defines travels by value."""
    name = f"jstream_transform_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _first_lines(error: Exception) -> str:
    text = str(error).partition(";\n")[0]  # behind it Spark shows the plan
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:4])
