"""`jstream scrub`, `repair` and `maintain`: find damage, repair it, and do what is due."""

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, CommandFailed, WrongUsage
from spark_stream.cli.metrics import check_textfile
from spark_stream.cli.options import (
    REMEDY,
    ForceOption,
    JsonOption,
    StoreOption,
    TakeOverOption,
    ask_consent,
    open_store,
    remedy_of,
    require_consent_possible,
    volume_labels,
    warn_of_volumes,
)
from spark_stream.cli.quantities import parse_duration_option, parse_size
from spark_stream.cli.termination import Termination
from spark_stream.cli.verify import StreamsArgument, print_verdict, progress_bar, runs_of, volume_rows
from spark_stream.look.terminal import counted, print_json, print_lines, print_table, say
from spark_stream.repairs import repair_sentences, repair_verdict

if TYPE_CHECKING:
    from storage_core import Store

_DAMAGE_COLUMNS = ("stream", "volume", "file", "offset_bytes", "first", "end", "reason", "repaired")


def scrub(
    streams: StreamsArgument = None,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="SIZE", help="Stop after so many bytes: 10GB.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="SIZE", help="Read no more than so many bytes a second: 50MB.")
    ] = None,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Check the next part of all copies for damage, from where the last scrub ended; repairs nothing.

    Exit code 1 if anything is damaged.
    """
    limit_bytes, rate_bytes_per_s = _size(limit, "--limit"), _size(rate, "--rate")
    with open_store(store) as opened, progress_bar("blocks") as progress:
        report = opened.scrub(
            progress=progress,
            limit_bytes=limit_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            streams=streams or None,
        )
        labels, remedy = volume_labels(opened), remedy_of(opened)
    if json:
        print_json(report)
    else:
        print_verdict(report, labels, remedy)
        if not report["done"]:
            say("there is more to read: the next scrub continues from here")
    if not report["ok"]:
        raise typer.Exit(EXIT_FAILED)


def repair(
    streams: StreamsArgument = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Rebuild lost metadata from what is left on all volumes, which --store names; say how."
        ),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="With --adopt: do it.")] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Declare lost what no volume at hand has, though a volume that is away may have it. With --execute: "
            "also give up what volumes that are not named, or most of them, have.",
        ),
    ] = False,
    take_back: Annotated[
        bool,
        typer.Option("--take-back", help="Serve messages again that were declared lost, and of which a copy is back."),
    ] = False,
    discard_lost: Annotated[
        bool,
        typer.Option(
            "--discard-lost",
            help="Give up for good what was declared lost or set aside: unlink its blocks, and wait for no volume.",
        ),
    ] = False,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Repair volumes, then every block of every copy, from good ones. Messages that no copy has are declared lost.

    Messages that a volume that is away may have are not lost: bring it back first. Exit code 0 if nothing is left to be
    done, 1 if something is.
    """
    if execute and not adopt:
        raise WrongUsage("--execute is for --adopt; repair alone acts at once")
    if discard_lost and (streams or take_back):
        raise WrongUsage(
            "--discard-lost is for the whole store, and comes after --take-back: leave out streams and that"
        )
    if adopt:
        if accept_loss and not execute:
            raise WrongUsage("--adopt --accept-loss is for --execute; without it nothing is done")
        if streams or take_over or take_back or discard_lost:
            raise WrongUsage(
                "--adopt rebuilds the metadata of the whole store: leave out streams, --take-over, --take-back and "
                "--discard-lost"
            )
        _adopt(store, execute, accept_loss, json)
        return
    if discard_lost:
        require_consent_possible("repair --discard-lost", force)
    with open_store(store, take_over=take_over, warns=False) as opened, progress_bar("blocks") as progress:
        if discard_lost:
            ask_consent(_discarding(opened), force)
        report = opened.repair(streams or None, progress, accept_loss, take_back, discard_lost)
        labels = volume_labels(opened)
        if not report["ok"]:
            warn_of_volumes(opened)
    if json:
        print_json(report)
    else:
        _print_repair(report, labels)
    if not report["ok"]:
        raise typer.Exit(EXIT_FAILED)


def maintain(
    watch: Annotated[
        bool, typer.Option("--watch", help="Do it again and again, until SIGTERM or Ctrl-C; one process per store.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            help="With --watch: the pause in between, give or take a tenth.",
            show_default="60s",
        ),
    ] = None,
    metrics_textfile: Annotated[
        Path | None,
        typer.Option(
            "--metrics-textfile", metavar="FILE", help="Write Prometheus metrics into a file after each round."
        ),
    ] = None,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
) -> None:
    """Do the maintenance that is due: repair reported damage, fetch missing blocks, unlink old ones, take snapshots."""
    if every is not None and not watch:
        raise WrongUsage("--every is for --watch")
    every_ns = parse_duration_option(every or "60s", "--every")
    if every_ns <= 0:
        raise WrongUsage(f"--every {every}: the pause has to be longer than that")
    if metrics_textfile is not None:
        check_textfile(metrics_textfile, "--metrics-textfile")
    with open_store(store, take_over=take_over, warns=False) as opened:
        rounds = _Rounds(opened, metrics_textfile)
        if not watch:
            rounds.run()
            if rounds.volumes:
                raise CommandFailed(f"{counted(len(rounds.volumes), 'volume')} could not be brought back: see above")
            say("maintenance is done")
            return
        with opened.watching() as check, Termination.awaited() as termination:
            while not termination.has_come:
                rounds.try_to_run(termination, check)
                termination.wait(every_ns / 1_000_000_000 * random.uniform(0.9, 1.1))
            say("stopped by SIGTERM")


