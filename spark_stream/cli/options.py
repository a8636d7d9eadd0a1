"""Options that several commands share, and the way from `--store` to an open store."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import CommandFailed, WrongUsage
from spark_stream.cli.lock_timeout import lock_timeout
from spark_stream.cli.named_stores import STORE_VARIABLE, default_store, volumes_of
from spark_stream.cli.storage_options import storage_options

if TYPE_CHECKING:
    from storage_core import Store

log = logging.getLogger("storage_core.command_line")  # whose warnings a command prints
REMEDY = "`jstream repair` brings copies and volumes back from good ones"
NO_QUORUM = "nothing can be written: bring a volume back; `jstream repair --adopt` says what the others can do alone"
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
KEY_VARIABLE = "JSTREAM_ENCRYPTION_KEY"
KEY_SIZE_MAX = 64 << 10  # bytes
_STORE_HELP = f"Volumes of the store, comma-separated; any live one will do. Or @CONTEXT. Default: ${STORE_VARIABLE}."


def remember_store(context: typer.Context, store: str | None) -> None:
    """Keep a `--store` that stands before the verb for the verb; the nearest one to it wins."""
    if store is not None:
        context.obj = store


def named_store(context: typer.Context, store: str | None) -> str:
    """Return the volumes to use: `--store` after the verb, else before it, else what stands for it; empty for none."""
    named = store or context.obj
    return volumes_of(str(named)) if named else default_store()


def resolve_store(context: typer.Context, store: str | None) -> str:
    """Return the volumes to use. Raises WrongUsage if nothing names a store."""
    if context.resilient_parsing:
        return store or ""
    volumes = named_store(context, store)
    if not volumes:
        raise WrongUsage(
            f"no store: pass --store VOLUME[,VOLUME] or set {STORE_VARIABLE}; `jstream context add` remembers one"
        )
    return volumes


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams whose names begin so, for the shell; none where the store cannot be read."""
    try:
        with blas_on_one_thread():
            from storage_core import Store

        logging.getLogger("storage_core").addHandler(logging.NullHandler())  # warnings would stand in the line
        with Store.open(named_store(context, _typed_store(context)), read_only=True) as store:
            return [name for name in store.streams() if name.startswith(incomplete)]
    except Exception:  # a shell that completes has no place for an error
        return []


def _typed_store(context: typer.Context) -> str | None:
    """Return the `--store` of the line, the nearest to its end."""
    level: Any = context
    while level is not None:
        if level.params.get("store"):
            return str(level.params["store"])
        level = level.parent
    return None


GroupStoreOption = Annotated[str | None, typer.Option("--store", metavar="VOLUME[,VOLUME]", help=_STORE_HELP)]
StoreOption = Annotated[
    str, typer.Option("--store", metavar="VOLUME[,VOLUME]", help=_STORE_HELP, callback=resolve_store)
]
JsonOption = Annotated[bool, typer.Option("--json", "-j", help="Print JSON.")]
Base64Option = Annotated[
    bool, typer.Option("--base64", help="Print JSON with data and headers in base64, never as text.")
]
RawOption = Annotated[bool, typer.Option("--raw", "-r", help="Print the data only, a line break after each.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")]
DefaultsOption = Annotated[bool, typer.Option("--defaults", help="No effect; accepted for compatibility with `nats`.")]
AllowOverlapOption = Annotated[
    bool, typer.Option("--allow-overlap", help="Take subjects that other streams take, too.")
]
AsksNothingOption = Annotated[
    bool, typer.Option("--force", "-f", help="No effect; accepted for compatibility with `nats`.")
]
TakeOverOption = Annotated[
    bool,
    typer.Option("--take-over", help="Make this host the writer: the former one is down, or this is a copied store."),
]
StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream.", autocompletion=complete_stream)
]
EncryptionKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--encryption-key",
        metavar="FILE",
        help=f"File with the key of the server's configuration; again for a former key. Or ${KEY_VARIABLE}.",
    ),
]
NamesOption = Annotated[bool, typer.Option("--names", "-n", help="Print the names only.")]
FirstOption = Annotated[int | None, typer.Option("--id", metavar="N", min=1, help="Begin with this sequence.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Begin here: 90s or 2h ago, or a time in ISO 8601.")
]
SubjectFilterOption = Annotated[
    str | None, typer.Option("--subject", metavar="FILTER", help="Only messages whose subject this filter takes.")
]


def check_on_data_loss(value: str) -> str:
    """Return the policy for data loss. Raises WrongUsage naming the nearest for what is none."""
    if value not in ("fail", "continue"):
        from storage_core.suggestions import not_one_of

        raise WrongUsage(f"--on-data-loss: {not_one_of(value, ('fail', 'continue'))}")
    return value


