"""How to log in to NATS servers: fields of a `nats` context, its file, and the environment.

Each field is taken from where it is given first: an option, the context, the variable `NATS_<FIELD>`. Files are read
where they are used, by the driver and by each executor, so that no secret out of a file travels or is shown.

Source: jsm.go `natscontext`; nkeys `strkey.go`; docs.nats.io, "NATS Client Protocol" (CONNECT).
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storage_core.errors import LoginError
from storage_core.suggestions import did_you_mean

if TYPE_CHECKING:
    import ssl

SCHEMES = ("nats", "tls")
PORT = 4222
_CONTEXTS = Path("nats") / "context"  # in the folder of configurations
_CREDS_PART = re.compile(r"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-*END [A-Z ]+-----")
_SEED_SIZE, _USER_PREFIX = 32, 20 << 3
_FILE_SIZE_MAX = 1 << 20
_INBOX_PREFIX = "_INBOX"
_API_PREFIX = "$JS.API"
_UNSUPPORTED = ("nsc", "socks_proxy", "windows_cert_store")  # fields of a context without which it means another thing


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int = PORT
    is_tls: bool = False  # demanded, whatever the server says

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_tls else 'nats'}://{host}:{self.port}"


def is_live(path: object) -> bool:
    """Return whether a path is the address of a running server."""
    scheme, separator, _ = str(path).strip().partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def parse_address(text: str, label: str) -> Address:
    """Return the address in `nats://host:4222`. Raises ValueError, which begins with `label` and shows no password."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        scheme, rest = "nats", text.strip()
    if "@" in rest:
        raise ValueError(
            f"{label}: an address {scheme}://...@... has a user or a token in it, which plans and logs would show; "
            "give natsUser and natsPassword, natsCreds or a natsContext, or set NATS_USER and NATS_PASSWORD"
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{label}: {text!r} is no address such as nats://host:4222: {error}") from None
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{label}: {text!r} is no address such as nats://host:4222")
    return Address(host, port or PORT, scheme.lower() == "tls")


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in. The fields are those of a context; `None`: not given."""

    context: str | None = None  # name or file
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = None
    nkey: str | None = None
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    tls_first: bool = False
    inbox_prefix: str | None = None
    domain: str | None = None
    api_prefix: str | None = None
    user_jwt: str | None = field(default=None, repr=False)  # of a context only, as is the next one
    user_seed: str | None = field(default=None, repr=False)

    @property
    def says_who(self) -> bool:
        """Whether a server is told who this is."""
        return any(getattr(self, way) for way in _WAYS) or self.cert is not None

    @property
    def api(self) -> str:
        """The beginning of the subjects of JetStream's requests."""
        return self.api_prefix or (f"$JS.{self.domain}.API" if self.domain else _API_PREFIX)

    @property
    def inbox(self) -> str:
        return self.inbox_prefix or _INBOX_PREFIX

    def completed(self, environment: Mapping[str, str] = os.environ) -> "Login":
        """Return the login with what its context and the environment add.

        Raises ValueError for a context that is not there, or that asks for what this client cannot do.
        """
        wanted = self.context or environment.get("NATS_CONTEXT")
        context = _read_context(wanted, environment) if wanted else {}
        given: dict[str, Any] = {held.name: getattr(self, held.name) for held in fields(self)}
        is_given = any(given[way] for way in _WAYS)
        if not is_given and not any(context.get(way) for way in _WAYS):
            given |= {way: environment.get(f"NATS_{way.upper()}") or None for way in (*_WAYS, "password")}
        elif not is_given:
            given |= {way: context.get(way) for way in (*_WAYS, "password", "user_seed")}
        for each in ("cert", "key", "ca"):
            given[each] = given[each] or context.get(each) or environment.get(f"NATS_{each.upper()}") or None
        for each in ("inbox_prefix", "domain", "api_prefix", "tls_first"):
            given[each] = given[each] or context.get(each)
        return replace(self, **{**given, "tls_first": bool(given["tls_first"])})

    def tls(self) -> "ssl.SSLContext":
        """Return what TLS goes by. Raises LoginError for a file that cannot be read."""
        import ssl  # seldom needed, and every process that parses options would wait for it

        try:
            made = ssl.create_default_context(cafile=_path(self.ca) if self.ca else None)
            if self.cert:
                made.load_cert_chain(_path(self.cert), _path(self.key) if self.key else None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            raise LoginError(f"TLS: {files}: {error}: the files must be at the same path on every executor") from error
        return made

    def answer(self, nonce: str) -> dict[str, str]:
        """Return the fields of CONNECT that say who this is, for the nonce that the server sent.

        Raises LoginError for a file that cannot be read or holds no key.
        """
        if self.creds:
            jwt, seed = _credentials(self.creds)
            return {"jwt": jwt, "sig": _signed(seed, nonce, self.creds)[1]}
        if self.user_jwt and self.user_seed:
            return {"jwt": self.user_jwt, "sig": _signed(self.user_seed, nonce, "user_seed of the context")[1]}
        if self.nkey:
            public, signature = _signed(_read(self.nkey).strip(), nonce, self.nkey)
            return {"nkey": public, "sig": signature}
        if self.token:
            return {"auth_token": self.token}
        if self.user:
            return {"user": self.user, "pass": self.password or ""}
        return {}


_WAYS = ("user", "token", "creds", "nkey", "user_jwt")  # of saying who one is
_FIELDS_OF_CONTEXTS = {"jetstream_domain": "domain", "jetstream_api_prefix": "api_prefix"}


def _read_context(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config")
    is_file = name.endswith(".json") or os.sep in name
    path = Path(name).expanduser() if is_file else home / _CONTEXTS / f"{name}.json"
    if not path.is_file():
        known = sorted(entry.stem for entry in path.parent.glob("*.json")) if path.parent.is_dir() else []
        raise ValueError(f"natsContext: no context {name!r}: {path} is not there{did_you_mean(name, known)}")
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"natsContext: {path} cannot be read as JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"natsContext: {path} holds no JSON object")
    unsupported = [key for key in _UNSUPPORTED if loaded.get(key)]
    if unsupported:
        raise ValueError(f"natsContext: {path} sets {unsupported[0]!r}, which this client does not support")
    return {str(_FIELDS_OF_CONTEXTS.get(key, key)): value or None for key, value in loaded.items()}


def _path(text: str) -> str:
    return os.path.expanduser(text)


def _read(path: str) -> str:
    try:
        with open(_path(path), encoding="utf-8") as file:
            return file.read(_FILE_SIZE_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise LoginError(f"{path} cannot be read here: {error}; every executor needs it at the same path") from error


def _credentials(path: str) -> tuple[str, str]:
    parts = _CREDS_PART.findall(_read(path))
    if len(parts) != 2:
        raise LoginError(f"{path} is no file of credentials: it has {len(parts)} parts instead of a JWT and a seed")
    return parts[0], parts[1]


def _signed(seed: str, nonce: str, source: str) -> tuple[str, str]:
    """Return the public key of a seed, and the nonce signed with it. The seed is in no error."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise LoginError(
            f"{source}: keys need `pip install 'pyspark-jstream[nats]'` on driver and executors"
        ) from error
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raw = b""
    checksum = binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little")
    if len(raw) != 2 + _SEED_SIZE + 2 or raw[-2:] != checksum or raw[0] & 0xF8 != 18 << 3:
        raise LoginError(f"{source} holds no seed of an nkey: 58 letters and digits that begin with SU")
    private = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    public = bytes([_USER_PREFIX]) + private.public_key().public_bytes_raw()
    public += binascii.crc_hqx(public, 0).to_bytes(2, "little")
    signature = base64.urlsafe_b64encode(private.sign(nonce.encode())).rstrip(b"=")
    return base64.b32encode(public).decode().rstrip("="), signature.decode()
