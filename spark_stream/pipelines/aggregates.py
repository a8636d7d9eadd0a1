"""Steps whose rows depend on several messages: Spark runs them over the stream and keeps their state.

    append     a result once, when it is final: when the watermark has passed its window
    update     the results that a batch has changed; an upsert puts each in the place of the one before
    complete   all results; an upsert makes the table equal to them

Over a batch, each of these steps would see the messages of that batch alone: nothing here is ever run over one.
"""

import hashlib
import inspect
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from spark_stream.pipelines.config import APPEND, UPDATE, UPSERT, Pipeline, delay_ms
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.failures import explain
from spark_stream.pipelines.payload import schema_file_of
from storage_core.suggestions import instead

CHANCE = "something random"
# Nodes of a plan whose rows depend on which other messages there are.
_OF_SEVERAL = {
    "Aggregate": "an aggregate",
    "Deduplicate": "a DISTINCT",
    "DeduplicateWithinWatermark": "a DISTINCT",
    "Distinct": "a DISTINCT",
    "Except": "an EXCEPT",
    "GlobalLimit": "a LIMIT",
    "Intersect": "an INTERSECT",
    "LocalLimit": "a LIMIT",
    "Offset": "an OFFSET",
    "Sample": "a sample",
    "Tail": "a LIMIT",
    "Window": "a window function",
    "WithWindowDefinition": "a window function",
}
_OF_GROUPS = ("CoGroup", "FlatMapCoGroups", "FlatMapGroups", "MapGroups", "TransformWithState")  # and what follows
_WINDOW = "struct<start:timestamp,end:timestamp>"


def dependence(rows: DataFrame) -> str:
    """Return what in the plan of a streaming frame makes rows depend on several messages, or on chance; else empty."""
    plan = rows._jdf.queryExecution().analyzed()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if not node.isStreaming():  # a table beside the stream
            continue
        name = node.nodeName()
        if name in _OF_SEVERAL:
            return _OF_SEVERAL[name]
        if name.startswith(_OF_GROUPS):
            return "a function over groups"
        children, within = _listed(node.children()), _listed(node.subqueries())
        if name == "Join" and all(child.isStreaming() for child in children):
            return "a join of messages with messages"
        if any(query.isStreaming() for query in within):
            return "a subquery over messages"
        waiting += children
    return "" if plan.deterministic() else CHANCE


def check_watermark(pipeline: Pipeline, messages: StructType) -> None:
    """Raise DefinitionError if the watermark is on a column that `messages` lacks, or that is no time."""
    for name in pipeline.transform.watermark:
        key, field = f"transform.watermark.{name}", next((field for field in messages if field.name == name), None)
        if field is None:
            near = instead(name, messages.names)
            raise DefinitionError(pipeline.file, key, f"no column {name!r} is in the view messages{near}")
        if not isinstance(field.dataType, (TimestampType, TimestampNTZType)):
            kind = field.dataType.simpleString().upper()
            reason = f"{name!r} is {kind}; a watermark takes a TIMESTAMP: change payload.schema, or take `timestamp`"
            raise DefinitionError(pipeline.file, key, reason)


def with_watermark(messages: DataFrame, pipeline: Pipeline) -> DataFrame:
    for column, delay in pipeline.transform.watermark.items():
        messages = messages.withWatermark(column, f"{delay_ms(delay)} milliseconds")
    return messages


def check_state(pipeline: Pipeline, rows: DataFrame, depends: str) -> None:
    """Raise DefinitionError if Spark cannot run the streaming frame, or the sink would hold other results.

    `depends`: what `dependence` says of it.
    """
    file, mode = pipeline.file, pipeline.sink.output_mode
    if depends in ("", CHANCE):
        if pipeline.transform.watermark:
            reason = "means nothing: the transformation has no aggregate, and no other step that waits for messages"
            raise DefinitionError(file, "transform.watermark", reason)
        if mode != APPEND:
            raise DefinitionError(
                file, "sink.output_mode", f"{mode!r} is for aggregates, and the transformation has none"
            )
        return
    _check_supported(pipeline, rows, depends)
    if pipeline.dead_letters is not None and pipeline.source.is_kafka:
        reason = f"cannot be kept beside {depends} over topics of Kafka: mirror the topics, or leave [dead_letters] out"
        raise DefinitionError(file, "dead_letters", reason)
    if pipeline.sink.mode == UPSERT and mode != APPEND:
        _check_groups(pipeline, rows)


def _check_supported(pipeline: Pipeline, rows: DataFrame, depends: str) -> None:
    """Raise DefinitionError for what Spark would refuse when the query starts, or in its first batch."""
    mode, jvm = pipeline.sink.output_mode, rows.sparkSession._jvm
    assert jvm is not None
    analysed = rows._jdf.queryExecution().analyzed()
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            analysed, getattr(modes, mode.capitalize())()
        )
    except PySparkException as error:
        raise DefinitionError(
            pipeline.file, "transform", f"has {depends}{_way(pipeline, depends)}: {explain(error)}"
        ) from error
    if mode == APPEND and _has(analysed, "Distinct"):  # an aggregate only once Spark has optimised the plan
        reason = (
            "has a DISTINCT, which is never final: write `GROUP BY` with a window and a watermark, or "
            "dropDuplicatesWithinWatermark in a Python function"
        )
        raise DefinitionError(pipeline.file, "transform", reason)