OnDataLossOption = Annotated[
    str,
    typer.Option(
        "--on-data-loss",
        metavar="fail|continue",
        callback=check_on_data_loss,
        help="At lost and damaged messages: fail, or skip them and report them on stderr.",
    ),
]


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Import numpy in here: its OpenBLAS starts a thread per core as it is loaded, a tenth of the work of `stream ls`.

    Nothing here multiplies matrices. The variable is taken back, for what Spark starts has a use for those threads.
    """
    if BLAS_THREADS in os.environ:
        yield
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[BLAS_THREADS]


@contextmanager
def open_store(volumes: str, take_over: bool = False, warns: bool = True, read_only: bool = False) -> Iterator["Store"]:
    """Open the store at comma-separated paths for one command.

    `read_only`: the command writes nothing, and takes no lock, but to recover once from a power loss.
    `warns`: say on stderr which volumes are lost or damaged; not for commands that say more about them.
    """
    with blas_on_one_thread():
        from storage_core import Store
        from storage_core.errors import NotAStoreError
    try:
        store = Store.open(
            volumes,
            read_only,
            take_over=take_over,
            storage_options=storage_options(),
            recovers=read_only,
            **lock_timeout(),
        )
    except NotAStoreError as error:
        raise CommandFailed(f"{error}{_foreign_advice(volumes)}") from error
    with store:
        if warns:
            warn_of_volumes(store)
        yield store


def warn_of_volumes(store: "Store") -> None:
    """Say which volumes take no part: nothing is on their disks, or not what should be, or they failed."""
    from storage_core.store.volume import losses
    from storage_core.store.volume.state import VolumeState

    voters = {voter.volume_id: voter for voter in store.view().state.voters}
    labels, remedy = volume_labels(store), remedy_of(store)
    for volume in store.volumes():
        voter = voters.get(volume.volume_id)
        if voter is None:
            continue  # it was removed from the store
        reason = volume.reason or voter.retired
        if reason:
            state = volume.state if volume.reason else "retired"
            advice = remedy if state != VolumeState.MISSING else f"{losses.bring_back(volume.path)}, else {remedy}"
            log.warning("volume %s is %s: %s; %s", labels[volume.name], state, reason, advice)


def warn_of_replicas(store: "Store", infos: Sequence[Mapping[str, Any]]) -> None:
    """Say which volumes have bad copies of these streams, one reason each, but for those that take no part at all."""
    labels, said = volume_labels(store), {volume.name for volume in store.volumes() if volume.reason}
    for info in infos:
        for replica in info["cluster"]["replicas"]:
            if replica["current"] or replica["name"] in said:
                continue
            said.add(replica["name"])
            blocks = f"stream {info['config']['name']}: {replica['damaged_blocks']} of its blocks are damaged or gone"
            reason = replica["reason"] or blocks
            log.warning("volume %s is %s: %s; %s", labels[replica["name"]], replica["state"], reason, remedy_of(store))


def warn_of_overlaps(store: "Store", names: Iterable[str]) -> None:
    """Say which other streams take subjects of these."""
    from storage_core.errors import SubjectsOverlapError
    from storage_core.metadata.stream_changes import overlaps
    from storage_core.subjects import is_literal

    state = store.view().state
    listed = [subject for stream in state.streams.values() for subject in stream.config.subjects]
    if len(set(listed)) == len(listed) and all(map(is_literal, listed)):
        return  # as of ten thousand channels: each would be compared with each
    for name in names:
        stream = state.stream(name)
        for overlap in overlaps(state, name, stream.config.subjects) if stream is not None else ():
            log.warning("%s", SubjectsOverlapError(name, *overlap).finding())


def remedy_of(store: "Store") -> str:
    """Return what brings copies and volumes back: a repair, unless so many volumes are lost that it is refused."""
    from storage_core.metadata.commands import ids_of_voters
    from storage_core.raft.rules import is_quorum

    left = [volume.volume_id for volume in store.volumes() if not volume.reason]
    return REMEDY if is_quorum(ids_of_voters(store.view().state.voters), left) else NO_QUORUM


def volume_labels(store: "Store") -> dict[str, str]:
    """Return what people call the volumes, by their names: what of their paths sets them apart, such as `disk-2`."""
    from storage_core.paths import volume_labels as labels_by_id

    return labels_by_id({volume.name: str(volume.path) for volume in store.volumes()})


def _foreign_advice(volumes: str) -> str:
    from storage_core.foreign import recognise_foreign

    layouts = [recognise_foreign(volume.strip()) for volume in volumes.split(",")]
    foreign = next((layout for layout in layouts if layout is not None), None)
    if foreign is None:
        return ""
    reads = f"Spark reads it with option layout={foreign}, and `jstream import {foreign}` brings it into a store"
    return f"; a store of another server lies there: {reads}"


def read_keys(paths: Sequence[Path] | None) -> list[str] | None:
    """Return the keys in files, or those of the environment, a line each; they are never shown."""
    if not paths:
        return os.environ.get(KEY_VARIABLE, "").splitlines() or None
    return [line for path in paths for line in _keys_in(path)]


def _keys_in(path: Path) -> list[str]:
    with path.open("rb") as file:
        content = file.read(KEY_SIZE_MAX + 1)
    try:
        keys = [line for line in content.decode().splitlines() if line]
    except UnicodeDecodeError:
        keys = []
    if not keys or len(content) > KEY_SIZE_MAX:
        raise WrongUsage(f"--encryption-key {path}: {len(content)} bytes are no key; it is one line of text")
    return keys


def refuse_twice(streams: Sequence[str]) -> None:
    twice = next((name for name in streams if streams.count(name) > 1), None)
    if twice is not None:
        raise WrongUsage(f"--stream: {twice} is given twice")


def is_attended() -> bool:
    """Return whether somebody sits at a terminal who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_consent_possible(verb: str, force: bool, why: str = "needs confirmation") -> None:
    """Refuse a verb that has to ask, before anything is touched, if it cannot ask, and --force is not given."""
    if not force and not is_attended():
        raise WrongUsage(f"{verb} {why}, and this is no terminal: pass --force. Nothing was changed")


def ask_consent(question: str, force: bool) -> None:
    """Ask on the terminal unless `force`; anything but yes ends the command."""
    if not force and not typer.confirm(question, err=True):
        raise CommandFailed("not confirmed, nothing was done")