class _Rounds:
    """Maintenance again and again: what went wrong is said, and tried again the next time."""

    def __init__(self, store: "Store", textfile: Path | None) -> None:
        self._store, self._textfile = store, textfile
        self.volumes: dict[str, str] = {}  # by name: why it could not be brought back
        self._is_first = True

    def run(self, is_stopped: Callable[[], bool] = lambda: False, check: Callable[[], None] = lambda: None) -> None:
        """Do all that is due; raises StorageError, and what `check` raises."""
        began_s, is_done = time.monotonic(), False
        try:
            self._store.maintain(is_stopped, check)
            self.volumes = _report_volumes(self._store, self.volumes)
            is_done = not self.volumes and not is_stopped()
        finally:
            if self._textfile is not None:
                self._write_metrics(self._textfile, is_done, time.monotonic() - began_s)

    def try_to_run(self, termination: Termination, check: Callable[[], None]) -> None:
        """Do the same, and say what goes wrong. Raises LeaseLostError: another process does it."""
        from storage_core.errors import LeaseLostError, StorageError

        try:
            self.run(lambda: termination.has_come, check)
        except LeaseLostError:
            raise
        except (StorageError, OSError) as error:
            say(f"maintenance: {error}")
            return
        if self._is_first and not termination.has_come:
            say("maintenance is done")
            self._is_first = False

    def _write_metrics(self, textfile: Path, is_done: bool, duration_s: float) -> None:
        from spark_stream.metrics import MaintenanceCollector, StoreCollector, write_textfile

        collectors = [StoreCollector([self._store.paths]), MaintenanceCollector(self._store, is_done, duration_s)]
        try:
            write_textfile(collectors, textfile)
        except OSError as error:
            say(f"--metrics-textfile {textfile}: {error}")


def _report_volumes(store: "Store", said: dict[str, str]) -> dict[str, str]:
    """Say which volumes maintenance could not bring back, and return them; `said`: those that were said before."""
    from storage_core.store.volume import losses
    from storage_core.store.volume.state import VolumeState

    volumes = [volume for volume in store.cluster_info()["volumes"] if volume["reason"]]
    problems = {volume["name"]: f"{volume['state']}: {volume['reason']}" for volume in volumes}
    labels = volume_labels(store)
    for volume in volumes:
        if said.get(volume["name"]) != problems[volume["name"]]:
            first = f"{losses.bring_back(volume['path'])}, else " if volume["state"] == VolumeState.MISSING else ""
            label = labels.get(volume["name"], volume["name"])
            say(f"volume {label} is {problems[volume['name']]}; {first}{REMEDY}")
    return problems


def _adopt(volumes: str, execute: bool, accept_loss: bool, json: bool) -> None:
    from storage_core.paths import resolve_paths
    from storage_core.store.recovery import adopt

    plan = adopt.plan(resolve_paths(volumes))
    if json:
        print_json(plan.to_json())
    else:
        print_lines(str(plan).splitlines())
    if not execute:
        more = " --accept-loss" if plan.loses_of_majority or plan.gives_up else ""
        say(f"nothing was done; --execute{more} does it")
        return
    adopt.execute(plan, accept_loss=accept_loss)
    say("the metadata was rebuilt")


def _print_repair(report: dict[str, Any], labels: Mapping[str, str]) -> None:
    """Print what was damaged and what became of it; the verdict itself is talk."""
    damage = report["damage"]
    if damage:
        print_table(_DAMAGE_COLUMNS, volume_rows(runs_of(damage), _DAMAGE_COLUMNS, labels), "Damage")
    say(repair_verdict(report))
    for sentence in repair_sentences(report, labels):
        say(sentence)


def _discarding(store: "Store") -> str:
    state = store.view().state
    blocks = sum(len(stream.lost_blocks) for stream in state.streams.values())
    parts = [
        f"{counted(blocks, 'block')} of lost messages",
        f"messages of other copies of the store in {counted(len(state.set_aside), 'place')}",
        f"{counted(len(state.former), 'former volume')} that may come back",
    ]
    return f"Give up {', '.join(parts)}, for good?"


def _size(text: str | None, option: str) -> int | None:
    """Return bytes above 0, None if nothing was given."""
    if text is None:
        return None
    size = parse_size(text, option)
    if size <= 0:
        raise WrongUsage(f"{option} {text}: it has to be more than nothing")
    return size
