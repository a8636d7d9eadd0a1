"""Configuration of streams and of a store: the keys, their defaults, and what is refused.

Names and meanings are those of JetStream where it has them. A key whose meaning this version does not carry out is
refused by name unless it asks for what happens anyway (`first_seq=1` is where every stream begins).
"""

import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from storage_core.block.format import MESSAGE_SIZE_MAX, ROW_COUNT_MAX
from storage_core.quantities import format_duration, parse_duration_ns, parse_size, whole_number
from storage_core.subjects import is_filter
from storage_core.suggestions import did_you_mean, instead, not_one_of

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")
PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,128}")  # of names
COMPRESSIONS = ("none", "lz4", "zstd")
BLOCK_MAX_BYTES = 64 * 1024 * 1024  # default block size; the slice size of NATS Streaming
BLOCK_MAX_BYTES_LIMIT = 2 * 1024 * 1024 * 1024  # so that a block's file stays below its own limit
BLOCK_MAX_MSGS = 4_000_000
DESCRIPTION_SIZE_MAX = 4096
METADATA_SIZE_MAX = 128 * 1024
SUBJECT_COUNT_MAX = 1024
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
PRIVATE, GROUP = "private", "group"  # who may use a store's files: their owner, or a group as well
OLD, NEW = "old", "new"  # which messages a full stream does without
LIMITS, INTEREST, WORKQUEUE = "limits", "interest", "workqueue"  # what decides how long messages stay
RETENTIONS = (LIMITS, INTEREST, WORKQUEUE)
LIMIT_MAX = 2**62
DURATION_MIN_NS = 100_000_000  # JetStream's of max_age; a shorter one is a number of seconds or milliseconds by mistake
# The shortest duration of a key, and what 0 means there.
_SHORTEST = {
    "max_age": (DURATION_MIN_NS, "0 (no limit) or "),
    "duplicate_window": (DURATION_MIN_NS, "0 (no window) or "),
    "block_max_age": (SECOND_NS, "0 (any) or "),
    "subject_delete_marker_ttl": (SECOND_NS, "0 (no markers) or "),
    "deleted_block_retention": (DURATION_MIN_NS, "0 (none) or "),
    "ack_wait": (DURATION_MIN_NS, ""),
}

# Keys that JetStream or the contract knows and that mean nothing here yet, with the value that changes nothing.
_NOT_YET: dict[str, tuple[object, ...]] = {
    "storage": ("file",),
    "no_ack": (False,),
    "first_seq": (0, 1),
    "mirror": (),
    "sources": ([], ()),
    "placement": (),
    "republish": (),
    "subject_transform": (),
    "persist_mode": ("default",),
    # What a server writes into every configuration it shows, whatever was asked for.
    "allow_direct": (False, True),  # how messages may be asked for: here everybody reads the blocks
    "mirror_direct": (False,),
    "consumer_limits": ({},),
    "allow_atomic": (False,),
    "allow_msg_counter": (False,),
    "allow_msg_schedules": (False,),
}
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_consumers")  # -1 and 0 both are none, as in JetStream
SIZES = ("max_msg_size", "max_bytes", "block_max_bytes")  # as text they may have a unit
_COUNTS = ("max_msg_size", "num_replicas", "block_max_msgs", "block_max_bytes", *_LIMITS)
STORE_LIMITS = ("max_streams", "max_consumers", "max_msgs", "max_bytes")  # of all streams of a store together
_NO_DEFAULTS = ("name", "subjects", "num_replicas", "sealed")  # keys that are no matter of what a stream is called
_FLAGS = (
    "deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_msg_ttl", "discard_new_per_subject", "sealed",
)  # fmt: skip


