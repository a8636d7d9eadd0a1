"""The options of `consumer add`, the configuration that they spell, and points of a stream as people name them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_stream.cli.failures import WrongUsage, nearest
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.spelling import count, duration, split_texts, text
from spark_stream.cli.stream_options import DESCRIPTION, METADATA, read_config_file

DELIVER_WORDS = ("all", "new", "last")

CONSUMER_KEYS = {
    "deliver_policy": text(
        "--deliver",
        "all|new|last|SEQ|TIME",
        "Where it begins: with the first message (the default), after the last one, with the last one, with a "
        "sequence, or with a point in time: 1h ago, or ISO 8601.",
    ),
    "ack_policy": text("--ack", "explicit|none|all", "Which messages are to be acknowledged. Default: explicit."),
    "ack_wait": duration("--wait", "After it a message is handed out again. Default: 30s."),
    "max_deliver": count("--max-deliver", "Times that a message is handed out; -1: no limit."),
    "max_ack_pending": count(
        "--max-pending", "Messages that may wait for an acknowledgement; -1: no limit. Default: 1000."
    ),
    "filter_subjects": split_texts("--filter", "FILTER[,FILTER]", "Only messages whose subject one of them takes."),
    "on_data_loss": text(
        "--on-data-loss",
        "continue|fail",
        "When messages are lost: resume and record it once (the default), or stop until it is reset.",
    ),
    "description": DESCRIPTION,
    "metadata": METADATA,
}


def configuration(spelled: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """Return the keys that a command asks for: those of `--config FILE` first, then the options."""
    chosen = {**read_config_file(config), **spelled}
    if "deliver_policy" in spelled:
        for key in ("deliver_policy", "opt_start_seq", "opt_start_time"):
            chosen.pop(key, None)
        chosen.update(_deliver(spelled["deliver_policy"]))
    return chosen


def _deliver(typed: str) -> dict[str, Any]:
    """Return the keys for where a consumer begins."""
    if typed in DELIVER_WORDS:
        return {"deliver_policy": typed}
    if typed in ("subject", "last_per_subject"):
        return {"deliver_policy": "last_per_subject"}
    if typed.isdecimal():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(typed)}

    from storage_core.quantities import rfc3339

    moment_ns = parse_point_ns(typed, "--deliver", DELIVER_WORDS)
    return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(moment_ns)}


def parse_point_ns(text: str, option: str, words: tuple[str, ...]) -> int:
    """Return the time that `text` names: a duration before now, or ISO 8601. The error names the nearest of `words`."""
    try:
        return parse_since_ns(text, option, time.time_ns())
    except WrongUsage as error:
        taken = f"{', '.join(words)}, a sequence, a duration before now like 2h, or a time like 2026-11-21T12:00:00Z"
        raise WrongUsage(f"{option} {text!r}: valid values are {taken}{nearest(text, words)}") from error
