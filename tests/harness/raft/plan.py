"""What a seed decides before a simulated group starts: how many, how bad, how often. Times are in units, 100 a tick."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from storage_core.raft.state import Settings

TICK = 100  # units of virtual time
SLOW_MAX = 30 * TICK  # units that a message takes at most
SLOW_DISK_MAX = 10 * TICK  # units that persisting takes at most
HEAL_TICKS = 600  # within which a healed group must have agreed


@dataclass(frozen=True)
class Plan:
    voter_count: int
    voters_min: int  # with fewer, changes of members add some
    voters_max: int
    chaos_ticks: int  # how long faults go on
    loss: float  # probability that a message is lost
    duplication: float
    delay_max: int  # units that most messages take at most, so that later ones overtake earlier ones
    slow_share: float  # probability that a message takes up to SLOW_MAX instead
    persist_max: int  # units that persisting mostly takes at most
    slow_disk_share: float  # probability that it takes up to SLOW_DISK_MAX instead
    write_pause: int  # mean units between two proposals, and so on
    read_pause: int
    fault_pause: int
    fault_max: int  # ticks that a fault lasts at most
    change_pause: int  # of members; 0: never
    eager_share: float  # probability that a new leader is asked at once to change members
    split_share: float  # probability that the group falls apart in the moment in which such a change is proposed
    transfer_pause: int
    campaign_pause: int  # somebody is told to campaign; 0: never
    duel_share: float  # probability that two are told at once, and ask nobody whether they could win
    snapshot_every: int  # applied entries; 0: never
    keep_count: int  # entries that stay in the log below a snapshot
    keeps_commit: bool  # whether the commit index survives a restart
    tick_spread: int  # percent by which the nodes' clocks differ
    unverified_share: float  # of restarts after which it takes a while until the node is verified
    faults: Mapping[str, int]  # kind: weight
    settings: Settings

    @classmethod
    def of(cls, random: Random) -> "Plan":
        """Return a plan of everything at random, or one of those that press on what everything seldom meets."""
        plan = cls._of_everything(random)
        press = random.choice(PRESSES)
        return press(plan, random) if press else plan

    @classmethod
    def _of_everything(cls, random: Random) -> "Plan":
        return cls(
            voter_count=random.choice((1, 3, 3, 3, 3, 4, 5, 5)),
            voters_min=3,
            voters_max=5,
            chaos_ticks=random.choice((80, 150, 250)),
            loss=random.choice((0, 0, 0.02, 0.1, 0.2)),
            duplication=random.choice((0, 0, 0.05, 0.3)),
            delay_max=random.choice((5, 40, 150)),
            slow_share=random.choice((0, 0, 0.02, 0.1)),
            persist_max=random.choice((1, 30, 150)),
            slow_disk_share=random.choice((0, 0, 0.1)),
            write_pause=random.choice((50, 150, 500)),
            read_pause=random.choice((100, 400)),
            fault_pause=random.choice((400, 1000, 2500)),
            fault_max=random.choice((10, 40)),
            change_pause=random.choice((0, 200, 600, 2000)),
            eager_share=random.choice((0, 0.3)),
            split_share=random.choice((0, 0, 0.2)),
            transfer_pause=random.choice((0, 0, 1500)),
            campaign_pause=random.choice((0, 0, 250, 1500)),
            duel_share=random.choice((0, 0.3)),
            snapshot_every=random.choice((0, 4, 12)),
            keep_count=random.choice((0, 0, 3)),
            keeps_commit=random.random() < 0.5,
            tick_spread=random.choice((0, 10, 40)),
            unverified_share=random.choice((0, 0.3)),
            faults={kind: random.choice((0, 1, 3)) for kind in FAULTS},
            settings=Settings(
                election_ticks=random.choice((5, 10)),
                heartbeat_ticks=random.choice((1, 2)),
                append_size_max=random.choice((1, 30, 10_000)),
                inflight_count_max=random.choice((1, 3, 64)),
                inflight_size_max=random.choice((50, 100_000)),
                uncommitted_size_max=random.choice((100, 100_000)),
                apply_size_max=random.choice((10, 100_000)),
            ),
        )


def _press_on_entries(plan: Plan, random: Random) -> Plan:
    """Leaders follow each other so fast that most entries are left half replicated."""
    return replace(
        plan,
        voter_count=random.choice((3, 3, 5)),
        loss=random.choice((0, 0.1)),
        duplication=0.3,
        delay_max=random.choice((40, 120, 400)),
        slow_share=random.choice((0, 0.1)),
        persist_max=random.choice((10, 100, 300)),
        write_pause=100,
        change_pause=0,
        campaign_pause=random.choice((150, 300)),
        fault_pause=random.choice((100, 300)),
        fault_max=5,
        unverified_share=0,
        faults={"crash speaker": 6, "flap": 2, "bridge": 3, "crash leader": 1, "isolate leader": 1},
        settings=replace(plan.settings, append_size_max=1, inflight_count_max=1),
    )


def _press_on_votes(plan: Plan, random: Random) -> Plan:
    """Two candidates ask at once in one term, and voters go and come back between their promise and the other request.

    Messages take their time, so that one request comes before a crash and the other one after it. Most promises are on
    disk by then, and some are not.
    """
    return replace(
        plan,
        voter_count=3,
        chaos_ticks=250,
        loss=0,
        duplication=random.choice((0, 0.3)),
        delay_max=random.choice((150, 300)),
        slow_share=0,
        persist_max=30,
        slow_disk_share=random.choice((0.1, 0.3)),
        write_pause=500,
        change_pause=0,
        campaign_pause=random.choice((300, 600)),
        duel_share=1,
        fault_pause=random.choice((100, 500)),
        fault_max=5,
        unverified_share=0,
        faults={"crash voter": 1, "crash winner": 1},
    )


def _press_on_changes(plan: Plan, random: Random) -> Plan:
    """Every change of members parts the group, and somebody on the other side leads next, to change them otherwise.

    Four voters: two majorities that know of different changes can then be without a node in common.
    """
    return replace(
        plan,
        voter_count=4,
        voters_min=4,
        voters_max=4,
        chaos_ticks=250,
        loss=0,
        delay_max=random.choice((10, 40)),
        slow_share=0,
        persist_max=5,
        write_pause=500,
        change_pause=random.choice((100, 100, 300)),
        eager_share=1,
        split_share=0.9,
        campaign_pause=0,
        fault_pause=1000,
        fault_max=15,
        faults={"crash": 1, "partition": 1},
    )


def _press_on_members(plan: Plan, random: Random) -> Plan:
    """Leaders change members as soon as they lead, and are replaced before others hear of it."""
    return replace(
        plan,
        voter_count=random.choice((2, 3, 4, 4)),
        loss=random.choice((0, 0.3)),
        delay_max=random.choice((10, 40)),
        persist_max=5,
        write_pause=500,
        change_pause=random.choice((40, 100)),
        campaign_pause=random.choice((150, 400)),
        fault_pause=150,
        fault_max=5,
        faults={"isolate leader": 1, "partition": 3, "bridge": 1},
    )


def _press_on_delays(plan: Plan, random: Random) -> Plan:
    """Some answers arrive long after others have led, and reads are asked for all the time."""
    return replace(
        plan,
        voter_count=random.choice((3, 5)),
        loss=0,
        delay_max=20,
        slow_share=0.2,
        persist_max=1,
        write_pause=50,
        read_pause=30,
        campaign_pause=random.choice((250, 600)),
        fault_pause=600,
        fault_max=20,
        faults={"isolate leader": 2, "partition": 1, "one way": 1},
    )


def _press_on_disks(plan: Plan, random: Random) -> Plan:
    """Disks stall, fail and come back blank as often as new members can take their places."""
    return replace(
        plan,
        voter_count=random.choice((3, 5)),
        loss=0,
        slow_disk_share=0.2,
        write_pause=50,
        change_pause=random.choice((100, 300)),
        campaign_pause=random.choice((0, 600)),
        fault_pause=random.choice((200, 600)),
        fault_max=10,
        faults={"fail": 3, "blank": 1, "crash": 2, "crash leader": 1},
    )


PRESSES = (
    None,
    None,
    _press_on_entries,
    _press_on_entries,
    _press_on_votes,
    _press_on_votes,
    _press_on_members,
    _press_on_changes,
    _press_on_changes,
    _press_on_delays,
    _press_on_disks,
)

FAULTS = (
    "crash",  # and a restart later; what was not synced is lost in part
    "crash together",
    "flap",  # several crash and are back at once
    "crash leader",
    "crash speaker",  # the next one that promises or asks for something crashes right after it, and is back soon
    "crash voter",  # the same, for votes
    "crash winner",  # the next one that begins to lead, likewise
    "partition",  # the group falls into two halves for a while
    "isolate leader",
    "one way",  # one node hears the others but is not heard, or the reverse
    "bridge",  # two halves that see each other through one node only
    "pause",  # a node stands still while its messages wait
    "fail",  # its storage fails for good
    "blank",  # it comes back with an empty disk
)