def _way(pipeline: Pipeline, depends: str) -> str:
    """Return what to write for aggregates that never come out."""
    if depends != "an aggregate" or pipeline.sink.output_mode != APPEND:
        return ""
    ways = ' or, for a Delta table, output_mode = "update" with mode = "upsert"'
    if pipeline.transform.watermark:
        (column,) = pipeline.transform.watermark
        return f", which is final only in a window: GROUP BY window({column}, '5 minutes') and so on;{ways}"
    return f', which is final only with a window and [transform] watermark = {{ timestamp = "10 minutes" }};{ways}'


def _check_groups(pipeline: Pipeline, rows: DataFrame) -> None:
    """Raise DefinitionError unless each result has one row in the table for ever: its key is what it is grouped by."""
    file, sink = pipeline.file, pipeline.sink
    node = rows._jdf.queryExecution().analyzed()
    columns = {attribute.name().lower(): attribute for attribute in _listed(node.output())}
    keys = {name: columns[name.lower()] for name in sink.keys}
    path = []
    while node.nodeName() in ("Filter", "GlobalLimit", "LocalLimit", "Project", "Sort", "SubqueryAlias"):
        path.append(node)
        node = node.child()
    if node.nodeName() != "Aggregate":
        reason = (
            f"with output_mode = {sink.output_mode!r}, rows come from an aggregate, and not from a {node.nodeName()}"
        )
        raise DefinitionError(file, "transform", reason)
    if sink.output_mode == UPDATE and any(step.nodeName() == "Filter" for step in path):
        reason = (
            "has a condition on its aggregate (HAVING): a row that no longer meets it would stay in the table; "
            'take output_mode = "complete", or put conditions on messages into WHERE'
        )
        raise DefinitionError(file, "transform", reason)
    groups = _listed(node.groupingExpressions())
    origins = {name: _origin([*path, node], key) for name, key in keys.items()}
    for name, (origin, part) in origins.items():
        if not origin.foldable() and not any(_names_group(group, origin, part) for group in groups):
            reason = (
                f"{name!r} is not what the aggregate is grouped by: its value may change, and the old row would stay"
            )
            raise DefinitionError(file, "sink.key", reason)
    for group in groups:
        if not any(_names_group(group, origin, part) for origin, part in origins.values()):
            shown = "window" if group.dataType().catalogString() == _WINDOW else group.sql().replace("`", "")
            what = f"{shown}: window.start" if shown == "window" else shown
            reason = f"lacks {what}, by which the aggregate is grouped: several results would share a row"
            raise DefinitionError(file, "sink.key", reason)


def _origin(path: list[Any], column: Any) -> tuple[Any, str]:
    """Return the expression of the aggregate, the last of `path`, that a column is, and which field of it.

    A column that is computed above the aggregate is returned as it is computed there.
    """
    part = ""
    for node in path:
        if node.nodeName() in ("Project", "Aggregate"):
            listed = _listed(node.projectList() if node.nodeName() == "Project" else node.aggregateExpressions())
            named = next(named for named in listed if named.exprId().equals(column.exprId()))
            column = named.child() if named.nodeName() == "Alias" else named
            if column.nodeName() == "GetStructField" and not part:
                part, column = column.extractFieldName(), column.child()
            if column.nodeName() != "AttributeReference":
                break
    return column, part


def _names_group(group: Any, origin: Any, part: str) -> bool:
    """Return whether a column, an expression or a field of it, says to which group a row belongs."""
    if not group.semanticEquals(origin):
        return False
    return not part or group.dataType().catalogString() == _WINDOW


def _has(plan: Any, name: str) -> bool:
    return plan.nodeName() == name or any(_has(child, name) for child in _listed(plan.children()))


def _listed(seq: Any) -> list[Any]:
    return [seq.apply(at) for at in range(seq.size())]


def definition_of_state(pipeline: Pipeline, function: Any) -> dict[str, Any]:
    """Return what the state in a checkpoint was made by: with any of it changed, old sums would mix with new ones."""
    payload, transform, sink = pipeline.payload, pipeline.transform, pipeline.sink
    definition: dict[str, Any] = {
        "source.subject": pipeline.source.subject,
        "payload": [payload.format, " ".join(payload.schema.split()), payload.column],
        "transform.sql": " ".join(transform.sql.split()),
        "transform.watermark": {column: delay_ms(delay) for column, delay in transform.watermark.items()},
        "sink.output_mode": sink.output_mode,
    }
    if payload.has_schema_file:
        digest = hashlib.sha256(schema_file_of(pipeline)).hexdigest()
        definition["payload"] += [digest, payload.message, payload.skip_bytes]
    if transform.python:
        definition["transform.python"] = inspect.getsource(sys.modules[function.__module__])
    if sink.output_mode == UPDATE:  # what no batch changes is in the old table alone
        definition |= {"sink.path": sink.path, "sink.table": sink.table, "sink.key": sink.keys}
    return definition
