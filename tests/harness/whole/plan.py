"""What a seed decides before a simulated store begins: how many volumes and processes, how bad, how often."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

STEPS_MIN, STEPS_MAX = 12, 36

OPERATIONS: Mapping[str, int] = {
    "append": 14, "publish": 5, "append_as_writer": 5, "stage": 6, "commit": 7, "abort": 2, "remove": 5, "purge": 4,
    "delete_stream": 2, "add_stream": 4, "edit_stream": 1, "read": 5, "maintain": 5, "snapshot": 3, "verify": 2,
    "scrub": 3, "reopen": 3, "jump_clock": 4, "lose_power": 3, "kill": 2, "hurt": 9, "repair": 5, "black_out": 2,
    "save_images": 3, "swap_places": 1, "come_back": 5, "add_consumer": 2, "fetch": 8, "ack": 10, "nak": 2,
}  # fmt: skip
INCIDENTS: Mapping[str, int] = {
    "kill": 6, "kill_halfway": 3, "power": 6, "power_of_one": 3, "EIO": 3, "EIO_for_ever": 2, "ENOSPC": 2,
    "fsync": 4, "read_EIO": 2, "other_process": 8, "process_error": 4,
}  # fmt: skip
HURTS: Mapping[str, int] = {
    "unreachable": 3, "missing": 3, "blank": 3, "rolled_back": 4, "flipped": 5, "truncated": 3, "file_gone": 3,
    "stale_chunk": 2, "full": 2, "foreign": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    volume_count: int
    process_count: int
    step_count: int
    operations: Mapping[str, int]  # name: weight
    incidents: Mapping[str, int]
    hurts: Mapping[str, int]
    incident_share: float  # of operations that something happens in
    call_mean: int  # calls that pass before it happens, on average
    settle_share: float  # of unknown outcomes that are recovered before anything else is done
    probe_share: float  # of steps after which it is asked what a power loss would leave
    snapshot_every: int  # entries
    deleted_block_retention: str
    block_sizes: tuple[int, ...] = (2, 3, 100)  # messages, of which streams get one
    limits: tuple[int, ...] = ()  # max_msgs, of which streams get one; empty: none has a limit
    subject_limits: tuple[int, ...] = ()  # max_msgs_per_subject, likewise
    retentions: tuple[str, ...] = ()
    ttls_s: tuple[int, ...] = ()  # of which some messages get one
    ages_s: tuple[int, ...] = ()  # max_age, of which streams get one
    marker_ttls_s: tuple[int, ...] = ()  # subject_delete_marker_ttl, likewise
    is_varied: bool = False  # rows have msg_ids, times and all kinds of headers

    def with_merging(self) -> "Plan":
        """Return the plan with blocks that can be merged, and processes that merge them."""
        operations = {
            **self.operations, "compact": 16, "append": 24, "remove": 6, "publish": 2, "purge": 2, "delete_stream": 1,
        }  # fmt: skip
        return replace(self, operations=operations, block_sizes=(3, 100, 100))

    def with_variety(self) -> "Plan":
        """Return the plan with rows of all kinds, every question that a stream answers, and calls that are refused."""
        operations = {
            **self.operations, "append": 24, "append_as_writer": 8, "stage": 10, "commit": 14, "compact": 16, "ask": 30,
            "be_refused": 10, "remove": 6, "purge": 6, "fetch": 2, "ack": 2,
        }  # fmt: skip
        return replace(
            self,
            operations=operations,
            block_sizes=(3, 100, 100),
            subject_limits=(-1, -1, 2),
            retentions=("limits",),
            is_varied=True,
        )

    def with_copies(self) -> "Plan":
        """Return the plan with volumes that are exchanged for those of a copy of the store that was written on."""
        operations = {**self.operations, "append": 24, "save_images": 14, "hurt": 14, "repair": 8, "black_out": 0}
        hurts = {**dict.fromkeys(HURTS, 1), "exchanged": 40}
        return replace(self, volume_count=max(3, self.volume_count), operations=operations, hurts=hurts)

    def with_limits(self) -> "Plan":
        """Return the plan with streams that keep few messages."""
        operations = {**self.operations, "append": 30, "remove": 2, "purge": 1, "delete_stream": 1}
        return replace(self, operations=operations, limits=(2, 5, 9))

    def with_retention(self) -> "Plan":
        """Return the plan with streams that let go of messages for every reason that there is."""
        operations = {
            **self.operations, "append": 30, "fetch": 20, "ack": 26, "add_consumer": 6, "maintain": 8, "jump_clock": 8,
            "remove": 2, "purge": 1, "delete_stream": 2,
        }  # fmt: skip
        return replace(
            self,
            volume_count=max(3, self.volume_count),
            operations=operations,
            limits=(-1, -1, 5, 9),
            subject_limits=(-1, 1, 2),
            retentions=("limits", "interest", "interest", "workqueue"),
            ttls_s=(300, 5_000),
        )

    def with_time(self) -> "Plan":
        """Return the plan with streams whose messages go by time, too, and leave delete markers."""
        plan = self.with_retention()
        operations = {**plan.operations, "append": 40, "jump_clock": 24, "fetch": 10, "ack": 14}
        return replace(
            plan,
            operations=operations,
            retentions=("limits", "limits", "interest"),
            ages_s=(4_000, 4_000, 9_000),
            marker_ttls_s=(0, 600, 600),
        )

    def kinds(self) -> "Mapping[str, Callable[[], Plan]]":
        """Return what makes the plan one of a kind, by its name."""
        return {
            "merging": self.with_merging, "copies": self.with_copies, "limits": self.with_limits,
            "retention": self.with_retention, "time": self.with_time, "varied": self.with_variety,
        }  # fmt: skip

    @property
    def tolerated(self) -> int:
        """Return f: how many volumes may be bad between two completed repairs."""
        return (self.volume_count - 1) // 2

    def to_json(self) -> dict[str, Any]:
        """Return the plan with what happens in it; weights of nothing are left out."""
        plan = asdict(self)
        for name in ("operations", "incidents", "hurts"):
            plan[name] = {one: weight for one, weight in plan[name].items() if weight}
        return plan

    @staticmethod
    def from_json(plan: Mapping[str, Any]) -> "Plan":
        """Return a plan that was kept: what it does not name does not happen."""
        listed = {name: tuple(value) for name, value in plan.items() if isinstance(value, list)}
        return Plan(**{**plan, **listed})

    @staticmethod
    def of(random: Random) -> "Plan":
        """Return a plan: everything at random, in some of them with weight on a few things."""
        volume_count = random.choice((1, 3, 3, 3, 3, 5))
        operations, incidents, hurts = dict(OPERATIONS), dict(INCIDENTS), dict(HURTS)
        for weights in (operations, incidents, hurts):
            for name in random.sample(sorted(weights), random.choice((0, 1, 3))):
                weights[name] *= random.choice((0, 4))
        if volume_count == 1:
            for name in ("hurt", "black_out", "swap_places", "come_back"):
                operations[name] = 0
            for name in ("power_of_one", "EIO_for_ever"):
                incidents[name] = 0
        operations["append"] = max(operations["append"], 4)
        incidents["kill"] = max(incidents["kill"], 1)
        hurts["blank"] = max(hurts["blank"], 1)
        return Plan(
            volume_count=volume_count,
            process_count=random.choice((1, 2, 2, 3)),
            step_count=random.randint(STEPS_MIN, STEPS_MAX),
            operations=operations,
            incidents=incidents,
            hurts=hurts,
            incident_share=random.choice((0.1, 0.3, 0.5)),
            call_mean=random.choice((4, 15, 40)),
            settle_share=random.choice((0.3, 0.8, 1.0)),
            probe_share=random.choice((0.1, 0.3)),
            snapshot_every=random.choice((1, 3, 10, 50)),
            deleted_block_retention=random.choice(("0s", "0s", "1h")),
        )


def chosen(random: Random, weights: Mapping[str, int]) -> str:
    """Return one of the names, by weight."""
    names = sorted(name for name, weight in weights.items() if weight)
    return random.choices(names, [weights[name] for name in names])[0]
