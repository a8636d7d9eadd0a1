"""A connection to one of several NATS servers: a socket that is read in chunks, and requests of JetStream.

For one thread. Nothing waits longer than `silence_s` for a server that does not send a byte: half of that time after
the last byte it is asked with a PING. After an error the connection is closed, and whoever used it opens another one.
"""

import contextlib
import ipaddress
import json
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from storage_core.errors import (
    LoginError,
    NotFoundError,
    ProtocolError,
    ServerAwayError,
    ServerError,
    StorageError,
    StreamNotFoundError,
)
from storage_core.live.columns import Status, status_of
from storage_core.live.login import Address, Login, parse_address
from storage_core.live.wire import Frames, find_frames

log = logging.getLogger("jstream")

SILENCE_S = 10.0
CHUNK_SIZE = 2 << 20  # of smaller ones the parser takes more time for a message, of larger ones no less
_GATHER_S = 0.002  # how long more bytes are waited for, for a fuller chunk
STREAM_NOT_FOUND, CONSUMER_NOT_FOUND, NO_MESSAGE_FOUND = 10059, 10014, 10037
NO_RESPONDERS = 503
_REFUSALS = ("authorization violation", "authentication", "permissions violation", "user not allowed", "account ")


class Connection:
    """An open connection, logged in."""

    def __init__(self, addresses: Sequence[Address], login: Login, silence_s: float = SILENCE_S) -> None:
        """Connect to the first address that answers.

        Raises LoginError if a server refuses the login, else ServerAwayError naming what each address said.
        """
        self.silence_s = silence_s
        self._login = login.completed()
        self._socket: socket.socket | None = None
        self._buffer = bytearray(2 * CHUNK_SIZE)
        self._size, self._taken = 0, 0  # bytes that are there; those of frames that were handed out
        self._wanted = 0
        self._sids = 0
        self._replies = 0
        self.info: dict[str, Any] = {}
        self.inbox = f"{self._login.inbox}.{secrets.token_hex(11)}"
        said = []
        for address in addresses:
            try:
                self._connect(address, addresses[0])
                break
            except (OSError, ServerAwayError, ProtocolError) as error:
                self.close()
                said.append(str(error) if str(address) in str(error) else f"{address}: {error}")
            except BaseException:
                self.close()
                raise
        else:
            raise ServerAwayError(f"no NATS server answers: {'; '.join(said)}", server=str(addresses[0]))
        self.inbox_sid = self.subscribe(f"{self.inbox}.*")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None

    @property
    def api(self) -> str:
        """The beginning of the subjects of JetStream's requests."""
        return self._login.api

    @property
    def version(self) -> tuple[int, ...]:
        """The server's version."""
        numbers = str(self.info.get("version", "")).partition("-")[0].split(".")
        return tuple(int(number) if number.isdecimal() else 0 for number in numbers)

    @property
    def payload_size_max(self) -> int:
        return int(self.info.get("max_payload", 1 << 20))

    def others(self) -> list[Address]:
        """Return the addresses of other servers that this one has told."""
        is_tls = self.address.is_tls
        addresses = (parse_address(text, "connect_urls") for text in self.info.get("connect_urls") or ())
        return [Address(address.host, address.port, is_tls) for address in addresses]

    # --- opening

    def _connect(self, address: Address, first: Address) -> None:
        self.address, self._size, self._taken = address, 0, 0
        self._socket = socket.create_connection((address.host, address.port), self.silence_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = first.host if _is_number(address.host) else address.host  # certificates name hosts
        if self._login.tls_first:
            self._start_tls(name)
        self._await(b"INFO")
        demands = address.is_tls or bool(self._login.ca or self._login.cert)
        if self.info.get("tls_required") or (demands and self.info.get("tls_available")):
            if not self._login.tls_first:
                self._start_tls(name)
        elif demands and not self._login.tls_first:
            raise LoginError(f"{address} offers no TLS, which tls://, natsCa or natsCert demand", server=str(address))
        connect = {
            "verbose": False,
            "pedantic": False,
            "tls_required": isinstance(self._socket, ssl.SSLSocket),
            "lang": "python",
            "version": "jstream",
            "name": "jstream",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            **self._login.answer(str(self.info.get("nonce", ""))),
        }
        self._send(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        self._await(b"PONG")

    def _start_tls(self, name: str) -> None:
        assert self._socket is not None
        self._socket.settimeout(self.silence_s)  # reading has left a shorter one
        try:
            self._socket = self._login.tls().wrap_socket(self._socket, server_hostname=name)
        except ssl.SSLError as error:
            raise LoginError(f"{self.address}: TLS failed: {error}", server=str(self.address)) from error

    def _await(self, verb: bytes) -> None:
        """Read frames until one begins with the verb; there are no messages yet."""
        end_s = time.monotonic() + self.silence_s
        while time.monotonic() < end_s:
            for line in self._lines_once():
                if line.upper().startswith(verb):
                    return
        first = "; if it expects TLS first, set natsTlsFirst" if verb == b"INFO" else ""
        raise self._away(f"sent no {verb.decode()} in {self.silence_s:g} s{first}")

    def _lines_once(self) -> list[bytes]:
        """Read once, and return the control lines: TLS may begin behind one, so that nothing is read beyond."""
        if not self._fill(self.silence_s):
            return []
        block, frames = self._found()
        return self._controls(block, frames)

    # --- reading

    def receive(self, timeout_s: float) -> "tuple[np.ndarray, Frames] | None":
        """Return a chunk and the messages in it; None if none came in that time. They are valid until the next call.

        Raises ServerAwayError if the connection ends or the server is silent, LoginError if it refuses a permission.
        """
        now_s = time.monotonic()
        end_s, silent_s, is_asked = now_s + timeout_s, now_s + self.silence_s, False
        while True:
            pause_s = self.silence_s / 2 if not is_asked else silent_s - now_s
            if self._fill(max(0.0, min(end_s - now_s, pause_s))):
                block, frames = self._found()
                self._controls(block, frames)
                if frames.is_message.any():
                    return block, frames if frames.is_message.all() else frames.rows(frames.is_message)
                silent_s, is_asked = time.monotonic() + self.silence_s, False
            now_s = time.monotonic()
            if now_s >= silent_s:
                raise self._away(f"sent nothing for {self.silence_s:g} s")
            if now_s >= end_s:
                return None
            if not is_asked and silent_s - now_s <= self.silence_s / 2:
                self._send(b"PING\r\n")
                is_asked = True

    def _fill(self, timeout_s: float) -> bool:
        """Read what comes in that time, up to a chunk; return whether there is a byte that was not looked at."""
        if self._socket is None:
            raise self._away("is closed")
        self._move()
        before = self._size
        wait_s = timeout_s
        try:
            while self._size < max(CHUNK_SIZE, self._wanted):
                self._socket.settimeout(max(wait_s, 1e-6))
                count = self._socket.recv_into(memoryview(self._buffer)[self._size :])
                if not count:
                    if self._size > before:
                        break
                    raise self._away("closed the connection")
                self._size += count
                wait_s = _GATHER_S
        except (TimeoutError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._away(str(error)) from error
        return self._size > before

    def _move(self) -> None:
        """Drop what was handed out, and make room for a chunk or for the message that has begun."""
        if self._taken:
            self._buffer[: self._size - self._taken] = self._buffer[self._taken : self._size]
            self._size -= self._taken
            self._wanted = max(0, self._wanted - self._taken)
            self._taken = 0
        needed = max(self._wanted, self._size) + CHUNK_SIZE
        if needed > len(self._buffer):
            grown = bytearray(needed)
            grown[: self._size] = memoryview(self._buffer)[: self._size]
            self._buffer = grown

    def _found(self) -> tuple[np.ndarray, Frames]:
        size = 0 if self._wanted > self._size else self._size  # in the middle of a large message nothing is looked at
        block = np.frombuffer(self._buffer, np.uint8)[:size].copy()
        frames = find_frames(block)
        if not size:
            return block, frames
        self._taken, self._wanted = frames.end, frames.wanted
        return block, frames

    def _controls(self, block: np.ndarray, frames: Frames) -> list[bytes]:
        """Act on the frames that are no messages, and return their lines."""
        lines = []
        for at in np.flatnonzero(~frames.is_message):
            line = block[frames.starts[at] : frames.line_ends[at]].tobytes()
            lines.append(line)
            verb = line[:5].upper()
            if verb.startswith(b"PING"):
                self._send(b"PONG\r\n")
            elif verb.startswith(b"INFO"):
                self._informed(line[5:])
            elif verb.startswith(b"-ERR"):
                raise self._refused(line[4:].decode("utf-8", "replace").strip(" '"))
        return lines

    def _informed(self, text: bytes) -> None:
        try:
            info = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"{self.address} sent an INFO that is no JSON: {error}") from None
        if not isinstance(info, dict):
            raise ProtocolError(f"{self.address} sent an INFO that is no JSON object")
        self.info.update(info)
        if info.get("ldm"):
            log.info("%s is about to stop (lame duck mode)", self.address)

    def _refused(self, text: str) -> ServerError:
        if any(words in text.lower() for words in _REFUSALS):
            return LoginError(f"{self.address} refused: {text}", server=str(self.address))
        return self._away(f"ended the connection: {text}")

    def _away(self, what: str) -> ServerAwayError:
        where = str(getattr(self, "address", ""))
        return ServerAwayError(f"{where} {what}", server=where)

    # --- writing

    def _send(self, *parts: bytes | memoryview) -> None:
        if self._socket is None:
            raise self._away("is closed")
        try:
            self._socket.settimeout(self.silence_s)
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            raise self._away(f"takes no bytes: {error}") from error

    def send(self, data: bytes) -> None:
        """Send frames as they are."""
        self._send(data)

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        between = f" {reply} " if reply else " "
        self._send(f"PUB {subject}{between}{len(payload)}\r\n".encode(), payload, b"\r\n")

    def subscribe(self, subject: str) -> int:
        """Subscribe to a subject and return the subscription's number."""
        self._sids += 1
        self._send(f"SUB {subject} {self._sids}\r\n".encode())
        return self._sids

    # --- requests

    def replies(self, block: np.ndarray, frames: Frames) -> Iterator[tuple[str, Status, bytes]]:
        """Yield subject, status and payload of each message, for answers that are few."""
        for at in range(len(frames)):
            line = block[frames.starts[at] : frames.line_ends[at]].tobytes().split(b" ")
            payload = block[frames.line_ends[at] + 2 : frames.payload_ends[at]].tobytes()
            status = Status(0, "", {})
            if frames.has_headers[at]:
                header_size = int(line[-2])
                status, payload = status_of(payload[:header_size]), payload[header_size:]
            yield line[1].decode("utf-8", "replace"), status, payload

    def request(self, verb: str, *names: str, body: object = None, timeout_s: float | None = None) -> dict[str, Any]:
        """Return what JetStream answers to a request such as `STREAM.INFO` of a stream, the first of the names.

        Raises StreamNotFoundError, NotFoundError, LoginError, ServerError as the answer says, and ServerAwayError if
        there is none in time.
        """
        self._replies += 1
        reply, limit_s = f"{self.inbox}.{self._replies}", timeout_s or self.silence_s
        subject = ".".join((self.api, verb, *names))
        self.publish(subject, b"" if body is None else json.dumps(body).encode(), reply)
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            received = self.receive(left_s)
            for answered, status, payload in self.replies(*received) if received else ():
                if answered == reply:
                    return self._answer(verb, names, status, payload)
        raise self._away(f"did not answer {verb} in {limit_s:g} s")

    def _answer(self, verb: str, names: tuple[str, ...], status: Status, payload: bytes) -> dict[str, Any]:
        where = str(self.address)
        if status.code == NO_RESPONDERS:
            raise ServerError(
                f"{where}: nobody answers {verb}: JetStream is off, has no leader now, or is in another domain",
                server=where,
                error_code=NO_RESPONDERS,
            )
        try:
            answer = json.loads(payload)
        except ValueError as error:
            raise ProtocolError(f"{where} answered {verb} with what is no JSON: {payload[:80]!r}") from error
        if not isinstance(answer, dict):
            raise ProtocolError(f"{where} answered {verb} with what is no JSON object: {payload[:80]!r}")
        if refusal := answer.get("error"):
            raise self._error(verb, names, refusal if isinstance(refusal, dict) else {"description": str(refusal)})
        return answer

    def _error(self, verb: str, names: tuple[str, ...], error: dict[str, Any]) -> StorageError:
        code, where = error.get("err_code"), str(self.address)
        stream = names[0] if names else None
        if code == STREAM_NOT_FOUND and stream:
            return StreamNotFoundError(stream, where, self._known_streams())
        text = f"{where}: {' '.join((verb, *names))}: {error.get('description')} ({code or error.get('code')})"
        if code in (CONSUMER_NOT_FOUND, NO_MESSAGE_FOUND):
            return NotFoundError(text)
        return ServerError(text, server=where, stream=stream, error_code=code)

    def _known_streams(self) -> Iterable[str]:
        try:
            return self.stream_names()
        except ServerError:
            return ()

    def stream_names(self) -> list[str]:
        return sorted(str(name) for name in self.pages("STREAM.NAMES", key="streams"))

    def pages(self, verb: str, *names: str, key: str) -> Iterator[Any]:
        """Yield the entries of a list that comes in pages."""
        count = 0
        while True:
            page = self.request(verb, *names, body={"offset": count})
            entries = page.get(key) or []
            yield from entries
            count += len(entries)
            if not entries or count >= int(page.get("total", 0)):
                return


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
