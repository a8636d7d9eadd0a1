"""`jstream drift [nats|stan DIR...]`: whether the copies of streams agree, message by message."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, CommandFailed, VerbGroup, WrongUsage
from spark_stream.cli.live_options import (
    CaOption,
    CertOption,
    ContextOption,
    CredsOption,
    DomainOption,
    KeyOption,
    NkeyOption,
    UserOption,
    servers_of,
)
from spark_stream.cli.options import (
    REMEDY,
    EncryptionKeyOption,
    GroupStoreOption,
    JsonOption,
    StoreOption,
    open_store,
    read_keys,
    remember_store,
    resolve_store,
)
from spark_stream.cli.verify import ProgressCall, progress_bar
from spark_stream.look.terminal import counted, print_json, print_table, say

if TYPE_CHECKING:
    from storage_core.comparison import CopyDrift, Drift, State
    from storage_core.foreign import ForeignStore

SHOWN_COUNT_MAX = 10  # conflicts of one stream that are printed
RANGE_COUNT_MAX = 4  # ranges of a copy that a cell of the table names
_COLUMNS = ("stream", "copy", "messages", "missing", "damaged", "different", "first", "last", "content", "verdict")


class _DriftGroup(VerbGroup):
    """Verbs, and the address of running servers in the place of one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from storage_core.live.login import is_live

        if is_live(args[0]):
            args = ["mirror", "--servers", args[0], *args[1:]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_DriftGroup,
    help="Compare the copies of streams, message by message: which are there, missing, damaged or different.\n\n"
    "Without a verb: the copies of our own streams on the volumes of the store. Exit code 1 if copies differ.",
)
StreamsOption = Annotated[
    list[str] | None,
    typer.Option("--stream", "-s", metavar="NAME", help="Only this stream; more than once: these. Default: all."),
]
PictureOption = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw it too, as FILE.html."),
]
DirectoriesArgument = Annotated[
    list[str], typer.Argument(metavar="DIR", help="Directories of the nodes, or one that holds them all.")
]


@app.callback(invoke_without_command=True)
def own(
    context: typer.Context,
    streams: StreamsOption = None,
    picture: PictureOption = None,
    store: GroupStoreOption = None,
    json: JsonOption = False,
) -> None:
    remember_store(context, store)
    if context.invoked_subcommand is not None:
        if streams or picture or json:
            raise WrongUsage(f"put the options behind the verb: jstream drift {context.invoked_subcommand} ...")
        return
    check_picture(picture)
    volumes = resolve_store(context, store)
    with open_store(volumes, warns=False, read_only=True) as opened:  # what is wrong is said of the copies
        drifts = _compare_all(streams or opened.streams(), opened.compare, "blocks")
    show(drifts, picture, json, REMEDY)


