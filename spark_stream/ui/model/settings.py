"""Settings of streams and consumers as people read them, each with what it means."""

from collections.abc import Mapping
from typing import Any

from spark_stream.look.terminal import show_size
from storage_core.metadata.config import SIZES
from storage_core.quantities import format_duration

DURATIONS = {"max_age", "duplicate_window", "subject_delete_marker_ttl", "block_max_age", "ack_wait"}
MEANINGS = {
    "subjects": "subjects that the stream takes",
    "num_replicas": "copies of each message",
    "max_msg_size": "largest message",
    "max_msgs": "messages at most",
    "max_bytes": "message bytes at most",
    "max_age": "older messages are removed",
    "max_msgs_per_subject": "messages of one subject at most",
    "max_consumers": "consumers at most",
    "retention": "what messages stay for",
    "discard": "when full: remove the oldest, or refuse new messages",
    "discard_new_per_subject": "refuse messages once a subject has reached its limit",
    "duplicate_window": "how long message ids are kept",
    "compression": "codec of new blocks",
    "deny_delete": "single messages cannot be removed",
    "deny_purge": "the stream cannot be purged",
    "allow_rollup_hdrs": "messages may replace those before (Nats-Rollup)",
    "allow_msg_ttl": "messages may have a lifetime of their own (Nats-TTL)",
    "sealed": "nothing can be changed any more",
    "subject_delete_marker_ttl": "how long a marker stays where time removed a subject",
    "block_max_msgs": "messages of one block at most",
    "block_max_bytes": "size of one block at most",
    "block_max_age": "time that one block spans at most",
    "archive_command": "run for each block before its files go",
    "deliver_policy": "where it began to read",
    "opt_start_seq": "the sequence to begin with",
    "opt_start_time": "the time to begin with",
    "ack_policy": "how messages are acknowledged",
    "ack_wait": "then an unacknowledged message is delivered again",
    "max_deliver": "deliveries of one message at most",
    "max_ack_pending": "messages that may wait for acknowledgement",
    "filter_subjects": "only messages of these subjects",
    "on_data_loss": "continue behind lost messages, or stop",
}
_ZERO_IS_NOTHING = {"block_max_age", "subject_delete_marker_ttl", "duplicate_window", "opt_start_seq"}


def settings_of(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return `key`, `value` and `meaning` of each setting, in the order of the configuration."""
    return [{"key": key, "value": _text(key, value), "meaning": MEANINGS.get(key, "")} for key, value in config.items()]


def _text(key: str, value: Any) -> str:
    if value is None or value in ("", [], (), {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text}" for name, text in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if not isinstance(value, int):
        return str(value)
    if value == 0 and key in _ZERO_IS_NOTHING:
        return "none"
    if value < 0 or (value == 0 and key in DURATIONS):
        return "no limit"
    if key in DURATIONS:
        return format_duration(value)
    return show_size(value) if key in SIZES else f"{value:,}"
