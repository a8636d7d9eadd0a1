"""Buckets that are reached over a network, by obstore: S3 and what speaks its language, GCS, Azure.

Source: docs of obstore 0.12 and of the Rust crate object_store 0.14, on which it stands. Three properties shape
this module. A client must not be used in a forked child of a process that has used one: it would hang, so it raises. A
client that retries a conditional put reports its own success as a conflict, so this one never retries. And messages of
errors quote addresses, in which a signature or a token may stand: they are cut off.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore import exceptions
from obstore.store import from_url

from storage_core.errors import StorageError
from storage_core.objects.client import CALL_TIMEOUT_S, PART_SIZE, PARTS_AT_ONCE
from storage_core.os_errors import UnreachableError
from storage_core.paths import OBJECT_SCHEMES
from storage_core.suggestions import did_you_mean

T = TypeVar("T")
REQUEST_TIMEOUT_S = 8.0  # of one request
CONNECT_TIMEOUT_S = 5.0
RETRY_COUNT = 8  # of one part of a large object
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
_CLIENT_OPTIONS = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size",
    "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url",
    "randomize_addresses", "read_timeout", "timeout", "user_agent",
)  # fmt: skip
_PREFIXES = re.compile("aws_|google_|azure_")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_S3_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip
_user_process: int | None = None  # the process that has used a client; its children may not


class _Upload:
    """An object that is put in parts, by a client that repeats what fails. Of one that is dropped nothing is seen."""

    def __init__(self, run: Callable[[Callable[[], Any]], Any], store: Any, name: str) -> None:
        self._run = run
        self._writer = run(
            lambda: obstore.open_writer(store, name, buffer_size=PART_SIZE, max_concurrency=PARTS_AT_ONCE)
        )

    def write(self, data: bytes | memoryview) -> None:
        self._run(lambda: self._writer.write(data))

    def finish(self) -> None:
        self._run(self._writer.close)


class RemoteObjectStore:
    """A bucket of an object store. Made where it is used, never pickled: it holds the credentials."""

    def __init__(self, uri: str, options: Mapping[str, str], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """`options`: as the `storage_options` of delta-rs and polars. Raises ValueError naming a bad one."""
        self.uri, self._timeout_s = uri.rstrip("/"), timeout_s
        self._options = dict(options)
        self._store = _connect(self.uri, options)
        self._retrying: Any = None  # of uploads in parts: what of them is repeated is the same
        self._deletes_singly = False  # the server does not know how to delete many at once

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.uri}: a client of an object store is not pickled; its address and options are")

    def create(self, name: str, data: bytes) -> None:
        def create() -> None:
            obstore.put(self._store, name, data, mode="create", use_multipart=False)

        self._call("put", name, create, repeat=False)

    def put(self, name: str, data: bytes | memoryview) -> None:
        self._call("put", name, lambda: obstore.put(self._store, name, data, use_multipart=False))

    def begin_put(self, name: str) -> "_Upload":
        if self._retrying is None:
            self._retrying = _connect(self.uri, self._options, RETRY_COUNT)
        return _Upload(partial(self._call, "put", name, repeat=False), self._retrying, name)

    def get(self, name: str, size: int) -> tuple[bytes, int, str]:
        def read() -> tuple[bytes, int, str]:
            answer = obstore.get(self._store, name, options={"range": (0, size)})
            data = bytes(answer.bytes())
            if len(data) != min(size, answer.meta["size"]):
                raise ConnectionAbortedError(errno.ECONNABORTED, f"{len(data)} bytes came", self._where(name))
            return data, int(answer.meta["size"]), _tag(answer.meta)

        return self._call("get", name, read)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        if not ranges:
            return []
        starts, ends = zip(*ranges, strict=True)

        def read() -> list[memoryview]:
            parts = [memoryview(part) for part in obstore.get_ranges(self._store, name, starts=starts, ends=ends)]
            for (start, end), part in zip(ranges, parts, strict=True):
                if len(part) != end - start:
                    raise ConnectionAbortedError(
                        errno.ECONNABORTED, f"{len(part)} bytes came of [{start}, {end})", self._where(name)
                    )
            return parts

        return self._call("get", name, read)

    def size(self, name: str) -> int:
        return int(self._call("get", name, lambda: obstore.head(self._store, name)["size"]))

    def names(self, prefix: str, count_max: int | None = None) -> Iterator[tuple[str, int, str]]:
        # Some stores list without order: sorted here. A prefix of object_store is one of whole path segments.
        folder = prefix.rpartition("/")[0]

        def read() -> list[tuple[str, int, str]]:
            listed: list[tuple[str, int, str]] = []
            for page in obstore.list(self._store, folder or None):
                objects = [(str(item["path"]), int(item["size"]), _tag(item)) for item in page]
                listed += [(key, size, tag) for key, size, tag in objects if key.startswith(prefix)]
                if count_max is not None and len(listed) >= count_max:
                    break
            return listed

        yield from sorted(self._call("list", prefix, read))[:count_max]

    def children(self, prefix: str) -> list[str]:
        def read() -> list[str]:
            listed = obstore.list_with_delimiter(self._store, prefix.rstrip("/") or None)
            keys = [str(item["path"]) for item in listed["objects"]]
            return keys + [str(folder).rstrip("/") for folder in listed["common_prefixes"]]

        return sorted(name[len(prefix) :] for name in self._call("list", prefix, read) if name.startswith(prefix))

    def delete(self, name: str) -> None:
        def remove() -> None:
            if self._deletes_singly:
                self._delete_singly(name)
                return
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                return
            except Exception as error:
                # Of S3 it asks for the deletion of many by one POST, also of one; small servers do not know that call.
                if not self.uri.startswith("s3") or "NotImplemented" not in str(error):
                    raise
                self._deletes_singly = True
                self._delete_singly(name)

        self._call("delete", name, remove)

    def _delete_singly(self, name: str) -> None:
        address = obstore.sign(self._store, "DELETE", name, timedelta(seconds=CALL_TIMEOUT_S))
        try:
            urlopen(Request(address, method="DELETE"), timeout=REQUEST_TIMEOUT_S).close()
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return
            if error.code == HTTPStatus.FORBIDDEN:
                raise _refusal("delete", f"HTTP {error.code}", self._where(name)) from None
            raise UnreachableError(errno.EHOSTUNREACH, f"HTTP {error.code}", self._where(name)) from None
        except OSError as error:
            raise UnreachableError(errno.EHOSTUNREACH, _plain(error), self._where(name)) from None

    # --- deadlines and errors

    def _where(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _call(self, verb: str, name: str, call: Callable[[], T], repeat: bool = True) -> T:
        """Return what the call returns; it is repeated until the deadline, if it may be.

        `verb`: which right it takes.
        """
        self._begin()
        ends, pause_s = time.monotonic() + self._timeout_s, FIRST_PAUSE_S
        while True:
            try:
                return call()
            except BaseException as error:
                if type(error).__name__ == "PanicException":  # of the client, which may have asked before
                    raise UnreachableError(errno.EHOSTUNREACH, _plain(error), self._where(name)) from None
                if not isinstance(error, Exception):
                    raise
                mine = self._error(error, verb, name)
                left_s = ends - time.monotonic()
                if not repeat or left_s <= 0 or not isinstance(mine, OSError) or mine.errno in _FINAL:
                    raise mine from None  # what it was made of may quote a signed address
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _begin(self) -> None:
        global _user_process
        process = os.getpid()
        if _user_process is None:
            _user_process = process
        elif _user_process != process:
            raise StorageError(
                f"{self.uri}: this process was forked from one that has used an object store, whose client would hang "
                "here; start processes by spawn or forkserver"
            )

    def _error(self, error: Exception, verb: str, name: str) -> Exception:
        """Return an error of the client as one of the operating system."""
        where, text, code = self._where(name), _plain(error), _code(error)
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            return FileExistsError(errno.EEXIST, "there may be such an object", where)
        if code in _CODES_OF_MISSING_BUCKETS:
            return FileNotFoundError(errno.ENOENT, "there is no such bucket", self.uri)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "no such object", where)
        is_refused = isinstance(
            error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError
        )
        is_refused = is_refused or _REFUSED.search(str(error)) is not None
        if _METADATA_SERVICE.search(str(error)):
            is_final = is_refused or _NOT_FOUND.search(str(error)) is not None
            text = f"no credentials: neither settings nor environment nor a role of this machine give any: {text}"
            if is_final:
                return PermissionError(errno.EACCES, text, where)
            return UnreachableError(errno.EHOSTUNREACH, text, where)
        if is_refused or code in _CODES_OF_SETTINGS or "configured region" in text:
            return _refusal(verb, text, where)
        if isinstance(error, exceptions.NotSupportedError):
            return OSError(errno.ENOTSUP, text, where)
        if isinstance(error, exceptions.BaseError) or type(error) is OSError:
            return UnreachableError(errno.EHOSTUNREACH, text, where)
        return error


_FINAL = (errno.EEXIST, errno.ENOENT, errno.EACCES, errno.ENOTSUP)
# Of the machine, that is asked for the credentials of its role where no others are given.
_METADATA_SERVICE = re.compile(r"/latest/api/token|computeMetadata|169\.254\.169\.254")
_NOT_FOUND = re.compile(r"status code: 404\b")
_REFUSED = re.compile(r"status code: 40[13]\b")  # of calls whose errors the client does not tell apart
_CODES_OF_MISSING_BUCKETS = ("ContainerNotFound", "NoSuchBucket")
# What S3 answers, also with codes of HTTP that mean other things elsewhere: nothing becomes of it by trying again.
_CODES_OF_SETTINGS = (
    "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "PermanentRedirect", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
)  # fmt: skip


def _tag(meta: Any) -> str:
    """Return the tag of an object: some stores have it in quotes here and without them there."""
    return str(meta["e_tag"] or "").strip('"')


def _refusal(verb: str, text: str, where: str) -> PermissionError:
    return PermissionError(
        errno.EACCES,
        f"the object store refuses to {verb}; check the credentials, their right to {verb}, region and clock: {text}",
        where,
    )


def _code(error: BaseException) -> str:
    """Return what S3 calls an error; empty if it does not. Of an object among many it says it in the answer."""
    code = re.search(r"<Code>(\w+)</Code>|\(code: (\w+)\)", str(error))
    return code[1] or code[2] if code else ""


_OF_MANY = re.compile(r".*request failed for key \S+: ")
_REQUEST = re.compile(r".*Error performing \w+ (\w+://)(?:[^/\s]*@)?([^/\s]+)\S* in \S+ - ")
_STATUS = re.compile(r"Server returned [^:]+: (?=\d)")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"|Invalid\w+\(\s*(\w+)|(TimedOut)')  # in how the client shows itself


def _plain(error: BaseException) -> str:
    """Return in one line which server was asked and what became of it, without addresses and documents.

    These name keys and what was signed; but the code that the store gave is of use.
    """
    text, _, source = str(error).partition("Debug source:")
    text, document, _ = " ".join(text.split()).partition("<")
    text = _STATUS.sub("", _REQUEST.sub(r"\1\2: ", _OF_MANY.sub("", text))).rstrip(": ")
    text = re.sub(r"\?[^\s\"')]*", "", f"{text}: {_code(error)}" if document else text)
    causes = _CAUSE.findall(source) if text.endswith("error sending request") else []
    return (f"{text}: {''.join(causes[-1])}" if causes else text)[:300]


def _connect(uri: str, options: Mapping[str, str], retry_count: int = 0) -> Any:
    scheme = uri.partition("://")[0]
    if scheme not in OBJECT_SCHEMES:
        raise ValueError(f"{uri}: {scheme!r} is no object store; valid are {', '.join(OBJECT_SCHEMES)}")
    client = {"timeout": f"{REQUEST_TIMEOUT_S}s", "connect_timeout": f"{CONNECT_TIMEOUT_S}s"}
    # delta-rs takes them with the prefix as well (aws_allow_http); obstore panics.
    plain = {key: _PREFIXES.sub("", key, count=1) for key in options}
    client |= {plain[key]: value for key, value in options.items() if plain[key] in _CLIENT_OPTIONS}
    config = {key: value for key, value in options.items() if plain[key] not in _CLIENT_OPTIONS}
    endpoints = {key: text for key, text in config.items() if "endpoint" in key}
    endpoints |= {key: text for key in _ENDPOINTS if (text := os.environ.get(key))}
    # The client panics at what can be no address, and what S3's can be no headers of HTTP.
    for key, text in endpoints.items():
        if not _is_address(text):
            raise ValueError(f"{uri}: {key} is no address; valid are those like https://host and http://host:9000")
    of_s3 = {**config, **{key: os.environ[key] for key in _S3_VARIABLES if key in os.environ}}
    for key, text in of_s3.items() if scheme.startswith("s3") else ():
        if not (text.isascii() and text.isprintable()):
            raise ValueError(f"{uri}: {key} holds a line break or another character that no such setting has")
    if any(text.startswith("http://") for text in [*config.values(), *endpoints.values()]):
        client.setdefault("allow_http", "true")
    retries = {"max_retries": retry_count, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
    try:
        return from_url(uri, config=config, client_options=client, retry_config=retries)  # type: ignore[call-overload]
    except exceptions.UnknownConfigurationKeyError:
        unknown = next((key for key in config if _is_unknown(uri, key)), "")
        raise ValueError(f"{uri}: unknown storage option {unknown!r}{did_you_mean(unknown, _KNOWN)}") from None
    except Exception as error:
        raise ValueError(f"{uri}: {_plain(error)}") from None


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, or a bracket
        return False


_KNOWN = (
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region", "aws_endpoint_url",
    "aws_virtual_hosted_style_request", "aws_unsigned_payload", "aws_skip_signature", "google_service_account",
    "google_service_account_key", "google_application_credentials", "azure_storage_account_name",
    "azure_storage_account_key", "azure_storage_sas_key", "azure_storage_client_id", "azure_storage_client_secret",
    "azure_storage_tenant_id", "azure_storage_use_emulator", "azure_endpoint", *_CLIENT_OPTIONS,
)  # fmt: skip


def _is_unknown(uri: str, key: str) -> bool:
    try:
        from_url(uri, config={key: ""})  # type: ignore[call-overload]
    except exceptions.UnknownConfigurationKeyError:
        return True
    except Exception:
        return False
    return False
