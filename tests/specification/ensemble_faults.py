"""What goes wrong with volumes in the model of the ensemble; and the tasks that write blocks to them."""

import itertools
from collections.abc import Iterator

from ensemble_rules import Rules
from ensemble_state import QUORUM, N, Process, State, at_rest, put, spend, with_process, with_volume
from ensemble_volume import BAD, Block, Image, Record, Volume, durable_log, fates, recorded
from entries import INDEX, LOG, TERM, entry_after, is_prefix


def faults(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    """Every fault that the budget leaves."""
    for at, volume in enumerate(state.volumes):
        if volume.is_fork and volume.holder < 0:
            yield f"volume {at} is made anew", with_volume(state, at, made_anew(volume))
        if not volume.is_there:
            yield f"volume {at} is back", with_volume(state, at, volume._replace(is_there=True))
            continue
        away = volume._replace(is_there=False)
        if state.left.absences and all(one.is_there for one in state.volumes):
            yield f"volume {at} is out of sight", with_volume(spend(state, "absences"), at, away)
        if state.left.volume_faults and state.faulty in (-1, at):
            spent = spend(state, "volume_faults")._replace(faulty=at)
            yield f"volume {at} cannot be reached", with_volume(spent, at, away)
            if volume.holder < 0:
                yield from _replaced(spent, at, volume)
    if state.left.power_losses:
        yield from _power_losses(rules, state)


def _replaced(state: State, at: int, volume: Volume) -> Iterator[tuple[str, State]]:
    """What may lie at the place of a volume that nobody writes just now."""
    if volume.records:
        yield f"volume {at} comes back blank", with_volume(state, at, made_anew(volume))
        if volume.records[-1] != BAD:
            damaged = volume._replace(records=(*volume.records[:-1], BAD))
            yield f"the last record of volume {at} is damaged", with_volume(state, at, damaged)
    now = Image(volume.records, volume.commit, volume.named, volume.blocks)
    for ago, image in enumerate((now, *reversed(volume.images))):
        for length, fork in enumerate(_forked(state, at, volume, image), 1):
            yield f"volume {at} is that of a copy from {ago} ago, {length} on", with_volume(state, at, fork)
    for number, image in enumerate(volume.images):
        older = recorded(volume, image.commit, image.named)
        older = older._replace(records=image.records, blocks=image.blocks, images=volume.images[:number])
        yield f"volume {at} is rolled back by {len(volume.images) - number}", with_volume(state, at, older)


def made_anew(volume: Volume) -> Volume:
    """Return the volume as somebody who repairs it leaves it: to be filled by the next session."""
    return Volume(True, volume.instance + 1, "blank", -1, (), 0, 0, (), (), (), ())


def _forked(state: State, at: int, volume: Volume, image: Image) -> Iterator[Volume]:
    """Yield the volume of a copy of the store that was made then and written on by itself; all was whole there.

    Its entries contradict what the others have written since; or, if that is nothing, it says that these had them, too.
    """
    base = image.commit
    others = [one for number, one in enumerate(state.volumes) if number != at]
    held = LOG[state.promised][INDEX[base] :][:1] or (base,)
    if base <= 0 or image.records[-1] == BAD or durable_log(volume._replace(records=image.records)).bad:
        return
    if not all(one.is_there and held[0] in durable_log(one).entries for one in others):
        return
    entry, term = base, TERM[base] + 3  # a better log than ours, by Raft's order
    records = [one for one in image.records if one.kind != "E" or is_prefix(one.what, base)]
    records.append(Record("V", term, 8, "D"))
    every = tuple(range(N))
    for _ in range(2):
        entry = entry_after(entry, term, "copy", (INDEX[entry],) * N)
        records.append(Record("E", entry, 0, "D"))
        yield Volume(
            True, volume.instance, volume.standing, -1, tuple(records), entry, entry, every, every, image.blocks, (),
            is_fork=True,
        )  # fmt: skip


def _power_losses(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    """Every process dies; each thing that is not durable has each of its fates. Commit records all have the same."""
    processes = tuple(at_rest(one.jobs, one.attempt) for one in state.processes)
    spent = spend(state, "power_losses")._replace(processes=processes)
    for left in itertools.product(*(fates(one, rules.two_slots) for one in state.volumes)):
        if len({how for _, how, _ in left if how}) > 1:
            continue
        told = " | ".join(f"{records} {how}".strip() for records, how, _ in left)
        if not any("k" in records or "torn" in records or how not in ("", "old record") for records, how, _ in left):
            told = "keeps nothing"  # of what is not durable
        yield f"POWER LOSS {told}", spent._replace(volumes=tuple(volume for _, _, volume in left))


# --- blocks


def tasks_of(state: State, number: int, process: Process, job: str) -> Iterator[tuple[str, State]]:
    """A task writes its block and fsyncs it on a quorum; the third copy is missing, or in the page cache only."""
    there = [at for at, one in enumerate(state.volumes) if one.is_there]
    for quorum in itertools.combinations(there, QUORUM):
        for third in ("nothing", "W", "D") if len(there) == N else ("nothing",):
            at_third = dict.fromkeys(set(there) - set(quorum), third) if third != "nothing" else {}
            copies = dict.fromkeys(quorum, "D") | at_third
            volumes = state.volumes
            for at, how in copies.items():
                kept = [one for one in volumes[at].blocks if one.name != job]
                volumes = put(volumes, at, volumes[at]._replace(blocks=tuple(sorted((*kept, Block(job, how))))))
            took = tuple((at, state.volumes[at].instance) for at, how in sorted(copies.items()) if how == "D")
            written = with_process(state, number, process._replace(took=took))._replace(volumes=volumes)
            more = {"nothing": "", "W": " and one copy is not fsynced", "D": ""}[third]
            yield f"P{number}'s task writes block {job} on {[at for at, _ in took]}{more}", written


def still_holds(volume: Volume, instance: int, name: str) -> bool:
    """Return whether the block that a task wrote is where it said it is."""
    return (
        volume.is_there
        and not volume.is_fork
        and volume.instance == instance
        and volume.standing != "retired"
        and any(one.name == name for one in volume.blocks)
    )
