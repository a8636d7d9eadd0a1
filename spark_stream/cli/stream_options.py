"""The options of `stream add` and `stream edit`, and the stream configuration that they spell."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage
from spark_stream.cli.quantities import parse_duration_option
from spark_stream.cli.spelling import count, duration, pairs, size, split_texts, switch, text

DESCRIPTION = text("--description", "TEXT", "What it is for.")
METADATA = pairs("--metadata", "A note of your own; may be repeated.")
STREAM_KEYS = {
    "subjects": split_texts("--subjects", "SUBJECT[,SUBJECT]", "Subjects that the stream takes."),
    "num_replicas": count("--replicas", "Number of copies. Default of add: one per volume."),
    "description": DESCRIPTION,
    "compression": text("--compression", "none|lz4|zstd", "Codec of blocks written from now on."),
    "max_msg_size": size("--max-msg-size", "Largest message: 64KB, 1MB; -1 for no limit."),
    "max_msgs": count("--max-msgs", "Messages that the stream holds at most; -1 for no limit."),
    "max_bytes": size("--max-bytes", "Bytes that it holds at most: 10GB; -1 for no limit."),
    "max_age": text(
        "--max-age",
        "DURATION",
        "Age at which messages go: 1h, 7d; 0 for no limit.",
        lambda typed: 0 if typed == "-1" else parse_duration_option(typed, "--max-age"),
    ),
    "max_msgs_per_subject": count("--max-msgs-per-subject", "Messages of one subject at most; -1 for no limit."),
    "max_consumers": count("--max-consumers", "Durable consumers at most; -1 for no limit."),
    "retention": text(
        "--retention",
        "limits|interest|work",
        "What messages stay for; see the guide: limits.",
        lambda typed: "workqueue" if typed == "work" else typed,
    ),
    "discard": text("--discard", "old|new", "Full: remove the oldest, or refuse new messages."),
    "discard_new_per_subject": switch(
        "discard-per-subject", "With --discard new: refuse messages once a subject has reached its limit."
    ),
    "duplicate_window": duration("--dupe-window", "How long message ids are kept: 2m, 1h30m."),
    "deny_delete": switch("deny-delete", "Refuse to remove single messages."),
    "deny_purge": switch("deny-purge", "Refuse to purge."),
    "allow_rollup_hdrs": switch("allow-rollup", "Take messages with the header Nats-Rollup."),
    "allow_msg_ttl": switch("allow-msg-ttl", "Take messages with the header Nats-TTL."),
    "subject_delete_marker_ttl": duration(
        "--subject-del-markers-ttl", "Leave a marker where time took a subject: 1h; 0: none."
    ),
    "block_max_msgs": count("--block-max-msgs", "Messages in a block at most."),
    "block_max_bytes": size("--block-max-bytes", "Size of a block at most: 64MB."),
    "block_max_age": duration("--block-max-age", "Time that a block spans at most: 1d; 0: any."),
    "archive_command": text(
        "--archive-command",
        "COMMAND",
        "Run for each block before its files go, with STREAM FILE FIRST LAST; '' for none.",
        shlex.split,
    ),
    "metadata": METADATA,
}
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="JSON object with configuration keys; options win over it."),
]
CONFIG_SIZE_MAX = 1024 * 1024  # bytes


def read_config_file(path: Path | None) -> dict[str, Any]:
    """Return the configuration in a JSON file: bare, or inside what `info --json` printed; without a file none."""
    if not path:
        return {}
    with path.open("rb") as file:
        content = file.read(CONFIG_SIZE_MAX + 1)
    if len(content) > CONFIG_SIZE_MAX:
        raise WrongUsage(f"--config {path}: more than {CONFIG_SIZE_MAX} bytes are no configuration")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WrongUsage(f"--config {path}: not JSON: {error}") from error
    if isinstance(config, dict) and isinstance(config.get("config"), dict):
        config = config["config"]
    if not isinstance(config, dict):
        raise WrongUsage(f"--config {path}: holds {type(config).__name__}, not an object with configuration keys")
    return config
