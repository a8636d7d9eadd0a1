"""Configuration of durable consumers: the keys, their defaults, and what is refused.

Names and meanings are those of JetStream; the defaults are those of a pull consumer of its command line. What this
version does not carry out is refused by name, unless it asks for what happens anyway.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from storage_core.metadata.config import (
    RemembersGiven,
    check_labels,
    check_name,
    given_keys,
    known_values,
    parse_count,
    parse_duration,
    parse_filters,
)
from storage_core.quantities import parse_time_ns
from storage_core.sequences import check_sequence
from storage_core.suggestions import not_one_of

DELIVER_POLICIES = ("all", "last", "new", "by_start_sequence", "by_start_time")
ACK_POLICIES = ("explicit", "none", "all")
DATA_LOSS_POLICIES = ("continue", "fail")  # of reconcile.py
MAX_ACK_PENDING = 1000
MAX_ACK_PENDING_LIMIT = 1_000_000  # bounds the table of messages that wait for their acknowledgement
MAX_DELIVER_LIMIT = 2**31 - 1
ACK_WAIT_NS = 30_000_000_000

# Keys of JetStream that mean nothing here yet, with the values that change nothing.
_NOT_YET: dict[str, tuple[object, ...]] = {
    "replay_policy": ("instant",),
    "backoff": ((), []),
    "max_waiting": (0, 512),
    "max_batch": (0,),
    "max_expires": (0,),
    "max_bytes": (0,),
    "inactive_threshold": (0,),
    "num_replicas": (0,),
    "headers_only": (False,),
    "mem_storage": (False,),
    "rate_limit_bps": (0,),
    "deliver_subject": ("",),
    "deliver_group": ("",),
    "flow_control": (False,),
    "idle_heartbeat": (0,),
    "sample_freq": ("",),
}
_COUNTS = ("max_deliver", "max_ack_pending", "opt_start_seq")


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True, metaclass=RemembersGiven):
    """What the owner of a consumer chose. Durations are nanoseconds."""

    name: str
    deliver_policy: str = "all"  # where it begins: one of DELIVER_POLICIES
    opt_start_seq: int = 0  # with by_start_sequence
    opt_start_time: str = ""  # with by_start_time, RFC 3339
    ack_policy: str = "explicit"
    ack_wait: int = ACK_WAIT_NS  # after it, a message that was not acknowledged is handed out again
    max_deliver: int = -1  # times that a message is handed out at most; -1: no limit
    max_ack_pending: int = MAX_ACK_PENDING  # messages that wait for their acknowledgement at most; -1: no limit
    filter_subjects: tuple[str, ...] = ()  # any of them; empty: all
    on_data_loss: str = "continue"  # or "fail"
    description: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def from_mapping(
        cls, mapping: "Mapping[str, Any] | ConsumerConfig | None", keys: Mapping[str, Any] | None = None
    ) -> "ConsumerConfig":
        """Return a checked configuration of a mapping, and of `keys` that are given beside it.

        Raises ValueError naming the key, what came and what is taken.
        """
        given = _without_aliases(given_keys(cls, mapping, keys))
        values = known_values(given, cls.__struct_fields__, _NOT_YET, "consumer")
        check_name(values.get("name"), "name of a consumer")
        for key in _COUNTS:
            if key in values:
                values[key] = parse_count(key, values[key])
        if "ack_wait" in values:
            values["ack_wait"] = parse_duration("ack_wait", values["ack_wait"])
        if "filter_subjects" in values:
            values["filter_subjects"] = parse_filters(values["filter_subjects"], "filter_subjects", "filter")
        config = msgspec.structs.replace(cls(**values))  # all of which is given: it is whole
        _check_values(config)
        return config

    def to_json(self) -> dict[str, Any]:
        """Return the configuration with the keys of JetStream's API."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        shown["filter_subjects"] = list(self.filter_subjects)
        return shown

    @property
    def waiting_max(self) -> int:
        """How many messages may wait for their acknowledgement: no limit is one, too."""
        return MAX_ACK_PENDING_LIMIT if self.max_ack_pending == -1 else self.max_ack_pending

    @property
    def start_time_ns(self) -> int:
        """The time of by_start_time, in nanoseconds since 1970."""
        return parse_time_ns(self.opt_start_time, "opt_start_time")


def _without_aliases(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with JetStream's second names for keys replaced by the first ones."""
    values = dict(mapping)
    for alias, key in (("durable_name", "name"), ("filter_subject", "filter_subjects")):
        if alias in values:
            value = values.pop(alias)
            if values.setdefault(key, value) != value:
                raise ValueError(f"{alias} and {key} are the same; give one of them")
    if values.get("filter_subjects") in ("", None):
        values.pop("filter_subjects", None)
    return values


def _check_values(config: ConsumerConfig) -> None:
    if config.deliver_policy == "last_per_subject":
        raise ValueError("deliver_policy: 'last_per_subject' is not supported by this version of jstream")
    for key, taken in (
        ("deliver_policy", DELIVER_POLICIES), ("ack_policy", ACK_POLICIES), ("on_data_loss", DATA_LOSS_POLICIES),
    ):  # fmt: skip
        if getattr(config, key) not in taken:
            raise ValueError(f"{key}: {not_one_of(getattr(config, key), taken)}")
    _check_start(config)
    if not 1 <= config.ack_wait:
        raise ValueError("ack_wait: 0 leaves no time to acknowledge; use a duration such as 30s")
    if config.max_deliver != -1 and not 1 <= config.max_deliver <= MAX_DELIVER_LIMIT:
        raise ValueError(f"max_deliver: {config.max_deliver} is not -1 (no limit) or 1 to {MAX_DELIVER_LIMIT}")
    if config.max_ack_pending != -1 and not 1 <= config.max_ack_pending <= MAX_ACK_PENDING_LIMIT:
        limit = f"-1 (no limit) or 1 to {MAX_ACK_PENDING_LIMIT}"
        raise ValueError(f"max_ack_pending: {config.max_ack_pending} is not {limit}")
    check_labels(config.description, config.metadata)


def _check_start(config: ConsumerConfig) -> None:
    by_sequence, by_time = config.deliver_policy == "by_start_sequence", config.deliver_policy == "by_start_time"
    if by_sequence:
        check_sequence("opt_start_seq", config.opt_start_seq)
    if by_time:
        parse_time_ns(config.opt_start_time, "opt_start_time")
    if config.opt_start_seq and not by_sequence:
        raise ValueError("opt_start_seq needs deliver_policy='by_start_sequence'")
    if config.opt_start_time and not by_time:
        raise ValueError("opt_start_time needs deliver_policy='by_start_time'")