class RemembersGiven(type(msgspec.Struct)):  # type: ignore[misc]
    """Of a configuration that is made by naming fields, the names; any other has all of its fields given."""

    def __call__(cls, *args: Any, **given: Any) -> Any:
        made = super().__call__(*args, **given)
        made.__dict__["given"] = frozenset(given)
        return made


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True, metaclass=RemembersGiven):
    """What the owner of a stream chose. Durations are nanoseconds, sizes bytes; -1 is no limit.

    `StreamConfig(name="ORDERS", max_msgs=9)` asks for what `{"name": "ORDERS", "max_msgs": 9}` does: keys that are not
    given are left as they are, or to the store.
    """

    name: str
    subjects: tuple[str, ...] = ()  # none: the stream's name
    num_replicas: int = 1
    max_msg_size: int = -1
    max_msgs: int = -1
    max_bytes: int = -1  # of subjects, headers and data
    max_age: int = 0  # by the time of the message; 0 is no limit
    max_msgs_per_subject: int = -1  # the newest are kept, or with discard_new_per_subject the oldest
    max_consumers: int = -1
    retention: str = LIMITS
    discard: str = OLD
    discard_new_per_subject: bool = False
    duplicate_window: int = 2 * MINUTE_NS
    compression: str = "zstd"
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False  # messages with the header Nats-Rollup take the place of those before
    allow_msg_ttl: bool = False  # messages with the header Nats-TTL go when that time is over
    sealed: bool = False
    # ns that a marker stays where time took the last message of a subject, 1 s at least; unset: none is left.
    subject_delete_marker_ttl: int | msgspec.UnsetType = msgspec.UNSET
    description: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    block_max_msgs: int = BLOCK_MAX_MSGS
    block_max_bytes: int = BLOCK_MAX_BYTES
    block_max_age: int = 0  # no block has messages of two spans of so many ns since 1970, by the time they came; 0: any
    archive_command: tuple[str, ...] = ()  # run for each block that goes; empty: none

    @property
    def marker_ttl_s(self) -> int:
        """Seconds that delete markers stay; 0: none are left."""
        return (self.subject_delete_marker_ttl or 0) // SECOND_NS

    @classmethod
    def from_mapping(cls, mapping: "Mapping[str, Any] | StreamConfig") -> "StreamConfig":
        """Return a checked configuration; raises ValueError naming the key, what came and what is taken."""
        values = known_values(given_keys(cls, mapping), cls.__struct_fields__, _NOT_YET, "stream")
        check_name(values.get("name"), "name of a stream")
        values["subjects"] = _subjects(values.get("subjects"), values["name"])
        for key in _COUNTS:
            if key in values:
                values[key] = parse_count(key, values[key])
        for key in _FLAGS:
            if key in values and not isinstance(values[key], bool):
                raise ValueError(f"{key}: {values[key]!r} is not true or false")
        for key in _LIMITS:
            if values.get(key) == 0:
                values[key] = -1
        if "archive_command" in values:
            values["archive_command"] = _archive_command(values["archive_command"])
        for key in ("max_age", "duplicate_window", "block_max_age"):
            if key in values:
                values[key] = parse_duration(key, values[key])
        if "subject_delete_marker_ttl" in values:
            ttl = values.pop("subject_delete_marker_ttl")
            ttl_ns = parse_duration("subject_delete_marker_ttl", ttl if ttl is not None else 0)
            if ttl_ns:  # as a server does
                values = {
                    "allow_msg_ttl": True,
                    "allow_rollup_hdrs": True,
                    **values,
                    "subject_delete_marker_ttl": ttl_ns,
                }
        if values.get("max_age") and "duplicate_window" not in values:
            values["duplicate_window"] = min(values["max_age"], 2 * MINUTE_NS)
        config = msgspec.structs.replace(cls(**values))  # all of which is given: it is whole
        _check_values(config)
        return config

    def with_changes(self, given: Mapping[str, Any]) -> "StreamConfig":
        """Return the configuration with these keys changed, and no others; raises ValueError as `from_mapping`."""
        return StreamConfig.from_mapping({**self.to_json(), **given})

    def to_json(self) -> dict[str, Any]:
        """Return the configuration with the keys of JetStream's API."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        shown["subjects"], shown["archive_command"] = list(self.subjects), list(self.archive_command)
        shown.setdefault("subject_delete_marker_ttl", 0)
        return {name: shown[name] for name in self.__struct_fields__}


def given_keys(kind: type[Any], config: object, keys: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the keys that are given in a configuration of this kind, a dict, or beside either, with their values.

    Raises ValueError for what is no configuration, and for a key that is given twice.
    """
    given: Mapping[str, Any]
    if isinstance(config, kind):
        named: frozenset[str] = config.__dict__.get("given", frozenset(kind.__struct_fields__))
        given = {key: value for key, value in config.to_json().items() if key in named}
    elif isinstance(config, Mapping):
        given = config
    elif config is None and keys:
        given = {}
    else:
        noun = kind.__name__.removesuffix("Config").lower()
        raise ValueError(f"a {noun}'s configuration is a dict or {kind.__name__}, not {type(config).__name__}")
    for key in keys or ():
        if key in given:
            raise ValueError(f"{key}: given twice, in the configuration and beside it")
    return {**given, **(keys or {})}


