"""The options of `consumer add`, the configuration that they spell, and points of a stream as people name them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage, nearest
from spark_stream.cli.quantities import parse_duration_option, parse_pairs, parse_since_ns
from spark_stream.cli.stream_options import read_config_file

DELIVER_WORDS = ("all", "new", "last")

DeliverOption = Annotated[
    str | None,
    typer.Option(
        "--deliver",
        metavar="all|new|last|SEQ|TIME",
        help="Where it begins: with the first message (the default), after the last one, with the last one, with a "
        "sequence, or with a point in time: 1h ago, or ISO 8601.",
    ),
]
AckOption = Annotated[
    str | None,
    typer.Option(
        "--ack", metavar="explicit|none|all", help="Which messages are to be acknowledged. Default: explicit."
    ),
]
AckWaitOption = Annotated[
    str | None,
    typer.Option("--wait", metavar="DURATION", help="After it a message is handed out again. Default: 30s."),
]
MaxDeliverOption = Annotated[
    int | None, typer.Option("--max-deliver", metavar="N", help="Times that a message is handed out; -1: no limit.")
]
MaxPendingOption = Annotated[
    int | None,
    typer.Option(
        "--max-pending", metavar="N", help="Messages that may wait for an acknowledgement; -1: no limit. Default: 1000."
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="FILTER[,FILTER]", help="Only messages whose subject one of them takes."),
]
DataLossOption = Annotated[
    str | None,
    typer.Option(
        "--on-data-loss",
        metavar="continue|fail",
        help="When messages are lost: resume and record it once (the default), or stop until it is reset.",
    ),
]
PullOption = Annotated[bool, typer.Option("--pull", help="No effect; accepted for compatibility with `nats`.")]


def _split(texts: list[str]) -> list[str]:
    return [value.strip() for text in texts for value in text.split(",")]


# The parameter of the command: the key of the configuration, and how what was typed becomes its value.
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ack": ("ack_policy", str),
    "wait": ("ack_wait", lambda text: parse_duration_option(text, "--wait")),
    "max_deliver": ("max_deliver", int),
    "max_pending": ("max_ack_pending", int),
    "filter": ("filter_subjects", _split),
    "on_data_loss": ("on_data_loss", str),
    "description": ("description", str),
    "metadata": ("metadata", lambda texts: dict(parse_pairs(texts, "=", "--metadata"))),
}


def configuration(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the command's parameters ask for: those of `--config FILE` first, then the options."""
    chosen = read_config_file(Path(parameters["config"])) if parameters["config"] else {}
    for parameter, (key, convert) in _KEYS.items():
        value = parameters[parameter]
        if value is not None and value != () and value != []:  # an option that was not repeated even once is empty
            chosen[key] = convert(value)
    if parameters["deliver"] is not None:
        for key in ("deliver_policy", "opt_start_seq", "opt_start_time"):
            chosen.pop(key, None)
        chosen.update(_deliver(parameters["deliver"]))
    return chosen


def _deliver(text: str) -> dict[str, Any]:
    """Return the keys for where a consumer begins."""
    if text in DELIVER_WORDS:
        return {"deliver_policy": text}
    if text in ("subject", "last_per_subject"):
        return {"deliver_policy": "last_per_subject"}
    if text.isdecimal():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}

    from storage_core.quantities import rfc3339

    moment_ns = parse_point_ns(text, "--deliver", DELIVER_WORDS)
    return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(moment_ns)}


def parse_point_ns(text: str, option: str, words: tuple[str, ...]) -> int:
    """Return the time that `text` names: a duration before now, or ISO 8601. The error names the nearest of `words`."""
    try:
        return parse_since_ns(text, option, time.time_ns())
    except WrongUsage as error:
        taken = f"{', '.join(words)}, a sequence, a duration before now like 2h, or a time like 2026-11-21T12:00:00Z"
        raise WrongUsage(f"{option} {text!r}: valid values are {taken}{nearest(text, words)}") from error