@app.command("nats")
def nats(
    directories: DirectoriesArgument,
    streams: StreamsOption = None,
    account: Annotated[
        str | None, typer.Option("--account", metavar="NAME", help="Only the streams of this account.")
    ] = None,
    encryption_key: EncryptionKeyOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Compare what the nodes of a NATS JetStream cluster have on disk. Nothing is written there."""
    from storage_core.foreign import open_foreign

    check_picture(picture)
    source = open_foreign(directories, "nats", account, encryption_key=read_keys(encryption_key))
    _compare_foreign(source, streams, picture, json)


@app.command("stan")
def stan(
    directories: DirectoriesArgument,
    streams: StreamsOption = None,
    truncate_bad_eof: Annotated[
        bool, typer.Option("--truncate-bad-eof", help="Read past the unexpected end of a file.")
    ] = False,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Compare what the nodes of a NATS Streaming (STAN) cluster have on disk. Nothing is written there."""
    from storage_core.foreign import open_foreign

    check_picture(picture)
    _compare_foreign(open_foreign(directories, "stan", truncate_bad_eof=truncate_bad_eof), streams, picture, json)


@app.command("mirror")
def mirror(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The mirror, by its name here.")],
    servers: Annotated[
        str | None,
        typer.Option("--servers", metavar="SERVERS", help="Where its source is; else where it was mirrored from."),
    ] = None,
    context: ContextOption = None,
    creds: CredsOption = None,
    nkey: NkeyOption = None,
    user: UserOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    domain: DomainOption = None,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Compare a mirror with the running NATS servers, message by message: `jstream drift nats://HOST STREAM`."""
    from storage_core.mirror import ADDRESSES
    from storage_core.mirror_comparison import compare_mirror

    login = {"context": context, "creds": creds, "nkey": nkey, "user": user}
    with open_store(store) as opened:
        addresses = servers or opened.stream(stream).config.metadata.get(ADDRESSES, "")
        if not addresses:
            raise CommandFailed(f"stream {stream!r} is no mirror: `jstream mirror` makes one")
        at = servers_of(addresses, **login, ca=ca, cert=cert, key=key, domain=domain)
        outcome = compare_mirror(opened, at, stream)
    if json:
        print_json(outcome.to_json())
    else:
        rows = [
            [
                outcome.stream,
                outcome.same,
                len(outcome.different),
                len(outcome.missing),
                len(outcome.deleted),
                outcome.lag,
            ]
        ]
        print_table(("stream", "same", "different", "missing", "deleted there", "not here yet"), rows, "Mirror")
        for word, sequences in (("different", outcome.different), ("missing", outcome.missing)):
            for first, end in sequences.ranges_head(SHOWN_COUNT_MAX):
                say(f"sequences {first} to {end - 1} are {word}" if end - first > 1 else f"sequence {first} is {word}")
        if not outcome.is_same_stream:
            say(f"stream {outcome.source} was made again since it was mirrored")
    if not outcome.ok:
        raise typer.Exit(EXIT_FAILED)


def _compare_foreign(store: "ForeignStore", streams: list[str] | None, picture: Path | None, json: bool) -> None:
    from storage_core.foreign.side_by_side import compare

    for writer in store.writers():
        say(f"warning: {writer.describe()}")

    def compare_stream(name: str, progress: ProgressCall | None) -> "Drift":
        return compare(store, name, progress)

    show(_compare_all(streams or store.streams(), compare_stream, "parts", store.advice()), picture, json)


def _compare_all(
    names: Sequence[str], compare: Callable[[str, ProgressCall | None], "Drift"], unit: str, advice: str = ""
) -> list["Drift"]:
    drifts = []
    for name in dict.fromkeys(names):
        with progress_bar(f"{name}: {unit}", advice) as progress:
            drifts.append(compare(name, progress))
    return drifts


# --- what is shown


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be made, before anything is read."""
    if path is None:
        return
    from spark_stream.pictures import SUFFIX

    if path.suffix.lower() != SUFFIX:
        raise WrongUsage(f"--picture {path}: it has to end in {SUFFIX}")
    if not path.absolute().parent.is_dir():
        raise CommandFailed(f"--picture {path}: {path.absolute().parent} is no directory")


def show(drifts: Sequence["Drift"], picture: Path | None, json: bool, remedy: str = "") -> None:
    """Print what was found, draw it if that was asked for, and exit with 1 if copies differ; `remedy` is said then."""
    from storage_core.comparison import drifts_json

    if picture is not None:
        from spark_stream.pictures import replica_map_page

        picture.write_text(replica_map_page(drifts), encoding="utf-8")
        say(f"the picture is in {picture}")
    if json:
        print_json(drifts_json(drifts))
    else:
        _print(drifts)
    if not all(drift.agrees for drift in drifts):
        if remedy and not json:
            say(remedy)
        raise typer.Exit(EXIT_FAILED)


def _print(drifts: Sequence["Drift"]) -> None:
    if drifts:
        print_table(_COLUMNS, [row for drift in drifts for row in _rows(drift)], "Copies")
    for label, problem in dict.fromkeys((copy.label, copy.problem) for drift in drifts for copy in drift.copies):
        if problem:  # of a volume: the same for all streams
            say(f"{label}: {problem}")
    for drift in drifts:
        for note in drift.notes:
            say(f"stream {drift.stream}: {note}")
        for conflict in drift.conflicts[:SHOWN_COUNT_MAX]:
            say(f"stream {drift.stream}: {conflict.describe()}")
        if len(drift.conflicts) > SHOWN_COUNT_MAX:
            say(f"stream {drift.stream}: {len(drift.conflicts) - SHOWN_COUNT_MAX} more conflicts, which --json lists")
        for first, end in drift.lost.ranges_head(SHOWN_COUNT_MAX):
            which = f"sequence {first}" if end == first + 1 else f"sequences {first} to {end - 1}"
            say(f"stream {drift.stream}: no copy has {which} whole")
        for first, end in drift.open.ranges_head(SHOWN_COUNT_MAX):
            which = f"sequence {first} was" if end == first + 1 else f"sequences {first} to {end - 1} were"
            say(f"stream {drift.stream}: {which} removed or {'is' if end == first + 1 else 'are'} lost: no copy tells")
        say(f"stream {drift.stream}: {drift.verdict()}; together {counted(drift.message_count, 'message')}")
    if not drifts:
        say("no streams")


def _counted_ranges(copy: "CopyDrift", state: "State") -> object:
    """Return how many sequences are in a state, and which: `12: 59 to 70`. Of many ranges the first ones."""
    count = copy.count(state)
    if not count:
        return 0
    shown = [
        str(first) if end == first + 1 else f"{first} to {end - 1}"
        for first, end in copy.runs.sequences(state).ranges_head(RANGE_COUNT_MAX)
    ]
    more = copy.runs.sequences(state).run_count > RANGE_COUNT_MAX
    return f"{count}: {', '.join([*shown, *(['...'] if more else [])])}"


def _rows(drift: "Drift") -> list[list[object]]:
    """Return a row for each copy; the same letter stands for the same content."""
    from storage_core.comparison import State

    letters: dict[str, str] = {}
    rows: list[list[object]] = []
    for copy in drift.copies:
        counts = copy.counts
        if copy.digest:
            letters.setdefault(copy.digest, chr(ord("A") + len(letters)) if len(letters) < 26 else str(len(letters)))
        rows.append(
            [
                drift.stream,
                copy.label,
                counts["there"] + counts["different"],
                *(_counted_ranges(copy, state) for state in (State.MISSING, State.DAMAGED, State.DIFFERENT)),
                copy.first,
                copy.last,
                letters.get(copy.digest),
                "whole" if copy.whole else "differs",
            ]
        )
    return rows
