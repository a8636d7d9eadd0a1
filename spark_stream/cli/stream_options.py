"""The options of `stream add` and `stream edit`, and the stream configuration that they spell."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage
from spark_stream.cli.quantities import parse_duration_option, parse_pairs, parse_size

SubjectsOption = Annotated[
    list[str] | None, typer.Option("--subjects", metavar="SUBJECT[,SUBJECT]", help="Subjects that the stream takes.")
]
ReplicasOption = Annotated[
    int | None, typer.Option("--replicas", metavar="N", help="Number of copies. Default of add: one per volume.")
]
DescriptionOption = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for.")]
CompressionOption = Annotated[
    str | None, typer.Option("--compression", metavar="none|lz4|zstd", help="Codec of blocks written from now on.")
]
MessageSizeOption = Annotated[
    str | None, typer.Option("--max-msg-size", metavar="SIZE", help="Largest message: 64KB, 1MB; -1 for no limit.")
]
MaxMessagesOption = Annotated[
    int | None, typer.Option("--max-msgs", metavar="N", help="Messages that the stream holds at most; -1 for no limit.")
]
MaxBytesOption = Annotated[
    str | None, typer.Option("--max-bytes", metavar="SIZE", help="Bytes that it holds at most: 10GB; -1 for no limit.")
]
MaxAgeOption = Annotated[
    str | None, typer.Option("--max-age", metavar="DURATION", help="Age at which messages go: 1h, 7d; 0 for no limit.")
]
MaxPerSubjectOption = Annotated[
    int | None,
    typer.Option("--max-msgs-per-subject", metavar="N", help="Messages of one subject at most; -1 for no limit."),
]
MaxConsumersOption = Annotated[
    int | None, typer.Option("--max-consumers", metavar="N", help="Durable consumers at most; -1 for no limit.")
]
RetentionOption = Annotated[
    str | None,
    typer.Option("--retention", metavar="limits|interest|work", help="What messages stay for; see the guide: limits."),
]
DiscardOption = Annotated[
    str | None, typer.Option("--discard", metavar="old|new", help="Full: remove the oldest, or refuse new messages.")
]
DiscardPerSubjectOption = Annotated[
    bool | None,
    typer.Option(
        "--discard-per-subject/--no-discard-per-subject",
        help="With --discard new: refuse messages of a subject that has its number.",
    ),
]
DupeWindowOption = Annotated[
    str | None, typer.Option("--dupe-window", metavar="DURATION", help="How long message ids are kept: 2m, 1h30m.")
]
DenyDeleteOption = Annotated[
    bool | None, typer.Option("--deny-delete/--no-deny-delete", help="Refuse to remove single messages.")
]
DenyPurgeOption = Annotated[bool | None, typer.Option("--deny-purge/--no-deny-purge", help="Refuse to purge.")]
AllowRollupOption = Annotated[
    bool | None, typer.Option("--allow-rollup/--no-allow-rollup", help="Take messages with the header Nats-Rollup.")
]
AllowTtlOption = Annotated[
    bool | None, typer.Option("--allow-msg-ttl/--no-allow-msg-ttl", help="Take messages with the header Nats-TTL.")
]
MarkerTtlOption = Annotated[
    str | None,
    typer.Option(
        "--subject-del-markers-ttl", metavar="DURATION", help="Leave a marker where time took a subject: 1h; 0: none."
    ),
]
BlockMessagesOption = Annotated[
    int | None, typer.Option("--block-max-msgs", metavar="N", help="Messages in a block at most.")
]
BlockBytesOption = Annotated[
    str | None, typer.Option("--block-max-bytes", metavar="SIZE", help="Size of a block at most: 64MB.")
]
BlockAgeOption = Annotated[
    str | None, typer.Option("--block-max-age", metavar="DURATION", help="Time that a block spans at most: 1d; 0: any.")
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive-command",
        metavar="COMMAND",
        help="Run for each block before its files go, with STREAM FILE FIRST LAST; '' for none.",
    ),
]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="A note of your own; may be repeated.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="JSON object with configuration keys; options win over it."),
]

CONFIG_SIZE_MAX = 1024 * 1024  # bytes

# The parameter of a command: the key of the configuration, and how what was typed becomes its value.
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "subjects": ("subjects", lambda texts: [subject.strip() for text in texts for subject in text.split(",")]),
    "replicas": ("num_replicas", int),
    "description": ("description", str),
    "compression": ("compression", str),
    "max_msg_size": ("max_msg_size", lambda text: parse_size(text, "--max-msg-size")),
    "max_msgs": ("max_msgs", int),
    "max_bytes": ("max_bytes", lambda text: parse_size(text, "--max-bytes")),
    "max_age": ("max_age", lambda text: 0 if text == "-1" else parse_duration_option(text, "--max-age")),
    "max_msgs_per_subject": ("max_msgs_per_subject", int),
    "max_consumers": ("max_consumers", int),
    "retention": ("retention", lambda text: "workqueue" if text == "work" else str(text)),
    "discard": ("discard", str),
    "discard_per_subject": ("discard_new_per_subject", bool),
    "dupe_window": ("duplicate_window", lambda text: parse_duration_option(text, "--dupe-window")),
    "deny_delete": ("deny_delete", bool),
    "deny_purge": ("deny_purge", bool),
    "allow_rollup": ("allow_rollup_hdrs", bool),
    "allow_msg_ttl": ("allow_msg_ttl", bool),
    "subject_del_markers_ttl": (
        "subject_delete_marker_ttl",
        lambda text: parse_duration_option(text, "--subject-del-markers-ttl"),
    ),
    "block_max_msgs": ("block_max_msgs", int),
    "block_max_bytes": ("block_max_bytes", lambda text: parse_size(text, "--block-max-bytes")),
    "block_max_age": ("block_max_age", lambda text: parse_duration_option(text, "--block-max-age")),
    "archive_command": ("archive_command", shlex.split),
    "metadata": ("metadata", lambda texts: dict(parse_pairs(texts, "=", "--metadata"))),
}


def configuration(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a command's parameters ask for: those of `--config FILE` first, then the options."""
    chosen = read_config_file(Path(parameters["config"])) if parameters["config"] else {}
    for parameter, (key, convert) in _KEYS.items():
        value = parameters[parameter]
        if value is not None and value != () and value != []:  # an option that was not repeated even once is empty
            chosen[key] = convert(value)
    return chosen


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the configuration in a JSON file: bare, or inside what `info --json` printed."""
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
