"""Options that say how to log in to running NATS servers, named as those of the `nats` command."""

from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.failures import WrongUsage

if TYPE_CHECKING:
    from storage_core.live.server import Servers

ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Context of the `nats` command, or its file.")
]
CredsOption = Annotated[str | None, typer.Option("--creds", metavar="FILE", help="Credentials: a JWT and a seed.")]
NkeyOption = Annotated[str | None, typer.Option("--nkey", metavar="FILE", help="Seed of an nkey.")]
UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="User; the password is taken from $NATS_PASSWORD.")
]
CaOption = Annotated[str | None, typer.Option("--tlsca", metavar="FILE", help="Authorities for the server's TLS.")]
CertOption = Annotated[str | None, typer.Option("--tlscert", metavar="FILE", help="The client's certificate.")]
KeyOption = Annotated[str | None, typer.Option("--tlskey", metavar="FILE", help="Key of the certificate.")]
DomainOption = Annotated[str | None, typer.Option("--js-domain", metavar="NAME", help="JetStream domain.")]


def servers_of(addresses: str, **login: str | None) -> "Servers":
    """Return the servers at comma-separated addresses. Raises WrongUsage for what is none."""
    import os

    from storage_core.live.login import Login, parse_address
    from storage_core.live.server import Servers

    if login.get("user"):
        login["password"] = os.environ.get("NATS_PASSWORD")
    try:
        parsed = tuple(parse_address(text, "SERVERS") for text in addresses.split(","))
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    return Servers(parsed, Login(**login))  # type: ignore[arg-type]