def known_values(
    mapping: Mapping[str, Any], known: tuple[str, ...], not_yet: Mapping[str, tuple[object, ...]], kind: str
) -> dict[str, Any]:
    """Return what is given of the configuration of a `kind`; raises ValueError for keys that are not known.

    `not_yet`: keys that mean nothing here yet, with the values that change nothing; others are refused.
    """
    values = dict(mapping)
    for key, value in mapping.items():
        if key in not_yet:
            del values[key]
            if value not in not_yet[key] and value is not None:
                raise ValueError(f"{key}: {value!r} is not supported by this version of jstream; leave it out")
        elif key not in known:
            hint = did_you_mean(str(key), known) or did_you_mean(str(key), not_yet)
            hint = hint or instead(str(key), known, "valid ones are")
            raise ValueError(f"unknown key of a {kind}: {key!r}{hint}")
    return values


def check_name(name: object, label: str) -> str:
    """Return the name; raises ValueError unless it is `[A-Za-z0-9_-]{1,128}`."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"{label}: {name!r} is not 1 to 128 of the characters A-Z a-z 0-9 _ -")
    return name


def _subjects(value: object, name: str) -> tuple[str, ...]:
    if value is None or value == () or value == []:
        return (name,)
    subjects = parse_filters(value, "subjects", "subject")
    if len(set(subjects)) < len(subjects):
        raise ValueError(f"subjects: {', '.join(subjects)} names one twice")
    return subjects


def parse_filters(value: object, key: str, noun: str) -> tuple[str, ...]:
    """Return the filters of a list, or of a text with commas; raises ValueError naming the key."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) for item in listed):
        raise ValueError(f"{key}: {value!r} is not a list of subjects")
    filters = tuple(item.strip() for item in listed)
    for subject in filters:
        if not is_filter(subject):
            raise ValueError(f"{key}: {subject!r} is not a {noun}; tokens joined by dots, * for one and > for the rest")
    if len(filters) > SUBJECT_COUNT_MAX:
        raise ValueError(f"{key}: {len(filters)} are too many, at most {SUBJECT_COUNT_MAX} are allowed")
    return filters


def _archive_command(value: object) -> tuple[str, ...]:
    """Return the words of a command, given as a list or as one line that a shell would split like this."""
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"archive_command: {value!r} cannot be split into words: {error}") from error
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"archive_command: {value!r} is not a list of words")
    if words and not words[0].startswith("/"):
        raise ValueError(f"archive_command: {words[0]!r} is not the absolute path of a program; no shell looks it up")
    if any("\0" in word for word in words) or sum(len(word.encode()) for word in words) > DESCRIPTION_SIZE_MAX:
        raise ValueError(f"archive_command: at most {DESCRIPTION_SIZE_MAX} bytes without NUL are taken")
    return tuple(words)


def parse_duration(key: str, value: object) -> int:
    """Return the nanoseconds of a key of a configuration; raises ValueError naming it, also for what is too short."""
    duration_ns = parse_duration_ns(value, key)
    shortest_ns, zero = _SHORTEST[key]
    if 0 < duration_ns < shortest_ns:
        is_bare = whole_number(value) is not None
        hint = "; a number without a unit is nanoseconds: write it like 500ms, 90s, 2m or 7d" if is_bare else ""
        came = value if is_bare else format_duration(duration_ns)
        raise ValueError(f"{key}: {came} is not {zero}{format_duration(shortest_ns)} and more{hint}")
    return duration_ns


