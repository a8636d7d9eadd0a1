"""`jstream mirror`: streams of running NATS servers brought over and kept in step.

Exit code 3 says that a source is no longer what was mirrored: made again, put back, or grown over.
"""

from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import WrongUsage
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
    EncryptionKeyOption,
    JsonOption,
    StoreOption,
    TakeOverOption,
    check_on_data_loss,
    open_store,
    read_keys,
)
from spark_stream.cli.termination import Termination
from spark_stream.look.terminal import counted, print_lines, say

if TYPE_CHECKING:
    from storage_core import Store
    from storage_core.mirror import Mirror, MirrorReport

EXIT_DIVERGED = 3
INTERVAL_S = 1.0  # between two looks at the sources
_KEYS = ("servers", "stream", "as", "from", "context", "creds", "nkey", "user", "ca", "cert", "key", "domain")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One mirror of the command line or of a file."""

    addresses: str
    stream: str
    name: str | None
    directories: tuple[str, ...]
    login: dict[str, str | None]


def mirror(
    servers: Annotated[
        str, typer.Argument(metavar="SERVERS|FILE", help="nats://HOST[:PORT], comma-separated; or a file, *.toml.")
    ],
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="Its name on the servers.")] = None,
    as_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="What to call it here.")] = None,
    directories: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="DIR", help="Begin with a copy of a server's files; may be repeated, for its cluster."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Stay, and bring over what comes; or end when all is here.")
    ] = False,
    on_data_loss: Annotated[
        str,
        typer.Option(
            "--on-data-loss",
            metavar="fail|continue",
            callback=check_on_data_loss,
            help="When the source removed messages before they came over: fail, or continue behind them.",
        ),
    ] = "fail",
    replicas: Annotated[int | None, typer.Option("--replicas", metavar="N", help="Copies of each block.")] = None,
    encryption_key: EncryptionKeyOption = None,
    context: ContextOption = None,
    creds: CredsOption = None,
    nkey: NkeyOption = None,
    user: UserOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    domain: DomainOption = None,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Mirror a stream of running NATS servers: same sequences, times, headers and consumers.

    Run again, it resumes. Exit code 3 if the source was made again, went back, or has other messages now.
    """
    login = {"context": context, "creds": creds, "nkey": nkey, "user": user}
    login |= {"ca": ca, "cert": cert, "key": key, "domain": domain}
    if servers.endswith(".toml"):
        if stream or as_name or directories or any(login.values()):
            raise WrongUsage(f"{servers} says which streams are mirrored: leave STREAM, --as, --from and the login out")
        wanted = _read(Path(servers))
    elif stream is None:
        raise WrongUsage("missing STREAM: its name on the servers")
    else:
        wanted = [_Wanted(servers, stream, as_name, tuple(directories or ()), login)]
    with open_store(store, take_over) as opened:
        mirrors = [_opened(opened, each, replicas, on_data_loss, read_keys(encryption_key)) for each in wanted]
        code = _run(mirrors, follow, json)
    if code:
        raise typer.Exit(code)


def _opened(
    store: "Store", wanted: _Wanted, replicas: int | None, on_data_loss: str, encryption_key: list[str] | None
) -> "Mirror":
    from storage_core.mirror import Mirror, MirrorRequest

    files = None
    if wanted.directories:
        from storage_core.foreign import open_foreign
        from storage_core.foreign.nats.store import LAYOUT

        files = open_foreign(list(wanted.directories), LAYOUT, encryption_key=encryption_key)
    request = MirrorRequest(wanted.stream, wanted.name, replicas, on_data_loss)
    servers = servers_of(wanted.addresses, **wanted.login)
    servers.check()
    return Mirror(store, servers, request, files)


def _run(mirrors: "list[Mirror]", follow: bool, json: bool) -> int:
    """Bring over what there is, once or until the command is stopped; return the exit code."""
    from storage_core.errors import MirrorDivergedError, ServerAwayError

    code, left = 0, list(mirrors)
    with Termination.awaited() as termination:
        while left and not termination.has_come:
            for each in list(left):
                try:
                    _show(each.step(), json, follow)
                except MirrorDivergedError as error:
                    say(str(error))
                    code = EXIT_DIVERGED
                    left.remove(each)
                except ServerAwayError as error:
                    if not follow:
                        raise
                    say(f"warning: {error}; it is tried again")
            if not follow:
                break
            try:
                termination.wait(INTERVAL_S)
            except KeyboardInterrupt:
                break
    return code


def _show(report: "MirrorReport", json: bool, follow: bool) -> None:
    if follow and not (report.messages or report.imported or report.consumers):
        return
    if json:
        print_lines([dumps(report.to_json())])  # an object for each pass of each stream
        return
    parts = [f"{report.stream}: {counted(report.messages, 'message')}, up to sequence {report.end - 1}"]
    if report.imported:
        parts.append(f"{counted(report.imported, 'message')} from files before")
    if report.consumers:
        parts.append(f"{counted(len(report.consumers), 'consumer')} at their places")
    parts += [f"sequences {first} to {end - 1} were gone before they came over" for first, end in report.gaps]
    print_lines([", ".join(parts)])


def _read(file: Path) -> list[_Wanted]:
    """Return the mirrors of a file: tables `[[mirror]]`."""
    from spark_stream.pipelines.toml import check_keys, read_toml

    tables = read_toml(file).get("mirror")
    if not isinstance(tables, list) or not tables:
        raise WrongUsage(f"{file}: no tables [[mirror]], each with servers and stream")
    return [_wanted(file, f"mirror {at}", table, check_keys) for at, table in enumerate(tables, 1)]


def _wanted(file: Path, place: str, table: dict[str, Any], check_keys: Any) -> _Wanted:
    check_keys(file, place, table, _KEYS)
    for name, value in table.items():
        is_right = isinstance(value, str) if name != "from" else isinstance(value, list)
        if not is_right:
            raise WrongUsage(
                f"{file}: {place}: {name} is {value!r}, expected {'a list' if name == 'from' else 'a text'}"
            )
    for name in ("servers", "stream"):
        if name not in table:
            raise WrongUsage(f"{file}: {place}: {name} is missing")
    login = {name: table.get(name) for name in _KEYS[4:]}
    return _Wanted(table["servers"], table["stream"], table.get("as"), tuple(table.get("from", ())), login)