def parse_count(key: str, value: object) -> int:
    """Return a whole number, of a size also from a text with its unit; raises ValueError naming the key."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value):
        value = int(value)
    elif isinstance(value, str) and key in SIZES:
        value = parse_size(value, key)
    count = whole_number(value)
    if count is None:
        raise ValueError(f"{key}: {value!r} is not a whole number")
    return count


def _check_values(config: StreamConfig) -> None:
    if config.num_replicas not in (1, 3, 5):
        raise ValueError(f"num_replicas: {config.num_replicas} is not 1, 3 or 5")
    if config.compression not in COMPRESSIONS:
        raise ValueError(f"compression: {not_one_of(config.compression, COMPRESSIONS)}")
    if config.max_msg_size != -1 and not 1 <= config.max_msg_size <= MESSAGE_SIZE_MAX:
        raise ValueError(f"max_msg_size: {config.max_msg_size} is not -1 (no limit) or 1 to {MESSAGE_SIZE_MAX} bytes")
    _check_limits(config)
    if not 1 <= config.block_max_msgs <= ROW_COUNT_MAX:
        raise ValueError(f"block_max_msgs: {config.block_max_msgs} is not 1 to {ROW_COUNT_MAX}")
    if not 1 <= config.block_max_bytes <= BLOCK_MAX_BYTES_LIMIT:
        raise ValueError(f"block_max_bytes: {config.block_max_bytes} is not 1 to {BLOCK_MAX_BYTES_LIMIT}")
    check_labels(config.description, config.metadata)


def _check_limits(config: StreamConfig) -> None:
    for key in _LIMITS:
        value = getattr(config, key)
        if value != -1 and not 1 <= value <= LIMIT_MAX:
            raise ValueError(f"{key}: {value} is not -1 (no limit) or 1 to {LIMIT_MAX}")
    if config.discard not in (OLD, NEW):
        raise ValueError(f"discard: {not_one_of(config.discard, (OLD, NEW))}")
    if config.discard_new_per_subject and (config.discard != NEW or config.max_msgs_per_subject < 0):
        raise ValueError(
            f"discard_new_per_subject: it needs discard {NEW} and a max_msgs_per_subject; the stream has discard "
            f"{config.discard} and max_msgs_per_subject {config.max_msgs_per_subject}"
        )
    if config.retention not in RETENTIONS:
        raise ValueError(f"retention: {not_one_of(config.retention, RETENTIONS)}")
    if config.subject_delete_marker_ttl:
        for needed in ("allow_msg_ttl", "allow_rollup_hdrs"):
            if not getattr(config, needed):
                raise ValueError(f"subject_delete_marker_ttl: markers have headers that need {needed}; set it as well")
    if config.allow_rollup_hdrs and config.deny_purge:
        raise ValueError("allow_rollup_hdrs: a rollup purges what lies before it, and deny_purge is set")
    if -1 < config.max_bytes < config.max_msg_size:
        raise ValueError(
            f"max_msg_size: {config.max_msg_size} bytes are more than max_bytes, {config.max_bytes}, which the stream "
            "would never hold"
        )
    if config.max_age and config.duplicate_window > config.max_age:
        raise ValueError(
            f"duplicate_window: {format_duration(config.duplicate_window)} is longer than max_age, "
            f"{format_duration(config.max_age)}: messages would be gone before it is over"
        )


def check_labels(description: object, metadata: object) -> None:
    """Raise ValueError for a description or metadata, of a stream or consumer, that is not text or too long."""
    if not isinstance(description, str):
        raise ValueError(f"description: {description!r} is not text")
    if len(description.encode()) > DESCRIPTION_SIZE_MAX:
        raise ValueError(
            f"description: {len(description.encode())} bytes are too many, the most is {DESCRIPTION_SIZE_MAX}"
        )
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for pair in metadata.items() for x in pair):
        raise ValueError(f"metadata: {metadata!r} is not a mapping of text to text")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > METADATA_SIZE_MAX:
        raise ValueError(f"metadata: {size} bytes are too many, the most is {METADATA_SIZE_MAX}")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a store chose. What is unset is left out of what is stored."""

    deleted_block_retention: int = 24 * 60 * MINUTE_NS  # ns that removed messages stay readable for plans made before
    snapshot_every: int = 128  # entries between two snapshots of the metadata
    permissions: str | msgspec.UnsetType = msgspec.UNSET  # GROUP; unset: PRIVATE
    open_files_max: int | msgspec.UnsetType = msgspec.UNSET  # of blocks that one task writes; unset: 32 blocks
    # Of all streams together; unset: no limit.
    max_streams: int | msgspec.UnsetType = msgspec.UNSET
    max_consumers: int | msgspec.UnsetType = msgspec.UNSET
    max_msgs: int | msgspec.UnsetType = msgspec.UNSET
    max_bytes: int | msgspec.UnsetType = msgspec.UNSET
    # By pattern of names, * and ?: keys of streams that are made under such a name, where they are not given.
    stream_defaults: dict[str, dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_shared(self) -> bool:
        """Whether the group of the volumes' directories may use the store."""
        return self.permissions == GROUP

    def defaults_of(self, stream: str) -> dict[str, Any]:
        """Return the keys that a new stream of this name gets: of every pattern that fits, later ones win."""
        keys: dict[str, Any] = {}
        for pattern, defaults in (self.stream_defaults or {}).items():
            if fnmatchcase(stream.casefold(), pattern.casefold()):
                keys.update(defaults)
        return keys

    def to_json(self) -> dict[str, Any]:
        """Return all settings, with what stands for those that are unset."""
        shown: dict[str, Any] = dict.fromkeys((*STORE_LIMITS, "open_files_max"), -1)
        shown.update(permissions=PRIVATE, stream_defaults={})
        shown.update(msgspec.to_builtins(self))
        return {name: shown[name] for name in self.__struct_fields__}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "StoreSettings":
        """Return checked settings; raises ValueError naming the key, what came and what is taken."""
        values = dict(mapping)
        for key in values:
            if key not in cls.__struct_fields__:
                hint = instead(key, cls.__struct_fields__, "valid ones are")
                raise ValueError(f"unknown setting: {key!r}{hint}")
        if "deleted_block_retention" in values:
            values["deleted_block_retention"] = parse_duration(
                "deleted_block_retention", values["deleted_block_retention"]
            )
        if "snapshot_every" in values:
            values["snapshot_every"] = parse_count("snapshot_every", values["snapshot_every"])
            if not 1 <= values["snapshot_every"] <= 100_000:
                raise ValueError(f"snapshot_every: {values['snapshot_every']} is not 1 to 100000 entries")
        if "permissions" in values:
            permissions = values.pop("permissions")
            if permissions not in (PRIVATE, GROUP):
                raise ValueError(f"permissions: {not_one_of(permissions, (PRIVATE, GROUP))}")
            if permissions == GROUP:
                values["permissions"] = GROUP
        for key in (*STORE_LIMITS, "open_files_max"):
            if key in values:
                limit = parse_count(key, values.pop(key))
                if limit not in (-1, 0) and not 1 <= limit <= LIMIT_MAX:
                    raise ValueError(f"{key}: {limit} is not -1 (no limit) or 1 to {LIMIT_MAX}")
                if limit > 0:
                    values[key] = limit
        if "stream_defaults" in values:
            defaults = _stream_defaults(values.pop("stream_defaults"))
            if defaults:
                values["stream_defaults"] = defaults
        return cls(**values)


def _stream_defaults(value: object) -> dict[str, dict[str, Any]]:
    """Return the keys that streams get by their names, as a stream of its own would keep them."""
    if not isinstance(value, Mapping) or not all(isinstance(keys, Mapping) for keys in value.values()):
        raise ValueError(f"stream_defaults: {value!r} is not a mapping of patterns of names to keys of streams")
    defaults = {}
    for pattern, keys in value.items():
        if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
            raise ValueError(f"stream_defaults: {pattern!r} is no name with * for any characters and ? for one")
        own = next((key for key in keys if key in _NO_DEFAULTS), None)
        if own is not None:
            raise ValueError(f"stream_defaults {pattern!r}: {own} is each stream's own")
        try:
            checked = StreamConfig.from_mapping({**keys, "name": "x"}).to_json()
        except ValueError as error:
            raise ValueError(f"stream_defaults {pattern!r}: {error}") from error
        if keys:
            defaults[pattern] = {key: checked[key] for key in keys if key in checked}
    return defaults
